//! Random numbers that spread load over time.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// Returns a number that differs between processes and calls. It is random enough to spread
/// retries.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
