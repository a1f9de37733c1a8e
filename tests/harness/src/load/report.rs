//! What a load showed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::quantiles::Quantiles;

/// What a whole load showed. Totals leave the warm-up out; series don't.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Measured time: arrivals' time without the warm-up, s.
    pub seconds: f64,
    /// Width of a point of the series, s.
    pub bin_seconds: f64,
    /// How late requests left after they fell due, ms: the generator's own error.
    pub lateness_ms: Quantiles,
    /// Most requests that awaited an answer at once.
    pub max_outstanding: usize,
    /// Connections opened.
    pub connections: u64,
    /// All types together.
    pub total: TypeReport,
    /// Every type, in the order of the specification.
    pub types: Vec<TypeReport>,
}

impl LoadReport {
    /// The report of one type.
    pub fn of(&self, name: &str) -> Option<&TypeReport> {
        self.types.iter().find(|t| t.name == name)
    }
}

/// What one type's requests met.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TypeReport {
    /// Name of the type; `all` for the total.
    pub name: String,
    /// Arrivals.
    pub offered: u64,
    /// Answers 2xx.
    pub ok: u64,
    /// Answers that refuse: with `x-headgate-refused`, and all others with status 503 or 429.
    pub refused: u64,
    /// Refusals by the reason that `x-headgate-refused` gives, else `overloaded` (`x-envoy-overloaded`), else
    /// `status_503` or `status_429`.
    pub refused_by: BTreeMap<String, u64>,
    /// Answers by status.
    pub status: BTreeMap<u16, u64>,
    /// Requests without an answer because connecting, sending or receiving failed.
    pub transport_errors: u64,
    /// Requests whose client left (`abort_after`).
    pub aborted: u64,
    /// Arrivals not sent because `max_outstanding` were.
    pub not_sent: u64,
    /// Requests still without an answer at the end, or at the time of a snapshot.
    pub unanswered: u64,
    /// From the intended send time to the last byte, of 2xx, ms.
    pub latency_ms: Quantiles,
    /// The same of refusals, ms.
    pub refusal_latency_ms: Quantiles,
    /// Objective for the median, ms.
    pub objective_p50_ms: Option<f64>,
    /// Objective for the 90th percentile, ms.
    pub objective_p90_ms: Option<f64>,
    /// 2xx answers within the p90 objective per second; all 2xx, where there is no objective.
    pub goodput_rps: f64,
    /// Points over time, by intended send time.
    pub series: Vec<Bin>,
}

impl TypeReport {
    /// Share of arrivals answered 2xx, ratio 0..=1.
    pub fn acceptance(&self) -> f64 {
        ratio(self.ok, self.offered)
    }

    /// Share of arrivals refused, ratio 0..=1.
    pub fn refusal(&self) -> f64 {
        ratio(self.refused, self.offered)
    }

    /// How many answers had this status.
    pub fn status(&self, code: u16) -> u64 {
        self.status.get(&code).copied().unwrap_or(0)
    }

    /// Whether measured p50 and p90 are within the objectives; those that don't exist are met.
    pub fn meets_objectives(&self) -> bool {
        let met = |objective: Option<f64>, measured: f64| objective.is_none_or(|o| measured <= o);
        met(self.objective_p50_ms, self.latency_ms.p50)
            && met(self.objective_p90_ms, self.latency_ms.p90)
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
    /// Its begin after the start, s.
    pub at_s: f64,
    /// Arrivals.
    pub offered: u64,
    /// Of these, answered 2xx.
    pub ok: u64,
    /// Of these, refused.
    pub refused: u64,
    /// Of these, met any other end: other status, transport error, left, not sent.
    pub failed: u64,
    /// Median latency of 2xx, ms; 0 without any.
    pub p50_ms: f64,
    /// 90th percentile of the latency of 2xx, ms; 0 without any.
    pub p90_ms: f64,
}
