//! Where in the queue a type's requests get their turn: what makes wait estimates follow the discipline.
//!
//! Bouncer's Eq. 2 estimates the wait of a request from all the work that is queued before it, which in
//! a FIFO is all there is. Under any other order some of that work comes later, and some that has not
//! arrived yet comes first. How much depends on the discipline, the mix and the load. So it is measured:
//! for each type
//!
//! ```text
//! place = Σ queue wait / Σ FIFO estimate at arrival        estimate = place · FIFO estimate
//! ```
//!
//! over its requests that left the queue lately. 0 is the front of the queue, 1 what a FIFO gives, more is
//! being overtaken. The numbers decay by half in about a second, towards 1 through a prior that weighs as
//! much as a short wait, so a type that nobody sent or let in for a while is judged as in a FIFO again.
//! One multiplication a decision, no host call; every worker learns from its own requests.

use std::time::Duration;

use crate::request::TypeId;
use crate::time::Instant;

/// The past loses half of its weight in this time.
const HALF_LIFE: Duration = Duration::from_secs(1);
/// What a type that has not been seen weighs, seconds of wait.
const PRIOR: f64 = 0.02;

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// Σ queue wait, s.
    waited: f64,
    /// Σ FIFO estimate, s.
    expected: f64,
}

/// Places by type.
#[derive(Debug)]
pub(super) struct Places {
    places: Vec<Place>,
    decayed: Instant,
}

impl Places {
    pub(super) fn new(types: usize) -> Self {
        Self {
            places: vec![Place::default(); types],
            decayed: Instant::default(),
        }
    }

    /// Queue wait of a request of `kind` where a FIFO's would be `fifo_wait`.
    pub(super) fn queue_wait(&self, kind: TypeId, fifo_wait: Duration) -> Duration {
        match self.places.get(kind.0 as usize) {
            Some(place) => fifo_wait.mul_f64((place.waited + PRIOR) / (place.expected + PRIOR)),
            None => fifo_wait,
        }
    }

    /// A request of `kind` left the queue for a slot.
    pub(super) fn dequeued(&mut self, kind: TypeId, waited: Duration, fifo_wait: Duration) {
        if let Some(place) = self.places.get_mut(kind.0 as usize) {
            place.waited += waited.as_secs_f64();
            place.expected += fifo_wait.as_secs_f64();
        }
    }

    /// Lets the past fade.
    pub(super) fn tick(&mut self, now: Instant) {
        let elapsed = now.since(self.decayed);
        self.decayed = now;
        let kept = (-elapsed.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2();
        for place in &mut self.places {
            place.waited *= kept;
            place.expected *= kept;
        }
    }
}
