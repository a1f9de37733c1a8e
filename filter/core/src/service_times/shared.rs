//! Visits of the records that all workers share.

use std::time::Duration;

use super::record::{Record, Window};
use crate::histogram::Histogram;
use crate::host::{HostError, Shared};
use crate::shared;
use crate::time::{Instant, nanos};

/// Number of the step that `at` lies in. Steps are aligned to the epoch of the clock, so that all
/// workers, whenever they started, agree on them.
pub(super) fn epoch(at: Instant, step: Duration) -> u64 {
    at.as_nanos() / nanos(step).max(1)
}

/// The parameters of [`update`].
pub(super) struct Visit<'a> {
    pub(super) now: Instant,
    pub(super) window: Window,
    /// Generation of a readable histogram that condemns its own type: don't wait for the step's
    /// end.
    pub(super) condemned: Option<u64>,
    /// Samples to add.
    pub(super) delta: Option<&'a Histogram>,
}

/// Loads the record at `key`, moves it on if that is due, adds the samples, and stores the result.
/// Returns the record as it is now, and whether this call changed the readable part.
///
/// # Errors
/// [`HostError::Conflict`] when other workers kept getting in between: nothing was added.
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

/// Reads the number that changes whenever some record moved on; 0 at first.
pub(super) fn load_change(host: &impl Shared, key: &str) -> Result<u64, HostError> {
    shared::load(host, key)
}

/// Increments the number of changes; returns the new value.
pub(super) fn announce_change(host: &impl Shared, key: &str) -> Result<u64, HostError> {
    let (number, ()) = shared::change(host, key, |number: &mut u64| {
        *number = number.wrapping_add(1);
        (true, ())
    })?;
    Ok(number)
}
