//! The models. A model has the parameters of a run, and returns its measurements.

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

/// The size of a run, relative to the paper's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    /// The number of requests of a run.
    pub(crate) requests: u64,
    /// The ratio of the run's times to the paper's.
    pub(crate) part: f64,
}

/// A span of time, s. The name of the span is the suffix of its metrics' names.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Span<T> {
    #[serde(default)]
    name: String,
    from: T,
    until: T,
}

/// A model with its parameters.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type")]
pub(crate) enum Model {
    /// Open traffic before a stage with P servers (Bouncer §5.3).
    Stage(Box<stage::Stage>),
    /// Users of a service who request page after page (SEDA §4).
    Users(Box<users::Users>),
    /// Client threads of a database (Chronos §5.1).
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
