//! The queue that would be there if decisions were enforced: what a `DryRun` decides by.
//!
//! In `DryRun` every request goes through, the rejected ones too, so under overload the real queue says
//! nothing about what enforcement would do: it grows without bound and every estimate with it. The
//! backlog of accepted work answers instead. It follows Lindley's recursion for a server of speed P:
//! with `empty` the instant at which all accepted work is done,
//!
//! ```text
//! queue wait of an arrival at t  = max(0, empty − t − r)
//! after accepting work w         : empty = max(empty, t) + w / P
//! ```
//!
//! `empty − t` also covers the work in the slots, which nobody waits for: with all P busy that is the
//! mean residual processing time r = E\[pt²\] / (2 E\[pt\]). From both follow the numbers that strategies
//! ask for:
//!
//! ```text
//! queue length  = queue wait · P / E\[pt\]         slots in use = P · min(1, (empty − t) / r)
//! ```
//!
//! One process-wide gauge holds `empty`. Two workers that raise it from an idle start at the same
//! moment may lose one request's work: estimates of a dry run can be off by that, slots are not.

use std::time::Duration;

use crate::host::{HostError, Number, Shared};
use crate::service_times::ServiceTimes;
use crate::time::{Instant, nanos};

/// The queue of a dry run at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Modelled {
    /// Queue wait of a request that arrives now.
    pub(super) wait: Duration,
    /// Requests that wait.
    pub(super) length: u32,
    /// Requests in slots.
    pub(super) slots_in_use: u32,
}

/// Accepted work that is not done yet, in a model where only accepted requests exist.
#[derive(Debug)]
pub(super) struct Backlog {
    empty_at: Number,
}

impl Backlog {
    pub(super) fn new(host: &impl Shared, prefix: &str) -> Result<Self, HostError> {
        let empty_at = host.number(&format!("{prefix}.dry_run_empty_at_ns"))?;
        Ok(Self { empty_at })
    }

    /// The queue that a request finds which arrives now.
    pub(super) fn queue(
        &self,
        host: &impl Shared,
        now: Instant,
        times: &ServiceTimes,
        parallelism: u32,
    ) -> Result<Modelled, HostError> {
        let left = Instant::from_nanos(host.get(self.empty_at)?).since(now);
        let residual = times.mean_residual();
        let wait = left.saturating_sub(residual);
        let slots = f64::from(parallelism);
        let part = |of: Duration, whole: Duration| {
            if whole.is_zero() {
                0.0
            } else {
                of.as_secs_f64() / whole.as_secs_f64()
            }
        };
        let length = slots * part(wait, times.mean_of_all().unwrap_or_default());
        Ok(Modelled {
            wait,
            // A float too large becomes the largest integer.
            length: length.round() as u32,
            slots_in_use: (slots * part(left, residual).min(1.0)) as u32,
        })
    }

    /// Adds an accepted request that is expected to be processed for `work`.
    pub(super) fn accept(
        &self,
        host: &impl Shared,
        now: Instant,
        work: Duration,
        parallelism: u32,
    ) -> Result<(), HostError> {
        let share = nanos(work / parallelism.max(1));
        if host.get(self.empty_at)? < now.as_nanos() {
            return host.set(self.empty_at, now.as_nanos() + share);
        }
        host.add_to(self.empty_at, i64::try_from(share).unwrap_or(i64::MAX))
    }
}
