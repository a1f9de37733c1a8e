//! The workload of the Bouncer paper's evaluation (§5.3): four query types with lognormal service
//! times. The objectives are those of the paper, equal for all types, or suit each type.

use std::time::Duration;

/// One query type of a mix.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryType {
    /// Name of the type in policies and reports.
    pub name: &'static str,
    /// Path prefix by which both the policy and the backend recognize the type.
    pub path: &'static str,
    /// Share of arrivals, ratio 0..=1.
    pub share: f64,
    /// Mean service time.
    pub mean: Duration,
    /// Median service time.
    pub median: Duration,
    /// Objective for the median response time.
    pub p50: Duration,
    /// Objective for the 90th percentile of response times.
    pub p90: Duration,
}

/// The types as `(name, path, share, mean ms, median ms)`. The paper's Table 1 doesn't have the
/// medians. These medians reproduce the basic rows of its Table 3.
const BOUNCER: [(&str, &str, f64, f64, f64); 4] = [
    ("fast", "/q/fast", 0.4, 1.16, 0.38),
    ("mediumfast", "/q/mediumfast", 0.2, 2.53, 1.14),
    ("mediumslow", "/q/mediumslow", 0.3, 12.13, 7.40),
    ("slow", "/q/slow", 0.1, 20.05, 12.51),
];

/// The objective of the paper's evaluation for the median response time, ms.
const BOUNCER_P50_MS: f64 = 18.0;
/// The objective of the paper's evaluation for the 90th percentile of response times, ms.
const BOUNCER_P90_MS: f64 = 50.0;

/// Returns the paper's mix with all service times and objectives multiplied by `scale`, so that the
/// mix suits a small machine. The ratios between the times, which decide the outcome, stay the
/// same.
pub fn bouncer(scale: f64) -> Vec<QueryType> {
    let scaled = |ms| scaled(ms, scale);
    BOUNCER
        .iter()
        .map(|&(name, path, share, mean, median)| QueryType {
            name,
            path,
            share,
            mean: scaled(mean),
            median: scaled(median),
            p50: scaled(BOUNCER_P50_MS),
            p90: scaled(BOUNCER_P90_MS),
        })
        .collect()
}

fn scaled(ms: f64, scale: f64) -> Duration {
    Duration::from_secs_f64(ms * scale / 1_000.0)
}

/// Objectives at p50 and p90 that suit a cheap query, ms.
const NATURAL_CHEAP_MS: (f64, f64) = (12.5, 37.5);
/// Objectives at p50 and p90 that suit a costly query, ms.
const NATURAL_COSTLY_MS: (f64, f64) = (50.0, 125.0);
/// The mean service time from which a query counts as costly, ms.
const COSTLY_MS: f64 = 10.0;

/// Returns [`bouncer`] with objectives that suit each type.
pub fn natural(scale: f64) -> Vec<QueryType> {
    let scaled = |ms| scaled(ms, scale);
    let mut mix = bouncer(scale);
    for query in &mut mix {
        let costly = query.mean >= scaled(COSTLY_MS);
        let (p50, p90) = if costly {
            NATURAL_COSTLY_MS
        } else {
            NATURAL_CHEAP_MS
        };
        (query.p50, query.p90) = (scaled(p50), scaled(p90));
    }
    mix
}

/// Returns the requests per second of this mix that `workers` parallel servers can complete.
pub fn capacity_rps(mix: &[QueryType], workers: usize) -> f64 {
    let total: f64 = mix.iter().map(|t| t.share).sum();
    let mean_s: f64 = mix.iter().map(|t| t.share * t.mean.as_secs_f64()).sum();
    workers as f64 * total / mean_s
}

/// Returns the acceptance ratio of each type that a work-conserving oracle reaches at `load` times
/// the capacity, if it refuses the costliest types first. Their weighted sum times `load` is the
/// largest number of requests per capacity that can be answered.
pub fn ideal_acceptance(mix: &[QueryType], load: f64) -> Vec<f64> {
    let total_work: f64 = mix.iter().map(|t| t.share * t.mean.as_secs_f64()).sum();
    let mut budget = total_work / load;
    let mut order: Vec<usize> = (0..mix.len()).collect();
    order.sort_by_key(|&i| mix[i].mean);
    let mut accepted = vec![0.0; mix.len()];
    for i in order {
        let work = mix[i].share * mix[i].mean.as_secs_f64();
        accepted[i] = if work > 0.0 {
            (budget / work).clamp(0.0, 1.0)
        } else {
            1.0
        };
        budget -= work * accepted[i];
    }
    accepted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_workers_over_the_mean() {
        // The mean is 0.4*1.16 + 0.2*2.53 + 0.3*12.13 + 0.1*20.05 = 6.614 ms.
        assert!((capacity_rps(&bouncer(1.0), 100) - 100.0 / 0.006_614).abs() < 1.0);
        assert!((capacity_rps(&bouncer(4.0), 20) - 755.97).abs() < 0.1);
    }

    #[test]
    fn ideal_answers_more_than_capacity_by_refusing_the_costliest() {
        let mix = bouncer(1.0);
        for (load, expected) in [(1.2, 1.13), (1.5, 1.32), (2.0, 1.59)] {
            let accepted = ideal_acceptance(&mix, load);
            let answered: f64 = mix
                .iter()
                .zip(&accepted)
                .map(|(t, a)| t.share * a)
                .sum::<f64>()
                * load;
            assert!((answered - expected).abs() < 0.01, "{load}: {answered}");
            assert_eq!(accepted[0], 1.0);
        }
        assert_eq!(ideal_acceptance(&mix, 0.9), vec![1.0; 4]);
    }
}
