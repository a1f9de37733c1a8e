//! P, configured or found automatically.
//!
//! Decisions and estimates use P itself. Only the dispatch of slots follows the schedule around it
//! ([`headgate_strategies::parallelism::dither`]).

use std::time::Duration;

use headgate_strategies::host::HostError;
use headgate_strategies::parallelism::Auto;
use headgate_strategies::reason::Reason;
use headgate_strategies::request::TypeId;
use headgate_strategies::service_times::ServiceTimes;
use headgate_strategies::strategy::ValueCut;
use headgate_strategies::time::Instant;

use super::Outcome;
use super::budget::Budget;
use super::control;
use crate::config::StageConfig;
use crate::host::Host;
use crate::ledger::Ledger;
use crate::requests::Request;

/// The time between two exchanges of a worker with the shared record. It is half of the shortest
/// slot of a schedule.
const PERIOD: Duration = Duration::from_millis(10);

/// The slots of a stage.
#[derive(Debug)]
pub(super) struct Slots {
    configured: u32,
    found: Option<Found>,
    /// The budget of tokens.
    pub(super) budget: Budget,
}

#[derive(Debug)]
struct Found {
    auto: Auto,
    /// The key of the shared record.
    key: String,
    looked: Instant,
    /// The number of slots in use on other workers.
    elsewhere: i64,
}

impl Slots {
    pub(super) fn new(config: &StageConfig) -> Self {
        let found = |bounds| Found {
            auto: Auto::new(
                &config.policy,
                bounds,
                config.parallelism,
                config.types.len(),
            ),
            key: format!("headgate/parallelism/{}", config.policy),
            looked: Instant::default(),
            elsewhere: 0,
        };
        Self {
            configured: config.parallelism,
            found: config.auto_parallelism.as_ref().map(found),
            budget: Budget::new(config),
        }
    }

    /// Applies a new version of the policy. A P that was found automatically stays, because it is
    /// in the shared record.
    pub(super) fn reconfigure(&mut self, old: &StageConfig, new: &StageConfig) {
        let mut budget = Budget::new(new);
        let is_kept = budget.is_set() && self.budget.is_set();
        if is_kept {
            self.budget.resize(&budget);
            std::mem::swap(&mut self.budget, &mut budget);
        }
        if old.auto_parallelism != new.auto_parallelism
            || old.parallelism != new.parallelism
            || old.types != new.types
            || old.holds_streams() != new.holds_streams()
        {
            *self = Self::new(new);
        }
        if is_kept && old.types != new.types {
            budget.forget_types(new);
        }
        self.budget = budget;
    }

    /// Returns P for decisions. With a budget of tokens, it is [`Self::working`] as a whole number.
    pub(super) fn count(&self) -> u32 {
        self.working() as u32
    }

    /// Returns the mean number of slots that work at once while requests wait.
    pub(super) fn working(&self) -> f64 {
        self.budget.slots(self.without_budget())
    }

    /// Returns P for decisions, without regard to the budget.
    pub(super) fn without_budget(&self) -> u32 {
        self.found
            .as_ref()
            .map_or(self.configured, |found| found.auto.limit())
    }

    /// Returns P · tokens · slot time ÷ budget, the mean over requests of `kind`, s. Returns 0
    /// without a budget. A request with this slot time takes the same part of the slots as these
    /// requests take of the budget.
    pub(super) fn token_time(&self, kind: TypeId) -> f64 {
        self.budget.part_time(kind) * f64::from(self.known())
    }

    /// Returns P for the value cut. With a budget, P is the known P, because [`Self::token_time`]
    /// already covers the budget. While P is unlimited, its upper bound would make every type's
    /// demand look small.
    pub(super) fn for_value(&self) -> u32 {
        match self.budget.is_set() {
            true => self.known(),
            false => self.count(),
        }
    }

    /// Records the output of a response that ended ([`Budget::wrote`]).
    pub(super) fn wrote(&mut self, request: &Request, outcome: Outcome) {
        let counted = request.counts_each.then_some(request.output);
        // A response without a body has no output.
        if counted.is_some() || request.output > 0 {
            self.budget.wrote(&request.attributes, counted, outcome);
        }
    }

    /// Returns the mean service time with few requests in flight ([`Auto::reference`]).
    pub(super) fn reference(&self) -> Option<Duration> {
        self.found.as_ref()?.auto.reference()
    }

    /// Returns P as far as it is known ([`Auto::slots`]).
    pub(super) fn known(&self) -> u32 {
        self.found
            .as_ref()
            .map_or(self.configured, |found| found.auto.slots())
    }

    /// Whether P is searched for, and no budget of tokens is set.
    pub(super) fn is_searched(&self) -> bool {
        self.found.is_some() && !self.budget.is_set()
    }

    /// Whether neither P nor a budget limits the requests in the backend.
    pub(super) fn is_unlimited(&self) -> bool {
        self.is_open() && !self.budget.is_set()
    }

    /// Whether P is unlimited, because the backend meets the objectives without a limit.
    pub(super) fn is_open(&self) -> bool {
        self.found
            .as_ref()
            .is_some_and(|found| found.auto.is_open())
    }

    /// Whether the service time of a request is representative ([`Auto::is_representative`]).
    pub(super) fn is_representative(&self, beside: u32) -> bool {
        let found = self.found.as_ref();
        found.is_none_or(|found| found.auto.is_representative(beside))
    }

    /// Returns the number of slots in use, of which this worker has `here`. The number on other
    /// workers is as of the last exchange.
    pub(super) fn in_use(&self, here: i64) -> u32 {
        let elsewhere = self.found.as_ref().map_or(0, |found| found.elsewhere);
        u32::try_from(here + elsewhere).unwrap_or(0)
    }

    /// Returns the search for P, unless a request that was sent at `started` was in the backend
    /// during a suspension, as known at `now` ([`Auto::resumed`]).
    fn undisturbed(&mut self, started: Instant, now: Instant) -> Option<&mut Found> {
        let found = self.found.as_mut();
        found.filter(|found| found.auto.resumed(now) <= started)
    }

    /// Records the first byte of a stream ([`Auto::began`]) that was sent at `started`.
    pub(super) fn began(&mut self, kind: TypeId, started: Instant, now: Instant, beside: u32) {
        if let Some(found) = self.undisturbed(started, now) {
            found.auto.began(kind, now.since(started), beside);
        }
    }

    /// Returns the response time beyond which a request is late ([`Auto::late_after`]).
    pub(super) fn late_after(&self, kind: TypeId) -> Option<Duration> {
        self.found.as_ref()?.auto.late_after(kind)
    }

    /// Returns the response time by which the search for P judges a request that is in the backend
    /// from `dequeued` to `now`. It leaves out the queue wait if the request may have waited for
    /// tokens, the time before the end of a suspension ([`Auto::resumed`]), and the time in which
    /// the request's body arrived, because a client that uploads slowly needs no fewer slots.
    pub(super) fn response(&self, of: &Request, dequeued: Instant, now: Instant) -> Duration {
        let is_short = self.budget.binds(of.arrived);
        let from = if is_short { dequeued } else { of.arrived };
        let resumed = self.found.as_ref().map(|found| found.auto.resumed(now));
        let response = now.since(from.max(resumed.unwrap_or_default()));
        let uploaded = of.sent.map(|sent| sent.since(dequeued));
        response.saturating_sub(uploaded.unwrap_or_default())
    }

    /// Records a request that was answered or is late ([`Auto::answered`]).
    pub(super) fn answered(&mut self, kind: TypeId, response: Duration, weight: u32) {
        if let Some(found) = &mut self.found {
            found.auto.answered(kind, response, weight);
        }
    }

    /// Returns the number of slots that may be in use at `now`.
    pub(super) fn limit(&self, now: Instant) -> u32 {
        self.found
            .as_ref()
            .map_or(self.configured, |found| found.auto.level(now))
    }

    /// Records the time per output token of a response ([`Auto::streamed`]) to a request that was
    /// sent at `started` and has ended.
    pub(super) fn streamed(
        &mut self,
        kind: TypeId,
        started: Instant,
        token_time: Duration,
        beside: u32,
        objective: (f64, Duration),
        weight: u32,
    ) {
        // The end of a request comes after a tick, which has found a suspension.
        if let Some(found) = self.undisturbed(started, started) {
            (found.auto).streamed(kind, token_time, beside, objective, weight);
        }
    }

    /// Records a request that the backend answered ([`Auto::completed`]).
    pub(super) fn completed(
        &mut self,
        kind: TypeId,
        started: Instant,
        ended: Instant,
        (waited, beside): (bool, u32),
        weight: u32,
    ) {
        // Only a wait for a slot shows that all slots were in use.
        let met = (waited && !self.budget.binds(started), beside);
        if let Some(found) = &mut self.found {
            found.auto.completed(kind, started, ended, met, weight);
        }
    }

    /// Records `weight` requests that ended without an answer from the backend.
    pub(super) fn failed(&mut self, weight: u32) {
        if let Some(found) = &mut self.found {
            found.auto.failed(weight);
        }
    }

    /// Records a request of `kind` that was refused for `reason`.
    pub(super) fn refused(&mut self, kind: TypeId, reason: Reason) {
        let lacks_slots = reason.answer().lacks_slots;
        if let Some(found) = self.found.as_mut().filter(|_| lacks_slots) {
            found.auto.refused(kind);
        }
    }

    /// Exchanges measurements with the other workers, if that is due. Returns whether P changed.
    pub(super) fn run(
        &mut self,
        host: &impl Host,
        now: Instant,
        holds: bool,
        ledger: &Ledger,
        times: &ServiceTimes,
        cut: Option<&ValueCut>,
    ) -> Result<bool, HostError> {
        let limit = self.limit(now);
        self.budget.look(host, now, ledger, limit)?;
        let is_short = self.budget.binds(now);
        let Some(found) = self
            .found
            .as_mut()
            .filter(|found| now.since(found.looked) >= PERIOD)
        else {
            return Ok(false);
        };
        found.looked = now;
        let before = found.auto.slots();
        let in_use = ledger.slots_in_use(host)?;
        found.elsewhere = in_use - ledger.booked().slots;
        let mut in_flight = u32::try_from(in_use).unwrap_or(0);
        let queued = ledger.queue(host)?.length;
        let is_broken = |kind| cut.is_some_and(|cut| cut.is_broken(kind));
        // The limit stays in force, because requests that wait for tokens need slots, too.
        let (enforced, offset) = (holds && !is_short, host.wall_clock_offset());
        if is_short && !found.auto.is_open() {
            in_flight = in_flight.saturating_add(queued);
        }
        (found.auto).look(now, enforced, offset, (in_flight, queued), times, is_broken);
        control::advance(host, now, &found.key, &mut found.auto)?;
        Ok(found.auto.slots() != before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FilterConfig;
    use crate::memory::MemoryHost;

    const FIRST: TypeId = TypeId(0);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Whether a limit that late answers set is lifted while few slots are in use. Every 10 ms,
    /// `refused` requests are refused for `reason`.
    fn is_lifted(reason: Reason, refused: u32) -> bool {
        let json = br#"{"stages":[{"policy":"ns/p","parallelism":4,
            "auto_parallelism":{"min":2,"max":64},"queue":{"max_length":10,"timeout_us":1000000},
            "strategy":{"type":"MaxQueueLength"},
            "types":[{"name":"default","slo":[{"percentile":90,"objective_us":150000}]}]}]}"#;
        let config = &FilterConfig::from_json(json).unwrap().stages[0];
        let (host, times) = (MemoryHost::new(), ServiceTimes::from_config(config));
        let mut ledger = Ledger::new(&host, "p", 0).unwrap();
        let mut slots = Slots::new(config);
        let run = |slots: &mut Slots, ledger: &Ledger, ms| {
            slots
                .run(&host, at(ms), true, ledger, &times, None)
                .unwrap();
        };
        let serve = |slots: &mut Slots, second: u64, ms: u64, beside| {
            for n in 0..100 {
                let (started, ended) = (at(1_000 * second + n), at(1_000 * second + n + ms));
                slots.answered(FIRST, ended.since(started), 1);
                slots.completed(FIRST, started, ended, (false, beside), 1);
            }
        };
        (0..40).for_each(|_| ledger.acquire_over_limit(&host, 0).unwrap());
        run(&mut slots, &ledger, 10);
        serve(&mut slots, 1, 10, 4);
        run(&mut slots, &ledger, 1_100);
        (0..3).for_each(|_| serve(&mut slots, 2, 160, 40));
        run(&mut slots, &ledger, 1_300);
        assert!(!slots.is_open());
        (0..38).for_each(|_| ledger.release(&host, 0).unwrap());
        for ms in (1_310..2_400).step_by(10) {
            (0..refused).for_each(|_| slots.refused(FIRST, reason));
            serve(&mut slots, 2, 10, 4);
            run(&mut slots, &ledger, ms);
        }
        slots.is_open()
    }

    #[test]
    fn only_refusals_that_more_slots_would_avoid_keep_the_limit() {
        for reason in [Reason::RateLimited, Reason::Deadline, Reason::Retry] {
            assert!(is_lifted(reason, 20), "{reason}");
        }
        for reason in [Reason::Value, Reason::QueueFull, Reason::QueueTimeout] {
            assert!(!is_lifted(reason, 20), "{reason}");
            assert!(is_lifted(reason, 0), "{reason}");
        }
    }
}
