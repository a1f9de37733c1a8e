//! Records that all workers share: blobs that are only ever changed by compare-and-swap.

use std::time::Duration;

use super::record::{Record, Window};
use crate::histogram::{Histogram, put_varint, take_varint};
use crate::host::{Expected, Host, HostError};
use crate::time::{Instant, nanos};

/// First bytes of the number of changes.
const HEADER: [u8; 3] = [b'H', b'T', 1];
/// How often a store that conflicts is tried again before it is left to the next exchange.
const ATTEMPTS: u32 = 8;

/// Number of the step that `at` lies in. Steps are aligned to the epoch of the clock, so that all workers,
/// whenever they started, agree on them.
pub(super) fn epoch(at: Instant, step: Duration) -> u64 {
    at.as_nanos() / nanos(step).max(1)
}

/// What [`update`] is to do.
pub(super) struct Visit<'a> {
    pub(super) now: Instant,
    pub(super) window: Window,
    /// Generation of a readable histogram that condemns its own type: don't wait for the step's end.
    pub(super) condemned: Option<u64>,
    /// Samples to add.
    pub(super) delta: Option<&'a Histogram>,
}

/// Loads the record at `key`, moves it on if it is time, adds the samples, and stores the result. Returns
/// the record as it is now, and whether this call changed what is readable.
///
/// # Errors
/// [`HostError::Conflict`] when other workers kept getting in between: nothing was added.
pub(super) fn update(
    host: &impl Host,
    key: &str,
    visit: &Visit<'_>,
) -> Result<(Record, bool), HostError> {
    for _ in 0..ATTEMPTS {
        let (mut record, expected) = match host.load(key)? {
            Some((bytes, version)) => (
                Record::decode(&bytes).unwrap_or_default(),
                Expected::Version(version),
            ),
            None => (Record::default(), Expected::Absent),
        };
        let mut moved = record.advance(visit.now, &visit.window, visit.condemned);
        if let Some(delta) = visit.delta {
            record.add(visit.now, delta);
            moved |= record.advance(visit.now, &visit.window, visit.condemned);
        }
        if visit.delta.is_none() && !moved {
            return Ok((record, false));
        }
        match host.store(key, &record.encode(), expected) {
            Ok(()) => return Ok((record, moved)),
            Err(HostError::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    Err(HostError::Conflict)
}

/// Reads the number that changes whenever some record moved on; 0 at first.
pub(super) fn load_change(host: &impl Host, key: &str) -> Result<u64, HostError> {
    Ok(host
        .load(key)?
        .and_then(|(bytes, _)| decode_change(&bytes))
        .unwrap_or(0))
}

/// Changes that number; returns what it is now.
pub(super) fn announce_change(host: &impl Host, key: &str) -> Result<u64, HostError> {
    for _ in 0..ATTEMPTS {
        let loaded = host.load(key)?;
        let number = loaded
            .as_ref()
            .and_then(|(bytes, _)| decode_change(bytes))
            .unwrap_or(0);
        let number = number.wrapping_add(1);
        let mut bytes = HEADER.to_vec();
        put_varint(&mut bytes, number);
        match host.store(key, &bytes, loaded.map(|(_, version)| version).into()) {
            Ok(()) => return Ok(number),
            Err(HostError::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    Err(HostError::Conflict)
}

fn decode_change(bytes: &[u8]) -> Option<u64> {
    let mut input = bytes.strip_prefix(&HEADER)?;
    take_varint(&mut input).filter(|_| input.is_empty())
}
