//! MaxQL: accept only while the queue is shorter than a limit (Bouncer §5.2.1).
//!
//! The baseline that knows neither types nor objectives. A limit of 0 still lets requests take free
//! slots.

use super::{Admission, View};
use crate::refusal::Reason;
use crate::request::Attributes;
use crate::rng::Rng;

/// Accept if `l < limit`.
#[derive(Debug, Clone, Copy)]
pub struct MaxQueueLength {
    limit: u32,
}

impl MaxQueueLength {
    /// The limit in requests.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { limit }
    }
}

impl Admission for MaxQueueLength {
    fn needs_slots_in_use(&self, _queue_length: u32, _work: u64) -> bool {
        true
    }

    fn decide(
        &mut self,
        _request: &Attributes,
        view: &View<'_>,
        _rng: &mut Rng,
    ) -> Result<(), Reason> {
        if view.queue_length < self.limit || view.slots_in_use < view.parallelism {
            Ok(())
        } else {
            Err(Reason::QueueFull)
        }
    }
}
