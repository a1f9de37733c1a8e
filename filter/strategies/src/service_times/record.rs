//! The histograms of one type in a window of time that advances in steps.
//!
//! ```text
//! steps    [ n-1 ] … [ 1 ] [ 0 ]   populating
//!          └───── readable ────┘   (new samples)
//! ```
//!
//! New samples go into `populating`. At the first visit after a step's end, `populating` becomes
//! the newest of the closed steps, and steps that have left the window are dropped. Decisions are
//! based on the sum of the closed steps. These are always the last n whole steps, n · step =
//! interval. So estimates follow a change within a step, and after n + 1 steps no longer contain
//! the time before the change (Bouncer §7: "update processing time histograms in a sliding window,
//! instead of nonoverlapping windows").
//!
//! **Dual buffers** (§3, footnote 4) are the case n = 1. Samples of one interval are read in the
//! next.
//!
//! **Lulls.** Appendix A prefers old data to none. `populating` closes only with 1/n of
//! `min_samples`. Otherwise it continues over the next step. The oldest step is dropped only if the
//! other steps have `min_samples`. So the window of a rare type reaches back as far as necessary,
//! and advances after every `min_samples` / n samples. With n = 1 the result is the retained
//! histogram of Appendix A.
//!
//! **Without a readable histogram, or with a condemned one** (see [`super`]), `populating` replaces
//! all closed steps as soon as it has `min_samples`.
//!
//! Closed steps are stored encoded, so that adding samples doesn't cost more in a window of many
//! steps. Each worker builds their sum once a step, when it reads it.
//!
//! The alternative is one sum from which the expired step is subtracted. It needs the steps as well
//! (for the subtraction), so it takes more memory, not less.
//!
//! Times are absolute, not numbers of steps. So a record stays readable when the interval, the step
//! or the kind of window changes, and has the new shape within one interval.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::host::{HostError, Shared};
use crate::shared;
use crate::time::{Instant, nanos};

/// The window and the conditions under which samples become readable.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Window {
    pub(super) step: Duration,
    /// The number of steps that are readable at once, at least 1.
    pub(super) steps: u32,
    /// The least number of samples with which a histogram is used.
    pub(super) min_samples: u32,
}

impl Window {
    /// Returns the least number of samples in a readable histogram.
    fn enough(&self) -> u64 {
        u64::from(self.min_samples.max(1))
    }

    /// Returns the least number of samples in a step. A window full of such steps has enough
    /// samples.
    fn enough_for_a_step(&self) -> u64 {
        self.enough().div_ceil(u64::from(self.steps.max(1)))
    }

    /// Returns the number of the step that contains `at`. Steps are aligned to the epoch of the
    /// clock, so their numbers are the same on all workers.
    pub(super) fn number(&self, at: Instant) -> u64 {
        at.as_nanos() / nanos(self.step).max(1)
    }

    /// Whether samples recorded at `then` have left the window at `now`.
    fn is_past(&self, then: Instant, now: Instant) -> bool {
        self.number(then) + u64::from(self.steps) < self.number(now)
    }
}

/// A closed step.
#[derive(Debug, Serialize, Deserialize)]
struct Step {
    /// The time at which its last samples were added.
    last: Instant,
    count: u64,
    histogram: Vec<u8>,
}

/// The workers' shared samples of one type.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// The number of changes of the readable part. A worker compares this number to detect a
    /// change.
    pub(super) generation: u64,
    /// The time at which the newest step was closed.
    closed: Instant,
    /// The time at which samples were last added to `populating`.
    populated: Instant,
    pub(super) populating: Histogram,
    /// The closed steps, oldest first.
    steps: VecDeque<Step>,
}

crate::shared::record!(Record, 3);

impl Record {
    /// Loads the record at `key`, advances it if that is due, adds the samples in `fresh`, and
    /// stores the result. `condemned` is as in [`Record::advance`]. Returns the new record, and
    /// whether this call changed its readable part.
    ///
    /// # Errors
    /// [`HostError::Conflict`] if other workers kept changing the record. Then nothing was added.
    pub(super) fn visit(
        host: &impl Shared,
        key: &str,
        now: Instant,
        window: &Window,
        condemned: Option<u64>,
        fresh: Option<&Histogram>,
    ) -> Result<(Self, bool), HostError> {
        shared::change(host, key, |record: &mut Self| {
            let mut moved = record.advance(now, window, condemned);
            if let Some(fresh) = fresh {
                record.add(now, fresh);
                moved |= record.advance(now, window, condemned);
            }
            (fresh.is_some() || moved, moved)
        })
    }

    /// Adds samples. The caller must call [`Record::advance`] first, so that the samples fall into
    /// their own step.
    pub(super) fn add(&mut self, now: Instant, samples: &Histogram) {
        self.populating.merge(samples);
        self.populated = now;
    }

    /// Closes and drops steps that are due. `condemned` is the generation of a readable part that
    /// is known to miss an objective by itself. Returns whether the readable part changed.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        window: &Window,
        condemned: Option<u64>,
    ) -> bool {
        let urgent = self.steps.is_empty() || condemned == Some(self.generation);
        let over = window.number(self.closed) != window.number(now);
        let enough = if urgent {
            window.enough()
        } else {
            window.enough_for_a_step()
        };
        let mut changed = false;
        if (urgent || over) && self.populating.count() >= enough {
            if urgent {
                self.steps.clear();
            }
            self.close(now, window);
            changed = true;
        }
        while self.steps.len() > self.most(now, window) || self.forgets_oldest(now, window) {
            self.steps.pop_front();
            changed = true;
        }
        if changed {
            self.generation = self.generation.wrapping_add(1);
        }
        changed
    }

    fn close(&mut self, now: Instant, window: &Window) {
        let mut samples = std::mem::take(&mut self.populating);
        // If a step was closed before its end, the rest of its samples is merged into it.
        let same = |s: &mut Step| {
            window.steps > 1 && window.number(s.last) == window.number(self.populated)
        };
        if let Some(begun) = self.steps.pop_back_if(same)
            && let Some(histogram) = Histogram::decode(&mut begun.histogram.as_slice())
        {
            samples.merge(&histogram);
        }
        self.steps.push_back(Step::new(self.populated, &samples));
        self.closed = now;
    }

    /// Returns the maximum number of closed steps. It is the number of steps of the window, plus
    /// the current step if a part of it is already closed. Without this addition, the current step
    /// would remove the oldest one too early. Dual buffers have no partial step.
    fn most(&self, now: Instant, window: &Window) -> usize {
        let begun = |s: &Step| window.number(s.last) == window.number(now);
        let early = window.steps > 1 && self.steps.back().is_some_and(begun);
        window.steps.max(1) as usize + usize::from(early)
    }

    /// Whether the oldest step has left the window and can be dropped.
    fn forgets_oldest(&self, now: Instant, window: &Window) -> bool {
        let oldest = self.steps.front();
        oldest.is_some_and(|step| window.is_past(step.last, now) && self.can_forget(window))
    }

    /// Whether the steps have enough samples without the oldest one.
    fn can_forget(&self, window: &Window) -> bool {
        let newer: u64 = self
            .steps
            .iter()
            .skip(1)
            .map(|step| step.count)
            .fold(0, u64::saturating_add);
        newer >= window.enough()
    }

    /// Whether the record will change even without new samples. It will if samples wait for the end
    /// of a step, or if an old step can be removed.
    pub(super) fn is_moving(&self, window: &Window) -> bool {
        !self.populating.is_empty() || self.can_forget(window)
    }

    /// Returns the number of closed steps.
    #[cfg(test)]
    pub(super) fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Returns the histogram on which decisions are based.
    pub(super) fn readable(&self) -> Histogram {
        let mut sum = Histogram::default();
        for step in &self.steps {
            // Only Headgate writes these bytes. A damaged step is ignored until it leaves the
            // window.
            if let Some(histogram) = Histogram::decode(&mut step.histogram.as_slice()) {
                sum.merge(&histogram);
            }
        }
        sum
    }
}

impl Step {
    fn new(last: Instant, samples: &Histogram) -> Self {
        let mut histogram = Vec::new();
        samples.encode(&mut histogram);
        Self {
            last,
            count: samples.count(),
            histogram,
        }
    }
}
