//! The results of a demo run: the numbers of the terminal's tables, of the HTML report, and of
//! `--json`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::timeline::{Bin, Totals};
use super::value_cut::ValueCut;
use crate::load::{Discarded, Lateness};
use crate::mix::{QueryType, capacity_rps, ideal_acceptance};

/// All results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DemoResult {
    /// The setup of the run.
    pub setup: Setup,
    /// The results of the load through Envoy alone.
    pub without: Phase,
    /// The results of the same load through Envoy with Headgate, including the live edits.
    pub with: Phase,
    /// The live edits, in order.
    pub edits: Vec<Edit>,
    /// The demo's claims, and whether they were observed.
    pub claims: Vec<Claim>,
}

impl DemoResult {
    /// Whether every claim was observed.
    pub fn holds(&self) -> bool {
        self.claims.iter().all(|claim| claim.seen)
    }
}

/// The setup of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// Envoy's version, as Envoy reports it.
    pub envoy: String,
    /// Envoy's worker threads.
    pub envoy_workers: usize,
    /// Requests that the backend serves at once (P).
    pub parallelism: usize,
    /// Requests per second of the mix that the backend can complete.
    pub capacity_rps: f64,
    /// Requests per second that a work-conserving oracle answers in overload, if it refuses the
    /// costliest requests first. The services of its backend end as late as they did with Headgate.
    pub ideal_rps: f64,
    /// Offered load before the overload, as a multiple of capacity.
    pub calm_load: f64,
    /// Offered load in overload, as a multiple of capacity.
    pub overload: f64,
    /// Start of the overload, s since the start of the run.
    pub overload_at_s: f64,
    /// Span in which the totals are counted, s since the start of the run.
    pub counted_s: (f64, f64),
    /// The mix.
    pub types: Vec<TypeSetup>,
}

/// One type of the mix.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TypeSetup {
    /// Name.
    pub name: String,
    /// Share of arrivals, ratio 0..=1.
    pub share: f64,
    /// Mean service time, ms.
    pub mean_ms: f64,
    /// Objective for the median response time, ms.
    pub slo_p50_ms: f64,
    /// Objective for the 90th percentile, ms.
    pub slo_p90_ms: f64,
}

impl From<&QueryType> for TypeSetup {
    fn from(query: &QueryType) -> Self {
        Self {
            name: query.name.to_owned(),
            share: query.share,
            mean_ms: query.mean.as_secs_f64() * 1e3,
            slo_p50_ms: query.p50.as_secs_f64() * 1e3,
            slo_p90_ms: query.p90.as_secs_f64() * 1e3,
        }
    }
}

/// Returns the requests per second of `offered_rps` that a work-conserving oracle answers, with a
/// backend of `workers` slots in which each service ends `late` after its time.
pub fn attainable_rps(mix: &[QueryType], workers: usize, offered_rps: f64, late: Duration) -> f64 {
    let slowed: Vec<QueryType> = mix
        .iter()
        .map(|query| QueryType {
            mean: query.mean + late,
            ..query.clone()
        })
        .collect();
    let capacity_rps = capacity_rps(&slowed, workers);
    ideal_rps(&slowed, capacity_rps, offered_rps / capacity_rps)
}

/// Returns the requests per second that a work-conserving oracle answers at `load` times the
/// capacity.
pub fn ideal_rps(mix: &[QueryType], capacity_rps: f64, load: f64) -> f64 {
    let accepted = ideal_acceptance(mix, load);
    mix.iter()
        .zip(accepted)
        .map(|(query, share)| query.share * share)
        .sum::<f64>()
        * load
        * capacity_rps
}

/// One run of the load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Phase {
    /// Results of the types of the mix, in the mix's order.
    pub types: Vec<TypeResult>,
    /// 2xx answers per second within the p90 objective, in the counted span.
    pub goodput_rps: f64,
    /// The largest number of requests in the backend at once, queued or in service, before the
    /// counted span.
    pub max_in_flight_at_first: usize,
    /// The largest number of requests in the backend at once, queued or in service, in the counted
    /// span.
    pub max_in_flight: usize,
    /// Slots that the filter had found at the end of the counted span. `None` without the filter.
    pub slots_found: Option<u64>,
    /// The value cut at the end of the counted span. `None` without the filter.
    pub value_cut: Option<ValueCut>,
    /// Share of the backend's slots in use in the counted span, ratio 0..=1.
    pub utilization: f64,
    /// Lateness of the harness, which is the error of the latencies. The generator's lateness is
    /// that of its worst judged span.
    pub lateness: Lateness,
    /// Mean delay of the ends of services after their time, ms. The backend loses this capacity.
    pub backend_late_mean_ms: f64,
    /// Discarded runs of the phase, in which the harness was too late.
    pub discarded: Vec<Discarded>,
}

/// One type in one run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TypeResult {
    /// Counts and percentiles in the counted span.
    pub totals: Totals,
    /// Curves over the whole run.
    pub curve: Vec<Bin>,
    /// The filter's own percentiles at the end of the counted span, by name (`p50`, `p90`).
    pub filter: BTreeMap<String, FilterPercentile>,
}

/// The filter's view of one percentile.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct FilterPercentile {
    /// The filter's estimate for requests that it decided on, ms.
    pub estimated_ms: f64,
    /// The filter's measurement of accepted requests, ms.
    pub measured_ms: f64,
}

/// One live edit of the policy file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Edit {
    /// The change, in words.
    pub what: String,
    /// The time at which the file was written, s since the start of the run.
    pub at_s: f64,
    /// Time from the write to Envoy's acknowledgement in the status of `headgate`, ms.
    pub acknowledged_ms: f64,
    /// Time from the write to the first answers that show the new policy, ms.
    pub in_force_ms: Option<f64>,
}

/// A claim of the demo.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Claim {
    /// The claim, as a sentence.
    pub text: String,
    /// Whether it was observed.
    pub seen: bool,
    /// The values on which the verdict is based.
    pub evidence: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

    #[test]
    fn a_late_backend_can_attain_less() {
        let mix = mix::bouncer(4.0);
        let offered = 1.5 * capacity_rps(&mix, 20);
        let of = |late_ms: u64| attainable_rps(&mix, 20, offered, Duration::from_millis(late_ms));
        let ideal = ideal_rps(&mix, capacity_rps(&mix, 20), 1.5);
        assert!((of(0) - ideal).abs() < 1e-6, "{} and {ideal}", of(0));
        // With 2 ms more for each request, the slots suffice for the two cheapest types and a part
        // of the third.
        let budget = 20.0 - offered * (0.4 * 6.64e-3 + 0.2 * 12.12e-3);
        let expected = offered * 0.6 + budget / 50.52e-3;
        assert!((of(2) - expected).abs() < 1e-6, "{} and {expected}", of(2));
    }
}
