//! The papers' experiments, with the numbers that the papers print.
//!
//! Each is a [`Scenario`], which is data (`data/*.yaml`): the parameters of a model, the strategies
//! that run in it, the loads or parameters that are swept, the tables and figures, the paper's
//! values, and its claims with the bounds within which they are reproduced. One runner turns any of
//! them into a [`Report`](headgate_simulator::Report). Only the `model` differs from paper to
//! paper: the arrivals, the servers, and the measurements.
//!
//! A claim that is not reproduced has a reason, and fails once it holds. A claim to which the model
//! was fitted, or that follows from the setup, is shown but not judged. Every other claim, and
//! every table cell that has a bound, holds at the size of [`Scenario::check_size`], which
//! `headgate simulate --scenario NAME --check --quick` runs.
//!
//! [`sysid`] is the identification and design of Chronos, for its experiment and for users' traces.

mod claim;
mod measured;
mod model;
mod scenario;
mod show;
pub mod sysid;

pub use scenario::{MISSING, Scenario, ScenarioError, all, by_name};
