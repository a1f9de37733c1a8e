//! P: as configured, or as found.
//!
//! Decisions and estimates use the number itself. Only who gets a slot is decided by the schedule around it
//! ([`crate::parallelism::dither`]).

use std::time::Duration;

use super::control::Control;
use crate::config::{Mode, StageConfig};
use crate::host::{Host, HostError};
use crate::parallelism::Auto;
use crate::refusal::Reason;
use crate::request::TypeId;
use crate::service_times::ServiceTimes;
use crate::strategy::ValueCut;
use crate::time::Instant;

/// Between two looks of a worker at the shared state: half of the shortest slot of a schedule.
const PERIOD: Duration = Duration::from_millis(10);

/// See the module.
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
        };
        Self {
            configured: config.parallelism,
            found: config.auto_parallelism.as_ref().map(found),
        }
    }

    /// Takes a new version of the policy over. What was found stays: it is in the shared record.
    pub(super) fn reconfigure(&mut self, old: &StageConfig, new: &StageConfig) {
        if old.auto_parallelism != new.auto_parallelism
            || old.parallelism != new.parallelism
            || old.types != new.types
        {
            *self = Self::new(new);
        }
    }

    /// P.
    pub(super) fn count(&self) -> u32 {
        self.found
            .as_ref()
            .map_or(self.configured, |found| found.auto.slots())
    }

    /// Slots that may be in use at this time.
    pub(super) fn limit(&self, now: Instant) -> u32 {
        self.found
            .as_ref()
            .map_or(self.configured, |found| found.auto.level(now))
    }

    /// A request that the backend answered; see [`Auto::completed`].
    pub(super) fn completed(
        &mut self,
        kind: TypeId,
        started: Instant,
        ended: Instant,
        waited: bool,
        weight: u32,
    ) {
        if let Some(found) = &mut self.found {
            found.auto.completed(kind, started, ended, waited, weight);
        }
    }

    /// A request ended that the backend did not answer.
    pub(super) fn failed(&mut self, weight: u32) {
        if let Some(found) = &mut self.found {
            found.auto.failed(weight);
        }
    }

    /// A request was refused for this reason.
    pub(super) fn refused(&mut self, reason: Reason) {
        let lacks_slots = match reason {
            Reason::Objective(_) | Reason::Value | Reason::QueueFull | Reason::QueueTimeout => true,
            // More slots would not help, and other strategies have targets of their own.
            Reason::Unresponsive
            | Reason::Deadline
            | Reason::QueueWait
            | Reason::Utilization
            | Reason::Backlog
            | Reason::ResponseTime
            | Reason::RateLimited
            | Reason::Retry => false,
        };
        if let Some(found) = self.found.as_mut().filter(|_| lacks_slots) {
            found.auto.refused();
        }
    }

    /// Exchanges what was measured with the other workers, if it is time. Whether P changed.
    pub(super) fn run(
        &mut self,
        host: &impl Host,
        now: Instant,
        mode: Mode,
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
        let is_broken = |kind| cut.is_some_and(|cut| cut.is_broken(kind));
        let (enforced, offset) = (mode == Mode::Enforce, host.wall_clock_offset());
        found.auto.look(now, enforced, offset, times, is_broken);
        found.control.advance(host, now, &mut found.auto)?;
        Ok(found.auto.slots() != before)
    }
}
