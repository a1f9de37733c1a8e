//! The report at the admin address and in `headgate status`: policies, proxies and problems.

use std::collections::BTreeMap;
use std::time::SystemTime;

use headgate_core::config::Mode;
use serde::{Deserialize, Serialize};

use crate::conditions::{self, Conditions};
use headgate_api::plan::{PolicyState, SourceProblem, TargetRef};
use headgate_xds::VERSION;
use headgate_xds::certificate::is_old;
use headgate_xds::module::Module;
use headgate_xds::proxy::{Proxy, Push, RunState};
use headgate_xds::registry::Registry;
use headgate_xds::snapshot::Snapshot;
use headgate_xds::tally::Tallies;
use headgate_xds::timestamp::rfc3339;

/// The state of the operator at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The time of the report, RFC 3339.
    pub time: String,
    /// Headgate's version.
    pub version: String,
    /// The Wasm module.
    pub module: ModuleReport,
    /// The native module, for proxies that request a native filter and can load it, if there is
    /// one.
    #[serde(default)]
    pub native: Option<ModuleReport>,
    /// Policies by name.
    pub policies: Vec<PolicyReport>,
    /// Streams of proxies. Connected ones are first, then the order is by node id.
    pub proxies: Vec<ProxyReport>,
    /// Problems of the source that belong to no policy.
    pub problems: Vec<SourceProblem>,
}

/// A module that proxies run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleReport {
    /// The path of the module's file.
    pub path: String,
    /// The first 64 bits of the module's SHA-256, in hex.
    pub hash: String,
    /// The size in bytes.
    pub bytes: u64,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyReport {
    /// `namespace/name`.
    pub name: String,
    /// The file that contains the policy, or in a cluster, the policy's kind and name.
    pub source: String,
    /// The policy's generation.
    pub generation: i64,
    /// Whether the policy's decisions are enforced or only counted.
    pub mode: Mode,
    /// The slots of one endpoint, if the policy specifies them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_slots: Option<u32>,
    /// The targets that the policy applies to.
    pub targets: Vec<TargetRef>,
    /// The revision of the configuration that contains the policy. Empty if nothing is enforced.
    pub revision: String,
    /// The conditions over all targets (see [`conditions::summary`]).
    #[serde(flatten, deserialize_with = "conditions::known")]
    pub conditions: Conditions,
}

/// One stream of a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyReport {
    /// The node id.
    pub node: String,
    /// The service cluster.
    pub cluster: String,
    /// The target that the proxy serves, if it names one.
    pub target: Option<String>,
    /// The namespace of the proxy's Pod, from its certificate, token or metadata.
    #[serde(default)]
    pub namespace: Option<String>,
    /// The SPIFFE id that the proxy's certificate or token proves.
    #[serde(default)]
    pub certificate: Option<String>,
    /// The expiry of the proxy's certificate.
    #[serde(default)]
    pub expires: Option<String>,
    /// Whether the certificate should have been renewed before the stream began.
    #[serde(default)]
    pub renewal_overdue: bool,
    /// The path of the proxy's own Wasm module file, if it names one.
    #[serde(default)]
    pub module: Option<String>,
    /// The kind of filter that the proxy runs, `wasm` or `native`. Empty until it has accepted one.
    #[serde(default)]
    pub filter: String,
    /// The reason why the proxy gets the Wasm filter although it requests the native one.
    #[serde(default)]
    pub fallback: Option<String>,
    /// The address from which the proxy connected.
    pub peer: String,
    /// The filter slot of the stream, if it is Headgate's. Operators of 0.1 list several.
    pub slots: Vec<String>,
    /// The time at which the stream began.
    pub connected: String,
    /// The time at which the stream ended.
    pub disconnected: Option<String>,
    /// `Running`, `Pending`, `Rejected` or `Disconnected`.
    pub state: String,
    /// Policies that the proxy should enforce.
    pub policies: Vec<String>,
    /// The problem with the proxy's policies, such as the reason why none applies.
    pub problem: Option<String>,
    /// The last version sent to the proxy.
    pub sent: Option<PushReport>,
    /// The version that the proxy runs.
    pub acked: Option<PushReport>,
    /// The proxy's last refusal.
    pub nack: Option<NackReport>,
}

/// A version sent or accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushReport {
    /// The xDS version.
    pub version: String,
    /// The revision of the configuration. Empty if nothing is enforced.
    pub revision: String,
    /// The time of the push or of its acceptance.
    pub time: String,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NackReport {
    /// The refused version, and the time.
    #[serde(flatten)]
    pub push: PushReport,
    /// Envoy's reason.
    pub message: String,
}

impl Report {
    /// Returns the report of `snapshot` and of the proxies in `registry`. `written` returns the
    /// conditions of a policy as written on the API server, which cover the proxies of all replicas
    /// and the delivered objects. Without it, this process is the only replica, and the conditions
    /// come from its own proxies.
    pub fn new(
        snapshot: &Snapshot,
        registry: &Registry,
        written: Option<&dyn Fn(&PolicyState) -> Conditions>,
        now: SystemTime,
    ) -> Self {
        let (proxies, tallies) = (registry.proxies(now), registry.tallies());
        let report = |state: &PolicyState| match written {
            Some(written) => policy(state, written(state)),
            None => policy(state, counted(state, &tallies)),
        };
        Self {
            time: rfc3339(now),
            version: VERSION.to_owned(),
            module: ModuleReport::of(&snapshot.modules.wasm),
            native: snapshot.modules.native.as_ref().map(ModuleReport::of),
            policies: snapshot.plan.policies.iter().map(report).collect(),
            proxies: proxies.iter().map(|p| proxy(p)).collect(),
            problems: snapshot.plan.problems.clone(),
        }
    }
}

/// The proxies of a policy, as counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// The number of proxies that run the revision sent to them.
    pub in_sync: usize,
    /// The number of all proxies that should enforce the policy.
    pub total: usize,
}

/// Returns the counts of the proxies of `policy`. A proxy with several streams, one for each slot,
/// counts once, and runs the policy when all its streams do.
pub fn share<'a>(policy: &str, streams: impl IntoIterator<Item = &'a ProxyReport>) -> Share {
    let mut proxies: BTreeMap<(&str, &str), bool> = BTreeMap::new();
    for stream in streams {
        if stream.policies.iter().any(|p| p == policy) {
            let runs = proxies.entry((&stream.node, &stream.peer)).or_insert(true);
            *runs &= stream.state == "Running";
        }
    }
    Share {
        in_sync: proxies.values().filter(|runs| **runs).count(),
        total: proxies.len(),
    }
}

fn policy(state: &PolicyState, conditions: Conditions) -> PolicyReport {
    PolicyReport {
        name: state.name.clone(),
        source: state.source.clone(),
        generation: state.generation,
        mode: state.mode,
        endpoint_slots: state.endpoint_slots,
        targets: state.targets.clone(),
        revision: state.revision.clone(),
        conditions,
    }
}

/// Returns a policy's conditions from `tallies`, for a source without an API server.
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
    let push = |push: &Push| PushReport {
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
        target: p.identity.target.as_ref().map(ToString::to_string),
        namespace: p.identity.namespace.clone(),
        certificate: p.identity.certificate.clone(),
        expires: p.identity.validity.map(|(_, to)| rfc3339(to)),
        renewal_overdue: { p.identity.validity }.is_some_and(|v| is_old(v, p.connected)),
        module: p
            .identity
            .module
            .as_ref()
            .map(|path| path.display().to_string()),
        filter: p.acked.as_ref().map_or("", |a| a.filter.name()).to_owned(),
        fallback: p.assignment.fallback.clone(),
        peer: p.peer.clone(),
        slots: p.slot.iter().cloned().collect(),
        connected: rfc3339(p.connected),
        disconnected: p.disconnected.map(rfc3339),
        state: state.to_owned(),
        policies: p.stages().map(|s| s.policy.clone()).collect(),
        problem: p.assignment.problem.clone(),
        sent: p.sent.as_ref().map(push),
        acked: p.acked.as_ref().map(push),
        nack: p.nack.as_ref().map(|n| NackReport {
            push: push(&n.push),
            message: n.message.clone(),
        }),
    }
}
