//! The other workers' part of the demand that MaxQueueWait and AcceptFraction measure.
//!
//! P is the whole process's, so the arrivals that it is held against must be, too. Each worker adds what
//! it counted to process-wide counters at every tick, and takes what the others added into its own
//! window: as in [`super::acceptance`], own requests count at once, theirs a tick later.
//!
//! A window that is new, because its worker joined late or because an edit replaced it, starts with one completion of the
//! mean that the process measured so far. With an empty one the strategy would admit everything until the next
//! completion, which a queue behind long requests postpones.

use std::time::Duration;

use crate::config::{StageConfig, StrategyConfig};
use crate::demand::Demand;
use crate::host::{Host, HostError};
use crate::shared::Counter;
use crate::time::Instant;

/// See the module.
#[derive(Debug)]
pub(super) struct DemandExchange {
    received: Counter,
    completed: Counter,
    processing_us: Counter,
    /// Mean processing time of all that the process completed before, µs; `None` once the window has it.
    before_us: Option<u64>,
}

impl DemandExchange {
    /// Nothing to exchange for strategies that measure no demand.
    pub(super) fn new(
        host: &impl Host,
        prefix: &str,
        config: &StageConfig,
    ) -> Result<Option<Self>, HostError> {
        match config.strategy {
            StrategyConfig::Bouncer { .. }
            | StrategyConfig::MaxQueueLength
            | StrategyConfig::BacklogControl(_)
            | StrategyConfig::ResponseTimeController(_) => {
                return Ok(None);
            }
            StrategyConfig::MaxQueueWait { .. } | StrategyConfig::AcceptFraction { .. } => {}
        }
        Self::open(host, prefix).map(Some)
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

    /// A request arrived at this worker.
    pub(super) fn received(&mut self) {
        self.received.count(1);
    }

    /// One was served, which held its slot for `slot`.
    pub(super) fn completed(&mut self, slot: Duration, weight: u32) {
        let micros = u64::try_from(slot.as_micros()).unwrap_or(u64::MAX >> 40);
        self.completed.count(u64::from(weight));
        self.processing_us
            .count(micros.saturating_mul(u64::from(weight)));
    }

    /// Adds this worker's counts to the counters, and the others' to `demand`.
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
    use crate::host::memory::MemoryHost;

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
                // The first worker has all requests of 1 ms, the second all of 3 ms.
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
            // Two requests a millisecond, two milliseconds each.
            assert!((demand.slots(at(2_000)) - 4.0).abs() < 0.05);
        }
        // A worker that comes later knows the mean of what came before it, and no arrivals.
        let mut late = exchange(&host);
        let mut demand = window();
        late.run(&host, at(2_000), &mut demand).unwrap();
        assert_eq!(demand.mean_processing(), Some(Duration::from_millis(2)));
        assert_eq!(demand.slots(at(3_000)), 0.0);
        // Its own measurements soon outweigh that mean.
        demand.add(at(2_100), 99, 99, 99 * 6_000);
        late.run(&host, at(2_100), &mut demand).unwrap();
        assert_eq!(demand.mean_processing(), Some(Duration::from_micros(5_960)));
    }
}
