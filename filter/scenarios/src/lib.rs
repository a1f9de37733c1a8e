//! The papers' experiments, with the numbers that the papers print.
//!
//! Each is a [`Scenario`], which is data (`data/*.yaml`): the parameters of a model, the strategies
//! that run in it, the loads or parameters along which they run, the tables and figures, the
//! paper's values, and its claims with the bounds within which they are reproduced. One runner
//! makes a [`Report`](headgate_simulator::Report) of any of them. Only the `model` differs from
//! paper to paper: the arrivals, the servers, and the measurements.
//!
//! A claim that is not reproduced gives the reason, and fails once it holds. A claim that the model
//! was fitted to, or that follows from the setup, is shown and not judged. Every other claim, and
//! every table cell that has a bound, holds at the size of [`Scenario::check_size`], which
//! `headgate simulate --scenario NAME --check --quick` runs.

mod claim;
mod measured;
mod model;
mod scenario;
mod show;

pub use scenario::{MISSING, Scenario, ScenarioError, all, by_name};
