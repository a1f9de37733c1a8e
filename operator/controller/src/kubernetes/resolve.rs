//! Computes the [`Plan`] for the observed cluster. It has the effective policies at each target,
//! with their slots.
//!
//! The plan is a pure function of the cluster, in these steps:
//!
//! 1. Find each target, or report what is missing.
//! 2. Select the oldest policy of each target (GEP-713).
//! 3. Count the proxies that the selected policies reach, and the endpoints behind them.
//! 4. Divide the slots among the proxies.
//! 5. Find the policies that other policies override on all their proxies.
//!
//! A large cluster changes all the time, and a change of one Pod or policy leaves nearly everything
//! else unchanged. So a [`Planner`] keeps the compiled policies. An unchanged part is the same
//! [`Arc`] in the next plan. Apart from compilation, a plan takes `O(policies + Pods × labels)`.

mod known;
mod proxies;
mod targets;
#[cfg(test)]
pub(super) mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use self::known::Known;
use self::proxies::{Claims, Count, count};
use self::targets::{Finder, Found};
use headgate_api::compile::{Winners, conflicts, precedence, precedence_of, promises};
use headgate_api::plan::{
    Attachment, Attachments, Bid, Configurations, Conflict, Endpoints, Enforced,
    GATEWAY_NAME_LABEL, InForce, Plan, PolicyState, ProxySelector, Selectors, Share, TargetKind,
    TargetRef,
};
use headgate_api::validate::ValidPolicy;
use headgate_deliver::cluster::{Cluster, ObjectKey, PolicyObject};
use headgate_deliver::settings::ENVOY_GATEWAY_NAMESPACE;

/// Makes consecutive plans.
#[derive(Debug)]
pub struct Planner {
    /// The namespace of Envoy Gateway.
    envoy_gateway: String,
    /// Whether Envoy Gateway's proxies run the native filter.
    is_native: bool,
    known: HashMap<ObjectKey, Known>,
    configurations: Arc<Configurations>,
}

impl Default for Planner {
    /// Returns a planner for Envoy Gateway's default namespace, and the Wasm module.
    fn default() -> Self {
        Self::new(ENVOY_GATEWAY_NAMESPACE, false)
    }
}

/// A policy with an effective version, which competes for its targets.
struct Candidate<'a> {
    key: &'a ObjectKey,
    policy: &'a ValidPolicy,
    known: Known,
    state: PolicyState,
}

/// A target that exists, and the policy that won it.
struct Won<'a> {
    /// The policy's index among the candidates.
    candidate: usize,
    policy: &'a ValidPolicy,
    target: &'a TargetRef,
    found: Found,
}

/// An attachment without its slots.
#[derive(Debug)]
struct Draft<'a> {
    /// The target's index among the targets won.
    won: usize,
    policy: &'a ValidPolicy,
    target: &'a TargetRef,
    proxies: &'a ProxySelector,
    routes: &'a [String],
}

impl<'a> Draft<'a> {
    /// Returns the Gateway whose proxies enforce the draft, if it is for a Gateway.
    fn gateway(&self) -> Option<ObjectKey> {
        let name = self.proxies.labels.get(GATEWAY_NAME_LABEL)?;
        let is_of_gateways = self.target.kind.is_of_gateways();
        is_of_gateways.then(|| ObjectKey::new(&self.proxies.namespace, name))
    }

    fn bid(&self) -> Bid<'a> {
        Bid {
            policy: &self.policy.stage.policy,
            routes: self.routes,
        }
    }
}

impl Planner {
    /// Returns a planner without cached state, for a cluster with Envoy Gateway in this namespace.
    /// `is_native` is true if Envoy Gateway's proxies run the native filter.
    pub fn new(envoy_gateway: impl Into<String>, is_native: bool) -> Self {
        Self {
            envoy_gateway: envoy_gateway.into(),
            is_native,
            known: HashMap::new(),
            configurations: Arc::default(),
        }
    }

    /// Returns the plan for `cluster`. Equal clusters give equal plans, whatever the earlier plans
    /// were.
    #[must_use]
    pub fn plan(&mut self, cluster: &Cluster) -> Plan {
        let mut candidates = self.candidates(cluster);
        let claims = Claims::new(cluster);
        let finder = Finder::new(cluster);
        let won = contest(&finder, &claims, &mut candidates);
        let drafts = drafts(&won);
        let selectors = Selectors::new(drafts.iter().map(|d| d.proxies.clone()).collect());
        let (counts, crowded) = count(cluster, &drafts, &selectors, &self.envoy_gateway);

        if !self.is_native {
            warn_of_merged(cluster, &won, &drafts, &counts, &mut candidates);
        }

        let mut of_target: Vec<Vec<&Count>> = vec![Vec::new(); won.len()];
        for (draft, count) in drafts.iter().zip(&counts) {
            if let Some(counts) = of_target.get_mut(draft.won) {
                counts.push(count);
            }
        }
        let mut workloads = BTreeMap::new();
        let mut shares = Vec::with_capacity(won.len());
        let mut in_force = Winners::new();
        for (won, counts) in won.iter().zip(&of_target) {
            let Some(candidate) = candidates.get_mut(won.candidate) else {
                continue;
            };
            let claimed = claimed_share(won, counts, claims.ready(won.target));
            let config = candidate.known.config(won.policy, claimed.portion());
            let winner = winner(counts).and_then(|at| drafts.get(at));
            match winner.filter(|_| !claims.any(won.target)) {
                Some(winner) => candidate.state.overridden.push(Conflict {
                    target: won.target.clone(),
                    winner: winner.policy.full_name(),
                }),
                None => {
                    in_force.insert(won.target, won.policy);
                    if candidate.state.revision.is_empty() {
                        candidate.state.revision.clone_from(&config.revision);
                    }
                }
            }
            let others = counts.iter().filter_map(|c| c.workflows_of).min();
            if let Some(other) = others.and_then(|at| drafts.get(at)) {
                candidate.state.without_workflows.push(Conflict {
                    target: won.target.clone(),
                    winner: other.policy.full_name(),
                });
            }
            workloads.insert(won.target.clone(), config);
            shares.push(Share {
                slots: won.policy.slots,
                proxies: counts.iter().map(|c| c.sharing).sum(),
                endpoints: won.found.endpoints.clone(),
            });
        }
        let mut attachments = Vec::with_capacity(drafts.len());
        for draft in &drafts {
            let (Some(won), Some(share)) = (won.get(draft.won), shares.get(draft.won)) else {
                continue;
            };
            let Some(candidate) = candidates.get_mut(won.candidate) else {
                continue;
            };
            let known = &mut candidate.known;
            attachments.push(Attachment {
                target: draft.target.clone(),
                proxies: draft.proxies.clone(),
                stage: known.stage(draft.policy, draft.routes, share.portion()),
                share: share.clone(),
            });
        }
        drop(drafts);
        let winners: Winners<'_> = won.iter().map(|won| (won.target, won.policy)).collect();
        drop(won);

        let promises = promises(&in_force);
        let outbound = candidates.iter_mut().filter_map(|c| {
            let calls = c.known.outbound(c.policy, &promises)?;
            Some((c.policy.full_name(), calls))
        });
        let outbound = outbound.collect();
        self.configurations.forget_unused();
        let attachments =
            Attachments::new(attachments, selectors, Arc::clone(&self.configurations));
        let mut states = self.remember(candidates);
        let mut policies: Vec<_> = cluster
            .policies
            .iter()
            .map(|(key, object)| {
                states.remove(key).unwrap_or_else(|| PolicyState {
                    conflicts: taken(key, object, &winners),
                    ..state(key, object)
                })
            })
            .collect();
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        for places in crowded {
            record_beyond_limit(&attachments.enforced_at(places), &mut policies);
        }
        Plan {
            policies,
            workloads,
            attachments,
            outbound,
            lost: lost(cluster, &winners, &finder, &claims),
            in_cluster: true,
            problems: Vec::new(),
        }
    }

    /// Returns the effective versions of all policies, in order of precedence.
    fn candidates<'a>(&mut self, cluster: &'a Cluster) -> Vec<Candidate<'a>> {
        let mut before = std::mem::take(&mut self.known);
        let effective = cluster.policies.iter().filter_map(|(key, object)| {
            let policy = object.effective.as_ref()?;
            Some(Candidate {
                key,
                policy,
                known: Known::of(policy, before.remove(key)),
                state: state(key, object),
            })
        });
        let mut candidates: Vec<Candidate<'_>> = effective.collect();
        candidates.sort_by(|a, b| precedence(a.policy).cmp(&precedence(b.policy)));
        candidates
    }

    /// Caches the compiled policies for the next plan. Returns the policies' outcomes.
    fn remember<'a>(
        &mut self,
        candidates: Vec<Candidate<'a>>,
    ) -> HashMap<&'a ObjectKey, PolicyState> {
        let mut states = HashMap::with_capacity(candidates.len());
        for candidate in candidates {
            self.known.insert(candidate.key.clone(), candidate.known);
            states.insert(candidate.key, candidate.state);
        }
        states
    }
}

/// Records in `policies`, which are ordered by name, the targets at which `enforced` has no room
/// for them.
fn record_beyond_limit(enforced: &Enforced, policies: &mut [PolicyState]) {
    let beyond: BTreeSet<&str> = { enforced.beyond_limit.iter() }
        .map(|f| f.policy.as_str())
        .collect();
    let applying = enforced.config.stages.len() + beyond.len();
    for InForce { policy, target } in &enforced.beyond_limit {
        let at = policies.binary_search_by(|state| state.name.cmp(policy));
        if let Some(state) = at.ok().and_then(|at| policies.get_mut(at)) {
            let most = state.beyond_limit.entry(target.clone()).or_default();
            *most = applying.max(*most);
        }
    }
}

/// Gives each target that exists to the first of `candidates`, and records a conflict for the
/// others.
fn contest<'a>(
    finder: &Finder<'a>,
    claims: &Claims<'_>,
    candidates: &mut [Candidate<'a>],
) -> Vec<Won<'a>> {
    let mut all: Vec<Won<'a>> = Vec::new();
    let mut winners: HashMap<&TargetRef, usize> = HashMap::new();
    for (at, candidate) in candidates.iter_mut().enumerate() {
        let (mut names, first) = (0, all.len());
        for target in &candidate.policy.targets {
            if let Some(winner) = winners.get(target).and_then(|won| all.get(*won)) {
                candidate.state.conflicts.push(Conflict {
                    target: target.clone(),
                    winner: winner.policy.full_name(),
                });
                continue;
            }
            let found = finder.find(&candidate.key.namespace, target, claims.any(target));
            match found.and_then(|found| found.within(target, &mut names)) {
                Err(why) => candidate.state.not_found.push((target.clone(), why)),
                Ok(mut found) => {
                    candidate.state.warnings.append(&mut found.left_out);
                    winners.insert(target, all.len());
                    all.push(Won {
                        candidate: at,
                        policy: candidate.policy,
                        target,
                        found,
                    });
                }
            }
        }
        for won in all.iter_mut().skip(first) {
            let warning = won.found.take_rules(won.target, &mut names);
            candidate.state.warnings.extend(warning);
        }
    }
    all
}

/// Adds a warning to each policy that is in force at several Gateways of the same proxies. There
/// each Gateway has its own Wasm VMs, which share the policy's slots but not its queue.
fn warn_of_merged(
    cluster: &Cluster,
    won: &[Won<'_>],
    drafts: &[Draft<'_>],
    counts: &[Count],
    candidates: &mut [Candidate<'_>],
) {
    let mut at: BTreeMap<(usize, &str), BTreeSet<ObjectKey>> = BTreeMap::new();
    let merged = drafts.iter().zip(counts);
    for (draft, _) in merged.filter(|(_, count)| count.is_merged && count.in_force) {
        let found = draft.gateway().and_then(|key| {
            let class = cluster.gateways.get(&key)?.class.as_str();
            Some(((won.get(draft.won)?.candidate, class), key))
        });
        if let Some((of, gateway)) = found {
            at.entry(of).or_default().insert(gateway);
        }
    }
    for ((candidate, class), gateways) in at {
        let mut gateways = gateways.iter();
        let two = gateways.next().zip(gateways.next());
        if let (Some((one, other)), Some(candidate)) = (two, candidates.get_mut(candidate)) {
            candidate.state.warnings.push(format!(
                "Gateways {one} and {other} have the same proxies (mergeGateways of class \
                 {class}); each has its own queue for the policy's slots, so one may get no slot \
                 while the other is overloaded; let Envoy Gateway run the native filter, or give \
                 each Gateway its own routes and policy"
            ));
        }
    }
}

/// Returns the conflicts of a policy without an effective version, which is no candidate.
fn taken(key: &ObjectKey, object: &PolicyObject, winners: &Winners<'_>) -> Vec<Conflict> {
    let own = precedence_of(object.created.as_deref(), &key.namespace, &key.name);
    conflicts(own, &object.targets, winners)
}

/// Returns the proxies on which policies without an effective version may be in force. Proxies of
/// targets that older policies won are left out. So are proxies of other namespaces, such as those
/// of a shared Gateway, because a mistake of one tenant must not affect others.
fn lost(
    cluster: &Cluster,
    winners: &Winners<'_>,
    finder: &Finder<'_>,
    claims: &Claims<'_>,
) -> Vec<ProxySelector> {
    let lost = { cluster.policies.iter() }.filter(|(_, object)| object.effective.is_none());
    let targets = lost.flat_map(|(key, object)| {
        let taken = taken(key, object, winners);
        let is_taken = move |target: &TargetRef| taken.iter().any(|c| c.target == *target);
        let targets = object
            .targets
            .iter()
            .filter(move |target| !is_taken(target));
        targets.map(|target| (&key.namespace, target))
    });
    let proxies = targets.flat_map(|(namespace, target)| {
        let found = finder.find(namespace, target, claims.any(target)).ok();
        let reach = found.into_iter().flat_map(|found| found.reach);
        let proxies = reach.map(|reach| reach.proxies);
        proxies.filter(move |proxies| proxies.namespace == *namespace)
    });
    proxies.collect()
}

/// Returns the state of a policy, without the outcomes of its targets.
fn state(key: &ObjectKey, object: &PolicyObject) -> PolicyState {
    PolicyState::new(
        (key.to_string(), format!("AdmissionPolicy {key}")),
        object.generation,
        &object.targets,
        object.accepted.clone(),
        object.effective.as_ref(),
    )
}

/// Returns the attachments of the winning policies to proxies selected by labels. Attachments for
/// some routes precede those for all requests. Attachments of a route precede those of a listener,
/// because the route may belong to the listener. Attachments of a pool precede those of a route,
/// because the pool's slots are for all routes to it. Otherwise the winners' order applies.
fn drafts<'a>(won: &'a [Won<'_>]) -> Vec<Draft<'a>> {
    let of = |(at, won): (usize, &'a Won<'_>)| {
        won.found.reach.iter().map(move |reach| Draft {
            won: at,
            policy: won.policy,
            target: won.target,
            proxies: &reach.proxies,
            routes: &reach.routes,
        })
    };
    let mut drafts: Vec<Draft<'a>> = won.iter().enumerate().flat_map(of).collect();
    drafts.sort_by_key(|d| {
        let is_of_pool = d.target.kind == TargetKind::InferencePool;
        (d.routes.is_empty(), d.target.section.is_some(), !is_of_pool)
    });
    drafts
}

/// Returns the share of a proxy that names the target. Such proxies are in front of the proxies
/// selected by labels, so each group divides all slots among its own proxies. If a Pod is in both
/// groups, the proxies of both groups divide the slots together.
fn claimed_share(won: &Won<'_>, counts: &[&Count], claimed: u32) -> Share {
    let sum = |count: fn(&Count) -> u32| counts.iter().map(|c| count(c)).sum::<u32>();
    let both = sum(|c| c.claiming);
    let proxies = match both {
        0 => claimed,
        both => claimed + sum(|c| c.sharing) - both,
    };
    let reached = || {
        let ready = [(won.target.clone(), sum(|c| c.ready))];
        Endpoints::Shared(Arc::new(BTreeMap::from(ready)))
    };
    Share {
        slots: won.policy.slots,
        proxies,
        endpoints: won.found.claimed_endpoints.clone().unwrap_or_else(reached),
    }
}

/// Returns the draft that overrides all drafts of `counts`. `None` if one of these is in force at
/// some proxy.
fn winner(counts: &[&Count]) -> Option<usize> {
    match counts.iter().any(|c| c.in_force) {
        true => None,
        false => counts.iter().filter_map(|c| c.lost_to).min(),
    }
}
