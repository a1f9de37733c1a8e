//! The period of Envoy's timer.
//!
//! Ticks are frequent while requests wait, and rare otherwise. A hundred ticks a second would cost
//! an idle worker more than its requests. Near saturation the queue fills and empties within
//! milliseconds. Envoy restarts the timer each time its period is set. Setting the period at every
//! change would postpone the tick while changes continue, and cost a timer each time. So the period
//! becomes shorter at once, but longer only at a tick.

use std::time::Duration;

use headgate_core::engine::{FAST_TICK, SLOW_TICK};

/// The time between ticks, or `None` before the first request.
#[derive(Debug, Default)]
pub(crate) struct Ticks(Option<Duration>);

impl Ticks {
    /// Returns the period to set now, or `None` if the period stays. `in_tick` is true if the
    /// current callback is a tick.
    pub(crate) fn to_set(&self, busy: bool, in_tick: bool) -> Option<Duration> {
        let wanted = match self.0 {
            Some(set) if !busy && !in_tick => set,
            _ if busy => FAST_TICK,
            _ => SLOW_TICK,
        };
        (self.0 != Some(wanted)).then_some(wanted)
    }

    /// Records that Envoy's timer now has this period.
    pub(crate) fn set(&mut self, period: Duration) {
        self.0 = Some(period);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is a request every 100 µs, and the queue is empty and not empty in turn.
    #[test]
    fn a_queue_that_comes_and_goes_postpones_no_tick() {
        let mut ticks = Ticks::default();
        let (mut tick_at, mut last, mut sets, mut longest) = (0, 0, 0, 0);
        for now in (0..2_000_000_u64).step_by(100) {
            let busy = (now / 300).is_multiple_of(2);
            let in_tick = ticks.0.is_some() && now >= tick_at;
            if in_tick {
                longest = longest.max(now - last);
                last = now;
            }
            let due = ticks.to_set(busy, in_tick);
            if let Some(period) = due {
                ticks.set(period);
                sets += 1;
            }
            if due.is_some() || in_tick {
                tick_at = now + ticks.0.unwrap().as_micros() as u64;
            }
        }
        assert!(longest <= 11_000, "{longest} µs without a tick");
        assert!(sets <= 2 * 2_000_000 / 10_000, "timer set {sets} times");
    }

    #[test]
    fn an_idle_worker_ticks_slowly_from_its_next_tick_on() {
        let mut ticks = Ticks::default();
        assert_eq!(ticks.to_set(false, false), Some(SLOW_TICK));
        ticks.set(SLOW_TICK);
        assert_eq!(ticks.to_set(true, false), Some(FAST_TICK));
        ticks.set(FAST_TICK);
        assert_eq!(ticks.to_set(false, false), None);
        assert_eq!(ticks.to_set(true, true), None);
        assert_eq!(ticks.to_set(false, true), Some(SLOW_TICK));
    }
}
