//! Measurements of a run.

use hdrhistogram::Histogram;

use super::MICROSECOND;
use crate::results::mean;
use crate::simulation::SimulationError;

/// The longest latency that the histograms distinguish, ns: a minute.
const LONGEST: u64 = 60_000_000_000;

/// The calls of one sender in one interval that requested the highest class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// The number of these calls.
    pub asked: u64,
    /// The number of these calls that were not downgraded.
    pub admitted: u64,
    /// The bytes of calls that ended in the highest class in this interval.
    pub bytes: u64,
}

/// The measurements of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Length of an interval, s.
    pub interval: f64,
    /// Samples by interval, then by sender.
    pub samples: Vec<Vec<Sample>>,
    /// Latencies by the class in which calls ran, ns.
    latencies: Vec<Histogram<u32>>,
    /// The number of calls made.
    pub issued: u64,
    /// The number of calls completed.
    pub completed: u64,
    /// The number of packets lost because the buffer was full.
    pub lost: u64,
    interval_ps: u64,
    counts_from: u64,
}

impl Seen {
    /// Returns empty measurements of `senders` hosts that call in `classes` for `length`. Only the
    /// latencies of calls made from `counts_from` on are recorded. Times are ps.
    pub(super) fn new(
        senders: usize,
        classes: usize,
        interval: u64,
        length: u64,
        counts_from: u64,
    ) -> Result<Self, SimulationError> {
        let histogram = || {
            Histogram::new_with_bounds(1, LONGEST, 3)
                .map_err(|e| SimulationError::Results(e.to_string()))
        };
        let interval = interval.max(1);
        // A partial interval at the end would show a rate that is too low.
        let intervals = usize::try_from(length / interval).unwrap_or(0);
        Ok(Self {
            interval: interval as f64 / MICROSECOND as f64 / 1e6,
            samples: vec![vec![Sample::default(); senders]; intervals],
            latencies: (0..classes)
                .map(|_| histogram())
                .collect::<Result<_, _>>()?,
            issued: 0,
            completed: 0,
            lost: 0,
            interval_ps: interval,
            counts_from,
        })
    }

    fn sample(&mut self, at: u64, sender: u16) -> Option<&mut Sample> {
        let interval = usize::try_from(at / self.interval_ps).ok()?;
        self.samples.get_mut(interval)?.get_mut(usize::from(sender))
    }

    pub(super) fn issued(&mut self, now: u64, sender: u16, wanted: u8, ran: u8) {
        self.issued += 1;
        if wanted == 0
            && let Some(sample) = self.sample(now, sender)
        {
            sample.asked += 1;
            sample.admitted += u64::from(ran == 0);
        }
    }

    pub(super) fn completed(&mut self, now: u64, issued: u64, sender: u16, ran: u8, bytes: u32) {
        self.completed += 1;
        if ran == 0
            && let Some(sample) = self.sample(now, sender)
        {
            sample.bytes += u64::from(bytes);
        }
        if issued >= self.counts_from
            && let Some(latencies) = self.latencies.get_mut(usize::from(ran))
        {
            latencies.saturating_record((now - issued) * 1_000 / MICROSECOND);
        }
    }

    /// Returns the latency at quantile `q` of calls that ran in `class`, µs; `None` if none did.
    pub fn latency_us(&self, class: usize, q: f64) -> Option<f64> {
        let latencies = self.latencies.get(class)?;
        (!latencies.is_empty()).then(|| latencies.value_at_quantile(q) as f64 / 1e3)
    }

    /// Returns the ratio of calls in `class` that took at most `limit` µs; `None` if none ran.
    pub fn within_us(&self, class: usize, limit: u64) -> Option<f64> {
        let latencies = self.latencies.get(class)?;
        let within = latencies.count_between(0, limit * 1_000);
        (!latencies.is_empty()).then(|| within as f64 / latencies.len() as f64)
    }

    /// Returns the ratio of calls of `sender` for the highest class that were not downgraded, by
    /// interval; `None` for an interval without such calls.
    pub fn admission(&self, sender: usize) -> Vec<Option<f64>> {
        let part = |sample: &Sample| {
            (sample.asked > 0).then(|| sample.admitted as f64 / sample.asked as f64)
        };
        let samples = self.samples.iter().map(|all| all.get(sender));
        samples.map(|sample| sample.and_then(part)).collect()
    }

    /// Returns the mean of [`Seen::admission`] over all senders that called.
    pub fn overall_admission(&self) -> Vec<Option<f64>> {
        let senders = self.samples.first().map_or(0, Vec::len);
        let all: Vec<Vec<Option<f64>>> =
            (0..senders).map(|sender| self.admission(sender)).collect();
        let of_all = |interval: usize| mean(all.iter().filter_map(|sender| sender[interval]));
        (0..self.samples.len()).map(of_all).collect()
    }

    /// Returns the throughput of `sender` in the highest class, Gb/s, by interval.
    pub fn throughput(&self, sender: usize) -> Vec<f64> {
        let bytes = |all: &Vec<Sample>| all.get(sender).map_or(0, |sample| sample.bytes);
        let gbps = |bytes: u64| bytes as f64 * 8.0 / self.interval / 1e9;
        self.samples.iter().map(bytes).map(gbps).collect()
    }
}
