//! What `headgate status` and the admin address report: policies, proxies, problems.

use std::collections::BTreeMap;
use std::time::SystemTime;

use headgate_core::config::Mode;
use serde::{Deserialize, Serialize};

use super::conditions::{Condition, programmed};
use super::node::TargetClaim;
use super::proxy::{Proxy, RunState, Transport, Variant};
use super::registry::Registry;
use super::snapshot::Snapshot;
use super::tally::Tallies;
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
    /// Namespace of its Pod, as its certificate or its metadata says.
    #[serde(default)]
    pub namespace: Option<String>,
    /// SPIFFE id of its certificate.
    #[serde(default)]
    pub certificate: Option<String>,
    /// The module file that it loads, where it names one of its own.
    #[serde(default)]
    pub module: Option<String>,
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
        let tallies = Tallies::of(&proxies);
        Self {
            time: rfc3339(now),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            module: ModuleReport {
                path: snapshot.module.path.display().to_string(),
                hash: snapshot.module.hash.clone(),
                bytes: snapshot.module.bytes,
            },
            policies: snapshot
                .plan
                .policies
                .iter()
                .map(|p| policy(p, &tallies))
                .collect(),
            proxies: proxies.iter().map(proxy).collect(),
            problems: snapshot
                .plan
                .problems
                .iter()
                .map(|p| ProblemReport {
                    source: p.source.clone(),
                    message: p.message.clone(),
                })
                .collect(),
        }
    }
}

/// Of the proxies that `policy` is for, how many run it, and how many there are. A proxy may have several streams, one
/// for each of its slots: it counts once, and runs the policy when all of them do.
#[must_use]
pub fn share<'a>(
    policy: &str,
    streams: impl IntoIterator<Item = &'a ProxyReport>,
) -> (usize, usize) {
    let mut proxies: BTreeMap<(&str, &str), bool> = BTreeMap::new();
    for stream in streams {
        if stream.policies.iter().any(|p| p == policy) {
            let runs = proxies.entry((&stream.node, &stream.peer)).or_insert(true);
            *runs &= stream.state == "Running";
        }
    }
    let running = proxies.values().filter(|runs| **runs).count();
    (running, proxies.len())
}

fn accepted(state: &PolicyState) -> Condition {
    if let Err(why) = &state.accepted {
        let kept = if state.revision.is_empty() {
            ""
        } else {
            "; the last good version stays enforced"
        };
        return Condition::new(false, "Invalid", format!("{why}{kept}"));
    }
    let lost: Vec<String> = state
        .conflicts
        .iter()
        .map(|c| format!("{} belongs to {}", c.target, c.winner))
        .collect();
    let known = lost.len();
    if known > 0 && known >= state.targets.len() {
        return Condition::new(false, "Conflicted", lost.join(", "));
    }
    let lost = (known > 0).then(|| lost.join(", "));
    let remarks: Vec<String> = lost.into_iter().chain(state.remarks(None)).collect();
    let message = match remarks.as_slice() {
        [] => "valid".to_owned(),
        some => format!("valid, but {}", some.join("; ")),
    };
    Condition::new(true, "Accepted", message)
}

fn policy(state: &PolicyState, tallies: &Tallies) -> PolicyReport {
    let accepted = accepted(state);
    let programmed = if state.revision.is_empty() && !accepted.status {
        Condition::new(false, &accepted.reason, "there is nothing to enforce")
    } else {
        programmed(&tallies.of_policy(&state.name))
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
    let push = |push: &super::proxy::Push| PushReport {
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
    ProxyReport {
        node: p.identity.id.clone(),
        cluster: p.identity.cluster.clone(),
        target: match &p.identity.target {
            TargetClaim::Target(target) => Some(target.to_string()),
            TargetClaim::None | TargetClaim::Invalid(_) => None,
        },
        namespace: p.identity.namespace.clone(),
        certificate: p.identity.certificate.clone(),
        module: p
            .identity
            .module
            .as_ref()
            .map(|path| path.display().to_string()),
        peer: p.peer.clone(),
        transport: p.transport,
        variant: p.variant,
        slots: p.slots.iter().cloned().collect(),
        connected: rfc3339(p.connected),
        disconnected: p.disconnected.map(rfc3339),
        state: state.to_owned(),
        policies: p.stages().map(|s| s.policy.clone()).collect(),
        problem: p.problem.clone(),
        sent: p.sent.as_ref().map(push),
        acked: p.acked.as_ref().map(push),
        nack: p.nack.as_ref().map(|n| NackReport {
            push: push(&n.push),
            message: n.message.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::Conflict;

    use super::*;

    fn state(accepted: Result<(), String>, lost: usize, revision: &str) -> PolicyState {
        let targets: Vec<TargetRef> = ["Service/a/b", "Service/a/c"]
            .iter()
            .map(|t| t.parse().unwrap())
            .collect();
        let conflict = |t: &TargetRef| Conflict {
            target: t.clone(),
            winner: "a/older".into(),
        };
        PolicyState {
            name: "a/p".into(),
            source: "p.yaml".into(),
            generation: 1,
            conflicts: targets[..lost].iter().map(conflict).collect(),
            overridden: Vec::new(),
            without_workflows: Vec::new(),
            warnings: Vec::new(),
            not_found: Vec::new(),
            targets,
            accepted,
            mode: Mode::Enforce,
            revision: revision.into(),
        }
    }

    #[test]
    fn acceptance_says_what_is_lost_and_what_stays() {
        let shown = |s: &PolicyState| {
            let c = accepted(s);
            (c.status, c.reason, c.message)
        };
        let is =
            |status, reason: &str, message: &str| (status, reason.to_owned(), message.to_owned());
        assert_eq!(shown(&state(Ok(()), 0, "r")), is(true, "Accepted", "valid"));
        assert_eq!(
            shown(&state(Ok(()), 1, "r")),
            is(
                true,
                "Accepted",
                "valid, but Service/a/b belongs to a/older"
            )
        );
        assert_eq!(
            shown(&state(Ok(()), 2, "")),
            is(
                false,
                "Conflicted",
                "Service/a/b belongs to a/older, Service/a/c belongs to a/older"
            )
        );
        assert_eq!(
            shown(&state(Err("x: 0".into()), 0, "")),
            is(false, "Invalid", "x: 0")
        );
        assert_eq!(
            shown(&state(Err("x: 0".into()), 0, "r")),
            is(
                false,
                "Invalid",
                "x: 0; the last good version stays enforced"
            )
        );
    }

    #[test]
    fn a_policy_with_nothing_to_enforce_is_not_programmed_for_that_reason() {
        let report = policy(&state(Err("x: 0".into()), 0, ""), &Tallies::default());
        assert_eq!(
            (report.programmed.status, report.programmed.reason.as_str()),
            (false, "Invalid")
        );
        let report = policy(&state(Err("x: 0".into()), 0, "r"), &Tallies::default());
        assert_eq!(
            report.programmed.reason, "NoProxies",
            "the last good version is enforced"
        );
    }
}
