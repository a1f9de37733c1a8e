//! How far a simulation has come.

/// Hears how far a simulation has come, on any thread.
pub trait Progress: Sync {
    /// So many requests more will be simulated, about.
    fn expect(&self, requests: u64);

    /// So many requests more were simulated.
    fn done(&self, requests: u64);
}

/// Nobody looks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn expect(&self, _: u64) {}

    fn done(&self, _: u64) {}
}
