//! The inputs of Algorithm 1 (Wisp §5): arrival rates, calls per request, load per request and
//! completion times. Each input is an exponentially weighted moving average over control intervals.
//!
//! All inputs are quotients, such as requests per second, slot-seconds per request, and calls per
//! request. An average over the quotients of single intervals would be wrong, because intervals may
//! have few requests or none. So the numerator and the denominator are averaged, and then divided:
//!
//! ```text
//! S ← S · keep + s        N ← N · keep + n        keep = e^(−Δt/τ)        estimate = S / N
//! ```
//!
//! This estimate is unbiased from the first interval on, and correct for intervals of any length
//! Δt.
//!
//! Averages over requests cover a *minimum number* of requests, of any age. Otherwise the calls per
//! request of a rare workflow would vary widely. If a workflow has one request in two seconds, with
//! hundreds of calls in the following intervals, they would vary between none and thousands.
//!
//! The mean time of an interval's requests counts as at most [`MOST`] times the average. Otherwise
//! the end of a stream of a day, alone among ten requests, would raise the cost to hours. The rate
//! would then be a request in minutes, and the average would fall by a tenth with each request. The
//! average follows a lasting change of any size within some intervals, or some requests if these
//! are rare.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::measurements::Measured;

/// τ, the time constant, of arrival rates and utilization, in control intervals.
pub(crate) const DEMAND_INTERVALS: u32 = 5;
/// τ, the time constant, of averages over requests, in control intervals.
pub(crate) const COST_INTERVALS: u32 = 10;
/// The minimum number of requests, of any age, that an average over requests covers.
const LEAST_REQUESTS: f64 = 10.0;
/// The maximum ratio of the mean time in an interval to the average.
const MOST: f64 = 30.0;
/// The average below which the maximum falls no further, s, so that an average of 0 can rise.
const LEAST_TIME: f64 = 1e-3;

/// Whether `x` can be a sum of measurements.
pub(super) fn is_amount(x: f64) -> bool {
    x >= 0.0 && x.is_finite()
}

/// Returns `x`, or 0 if `x` is not a valid amount.
pub(super) fn amount(x: f64) -> f64 {
    if is_amount(x) { x } else { 0.0 }
}

/// Returns e^(−elapsed/τ), the factor for earlier intervals.
pub(crate) fn keep(elapsed: Duration, time_constant: Duration) -> f64 {
    (-elapsed.as_secs_f64() / time_constant.as_secs_f64().max(1e-6)).exp()
}

/// Returns the factor for earlier intervals in an average over requests that covers `requests` now.
/// The factor is 1 up to ten requests. Above ten requests, at least ten remain.
pub(crate) fn keep_requests(keep: f64, requests: f64) -> f64 {
    if requests > LEAST_REQUESTS {
        keep.max(LEAST_REQUESTS / requests)
    } else {
        1.0
    }
}

/// A quotient of two moving averages.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Quotient {
    /// S, the moving sum of numerators.
    pub(crate) sum: f64,
    /// N, the moving sum of denominators.
    pub(crate) count: f64,
}

impl Quotient {
    /// Adds an interval.
    pub(crate) fn add(&mut self, keep: f64, sum: f64, count: f64) {
        self.sum = self.sum * keep + sum;
        self.count = self.count * keep + count;
    }

    /// Adds an interval to an average over requests, `count` of them. Returns the factor by which
    /// the sums of earlier intervals were multiplied.
    fn add_requests(&mut self, keep: f64, sum: f64, count: f64) -> f64 {
        let kept = keep_requests(keep, self.count + count);
        self.add(kept, sum, count);
        kept
    }

    /// Returns S / N, or `None` as long as N is 0 or less than `least`.
    pub(crate) fn value(&self, least: f64) -> Option<f64> {
        (self.count >= least && self.count > 0.0).then(|| self.sum / self.count)
    }
}

/// The estimates of one workflow.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Estimates {
    /// The arrival rate, the quotient of arrivals and seconds.
    pub(crate) offered: Quotient,
    /// The slot-seconds of a completed request. The moving sum of completed requests is also the
    /// denominator for calls.
    pub(crate) service: Quotient,
    /// The units of the second resource that a request uses. Only requests whose use is known
    /// count. Otherwise timeouts would make the requests of an overloaded resource look cheap, and
    /// the rate would rise.
    pub(crate) resource: Quotient,
    /// The seconds from admission to end of an answered request.
    pub(crate) completion: Quotient,
}

/// The factors by which the sums of earlier intervals are multiplied when an interval is added.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Keep {
    /// The factor for arrival rates and utilization.
    pub(crate) demand: f64,
    /// The factor for averages over requests.
    pub(crate) cost: f64,
}

impl Keep {
    /// Returns the factors for an interval that took `elapsed`. `interval` is the configured
    /// length.
    pub(crate) fn new(elapsed: Duration, interval: Duration) -> Self {
        Self {
            demand: keep(elapsed, interval * DEMAND_INTERVALS),
            cost: keep(elapsed, interval * COST_INTERVALS),
        }
    }
}

impl Estimates {
    /// Adds an interval of `seconds`. Returns the factor by which the caller must multiply the
    /// numbers of calls of earlier intervals.
    pub(crate) fn add(&mut self, keep: Keep, seconds: f64, measured: &Measured) -> f64 {
        self.offered
            .add(keep.demand, measured.offered as f64, seconds);
        let used = amount(measured.resource);
        let requests = |average: &mut Quotient, sum: f64, count: u64| {
            average.add_requests(keep.cost, sum, count as f64)
        };
        requests(&mut self.resource, used, measured.reported);
        let times = |average: &mut Quotient, sum: Duration, count: u64| {
            let most = average.value(1.0).map(|mean| mean.max(LEAST_TIME) * MOST);
            let most = most.map_or(f64::INFINITY, |most| most * count as f64);
            requests(average, sum.as_secs_f64().min(most), count)
        };
        times(&mut self.completion, measured.completion, measured.answered);
        times(&mut self.service, measured.service, measured.completed)
    }

    /// Returns λ, the arrival rate, requests/s.
    pub(crate) fn demand(&self) -> f64 {
        self.offered.value(0.0).unwrap_or(0.0)
    }

    /// Returns the mean slot-seconds of a request, or `None` as long as no request has completed.
    pub(crate) fn cost(&self) -> Option<f64> {
        self.service.value(1.0)
    }

    /// Returns the mean units of the second resource that a request uses, or `None` as long as no
    /// request's use is known.
    pub(crate) fn resource_cost(&self) -> Option<f64> {
        self.resource.value(1.0)
    }

    /// Returns the mean time from admission to end, s, or `None` as long as no request has
    /// been answered.
    pub(crate) fn completion(&self) -> Option<f64> {
        self.completion.value(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);

    #[test]
    fn estimates_are_exact_at_once_and_soon_after_a_change() {
        let keep = Keep::new(INTERVAL, INTERVAL);
        let mut estimates = Estimates::default();
        assert_eq!(estimates.demand(), 0.0);
        assert_eq!(estimates.cost(), None);
        let measured = |n: u64, cost: Duration| Measured {
            offered: n,
            completed: n,
            service: cost * n as u32,
            reported: n,
            resource: 2.0 * n as f64,
            answered: n,
            completion: cost * n as u32 * 3,
            ..Measured::default()
        };
        let (quick, slow) = (Duration::from_millis(20), Duration::from_millis(40));
        estimates.add(keep, 0.1, &measured(10, quick));
        assert!((estimates.demand() - 100.0).abs() < 1e-9);
        assert!((estimates.cost().unwrap() - 0.02).abs() < 1e-12);
        assert!((estimates.resource_cost().unwrap() - 2.0).abs() < 1e-12);
        for _ in 0..50 {
            estimates.add(keep, 0.1, &measured(10, quick));
        }
        // The estimate has made 63% of a step after τ, and 95% after 3 τ.
        for _ in 0..DEMAND_INTERVALS {
            estimates.add(keep, 0.1, &measured(20, slow));
        }
        assert!((estimates.demand() - 163.2).abs() < 0.3);
        for _ in 0..25 {
            estimates.add(keep, 0.1, &measured(20, slow));
        }
        assert!((estimates.cost().unwrap() - 0.04).abs() < 0.001);
        assert!((estimates.completion().unwrap() - 0.12).abs() < 0.003);
    }

    #[test]
    fn an_interval_twice_as_long_counts_as_two() {
        let long = Keep::new(INTERVAL * 2, INTERVAL);
        let short = Keep::new(INTERVAL, INTERVAL);
        assert!((long.demand - short.demand * short.demand).abs() < 1e-12);
        assert!((long.cost - short.cost * short.cost).abs() < 1e-12);
    }

    #[test]
    fn a_stream_of_a_day_is_no_measure_of_the_next_requests() {
        let keep = Keep::new(INTERVAL, INTERVAL);
        for n in [1_u32, 100] {
            let measured = |time: Duration| Measured {
                completed: u64::from(n),
                service: time * n,
                answered: u64::from(n),
                completion: time * n,
                ..Measured::default()
            };
            let is_near = |estimates: &Estimates, time: f64, error: f64| {
                let means = [estimates.cost(), estimates.completion()];
                (means.into_iter().flatten()).all(|mean| (mean - time).abs() < error)
            };
            let mut estimates = Estimates::default();
            let usual = measured(Duration::from_millis(20));
            for _ in 0..50 {
                estimates.add(keep, 0.1, &usual);
            }
            let day = Duration::from_secs(86_400);
            let last = Measured {
                service: usual.service + day,
                completion: usual.completion + day,
                ..usual
            };
            estimates.add(keep, 0.1, &last);
            assert!(is_near(&estimates, 0.02, 0.08));
            for _ in 0..100 {
                estimates.add(keep, 0.1, &measured(Duration::from_secs(10)));
            }
            assert!(is_near(&estimates, 10.0, 0.1));
            // Requests that take no time leave room for later changes.
            for time in [Duration::ZERO, Duration::from_secs(10)] {
                for _ in 0..1_000 {
                    estimates.add(keep, 0.1, &measured(time));
                }
            }
            assert!(is_near(&estimates, 10.0, 0.1));
        }
    }

    #[test]
    fn rare_requests_are_remembered() {
        let keep = Keep::new(INTERVAL, INTERVAL);
        let mut estimates = Estimates::default();
        let mut calls = 0.0;
        let mut worst: f64 = 0.0;
        // There is one request in two seconds, with 400 calls in the next second.
        for interval in 0..4_000 {
            let measured = Measured {
                offered: u64::from(interval % 20 == 0),
                completed: u64::from(interval % 20 == 10),
                ..Measured::default()
            };
            calls = calls * estimates.add(keep, 0.1, &measured)
                + if (1..=10).contains(&(interval % 20)) {
                    40.0
                } else {
                    0.0
                };
            if interval > 400 {
                worst = worst.max((calls / estimates.service.count - 400.0).abs());
            }
        }
        assert!(worst < 50.0, "{worst}");
        // Without requests an average stays unchanged.
        estimates.service = Quotient {
            sum: 0.3,
            count: 3.0,
        };
        for _ in 0..100_000 {
            estimates.add(keep, 0.1, &Measured::default());
        }
        assert!((estimates.cost().unwrap() - 0.1).abs() < 1e-12);
        assert!(estimates.demand() < 1e-9);
    }
}
