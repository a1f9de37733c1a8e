//! The largest number of requests per second that one Envoy worker forwards, without Headgate and
//! with each of its filters.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::closed_loop;
use super::cpu::{cpu_time, median, without_and_with_headgate};
use super::lab::{Lab, Protection};
use super::table::{Table, percent, times};

/// The number of connections in a closed loop.
const CLIENTS: usize = 16;
const WARMUP: Duration = Duration::from_secs(1);

/// The results of one variant.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Short name.
    pub variant: &'static str,
    /// Requests per second: the median over rounds.
    pub rps: f64,
    /// The CPU time that Envoy used, in cores. If it is below 1, another part was the bottleneck.
    pub envoy_cores: f64,
}

/// Measures all variants in turn, in `rounds` rounds.
///
/// # Errors
/// If a system doesn't start, or an answer isn't 200.
pub fn run(measured: Duration, rounds: usize, mut progress: impl FnMut(&str)) -> Result<Vec<Row>> {
    let variants = without_and_with_headgate(CLIENTS * 4)?;
    let mut samples = vec![Vec::new(); variants.len()];
    for round in 1..=rounds {
        progress(&format!("round {round} of {rounds}"));
        for (variant, samples) in variants.iter().zip(&mut samples) {
            let lab = Lab::start_before(variant, closed_loop::start_responder()?, 1)?;
            let before = cpu_time(lab.envoy().pid())?;
            let rps = closed_loop::requests_per_second(lab.addr(), CLIENTS, WARMUP, measured)?;
            let cores = (cpu_time(lab.envoy().pid())? - before).as_secs_f64()
                / (WARMUP + measured).as_secs_f64();
            samples.push((rps, cores));
        }
    }
    let row = |(variant, samples): (&Protection, Vec<(f64, f64)>)| Row {
        variant: variant.name(),
        rps: median(&samples.iter().map(|(rps, _)| *rps).collect::<Vec<_>>()),
        envoy_cores: median(&samples.iter().map(|(_, cores)| *cores).collect::<Vec<_>>()),
    };
    Ok(variants.iter().zip(samples).map(row).collect())
}

impl Row {
    /// Returns Envoy's CPU time per request, µs.
    fn us_per_request(&self) -> f64 {
        self.envoy_cores * 1e6 / self.rps
    }
}

/// Returns the rows as a table, each beside Envoy without a filter.
pub fn table(rows: &[Row]) -> Table {
    let (rps, us) = rows
        .first()
        .map_or((f64::NAN, f64::NAN), |row| (row.rps, row.us_per_request()));
    let mut table = Table::new(&[
        "throughput, one worker",
        "requests/s",
        "÷ no filter",
        "its core busy",
        "CPU µs/request",
        "added µs",
    ]);
    for row in rows {
        table.row([
            row.variant.to_owned(),
            format!("{:.0}", row.rps),
            times(row.rps / rps),
            percent(row.envoy_cores),
            format!("{:.1}", row.us_per_request()),
            format!("{:+.1}", row.us_per_request() - us),
        ]);
    }
    table
}
