//! The order by latest start: least slack time first, with objectives instead of deadlines.
//!
//! ```text
//! rank = arrival + min over percentiles p of (objective_p − pt_p)        ns
//! ```
//!
//! Each objective of a type leaves `objective_p − pt_p` for waiting (Bouncer Eq. 3 and 4, solved
//! for the wait), and the request must start before the least of these has passed. In a FIFO a
//! query that takes 12 ms at the median waits behind queries of 0.4 ms that have 17 ms of slack. By
//! latest start it overtakes them. Requests that have waited long still go first, so no type
//! starves.

use std::time::Duration;

use crate::request::Attributes;
use crate::service_times::ServiceTimes;
use crate::time::{Instant, nanos};

/// Returns the latest start of a request that arrives at `now`.
pub(super) fn rank(now: Instant, request: &Attributes, times: &ServiceTimes) -> u64 {
    now.as_nanos().saturating_add_signed(slack(request, times))
}

/// Returns the least wait that any objective leaves, ns. It is negative if an objective can't be
/// met. A type without an estimate is assumed to need no time.
fn slack(request: &Attributes, times: &ServiceTimes) -> i64 {
    let estimate = times.estimate_of(request);
    let signed = |span: Duration| i64::try_from(nanos(span)).unwrap_or(i64::MAX);
    let left = estimate
        .objectives
        .iter()
        .zip(estimate.times())
        .map(|(objective, quantile)| signed(objective.response_time) - signed(quantile))
        .min();
    let unknown = || {
        let objectives = times.objectives(request.kind).iter();
        objectives.map(|o| signed(o.response_time)).min()
    };
    left.or_else(unknown).unwrap_or(0)
}
