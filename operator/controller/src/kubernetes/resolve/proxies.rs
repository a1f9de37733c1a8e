//! Counts the proxies that each policy reaches, and determines where it is in force.

use std::collections::{HashMap, HashSet};

use headgate_core::config::MAX_STAGES;

use super::Draft;
use headgate_api::plan::{GATEWAY_NAME_LABEL, Selectors, TargetRef, namespace_of, outcomes};
use headgate_deliver::cluster::{Cluster, ObjectKey, Pod};

/// The labels that Envoy Gateway sets on the Pods of a Gateway. By default these Pods run in Envoy
/// Gateway's own namespace, and lack the label that all implementations share.
const OWNING_GATEWAY: [&str; 2] = [
    "gateway.envoyproxy.io/owning-gateway-namespace",
    "gateway.envoyproxy.io/owning-gateway-name",
];
/// The label of the Pods that serve all Gateways of a class (`mergeGateways`).
const OWNING_CLASS: &str = "gateway.envoyproxy.io/owning-gatewayclass";

/// The numbers of ready Pods and of all Pods that name a target, by target.
#[derive(Debug)]
pub(super) struct Claims<'a>(HashMap<&'a TargetRef, (u32, u32)>);

impl<'a> Claims<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        let mut claims: HashMap<&TargetRef, (u32, u32)> = HashMap::new();
        for (key, pod) in cluster.pods.iter() {
            if let Some(target) = claim(key, pod) {
                let (ready, all) = claims.entry(target).or_default();
                *ready += u32::from(pod.ready);
                *all += 1;
            }
        }
        Self(claims)
    }

    /// Whether any Pod names `target`.
    pub(super) fn any(&self, target: &TargetRef) -> bool {
        self.0.contains_key(target)
    }

    /// Returns the number of ready Pods that name `target`.
    pub(super) fn ready(&self, target: &TargetRef) -> u32 {
        self.0.get(target).map_or(0, |(ready, _)| *ready)
    }
}

/// Returns the target that a Pod's proxy names. A target of another namespace doesn't count,
/// because such a proxy gets no policy.
fn claim<'a>(key: &ObjectKey, pod: &'a Pod) -> Option<&'a TargetRef> {
    pod.target
        .as_ref()
        .filter(|target| target.namespace == key.namespace)
}

/// The counts of one draft.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// The number of ready Pods that the selector matches.
    pub(super) ready: u32,
    /// The number of `ready` Pods whose proxies get a share of this policy's slots.
    pub(super) sharing: u32,
    /// The number of `sharing` Pods that name the target.
    pub(super) claiming: u32,
    /// Whether Pods that serve all Gateways of a class serve this draft's Gateway.
    pub(super) is_merged: bool,
    /// Whether the draft is in force on some proxy.
    pub(super) in_force: bool,
    /// The first draft that overrides this draft, if any.
    pub(super) lost_to: Option<usize>,
    /// The first draft whose workflows are in force on proxies of this draft in place of its own,
    /// if any.
    pub(super) workflows_of: Option<usize>,
}

/// Returns the counts of each draft. `drafts` and `selectors` are in order of precedence. A proxy
/// may match more drafts than the number of policies that it can hold. Also returns each set of
/// drafts that such a proxy matches. `envoy_gateway` is the namespace of Envoy Gateway.
pub(super) fn count(
    cluster: &Cluster,
    drafts: &[Draft<'_>],
    selectors: &Selectors,
    envoy_gateway: &str,
) -> (Vec<Count>, Vec<Vec<usize>>) {
    let mut counts = vec![Count::default(); drafts.len()];
    let mut owned: HashMap<Owner<'_>, u32> = HashMap::new();
    // Pods of one workload match the same drafts, so there are far fewer sets than Pods.
    let mut sets: HashSet<Vec<usize>> = HashSet::new();
    let mut seen = vec![false; drafts.len()];
    let mut matching = Vec::new();
    for (key, pod) in cluster.pods.iter() {
        if let Some(owner) = owner(key, pod, envoy_gateway) {
            *owned.entry(owner).or_default() += 1;
        }
        selectors.matching(&key.namespace, &pod.labels, &mut matching);
        let claim = pod.target.as_ref();
        if claim.is_none() && !matching.is_empty() && !sets.contains(matching.as_slice()) {
            for at in &matching {
                if let Some(seen) = seen.get_mut(*at) {
                    *seen = true;
                }
            }
            sets.insert(matching.clone());
        }
        for at in matching.iter().filter(|_| pod.ready) {
            let (Some(count), Some(draft)) = (counts.get_mut(*at), drafts.get(*at)) else {
                continue;
            };
            let claims_it = claim == Some(draft.target);
            count.ready += 1;
            count.sharing += u32::from(claim.is_none() || claims_it);
            count.claiming += u32::from(claims_it);
        }
    }
    // The Pods of a class serve all its Gateways, so they count once for each target.
    let mut counted = HashSet::new();
    for (draft, count) in drafts.iter().zip(&mut counts) {
        if let Some(gateway) = draft.gateway() {
            let owned = |owner| owned.get(&owner).copied().unwrap_or(0);
            let mut more = owned(Owner::Gateway(&gateway.namespace, &gateway.name));
            let class = cluster.gateways.get(&gateway).map(|g| g.class.as_str());
            let of_class = class.map_or(0, |class| owned(Owner::Class(class)));
            if of_class > 0 && counted.insert((draft.won, class)) {
                more += of_class;
            }
            count.is_merged = of_class > 0;
            count.ready += more;
            count.sharing += more;
        }
    }
    // A selector without Pods is treated as if one Pod had exactly its labels.
    for (draft, _) in drafts.iter().zip(seen).filter(|(_, seen)| !seen) {
        let proxies = &draft.proxies;
        selectors.matching(&proxies.namespace, &proxies.labels, &mut matching);
        sets.insert(matching.clone());
    }
    for set in &sets {
        settle(set, drafts, &mut counts);
    }
    let crowded = sets.into_iter().filter(|set| set.len() > MAX_STAGES);
    (counts, crowded.collect())
}

/// Records which drafts are in force on proxies that match the drafts of `set`.
fn settle(set: &[usize], drafts: &[Draft<'_>], counts: &mut [Count]) {
    let bids = set.iter().filter_map(|at| drafts.get(*at)).map(Draft::bid);
    let mut with_workflows: Vec<(usize, &str)> = Vec::new();
    for (at, outcome) in set.iter().zip(outcomes(bids)) {
        let (Some(count), Some(draft)) = (counts.get_mut(*at), drafts.get(*at)) else {
            continue;
        };
        match outcome.map_err(|place| set.get(place)) {
            Err(Some(winner)) => {
                let first = count.lost_to.map_or(*winner, |known| known.min(*winner));
                count.lost_to = Some(first);
            }
            Ok(_) | Err(None) => {
                count.in_force = true;
                if draft.policy.stage.workflows.is_some() {
                    with_workflows.push((*at, &draft.policy.stage.policy));
                }
            }
        }
    }
    // A proxy enforces the workflows of one policy: of its own namespace if there is one, and of
    // these the first. A policy's last draft determines the place of its stage.
    let last = with_workflows.iter().map(|(at, policy)| (*policy, *at));
    let last: HashMap<&str, usize> = last.collect();
    let is_foreign = |policy: &str, at: usize| {
        let draft = drafts.get(at);
        draft.is_none_or(|draft| namespace_of(policy) != draft.proxies.namespace)
    };
    let first = last
        .into_iter()
        .min_by_key(|(policy, at)| (is_foreign(policy, *at), *at));
    let Some((first, other)) = first else {
        return;
    };
    for (at, _) in with_workflows.iter().filter(|(_, policy)| *policy != first) {
        if let Some(count) = counts.get_mut(*at) {
            let known = count.workflows_of.map_or(other, |known| known.min(other));
            count.workflows_of = Some(known);
        }
    }
}

/// The Gateways that a Pod of Envoy Gateway serves.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Owner<'a> {
    /// The Gateway of this namespace and name.
    Gateway(&'a str, &'a str),
    /// All Gateways of this class.
    Class(&'a str),
}

/// Returns the Gateways that a ready Pod of Envoy Gateway serves. `None` if the label that all
/// implementations share identifies the Pod.
///
/// Users may set any labels on Pods of their own namespace. So these labels count only in the
/// namespace of Envoy Gateway and, for a Gateway, in the Gateway's own namespace, where Envoy
/// Gateway runs its proxies in mode `GatewayNamespace`.
fn owner<'a>(key: &ObjectKey, pod: &'a Pod, envoy_gateway: &str) -> Option<Owner<'a>> {
    if !pod.ready || pod.target.is_some() {
        return None;
    }
    let is_of_envoy_gateway = key.namespace == envoy_gateway;
    let [namespace, name] = OWNING_GATEWAY.map(|label| pod.labels.get(label));
    let (Some(namespace), Some(name)) = (namespace, name) else {
        let class = pod.labels.get(OWNING_CLASS).filter(|_| is_of_envoy_gateway);
        return class.map(|class| Owner::Class(class));
    };
    let is_of_gateway = key.namespace == *namespace;
    let is_found = is_of_gateway && pod.labels.get(GATEWAY_NAME_LABEL) == Some(name);
    let counts = (is_of_envoy_gateway || is_of_gateway) && !is_found;
    counts.then_some(Owner::Gateway(namespace, name))
}
