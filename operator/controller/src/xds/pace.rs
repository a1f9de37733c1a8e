//! The rate limit on reading a stream's requests: a token bucket.
//!
//! A stream that exceeds the rate is read more slowly rather than ended. Flow control then makes
//! its sender wait at no cost to other streams, and a proxy that is merely busy loses nothing.

use std::time::{Duration, Instant};

/// A token bucket for one stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    burst: f64,
    /// The number of tokens gained per second.
    rate: f64,
    tokens: f64,
    at: Instant,
}

impl Pace {
    /// Returns a full bucket of `burst` tokens that gains `per_second`; each at least 1.
    pub(super) fn new(burst: u32, per_second: u32, now: Instant) -> Self {
        let burst = f64::from(burst.max(1));
        Self {
            burst,
            rate: f64::from(per_second.max(1)),
            tokens: burst,
            at: now,
        }
    }

    /// Takes a token. If none is left, [`ready_at`](Self::ready_at) is later than `now`.
    pub(super) fn take(&mut self, now: Instant) {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * self.rate;
        self.tokens = (self.tokens + gained).min(self.burst) - 1.0;
        self.at = self.at.max(now);
    }

    /// Returns the time at which the next request may be read.
    pub(super) fn ready_at(&self) -> Instant {
        let missing = (1.0 - self.tokens).max(0.0);
        self.at + Duration::from_secs_f64(missing / self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let start = Instant::now();
        let mut pace = Pace::new(3, 10, start);
        for _ in 0..3 {
            assert!(pace.ready_at() <= start);
            pace.take(start);
        }
        assert_eq!(pace.ready_at(), start + Duration::from_millis(100));
        pace.take(start + Duration::from_millis(100));
        assert_eq!(pace.ready_at(), start + Duration::from_millis(200));
    }

    #[test]
    fn a_rest_fills_the_bucket_and_no_more() {
        let start = Instant::now();
        let mut pace = Pace::new(2, 10, start);
        let later = start + Duration::from_secs(3_600);
        for _ in 0..2 {
            assert!(pace.ready_at() <= later);
            pace.take(later);
        }
        assert!(pace.ready_at() > later);
        // A clock that goes backwards adds no tokens.
        pace.take(start);
        assert!(pace.ready_at() > later + Duration::from_millis(100));
    }
}
