//! The results of a load.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::quantiles::Quantiles;

/// The results of a whole load. Totals leave out the warm-up, and series include it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Measured time, s: the time of arrivals without the warm-up.
    pub seconds: f64,
    /// Width of a point of the series, s.
    pub bin_seconds: f64,
    /// Delay of requests after they fell due, ms, which is the generator's own error.
    pub lateness_ms: Quantiles,
    /// The largest number of requests that awaited an answer at once.
    pub max_outstanding: usize,
    /// Connections opened.
    pub connections: u64,
    /// The results of all types together.
    pub total: TypeReport,
    /// The results of every type, in the order of the specification.
    pub types: Vec<TypeReport>,
}

impl LoadReport {
    /// Returns the report of one type.
    pub fn of(&self, name: &str) -> Option<&TypeReport> {
        self.types.iter().find(|t| t.name == name)
    }
}

/// The outcomes of one type's requests.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TypeReport {
    /// The name of the type. It is `all` for the total.
    pub name: String,
    /// Arrivals.
    pub offered: u64,
    /// Number of 2xx answers.
    pub ok: u64,
    /// Refusals: answers with `x-headgate-refused`, and all others with status 503 or 429.
    pub refused: u64,
    /// Refusals by the reason in `x-headgate-refused`, else `overloaded` (`x-envoy-overloaded`),
    /// else `status_503` or `status_429`.
    pub refused_by: BTreeMap<String, u64>,
    /// Answers by status.
    pub status: BTreeMap<u16, u64>,
    /// Requests without an answer because connecting, sending or receiving failed.
    pub transport_errors: u64,
    /// Requests whose client left (`abort_after`).
    pub aborted: u64,
    /// Arrivals not sent because `max_outstanding` requests were outstanding.
    pub not_sent: u64,
    /// Requests still without an answer at the end, or at the time of a snapshot.
    pub unanswered: u64,
    /// Time from the moment when a request fell due to the last byte, of 2xx answers, ms.
    pub latency_ms: Quantiles,
    /// Time from the moment when a request fell due to the last byte, of refusals, ms.
    pub refusal_latency_ms: Quantiles,
    /// Objective for the median, ms.
    pub objective_p50_ms: Option<f64>,
    /// Objective for the 90th percentile, ms.
    pub objective_p90_ms: Option<f64>,
    /// 2xx answers within the p90 objective per second. Without an objective, all 2xx answers
    /// count.
    pub goodput_rps: f64,
    /// Points over time, by the time at which requests were due.
    pub series: Vec<Bin>,
}

impl TypeReport {
    /// Returns the ratio of arrivals that were answered with 2xx, 0..=1.
    pub fn acceptance(&self) -> f64 {
        ratio(self.ok, self.offered)
    }

    /// Returns the ratio of arrivals that were refused, 0..=1.
    pub fn refusal(&self) -> f64 {
        ratio(self.refused, self.offered)
    }

    /// Returns the number of answers with this status.
    pub fn status(&self, code: u16) -> u64 {
        self.status.get(&code).copied().unwrap_or(0)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// One point of a series.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Bin {
    /// The start of the bin after the start of the load, s.
    pub at_s: f64,
    /// Arrivals.
    pub offered: u64,
    /// Arrivals that were answered with 2xx.
    pub ok: u64,
    /// Arrivals that were refused.
    pub refused: u64,
    /// Arrivals with any other outcome: another status, a transport error, a client that has left,
    /// or a request that was not sent.
    pub failed: u64,
    /// Median latency of 2xx answers, ms, or 0 without any.
    pub p50_ms: f64,
    /// 90th percentile of the latency of 2xx answers, ms, or 0 without any.
    pub p90_ms: f64,
}
