//! The responses of one proxy over the last few seconds. The oldest and the newest are compared.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::sample::Sample;

/// The number of windows without a response after which earlier ones are out of date.
const LONGEST_GAP: u32 = 2;

/// Recent responses of one proxy.
#[derive(Debug, Clone, Default)]
pub struct History {
    scrapes: VecDeque<(Instant, Sample)>,
    restarts: u32,
}

/// Two responses of one process.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// The earlier one; `None` if only one exists.
    pub before: Option<&'a Sample>,
    /// The later one.
    pub after: &'a Sample,
    /// Time between them, s; above 0 if there are two.
    pub seconds: f64,
}

impl History {
    /// Adds a response, and forgets those that the window no longer needs. After a restart of the
    /// process all earlier ones are dropped: its counters began at 0.
    pub fn push(&mut self, at: Instant, sample: Sample, window: Duration) {
        if let Some((last, before)) = self.scrapes.back() {
            let restarted = sample.uptime < before.uptime && sample.uptime.is_some();
            self.restarts += u32::from(restarted);
            let gap = at.saturating_duration_since(*last);
            if restarted || gap > LONGEST_GAP * window {
                self.scrapes.clear();
            }
        }
        self.scrapes.push_back((at, sample));
        let old = |(then, _): &(Instant, Sample)| at.saturating_duration_since(*then) >= window;
        // One as old as the window is kept for comparison.
        while self.scrapes.get(1).is_some_and(old) {
            self.scrapes.pop_front();
        }
    }

    /// Returns the oldest and the newest response; `None` before the first.
    #[must_use]
    pub fn span(&self) -> Option<Span<'_>> {
        let (at, after) = self.scrapes.back()?;
        let first = self.scrapes.front().filter(|(then, _)| then < at);
        Some(Span {
            before: first.map(|(_, sample)| sample),
            after,
            seconds: first.map_or(0.0, |(then, _)| (*at - *then).as_secs_f64()),
        })
    }

    /// Returns the newest response.
    #[must_use]
    pub fn latest(&self) -> Option<&Sample> {
        self.scrapes.back().map(|(_, sample)| sample)
    }

    /// Returns the number of observed restarts of the process.
    #[must_use]
    pub fn restarts(&self) -> u32 {
        self.restarts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn up(seconds: u64) -> Sample {
        Sample {
            uptime: Some(Duration::from_secs(seconds)),
            ..Sample::default()
        }
    }

    #[test]
    fn the_window_slides() {
        let start = Instant::now();
        let mut history = History::default();
        assert!(history.span().is_none());
        for seconds in (0..=30).step_by(2) {
            history.push(
                start + Duration::from_secs(seconds),
                up(100 + seconds),
                WINDOW,
            );
            let span = history.span().unwrap();
            assert_eq!(span.before.is_none(), seconds == 0);
            assert!((span.seconds - seconds.min(10) as f64).abs() < 1e-9);
        }
        assert_eq!(history.scrapes.len(), 6);
        assert_eq!(history.restarts(), 0);
    }

    #[test]
    fn a_restart_and_a_long_silence_begin_anew() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut history = History::default();
        history.push(at(0), up(100), WINDOW);
        history.push(at(2), up(0), WINDOW);
        assert!(history.span().unwrap().before.is_none());
        assert_eq!(history.restarts(), 1);
        history.push(at(4), up(0), WINDOW);
        assert!(history.span().unwrap().before.is_some());
        history.push(at(60), up(55), WINDOW);
        assert!(history.span().unwrap().before.is_none());
        assert_eq!(history.restarts(), 1);
    }
}
