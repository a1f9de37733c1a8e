//! Delays and backlogs from an access log, with backlogs in the unit that backlog control uses.
//!
//! A request waits from its start until the backend begins to work on the request, and is part of
//! the backlog meanwhile. An access log has each request's start, its time until the answer, and
//! the backend's part of that time. So an access log suffices for the rows of Chronos §4.

use std::time::Duration;

use anyhow::bail;
use headgate_simulator::workload::recorded::read_requests;

/// The largest number of rows, which is eleven days with a row each second.
const MOST: u64 = 1_000_000;

/// A sampling period.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Period {
    /// The end of the period, s after the first request.
    pub(super) time_s: f64,
    /// The mean time from start to answer of the requests that were answered in the period, s, or
    /// `None` if no request was answered.
    pub(super) delay_s: Option<f64>,
    /// The backlog at the end of the period.
    pub(super) backlog: f64,
}

/// A request that the backend answered. Times are ns since the epoch.
struct Answered {
    start: u64,
    /// The end of the request's wait.
    forwarded: u64,
    answered: u64,
    cost: Option<u32>,
}

/// Returns the periods of an access log.
///
/// # Errors
/// Returns the reason why the log has no valid periods.
pub(super) fn rows(log: &str, period: Duration) -> anyhow::Result<Vec<Period>> {
    let mut requests = Vec::new();
    let notes = read_requests(log.as_bytes(), |request| {
        let (Some(service), Some(duration)) = (request.service_ns, request.duration_ns) else {
            return;
        };
        requests.push(Answered {
            start: request.start_ns,
            forwarded: request.start_ns + duration.saturating_sub(service),
            answered: request.start_ns + duration,
            cost: request.cost,
        });
    })?;
    let first = requests.iter().map(|request| request.start).min();
    let last = requests.iter().map(|request| request.answered).max();
    let (Some(first), Some(last)) = (first, last) else {
        let none = "no request with START_TIME, RESPONSE_DURATION or DURATION, and \
                    x-envoy-upstream-service-time";
        bail!("{}", [vec![none.to_owned()], notes].concat().join("; "));
    };
    let period_ns = (period.as_nanos() as u64).max(1);
    let period_of = |at: u64| (at - first).div_ceil(period_ns) as usize;
    let periods = (last - first).div_ceil(period_ns);
    if periods > MOST {
        bail!("{periods} periods from the first request to the last; at most {MOST}");
    }
    let costs = requests.iter().any(|request| request.cost.is_some());
    let mut sums = vec![(0.0, 0_u64); periods as usize + 1];
    let mut changes = vec![0.0; periods as usize + 1];
    for request in &requests {
        let (sum, answered) = &mut sums[period_of(request.answered)];
        *sum += (request.answered - request.start) as f64 / 1e9;
        *answered += 1;
        let cost = match costs {
            true => f64::from(request.cost.unwrap_or(1)),
            false => (request.answered - request.forwarded) as f64 / 1e6,
        };
        changes[period_of(request.start)] += cost;
        changes[period_of(request.forwarded)] -= cost;
    }
    let mut backlog = 0.0;
    let rows = sums.into_iter().zip(changes).enumerate();
    let rows = rows.map(|(n, ((sum, answered), change))| {
        backlog += change;
        Period {
            time_s: n as f64 * period.as_secs_f64(),
            delay_s: (answered > 0).then(|| sum / answered as f64),
            // Rounding can leave a sum slightly below 0 when the backlog is empty.
            backlog: f64::max(backlog, 0.0),
        }
    });
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the log line of a request that started `start` ms after the full minute.
    fn line(start: u64, duration: u64, service: &str, cost: &str) -> String {
        let (s, ms) = (start / 1_000, start % 1_000);
        format!(r#"{{"start_time":"2026-01-01T00:00:{s:02}.{ms:03}Z","duration_ms":{duration},"#)
            + &format!(
                r#""x-envoy-upstream-service-time":"{service}","upstream_host":"a:1"{cost}}}"#
            )
            + "\n"
    }

    #[test]
    fn a_request_is_backlog_while_it_waits_and_delay_when_it_is_answered() {
        let cost = r#","x-headgate-cost":"7""#;
        let log =
            line(0, 100, "100", "") + &line(500, 2_300, "300", cost) + &line(700, 900, "100", "");
        let rows = rows(&log, Duration::from_secs(1)).unwrap();
        let found: Vec<(f64, Option<f64>, f64)> = rows
            .iter()
            .map(|row| {
                (
                    row.time_s,
                    row.delay_s.map(|s| (s * 1e4).round()),
                    row.backlog,
                )
            })
            .collect();
        // The second request waits from 0.5 to 2.5 s. The third request, whose cost is 1, waits
        // from 0.7 to 1.5 s.
        assert_eq!(
            found,
            [
                (0.0, None, 0.0),
                (1.0, Some(1_005.0), 8.0),
                (2.0, Some(9_005.0), 7.0),
                (3.0, Some(23_005.0), 0.0),
            ]
        );
    }

    #[test]
    fn without_costs_the_unit_is_a_millisecond_of_service() {
        let log = line(0, 0, "0", "") + &line(500, 2_300, "300", "");
        let rows = rows(&log, Duration::from_secs(1)).unwrap();
        assert!((rows[1].backlog - 300.5).abs() < 1e-6, "{rows:?}");
        assert_eq!(rows[3].backlog, 0.0);
    }

    #[test]
    fn a_log_without_both_times_is_no_trace() {
        let refused = line(0, 5, "-", "").replace("\"a:1\"", "null");
        let error = rows(&refused, Duration::from_secs(1)).unwrap_err();
        assert!(error.to_string().starts_with("no request with START_TIME"));
    }

    /// The sum of such a start and the duration exceeds a u64.
    #[test]
    fn a_start_in_2554_is_refused() {
        let late = line(33_500, 2_300, "300", "").replace("2026-01-01T00:00", "2554-07-21T23:34");
        let error = rows(&late, Duration::from_secs(1)).unwrap_err();
        let right = "; 1 line was skipped: START_TIME before 1970 or after 2539 (line 1)";
        assert!(error.to_string().ends_with(right), "{error}");
    }
}
