//! A worker's samples that are not shared yet. They are in a list of fixed size, so measuring
//! neither allocates nor calls the host.
//!
//! Only a part of a busy type's answers is measured (see `stage/sampling.rs`). That doesn't affect
//! the type's own histogram. But in the general histogram, which covers *all* requests, the type
//! would have too little weight. With 10,000 requests/s of 1 ms, of which 800 are measured, and 200
//! requests/s of 20 ms, the mean over all requests is 1.4 ms, but the mean over all samples is 4.8
//! ms. So every type also counts its unmeasured answers, and samples have weights in the general
//! histogram. The weights are spread evenly over the type's samples of an exchange, because the
//! unmeasured answers are independent of the sample that came before them.

use std::time::Duration;

use crate::histogram::Histogram;
use crate::time::nanos;

/// The largest number of samples between two exchanges. Further samples are dropped. With an
/// exchange every 10 ms that happens above 800,000 requests/s on one worker.
pub(super) const CAPACITY: usize = 8_192;
/// The number of lower bits of a sample that hold nanoseconds. The upper bits hold the type.
const NANOS_BITS: u32 = 48;
const NANOS: u64 = (1 << NANOS_BITS) - 1;

/// The counts of one type that are not in the general histogram yet.
#[derive(Debug, Clone, Copy, Default)]
struct Fresh {
    samples: u32,
    /// The number of answers of the type that were not measured.
    unmeasured: u64,
}

/// A worker's samples that are not shared yet.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) samples: Vec<u64>,
    /// The number of samples, from the first, that are already in the general histogram.
    pub(super) in_general: usize,
    /// The counts, by type.
    fresh: Vec<Fresh>,
    /// The type at which the next exchange continues.
    cursor: u64,
}

impl Log {
    pub(super) fn new(types: usize) -> Self {
        Self {
            samples: Vec::with_capacity(CAPACITY),
            in_general: 0,
            fresh: vec![Fresh::default(); types],
            cursor: 0,
        }
    }

    /// Adds a sample of type `kind` that counts as `weight` answers, including its own. Returns
    /// false if there is no room. Then `weight` is added to the weights of the type's later
    /// samples.
    pub(super) fn push(&mut self, kind: usize, processing: Duration, weight: u32) -> bool {
        let fresh = &mut self.fresh[kind];
        if self.samples.len() >= CAPACITY {
            fresh.unmeasured += u64::from(weight);
            return false;
        }
        fresh.samples += 1;
        fresh.unmeasured += u64::from(weight.saturating_sub(1));
        self.samples
            .push((kind as u64) << NANOS_BITS | nanos(processing).min(NANOS));
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    pub(super) fn is_half_full(&self) -> bool {
        self.samples.len() >= CAPACITY / 2
    }

    /// Returns the new samples for the general histogram, each with its weight.
    pub(super) fn for_general(&mut self) -> Histogram {
        let mut all = Histogram::default();
        let samples = &mut self.samples[self.in_general..];
        // Ascending values are cheapest to record.
        samples.sort_unstable_by_key(|sample| sample & NANOS);
        let mut remainders: Vec<u64> = self
            .fresh
            .iter()
            .map(|fresh| fresh.unmeasured % u64::from(fresh.samples.max(1)))
            .collect();
        for sample in samples {
            let kind = (*sample >> NANOS_BITS) as usize;
            let fresh = self.fresh[kind];
            let mut answers = 1 + fresh.unmeasured / u64::from(fresh.samples.max(1));
            if remainders[kind] > 0 {
                remainders[kind] -= 1;
                answers += 1;
            }
            let answers = u32::try_from(answers).unwrap_or(u32::MAX);
            all.record_n(Duration::from_nanos(*sample & NANOS), answers);
        }
        all
    }

    /// Records that the result of [`Log::for_general`] was merged.
    pub(super) fn general_has_all(&mut self) {
        self.in_general = self.samples.len();
        for fresh in &mut self.fresh {
            if fresh.samples > 0 {
                *fresh = Fresh::default();
            }
        }
    }

    /// Passes the samples of at most `most` types to `merge`, and removes the samples of a type if
    /// `merge` succeeded. Types take turns, starting after the last merged one. All samples must
    /// already be in the general histogram.
    pub(super) fn drain_types<E>(
        &mut self,
        most: usize,
        mut merge: impl FnMut(usize, &Histogram) -> Result<(), E>,
    ) -> Result<(), E> {
        // This sorts the samples by type, and within a type by time.
        self.samples.sort_unstable();
        let turn = self
            .samples
            .partition_point(|sample| sample >> NANOS_BITS < self.cursor);
        self.samples.rotate_left(turn);
        let same_type = |a: &u64, b: &u64| a >> NANOS_BITS == b >> NANOS_BITS;
        let mut histogram = Histogram::default();
        let (mut done, mut result) = (0, Ok(()));
        for group in self.samples.chunk_by(same_type).take(most) {
            let kind = group[0] >> NANOS_BITS;
            histogram.clear();
            group
                .iter()
                .for_each(|sample| histogram.record(Duration::from_nanos(sample & NANOS)));
            result = merge(kind as usize, &histogram);
            if result.is_err() {
                break;
            }
            done += group.len();
            self.cursor = kind + 1;
        }
        self.samples.drain(..done);
        self.in_general = self.samples.len();
        result
    }
}
