//! Headgate's operator, as a library.
//!
//! A source turns `AdmissionPolicy` resources into a [`plan`](headgate_api::plan). It reads them
//! from a folder ([`source`]) or from a cluster ([`kubernetes`]). [`xds`] serves the plan to Envoy.

pub mod admin;
pub mod bootstrap;
pub mod certificate;
pub mod endpoint;
pub mod files;
pub mod http_client;
pub mod http_server;
mod in_use;
pub mod inject;
pub mod kubernetes;
pub mod metrics;
pub mod modules;
mod quota;
pub mod source;
pub mod xds;
