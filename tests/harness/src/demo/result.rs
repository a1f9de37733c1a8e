//! What a demo run found: the numbers behind the terminal's tables, the HTML report and `--json`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::timeline::{Bin, Totals};
use crate::load::{Discarded, Lateness};
use crate::mix::{QueryType, capacity_rps, ideal_acceptance};

/// Everything that a run found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DemoResult {
    /// What was run.
    pub setup: Setup,
    /// The same load through Envoy alone.
    pub without: Phase,
    /// And through Envoy with Headgate, including the live edits.
    pub with: Phase,
    /// The live edits, in order.
    pub edits: Vec<Edit>,
    /// What the demo claims, and whether it was seen.
    pub claims: Vec<Claim>,
}

impl DemoResult {
    /// Whether every claim was seen.
    pub fn holds(&self) -> bool {
        self.claims.iter().all(|claim| claim.seen)
    }
}

/// What was run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// Envoy's version, as it says itself.
    pub envoy: String,
    /// Envoy's worker threads.
    pub envoy_workers: usize,
    /// Requests the backend serves at once (P).
    pub parallelism: usize,
    /// Requests per second that the backend can complete of the mix.
    pub capacity_rps: f64,
    /// Requests per second of a work-conserving oracle in overload, which refuses the costliest first, with a backend whose
    /// services end as late as they did with Headgate.
    pub ideal_rps: f64,
    /// Offered load before the overload, as a multiple of capacity.
    pub calm_load: f64,
    /// Offered load in overload, as a multiple of capacity.
    pub overload: f64,
    /// When the overload begins, s since the start of each run.
    pub overload_at_s: f64,
    /// Span in which the totals are counted, s since the start of each run.
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

/// Requests per second that a work-conserving oracle answers of `offered_rps`, from a backend with `workers` slots whose
/// every service ends `late` after its time.
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

/// Requests per second that a work-conserving oracle answers at `load` times the capacity.
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
    /// Per type of the mix, in its order.
    pub types: Vec<TypeResult>,
    /// 2xx per second within the p90 objective, in the counted span.
    pub goodput_rps: f64,
    /// Most requests that were in the backend at once, queued there or served.
    pub max_in_flight: usize,
    /// Slots that the filter had found at the end of the counted span; `None` without the filter.
    pub slots_found: Option<u64>,
    /// Share of the backend's slots in use in the counted span, ratio 0..=1.
    pub utilization: f64,
    /// How late the harness was: the error of the latencies. Of the generator, the worst of the spans that are judged.
    pub lateness: Lateness,
    /// Mean of how late services ended after their time, ms: what the backend lost of its capacity.
    pub backend_late_mean_ms: f64,
    /// Runs of this phase that don't count, because the harness was too late.
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

/// What the filter says of one percentile.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct FilterPercentile {
    /// What it estimated for requests it decided on, ms.
    pub estimated_ms: f64,
    /// What it measured for those it accepted, ms.
    pub measured_ms: f64,
}

/// One live edit of the policy file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Edit {
    /// What was changed, in words.
    pub what: String,
    /// When the file was written, s since the start of the run.
    pub at_s: f64,
    /// From the write to Envoy's acknowledgement as `headgate` reports it, ms.
    pub acknowledged_ms: f64,
    /// From the write to the first answers that show the new policy, ms.
    pub in_force_ms: Option<f64>,
}

/// Something the demo claims.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Claim {
    /// The claim, as a sentence.
    pub text: String,
    /// Whether it was seen.
    pub seen: bool,
    /// The values that say so.
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
        // With 2 ms more for each request, the slots are enough for the two cheapest types and part of the third.
        let budget = 20.0 - offered * (0.4 * 6.64e-3 + 0.2 * 12.12e-3);
        let expected = offered * 0.6 + budget / 50.52e-3;
        assert!((of(2) - expected).abs() < 1e-6, "{} and {expected}", of(2));
    }
}
