//! Headgate in a Kubernetes cluster: what the API server knows, in; status, events and delivered
//! objects, out.
//!
//! The shape is a pure plan and a thin apply. [`cluster`] is what was seen, as plain data; a pure
//! function ([`resolve`]) makes a [`Plan`](crate::plan::Plan) of it, which the xDS server serves as
//! it serves a folder's. Only the watching and the writing talk to the API server, and only the
//! leader of several replicas writes.

pub mod authority;
pub mod authorize;
pub mod client;
pub mod cluster;
pub mod controller;
pub mod crd;
pub mod deliver;
pub mod events;
pub mod judge;
mod kept;
pub mod leader;
pub mod operate;
pub mod peers;
pub mod publish;
pub mod read;
pub mod requests;
pub mod resolve;
pub mod resource;
pub(crate) mod review;
pub mod shared;
pub mod status;
pub mod store;
pub mod tokens;
pub mod watch;
pub mod writer;

/// `controllerName` in `status.ancestors`, by which this controller knows its own entries.
pub const CONTROLLER_NAME: &str = "headgate.dev/controller";
/// Field manager of everything this controller writes.
pub const FIELD_MANAGER: &str = "headgate";
