//! The plan for a set of policies: the configuration of each proxy, and the state of each policy.
//!
//! A [`Plan`] is plain data. A source (a folder, or the API server) makes a new plan after each
//! relevant change. The xDS server and `headgate status` only read the plan. Nothing here does I/O.

mod attachments;
mod claims;
mod enforced;
mod precedence;
mod selectors;
mod share;

use std::collections::BTreeMap;
use std::sync::Arc;

use headgate_core::config::{FilterConfig, Mode, StageConfig};
use serde::{Deserialize, Serialize};

use crate::validate::ValidPolicy;

pub use attachments::Attachments;
pub use claims::ProxyClaims;
pub use enforced::{Attachment, Configurations, Enforced, InForce};
pub use share::{Endpoints, Share};

pub use crate::compile::Conflict;
pub use crate::slots::{Portion, with_share_of};
pub use crate::target::{ParseTargetError, TargetKind, TargetRef};

pub use precedence::{Bid, outcomes};
pub use selectors::Selectors;

/// The node metadata key of the target whose policies a proxy enforces. A Pod whose proxy sets this
/// key has an annotation with the same name, from which the operator counts such proxies.
pub const TARGET_METADATA: &str = "headgate.dev/target";
/// The node metadata key of the namespace of a proxy's Pod.
pub const NAMESPACE_METADATA: &str = "headgate.dev/namespace";
/// The node metadata key of the labels of a proxy's Pod, a struct of strings.
pub const LABELS_METADATA: &str = "headgate.dev/labels";
/// The node metadata key of the Wasm module file that a proxy can load, an absolute path. The
/// default is the operator's own path.
pub const MODULE_METADATA: &str = "headgate.dev/module";
/// The node metadata key of the native module file that a proxy can load, an absolute path. The
/// default is the operator's own path, unless the proxy has its own Wasm module file.
pub const NATIVE_MODULE_METADATA: &str = "headgate.dev/native-module";
/// The node metadata key of the version of the module files that a proxy has.
pub const VERSION_METADATA: &str = "headgate.dev/module-version";
/// The node metadata key of the kind of filter that a proxy requests: `wasm`, the default, or
/// `native`.
pub const FILTER_METADATA: &str = "headgate.dev/filter";
/// The node metadata key of the processor architecture that a proxy runs on, as in
/// [`std::env::consts::ARCH`].
pub const ARCHITECTURE_METADATA: &str = "headgate.dev/architecture";
/// The label of Pods that names the Gateway that they serve (GEP-1762).
pub const GATEWAY_NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";

/// The desired configurations of proxies, and the state of each policy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// All known policies, ordered by `namespace/name`.
    pub policies: Vec<PolicyState>,
    /// One configuration for each target that has an accepted policy. A proxy whose metadata names
    /// the target runs this configuration.
    pub workloads: BTreeMap<TargetRef, Arc<FilterConfig>>,
    /// Policies for proxies that are selected by the labels of their Pod, in order of precedence.
    /// If several policies apply to one proxy and the same requests, the first is in force. The
    /// list is empty in a folder.
    pub attachments: Attachments,
    /// The configurations of proxies' outbound slots, by `namespace/name` of the policy that
    /// configures the calls.
    pub outbound: BTreeMap<String, Arc<FilterConfig>>,
    /// Proxies, selected by labels, that may have enforced a policy which is now invalid and has no
    /// known valid version.
    pub lost: Vec<ProxySelector>,
    /// Whether this is the plan for a cluster. There, a proxy without metadata gets no
    /// configuration.
    pub in_cluster: bool,
    /// Problems of the source that belong to no single policy: an unreadable file, a syntax error
    /// in a file that never had a good version, a missing folder.
    pub problems: Vec<SourceProblem>,
}

impl Plan {
    /// Returns the outbound configuration for a proxy of `namespace` with the inbound configuration
    /// `config`. It is that of the policy whose workflows are in force. Without workflows, it is
    /// that of the first policy with class admission for calls, preferably of the proxy's own
    /// namespace. `None` without such a policy.
    pub fn outbound_of(
        &self,
        config: &FilterConfig,
        namespace: &str,
    ) -> Option<&Arc<FilterConfig>> {
        let has_calls =
            |s: &&StageConfig| s.workflows.is_some() || self.outbound.contains_key(&s.policy);
        let stages = config.stages.iter().filter(has_calls);
        let stage =
            stages.min_by_key(|s| (s.workflows.is_none(), namespace_of(&s.policy) != namespace))?;
        self.outbound.get(&stage.policy)
    }
}

/// Returns the namespace of `policy`, which is `namespace/name`.
pub fn namespace_of(policy: &str) -> &str {
    let name = policy.split_once('/');
    name.map_or("", |(namespace, _)| namespace)
}

/// Proxies by the namespace and labels of their Pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProxySelector {
    /// Namespace of the Pods.
    pub namespace: String,
    /// Labels that all selected Pods have; never empty.
    pub labels: BTreeMap<String, String>,
}

impl ProxySelector {
    /// Whether the selector selects Pods of `namespace` with `labels`.
    pub fn matches(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        !self.labels.is_empty()
            && self.namespace == namespace
            && self
                .labels
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
    }
}

/// The state of one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyState {
    /// `namespace/name`.
    pub name: String,
    /// The path of the file that contains the policy; in a cluster, the name of the object.
    pub source: String,
    /// `metadata.generation`; 0 in a folder, unless the file gives one.
    pub generation: i64,
    /// The targets that the policy names.
    pub targets: Vec<TargetRef>,
    /// Whether the policy is valid; `Err` has one problem on each line. If an invalid policy has a
    /// last good version, that version stays in force, and `revision` belongs to it.
    pub accepted: Result<(), String>,
    /// Whether a valid version is known: this one or the last good one. It need not be in force.
    pub has_version: bool,
    /// Targets to which an older policy applies instead of this policy, even if this policy is
    /// invalid.
    pub conflicts: Vec<Conflict>,
    /// Targets at which this policy has no effect, because a policy with precedence is in force on
    /// all their proxies: a policy with a more specific target, or an older policy for the same
    /// Pods through another target.
    pub overridden: Vec<Conflict>,
    /// Targets with proxies on which another policy's workflows are in force instead of this
    /// policy's.
    pub without_workflows: Vec<Conflict>,
    /// Settings that are valid but seldom intended, one line each.
    pub warnings: Vec<String>,
    /// Targets with proxies that can't hold this policy, because the proxies hold the largest
    /// possible number of policies. The value is the number of policies that apply to such a proxy.
    pub beyond_limit: BTreeMap<TargetRef, usize>,
    /// Targets that don't exist, each with the reason.
    pub not_found: Vec<(TargetRef, String)>,
    /// Whether decisions are enforced or only counted.
    pub mode: Mode,
    /// The slots of one endpoint; `None` if the policy doesn't specify them.
    pub endpoint_slots: Option<u32>,
    /// [`FilterConfig::revision`] of the workloads that enforce the policy; empty if no workload
    /// does.
    pub revision: String,
}

impl PolicyState {
    /// Returns the state of a policy with these targets. The outcome of the policy at its targets
    /// is left empty. `enforced` is the version in force: the last good version if this version
    /// isn't accepted.
    pub fn new(
        (name, source): (String, String),
        generation: i64,
        targets: &[TargetRef],
        accepted: Result<(), String>,
        enforced: Option<&ValidPolicy>,
    ) -> Self {
        Self {
            name,
            source,
            generation,
            targets: enforced.map_or(targets, |p| &p.targets).to_vec(),
            accepted,
            has_version: enforced.is_some(),
            conflicts: Vec::new(),
            overridden: Vec::new(),
            without_workflows: Vec::new(),
            warnings: enforced.map_or_else(Vec::new, |p| p.warnings.clone()),
            beyond_limit: BTreeMap::new(),
            not_found: Vec::new(),
            mode: enforced.map_or(Mode::default(), |p| p.stage.mode),
            endpoint_slots: enforced.and_then(|p| p.slots.of_endpoint()),
            revision: String::new(),
        }
    }

    /// Returns remarks about an accepted policy, at `target` or at all of its targets, in one line;
    /// `None` without remarks.
    pub fn remarks(&self, target: Option<&TargetRef>) -> Option<String> {
        let lost = (self.without_workflows.iter())
            .filter(|c| target.is_none_or(|t| *t == c.target))
            .map(|Conflict { target, winner }| {
                format!(
                    "its workflows are left out at proxies of {target}, where those of {winner} \
                     are in force"
                )
            });
        let all: Vec<String> = lost.chain(self.warnings.iter().cloned()).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// A problem of the source that doesn't belong to a single policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceProblem {
    /// The file or folder at fault, with line and column where they are known.
    pub source: String,
    /// One line: the field, its value, and a correct value.
    pub message: String,
}
