//! The papers' experiments, with the numbers that the papers print.
//!
//! Each is a [`Study`]: it runs by its name and makes a [`Report`](crate::report::Report) in which what the
//! paper found stands beside what was found here, so that nobody has to remember what was expected. Most
//! are a [`Sweep`]: some strategies under the same traffic, at a row of loads or of values of a parameter.
//! Experiments of the papers that nothing here repeats are [`MISSING`].

pub(crate) mod aequitas;
mod bouncer;
mod chronos;
mod paper;
mod seda;
mod study;
mod sweep;
mod wisp;

pub use crate::progress::{Progress, Silent};
pub use paper::{Paper, PaperCell};
pub use study::{Size, Study};
pub use sweep::{Axis, Findings, Metric, Point, Series, Sweep, SweepRow};

/// All experiments, in the order of the papers.
#[must_use]
pub fn studies() -> Vec<Box<dyn Study>> {
    let mut studies: Vec<Box<dyn Study>> = Vec::new();
    studies.extend(bouncer::sweeps().map(|sweep| Box::new(sweep) as Box<dyn Study>));
    studies.push(Box::new(bouncer::SlackOrder));
    studies.extend(seda::studies());
    studies.extend(chronos::studies());
    studies.extend(wisp::studies());
    studies.extend(aequitas::studies());
    studies
}

/// Experiments of the papers that no scenario repeats, and why.
pub const MISSING: [(&str, &str); 6] = [
    (
        "Bouncer, Figure 3",
        "starvation within one second on LIquid",
    ),
    (
        "Bouncer, Figures 11 to 13",
        "LIquid: eleven types, brokers in front of shards, processing times that grow with the load",
    ),
    (
        "SEDA, Figure 7",
        "90th percentile and admission rate of one stage in a spike",
    ),
    ("Chronos, Figure 3", "service delay by inter-request time"),
    (
        "Chronos, §3.1",
        "processor time and memory of the controller",
    ),
    ("Wisp, Figures 1 and 2", "measurements of Bing"),
];

/// The experiment `name`.
#[must_use]
pub fn by_name(name: &str) -> Option<Box<dyn Study>> {
    studies().into_iter().find(|study| study.name() == name)
}

/// The [`Sweep`] `name`, for those who want its parts.
#[must_use]
pub fn sweep(name: &str) -> Option<Sweep> {
    bouncer::sweeps().find(|sweep| sweep.name == name)
}
