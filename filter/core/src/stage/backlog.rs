//! The queue that would be there if decisions were enforced: `DryRun`'s estimate of the queue wait.
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
//! mean residual processing time r = E\[pt²\] / (2 E\[pt\]).
//!
//! One process-wide gauge holds `empty`. Two workers that raise it from an idle start at the same
//! moment may lose one request's work: estimates of a dry run can be off by that, slots are not.

use std::time::Duration;

use crate::host::{Host, HostError, MetricId, MetricKind};
use crate::time::{Instant, nanos};

/// Accepted work that is not done yet, in a model where only accepted requests exist.
#[derive(Debug)]
pub(super) struct Backlog {
    empty_at: MetricId,
}

impl Backlog {
    pub(super) fn new(host: &impl Host, prefix: &str) -> Result<Self, HostError> {
        let empty_at = host.define(MetricKind::Gauge, &format!("{prefix}.dry_run_empty_at_ns"))?;
        Ok(Self { empty_at })
    }

    /// Queue wait of a request that arrives now; `residual` is r.
    pub(super) fn queue_wait(
        &self,
        host: &impl Host,
        now: Instant,
        residual: Duration,
    ) -> Result<Duration, HostError> {
        Ok(Instant::from_nanos(host.read(self.empty_at)?)
            .since(now)
            .saturating_sub(residual))
    }

    /// Adds an accepted request of mean processing time `work`.
    pub(super) fn accept(
        &self,
        host: &impl Host,
        now: Instant,
        work: Duration,
        parallelism: u32,
    ) -> Result<(), HostError> {
        let share = nanos(work / parallelism.max(1));
        if host.read(self.empty_at)? < now.as_nanos() {
            return host.record(self.empty_at, now.as_nanos() + share);
        }
        host.add(self.empty_at, i64::try_from(share).unwrap_or(i64::MAX))
    }
}
