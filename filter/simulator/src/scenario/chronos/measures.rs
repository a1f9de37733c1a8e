//! Numbers of a run, and of several runs of one experiment.

use crate::clients::threads::Sample;

/// A mean with half the width of its 90% confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    pub(super) mean: f64,
    /// `None` of a single run.
    pub(super) half: Option<f64>,
}

/// Quantiles 0.95 of Student's t, by degrees of freedom from 1.
const T_95: [f64; 15] = [
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771,
    1.761, 1.753,
];
/// The same for any number of degrees of freedom.
const NORMAL_95: f64 = 1.645;

impl Estimate {
    pub(super) fn of(values: &[f64]) -> Self {
        let n = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        let half = (values.len() > 1).then(|| {
            let t = T_95.get(values.len() - 2).unwrap_or(&NORMAL_95);
            t * (squares / (n - 1.0) / n).sqrt()
        });
        Self { mean, half }
    }

    /// `1.52 ± 0.07`.
    pub(super) fn show(self, decimals: usize) -> String {
        match self.half {
            Some(half) => format!("{:.decimals$} ± {half:.decimals$}", self.mean),
            None => format!("{:.decimals$}", self.mean),
        }
    }
}

/// Mean of s(k) over the periods of a range in which something was served, s.
pub(super) fn mean_delay(samples: &[Sample], periods: std::ops::Range<usize>) -> f64 {
    let delays: Vec<f64> = within(samples, periods)
        .iter()
        .filter_map(Sample::mean_delay)
        .collect();
    delays.iter().sum::<f64>() / delays.len().max(1) as f64
}

/// Percent of the answers in a range of periods that were refusals.
pub(super) fn refused_pct(samples: &[Sample], periods: std::ops::Range<usize>) -> f64 {
    let part = within(samples, periods);
    let refused: f64 = part.iter().map(|s| f64::from(s.refused)).sum();
    let served: f64 = part.iter().map(|s| f64::from(s.served)).sum();
    100.0 * refused / (refused + served).max(1.0)
}

/// The largest s(k) of a range, s, and the period.
pub(super) fn largest(samples: &[Sample], periods: std::ops::Range<usize>) -> (f64, usize) {
    let first = periods.start;
    let delays = within(samples, periods).iter().map(Sample::mean_delay);
    (first..)
        .zip(delays)
        .filter_map(|(at, delay)| Some((delay?, at)))
        .fold(
            (0.0, first),
            |best, next| if next.0 > best.0 { next } else { best },
        )
}

/// The most periods in a row, in a range, with s(k) above `limit`.
pub(super) fn longest_above(
    samples: &[Sample],
    periods: std::ops::Range<usize>,
    limit: f64,
) -> usize {
    let (mut longest, mut current) = (0, 0);
    for sample in within(samples, periods) {
        let above = sample.mean_delay().is_some_and(|delay| delay > limit);
        current = if above { current + 1 } else { 0 };
        longest = longest.max(current);
    }
    longest
}

fn within(samples: &[Sample], periods: std::ops::Range<usize>) -> &[Sample] {
    let end = periods.end.min(samples.len());
    &samples[periods.start.min(end)..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confidence_intervals_are_those_of_student() {
        // Of 1..=10: sd 3.0277, so 1.833 · 3.0277 / √10 = 1.7550.
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        let found = Estimate::of(&values);
        assert_eq!(found.show(2), "5.50 ± 1.75");
        assert_eq!(Estimate::of(&[2.0]).show(1), "2.0");
    }

    #[test]
    fn overshoots_are_found() {
        let sample = |delay: f64| Sample {
            served: 1,
            delay,
            ..Sample::default()
        };
        let samples = [1.0, 3.0, 3.5, 2.6, 1.0, 2.7].map(sample);
        assert_eq!(largest(&samples, 0..6), (3.5, 2));
        assert_eq!(longest_above(&samples, 0..6, 2.5), 3);
        assert_eq!(longest_above(&samples, 4..60, 2.5), 1);
        assert!((mean_delay(&samples, 0..2) - 2.0).abs() < 1e-12);
    }
}
