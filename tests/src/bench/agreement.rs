//! Compares the simulator with Envoy: the same policy under the same mix, simulated and run.
//!
//! Both run the same compiled stage and get the same requests, which carry their service times. The
//! differences come from what the simulator leaves out: the network, threads, several workers, and
//! the clocks of backend and load generator. The largest of these is turnaround: between two
//! services, a slot is empty while a response and the next request travel. This costs capacity, and
//! the type closest to refusal bears the cost for all types: 1% less capacity may raise its
//! rejections by several points. So a second simulation adds Envoy's turnaround to each service
//! time. Turnaround is the time for which Envoy's slots were empty, beyond that in the first
//! simulation.
//!
//! The random part of a difference is estimated by simulations of other requests with the same
//! distributions over the same time. Equal requests don't remove randomness: a borderline decision
//! with another outcome changes all later ones. In half a minute at 1.2 times the capacity, the
//! rejections of the costliest type scatter by five points, so runs must take minutes to resolve
//! three points.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use headgate_simulator::Outcome;
use serde::Serialize;
use serde_json::json;

use super::lab::Protection;
use super::overload::{self, TypeRow};
use super::table::Table;
use crate::mix::{self, QueryType};
use crate::policy;
use crate::simulated;

/// The largest difference in rejections that counts as agreement, in percentage points.
const POINTS: f64 = 3.0;
/// The largest relative difference of percentiles of the response time that counts as agreement.
const RATIO: f64 = 0.1;
/// The least number of answers whose percentiles are compared.
const MIN_ANSWERS: u64 = 50;

/// The paper's limit (Bouncer §5.2.2), before it is scaled like the service times.
const MAX_QUEUE_WAIT: Duration = Duration::from_millis(15);

/// The options of a comparison.
#[derive(Debug, Clone)]
pub struct Options {
    /// Offered loads as multiples of capacity.
    pub loads: Vec<f64>,
    /// Measured time of each run.
    pub measured: Duration,
    /// Duration of the load before the measured time.
    pub warmup: Duration,
    /// Names of the policies to run. An empty list means all.
    pub only: Vec<String>,
    /// The number of Envoy's worker threads.
    pub workers: u32,
    /// The factor of the paper's service times and objectives. With a larger factor, turnaround
    /// matters less.
    pub scale: f64,
    /// The number of simulations with other requests.
    pub seeds: u64,
}

/// The results of a type under one policy and load.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The policy.
    pub policy: &'static str,
    /// Offered load as a multiple of capacity.
    pub load: f64,
    /// Name of the type.
    pub kind: &'static str,
    /// The number of answers in Envoy.
    pub answered: u64,
    /// Refused requests in percent of offered requests.
    pub rejected_pct: Pair,
    /// Refused requests in percent of offered requests, in the simulation with Envoy's turnaround.
    pub rejected_with_turnaround_pct: f64,
    /// Median response time, ms.
    pub p50_ms: Option<Pair>,
    /// 90th percentile, ms.
    pub p90_ms: Option<Pair>,
    /// Whether all figures of the row agree.
    pub inside: bool,
}

/// A figure from the simulator and from Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pair {
    /// The figure from the simulator.
    pub simulated: f64,
    /// Standard deviation of the simulator's figure over runs with other requests.
    pub scatter: f64,
    /// The figure from Envoy.
    pub envoy: f64,
}

impl Pair {
    /// Returns a pair. `others` has the simulator's figures with other requests.
    fn new(simulated: f64, others: &[f64], envoy: f64) -> Self {
        let n = others.len().max(1) as f64;
        let mean = others.iter().sum::<f64>() / n;
        let squares: f64 = others.iter().map(|v| (v - mean).powi(2)).sum();
        Self {
            simulated,
            scatter: (squares / (n - 1.0).max(1.0)).sqrt(),
            envoy,
        }
    }

    fn difference(&self) -> f64 {
        self.envoy - self.simulated
    }

    /// Returns the ratio of Envoy's figure to the simulator's, minus 1.
    fn excess(&self) -> f64 {
        self.envoy / self.simulated - 1.0
    }
}

/// Returns the policies to compare.
pub fn protections(mix: &[QueryType], parallelism: usize, scale: f64) -> Vec<Protection> {
    let bouncer = || policy::with_discipline(policy::for_mix(parallelism, mix), "FIFO");
    let mut wait = bouncer();
    let limit = policy::duration(MAX_QUEUE_WAIT.mul_f64(scale));
    wait["spec"]["strategy"] = json!({
        "type": "MaxQueueWait",
        "maxQueueWait": {"limit": limit, "window": "5s", "step": "100ms"},
    });
    let headgate = Protection::headgate;
    vec![
        headgate("bouncer", "Bouncer, FIFO", bouncer()),
        headgate(
            "allowance",
            "Bouncer + allowance 0.1, FIFO",
            policy::with_allowance(bouncer(), 0.1),
        ),
        headgate("max_queue_wait", "MaxQueueWait", wait),
        headgate(
            "slack",
            "Bouncer + allowance 0.3, slack order",
            policy::with_discipline(policy::with_allowance(bouncer(), 0.3), "Slack"),
        ),
    ]
}

/// Runs the whole comparison. `progress` gets a line for each run as it starts and ends.
///
/// # Errors
/// If a part of a system doesn't start or run.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> Result<Vec<Row>> {
    const P: usize = 20;
    let mix = mix::bouncer(options.scale);
    let mut rows = Vec::new();
    for protection in protections(&mix, P, options.scale) {
        let Protection::Headgate { name, policy, .. } = &protection else {
            continue;
        };
        if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
            continue;
        }
        for &load in &options.loads {
            progress(&format!("{load}× load: {}", protection.title()));
            let overload = overload::Options {
                load,
                measured: options.measured,
                warmup: options.warmup,
                only: Vec::new(),
                workers: options.workers,
                parallelism: P,
                scale: options.scale,
            };
            let mut spec = overload.spec(SocketAddr::from(([127, 0, 0, 1], 0)), &mix);
            spec.carry_service_times(&mix);
            let simulated = simulated::replay(policy, &spec)?;
            let others = (0..options.seeds)
                .map(|seed| {
                    let mut other = spec.clone();
                    other.seed += 1 + seed;
                    simulated::replay(policy, &other)
                })
                .collect::<Result<Vec<_>>>()?;
            let envoy = overload::measure(&protection, &overload, &mix, |spec| {
                spec.carry_service_times(&mix);
            })?;
            let answered = envoy.types.iter().map(|kind| kind.totals.answered).sum();
            let slot_time = options.measured.mul_f64(P as f64);
            let turnaround =
                simulated::turnaround(&simulated, envoy.utilization, slot_time, answered);
            let turning = simulated::replay_with(policy, &spec, turnaround)?;
            progress(&format!(
                "turnaround {:.2} ms; sent late by {:.2} ms at p99; slots busy {:.3} in Envoy, \
                 {:.3} in the simulator",
                turnaround.as_secs_f64() * 1e3,
                envoy.generator_late_p99_ms,
                envoy.utilization,
                simulated.utilization,
            ));
            let kinds = envoy.types.iter().enumerate();
            rows.extend(kinds.map(|(at, kind)| Row {
                rejected_with_turnaround_pct: turning.types[at].rejected_pct(),
                ..compare(protection.title(), load, kind, at, &simulated, &others)
            }));
        }
    }
    Ok(rows)
}

fn compare(
    policy: &'static str,
    load: f64,
    envoy: &TypeRow,
    at: usize,
    simulated: &Outcome,
    others: &[Outcome],
) -> Row {
    let totals = &envoy.totals;
    let pair = |value: &dyn Fn(&Outcome) -> Option<f64>, envoy: f64| {
        let others: Vec<f64> = others.iter().filter_map(value).collect();
        Some(Pair::new(value(simulated)?, &others, envoy))
    };
    let refused = 100.0 * totals.refused as f64 / totals.offered.max(1) as f64;
    let rejected = pair(&|run| Some(run.types.get(at)?.rejected_pct()), refused);
    let enough = totals.answered >= MIN_ANSWERS;
    let quantile = |q: f64, envoy: Option<f64>| {
        let of_type = |run: &Outcome| run.types.get(at)?.response_time_ms(q);
        pair(&of_type, envoy.filter(|_| enough)?)
    };
    let mut row = Row {
        policy,
        load,
        kind: envoy.name,
        answered: totals.answered,
        rejected_pct: rejected.unwrap_or(Pair::new(f64::NAN, &[], refused)),
        rejected_with_turnaround_pct: f64::NAN,
        p50_ms: quantile(0.5, totals.p50_ms),
        p90_ms: quantile(0.9, totals.p90_ms),
        inside: false,
    };
    let alike = |pair: Option<Pair>| pair.is_none_or(|pair| pair.excess().abs() <= RATIO);
    row.inside =
        row.rejected_pct.difference().abs() <= POINTS && alike(row.p50_ms) && alike(row.p90_ms);
    row
}

/// Returns the rows as a table.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "",
        "load",
        "type",
        "rejected: simulated",
        "Envoy",
        "points",
        "with turnaround",
        "p50: simulated",
        "Envoy",
        "",
        "p90: simulated",
        "Envoy",
        "",
        "",
    ]);
    for row in rows {
        let rejected = row.rejected_pct;
        let mut cells = vec![
            row.policy.to_owned(),
            format!("{}×", row.load),
            row.kind.to_owned(),
            format!("{:.1}% ± {:.1}", rejected.simulated, rejected.scatter),
            format!("{:.1}%", rejected.envoy),
            format!("{:+.1}", rejected.difference()),
            format!("{:.1}%", row.rejected_with_turnaround_pct),
        ];
        for pair in [row.p50_ms, row.p90_ms] {
            cells.extend(match pair {
                Some(pair) => [
                    format!("{:.1} ± {:.1}", pair.simulated, pair.scatter),
                    format!("{:.1}", pair.envoy),
                    format!("{:+.1}%", 100.0 * pair.excess()),
                ],
                None => ["–".to_owned(), "–".to_owned(), "–".to_owned()],
            });
        }
        cells.push(if row.inside { "inside" } else { "outside" }.to_owned());
        table.row(cells);
    }
    table
}

/// Returns a summary of the agreement in one line.
pub fn verdict(rows: &[Row]) -> String {
    let inside = rows.iter().filter(|row| row.inside).count();
    format!(
        "{inside} of {} inside: rejections within {POINTS} points, p50 and p90 (ms; \
         of at least {MIN_ANSWERS} answers) within {:.0}%. ± is one standard deviation of the \
         simulator under other requests. With turnaround: simulated with slots that stand empty \
         between requests as in Envoy.",
        rows.len(),
        100.0 * RATIO
    )
}
