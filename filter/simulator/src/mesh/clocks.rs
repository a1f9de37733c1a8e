//! The clocks of hosts, which never show the same time.
//!
//! A proxy reads the monotonic clock of its host. This clock starts at the host's boot, and its
//! speed depends on the host's crystal and time synchronization. Processes only exchange durations.
//! So a run with clocks that are years apart must equal the run with one clock, and a run with
//! drifting clocks must be close to the run with one clock.

use std::time::Duration;

use headgate_strategies::time::{Instant, nanos};

use crate::workload::dice::Dice;

/// The differences between the processes' clocks. By default all show the run's time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Clocks {
    /// The largest lead of a clock over the run's time.
    pub ahead: Duration,
    /// The largest drift of a clock, fast or slow, ratio. Time synchronization can cause a drift of
    /// up to 0.0005.
    pub drift: f64,
}

/// The clock of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Clock {
    ahead: u64,
    drift: f64,
}

impl Clocks {
    /// Draws one clock.
    pub(super) fn draw(&self, dice: &mut Dice) -> Clock {
        Clock {
            ahead: (dice.unit() * nanos(self.ahead) as f64) as u64,
            drift: (dice.unit() * 2.0 - 1.0) * self.drift,
        }
    }
}

impl Clock {
    /// Returns the clock's time after `now` ns of the run.
    pub(super) fn at(self, now: u64) -> Instant {
        let gained = (now as f64 * self.drift) as i64;
        Instant::from_nanos(now.saturating_add_signed(gained).saturating_add(self.ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_apart_as_far_as_they_may() {
        let clocks = Clocks {
            ahead: Duration::from_secs(3_600),
            drift: 0.001,
        };
        let mut dice = Dice::new(1);
        let (mut ahead, mut behind) = (false, false);
        for _ in 0..100 {
            let clock = clocks.draw(&mut dice);
            let shown = |s: u64| clock.at(s * 1_000_000_000).as_nanos();
            assert!(shown(0) <= 3_600_000_000_000);
            let gained = (shown(1_000) - shown(0)) as i64 - 1_000_000_000_000;
            assert!(gained.abs() <= 1_000_000_000, "{gained}");
            ahead |= gained > 500_000_000;
            behind |= gained < -500_000_000;
        }
        assert!(ahead && behind);
        let exact = Clocks::default().draw(&mut dice);
        assert_eq!(exact.at(12_345).as_nanos(), 12_345);
    }
}
