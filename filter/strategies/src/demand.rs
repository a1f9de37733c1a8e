//! The demand on the backend, which is the product of arrival rate and mean processing time in a
//! sliding window.
//!
//! Both factors are the "moving averages" of Bouncer §5.2.2 and §5.2.3, over a window of duration D
//! that slides by Δ (60 s and 1 s in the paper). Sums are in D/Δ buckets of 24 bytes, so counting
//! and reading cost the same for any number of requests in the window.
//!
//! Averages cover the part of the window since the first request. If sums were always divided by D,
//! the demand in the first second would appear as a sixtieth of its value, and a queue would build
//! up that takes minutes to drain. The window also begins anew after a time longer than D without a
//! call, in which the process was paused and received nothing.
//!
//! A request counts with at most the length of the covered part of the window, or 30 times the mean
//! if that is longer. Otherwise the end of a response of an hour would raise the mean of thousands
//! of short requests to a second, and most requests would be refused for D. The mean follows a
//! lasting change of any size if more than one request in 30 takes long.
//!
//! P is for the whole process, so it must be compared with all arrivals of the process. Each worker
//! adds its counts to process-wide counters at every tick, and adds the other workers' counts to
//! its own window. The window includes the worker's own requests at once, and other workers'
//! requests a tick later.
//!
//! A worker starts a new window when it joins late or an edit replaces its window. A new window
//! starts with one completion, of the mean processing time of the process so far. With an empty
//! window the strategy would admit everything until the next completion. Long requests in the
//! backend may delay that completion.

use std::time::Duration;

use crate::host::{HostError, Shared};
use crate::shared::Counter;
use crate::time::{Instant, nanos};

/// The maximum ratio of a request's processing time to the mean, if the time exceeds the window.
const MOST: u64 = 30;

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    received: u64,
    completed: u64,
    processing_us: u64,
}

impl Bucket {
    fn add(&mut self, other: Self) {
        self.received += other.received;
        self.completed += other.completed;
        self.processing_us += other.processing_us;
    }

    fn remove(&mut self, other: Self) {
        self.received -= other.received;
        self.completed -= other.completed;
        self.processing_us -= other.processing_us;
    }
}

/// The counts of all workers.
#[derive(Debug)]
struct Counters {
    received: Counter,
    completed: Counter,
    processing_us: Counter,
    /// The mean processing time when the counters were opened.
    before_us: Option<u64>,
}

/// A sliding window of arrivals and completed requests.
#[derive(Debug)]
pub struct Demand {
    step_nanos: u64,
    buckets: Box<[Bucket]>,
    sum: Bucket,
    /// The time of the first request, from which steps are counted.
    origin: Option<Instant>,
    /// The number of the current step.
    step: u64,
    /// The last known mean processing time, µs.
    usual_us: Option<u64>,
    /// `None` if the window has only this worker's requests.
    counters: Option<Counters>,
}

impl Demand {
    /// Creates a window of `duration` in steps of `step`. A `step` of zero counts as 1 ns. A
    /// `duration` shorter than a step counts as one step.
    pub fn new(duration: Duration, step: Duration) -> Self {
        let step_nanos = nanos(step).max(1);
        // The configuration allows at most 10,000 steps.
        let steps = (nanos(duration) / step_nanos).clamp(1, 1 << 16);
        Self {
            step_nanos,
            buckets: vec![Bucket::default(); steps as usize].into(),
            sum: Bucket::default(),
            origin: None,
            step: 0,
            usual_us: None,
            counters: None,
        }
    }

    /// Shares all later counts with the workers that use the same `prefix`.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn share(&mut self, host: &impl Shared, prefix: &str) -> Result<(), HostError> {
        let counter = |what| Counter::new(host, &format!("{prefix}.demand_{what}"));
        let (completed, processing_us) = (counter("completed")?, counter("processing_us")?);
        self.usual_us = processing_us.seen().checked_div(completed.seen());
        self.counters = Some(Counters {
            before_us: self.usual_us,
            received: counter("received")?,
            completed,
            processing_us,
        });
        Ok(())
    }

    /// Adds this worker's counts to those of the process, and other workers' counts to the window.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn exchange(&mut self, host: &impl Shared, now: Instant) -> Result<(), HostError> {
        let Some(counters) = &mut self.counters else {
            return Ok(());
        };
        let mut others = Bucket {
            received: counters.received.exchange(host)?,
            completed: counters.completed.exchange(host)?,
            processing_us: counters.processing_us.exchange(host)?,
        };
        if let Some(mean_us) = counters.before_us.take() {
            others.completed += 1;
            others.processing_us += mean_us;
        }
        self.insert(now, others);
        Ok(())
    }

    /// Counts `received` arrivals, and `completed` requests that took `processing_us` in total.
    pub fn add(&mut self, now: Instant, received: u64, completed: u64, processing_us: u64) {
        if let Some(counters) = &mut self.counters {
            counters.received.count(received);
            counters.completed.count(completed);
            counters.processing_us.count(processing_us);
        }
        let more = Bucket {
            received,
            completed,
            processing_us,
        };
        self.insert(now, more);
    }

    fn insert(&mut self, now: Instant, more: Bucket) {
        self.advance(now);
        let at = self.step as usize % self.buckets.len();
        self.buckets[at].add(more);
        self.sum.add(more);
        let mean_us = self.sum.processing_us.checked_div(self.sum.completed);
        self.usual_us = mean_us.or(self.usual_us);
    }

    /// Counts `weight` requests that were served and held their slots for `slot` each.
    pub fn completed(&mut self, now: Instant, slot: Duration, weight: u32) {
        self.advance(now);
        let covered_us = self.covered(now) / 1_000;
        let most = (self.usual_us).map(|usual| usual.saturating_mul(MOST).max(covered_us));
        let micros = u64::try_from(slot.as_micros()).unwrap_or(u64::MAX >> 40);
        let micros = micros.min(most.unwrap_or(u64::MAX));
        let weight = u64::from(weight);
        self.add(now, 0, weight, micros.saturating_mul(weight));
    }

    /// Returns `pt_mavg`, the mean processing time in the window, or `None` if no request was
    /// completed.
    pub fn mean_processing(&self) -> Option<Duration> {
        let micros = self.sum.processing_us.checked_div(self.sum.completed)?;
        Some(Duration::from_micros(micros))
    }

    /// Returns `qps_mavg × pt_mavg`, the number of slots that the arrivals of the window keep busy
    /// (dpc of §5.2.3). Returns 0 if no request arrived or none was completed.
    pub fn slots(&mut self, now: Instant) -> f64 {
        self.advance(now);
        let covered = self.covered(now);
        if covered == 0 || self.sum.completed == 0 {
            return 0.0;
        }
        let per_second = self.sum.received as f64 * 1e9 / covered as f64;
        let seconds = self.sum.processing_us as f64 / self.sum.completed as f64 / 1e6;
        per_second * seconds
    }

    /// Returns the length of the window's part since the first request, ns.
    fn covered(&self, now: Instant) -> u64 {
        let oldest = (self.step + 1).saturating_sub(self.buckets.len() as u64) * self.step_nanos;
        let since = self.origin.map_or(0, |origin| nanos(now.since(origin)));
        since.saturating_sub(oldest)
    }

    /// Advances to `now` and drops buckets older than D. A clock that stepped back has no effect.
    fn advance(&mut self, now: Instant) {
        let origin = *self.origin.get_or_insert(now);
        let step = nanos(now.since(origin)) / self.step_nanos;
        let (gone, all) = (step.saturating_sub(self.step), self.buckets.len() as u64);
        if gone > all {
            self.buckets.fill(Bucket::default());
            (self.sum, self.origin, self.step) = (Bucket::default(), Some(now), 0);
            return;
        }
        for passed in 1..=gone {
            let at = (self.step + passed) as usize % self.buckets.len();
            self.sum.remove(std::mem::take(&mut self.buckets[at]));
        }
        self.step = self.step.max(step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryHost;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(3_000_000 + ms * 1_000_000)
    }

    fn window() -> Demand {
        Demand::new(Duration::from_secs(10), Duration::from_secs(1))
    }

    #[test]
    fn averages_are_over_the_time_that_has_passed() {
        let mut demand = window();
        assert_eq!(demand.slots(at(0)), 0.0);
        assert_eq!(demand.mean_processing(), None);
        // 100 requests/s of 20 ms each keep two slots busy.
        for i in 0..1_000 {
            demand.add(at(i * 10), 1, 1, 20_000);
        }
        assert_eq!(demand.mean_processing(), Some(Duration::from_millis(20)));
        assert!((demand.slots(at(9_999)) - 2.0).abs() < 0.01);
        let mut young = window();
        for i in 0..50 {
            young.add(at(i * 10), 1, 1, 20_000);
        }
        assert!((young.slots(at(500)) - 2.0).abs() < 0.01);
    }

    #[test]
    fn forgets_after_its_duration() {
        let mut demand = window();
        demand.add(at(0), 1_000, 10, 10_000_000);
        demand.add(at(5_500), 10, 10, 10_000);
        demand.add(at(9_999), 0, 0, 0);
        assert!(demand.mean_processing() > Some(Duration::from_millis(100)));
        demand.add(at(10_000), 0, 0, 0);
        assert_eq!(demand.mean_processing(), Some(Duration::from_millis(1)));
        // The window covers nine seconds, with ten requests of 1 ms each.
        assert!((demand.slots(at(10_000)) - 0.01 / 9.0).abs() < 1e-9);
        assert_eq!(demand.slots(at(15_000)), 0.0);
        assert_eq!(demand.slots(at(1_000_000_000)), 0.0);
    }

    #[test]
    fn after_a_pause_of_the_process_the_window_begins_anew() {
        let mut demand = window();
        demand.add(at(0), 1, 1, 20_000);
        for i in 0..100 {
            demand.add(at(1_000_000 + i * 10), 1, 1, 20_000);
        }
        assert!((demand.slots(at(1_001_000)) - 2.0).abs() < 0.01);
        // Without a pause, the time without requests counts.
        for s in 1_002..1_100 {
            demand.slots(at(s * 1_000));
        }
        demand.add(at(1_100_000), 1, 1, 20_000);
        assert!(demand.slots(at(1_100_500)) < 0.01);
    }

    #[test]
    fn a_response_of_an_hour_counts_for_no_more_than_the_window() {
        let mut demand = Demand::new(Duration::from_secs(60), Duration::from_secs(1));
        // 60 requests/s of 50 ms keep three slots busy.
        for i in 0..3_600 {
            demand.add(at(i * 1_000 / 60), 1, 1, 50_000);
        }
        demand.completed(at(60_000), Duration::from_secs(3_600), 1);
        let slots = demand.slots(at(60_000));
        assert!((3.5..4.1).contains(&slots), "{slots}");
        // From now on each second has one request of 300 s.
        let long = Duration::from_secs(300);
        for s in 61..=400 {
            demand.add(at(s * 1_000), 1, 0, 0);
            demand.completed(at(s * 1_000), long, 1);
        }
        assert!((demand.slots(at(400_999)) - 300.0).abs() < 1.0);
        // An empty window remembers the mean, and a new one has no bound until it knows one.
        let day = Duration::from_secs(86_400);
        demand.completed(at(900_000), day, 1);
        assert_eq!(demand.mean_processing(), Some(long * 30));
        let mut young = window();
        young.completed(at(0), day, 1);
        assert_eq!(young.mean_processing(), Some(day));
    }

    #[test]
    fn a_clock_that_steps_back_neither_panics_nor_forgets() {
        let mut demand = window();
        demand.add(at(5_000), 1, 1, 1_000);
        demand.add(at(0), 1, 1, 3_000);
        demand.add(Instant::default(), 0, 0, 0);
        assert_eq!(demand.mean_processing(), Some(Duration::from_millis(2)));
    }

    #[test]
    fn every_worker_sees_the_demand_of_all_once() {
        let host = MemoryHost::new();
        let shared = || {
            let mut demand = window();
            demand.share(&host, "stage").unwrap();
            demand
        };
        let mut workers = [shared(), shared()];
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        for ms in 0..2_000 {
            for (i, demand) in workers.iter_mut().enumerate() {
                // All requests of the first worker take 1 ms, and all requests of the second take 3
                // ms.
                demand.add(at(ms), 1, 0, 0);
                demand.completed(at(ms), Duration::from_millis(if i == 0 { 1 } else { 3 }), 1);
                if ms % 10 == 9 {
                    demand.exchange(&host, at(ms)).unwrap();
                }
            }
        }
        for demand in &mut workers {
            demand.exchange(&host, at(2_000)).unwrap();
            assert_eq!(demand.mean_processing(), Some(Duration::from_millis(2)));
            // Two requests arrive each millisecond, and their mean processing time is 2 ms.
            assert!((demand.slots(at(2_000)) - 4.0).abs() < 0.05);
        }
        // A worker that joins later gets the earlier mean, but no arrivals.
        let mut late = shared();
        late.exchange(&host, at(2_000)).unwrap();
        assert_eq!(late.mean_processing(), Some(Duration::from_millis(2)));
        assert_eq!(late.slots(at(3_000)), 0.0);
        // The worker's own measurements soon outweigh the earlier mean.
        late.add(at(2_100), 99, 99, 99 * 6_000);
        late.exchange(&host, at(2_100)).unwrap();
        assert_eq!(late.mean_processing(), Some(Duration::from_micros(5_960)));
    }
}
