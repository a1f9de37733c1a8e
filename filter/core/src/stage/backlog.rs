//! The modelled queue of a `DryRun`, which is the queue that enforced decisions would lead to.
//!
//! A `DryRun` forwards every request, including rejected ones. Under overload the real queue and
//! all estimates from it grow without bound, so the real queue doesn't show the effect of
//! enforcement. Strategies use the backlog of accepted work instead. The backlog follows Lindley's
//! recursion for a server of speed P. There, `empty` is the time at which all accepted work is
//! done:
//!
//! ```text
//! queue wait of an arrival at t  = max(0, empty − t − r)
//! after accepting work w         : empty = max(empty, t) + w / P
//! ```
//!
//! `empty − t` includes the rest of the work in the slots, which isn't queue wait. With all P slots
//! busy, the mean of this rest is the mean residual processing time r = E\[pt²\] / (2 E\[pt\]).
//! Strategies need two more numbers:
//!
//! ```text
//! queue length  = queue wait · P / E\[pt\]         slots in use = P · min(1, (empty − t) / r)
//! ```
//!
//! One process-wide gauge holds `empty`. If two workers raise it from an idle start at the same
//! moment, the work of one request may be lost. The loss affects only the estimates of a dry run,
//! not slots.

use std::time::Duration;

use headgate_strategies::host::{HostError, Number, Shared};
use headgate_strategies::service_times::ServiceTimes;
use headgate_strategies::time::{Instant, nanos};

/// The modelled queue of a dry run at one point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Modelled {
    /// The queue wait of a request that arrives now.
    pub(super) wait: Duration,
    /// The number of queued requests.
    pub(super) length: u32,
    pub(super) slots_in_use: u32,
}

/// The accepted work that is not done yet, if rejected requests never reached the backend.
#[derive(Debug)]
pub(super) struct Backlog {
    empty_at: Number,
}

impl Backlog {
    pub(super) fn new(host: &impl Shared, prefix: &str) -> Result<Self, HostError> {
        let empty_at = host.number(&format!("{prefix}.dry_run_empty_at_ns"))?;
        Ok(Self { empty_at })
    }

    /// Returns the modelled queue that a request arriving at `now` would find.
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
            // The cast saturates.
            length: length.round() as u32,
            slots_in_use: (slots * part(left, residual).min(1.0)) as u32,
        })
    }

    /// Adds an accepted request with an expected processing time of `work`.
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
