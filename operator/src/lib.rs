//! Headgate's operator and command line as a library.
//!
//! [`source`] reads `AdmissionPolicy` YAML into the types of [`api`]. [`validate`] turns these into
//! policies without mistakes, and [`compile`] turns policies into one filter configuration for each
//! workload. The result is a [`plan`], which [`xds`] serves to Envoy. In a cluster, [`kubernetes`]
//! replaces [`source`]. [`cli`] is the entry point.

pub mod admin;
pub mod api;
pub mod bootstrap;
pub mod certificate;
pub mod cli;
pub mod compile;
pub mod endpoint;
mod http_client;
pub mod http_server;
pub mod inject;
pub mod kubernetes;
pub mod metrics;
pub mod modules;
pub mod plan;
pub mod source;
pub mod validate;
pub mod xds;
