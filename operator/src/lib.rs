//! Headgate's operator and command line as a library.
//!
//! `AdmissionPolicy` YAML ([`source`] reads it) takes the shape of [`api`], becomes policies without
//! mistakes ([`validate`]), then one filter configuration for each workload ([`compile`]). A [`plan`] is
//! what comes out, and [`xds`] serves it to Envoy. In a cluster, [`kubernetes`] takes the place of
//! [`source`]. [`cli`] is the way in.

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
