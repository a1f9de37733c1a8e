//! The schedule of arrivals. They are a Poisson process. Each arrival draws its type and, if the
//! type has service times, its service time.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp, LogNormal};

use super::spec::{LoadSpec, ServiceTime};

/// One arrival.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Due {
    /// The time of the arrival, after the start.
    pub at: Duration,
    /// Index of the type.
    pub kind: usize,
    /// The position in the schedule. With retries, it is the position among all requests sent.
    pub seq: u64,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The service time in the request's header.
    pub service: Option<Duration>,
}

/// Returns the arrivals of `spec` in order. The schedule depends only on the specification, so
/// loads with equal seeds are equal.
pub fn schedule(spec: &LoadSpec) -> Vec<Due> {
    let mut rng = SmallRng::seed_from_u64(spec.seed);
    // Service times have a random generator of their own, so that arrivals are the same with and
    // without service times.
    let mut service_rng = SmallRng::seed_from_u64(!spec.seed);
    let services: Vec<Option<LogNormal<f64>>> =
        spec.types.iter().map(|t| lognormal(t.service?)).collect();
    let total: f64 = spec.types.iter().map(|t| t.share).sum();
    let mut arrivals = Vec::new();
    let mut phase_start = Duration::ZERO;
    for phase in &spec.phases {
        // A rate of 0 has no interarrival distribution and no arrivals. The process is memoryless,
        // so each phase may start afresh.
        if let Some(gaps) = (phase.rate > 0.0)
            .then(|| Exp::new(phase.rate).ok())
            .flatten()
        {
            let mut at = 0.0;
            loop {
                at += gaps.sample(&mut rng);
                if at >= phase.duration.as_secs_f64() {
                    break;
                }
                let kind = draw_type(spec, rng.random_range(0.0..total));
                let seq = arrivals.len() as u64;
                let seconds = services[kind].map(|times| times.sample(&mut service_rng));
                arrivals.push(Due {
                    at: phase_start + Duration::from_secs_f64(at),
                    kind,
                    seq,
                    attempt: 1,
                    service: seconds.map(Duration::from_secs_f64),
                });
            }
        }
        phase_start += phase.duration;
    }
    arrivals
}

/// Returns the distribution with median = e^μ and mean = e^(μ + σ² / 2). Returns `None` for invalid
/// values, which [`LoadSpec::check`] refuses.
fn lognormal(times: ServiceTime) -> Option<LogNormal<f64>> {
    let (mean, median) = (times.mean.as_secs_f64(), times.median.as_secs_f64());
    let sigma = (2.0 * (mean / median).ln()).sqrt();
    LogNormal::new(median.ln(), sigma).ok()
}

pub(super) fn draw_type(spec: &LoadSpec, mut point: f64) -> usize {
    for (index, request) in spec.types.iter().enumerate() {
        if point < request.share {
            return index;
        }
        point -= request.share;
    }
    // Rounding may leave a point just past the end.
    spec.types.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Phase;
    use crate::mix;

    fn spec(seed: u64) -> LoadSpec {
        let target = "127.0.0.1:1".parse().unwrap();
        let mut spec =
            LoadSpec::for_mix(target, &mix::bouncer(1.0), 2_000.0, Duration::from_secs(20));
        spec.seed = seed;
        spec
    }

    #[test]
    fn equal_seeds_give_equal_schedules() {
        assert_eq!(schedule(&spec(3)), schedule(&spec(3)));
        assert_ne!(schedule(&spec(3)), schedule(&spec(4)));
    }

    #[test]
    fn rate_and_mix_are_those_asked_for() {
        let due = schedule(&spec(1));
        // 40,000 arrivals are expected, and the standard deviation of a Poisson count is its root,
        // 200.
        assert!(
            (due.len() as f64 - 40_000.0).abs() < 1_000.0,
            "{}",
            due.len()
        );
        for (kind, share) in [0.4, 0.2, 0.3, 0.1].into_iter().enumerate() {
            let count = due.iter().filter(|d| d.kind == kind).count() as f64;
            assert!(
                (count / due.len() as f64 - share).abs() < 0.01,
                "type {kind}: {count}"
            );
        }
        // The standard deviation of Poisson gaps equals their mean.
        let gaps: Vec<f64> = due
            .windows(2)
            .map(|w| (w[1].at - w[0].at).as_secs_f64())
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03);
    }

    #[test]
    fn service_times_are_those_asked_for_and_change_no_arrival() {
        let plain = spec(1);
        let mut carrying = spec(1);
        let (mean, median) = (Duration::from_millis(30), Duration::from_millis(20));
        carrying.types[0].service = Some(crate::load::ServiceTime { mean, median });
        let due = schedule(&carrying);
        let arrivals = |due: &[Due]| due.iter().map(|d| (d.at, d.kind)).collect::<Vec<_>>();
        assert_eq!(arrivals(&due), arrivals(&schedule(&plain)));
        assert!(due.iter().all(|d| d.service.is_some() == (d.kind == 0)));
        let mut times: Vec<Duration> = due.iter().filter_map(|d| d.service).collect();
        let measured = times.iter().sum::<Duration>() / u32::try_from(times.len()).unwrap();
        times.sort_unstable();
        assert!(
            (measured.as_secs_f64() / 0.030 - 1.0).abs() < 0.03,
            "{measured:?}"
        );
        let middle = times[times.len() / 2];
        assert!(
            (middle.as_secs_f64() / 0.020 - 1.0).abs() < 0.03,
            "{middle:?}"
        );
    }

    #[test]
    fn phases_follow_each_other_and_a_rate_of_zero_is_a_pause() {
        let mut spec = spec(1);
        let second = Duration::from_secs(1);
        spec.phases = vec![
            Phase {
                duration: second,
                rate: 1_000.0,
            },
            Phase {
                duration: second,
                rate: 0.0,
            },
            Phase {
                duration: second,
                rate: 3_000.0,
            },
        ];
        let due = schedule(&spec);
        let during = |from: u64, to: u64| {
            due.iter()
                .filter(|d| d.at >= Duration::from_secs(from) && d.at < Duration::from_secs(to))
                .count()
        };
        assert!((850..1_150).contains(&during(0, 1)));
        assert_eq!(during(1, 2), 0);
        assert!((2_750..3_250).contains(&during(2, 3)));
    }
}
