//! Reads and updates of the records that all workers share.

use std::time::Duration;

use super::record::{Record, Window};
use crate::histogram::Histogram;
use crate::host::{HostError, Shared};
use crate::shared;
use crate::time::{Instant, nanos};

/// Returns the number of the step that contains `at`. Steps are aligned to the epoch of the clock,
/// so their numbers are the same on all workers.
pub(super) fn epoch(at: Instant, step: Duration) -> u64 {
    at.as_nanos() / nanos(step).max(1)
}

/// The arguments of [`update`].
pub(super) struct Visit<'a> {
    pub(super) now: Instant,
    pub(super) window: Window,
    /// The generation of a readable histogram that condemns its own type. With such a histogram,
    /// the visit doesn't wait for the step's end.
    pub(super) condemned: Option<u64>,
    /// The samples to add to the record.
    pub(super) delta: Option<&'a Histogram>,
}

/// Loads the record at `key`, advances it if that is due, adds the samples, and stores the result.
/// Returns the new record, and whether this call changed its readable part.
///
/// # Errors
/// [`HostError::Conflict`] if other workers kept changing the record. Then nothing was added.
pub(super) fn update(
    host: &impl Shared,
    key: &str,
    visit: &Visit<'_>,
) -> Result<(Record, bool), HostError> {
    shared::change(host, key, |record: &mut Record| {
        let mut moved = record.advance(visit.now, &visit.window, visit.condemned);
        if let Some(delta) = visit.delta {
            record.add(visit.now, delta);
            moved |= record.advance(visit.now, &visit.window, visit.condemned);
        }
        (visit.delta.is_some() || moved, moved)
    })
}

/// Returns the number that changes with every advance of a record. It is 0 at first.
pub(super) fn load_change(host: &impl Shared, key: &str) -> Result<u64, HostError> {
    shared::load(host, key)
}

/// Increments the number of changes, and returns the new value.
pub(super) fn announce_change(host: &impl Shared, key: &str) -> Result<u64, HostError> {
    let (number, ()) = shared::change(host, key, |number: &mut u64| {
        *number = number.wrapping_add(1);
        (true, ())
    })?;
    Ok(number)
}
