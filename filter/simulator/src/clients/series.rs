//! Answers to clients by intervals, as in the papers' figures.

use crate::results::nearest_rank;
use crate::source::{Answer, Ending};

/// The answers of one interval.
#[derive(Debug, Clone, Default)]
struct Interval {
    /// The response times of served requests, µs.
    response_times: Vec<u32>,
    refused: u32,
    /// The sum of the requested qualities of served requests.
    quality: f64,
    /// The last admission rate in force, requests/s.
    admission_rate: Option<f64>,
}

/// Answers by the interval in which they arrived.
#[derive(Debug, Clone)]
pub struct Series {
    length: u64,
    intervals: Vec<Interval>,
}

impl Series {
    /// Returns a series of intervals of this length, ns.
    pub fn new(length: u64) -> Self {
        Self {
            length: length.max(1),
            intervals: Vec::new(),
        }
    }

    /// Adds the answer at `at`, ns, to a client whose first attempt was at `begun`, ns.
    pub fn add(&mut self, begun: u64, at: u64, answer: Answer) {
        let interval = (at / self.length) as usize;
        if self.intervals.len() <= interval {
            self.intervals.resize(interval + 1, Interval::default());
        }
        let interval = &mut self.intervals[interval];
        interval.admission_rate = answer.admission_rate.or(interval.admission_rate);
        match answer.ending {
            Ending::Served => {
                interval.quality += answer.quality.unwrap_or(1.0);
                let micros = at.saturating_sub(begun) / 1_000;
                interval
                    .response_times
                    .push(u32::try_from(micros).unwrap_or(u32::MAX));
            }
            Ending::Refused | Ending::Failed => interval.refused += 1,
        }
    }

    fn of(&self, intervals: std::ops::Range<usize>) -> impl Iterator<Item = &Interval> {
        let end = intervals.end.min(self.intervals.len());
        self.intervals[intervals.start.min(end)..end].iter()
    }

    /// Returns the number of requests served in these intervals.
    pub fn served(&self, intervals: std::ops::Range<usize>) -> u64 {
        self.of(intervals)
            .map(|i| i.response_times.len() as u64)
            .sum()
    }

    /// Returns the percentage of refusals and failures among the answers of these intervals; `None`
    /// without answers.
    pub fn refused_pct(&self, intervals: std::ops::Range<usize>) -> Option<f64> {
        let refused: u64 = self
            .of(intervals.clone())
            .map(|i| u64::from(i.refused))
            .sum();
        let all = refused + self.served(intervals);
        (all > 0).then(|| 100.0 * refused as f64 / all as f64)
    }

    /// Returns the response time at quantile `q` over these intervals, s; `None` if no request was
    /// served.
    pub fn response_time(&self, intervals: std::ops::Range<usize>, q: f64) -> Option<f64> {
        let mut all: Vec<u32> = self
            .of(intervals)
            .flat_map(|i| i.response_times.iter().copied())
            .collect();
        Some(f64::from(nearest_rank(&mut all, q)?) / 1e6)
    }

    /// Returns the mean requested quality in these intervals, ratio; `None` if no request was
    /// served.
    pub fn quality(&self, intervals: std::ops::Range<usize>) -> Option<f64> {
        let served = self.served(intervals.clone());
        let sum: f64 = self.of(intervals).map(|i| i.quality).sum();
        (served > 0).then(|| sum / served as f64)
    }

    /// Returns the last admission rate in force in these intervals, requests/s.
    pub fn admission_rate(&self, intervals: std::ops::Range<usize>) -> Option<f64> {
        self.of(intervals).filter_map(|i| i.admission_rate).last()
    }

    /// Returns a point for each of the first `intervals` intervals: its start, s, and its `value`.
    pub fn curve<T>(
        &self,
        intervals: usize,
        value: impl Fn(&Self, std::ops::Range<usize>) -> T,
    ) -> Vec<(f64, T)> {
        let seconds = self.length as f64 / 1e9;
        (0..intervals)
            .map(|i| (i as f64 * seconds, value(self, i..i + 1)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_where_they_came() {
        let mut series = Series::new(1_000_000_000);
        let served = |quality: Option<f64>| Answer {
            ending: Ending::Served,
            rejection_rate: 0.0,
            admission_rate: quality.map(|quality| 8.0 * quality),
            quality,
        };
        let refused = Answer {
            ending: Ending::Refused,
            ..served(None)
        };
        for ms in 1..=10_u64 {
            series.add(0, ms * 1_000_000, served(Some(0.5)));
        }
        series.add(0, 2_500_000_000, refused);
        series.add(2_000_000_000, 2_500_000_000, served(None));
        assert_eq!(series.response_time(0..1, 0.9), Some(0.009));
        assert_eq!(series.response_time(0..1, 0.5), Some(0.005));
        assert_eq!(series.response_time(1..2, 0.5), None);
        assert_eq!(series.refused_pct(2..3), Some(50.0));
        assert_eq!(series.refused_pct(1..2), None);
        assert_eq!(series.response_time(0..9, 1.0), Some(0.5));
        assert_eq!(series.served(0..3), 11);
        assert_eq!(series.quality(0..1), Some(0.5));
        assert_eq!(series.quality(2..3), Some(1.0));
        assert_eq!(series.admission_rate(0..3), Some(4.0));
        assert_eq!(series.admission_rate(1..3), None);
    }
}
