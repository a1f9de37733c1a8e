//! What `headgate status` and the admin address report: policies, proxies, problems.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use headgate_core::config::Mode;
use serde::{Deserialize, Serialize};

use super::conditions::{Condition, programmed};
use super::node::TargetClaim;
use super::registry::{Proxy, Registry, RunState, Transport, Variant};
use super::snapshot::Snapshot;
use super::timestamp::rfc3339;
use crate::plan::{PolicyState, TargetRef};

/// Everything, at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// When the report was made, RFC 3339.
    pub time: String,
    /// Headgate's version.
    pub version: String,
    /// The module that proxies run.
    pub module: ModuleReport,
    /// Policies by name.
    pub policies: Vec<PolicyReport>,
    /// Streams of proxies: connected ones first, then by node id.
    pub proxies: Vec<ProxyReport>,
    /// Problems of the source that no policy owns.
    pub problems: Vec<ProblemReport>,
}

/// The module that proxies run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleReport {
    /// Its file.
    pub path: String,
    /// First 64 bits of its SHA-256, in hex.
    pub hash: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyReport {
    /// `namespace/name`.
    pub name: String,
    /// File it comes from.
    pub source: String,
    /// Its generation.
    pub generation: i64,
    /// Enforce or only count.
    pub mode: Mode,
    /// What it applies to.
    pub targets: Vec<TargetRef>,
    /// Revision of the configuration that it is part of; empty when nothing is enforced.
    pub revision: String,
    /// Reasons `Accepted`, `Invalid`, `Conflicted`.
    pub accepted: Condition,
    /// Reasons `Programmed`, `PartiallyProgrammed`, `Pending`, `EnvoyRejected`, `NoProxies`, and those of
    /// `accepted` when there is nothing to enforce.
    pub programmed: Condition,
}

/// One stream of a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyReport {
    /// Node id.
    pub node: String,
    /// Service cluster.
    pub cluster: String,
    /// The target it stands for, if it names one.
    pub target: Option<String>,
    /// Address it connected from.
    pub peer: String,
    /// `ECDS` or `ADS`.
    pub transport: Transport,
    /// `SotW` or `delta`.
    pub variant: Variant,
    /// Filter slots.
    pub slots: Vec<String>,
    /// When the stream began.
    pub connected: String,
    /// When it ended.
    pub disconnected: Option<String>,
    /// `Running`, `Pending`, `Rejected` or `Disconnected`.
    pub state: String,
    /// Policies that it should enforce.
    pub policies: Vec<String>,
    /// Why no policy applies to it.
    pub problem: Option<String>,
    /// What it was sent last.
    pub sent: Option<PushReport>,
    /// What it runs.
    pub acked: Option<PushReport>,
    /// Its last refusal.
    pub nack: Option<NackReport>,
}

/// A version sent or accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushReport {
    /// xDS version.
    pub version: String,
    /// Revision of the configuration; empty when nothing is enforced.
    pub revision: String,
    /// When.
    pub time: String,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NackReport {
    /// What was refused, and when.
    #[serde(flatten)]
    pub push: PushReport,
    /// Envoy's reason.
    pub message: String,
}

/// A problem of the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemReport {
    /// File or folder.
    pub source: String,
    /// One line.
    pub message: String,
}

impl Report {
    /// The state of `snapshot` and of the proxies in `registry`.
    #[must_use]
    pub fn new(snapshot: &Snapshot, registry: &Registry, now: SystemTime) -> Self {
        let proxies = registry.proxies(now);
        Self {
            time: rfc3339(now),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            module: ModuleReport {
                path: snapshot.module.path.display().to_string(),
                hash: snapshot.module.hash.clone(),
                bytes: snapshot.module.bytes,
            },
            policies: snapshot.plan.policies.iter().map(|p| policy(p, &proxies)).collect(),
            proxies: proxies.iter().map(proxy).collect(),
            problems: snapshot
                .plan
                .problems
                .iter()
                .map(|p| ProblemReport { source: p.source.clone(), message: p.message.clone() })
                .collect(),
        }
    }
}

fn accepted(state: &PolicyState) -> Condition {
    if let Err(why) = &state.accepted {
        let kept = if state.revision.is_empty() { "" } else { "; the last good version stays enforced" };
        return Condition::new(false, "Invalid", format!("{why}{kept}"));
    }
    let lost: Vec<String> =
        state.conflicts.iter().map(|c| format!("{} belongs to {}", c.target, c.winner)).collect();
    match (lost.len(), state.targets.len()) {
        (0, _) => Condition::new(true, "Accepted", "valid"),
        (l, t) if l >= t => Condition::new(false, "Conflicted", lost.join(", ")),
        _ => Condition::new(true, "Accepted", format!("valid, but {}", lost.join(", "))),
    }
}

fn policy(state: &PolicyState, proxies: &[Proxy]) -> PolicyReport {
    let accepted = accepted(state);
    let programmed = if state.revision.is_empty() && !accepted.status {
        Condition::new(false, &accepted.reason, "there is nothing to enforce")
    } else {
        programmed(&state.name, proxies)
    };
    PolicyReport {
        name: state.name.clone(),
        source: state.source.clone(),
        generation: state.generation,
        mode: state.mode,
        targets: state.targets.clone(),
        revision: state.revision.clone(),
        accepted,
        programmed,
    }
}

fn proxy(p: &Proxy) -> ProxyReport {
    let push = |push: &super::registry::Push| PushReport {
        version: push.version.clone(),
        revision: push.revision.clone(),
        time: rfc3339(push.at),
    };
    let state = match (p.disconnected, p.run_state()) {
        (Some(_), _) => "Disconnected",
        (None, RunState::Running) => "Running",
        (None, RunState::Pending) => "Pending",
        (None, RunState::Rejected(_)) => "Rejected",
    };
    let stages = p.assigned.iter().flat_map(|(_, config)| &config.stages);
    ProxyReport {
        node: p.identity.id.clone(),
        cluster: p.identity.cluster.clone(),
        target: match &p.identity.target {
            TargetClaim::Target(target) => Some(target.to_string()),
            TargetClaim::None | TargetClaim::Invalid(_) => None,
        },
        peer: p.peer.clone(),
        transport: p.transport,
        variant: p.variant,
        slots: p.slots.iter().cloned().collect(),
        connected: rfc3339(p.connected),
        disconnected: p.disconnected.map(rfc3339),
        state: state.to_owned(),
        policies: stages.map(|s| s.policy.clone()).collect(),
        problem: p.problem.clone(),
        sent: p.sent.as_ref().map(push),
        acked: p.acked.as_ref().map(push),
        nack: p.nack.as_ref().map(|n| NackReport { push: push(&n.push), message: n.message.clone() }),
    }
}

/// The report's numbers and the registry's counters in Prometheus' text format.
#[must_use]
pub fn metrics(report: &Report, registry: &Registry) -> String {
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, samples: &[(String, u64)]| {
        // Writing to a String can't fail.
        let _ = writeln!(out, "# HELP headgate_{name} {help}\n# TYPE headgate_{name} {kind}");
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
    metric("xds_streams_total", "counter", "Streams accepted.", &total(&c.streams));
    metric(
        "xds_streams_refused_total",
        "counter",
        "Streams turned away at a limit.",
        &total(&c.refused_streams),
    );
    metric("xds_pushes_total", "counter", "Responses sent to proxies.", &total(&c.pushes));
    metric("xds_acks_total", "counter", "Responses that proxies accepted.", &total(&c.acks));
    metric("xds_nacks_total", "counter", "Responses that proxies refused.", &total(&c.nacks));
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
    metric("source_problems", "gauge", "Problems of the source that no policy owns.", &plain(report.problems.len()));
    out
}
