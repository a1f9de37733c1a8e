//! Histograms of durations with a bounded relative error and bounded memory.
//!
//! Decisions need a mean and a few percentiles. Histograms must be mergeable over workers, and a
//! later policy edit may need other percentiles than those configured during recording. Sampling
//! loses the tail, fixed buckets need a known range, and quantile sketches such as P² don't merge.
//! So a histogram has log-linear integer buckets as in `HdrHistogram`, 64 per power of two. Only
//! the occupied buckets are stored, sorted.
//!
//! - Resolution: a value is reported as its bucket's midpoint, with an error of at most 1/128 =
//!   0.79%. For values under 1.024 µs, the error is at most 8 ns.
//! - Range: 0 to 2⁴² ns = 73 min. Longer durations count as 73 min.
//! - Memory: at most [`BUCKETS`] entries of 8 bytes, 17 KB. Service times that spread over three
//!   powers of ten occupy about 400 entries.
//! - The mean is exact, because it comes from a running sum.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::time::nanos;

/// The binary logarithm of the number of buckets per power of two.
const PRECISION: u32 = 6;
/// The binary logarithm of the unit in ns. The unit is 16 ns, below the resolution of the clocks in
/// use.
const UNIT: u32 = 4;
/// The number of bits of the largest value, in units.
const BITS: u32 = 38;

/// The number of different buckets.
pub(crate) const BUCKETS: usize = (1 << PRECISION) * (BITS - PRECISION + 1) as usize;

fn bucket_of(nanos: u64) -> u16 {
    let units = (nanos >> UNIT).min((1 << BITS) - 1);
    let octave = (u64::BITS - units.leading_zeros()).saturating_sub(PRECISION + 1);
    // The clamp above bounds both terms, so their sum is below `BUCKETS`.
    ((octave << PRECISION) as u64 + (units >> octave)) as u16
}

/// Returns the midpoint of a bucket, ns.
fn midpoint(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    let octave = (bucket >> PRECISION).saturating_sub(1);
    let lowest = bucket - (octave << PRECISION);
    ((2 * lowest + 1) << octave) << (UNIT - 1)
}

/// A distribution of durations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    count: u64,
    sum_nanos: u64,
    /// Occupied buckets, ascending.
    buckets: Vec<(u16, u32)>,
}

impl Histogram {
    /// Returns the number of recorded values.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Whether nothing was recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Removes all values, but keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.sum_nanos = 0;
        self.buckets.clear();
    }

    /// Adds one value.
    pub(crate) fn record(&mut self, value: Duration) {
        self.record_n(value, 1);
    }

    /// Adds the same value `n` times, at the cost of a single addition.
    pub(crate) fn record_n(&mut self, value: Duration, n: u32) {
        if n == 0 {
            return;
        }
        let value = nanos(value);
        let bucket = bucket_of(value);
        self.count = self.count.saturating_add(u64::from(n));
        let sum = value.saturating_mul(u64::from(n));
        self.sum_nanos = self.sum_nanos.saturating_add(sum);
        match self.buckets.binary_search_by_key(&bucket, |&(b, _)| b) {
            Ok(at) => self.buckets[at].1 = self.buckets[at].1.saturating_add(n),
            Err(at) => self.buckets.insert(at, (bucket, n)),
        }
    }

    /// Adds all values of `other`.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.sum_nanos = self.sum_nanos.saturating_add(other.sum_nanos);
        self.buckets.extend_from_slice(&other.buckets);
        // The sort merges two sorted runs.
        self.buckets.sort_by_key(|&(bucket, _)| bucket);
        self.buckets.dedup_by(|(bucket, n), (kept, sum)| {
            let is_same = bucket == kept;
            if is_same {
                *sum = sum.saturating_add(*n);
            }
            is_same
        });
    }

    /// Returns the mean, or `None` if nothing was recorded.
    pub(crate) fn mean(&self) -> Option<Duration> {
        self.sum_nanos
            .checked_div(self.count)
            .map(Duration::from_nanos)
    }

    /// Returns the smallest value that at least `percentile` percent of the values don't exceed
    /// (nearest rank), or `None` if nothing was recorded.
    pub(crate) fn quantile(&self, percentile: f64) -> Option<Duration> {
        let rank = rank(percentile, self.count);
        let mut seen = 0;
        let at = self.buckets.iter().find(|(_, n)| {
            seen += u64::from(*n);
            seen >= rank
        });
        // If counts saturated, their sum is less than `count`. Then return the largest value.
        at.or(self.buckets.last())
            .map(|&(bucket, _)| Duration::from_nanos(midpoint(bucket)))
    }

    /// Returns the mean remaining part of a value at a random moment within it, which is E\[x²\] /
    /// (2 E\[x\]). For service times, this is the mean residual service time of a busy server.
    /// Returns zero if nothing was recorded.
    pub(crate) fn mean_residual(&self) -> Duration {
        let (mut first, mut second) = (0.0, 0.0);
        for &(bucket, n) in &self.buckets {
            let (x, n) = (midpoint(bucket) as f64, f64::from(n));
            first += n * x;
            second += n * x * x;
        }
        if first > 0.0 {
            Duration::from_nanos((second / (2.0 * first)) as u64)
        } else {
            Duration::ZERO
        }
    }

    /// Appends the compact form of the histogram to `out`. It consists of the sum, and for each
    /// bucket its count and its distance to the bucket before, in two to four bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut previous = 0;
        let steps = self.buckets.iter().map(|&(bucket, n)| {
            let step = bucket - std::mem::replace(&mut previous, bucket);
            (step, n)
        });
        let compact = Compact {
            sum_nanos: self.sum_nanos,
            steps: steps.collect(),
        };
        // The encoding can't fail, because all numbers have an encoding and a vector can grow.
        *out = postcard::to_extend(&compact, std::mem::take(out)).unwrap_or_default();
    }

    /// Reads an encoded histogram ([`Histogram::encode`]) and advances `input` past it. Returns
    /// `None` for invalid bytes.
    #[must_use]
    pub(crate) fn decode(input: &mut &[u8]) -> Option<Self> {
        let (compact, rest) = postcard::take_from_bytes::<Compact>(input).ok()?;
        *input = rest;
        let mut this = Self {
            count: 0,
            sum_nanos: compact.sum_nanos,
            buckets: compact.steps,
        };
        let mut previous = None;
        for (bucket, n) in &mut this.buckets {
            *bucket = previous.unwrap_or(0_u16).checked_add(*bucket)?;
            if usize::from(*bucket) >= BUCKETS || *n == 0 || previous == Some(*bucket) {
                return None;
            }
            this.count += u64::from(*n);
            previous = Some(*bucket);
        }
        Some(this)
    }
}

/// The compact form of a histogram.
#[derive(Serialize, Deserialize)]
struct Compact {
    sum_nanos: u64,
    /// Each bucket's distance to the bucket before it, and its count.
    steps: Vec<(u16, u32)>,
}

/// Serializes in the form of [`Histogram::encode`].
impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        to.serialize_bytes(&bytes)
    }
}

impl<'a> Deserialize<'a> for Histogram {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        let mut bytes = <&[u8]>::deserialize(from)?;
        let known = Self::decode(&mut bytes).filter(|_| bytes.is_empty());
        known.ok_or_else(|| serde::de::Error::custom("no histogram"))
    }
}

/// Returns the nearest rank, ⌈p/100 · n⌉, in 1 ..= n.
fn rank(percentile: f64, count: u64) -> u64 {
    // 99.9% of 1,000 must be 999, despite rounding in the product.
    let exact = percentile * count as f64 / 100.0;
    ((exact * (1.0 - 1e-12)).ceil() as u64).clamp(1, count.max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u64]) -> Histogram {
        let mut h = Histogram::default();
        values
            .iter()
            .for_each(|&v| h.record(Duration::from_nanos(v)));
        h
    }

    /// Returns a generator of durations whose magnitude is uniform, so that every octave occurs.
    fn a_duration() -> impl Strategy<Value = u64> {
        (0..42_u32, any::<u64>()).prop_map(|(bits, x)| x & ((1 << bits) - 1))
    }

    #[test]
    fn buckets_tile_the_range() {
        assert_eq!(usize::from(bucket_of(u64::MAX)), BUCKETS - 1);
        for bucket in 0..BUCKETS as u16 {
            assert_eq!(bucket_of(midpoint(bucket)), bucket);
            if bucket > 0 {
                assert!(midpoint(bucket) > midpoint(bucket - 1));
            }
        }
    }

    #[test]
    fn an_empty_histogram_has_no_statistics() {
        let empty = Histogram::default();
        assert_eq!(empty.mean(), None);
        assert_eq!(empty.quantile(50.0), None);
        assert_eq!(empty.mean_residual(), Duration::ZERO);
    }

    #[test]
    fn residual_of_a_constant_is_half_of_it() {
        let residual = of(&[10_000_000; 7]).mean_residual().as_nanos();
        assert!(residual.abs_diff(5_000_000) < 50_000, "{residual}");
    }

    #[test]
    fn decoding_refuses_what_encode_cannot_write() {
        let refused: [&[u8]; 6] = [
            &[],
            &[5],
            &[5, 1, 0],                               // bucket without count
            &[5, 1, 0, 0],                            // empty bucket
            &[5, 2, 1, 1, 0, 1],                      // the same bucket twice
            &[5, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], // more buckets than exist
        ];
        for bytes in refused {
            assert_eq!(Histogram::decode(&mut &*bytes), None, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn quantiles_are_within_one_percent_of_a_sorted_vector(
            mut values in prop::collection::vec(a_duration(), 1..400),
            per_mille in 1_usize..1_000,
        ) {
            let h = of(&values);
            values.sort_unstable();
            let rank = (per_mille * values.len()).div_ceil(1_000).max(1);
            let exact = values[rank - 1];
            let estimate = h.quantile(per_mille as f64 / 10.0).unwrap().as_nanos() as u64;
            prop_assert!(
                estimate.abs_diff(exact) <= (exact / 100).max(8),
                "{estimate} for {exact}"
            );
            let mean = values.iter().sum::<u64>() / values.len() as u64;
            prop_assert_eq!(h.mean().unwrap().as_nanos() as u64, mean);
        }

        #[test]
        fn merging_is_recording_both(
            a in prop::collection::vec(a_duration(), 0..200),
            b in prop::collection::vec(a_duration(), 0..200),
        ) {
            let mut merged = of(&a);
            merged.merge(&of(&b));
            prop_assert_eq!(merged, of(&[a, b].concat()));
        }

        #[test]
        fn recording_n_times_is_recording_each(
            values in prop::collection::vec((a_duration(), 0_u32..5), 0..200),
        ) {
            let mut counted = Histogram::default();
            let mut each = Histogram::default();
            for &(value, n) in &values {
                counted.record_n(Duration::from_nanos(value), n);
                (0..n).for_each(|_| each.record(Duration::from_nanos(value)));
            }
            prop_assert_eq!(counted, each);
        }

        #[test]
        fn encoding_round_trips_and_leaves_the_rest(
            values in prop::collection::vec(a_duration(), 0..300),
            tail in prop::collection::vec(any::<u8>(), 0..4),
        ) {
            let h = of(&values);
            let mut bytes = Vec::new();
            h.encode(&mut bytes);
            bytes.extend(&tail);
            let mut input = bytes.as_slice();
            prop_assert_eq!(Histogram::decode(&mut input), Some(h));
            prop_assert_eq!(input, tail);
        }

        #[test]
        fn decoding_garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(h) = Histogram::decode(&mut bytes.as_slice()) {
                let _ = (h.mean(), h.quantile(99.9), h.mean_residual());
            }
        }
    }
}
