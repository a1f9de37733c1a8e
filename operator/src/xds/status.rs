//! What `headgate status` and the admin address report: policies, proxies, problems.

use std::collections::BTreeMap;
use std::time::SystemTime;

use headgate_core::config::Mode;
use serde::{Deserialize, Serialize};

use super::conditions::{self, Conditions};
use super::module::Module;
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
    /// The Wasm module.
    pub module: ModuleReport,
    /// The native module, for proxies that ask for a native filter and can load it, if there is
    /// one.
    #[serde(default)]
    pub native: Option<ModuleReport>,
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
    /// Conditions of all targets, see [`conditions::summary`].
    #[serde(flatten)]
    pub conditions: Conditions,
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
    /// Namespace of its Pod, as its certificate, its token or its metadata says.
    #[serde(default)]
    pub namespace: Option<String>,
    /// SPIFFE id that its certificate or token proves.
    #[serde(default)]
    pub certificate: Option<String>,
    /// When its certificate ends.
    #[serde(default)]
    pub expires: Option<String>,
    /// The module file that it loads, where it names one of its own.
    #[serde(default)]
    pub module: Option<String>,
    /// The kind of filter that it runs, `wasm` or `native`; empty while it has accepted none.
    #[serde(default)]
    pub filter: String,
    /// Why it gets the Wasm filter, where it asks for the native one.
    #[serde(default)]
    pub fallback: Option<String>,
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

/// A policy's conditions as they were written.
pub type Written<'a> = &'a dyn Fn(&PolicyState) -> Conditions;

impl Report {
    /// The state of `snapshot` and of the proxies in `registry`. `written` are a policy's
    /// conditions as the API server has them, which are about the proxies of all replicas and about
    /// delivered objects, too; without it there is no other replica.
    #[must_use]
    pub fn new(
        snapshot: &Snapshot,
        registry: &Registry,
        written: Option<Written<'_>>,
        now: SystemTime,
    ) -> Self {
        let proxies = registry.proxies(now);
        let policies = &snapshot.plan.policies;
        let policies = match written {
            Some(written) => policies.iter().map(|p| policy(p, written(p))).collect(),
            None => {
                let tallies = Tallies::of(&proxies);
                let policies = policies.iter();
                policies.map(|p| policy(p, counted(p, &tallies))).collect()
            }
        };
        Self {
            time: rfc3339(now),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            module: ModuleReport::of(&snapshot.modules.wasm),
            native: snapshot.modules.native.as_ref().map(ModuleReport::of),
            policies,
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

/// Of the proxies that `policy` is for, how many run it, and how many there are. A proxy may have
/// several streams, one for each of its slots: it counts once, and runs the policy when all of them
/// do.
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

fn policy(state: &PolicyState, conditions: Conditions) -> PolicyReport {
    PolicyReport {
        name: state.name.clone(),
        source: state.source.clone(),
        generation: state.generation,
        mode: state.mode,
        targets: state.targets.clone(),
        revision: state.revision.clone(),
        conditions,
    }
}

/// The conditions that a policy has where nobody writes them: what `tallies` says of it.
fn counted(state: &PolicyState, tallies: &Tallies) -> Conditions {
    let at = |target: &TargetRef| {
        let conditions = conditions::at(state, Some(target), tallies, None);
        (target.to_string(), conditions)
    };
    let of_targets: Vec<_> = state.targets.iter().map(at).collect();
    match of_targets.is_empty() {
        true => conditions::at(state, None, tallies, None),
        false => conditions::summary(&of_targets),
    }
}

impl ModuleReport {
    fn of(module: &Module) -> Self {
        Self {
            path: module.path.display().to_string(),
            hash: module.hash.clone(),
            bytes: module.bytes,
        }
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
        expires: p.identity.expires.map(rfc3339),
        module: p
            .identity
            .module
            .as_ref()
            .map(|path| path.display().to_string()),
        filter: p.acked.as_ref().map_or("", |a| a.filter.name()).to_owned(),
        fallback: p.fallback.clone(),
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
