//! The operator in a Kubernetes cluster. The input is objects on the API server. The output is
//! statuses, Events and delivered objects.
//!
//! The structure is a pure plan and a thin apply. The observed state is plain data
//! ([`headgate_deliver::cluster`]). A pure function ([`resolve`]) turns it into a
//! [`Plan`](headgate_api::plan::Plan), which the xDS server serves like the plan of a folder. Only
//! the watches and the writers call the API server. Of several replicas, only the leader writes.

pub mod authority;
pub mod ca_bundle;
pub mod client;
pub mod controller;
pub mod crd;
pub mod events;
pub mod judge;
mod keep_ca;
pub mod leader;
pub mod operate;
pub mod peers;
pub mod publish;
pub mod requests;
pub mod resolve;
pub mod resource;
pub mod selected;
pub mod status;
pub mod store;
pub mod writer;

/// The `controllerName` of this controller's entries in `status.ancestors`.
pub const CONTROLLER_NAME: &str = "headgate.dev/controller";
