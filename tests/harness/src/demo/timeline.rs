//! Requests over time: from single answers to the curves and totals of the demo.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::load::{Ended, Sample};
use crate::mix::QueryType;
use crate::quantiles::Durations;

/// Width of a bin of a curve. Half a second is short enough to show that an edit takes effect
/// "within a second", and long enough for a percentile of the rarest type.
pub const BIN: Duration = Duration::from_millis(500);

/// The least number of answers for which a bin shows percentiles. A 90th percentile of fewer
/// answers is not meaningful.
const MIN_ANSWERS: u64 = 10;

/// Outcomes of the requests of one type in a span of time.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Requests that fell due.
    pub offered: u64,
    /// Requests answered with 2xx.
    pub answered: u64,
    /// Requests refused.
    pub refused: u64,
    /// Requests with any other end, or without an end.
    pub lost: u64,
    /// Requests answered within the p90 objective.
    pub good: u64,
    /// Requests answered within the p50 objective.
    pub within_p50: u64,
    /// Median response time of answered requests, ms. `None` without answered requests.
    pub p50_ms: Option<f64>,
    /// 90th percentile of the response time of answered requests, ms.
    pub p90_ms: Option<f64>,
    /// 99th percentile of the response time of answered requests, ms.
    pub p99_ms: Option<f64>,
}

impl Totals {
    /// Whether p50 and p90 are inside their objectives. The percentile of a sample scatters. So a
    /// type is outside only if more of its answers are late than chance explains, by two standard
    /// deviations of the binomial distribution.
    pub fn inside(&self) -> bool {
        let n = self.answered as f64;
        let enough = |within: u64, share: f64| {
            within as f64 >= n * share - 2.0 * (n * share * (1.0 - share)).sqrt()
        };
        self.answered > 0 && enough(self.within_p50, 0.5) && enough(self.good, 0.9)
    }

    /// Returns the ratio of offered requests that were answered, 0..=1.
    pub fn acceptance(&self) -> f64 {
        if self.offered == 0 {
            0.0
        } else {
            self.answered as f64 / self.offered as f64
        }
    }
}

/// One point of the curves of a type.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bin {
    /// Middle of the bin, s since the start of the run.
    pub at_s: f64,
    /// Requests per second that fell due.
    pub offered_rps: f64,
    /// Requests per second that were answered.
    pub answered_rps: f64,
    /// Requests per second that were refused.
    pub refused_rps: f64,
    /// Requests per second that were answered within the p90 objective.
    pub good_rps: f64,
    /// Median response time of answered requests, ms. `None` with too few answers.
    pub p50_ms: Option<f64>,
    /// 90th percentile of the response time of answered requests, ms. `None` with too few answers.
    pub p90_ms: Option<f64>,
}

/// Returns the totals of type `kind` over the requests due in `[from, to)`.
pub fn totals(
    samples: &[Sample],
    kind: usize,
    query: &QueryType,
    from: Duration,
    to: Duration,
) -> Totals {
    tally(
        samples
            .iter()
            .filter(|s| s.kind == kind && s.at >= from && s.at < to),
        query,
    )
    .totals(1)
}

/// Returns the curve of type `kind` up to `end`, in bins of [`BIN`]. An incomplete last bin is left
/// out.
pub fn curve(samples: &[Sample], kind: usize, query: &QueryType, end: Duration) -> Vec<Bin> {
    let bins = (end.as_nanos() / BIN.as_nanos()) as usize;
    let mut tallies = vec![Tally::default(); bins];
    for sample in samples.iter().filter(|s| s.kind == kind) {
        if let Some(tally) = tallies.get_mut((sample.at.as_nanos() / BIN.as_nanos()) as usize) {
            tally.add(sample, query);
        }
    }
    let width = BIN.as_secs_f64();
    let to_bin = |(i, tally): (usize, Tally)| {
        let totals = tally.totals(MIN_ANSWERS);
        Bin {
            at_s: (i as f64 + 0.5) * width,
            offered_rps: totals.offered as f64 / width,
            answered_rps: totals.answered as f64 / width,
            refused_rps: (totals.refused + totals.lost) as f64 / width,
            good_rps: totals.good as f64 / width,
            p50_ms: totals.p50_ms,
            p90_ms: totals.p90_ms,
        }
    };
    tallies.into_iter().enumerate().map(to_bin).collect()
}

#[derive(Debug, Clone, Default)]
struct Tally {
    counts: Totals,
    latency: Durations,
}

fn tally<'a>(samples: impl Iterator<Item = &'a Sample>, query: &QueryType) -> Tally {
    let mut tally = Tally::default();
    for sample in samples {
        tally.add(sample, query);
    }
    tally
}

impl Tally {
    fn add(&mut self, sample: &Sample, query: &QueryType) {
        self.counts.offered += 1;
        match sample.ended {
            Ended::Ok => {
                self.counts.answered += 1;
                self.counts.good += u64::from(sample.latency <= query.p90);
                self.counts.within_p50 += u64::from(sample.latency <= query.p50);
                self.latency.record(sample.latency);
            }
            Ended::Refused => self.counts.refused += 1,
            Ended::Failed | Ended::Unanswered => self.counts.lost += 1,
        }
    }

    fn totals(self, min_answers: u64) -> Totals {
        let quantile =
            |q| (self.latency.count() >= min_answers).then(|| self.latency.quantile_ms(q));
        Totals {
            p50_ms: quantile(0.5),
            p90_ms: quantile(0.9),
            p99_ms: quantile(0.99),
            ..self.counts
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ms: u64, latency_ms: u64, ended: Ended) -> Sample {
        Sample {
            kind: 0,
            at: Duration::from_millis(at_ms),
            late: Duration::ZERO,
            latency: Duration::from_millis(latency_ms),
            ended,
            service: Duration::ZERO,
            attempt: 1,
            stream: None,
        }
    }

    #[test]
    fn totals_count_by_outcome_and_take_percentiles_of_the_answered_only() {
        let query = &crate::mix::bouncer(1.0)[0];
        let mut samples: Vec<_> = (1..=100).map(|ms| sample(100, ms, Ended::Ok)).collect();
        samples.push(sample(100, 9_000, Ended::Refused));
        samples.push(sample(100, 9_000, Ended::Unanswered));
        samples.push(sample(5_000, 1, Ended::Ok));
        let totals = totals(&samples, 0, query, Duration::ZERO, Duration::from_secs(1));
        assert_eq!(
            (totals.offered, totals.answered, totals.refused, totals.lost),
            (102, 100, 1, 1)
        );
        assert_eq!(totals.good, 50, "the p90 objective is 50 ms");
        assert_eq!(totals.within_p50, 18, "the p50 objective is 18 ms");
        assert!(!totals.inside());
        let (p50, p90) = (totals.p50_ms.unwrap(), totals.p90_ms.unwrap());
        assert!(
            (p50 - 50.0).abs() < 0.1 && (p90 - 90.0).abs() < 0.1,
            "{p50} {p90}"
        );
    }

    #[test]
    fn a_type_is_inside_unless_chance_cannot_explain_its_late_answers() {
        let of = |answered, within_p50, good| Totals {
            answered,
            within_p50,
            good,
            ..Totals::default()
        };
        assert!(of(100, 50, 90).inside());
        // One standard deviation of 100 answers is 5 answers at p50 and 3 answers at p90.
        assert!(of(100, 40, 84).inside());
        assert!(!of(100, 39, 90).inside() && !of(100, 50, 83).inside());
        // With more answers, the ratios scatter less.
        assert!(!of(10_000, 4_000, 8_400).inside());
        assert!(!of(0, 0, 0).inside());
    }

    #[test]
    fn a_bin_with_few_answers_shows_no_percentile() {
        let query = &crate::mix::bouncer(1.0)[0];
        let samples: Vec<_> = (0..9).map(|_| sample(600, 1, Ended::Ok)).collect();
        let curve = curve(&samples, 0, query, Duration::from_millis(1_700));
        assert_eq!(curve.len(), 3);
        assert_eq!(curve[1].answered_rps, 18.0);
        assert_eq!(curve[1].p90_ms, None);
        assert_eq!(curve[0].offered_rps, 0.0);
    }
}
