//! Headgate's admission engine in simulated time.
//!
//! A model of the algorithm would only show its author's assumptions. So the simulator runs
//! [`headgate_core::engine::Engine`], the same engine as in Envoy, between a [`source`] of requests
//! (open or closed loop) and a modelled [`backend`]. Source and backend consist only of events, so
//! a run of two minutes takes a second, and the same seed gives the same result to the last digit.
//!
//! [`fabric`] is a network of hosts around a switch, for class admission, whose time scale is that
//! of packets.
//!
//! [`simulation`] is one run, [`trial`] runs a policy under a [`workload`], and [`mesh`] simulates
//! many services that call each other. Their results go into a [`report`]. The experiments of the
//! papers are in a separate crate, `headgate-scenarios`.

pub mod backend;
pub mod clients;
pub mod fabric;
pub mod host;
mod lanes;
pub mod mesh;
mod observe;
mod parallel;
pub mod progress;
pub mod report;
pub mod results;
#[cfg(test)]
#[path = "../tests/samples/mod.rs"]
mod samples;
pub mod simulation;
mod size;
pub mod source;
pub mod trial;
pub mod workload;

pub use backend::Backend;
pub use progress::{Progress, Silent};
pub use report::Report;
pub use results::{ALL, Outcome};
pub use simulation::{Run, SimulationError, Until};
pub use size::Size;
pub use source::{Answer, Ending, Request, Source};
pub use workload::{LogNormal, Rate, ServiceTime, TypeLoad, Workload, WorkloadError};
