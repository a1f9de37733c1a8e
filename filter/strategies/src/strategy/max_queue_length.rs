//! MaxQL accepts requests only while the queue is shorter than a limit (Bouncer §5.2.1).
//!
//! This is the baseline. It uses neither types nor objectives. With a limit of 0, requests may
//! still take free slots.

use super::{Admission, View};
use crate::reason::Reason;
use crate::request::Attributes;
use crate::rng::Rng;

/// A strategy that accepts if `l < limit` or a slot is free.
#[derive(Debug, Clone, Copy)]
pub(super) struct MaxQueueLength {
    limit: u32,
}

impl MaxQueueLength {
    /// Creates the strategy. `limit` is in requests.
    pub(super) const fn new(limit: u32) -> Self {
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
