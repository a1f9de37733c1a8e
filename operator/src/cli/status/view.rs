//! What a cluster says of its policies, put together: their status at the API server, and the proxies as all
//! operators see them.

use std::collections::BTreeMap;
use std::time::SystemTime;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde::Serialize;

use crate::cli::cluster::Operator;
use crate::kubernetes::CONTROLLER_NAME;
use crate::kubernetes::resource::{PolicyAncestorStatus, PolicyResource};
use crate::xds::status::{self, ProxyReport};

/// Everything that `headgate status` shows of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// Policies by namespace and name, each with its targets.
    pub policies: Vec<Policy>,
    /// Which policy is in force at each target, and which are not.
    pub workloads: Vec<Workload>,
    /// Proxies as the operators report them: connected ones first, then by node id.
    pub proxies: Vec<Proxy>,
    /// The operators.
    pub operators: Vec<OperatorView>,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// `namespace/name`.
    pub name: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.creationTimestamp`, RFC 3339.
    pub created: Option<String>,
    /// The same, to compare.
    #[serde(skip)]
    pub created_at: Option<SystemTime>,
    /// `Enforce` or `DryRun`.
    pub mode: String,
    /// Its targets.
    pub targets: Vec<Target>,
    /// Proxies that enforce it, of those that are to; none known when no operator answers.
    pub proxies: Option<Share>,
}

/// A policy at one of its targets.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// `Kind/namespace/name`.
    pub target: String,
    /// Condition `Accepted`.
    pub accepted: Condition,
    /// Condition `Programmed`.
    pub programmed: Condition,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in a word.
    pub reason: String,
    /// Why, in a sentence.
    pub message: String,
}

/// How many proxies are as they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// Those that run what they were sent.
    pub in_sync: usize,
    /// All.
    pub total: usize,
}

/// A target and its policies.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// `Kind/namespace/name`.
    pub target: String,
    /// `namespace/name` of the policies in force.
    pub in_force: Vec<String>,
    /// Those that are not, and why: `Conflicted`, `Overridden`.
    pub out_of_force: Vec<Loser>,
}

/// A policy that another one keeps out of force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Loser {
    /// `namespace/name`.
    pub policy: String,
    /// `Conflicted` or `Overridden`.
    pub reason: String,
    /// Names the policy in force.
    pub message: String,
}

/// A proxy and who reports it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Proxy {
    /// `namespace/name` of the operator's Pod.
    pub operator: String,
    /// What it reports.
    #[serde(flatten)]
    pub report: ProxyReport,
}

/// An operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorView {
    /// `namespace/name` of its Pod.
    pub pod: String,
    /// Its version.
    pub version: Option<String>,
    /// First 64 bits of the SHA-256 of the module that it gives to proxies.
    pub module: Option<String>,
    /// Why it can't be asked.
    pub problem: Option<String>,
}

impl View {
    /// Puts together what is known; `namespace` leaves out proxies of others.
    #[must_use]
    pub fn new(
        policies: &[PolicyResource],
        operators: &[Operator],
        namespace: Option<&str>,
    ) -> Self {
        let proxies = proxies(operators, namespace);
        let answered = operators.iter().any(|o| o.report.is_ok());
        let policies: Vec<Policy> = policies
            .iter()
            .map(|p| policy(p, answered.then_some(&proxies)))
            .collect();
        Self {
            workloads: workloads(&policies),
            policies,
            proxies,
            operators: operators.iter().map(operator).collect(),
        }
    }

    /// Whether every policy is accepted and programmed. That no proxy asks for one is no mistake of the policy's.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.policies.iter().flat_map(|p| &p.targets).all(|t| {
            let programmed = t.programmed.is_true() || t.programmed.reason == "NoProxies";
            t.accepted.is_true() && programmed
        })
    }
}

impl Condition {
    /// Whether it is so.
    #[must_use]
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }

    fn unknown(reason: &str, message: String) -> Self {
        Self {
            status: "Unknown".to_owned(),
            reason: reason.to_owned(),
            message,
        }
    }

    /// The condition of this type, if it is about this generation.
    fn of(conditions: &[meta::Condition], kind: &str, generation: i64) -> Self {
        match conditions.iter().find(|c| c.type_ == kind) {
            None => Self::unknown("Pending", "no operator has judged it yet".to_owned()),
            Some(c) if c.observed_generation.is_some_and(|g| g < generation) => Self::unknown(
                "Stale",
                format!(
                    "no operator has judged generation {generation} yet; generation {} was {}: {}",
                    c.observed_generation.unwrap_or_default(),
                    c.reason,
                    c.message
                ),
            ),
            Some(c) => Self {
                status: c.status.clone(),
                reason: c.reason.clone(),
                message: c.message.clone(),
            },
        }
    }
}

fn policy(resource: &PolicyResource, proxies: Option<&Vec<Proxy>>) -> Policy {
    let metadata = &resource.metadata;
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let name = format!("{namespace}/{}", metadata.name.clone().unwrap_or_default());
    let generation = metadata.generation.unwrap_or_default();
    let ancestors = resource.status.iter().flat_map(|s| &s.ancestors);
    let mut targets: Vec<Target> = ancestors
        .filter(|a| a.controller_name == CONTROLLER_NAME)
        .map(|a| Target {
            target: ancestor(a, &namespace),
            accepted: Condition::of(&a.conditions, "Accepted", generation),
            programmed: Condition::of(&a.conditions, "Programmed", generation),
        })
        .collect();
    if targets.is_empty() {
        targets = named(resource, &namespace)
            .into_iter()
            .map(|target| Target {
                target,
                accepted: Condition::of(&[], "Accepted", generation),
                programmed: Condition::of(&[], "Programmed", generation),
            })
            .collect();
    }
    let share = |proxies: &Vec<Proxy>| {
        let (in_sync, total) = status::share(&name, proxies.iter().map(|p| &p.report));
        Share { in_sync, total }
    };
    Policy {
        generation,
        created: metadata
            .creation_timestamp
            .as_ref()
            .map(|t| t.0.to_string()),
        created_at: metadata.creation_timestamp.as_ref().map(|t| t.0.into()),
        mode: resource.spec["mode"]
            .as_str()
            .unwrap_or("Enforce")
            .to_owned(),
        targets,
        proxies: proxies.map(share),
        name,
    }
}

fn ancestor(ancestor: &PolicyAncestorStatus, namespace: &str) -> String {
    let target = &ancestor.ancestor_ref;
    let namespace = target.namespace.as_deref().unwrap_or(namespace);
    format!("{}/{namespace}/{}", target.kind, target.name)
}

/// The targets as the spec names them, for a policy that has no status yet.
fn named(resource: &PolicyResource, namespace: &str) -> Vec<String> {
    let targets = resource.spec["targetRefs"].as_array();
    let text = |target: &serde_json::Value| {
        let labels = target["matchLabels"].as_object();
        let labels = labels.into_iter().flatten();
        let labels: Vec<String> = labels
            .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()))
            .collect();
        let name = target["name"]
            .as_str()
            .map_or_else(|| labels.join(","), str::to_owned);
        format!(
            "{}/{namespace}/{name}",
            target["kind"].as_str().unwrap_or("?")
        )
    };
    targets.into_iter().flatten().map(text).collect()
}

fn workloads(policies: &[Policy]) -> Vec<Workload> {
    let mut all: BTreeMap<&str, Workload> = BTreeMap::new();
    for policy in policies {
        for target in &policy.targets {
            let workload = all.entry(&target.target).or_insert_with(|| Workload {
                target: target.target.clone(),
                in_force: Vec::new(),
                out_of_force: Vec::new(),
            });
            let accepted = &target.accepted;
            match accepted.reason.as_str() {
                "Conflicted" | "Overridden" => workload.out_of_force.push(Loser {
                    policy: policy.name.clone(),
                    reason: accepted.reason.clone(),
                    message: accepted.message.clone(),
                }),
                _ if accepted.is_true() => workload.in_force.push(policy.name.clone()),
                _ => {}
            }
        }
    }
    all.into_values().collect()
}

/// The proxies of all operators. One that went over to another operator is known to both; who is connected
/// to it knows better.
fn proxies(operators: &[Operator], namespace: Option<&str>) -> Vec<Proxy> {
    let mut all: Vec<Proxy> = Vec::new();
    for operator in operators {
        let reported = operator.report.iter().flat_map(|r| &r.proxies);
        all.extend(reported.map(|report| Proxy {
            operator: operator.pod.clone(),
            report: report.clone(),
        }));
    }
    let gone = |p: &Proxy| p.report.disconnected.is_some();
    all.sort_by(|a, b| {
        let key = |p: &Proxy| (gone(p), p.report.node.clone(), p.operator.clone());
        key(a).cmp(&key(b))
    });
    let mut connected = std::collections::BTreeSet::new();
    all.retain(|p| match gone(p) {
        false => {
            connected.insert(p.report.node.clone());
            true
        }
        true => !connected.contains(&p.report.node),
    });
    if let Some(namespace) = namespace {
        let ours = |policy: &String| policy.split('/').next() == Some(namespace);
        all.retain(|p| match &p.report.namespace {
            Some(own) => own == namespace,
            None => p.report.policies.iter().any(ours),
        });
    }
    all
}

fn operator(operator: &Operator) -> OperatorView {
    let report = operator.report.as_ref().ok();
    OperatorView {
        pod: operator.pod.clone(),
        version: report.map(|r| r.version.clone()),
        module: report.map(|r| r.module.hash.clone()),
        problem: operator.report.as_ref().err().cloned(),
    }
}

#[cfg(test)]
mod tests;
