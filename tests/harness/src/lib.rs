//! A backend with an observable queue, an open-loop load generator, the processes of a running
//! system (Envoy, `headgate`), and the demo, which uses all of them.
//!
//! A latency result is only as good as the clock and the load behind it, so both halves report
//! their own errors. The backend reports the delay of its ends of service
//! ([`backend::BackendStats::late_ms`]), and the generator reports the delay of its requests
//! ([`load::LoadReport::lateness_ms`]).
//!
//! Users build the demo from source to see Headgate. So this crate uses `headgate` only as a
//! program, and depends on neither Kubernetes nor xDS.

pub mod backend;
pub mod bootstrap;
pub mod clock;
pub mod demo;
pub mod envoy;
pub mod file;
pub mod headgate;
pub mod http;
pub mod lab;
pub mod load;
pub mod mix;
pub mod native_filters;
pub mod policy;
pub mod process;
pub mod quantiles;
pub mod rig;
pub mod skip;
pub mod table;
pub mod wait;
