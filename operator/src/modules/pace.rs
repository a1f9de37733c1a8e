//! What all downloads together may use of the network.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A rate that is shared by who asks.
#[derive(Debug)]
pub(super) struct Bandwidth {
    bytes_per_second: f64,
    /// When all that was reserved has been sent.
    free_at: Mutex<Option<Instant>>,
}

impl Bandwidth {
    /// At least 1 byte/s.
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(1) as f64,
            free_at: Mutex::new(None),
        }
    }

    /// When `bytes` may be sent. Who reserved earlier comes first.
    pub(super) fn reserve(&self, bytes: usize, now: Instant) -> Instant {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let start = free_at.map_or(now, |at| at.max(now));
        *free_at = Some(start + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second));
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_queue_up_at_the_rate() {
        let bandwidth = Bandwidth::new(1_000);
        let now = Instant::now();
        assert_eq!(bandwidth.reserve(500, now), now);
        assert_eq!(
            bandwidth.reserve(1_000, now),
            now + Duration::from_millis(500)
        );
        let later = now + Duration::from_secs(10);
        assert_eq!(bandwidth.reserve(1, later), later, "nothing is saved up");
    }
}
