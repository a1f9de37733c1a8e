//! What Headgate's demo, benchmarks and end-to-end tests share: a backend whose queue can be watched, an open-loop
//! load generator, and the processes of a running system (Envoy, the operator).
//!
//! A result about latency is worth no more than the clock and the load behind it, so both halves report their own
//! errors: the backend how late its service times ended ([`backend::BackendStats::late_ms`]), the generator how late
//! it sent ([`load::LoadReport::lateness_ms`]).

pub mod backend;
pub mod bench;
pub mod bootstrap;
pub mod chart;
pub mod clock;
pub mod dashboard;
pub mod demo;
pub mod envoy;
pub mod fleet;
pub mod headgate;
pub mod http;
pub mod kube;
pub mod load;
pub mod mesh;
pub mod mix;
pub mod operator;
pub mod policies;
pub mod policy;
pub mod process;
pub mod prometheus;
pub mod quantiles;
pub mod rig;
pub mod simulated;
pub mod skip;
pub mod wait;
pub mod xds;
pub mod xds_clients;
