//! Code that Headgate's benchmarks and end-to-end tests share, beyond the
//! [harness](headgate_harness). It has Kubernetes, xDS clients, meshes of services, dashboards, and
//! the benchmarks themselves.

pub mod bench;
pub mod chart;
pub mod dashboard;
pub mod docs;
pub mod fleet;
pub mod kube;
pub mod mesh;
pub mod operator;
pub mod pki;
pub mod policies;
pub mod prometheus;
pub mod simulated;
pub mod xds;
pub mod xds_clients;

pub use headgate_harness::{
    backend, bootstrap, clock, demo, envoy, file, headgate, http, load, mix, policy, process,
    quantiles, rig, skip, wait,
};
