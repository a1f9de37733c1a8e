//! Headgate's operator and command line as a library.
//!
//! `AdmissionPolicy` YAML is parsed ([`plan`] is what comes out), compiled into one filter configuration
//! for each workload, and served to Envoy.

pub mod admin;
pub mod api;
pub mod compile;
pub mod validate;
pub mod bootstrap;
pub mod plan;
pub mod xds;
