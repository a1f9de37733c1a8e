//! Queue disciplines: in which order waiting requests get slots.
//!
//! A discipline is a *rank*, given to a request when it joins the queue; the smallest rank goes first,
//! over all workers (`queue`, `stage::dispatch`). No shared queue is needed, and every discipline gets
//! the same order across worker threads.
//!
//! Two layouts. Disciplines whose measure is an instant rank by it, in ns of the monotonic clock. The
//! others put their measure in front and the arrival behind, so that equal ones keep their order of
//! arrival on all workers: 24 bits of measure in units of 16 µs (268 s; longer ones are alike), 40 bits
//! of arrival in units of 16 µs (203 days). Both read as time in the lower bits, so [`Order::tolerance`]
//! is a number to add to a rank.
//!
//! | discipline | rank | source |
//! |---|---|---|
//! | FIFO | arrival | |
//! | EDF | deadline | Wisp §4.2 |
//! | LSTF | deadline − (total − elapsed service time) | Wisp §4.2, Table 2 |
//! | SJF | total work | Wisp Table 2 |
//! | SRTF | total − elapsed service time | Wisp Table 2 |
//! | LASF | work so far | Wisp Table 2 |
//! | Slack | latest start: arrival + min over percentiles p of (objective_p − pt_p) | below |
//!
//! The deadline is the request's own; without one it is its type's objective at the highest percentile,
//! and without objectives `queue.timeout`. What a request doesn't say of its tree is what is measured
//! here: the mean processing time of its type is all that is ahead of it.
//!
//! **Slack** is least slack time first over objectives instead of deadlines. Each objective of a type
//! leaves `objective_p − pt_p` for waiting (Bouncer Eq. 3 and 4, solved for the wait), and the request
//! must start before the least of them has passed. In one FIFO a query that takes 12 ms at the median
//! waits behind queries of 0.4 ms that have 17 ms to spare; by latest start it overtakes them, and still
//! a request that has waited long goes first, so nothing starves.

use std::time::Duration;

use crate::config::{self, QueueConfig};
use crate::request::Attributes;
use crate::service_times::ServiceTimes;
use crate::time::{Instant, nanos};

/// ns in a unit of the packed layout, as a shift: 16.4 µs.
const UNIT: u32 = 14;
/// Bits of the arrival in the packed layout.
const ARRIVAL_BITS: u32 = 40;

/// The order of one stage's queue.
#[derive(Debug, Clone)]
pub struct Order {
    discipline: config::Discipline,
    timeout: Duration,
}

impl Order {
    /// The order that a checked configuration asks for.
    #[must_use]
    pub fn from_config(queue: &QueueConfig) -> Self {
        Self {
            discipline: queue.discipline.clone(),
            timeout: Duration::from_micros(queue.timeout_us),
        }
    }

    /// Whether requests may be served in another order than that of their arrival.
    #[must_use]
    pub fn reorders(&self) -> bool {
        self.discipline != config::Discipline::Fifo
    }

    /// Whether requests are to be admitted by the time in which all that is queued drains, rather than by
    /// the wait that each can expect for itself.
    ///
    /// Orders by deadline or slack even out how close requests come to their limits: one that has time
    /// waits for one that has none. So under overload *every* type's own wait ends near its limit, and
    /// admission by it refuses all alike, the many cheap requests like the few expensive ones. At 1.5
    /// times the full load Bouncer with an allowance of 0.3 then rejects 40% of all requests, where a FIFO
    /// rejects 13.7%. The drain time says who has room to spare: a request whose slack doesn't cover it
    /// is served in time only at the expense of others' slack. Judged by that, the same strategy
    /// rejects 13.7% and keeps all objectives (simulator, `slack-order`).
    ///
    /// Orders by size, attained service or turn give each type its own place in the queue whatever the
    /// others' limits, and are judged by that place.
    #[must_use]
    pub fn admits_by_drain(&self) -> bool {
        match self.discipline {
            config::Discipline::Fifo
            | config::Discipline::Edf
            | config::Discipline::Lstf
            | config::Discipline::Slack => true,
            config::Discipline::Sjf | config::Discipline::Srtf | config::Discipline::Lasf => false,
        }
    }

    /// The rank of a request that arrives at `now`.
    #[must_use]
    pub fn rank(&self, now: Instant, request: &Attributes, times: &ServiceTimes) -> u64 {
        let progress = &request.progress;
        let mean = || times.mean(request.kind).unwrap_or_default();
        let remaining = || match progress.total {
            Some(total) => total.saturating_sub(progress.elapsed),
            None => mean(),
        };
        match self.discipline {
            config::Discipline::Fifo => now.as_nanos(),
            config::Discipline::Edf => self.deadline(now, request, times).as_nanos(),
            config::Discipline::Lstf => {
                let deadline = self.deadline(now, request, times).as_nanos();
                deadline.saturating_sub(nanos(remaining()))
            }
            config::Discipline::Slack => {
                now.as_nanos().saturating_add_signed(slack(request, times))
            }
            config::Discipline::Sjf => packed(
                progress
                    .total_work
                    .unwrap_or_else(|| progress.work + mean()),
                now,
            ),
            config::Discipline::Srtf => packed(remaining(), now),
            config::Discipline::Lasf => packed(progress.work, now),
        }
    }

    /// Whether [`Attributes::progress`] matters.
    #[must_use]
    pub fn needs_progress(discipline: &config::Discipline) -> bool {
        match discipline {
            config::Discipline::Fifo | config::Discipline::Edf | config::Discipline::Slack => false,
            config::Discipline::Lstf
            | config::Discipline::Sjf
            | config::Discipline::Srtf
            | config::Discipline::Lasf => true,
        }
    }

    /// What `span` of arrival time is in ranks.
    #[must_use]
    pub fn tolerance(&self, span: Duration) -> u64 {
        match self.discipline {
            config::Discipline::Fifo
            | config::Discipline::Edf
            | config::Discipline::Lstf
            | config::Discipline::Slack => nanos(span),
            config::Discipline::Sjf | config::Discipline::Srtf | config::Discipline::Lasf => {
                nanos(span) >> UNIT
            }
        }
    }

    fn deadline(&self, now: Instant, request: &Attributes, times: &ServiceTimes) -> Instant {
        let objective = || {
            times
                .objectives(request.kind)
                .last()
                .map(|o| o.response_time)
        };
        let within = request.own_deadline.or_else(objective);
        now + within.unwrap_or(self.timeout)
    }
}

/// The least that any objective leaves for waiting, ns; negative where one can't be met at all. A type
/// that is not known yet is taken for one that needs no time.
fn slack(request: &Attributes, times: &ServiceTimes) -> i64 {
    let estimate = times.estimate(request.kind);
    let signed = |span: Duration| i64::try_from(nanos(span)).unwrap_or(i64::MAX);
    let left = estimate
        .objectives
        .iter()
        .zip(estimate.quantiles)
        .map(|(objective, quantile)| signed(objective.response_time) - signed(*quantile))
        .min();
    let unknown = || {
        let objectives = times.objectives(request.kind).iter();
        objectives.map(|o| signed(o.response_time)).min()
    };
    left.or_else(unknown).unwrap_or(0)
}

fn packed(measure: Duration, arrival: Instant) -> u64 {
    let units = (nanos(measure) >> UNIT).min((1 << (64 - ARRIVAL_BITS)) - 2);
    let arrival = (arrival.as_nanos() >> UNIT) & ((1 << ARRIVAL_BITS) - 1);
    units << ARRIVAL_BITS | arrival
}
