//! P, configured or found automatically.
//!
//! Decisions and estimates use P itself. Only the dispatch of slots follows the schedule around it
//! ([`crate::parallelism::dither`]).

use std::time::Duration;

use super::control::Control;
use crate::config::StageConfig;
use crate::host::{Host, HostError};
use crate::ledger::Ledger;
use crate::parallelism::Auto;
use crate::refusal::Reason;
use crate::request::TypeId;
use crate::service_times::ServiceTimes;
use crate::strategy::ValueCut;
use crate::time::Instant;

/// Time between two exchanges of a worker with the shared record: half of the shortest slot of a
/// schedule.
const PERIOD: Duration = Duration::from_millis(10);

/// The slots of a stage.
#[derive(Debug)]
pub(super) struct Slots {
    configured: u32,
    found: Option<Found>,
}

#[derive(Debug)]
struct Found {
    auto: Auto,
    control: Control,
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
            control: Control::new(format!("headgate/parallelism/{}", config.policy)),
            looked: Instant::default(),
            elsewhere: 0,
        };
        Self {
            configured: config.parallelism,
            found: config.auto_parallelism.as_ref().map(found),
        }
    }

    /// Applies a new version of the policy. A P that was found automatically stays, because it is
    /// in the shared record.
    pub(super) fn reconfigure(&mut self, old: &StageConfig, new: &StageConfig) {
        if old.auto_parallelism != new.auto_parallelism
            || old.parallelism != new.parallelism
            || old.types != new.types
        {
            *self = Self::new(new);
        }
    }

    /// Returns P for decisions.
    pub(super) fn count(&self) -> u32 {
        self.found
            .as_ref()
            .map_or(self.configured, |found| found.auto.limit())
    }

    /// Returns the mean service time with few requests in flight; see [`Auto::reference`].
    pub(super) fn reference(&self) -> Option<Duration> {
        self.found.as_ref()?.auto.reference()
    }

    /// Returns P as far as it is known; see [`Auto::slots`].
    pub(super) fn known(&self) -> u32 {
        self.found
            .as_ref()
            .map_or(self.configured, |found| found.auto.slots())
    }

    /// Whether there is no limit, because the backend keeps the objectives without one.
    pub(super) fn is_open(&self) -> bool {
        self.found
            .as_ref()
            .is_some_and(|found| found.auto.is_open())
    }

    /// Whether the service time of a request counts; see [`Auto::is_representative`].
    pub(super) fn is_representative(&self, beside: u32) -> bool {
        let found = self.found.as_ref();
        found.is_none_or(|found| found.auto.is_representative(beside))
    }

    /// Returns the number of slots in use, of which this worker has `here`. The other workers'
    /// number is as of the last exchange.
    pub(super) fn in_use(&self, here: i64) -> u32 {
        let elsewhere = self.found.as_ref().map_or(0, |found| found.elsewhere);
        u32::try_from(here + elsewhere).unwrap_or(0)
    }

    /// Records a request that was answered or is overdue; see [`Auto::answered`].
    pub(super) fn answered(&mut self, kind: TypeId, response: Duration) {
        if let Some(found) = &mut self.found {
            found.auto.answered(kind, response);
        }
    }

    /// Returns the number of slots that may be in use at `now`.
    pub(super) fn limit(&self, now: Instant) -> u32 {
        self.found
            .as_ref()
            .map_or(self.configured, |found| found.auto.level(now))
    }

    /// Records a request that the backend answered; see [`Auto::completed`].
    pub(super) fn completed(
        &mut self,
        kind: TypeId,
        started: Instant,
        ended: Instant,
        met: (bool, u32),
        weight: u32,
    ) {
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
        let in_flight = u32::try_from(in_use).unwrap_or(0);
        let queued = ledger.queue(host)?.length;
        let is_broken = |kind| cut.is_some_and(|cut| cut.is_broken(kind));
        let (enforced, offset) = (holds, host.wall_clock_offset());
        (found.auto).look(now, enforced, offset, (in_flight, queued), times, is_broken);
        found.control.advance(host, now, &mut found.auto)?;
        Ok(found.auto.slots() != before)
    }
}
