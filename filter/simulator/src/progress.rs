//! Progress of a simulation.

/// A receiver of a simulation's progress, on any thread.
pub trait Progress: Sync {
    /// Announces approximately this number of additional requests. A mesh counts simulated seconds
    /// instead of requests.
    fn expect(&self, requests: u64);

    /// Reports this number of additional simulated requests, or seconds.
    fn done(&self, requests: u64);
}

/// A receiver that ignores progress.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn expect(&self, _: u64) {}

    fn done(&self, _: u64) {}
}
