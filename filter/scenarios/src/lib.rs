//! The papers' experiments, with the numbers that the papers print.
//!
//! Each experiment is a [`Scenario`], which is data (`data/*.yaml`). The data contains the
//! parameters of a model, the strategies that run in the model, the loads or parameters that are
//! swept, the tables and figures, the paper's values, and the paper's claims with the bounds within
//! which they are reproduced. One runner turns any scenario into a
//! [`Report`](headgate_simulator::Report). Only the `model` differs from paper to paper. It
//! contains the arrivals, the servers, and the measurements.
//!
//! A claim that is not reproduced has a reason, and fails once it holds. A claim to which the model
//! was fitted, or that follows from the setup, is shown but not judged. Every other claim, and
//! every table cell with a bound, holds at the size of [`Scenario::check_size`]. `headgate simulate
//! --scenario NAME --check --quick` runs this size.
//!
//! [`sysid`] contains the system identification and the controller design of Chronos, for its
//! experiment and for users' traces.

mod claim;
mod measured;
mod model;
mod scenario;
mod show;
pub mod sysid;

pub use scenario::{MISSING, Scenario, ScenarioError, all, by_name};
