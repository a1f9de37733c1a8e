//! Headgate's admission engine in simulated time.
//!
//! A model of the algorithm would only show what its author believes. So the simulator runs
//! [`headgate_core::engine::Engine`], which decides in Envoy, between a [`source`] of requests (open or closed
//! loop) and a modelled [`backend`], both of which exist only as events: a run of two minutes takes
//! a second, and the same seed gives the same result to the last digit.
//!
//! [`fabric`] is a network of hosts around a switch, for class admission, whose time scale is that of packets.
//!
//! [`simulation`] is one run, [`batch`] many of them on all cores. [`scenario`] holds the experiments of the
//! papers with the numbers that the papers print, [`trial`] tries a policy under a [`workload`], and both
//! end in a [`report`].

pub mod backend;
pub mod batch;
pub mod clients;
pub mod fabric;
pub mod mesh;
mod observe;
mod parallel;
pub mod progress;
pub mod report;
pub mod results;
pub mod scenario;
pub mod simulation;
pub mod source;
pub mod sysid;
pub mod trial;
pub mod workload;

pub use backend::{Backend, Servers};
pub use batch::{Batch, Experiment};
pub use progress::{Progress, Silent};
pub use report::Report;
pub use results::{ALL, Outcome, Row};
pub use simulation::{Run, Simulation, SimulationError, Until};
pub use source::{Answer, Ending, Request, Source};
pub use workload::{LogNormal, Rate, ServiceTime, TypeLoad, Workload, WorkloadError};
