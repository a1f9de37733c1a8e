//! The workloads of a plan. These are sets of proxies with the same configuration that an object
//! can select.
//!
//! An Istio object selects Pods by labels, and every object that matches a Pod adds a filter. Two
//! policies with different selectors may overlap on some Pods, where only the one with precedence
//! is in force. Labels can't express "all Pods except those". So of two overlapping workloads, the
//! one with precedence gets an object, and the other reports why it has none. A Pod without such an
//! overlap has all its policies in one object.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headgate_core::config::{FilterConfig, OutboundConfig, StageConfig};

use crate::cluster::{Cluster, ObjectKey};
use headgate_api::compile::revision;
use headgate_api::plan::{
    Attachment, Configurations, Enforced, GATEWAY_NAME_LABEL, InForce, Plan, ProxyClaims,
    ProxySelector, Selectors, TargetKind, TargetRef,
};

/// Labels that Istio's injector sets on Pods. The first is on sidecars only, the second is on
/// sidecars and gateways.
const INJECTED: [&str; 2] = [
    "security.istio.io/tlsMode",
    "service.istio.io/canonical-revision",
];

/// Proxies with the same configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// The proxies.
    pub proxies: ProxySelector,
    /// The kind of the proxies and, for sidecars, the side.
    pub kind: ProxyKind,
    /// Whether an Istio proxy of the workload was observed, in a Pod with a sidecar or of a
    /// gateway. For a ConfigMap, whether a Pod mounts it.
    pub seen: bool,
    /// The configuration that the proxies enforce. It has stages, except in a ConfigMap that has
    /// outlived its policies.
    pub config: Arc<FilterConfig>,
    /// The targets whose policies are in the configuration, in order of precedence.
    pub targets: Vec<TargetRef>,
}

/// The kind of a workload's proxies and, for sidecars, the side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyKind {
    /// The proxies of a Gateway.
    Gateway(ObjectKey),
    /// The inbound side of Pods' sidecars.
    Pods,
    /// The outbound side of Pods' sidecars.
    Calls,
}

/// A workload that gets no object, because it overlaps with another one.
#[derive(Debug, Clone, PartialEq)]
pub struct Meeting {
    /// The workload that is left out.
    pub workload: Workload,
    /// The targets of the workload that has the object instead.
    pub with: Vec<TargetRef>,
}

/// The cuts by policy, `namespace/name`.
pub(crate) type Cuts<'a> = BTreeMap<&'a str, Cut>;

/// The way in which one policy makes room for the others.
#[derive(Debug, Clone)]
pub(crate) enum Cut {
    /// The last version that fitted replaces the present version.
    Last(Box<Last>),
    /// The object omits the policy.
    Out,
}

/// The last version of a policy that fitted.
#[derive(Debug, Clone)]
pub(crate) struct Last {
    /// The stage of the policy, with the routes and slots of the present version.
    pub(crate) stage: StageConfig,
    /// The outbound configuration of the policy's workflows, if the object contains it, as a
    /// gateway's object does.
    pub(crate) calls: Option<OutboundConfig>,
}

impl Workload {
    /// Returns the workload of the proxies that name `target`, which enforce `config`.
    pub(crate) fn of_target(target: &TargetRef, config: Arc<FilterConfig>) -> Self {
        Self {
            proxies: ProxySelector {
                namespace: target.namespace.clone(),
                labels: BTreeMap::new(),
            },
            kind: ProxyKind::Pods,
            seen: false,
            targets: vec![target.clone()],
            config,
        }
    }

    /// Returns the policies in the configuration, `namespace/name`, in the order of the stages.
    pub fn policies(&self) -> Vec<String> {
        policies(&self.config)
    }

    /// Returns the configuration for the calls of these proxies, if they have any.
    pub fn outbound<'a>(&self, plan: &'a Plan) -> Option<&'a Arc<FilterConfig>> {
        plan.outbound_of(&self.config, &self.proxies.namespace)
    }

    /// Returns the workload for the outbound side of these sidecars, with `config`.
    pub fn calls(&self, config: &Arc<FilterConfig>) -> Self {
        Self {
            kind: ProxyKind::Calls,
            config: Arc::clone(config),
            ..self.clone()
        }
    }

    /// Returns the workload with these cuts applied. The other policies keep their slots.
    pub(crate) fn with(&self, cuts: &Cuts<'_>, plan: &Plan) -> Self {
        let mut rest = self.clone();
        let is_out = |policy: &str| matches!(cuts.get(policy), Some(Cut::Out));
        let config = Arc::make_mut(&mut rest.config);
        config.stages.retain(|s| !is_out(&s.policy));
        let calls = config.outbound.take();
        config.outbound = calls.filter(|calls| !is_out(&calls.policy));
        for stage in &mut config.stages {
            if let Some(Cut::Last(last)) = cuts.get(stage.policy.as_str()) {
                stage.clone_from(&last.stage);
                config.outbound = config.outbound.take().or_else(|| last.calls.clone());
            }
        }
        // The routes are computed again. Without the omitted stages, a stage also gets the requests
        // that an omitted stage would have taken.
        let of_rest = policies(config);
        let matching = plan.attachments.iter().filter(|a| {
            let ProxySelector { namespace, labels } = &self.proxies;
            a.proxies.matches(namespace, labels) && of_rest.contains(&a.stage.policy)
        });
        let matching: Vec<&Attachment> = matching.collect();
        let given = Enforced::by_labels(&matching, &Configurations::default());
        for stage in &mut config.stages {
            if let Some(given) = { given.config.stages.iter() }.find(|s| s.policy == stage.policy) {
                stage.routes.clone_from(&given.routes);
            }
        }
        config.revision = String::new();
        config.revision = revision(config);
        let theirs = plan.attachments.iter().filter(|a| is_out(&a.stage.policy));
        let theirs: BTreeSet<&TargetRef> = theirs.map(|a| &a.target).collect();
        rest.targets.retain(|t| !theirs.contains(t));
        rest
    }
}

/// Returns the workloads of `plan` that have an object, in order of precedence. Also returns the
/// workloads that overlap with one of these and so have no object.
pub fn workloads(plan: &Plan, cluster: &Cluster) -> (Vec<Workload>, Vec<Meeting>) {
    let mut seen = BTreeSet::new();
    let mut all: Vec<Workload> = Vec::new();
    for attachment in plan.attachments.iter() {
        if seen.insert(&attachment.proxies) {
            all.extend(workload(plan, cluster, &attachment.proxies));
        }
    }
    let (meetings, seen) = meetings(&all, cluster);
    for (workload, seen) in all.iter_mut().zip(seen) {
        workload.seen = seen;
    }
    let winners = winners(all.len(), &meetings);
    let mut left_out = Vec::new();
    for (loser, winner) in all.iter().zip(&winners) {
        let Some(winner) = winner.map(|w| &all[w]) else {
            continue;
        };
        // The loser needs no report if the winner's object contains all its policies, as it does
        // when the loser is in force on none of its own Pods.
        let of_winner = winner.policies();
        if loser.policies().iter().any(|p| !of_winner.contains(p)) {
            left_out.push(Meeting {
                workload: loser.clone(),
                with: winner.targets.clone(),
            });
        }
    }
    let kept = all.into_iter().zip(winners);
    let kept = kept.filter_map(|(workload, winner)| winner.is_none().then_some(workload));
    (kept.collect(), left_out)
}

/// Returns the workload of the proxies with exactly these labels. `None` if no policy applies.
pub fn workload(plan: &Plan, cluster: &Cluster, proxies: &ProxySelector) -> Option<Workload> {
    let enforced = plan.for_proxy(&ProxyClaims {
        target: None,
        namespace: Some(&proxies.namespace),
        labels: &proxies.labels,
    });
    if enforced.config.stages.is_empty() {
        return None;
    }
    let mut targets: Vec<TargetRef> = Vec::new();
    for InForce { target, .. } in &enforced.in_force {
        if !targets.contains(target) {
            targets.push(target.clone());
        }
    }
    Some(Workload {
        kind: kind(proxies, cluster),
        seen: false,
        proxies: proxies.clone(),
        config: Arc::clone(&enforced.config),
        targets,
    })
}

/// Returns the policies of `config`. The configuration of an outbound side has no stages.
pub(super) fn policies(config: &FilterConfig) -> Vec<String> {
    let calls = config.outbound.iter().map(|calls| &calls.policy);
    let calls = calls.filter(|_| config.stages.is_empty());
    let of_stages = config.stages.iter().map(|stage| &stage.policy);
    of_stages.chain(calls).cloned().collect()
}

fn kind(proxies: &ProxySelector, cluster: &Cluster) -> ProxyKind {
    let mut labels = proxies.labels.iter();
    match (labels.next(), labels.next()) {
        (Some((key, name)), None) if key == GATEWAY_NAME_LABEL => {
            let gateway = ObjectKey::new(&proxies.namespace, name);
            match cluster.gateways.contains_key(&gateway) {
                true => ProxyKind::Gateway(gateway),
                false => ProxyKind::Pods,
            }
        }
        _ => ProxyKind::Pods,
    }
}

/// Returns, for each workload, `None` if it has an object, else the first workload that has an
/// object in its place.
///
/// In each group only one workload has an object. The time grows with the total size of the groups,
/// not with the number of pairs, because a tenant may have a thousand Services for the same Pods.
fn winners(workloads: usize, groups: &BTreeSet<Vec<usize>>) -> Vec<Option<usize>> {
    let mut groups_of = vec![Vec::new(); workloads];
    for (group, members) in groups.iter().enumerate() {
        for &member in members {
            groups_of[member].push(group);
        }
    }
    let mut winner_of: Vec<Option<usize>> = vec![None; groups.len()];
    let winner = |(i, groups): (usize, &Vec<usize>)| {
        let winner = groups.iter().filter_map(|&group| winner_of[group]).min();
        if winner.is_none() {
            groups.iter().for_each(|&group| winner_of[group] = Some(i));
        }
        winner
    };
    groups_of.iter().enumerate().map(winner).collect()
}

/// Returns the groups of overlapping workloads. A group matches the labels of one selector, or of
/// one observed Pod. Also returns, for each workload, whether an Istio proxy was observed in one of
/// its Pods.
fn meetings(all: &[Workload], cluster: &Cluster) -> (BTreeSet<Vec<usize>>, Vec<bool>) {
    let mut groups = BTreeSet::new();
    // Many Pods give the same group, so a group is cloned only if it is new.
    let mut meet = |group: &Vec<usize>| {
        if group.len() > 1 && !groups.contains(group) {
            groups.insert(group.clone());
        }
    };
    let selectors = Selectors::new(all.iter().map(|w| w.proxies.clone()).collect());
    let mut group = Vec::new();
    for ProxySelector { namespace, labels } in all.iter().map(|w| &w.proxies) {
        selectors.matching(namespace, labels, &mut group);
        meet(&group);
    }
    let mut seen = vec![false; all.len()];
    for (key, pod) in cluster.pods.iter() {
        selectors.matching(&key.namespace, &pod.labels, &mut group);
        let is_injected = INJECTED.iter().any(|label| pod.labels.contains_key(*label));
        for &i in &group {
            seen[i] |= is_injected || all[i].kind != ProxyKind::Pods;
        }
        meet(&group);
    }
    (groups, seen)
}

/// An index of a plan's targets. A look-up doesn't search all Pods and attachments.
#[derive(Debug)]
pub struct Targets<'a> {
    plan: &'a Plan,
    cluster: &'a Cluster,
    /// The targets that a Pod's proxy names.
    claimed: BTreeSet<&'a TargetRef>,
    /// The selector of the first attachment of each target.
    attached: BTreeMap<&'a TargetRef, &'a ProxySelector>,
}

impl<'a> Targets<'a> {
    /// Returns the targets of `plan`, which was made for `cluster`.
    pub fn new(plan: &'a Plan, cluster: &'a Cluster) -> Self {
        let claims = { cluster.pods.iter() }
            .filter_map(|(key, pod)| Some((&key.namespace, pod.target.as_ref()?)));
        let claimed = claims.filter(|(namespace, target)| **namespace == target.namespace);
        let attached = plan.attachments.iter().rev();
        Self {
            plan,
            cluster,
            claimed: claimed.map(|(_, target)| target).collect(),
            attached: attached.map(|a| (&a.target, &a.proxies)).collect(),
        }
    }

    /// Returns the workload whose configuration is in the file for the proxies of `target`. For
    /// Pods, a Service or a Gateway that no proxy names, these are the proxies that its first
    /// attachment selects. Otherwise they are the proxies that name the target.
    pub fn workload(&self, target: &TargetRef) -> Option<Workload> {
        let by_labels = matches!(
            target.kind,
            TargetKind::Service | TargetKind::Pod | TargetKind::Gateway
        );
        if by_labels && !self.claimed.contains(target) {
            let proxies = self.attached.get(target);
            if let Some(found) = proxies.and_then(|p| workload(self.plan, self.cluster, p)) {
                return Some(found);
            }
        }
        let config = self.plan.workloads.get(target)?;
        let enforces = !config.stages.is_empty();
        enforces.then(|| Workload::of_target(target, Arc::clone(config)))
    }
}
