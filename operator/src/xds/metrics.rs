//! The server's own metrics in Prometheus' text format. What requests experience is in Envoy's stats.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::registry::Registry;
use super::status::{PolicyReport, Report};

/// The report's numbers and the registry's counters in Prometheus' text format.
#[must_use]
pub fn render(report: &Report, registry: &Registry) -> String {
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, samples: &[(String, u64)]| {
        // Writing to a String can't fail.
        let _ = writeln!(
            out,
            "# HELP headgate_{name} {help}\n# TYPE headgate_{name} {kind}"
        );
        for (labels, value) in samples {
            let _ = writeln!(out, "headgate_{name}{labels} {value}");
        }
    };
    let plain = |value: usize| [(String::new(), value as u64)];
    let total = |counter: &AtomicU64| [(String::new(), counter.load(Ordering::Relaxed))];
    let by_state = |state: &str| {
        let n = report.proxies.iter().filter(|p| p.state == state).count();
        (format!("{{state=\"{}\"}}", state.to_lowercase()), n as u64)
    };
    metric(
        "xds_proxy_streams",
        "gauge",
        "Streams of proxies by what they do with their configuration.",
        &["Running", "Pending", "Rejected"].map(by_state),
    );
    let c = &registry.counters;
    metric(
        "xds_streams_total",
        "counter",
        "Streams accepted.",
        &total(&c.streams),
    );
    metric(
        "xds_streams_refused_total",
        "counter",
        "Streams turned away at a limit.",
        &total(&c.refused_streams),
    );
    metric(
        "xds_pushes_total",
        "counter",
        "Responses sent to proxies.",
        &total(&c.pushes),
    );
    metric(
        "xds_acks_total",
        "counter",
        "Responses that proxies accepted.",
        &total(&c.acks),
    );
    metric(
        "xds_nacks_total",
        "counter",
        "Responses that proxies refused.",
        &total(&c.nacks),
    );
    let conditions = |of: fn(&PolicyReport) -> bool| {
        [true, false].map(|status| {
            let n = report.policies.iter().filter(|p| of(p) == status).count();
            (format!("{{status=\"{status}\"}}"), n as u64)
        })
    };
    metric(
        "policies_accepted",
        "gauge",
        "Policies by their Accepted condition.",
        &conditions(|p| p.accepted.status),
    );
    metric(
        "policies_programmed",
        "gauge",
        "Policies by their Programmed condition.",
        &conditions(|p| p.programmed.status),
    );
    metric(
        "source_problems",
        "gauge",
        "Problems of the source that no policy owns.",
        &plain(report.problems.len()),
    );
    out
}
