//! Runs a mesh, and returns the counts of its services and the outcomes of its clients.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headgate_tests::load;
use headgate_tests::mesh::drive::{self, Driving, Results};
use headgate_tests::mesh::service::ServiceStats;
use headgate_tests::mesh::topology::Workload;
use headgate_tests::mesh::{Mesh, Options, Slots, Topology};

/// The tolerated lateness of the harness, as a 99th percentile: half of the service time of 40 ms
/// that determines the capacity of both meshes. The mean lateness is a small part of it.
pub(crate) const LATE: Duration = Duration::from_millis(20);

pub(crate) type Stats = BTreeMap<String, ServiceStats>;

/// Starts `topology`, whose proxies read their policies from files.
pub(crate) fn start(topology: &Topology) -> Result<Mesh> {
    start_from(topology, Slots::Files)
}

/// Starts `topology`, whose proxies get their policies from an operator.
pub(crate) fn start_programmed(topology: &Topology) -> Result<Mesh> {
    start_from(topology, Slots::Operator)
}

fn start_from(topology: &Topology, slots: Slots) -> Result<Mesh> {
    let options = Options {
        slots,
        concurrency: 1,
    };
    Mesh::start(topology, options)
}

pub(crate) fn workloads(text: &str) -> Result<Vec<Workload>> {
    serde_saphyr::from_str(text).context("the workflows")
}

/// Sends `workloads`. Returns the counts of services and the outcomes of clients within `measured`,
/// s.
pub(crate) fn drive_and_measure(
    mesh: &Mesh,
    workloads: &[Workload],
    measured: Range<f64>,
) -> Result<(Stats, Results)> {
    load::undisturbed(LATE, |_| {
        mesh.wait_until_idle()?;
        let driving = drive::start(mesh, workloads)?;
        let stats = measure(mesh, &driving, &measured)?;
        driving.stop();
        let results = driving.wait()?;
        let errors = mesh.filter_errors();
        ensure!(errors.is_empty(), "{errors:#?}");
        let lateness = results.lateness(stats.values());
        println!("{lateness:?}");
        Ok(((stats, results), lateness))
    })
}

/// Returns the counts of services between these times after the start, s.
pub(crate) fn measure(mesh: &Mesh, driving: &Driving, measured: &Range<f64>) -> Result<Stats> {
    driving.reach(measured.start);
    mesh.reset()?;
    driving.reach(measured.end);
    mesh.stats()
}

pub(crate) fn show(title: &str, results: &Results, spans: &[Range<f64>]) {
    println!("{title}");
    for name in results.workflows.keys() {
        for span in spans {
            let met = results.during(name, span.start, span.end);
            println!(
                "  {name:9} {:4.1}–{:4.1} s: offered {:5.1}/s, served {:.2} ({:5.1}/s), \
                 refused {:3}, failed {:3}, p50 {:4.0} ms",
                span.start,
                span.end,
                met.offered as f64 / met.seconds,
                met.served(),
                met.ok as f64 / met.seconds,
                met.refused,
                met.failed,
                met.p50_ms
            );
        }
    }
}

pub(crate) fn sum(stats: &Stats, service: &str, value: impl Fn(&ServiceStats) -> f64) -> f64 {
    let of = |name: &&String| name.rsplit_once('-').is_some_and(|(s, _)| s == service);
    stats
        .iter()
        .filter(|(name, _)| of(name))
        .map(|(_, s)| value(s))
        .sum()
}

/// Returns the calls per second to a service that were refused or lost.
pub(crate) fn lost_calls(stats: &Stats, service: &str) -> f64 {
    let lost = |s: &ServiceStats| {
        let calls = s.calls.get(service).copied().unwrap_or_default();
        (calls.refused + calls.failed + calls.timed_out) as f64 / s.seconds
    };
    stats.values().map(lost).sum()
}
