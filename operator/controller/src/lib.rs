//! Headgate's operator as a library.
//!
//! A source makes a [`plan`](headgate_api::plan) of `AdmissionPolicy` resources: files of a folder
//! ([`source`]), or a cluster ([`kubernetes`]). [`xds`] serves it to Envoy.

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
