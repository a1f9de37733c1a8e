//! The exchange, between workers, of the demand that MaxQueueWait and AcceptFraction measure.
//!
//! P is for the whole process, so it must be compared with all arrivals of the process. Each worker
//! adds its counts to process-wide counters at every tick, and adds the other workers' counts to
//! its own window. As in [`super::acceptance`], the window includes the worker's own requests at
//! once, and other workers' requests a tick later.
//!
//! A worker starts a new window when it joins late or an edit replaces its window. A new window
//! starts with one completion, of the mean processing time of the process so far. With an empty
//! window the strategy would admit everything until the next completion. Long requests in the
//! backend may delay that completion.

use std::time::Duration;

use headgate_strategies::demand::Demand;
use headgate_strategies::host::HostError;
use headgate_strategies::shared::Counter;
use headgate_strategies::strategy::Strategy;
use headgate_strategies::time::Instant;

use crate::config::StageConfig;
use crate::host::Host;

/// One worker's exchange of demand with the other workers.
#[derive(Debug)]
pub(super) struct DemandExchange {
    received: Counter,
    completed: Counter,
    processing_us: Counter,
    /// The mean processing time of all earlier completions of the process, µs. It is `None` without
    /// earlier completions, and after it has been added to the window.
    before_us: Option<u64>,
}

impl DemandExchange {
    /// Creates the exchange. Returns `None` for strategies that measure no demand.
    pub(super) fn new(
        host: &impl Host,
        prefix: &str,
        config: &StageConfig,
    ) -> Result<Option<Self>, HostError> {
        let measures = Strategy::from_config(config).demand_mut().is_some();
        (measures.then(|| Self::open(host, prefix))).transpose()
    }

    fn open(host: &impl Host, prefix: &str) -> Result<Self, HostError> {
        let counter = |what| Counter::new(host, &format!("{prefix}.demand_{what}"));
        let (completed, processing_us) = (counter("completed")?, counter("processing_us")?);
        Ok(Self {
            before_us: processing_us.seen().checked_div(completed.seen()),
            received: counter("received")?,
            completed,
            processing_us,
        })
    }

    /// Counts an arrival of the measured demand at this worker.
    pub(super) fn received(&mut self) {
        self.received.count(1);
    }

    /// Counts `weight` requests that were served and held their slots for `slot` each.
    pub(super) fn completed(&mut self, slot: Duration, weight: u32) {
        let micros = u64::try_from(slot.as_micros()).unwrap_or(u64::MAX >> 40);
        self.completed.count(u64::from(weight));
        self.processing_us
            .count(micros.saturating_mul(u64::from(weight)));
    }

    /// Adds this worker's counts to the counters, and other workers' counts to `demand`.
    pub(super) fn run(
        &mut self,
        host: &impl Host,
        now: Instant,
        demand: &mut Demand,
    ) -> Result<(), HostError> {
        let exchange = |counter: &mut Counter| {
            counter.publish(host)?;
            counter.others(host)
        };
        let received = exchange(&mut self.received)?;
        let completed = exchange(&mut self.completed)?;
        let processing_us = exchange(&mut self.processing_us)?;
        demand.add(now, received, completed, processing_us);
        if let Some(mean_us) = self.before_us.take() {
            demand.add(now, 0, 1, mean_us);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryHost;

    fn exchange(host: &MemoryHost) -> DemandExchange {
        DemandExchange::open(host, "stage").unwrap()
    }

    #[test]
    fn every_worker_sees_the_demand_of_all_once() {
        let host = MemoryHost::new();
        let window = || Demand::new(Duration::from_secs(10), Duration::from_secs(1));
        let mut workers = [(exchange(&host), window()), (exchange(&host), window())];
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        for ms in 0..2_000 {
            for (i, (exchange, demand)) in workers.iter_mut().enumerate() {
                // All requests of the first worker take 1 ms, and all requests of the second take 3
                // ms.
                let processing = Duration::from_millis(if i == 0 { 1 } else { 3 });
                exchange.received();
                exchange.completed(processing, 1);
                demand.add(at(ms), 1, 1, processing.as_micros() as u64);
                if ms % 10 == 9 {
                    exchange.run(&host, at(ms), demand).unwrap();
                }
            }
        }
        for (exchange, demand) in &mut workers {
            exchange.run(&host, at(2_000), demand).unwrap();
            assert_eq!(demand.mean_processing(), Some(Duration::from_millis(2)));
            // Two requests arrive each millisecond, and their mean processing time is 2 ms.
            assert!((demand.slots(at(2_000)) - 4.0).abs() < 0.05);
        }
        // A worker that joins later gets the earlier mean, but no arrivals.
        let mut late = exchange(&host);
        let mut demand = window();
        late.run(&host, at(2_000), &mut demand).unwrap();
        assert_eq!(demand.mean_processing(), Some(Duration::from_millis(2)));
        assert_eq!(demand.slots(at(3_000)), 0.0);
        // The worker's own measurements soon outweigh the earlier mean.
        demand.add(at(2_100), 99, 99, 99 * 6_000);
        late.run(&host, at(2_100), &mut demand).unwrap();
        assert_eq!(demand.mean_processing(), Some(Duration::from_micros(5_960)));
    }
}
