//! What a stage does between requests: housekeeping at every tick, and changes of its configuration.

use std::time::Duration;

use super::acceptance::Exchange;
use super::demand::DemandExchange;
use super::places::Places;
use super::sampling::Sampling;
use super::{Event, Phase, Stage};
use crate::config::{DEFAULT_TYPE, StageConfig};
use crate::discipline::Order;
use crate::host::{Host, HostError};
use crate::ledger::Share;
use crate::request::TypeId;
use crate::service_times::{ServiceTimes, Settings};
use crate::stats::{self, StageCount, StageStats};
use crate::strategy::{Admission, Strategy};
use crate::time::Instant;
use crate::workers::{Changes, Membership};

/// How often the totals are held against the shares.
const AUDIT: Duration = Duration::from_millis(100);
/// A drift seen unchanged this many times in a row is real: bookings under way last microseconds.
const AUDITS: u32 = 20;

/// Watches for a difference between totals and shares that stays.
#[derive(Debug, Default)]
pub(super) struct DriftWatch {
    audited: Instant,
    drift: Share,
    seen: u32,
}

impl DriftWatch {
    /// The drift to correct, if it has lasted.
    fn lasting(&mut self, drift: Share) -> Option<Share> {
        if drift == Share::default() || drift != self.drift {
            self.drift = drift;
            self.seen = 0;
            return None;
        }
        self.seen += 1;
        (self.seen >= AUDITS).then(|| {
            self.seen = 0;
            drift
        })
    }
}

impl Stage {
    /// Housekeeping: gives back what dead workers held, refuses the late, hands out slots that a lost
    /// wake-up left free, exchanges measured times with the other workers, publishes counters.
    ///
    /// # Errors
    /// [`HostError`]; the next tick continues.
    pub fn tick(
        &mut self,
        host: &impl Host,
        now: Instant,
        membership: &Membership,
        changes: &Changes,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        if self.joins != membership.joins() {
            self.ledger.rejoin(host, membership.id())?;
            self.joins = membership.joins();
            let head = self.queue.head().map(|(_, rank)| rank);
            self.ledger.publish_head(host, head)?;
        }
        for &dead in &changes.dead {
            self.ledger.give_back(host, dead)?;
            self.stats.count_stage(StageCount::WorkersLost, 1);
        }
        self.others.clear();
        self.others.extend_from_slice(membership.others());
        self.expire_late(host, now, events)?;
        self.woken(host, now, events)?;
        self.service_times.sync(now, host, &self.times_key)?;
        if let (Some(exchange), Some(demand)) = (&mut self.demand, self.strategy.demand_mut()) {
            exchange.run(host, now, demand)?;
        }
        self.control.run(host, now, &mut self.strategy)?;
        self.sampling.refill(now);
        self.places.tick(now);
        self.strategy.tick(now);
        if let (Some(acceptance), Some(window)) = (&mut self.acceptance, self.strategy.window_mut())
        {
            acceptance.run(host, now, window)?;
        }
        self.audit(host, now, membership)?;
        self.stats.queue(host, self.ledger.queue(host)?)?;
        self.stats.flush(host)
    }

    /// The worker with the lowest number corrects a lasting drift, so that it is corrected once.
    fn audit(
        &mut self,
        host: &impl Host,
        now: Instant,
        membership: &Membership,
    ) -> Result<(), HostError> {
        let lowest = membership
            .others()
            .iter()
            .all(|&other| other > membership.id());
        if !lowest || now.since(self.drift.audited) < AUDIT {
            return Ok(());
        }
        self.drift.audited = now;
        let drift = self.ledger.drift(host, &self.others)?;
        if let Some(drift) = self.drift.lasting(drift) {
            self.ledger.correct(host, drift)?;
            self.stats.count_stage(StageCount::LedgerCorrected, 1);
        }
        Ok(())
    }

    /// Takes a new version of its policy over. Requests that wait or run stay, learned times stay (they
    /// are kept by type name), and so does whatever part of the strategy the new version doesn't change.
    ///
    /// # Errors
    /// [`HostError`] when the host refuses a metric; the old version then stays.
    pub fn reconfigure(
        &mut self,
        host: &impl Host,
        now: Instant,
        config: StageConfig,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        let held = self.holds();
        let revived = std::mem::take(&mut self.retired);
        if config == self.config && !revived {
            return Ok(());
        }
        let order = Order::new(host, &stats::prefix(&config.policy), &config)?;
        let new_stats = StageStats::new(host, &config)?;
        new_stats.slots(host, config.parallelism)?;
        self.stats.flush(host)?;
        self.stats = new_stats;
        self.service_times.flush(now, host, &self.times_key)?;
        self.service_times = ServiceTimes::new(Settings::from_config(&config));
        self.service_times.sync(now, host, &self.times_key)?;
        let same_strategy = config.strategy == self.config.strategy
            && config.queue.max_length == self.config.queue.max_length
            && config.starvation_avoidance == self.config.starvation_avoidance
            && config.types == self.config.types;
        if !same_strategy {
            self.strategy = Strategy::from_config(&config);
            let prefix = stats::prefix(&config.policy);
            self.acceptance = Exchange::new(host, &prefix, &config)?;
            self.demand = DemandExchange::new(host, &prefix, &config)?;
        }
        if config.types != self.config.types || config.queue != self.config.queue {
            self.places = Places::new(config.types.len());
        }
        if config.types.len() != self.config.types.len() {
            self.sampling = Sampling::new(config.types.len());
        }
        self.order = order;
        self.rename_types(&config);
        self.config = config;
        match (held, self.holds()) {
            (true, false) => self.release_all(host, now, events)?,
            (false, true) => self.adopt_watched(host)?,
            _ => {}
        }
        self.dispatch(host, now, events)
    }

    /// Requests under way keep their type by name; where it is gone they become `default`.
    fn rename_types(&mut self, config: &StageConfig) {
        let at = |name: &str| config.types.iter().position(|t| t.name == name);
        let default = at(DEFAULT_TYPE).unwrap_or(config.types.len() - 1);
        let ids: Vec<TypeId> = self
            .config
            .types
            .iter()
            .map(|t| TypeId(u16::try_from(at(&t.name).unwrap_or(default)).unwrap_or(0)))
            .collect();
        for request in self.requests.iter_mut() {
            request.kind = ids[request.kind.0 as usize];
        }
    }

    /// The policy is gone: lets everybody through who waits. The stage is over when
    /// [`Stage::pending`] is zero.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn retire(
        &mut self,
        host: &impl Host,
        now: Instant,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        let held = self.holds();
        self.retired = true;
        if held {
            self.release_all(host, now, events)?;
        }
        self.stats.slots(host, 0)
    }

    /// Whether the policy is gone.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// Nobody is held any more: all who wait go to the backend.
    fn release_all(
        &mut self,
        host: &impl Host,
        now: Instant,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        self.next_deadline = None;
        let mut done = Ok(());
        while let Some((slot, _)) = self.queue.head() {
            let Some(request) = self.requests.get_mut(slot) else {
                break;
            };
            let stream = request.stream;
            // From the stage's view it runs, and above P if need be: its client has waited enough.
            request.phase = Phase::Running {
                dequeued: Some(now),
            };
            let request = *request;
            events.push(Event::Resume { stream });
            done = done
                .and(self.ledger.acquire_over_limit(host))
                .and(self.leave_queue(host, slot, &request));
        }
        done
    }

    /// Requests that were only watched are in the backend, whatever place they have in the queue: from
    /// now on, when that place would hold them back or refuse them, they count as running.
    fn adopt_watched(&mut self, host: &impl Host) -> Result<(), HostError> {
        let mut done = Ok(());
        while let Some((slot, _)) = self.queue.head() {
            let Some(request) = self.requests.get_mut(slot) else {
                break;
            };
            request.phase = Phase::Running { dequeued: None };
            let request = *request;
            done = done
                .and(self.ledger.acquire_over_limit(host))
                .and(self.leave_queue(host, slot, &request));
        }
        done
    }

    /// Shares what is pending with the host now: the worker is about to end.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn flush(&mut self, host: &impl Host, now: Instant) -> Result<(), HostError> {
        self.service_times.flush(now, host, &self.times_key)?;
        self.stats.flush(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_drift_that_stays_is_corrected() {
        let mut watch = DriftWatch::default();
        let drift = |slots| Share {
            slots,
            ..Share::default()
        };
        for n in 0..100 {
            assert_eq!(watch.lasting(drift(n % 2)), None, "bookings under way");
        }
        let corrected: Vec<_> = (0..=AUDITS)
            .filter_map(|_| watch.lasting(drift(1)))
            .collect();
        assert_eq!(corrected, [drift(1)]);
    }
}
