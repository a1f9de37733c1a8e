//! Starvation avoidance that keeps all objectives: the paper's two strategies in Envoy, with a FIFO
//! queue and with a queue in slack order.
//!
//! In a FIFO, the types that avoidance protects wait as long as all others and miss their
//! objectives (Bouncer Figure 9). In slack order, they overtake requests with more slack.

use std::time::Duration;

use anyhow::Result;

use super::lab::Protection;
use super::overload::{self, Row};
use super::table::{Table, percent};
use crate::mix::{self, QueryType};
use crate::policy;

/// The options of a benchmark.
#[derive(Debug, Clone)]
pub struct Options {
    /// Offered load as a multiple of capacity.
    pub load: f64,
    /// Measured time of each run.
    pub measured: Duration,
    /// Duration of the load before the measured time.
    pub warmup: Duration,
    /// Names of the policies to run. An empty list means all.
    pub only: Vec<String>,
    /// Worker threads of Envoy.
    pub workers: u32,
}

/// The number of requests that the backend serves at once.
const P: usize = 20;
/// Multiplies the paper's service times and objectives.
const SCALE: f64 = 4.0;

/// Returns the mix of requests.
pub fn mix() -> Vec<QueryType> {
    mix::bouncer(SCALE)
}

fn protections(mix: &[QueryType]) -> [Protection; 4] {
    let allowance = policy::with_allowance(policy::for_mix(P, mix), 0.3);
    let helping = policy::with_helping(policy::for_mix(P, mix), 1.0);
    let headgate = Protection::headgate;
    [
        headgate(
            "allowance_fifo",
            "Allowance 0.3, FIFO",
            policy::with_discipline(allowance.clone(), "FIFO"),
        ),
        headgate(
            "allowance_slack",
            "Allowance 0.3, slack order",
            policy::with_discipline(allowance, "Slack"),
        ),
        headgate(
            "helping_fifo",
            "Helping α = 1, FIFO",
            policy::with_discipline(helping.clone(), "FIFO"),
        ),
        headgate(
            "helping_slack",
            "Helping α = 1, slack order",
            policy::with_discipline(helping, "Slack"),
        ),
    ]
}

/// Runs the whole benchmark. `progress` gets a line for each run as it starts.
///
/// # Errors
/// If a part of a system doesn't start or run.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> Result<Vec<Row>> {
    let mix = mix();
    let overload = overload::Options {
        load: options.load,
        measured: options.measured,
        warmup: options.warmup,
        only: Vec::new(),
        workers: options.workers,
        parallelism: P,
        scale: SCALE,
    };
    let mut rows = Vec::new();
    for protection in protections(&mix) {
        if options.only.is_empty() || options.only.iter().any(|name| name == protection.name()) {
            progress(&format!("{}× load: {}", options.load, protection.title()));
            rows.push(overload::measure(&protection, &overload, &mix, |_| {})?);
        }
    }
    Ok(rows)
}

/// Returns the rows as a table.
pub fn table(rows: &[Row], mix: &[QueryType], load: f64) -> String {
    let mut headings = vec!["", "rejected", "slots busy"];
    headings.extend(mix.iter().map(|query| query.name));
    let mut table = Table::new(&headings);
    for row in rows {
        let sum = |count: &dyn Fn(&overload::TypeRow) -> u64| -> f64 {
            row.types.iter().map(count).sum::<u64>() as f64
        };
        let rejected = sum(&|kind| kind.totals.refused) / sum(&|kind| kind.totals.offered).max(1.0);
        let mut cells = vec![
            row.title.to_owned(),
            percent(rejected),
            percent(row.utilization),
        ];
        cells.extend(row.types.iter().map(|kind| {
            let ms =
                |quantile: Option<f64>| quantile.map_or("–".to_owned(), |q| format!("{q:.1}"));
            let mark = if kind.totals.inside() { '✓' } else { '✗' };
            let (p50, p90) = (ms(kind.totals.p50_ms), ms(kind.totals.p90_ms));
            format!("{} {p50}/{p90} {mark}", percent(kind.acceptance))
        }));
        table.row(cells);
    }
    let objectives = mix.first().map_or(String::new(), |query| {
        format!(
            "{} and {} ms",
            query.p50.as_secs_f64() * 1e3,
            query.p90.as_secs_f64() * 1e3
        )
    });
    format!(
        "\nLoad {load}× of capacity, objectives {objectives} for all. By type: share answered, \
         p50/p90 in ms, and whether both are inside their objectives as far as chance lets tell \
         (✓ ✗).\n{table}"
    )
}
