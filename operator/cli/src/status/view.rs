//! The view of a cluster's policies: their status on the API server, the objects that carry them,
//! and the proxies in the reports of all operators. It is also the view of a `headgate run`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde::Serialize;
use serde_json::Value;

use headgate_api::plan::SourceProblem;
use headgate_command::cluster::{Objects, Operator};
use headgate_command::table::first;
use headgate_controller::conditions::{self, Type};
use headgate_controller::kubernetes::CONTROLLER_NAME;
use headgate_controller::kubernetes::resource::{PolicyAncestorStatus, PolicyResource};
use headgate_controller::report::{PolicyReport, ProxyReport, Report, Share, share};
use headgate_deliver::object::{POLICIES_ANNOTATION, REVISION_ANNOTATION};

/// The content of `headgate status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct View {
    /// Policies by namespace and name, each with its targets.
    pub(crate) policies: Vec<Policy>,
    /// The targets, each with the policies that are in force at the target and those that aren't.
    pub(crate) workloads: Vec<Workload>,
    /// Proxies as the operators report them. Connected proxies come first, and the order is then by
    /// node id.
    pub(crate) proxies: Vec<Proxy>,
    /// Objects that carry policies to proxies of other control planes, by kind and name.
    pub(crate) objects: Vec<Carrier>,
    /// Kinds of objects that may carry policies but can't be listed, each with the reason.
    #[serde(skip)]
    pub(crate) hidden: Vec<(&'static str, String)>,
    pub(crate) operators: Vec<OperatorView>,
    /// Problems of the folder of a `headgate run`, or `None` for a cluster.
    #[serde(skip)]
    pub(crate) local: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Policy {
    /// `namespace/name`.
    pub(crate) name: String,
    /// `metadata.generation`.
    pub(crate) generation: i64,
    /// `metadata.creationTimestamp`, RFC 3339.
    pub(crate) created: Option<meta::Time>,
    /// `Enforce` or `DryRun`.
    pub(crate) mode: String,
    /// The revision of the configuration that contains the policy. The revision is empty in a
    /// cluster, where it is unknown.
    #[serde(skip)]
    pub(crate) revision: String,
    /// The policy's targets, with the policy's state at each.
    pub(crate) targets: Vec<Target>,
    /// The numbers of the policy's proxies, in sync and in total. `None` if no operator answers.
    pub(crate) proxies: Option<Share>,
}

/// A policy at one of its targets.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Target {
    /// `Kind/namespace/name`.
    pub(crate) target: String,
    /// Conditions by type. `Accepted` and `Programmed` are always present.
    #[serde(flatten)]
    pub(crate) conditions: BTreeMap<Type, Condition>,
}

impl Target {
    /// Returns the status of a condition: `True`, `False` or `Unknown`. The status is empty if the
    /// condition is absent.
    pub(crate) fn status(&self, of: Type) -> &str {
        self.conditions.get(&of).map_or("", |c| &c.status)
    }

    pub(crate) fn reason(&self, of: Type) -> &str {
        self.conditions.get(&of).map_or("", |c| &c.reason)
    }

    pub(crate) fn message(&self, of: Type) -> &str {
        self.conditions.get(&of).map_or("", |c| &c.message)
    }

    /// Whether a condition is `True`.
    pub(crate) fn is(&self, of: Type) -> bool {
        self.status(of) == "True"
    }

    /// Whether the policy is in force at this target, or intentionally overridden.
    pub(crate) fn is_settled(&self) -> bool {
        self.is(Type::Accepted) && (self.is(Type::Programmed) || self.is(Type::Overridden))
    }

    fn new(target: String, written: &[meta::Condition], generation: i64) -> Self {
        let condition = |of: Type| {
            let found = written.iter().find(|c| c.type_ == of.as_str());
            let is_always = matches!(of, Type::Accepted | Type::Programmed);
            (is_always || found.is_some()).then(|| (of, Condition::of(found, generation)))
        };
        Self {
            target,
            conditions: Type::ALL.into_iter().filter_map(condition).collect(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Condition {
    /// `True`, `False` or `Unknown`.
    pub(crate) status: String,
    /// The reason, in one word.
    pub(crate) reason: String,
    /// The reason, in one sentence.
    pub(crate) message: String,
}

/// A target and its policies.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Workload {
    /// `Kind/namespace/name`.
    pub(crate) target: String,
    /// `namespace/name` of the policies in force.
    pub(crate) in_force: Vec<String>,
    /// Policies not in force, each with the reason: `Conflicted` or `Overridden`.
    pub(crate) out_of_force: Vec<Loser>,
}

/// A policy that isn't in force because another policy is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Loser {
    /// `namespace/name`.
    pub(crate) policy: String,
    /// `Conflicted` or `Overridden`.
    pub(crate) reason: String,
    /// The message that names the policy in force.
    pub(crate) message: String,
}

/// A proxy and the operator that reports it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Proxy {
    /// `namespace/name` of the operator's Pod.
    pub(crate) operator: String,
    /// The operator's report of the proxy.
    #[serde(flatten)]
    pub(crate) report: ProxyReport,
}

/// An object that carries policies to proxies of another control plane, or to Pods that mount it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Carrier {
    pub(crate) kind: &'static str,
    /// `namespace/name`.
    pub(crate) name: String,
    /// `namespace/name` of the policies in the object.
    pub(crate) policies: Vec<String>,
    /// The revision of the configuration in the object.
    pub(crate) revision: String,
    /// The conditions that the reader of the object wrote into its status, by type. Istio and Pods
    /// write none.
    pub(crate) conditions: Vec<(String, Condition)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OperatorView {
    /// `namespace/name` of the operator's Pod.
    pub(crate) pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// The first 64 bits of the SHA-256 of the module that the operator assigns to proxies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) module: Option<String>,
    /// The reason why the operator's report couldn't be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}

impl View {
    /// Returns the view of a cluster. With a `namespace`, leaves out the proxies and objects of
    /// other namespaces.
    pub(crate) fn new(
        policies: &[PolicyResource],
        operators: &[Operator],
        objects: Objects,
        namespace: Option<&str>,
    ) -> Self {
        let proxies = proxies(operators, namespace);
        let answered = operators.iter().any(|o| o.report.is_ok());
        let policies: Vec<Policy> = policies
            .iter()
            .map(|p| policy(p, answered.then_some(&proxies)))
            .collect();
        let (mut seen, mut hidden) = (Vec::new(), Vec::new());
        let mentioned = |kind: &str| {
            let mut targets = policies.iter().flat_map(|p| &p.targets);
            targets.any(|t| t.message(Type::Programmed).contains(&format!("{kind} ")))
        };
        for (adapter, listed) in objects {
            match listed {
                Ok(listed) => seen.extend(listed.iter().map(|o| carrier(adapter.kind(), o))),
                Err(why) if mentioned(adapter.kind()) => {
                    hidden.push((adapter.kind(), format!("{why:#}")));
                }
                Err(_) => {}
            }
        }
        seen.retain(|o: &Carrier| o.policies.iter().any(|p| is_in(p, namespace)));
        Self {
            workloads: workloads(&policies),
            policies,
            proxies,
            objects: seen,
            hidden,
            operators: operators.iter().map(operator).collect(),
            local: None,
        }
    }

    /// Returns the view of a `headgate run`.
    pub(crate) fn of_process(report: &Report) -> Self {
        let proxy = |report: &ProxyReport| Proxy {
            operator: String::new(),
            report: report.clone(),
        };
        let problem = |p: &SourceProblem| format!("{}: {}", p.source, p.message);
        let policy = |p: &PolicyReport| Policy {
            name: p.name.clone(),
            generation: p.generation,
            created: None,
            mode: format!("{:?}", p.mode),
            revision: p.revision.clone(),
            targets: vec![Target {
                target: first(&p.targets, 1),
                conditions: { p.conditions.iter() }
                    .map(|(of, condition)| (*of, Condition::reported(condition)))
                    .collect(),
            }],
            proxies: Some(share(&p.name, &report.proxies)),
        };
        Self {
            policies: report.policies.iter().map(policy).collect(),
            proxies: report.proxies.iter().map(proxy).collect(),
            local: Some(report.problems.iter().map(problem).collect()),
            ..Self::default()
        }
    }

    /// Whether the source has no problems, and every policy is accepted, and programmed or
    /// overridden. A policy without proxies is no problem.
    pub(crate) fn ok(&self) -> bool {
        let has_no_proxies = |t: &Target| t.reason(Type::Programmed) == "NoProxies";
        self.local.as_ref().is_none_or(Vec::is_empty) && {
            self.policies.iter().flat_map(|p| &p.targets)
        }
        .all(|t| t.is_settled() || t.is(Type::Accepted) && has_no_proxies(t))
    }

    /// Whether policies exist, and each is programmed or overridden at each of its targets.
    pub(crate) fn programmed(&self) -> bool {
        let mut targets = self.policies.iter().flat_map(|p| &p.targets);
        !self.policies.is_empty() && targets.all(Target::is_settled)
    }

    /// Whether an object carries this policy.
    pub(crate) fn is_carried(&self, policy: &str) -> bool {
        let mut objects = self.objects.iter();
        objects.any(|o| o.policies.iter().any(|p| p == policy))
    }
}

/// Whether a policy, `namespace/name`, is in `namespace`. Without a `namespace`, every policy is.
fn is_in(policy: &str, namespace: Option<&str>) -> bool {
    namespace.is_none_or(|namespace| policy.split('/').next() == Some(namespace))
}

impl Condition {
    fn reported(condition: &conditions::Condition) -> Self {
        Self {
            status: if condition.status { "True" } else { "False" }.to_owned(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        }
    }

    fn unknown(reason: &str, message: String) -> Self {
        Self {
            status: "Unknown".to_owned(),
            reason: reason.to_owned(),
            message,
        }
    }

    /// Returns the written condition, or `Unknown` if it is absent or about an earlier generation.
    fn of(written: Option<&meta::Condition>, generation: i64) -> Self {
        match written {
            None => Self::unknown("Pending", "no operator has reconciled it yet".to_owned()),
            Some(c) if c.observed_generation.is_some_and(|g| g < generation) => Self::unknown(
                "Stale",
                format!(
                    "no operator has reconciled generation {generation} yet; generation {} was {}: \
                     {}",
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
        .map(|a| Target::new(ancestor(a, &namespace), &a.conditions, generation))
        .collect();
    if targets.is_empty() {
        targets = named(resource, &namespace)
            .into_iter()
            .map(|target| Target::new(target, &[], generation))
            .collect();
    }
    Policy {
        generation,
        created: metadata.creation_timestamp.clone(),
        mode: resource.spec["mode"]
            .as_str()
            .unwrap_or("Enforce")
            .to_owned(),
        revision: String::new(),
        targets,
        proxies: proxies.map(|all| share(&name, all.iter().map(|p| &p.report))),
        name,
    }
}

fn ancestor(ancestor: &PolicyAncestorStatus, namespace: &str) -> String {
    let target = &ancestor.ancestor_ref;
    let namespace = target.namespace.as_deref().unwrap_or(namespace);
    let section = target.section_name.iter().map(|s| format!("/{s}"));
    format!("{}/{namespace}/{}", target.kind, target.name) + &section.collect::<String>()
}

/// Returns the targets in a policy's spec, for a policy without a status.
fn named(resource: &PolicyResource, namespace: &str) -> Vec<String> {
    let targets = resource.spec["targetRefs"].as_array();
    let text = |target: &Value| {
        let labels = target["matchLabels"].as_object();
        let labels = labels.into_iter().flatten();
        let labels: Vec<String> = labels
            .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()))
            .collect();
        let section = target["sectionName"].as_str().map(|s| format!("/{s}"));
        let name = target["name"].as_str().map_or_else(
            || labels.join(","),
            |name| name.to_owned() + &section.unwrap_or_default(),
        );
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
            let loses = match target.reason(Type::Accepted) {
                "Conflicted" => Some(Type::Accepted),
                _ => target.is(Type::Overridden).then_some(Type::Overridden),
            };
            match loses {
                Some(of) => workload.out_of_force.push(Loser {
                    policy: policy.name.clone(),
                    reason: target.reason(of).to_owned(),
                    message: target.message(of).to_owned(),
                }),
                None if target.is(Type::Accepted) => workload.in_force.push(policy.name.clone()),
                None => {}
            }
        }
    }
    all.into_values().collect()
}

/// Returns the proxies that all operators report, or only those of `namespace`. If a proxy has
/// reconnected to another operator, both operators report it, and the entry of the closed
/// connection is dropped.
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
    // Pods of StatefulSets in two namespaces have the same names.
    let key = |p: &Proxy| (p.report.namespace.clone(), p.report.node.clone());
    let connected: BTreeSet<_> = all.iter().filter(|p| !gone(p)).map(key).collect();
    all.retain(|p| !gone(p) || !connected.contains(&key(p)));
    all.retain(|p| match (&p.report.namespace, namespace) {
        (Some(own), Some(namespace)) => own == namespace,
        (None, Some(_)) => p.report.policies.iter().any(|p| is_in(p, namespace)),
        (_, None) => true,
    });
    all
}

/// Returns an object with the conditions that its reader wrote. A reader writes them directly into
/// the status or, as in Gateway API, into the status of ancestors.
fn carrier(kind: &'static str, object: &DynamicObject) -> Carrier {
    let annotation = |key| object.annotations().get(key).map_or("", String::as_str);
    let status = &object.data["status"];
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut conditions = list(&status["conditions"]);
    for ancestor in list(&status["ancestors"]) {
        conditions.extend(list(&ancestor["conditions"]));
    }
    let generation = object.metadata.generation.unwrap_or_default();
    let condition = |value: &Value| {
        let text = |key| value[key].as_str().unwrap_or_default().to_owned();
        let stale = value["observedGeneration"]
            .as_i64()
            .is_some_and(|g| g < generation);
        let condition = match stale {
            true => Condition::unknown("Stale", "of an older generation".to_owned()),
            false => Condition {
                status: text("status"),
                reason: text("reason"),
                message: text("message"),
            },
        };
        (text("type"), condition)
    };
    Carrier {
        kind,
        name: format!(
            "{}/{}",
            object.namespace().unwrap_or_default(),
            object.name_any()
        ),
        policies: annotation(POLICIES_ANNOTATION)
            .split(',')
            .map(str::to_owned)
            .collect(),
        revision: annotation(REVISION_ANNOTATION).to_owned(),
        conditions: conditions.iter().map(condition).collect(),
    }
}

pub(crate) fn operator(operator: &Operator) -> OperatorView {
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
