//! The configuration of one proxy, and the policies in it.
//!
//! A thousand Pods of one workload enforce the same configuration, and an edit of one policy leaves
//! the configurations without it unchanged. So only one configuration is made for equal stages.
//! While any proxy or plan uses it, later plans return the same configuration, so that comparing
//! pointers shows that the configuration is unchanged.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headgate_core::config::{FilterConfig, MAX_STAGES, StageConfig};
use serde::{Deserialize, Serialize};

use super::precedence::{Bid, outcomes};
use super::{Portion, ProxySelector, Share, TargetRef, namespace_of};
use crate::compile;

/// A policy attached, through one of its targets, to proxies that are selected by their Pods'
/// labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    /// The target.
    pub target: TargetRef,
    /// The proxies that enforce the policy.
    pub proxies: ProxySelector,
    /// The stage of each of these proxies, with its share of the slots and its routes.
    pub stage: Arc<StageConfig>,
    /// The terms of the share of the slots.
    pub share: Share,
}

/// The policies at one proxy.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Enforced {
    /// The configuration. Without a policy that applies, the configuration has no stages, and all
    /// requests pass.
    pub config: Arc<FilterConfig>,
    /// The policies in force, each with the target through which the policy reaches the proxy.
    pub in_force: Vec<InForce>,
    /// Policies beyond the largest number that a proxy can hold ([`MAX_STAGES`]).
    pub beyond_limit: Vec<InForce>,
    /// The reason why the proxy gets no policies, in one line, if the proxy's owner can change
    /// that.
    pub problem: Option<String>,
}

/// A policy in force at a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// `namespace/name`.
    pub policy: String,
    /// The target through which the policy reaches the proxy.
    pub target: TargetRef,
}

impl Enforced {
    /// Returns a result without policies. `problem` is the reason, if the proxy's owner can change
    /// that.
    pub fn nothing(problem: Option<String>) -> Self {
        Self {
            problem,
            ..Self::default()
        }
    }

    /// Returns the result for proxies that name `target`: all of `config`.
    pub fn by_target(target: &TargetRef, config: &Arc<FilterConfig>) -> Self {
        let in_force = |stage: &StageConfig| InForce {
            policy: stage.policy.clone(),
            target: target.clone(),
        };
        Self {
            config: Arc::clone(config),
            in_force: config.stages.iter().map(in_force).collect(),
            ..Self::default()
        }
    }

    /// Returns the result for a proxy that matches these attachments, which are in order of
    /// precedence.
    pub fn by_labels(matching: &[&Attachment], known: &Configurations) -> Self {
        let outcomes = outcomes(matching.iter().map(|a| Bid::of(&a.stage)));
        let mut enforced = Self::default();
        let in_force = { matching.iter().zip(outcomes) }.filter(|(_, outcome)| outcome.is_ok());
        let in_force: Vec<&Attachment> = in_force.map(|(attachment, _)| *attachment).collect();
        let mut stages: Vec<Part<'_>> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (last, attachment) in in_force.iter().enumerate() {
            let policy = attachment.stage.policy.clone();
            let target = attachment.target.clone();
            let at = *places
                .entry(&attachment.stage.policy)
                .or_insert(stages.len());
            match stages.get_mut(at) {
                Some(part) => {
                    part.attachments.push(attachment);
                    part.last = last;
                }
                None => stages.push(Part {
                    attachments: vec![attachment],
                    routes: Vec::new(),
                    last,
                }),
            }
            enforced.in_force.push(InForce { policy, target });
        }
        // Stages for routes come first: a stage for all requests would take the requests of later
        // stages. A policy's last attachment may be for a whole route, and another policy's for a
        // rule of this route. So the last attachments determine the order.
        stages.sort_by_key(|part| (part.is_for_all(), part.last));
        let dropped = drop_beyond_limit(&mut stages);
        add_routes(&mut stages, &in_force);
        if !dropped.is_empty() {
            let is_dropped = |f: &InForce| dropped.contains(&f.policy);
            let all = std::mem::take(&mut enforced.in_force);
            (enforced.beyond_limit, enforced.in_force) = all.into_iter().partition(is_dropped);
            enforced.problem = Some(format!(
                "{} policies apply to this proxy, at most {MAX_STAGES} can; not in force: {}",
                stages.len() + dropped.len(),
                dropped.join(", ")
            ));
        }
        enforced.config = known.get_or_make(&stages);
        enforced
    }
}

/// The attachments of one policy at one proxy, at least one. Together they make one stage.
struct Part<'a> {
    attachments: Vec<&'a Attachment>,
    /// The routes of these attachments, see [`add_routes`].
    routes: Vec<&'a str>,
    /// The last attachment's place in the order of precedence.
    last: usize,
}

impl<'a> Part<'a> {
    fn policy(&self) -> &'a str {
        &self.attachments[0].stage.policy
    }

    /// Whether the policy is of another namespace than the proxies.
    fn is_foreign(&self) -> bool {
        namespace_of(self.policy()) != self.attachments[0].proxies.namespace
    }

    fn is_for_all(&self) -> bool {
        self.attachments.iter().any(|a| a.stage.routes.is_empty())
    }

    /// Returns the routes of the stage.
    fn routes(&self) -> Vec<String> {
        match self.is_for_all() {
            true => Vec::new(),
            false => self.routes.iter().map(|&route| route.to_owned()).collect(),
        }
    }

    fn stage(&self) -> StageConfig {
        let first = self.attachments[0];
        let stage = StageConfig {
            routes: self.routes(),
            ..StageConfig::clone(&first.stage)
        };
        if self.attachments.len() == 1 {
            return stage;
        }
        self.share().instead_of(&first.share, &stage)
    }

    /// Returns the combined share of all attachments.
    fn share(&self) -> Share {
        let and = |all: Share, a: &&Attachment| all.and(&a.share);
        let first = self.attachments[0].share.clone();
        self.attachments[1..].iter().fold(first, and)
    }

    /// Returns a key that identifies this stage while the attachments' stages exist in memory.
    fn key(&self) -> StageKey {
        let portion = match self.attachments.as_slice() {
            [only] => Portion {
                parallelism: only.stage.parallelism,
                factor: 1.0,
            },
            _ => self.share().portion(),
        };
        let address = |a: &&Attachment| Arc::as_ptr(&a.stage) as usize;
        StageKey {
            stages: self.attachments.iter().map(address).collect(),
            routes: self.routes(),
            is_foreign: self.is_foreign(),
            parallelism: portion.parallelism,
            factor: portion.factor.to_bits(),
        }
    }
}

/// Removes the stages beyond a configuration's limit. Returns their policies. Stages for routes are
/// removed first: their requests then go to the stage for all requests, if one exists.
///
/// A shared Gateway has routes of several namespaces. Precedence by age would be unfair, because an
/// old policy may have got its routes only recently. So stages are removed from the namespace with
/// the most policies, not from namespaces with fewer.
fn drop_beyond_limit(stages: &mut Vec<Part<'_>>) -> Vec<String> {
    let mut of_namespace: HashMap<&str, usize> = HashMap::new();
    let mut order: Vec<(bool, usize, usize)> = Vec::with_capacity(stages.len());
    for (at, part) in stages.iter().enumerate() {
        let before = of_namespace.entry(namespace_of(part.policy())).or_default();
        order.push((!part.is_for_all(), *before, at));
        *before += 1;
    }
    order.sort_unstable();
    let beyond = order.into_iter().skip(MAX_STAGES).map(|(.., at)| at);
    let beyond: BTreeSet<usize> = beyond.collect();
    let mut places = 0..;
    let is_beyond = |_: &mut Part<'_>| places.next().is_some_and(|at| beyond.contains(&at));
    let dropped = stages.extract_if(.., is_beyond);
    dropped.map(|part| part.policy().to_owned()).collect()
}

/// Adds the routes of these attachments, which are in order of precedence, to their stages. A stage
/// doesn't get the routes that a later stage has with precedence, because it would take their
/// requests. It gets those that an earlier stage has: an object without room for the earlier stage
/// omits it, and the requests then go to this one.
fn add_routes<'a>(stages: &mut [Part<'a>], in_force: &[&'a Attachment]) {
    let places = stages.iter().enumerate();
    let places: HashMap<&str, usize> = places.map(|(at, part)| (part.policy(), at)).collect();
    let mut last: HashMap<&str, usize> = HashMap::new();
    for attachment in in_force {
        let place = places.get(attachment.stage.policy.as_str());
        let Some((at, part)) = place.and_then(|at| Some((*at, stages.get_mut(*at)?))) else {
            continue;
        };
        for route in &attachment.stage.routes {
            if last.get(route.as_str()).is_none_or(|last| *last < at) {
                last.insert(route, at);
                part.routes.push(route);
            }
        }
    }
}

/// Returns the stages. Only one has workflows: a process announces one rate for each workflow, and
/// with two policies, its callers would apply one policy's rate to the other's requests. The first
/// policy of the proxies' own namespace keeps them, because at a shared Gateway the routes of other
/// namespaces come first. Without such a policy, the first policy of all keeps them.
fn with_one_policys_workflows(parts: &[Part<'_>]) -> Vec<StageConfig> {
    let mut stages: Vec<StageConfig> = parts.iter().map(Part::stage).collect();
    let with_workflows = stages.iter().zip(parts).enumerate();
    let with_workflows = with_workflows.filter(|(_, (stage, _))| stage.workflows.is_some());
    let first = with_workflows.min_by_key(|(_, (_, part))| part.is_foreign());
    let first = first.map(|(at, _)| at);
    for (at, stage) in stages.iter_mut().enumerate() {
        if Some(at) != first {
            stage.workflows = None;
        }
    }
    stages
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct StageKey {
    /// The addresses of the attachments' stages.
    stages: Vec<usize>,
    /// The routes of the stage.
    routes: Vec<String>,
    /// Whether the policy is of another namespace than the proxies.
    is_foreign: bool,
    parallelism: u32,
    /// The bits of the factor for fractional quantities.
    factor: u64,
}

/// The configurations in use, by the stages that they were made from. Successive plans share these
/// configurations.
#[derive(Debug, Default)]
pub struct Configurations {
    made: Mutex<HashMap<Vec<StageKey>, Made>>,
    empty: Arc<FilterConfig>,
}

#[derive(Debug)]
struct Made {
    config: Weak<FilterConfig>,
    /// Keeps the stages allocated, so that their addresses in the key aren't reused.
    _stages: Vec<Arc<StageConfig>>,
}

/// The largest number of configurations that are kept.
const MAX_CONFIGURATIONS: usize = 65_536;

impl Configurations {
    /// Drops the configurations that are no longer used.
    pub fn forget_unused(&self) {
        self.made().retain(|_, made| made.config.strong_count() > 0);
    }

    fn get_or_make(&self, parts: &[Part<'_>]) -> Arc<FilterConfig> {
        if parts.is_empty() {
            return Arc::clone(&self.empty);
        }
        let key: Vec<StageKey> = parts.iter().map(Part::key).collect();
        if let Some(config) = self.made().get(&key).and_then(|made| made.config.upgrade()) {
            return config;
        }
        let config = Arc::new(compile::of_stages(with_one_policys_workflows(parts)));
        let stages = parts
            .iter()
            .flat_map(|part| &part.attachments)
            .map(|a| Arc::clone(&a.stage))
            .collect();
        let mut known = self.made();
        if known.len() < MAX_CONFIGURATIONS {
            let made = Made {
                config: Arc::downgrade(&config),
                _stages: stages,
            };
            known.insert(key, made);
        }
        config
    }

    fn made(&self) -> MutexGuard<'_, HashMap<Vec<StageKey>, Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
