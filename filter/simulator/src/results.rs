//! The results of a run.

use std::borrow::Borrow;

use hdrhistogram::Histogram;

/// The name of the row over all types.
pub const ALL: &str = "ALL";

/// The longest response time that the histograms distinguish, µs: an hour. Longer times count as an
/// hour.
const MAX_RESPONSE_US: u64 = 3_600_000_000;

/// The results of one type in one run.
#[derive(Debug, Clone)]
pub struct TypeOutcome {
    /// Requests that arrived after the warm-up.
    pub offered: u64,
    /// Requests refused, on arrival or after a wait that was too long.
    pub rejected: u64,
    /// Response times of the served requests, µs.
    response_times: Histogram<u32>,
}

impl TypeOutcome {
    pub(crate) fn new() -> Result<Self, hdrhistogram::CreationError> {
        Ok(Self {
            offered: 0,
            rejected: 0,
            response_times: Histogram::new_with_bounds(1, MAX_RESPONSE_US, 3)?,
        })
    }

    pub(crate) fn served(&mut self, response_ns: u64) {
        self.response_times.saturating_record(response_ns / 1_000);
    }

    /// Returns the response time at quantile `q`, ms; `None` if no request was served.
    pub fn response_time_ms(&self, q: f64) -> Option<f64> {
        let served = !self.response_times.is_empty();
        served.then(|| self.response_times.value_at_quantile(q) as f64 / 1e3)
    }

    /// Returns the number of requests served within `limit_us`, µs. For `None`, returns the number
    /// of all served requests.
    pub fn within(&self, limit_us: Option<u64>) -> u64 {
        match limit_us {
            Some(limit) => self.response_times.count_between(0, limit),
            None => self.response_times.len(),
        }
    }

    /// Returns the percentage of offered requests that were refused.
    pub fn rejected_pct(&self) -> f64 {
        match self.offered {
            0 => 0.0,
            offered => 100.0 * self.rejected as f64 / offered as f64,
        }
    }
}

/// The results of one run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The results by type of the workload.
    pub types: Vec<TypeOutcome>,
    /// The busy ratio of the backend's slots after the warm-up.
    pub utilization: f64,
    /// The measured time, s.
    pub seconds: f64,
    /// The stage's slots at the end of each second, including the warm-up.
    pub parallelism: Vec<u32>,
}

impl Outcome {
    /// Returns the rate of arrivals after the warm-up, requests per second.
    pub fn per_second(&self) -> f64 {
        let offered: u64 = self.types.iter().map(|kind| kind.offered).sum();
        offered as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Returns the results of all types together; `None` if there are no types.
    pub fn all(&self) -> Option<TypeOutcome> {
        let mut types = self.types.iter();
        let mut all = types.next()?.clone();
        for kind in types {
            all.offered += kind.offered;
            all.rejected += kind.rejected;
            // All histograms have the same bounds, so adding a histogram can't fail.
            let _ = all.response_times.add(&kind.response_times);
        }
        Some(all)
    }
}

/// Returns the mean; `None` if there are no values.
pub fn mean(values: impl IntoIterator<Item: Borrow<f64>>) -> Option<f64> {
    let values = values.into_iter();
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, n), v| {
        (sum + Borrow::<f64>::borrow(&v), n + 1)
    });
    (count > 0).then(|| sum / f64::from(count))
}

/// Returns the smallest value that at least the ratio `q` of the values doesn't exceed; `None`
/// without values.
pub(crate) fn nearest_rank(values: &mut [u32], q: f64) -> Option<u32> {
    let rank = rank(values.len(), q)?;
    Some(*values.select_nth_unstable(rank).1)
}

/// Returns the index of quantile `q` among `count` sorted values.
pub(crate) fn rank(count: usize, q: f64) -> Option<usize> {
    let rank = ((count as f64 * q).ceil() as usize).max(1) - 1;
    Some(rank.min(count.checked_sub(1)?))
}
