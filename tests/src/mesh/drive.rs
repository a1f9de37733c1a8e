//! Clients of several workflows at once, and the outcomes of their requests.
//!
//! Every workflow is a load of its own ([`crate::load`]), with its own arrivals. So a workflow that
//! floods the mesh affects another workflow only through the mesh. The requests of a workflow carry
//! its name in their baggage.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Mesh;
use super::service::ServiceStats;
use super::service::plan::millis;
use super::topology::Workload;
use crate::load::{
    self, Bin, Clients, Lateness, LoadReport, LoadSpec, Phase, RequestType, Running, TypeReport,
};
use crate::quantiles::Quantiles;

/// The number of connections that a workflow opens before it starts.
const CONNECTIONS: usize = 4;
/// The least number of samples from which a 99th percentile is taken.
const ENOUGH: u64 = 100;

/// Results of all workflows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Reports by workflow. Their totals cover the whole time.
    pub workflows: BTreeMap<String, LoadReport>,
    /// Lateness of the requests of open loops, over all workflows, ms.
    pub late_ms: Quantiles,
}

/// Running loads. Dropping this value stops them.
#[derive(Debug)]
pub struct Driving {
    started: Instant,
    workflows: Vec<(String, Running)>,
}

/// Starts the loads and returns at once.
///
/// # Errors
/// If a load can't be started.
pub fn start(mesh: &Mesh, workloads: &[Workload]) -> Result<Driving> {
    let started = Instant::now();
    let mut workflows = Vec::new();
    for (index, workload) in workloads.iter().enumerate() {
        let spec = spec(mesh, workload, index as u64 + 1)
            .with_context(|| format!("workflow {}", workload.name))?;
        workflows.push((workload.name.clone(), load::start(spec)?));
    }
    Ok(Driving { started, workflows })
}

fn spec(mesh: &Mesh, workload: &Workload, seed: u64) -> Result<LoadSpec> {
    let mut targets = mesh.entries(&workload.entry).into_iter();
    let first = targets.next().context("its entry has no processes")?;
    let mut request = RequestType::get(&workload.name, &workload.path)
        .header("baggage", &format!("workflow={}", workload.name));
    request.headers.extend(workload.headers.iter().cloned());
    request.abort_after = Some(millis(workload.timeout_ms)?);
    let mut spec = LoadSpec::new(first, vec![request], 0.0, Duration::ZERO);
    spec.more_targets = targets.collect();
    spec.seed = seed;
    spec.connections = CONNECTIONS;
    spec.drain = millis(workload.timeout_ms)?;
    spec.phases = workload
        .open
        .iter()
        .map(|p| {
            Ok(Phase {
                duration: millis(p.seconds * 1_000.0)?,
                rate: p.rate,
            })
        })
        .collect::<Result<_>>()?;
    spec.clients = workload
        .closed
        .iter()
        .map(|c| {
            Ok(Clients {
                count: c.clients,
                from: millis(c.from_s * 1_000.0)?,
                until: millis(c.until_s * 1_000.0)?,
                think: millis(c.think_ms)?,
            })
        })
        .collect::<Result<_>>()?;
    Ok(spec)
}

impl Driving {
    /// Whether all requests have been sent and answered.
    pub fn is_finished(&self) -> bool {
        self.workflows.iter().all(|(_, load)| load.is_finished())
    }

    /// Returns the time since the start, s.
    pub fn elapsed_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Waits until `seconds` after the start.
    pub fn reach(&self, seconds: f64) {
        let at = self.started + Duration::try_from_secs_f64(seconds).unwrap_or_default();
        crate::clock::sleep_until(at);
    }

    /// Stops sending requests. Outstanding requests may still be answered.
    pub fn stop(&self) {
        self.workflows.iter().for_each(|(_, load)| load.stop());
    }

    /// Waits for the end of all loads.
    ///
    /// # Errors
    /// If an entry couldn't be reached at the start.
    pub fn wait(self) -> Result<Results> {
        let (mut workflows, mut open) = (BTreeMap::new(), Vec::new());
        for (name, load) in self.workflows {
            let (report, samples) = load.wait_with_samples()?;
            // A closed loop reports no lateness, because its clients send as soon as they can.
            if report.lateness_ms.count > 0 {
                open.extend(samples);
            }
            workflows.insert(name, report);
        }
        Ok(Results {
            workflows,
            late_ms: load::lateness(&open),
        })
    }
}

impl Results {
    /// Returns the results of one workflow, or `None` if it doesn't exist.
    pub fn of(&self, workflow: &str) -> Option<&TypeReport> {
        Some(&self.workflows.get(workflow)?.total)
    }

    /// Returns the results of the requests of one workflow that fell due between two times after
    /// the start, s.
    pub fn during(&self, workflow: &str, from_s: f64, until_s: f64) -> Span {
        let series = self.of(workflow).map_or(&[][..], |r| &r.series);
        let bins: Vec<&Bin> = series
            .iter()
            .filter(|bin| bin.at_s >= from_s && bin.at_s < until_s)
            .collect();
        let sum = |count: fn(&Bin) -> u64| bins.iter().map(|bin| count(bin)).sum::<u64>();
        let mut medians: Vec<f64> = bins.iter().filter(|b| b.ok > 0).map(|b| b.p50_ms).collect();
        medians.sort_by(f64::total_cmp);
        Span {
            seconds: until_s - from_s,
            offered: sum(|bin| bin.offered),
            ok: sum(|bin| bin.ok),
            refused: sum(|bin| bin.refused),
            failed: sum(|bin| bin.failed),
            p50_ms: medians.get(medians.len() / 2).copied().unwrap_or(0.0),
        }
    }

    /// Returns the lateness of the harness.
    ///
    /// The generator's lateness covers all workflows. It is the 99th percentile, or the 90th with
    /// few samples, because the 99th would then be the largest sample. The backend's lateness is
    /// the largest 99th percentile of the services of `stats`, without services with few samples.
    pub fn lateness<'a>(&self, stats: impl IntoIterator<Item = &'a ServiceStats>) -> Lateness {
        let services = stats.into_iter().map(|of| of.workers.late_ms);
        let generator = &self.late_ms;
        Lateness {
            generator_ms: match generator.count {
                ..ENOUGH => generator.p90,
                _ => generator.p99,
            },
            backend_ms: services
                .filter(|late| late.count >= ENOUGH)
                .map(|late| late.p99)
                .fold(0.0, f64::max),
        }
    }

    /// Returns the latencies of one workflow's served requests, ms.
    pub fn latency_ms(&self, workflow: &str) -> Quantiles {
        self.of(workflow).map(|r| r.latency_ms).unwrap_or_default()
    }
}

/// The results of a workflow in a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The length of the span, s.
    pub seconds: f64,
    /// The number of requests that fell due in the span.
    pub offered: u64,
    /// The number of requests of the span that were served.
    pub ok: u64,
    /// The number of requests of the span that the first hop refused.
    pub refused: u64,
    /// The number of requests of the span with any other outcome.
    pub failed: u64,
    /// Median, over the points of the series, of the median latency of served requests, ms.
    pub p50_ms: f64,
}

impl Span {
    /// Returns the share of the offered requests that was served, ratio 0..=1, or 0 without
    /// requests.
    pub fn served(&self) -> f64 {
        if self.offered == 0 {
            return 0.0;
        }
        self.ok as f64 / self.offered as f64
    }
}
