//! Headgate's admission engine in simulated time.
//!
//! A model of the algorithm would only show what its author believes. So the simulator runs
//! [`headgate_core::stage::Stage`], the code that decides in Envoy, between a Poisson source of requests
//! and a backend of P servers, both of which exist only as events: a run of two minutes takes a second,
//! and the same seed gives the same result to the last digit.
//!
//! [`simulation`] is one run, [`batch`] many of them on all cores, and [`scenario`] holds the experiments
//! of the papers with the numbers that the papers print.

pub mod batch;
mod host;
pub mod progress;
pub mod report;
pub mod results;
pub mod scenario;
pub mod simulation;
pub mod workload;

pub use batch::{Batch, Experiment};
pub use progress::{Progress, Silent};
pub use report::Report;
pub use results::{ALL, Outcome, Row};
pub use simulation::{Simulation, SimulationError};
pub use workload::{LogNormal, Rate, TypeLoad, Workload, WorkloadError};
