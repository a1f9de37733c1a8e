//! What the workers share about one type: a blob that is only ever changed by compare-and-swap.

use std::time::Duration;

use crate::histogram::{Histogram, put_varint, take_varint};
use crate::host::{Expected, Host, HostError};
use crate::time::{Instant, nanos};

/// First bytes of every blob: whose it is, and the version of the format. Blobs that begin otherwise
/// are not ours to read: learning starts over and the next store replaces them.
const HEADER: [u8; 3] = [b'H', b'T', 1];
/// How often a store that conflicts is tried again before it is left to the next exchange.
const ATTEMPTS: u32 = 8;

/// The dual buffer of one type (Bouncer §3, footnote 4).
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Counts the swaps; tells a worker whether it has seen `readable`.
    pub(super) generation: u64,
    swapped_at: Instant,
    /// What decisions are based on.
    pub(super) readable: Histogram,
    /// What the next swap makes readable.
    pub(super) populating: Histogram,
}

impl Record {
    /// Swaps the buffers if it is time to: at the first visit after an interval's end or, without
    /// anything usable, as soon as there is enough. With fewer than `min_samples` the readable
    /// histogram is retained and the other goes on being populated (App. A prefers stale data to none).
    fn rotate(&mut self, visit: &Visit<'_>) -> bool {
        let over = epoch(self.swapped_at, visit.interval) != epoch(visit.now, visit.interval);
        let urgent = self.readable.is_empty() || visit.condemned == Some(self.generation);
        if !(over || urgent) || self.populating.count() < u64::from(visit.min_samples.max(1)) {
            return false;
        }
        self.readable = std::mem::take(&mut self.populating);
        self.generation = self.generation.wrapping_add(1);
        self.swapped_at = visit.now;
        true
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = HEADER.to_vec();
        put_varint(&mut out, self.generation);
        put_varint(&mut out, self.swapped_at.as_nanos());
        self.readable.encode(&mut out);
        self.populating.encode(&mut out);
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = bytes.strip_prefix(&HEADER)?;
        let this = Self {
            generation: take_varint(&mut input)?,
            swapped_at: Instant::from_nanos(take_varint(&mut input)?),
            readable: Histogram::decode(&mut input)?,
            populating: Histogram::decode(&mut input)?,
        };
        input.is_empty().then_some(this)
    }
}

/// Number of the interval that `at` lies in. Intervals are aligned to the epoch of the clock, so that
/// all workers, whenever they started, agree on them.
pub(super) fn epoch(at: Instant, interval: Duration) -> u64 {
    at.as_nanos() / nanos(interval).max(1)
}

/// What [`update`] is to do.
pub(super) struct Visit<'a> {
    pub(super) now: Instant,
    pub(super) interval: Duration,
    pub(super) min_samples: u32,
    /// Generation of a readable histogram that condemns its own type: don't wait for the interval's end.
    pub(super) condemned: Option<u64>,
    /// Samples to add.
    pub(super) delta: Option<&'a Histogram>,
}

/// Loads the record at `key`, adds the samples, swaps if it is time, and stores the result. Returns the
/// record as it is now, and whether this call swapped it.
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
        if let Some(delta) = visit.delta {
            record.populating.merge(delta);
        }
        let rotated = record.rotate(visit);
        if visit.delta.is_none() && !rotated {
            return Ok((record, false));
        }
        match host.store(key, &record.encode(), expected) {
            Ok(()) => return Ok((record, rotated)),
            Err(HostError::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    Err(HostError::Conflict)
}

/// Reads the number that changes whenever some record was swapped; 0 at first.
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
