//! The models: the parameters of a run, and its measurements.

mod fabric;
mod identification;
mod mesh;
mod stage;
mod storage;
mod threads;
mod users;

use headgate_simulator::SimulationError;
use serde::Deserialize;

use crate::measured::Measured;

/// The part of the paper's size that is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    /// Requests of a run.
    pub(crate) requests: u64,
    /// Ratio of the paper's times.
    pub(crate) part: f64,
}

/// A model with its parameters.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type")]
pub(crate) enum Model {
    /// Open traffic before a stage with P servers (Bouncer §5.3).
    Stage(Box<stage::Stage>),
    /// Users of a service, page after page (SEDA §4).
    Users(Box<users::Users>),
    /// Threads of a database's clients (Chronos §5.1).
    Threads(Box<threads::Threads>),
    /// System identification (Chronos §4).
    Identification(Box<identification::Identification>),
    /// Services that call each other (Wisp §6).
    Mesh(Box<mesh::Mesh>),
    /// Hosts around a switch (Aequitas).
    Fabric(Box<fabric::Fabric>),
}

impl Model {
    /// Runs the model once.
    pub(crate) fn run(&self, amount: &Amount, seed: u64) -> Result<Measured, SimulationError> {
        match self {
            Self::Stage(model) => model.run(amount, seed),
            Self::Users(model) => model.run(amount, seed),
            Self::Threads(model) => model.run(amount, seed),
            Self::Identification(model) => model.run(amount, seed),
            Self::Mesh(model) => model.run(amount, seed),
            Self::Fabric(model) => model.run(amount, seed),
        }
    }
}
