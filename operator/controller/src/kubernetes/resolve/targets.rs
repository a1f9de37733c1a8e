//! Looks up targets. The result is the proxies that serve a target and the endpoints behind them,
//! or a message about what is missing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use headgate_core::config::MAX_ROUTES;

use headgate_api::plan::{
    Endpoints, GATEWAY_NAME_LABEL, ProxySelector, Selectors, TARGET_METADATA, TargetKind, TargetRef,
};
use headgate_deliver::cluster::{Cluster, Gateway, ObjectKey, Pool, Route};

/// A target that was found.
#[derive(Debug)]
pub(super) struct Found {
    /// The Pods whose proxies enforce a policy of this target, with the routes to which it applies.
    pub(super) reach: Vec<Reach>,
    /// The endpoints behind those proxies.
    pub(super) endpoints: Endpoints,
    /// The endpoints behind proxies that name the target themselves. `None` means the Pods in
    /// `reach`.
    pub(super) claimed_endpoints: Option<Endpoints>,
    /// Messages about requests of the target that proxies can't distinguish from others, one line
    /// each.
    pub(super) left_out: Vec<String>,
}

impl Found {
    /// Returns a target whose proxies are in front of `endpoints`, regardless of the
    /// policy that names the target.
    fn in_front_of(endpoints: Endpoints, reach: Vec<Reach>, left_out: Vec<String>) -> Self {
        Self {
            reach,
            endpoints: endpoints.clone(),
            claimed_endpoints: Some(endpoints),
            left_out,
        }
    }

    /// Returns `self`, which was found for `target`, if its route names fit into one stage together
    /// with those of the policy's earlier targets, and adds their number to `names`. `names` is the
    /// number of route names of the earlier targets. Names of whole routes replace those of their
    /// rules if only these fit.
    ///
    /// # Errors
    /// Returns one line that says that the names don't fit, and the remedy.
    pub(super) fn within(mut self, target: &TargetRef, names: &mut usize) -> Result<Self, String> {
        // A proxy belongs to only one item of `reach`, so the largest number counts.
        let all =
            |reach: &[Reach]| *names + reach.iter().map(|r| r.routes.len()).max().unwrap_or(0);
        let split = all(&self.reach);
        if split > MAX_ROUTES {
            for reach in self.reach.iter_mut().filter(|r| !r.whole.is_empty()) {
                reach.routes = std::mem::take(&mut reach.whole);
            }
        }
        let all = all(&self.reach);
        if split > MAX_ROUTES && all < split {
            self.left_out.push(format!(
                "{target} names whole routes instead of their rules, because the rules have \
                 {split} names of Envoy's routes, and a policy has at most {MAX_ROUTES}; so this \
                 policy may apply to requests to an InferencePool instead of the pool's policy, or \
                 another policy instead of this one: give the pool a policy without other targets, \
                 or target fewer routes"
            ));
        }
        if all > MAX_ROUTES {
            return Err(format!(
                "with it the policy has {all} names of Envoy's routes, two for each route or rule, \
                 and at most {MAX_ROUTES} are possible; target the Gateway, or fewer routes"
            ));
        }
        *names = all;
        Ok(self)
    }

    /// Adds as many names of rules as fit beside `names`, the number of route names of all the
    /// policy's targets. Returns a warning if some names don't fit. To leave these out is better
    /// than to report `target` as not found.
    pub(super) fn take_rules(&mut self, target: &TargetRef, names: &mut usize) -> Option<String> {
        let room = MAX_ROUTES.saturating_sub(*names);
        let (mut most, mut beyond) = (0, None);
        for reach in &mut self.reach {
            let rest = reach.rules.split_off(room.min(reach.rules.len()));
            most = most.max(reach.rules.len());
            reach.routes.append(&mut reach.rules);
            beyond = beyond.or(rest.into_iter().next());
        }
        *names += most;
        beyond.map(|rule| {
            format!(
                "{target} leaves out rules with a name, such as {rule}, at Gateways of Istio: with \
                 them the policy would have more than {MAX_ROUTES} names of Envoy's routes; remove \
                 the rules' names, or target the Gateway or fewer routes"
            )
        })
    }
}

/// Pods, and the routes on their proxies to which a policy applies.
#[derive(Debug, PartialEq)]
pub(super) struct Reach {
    /// The Pods.
    pub(super) proxies: ProxySelector,
    /// Patterns of route names, as in `StageConfig`. Empty means all requests.
    pub(super) routes: Vec<String>,
    /// `routes` with patterns of whole routes in place of those of `Finder::split`. Empty
    /// if there are none of these.
    whole: Vec<String>,
    /// Further patterns, of which [`Found::take_rules`] adds as many as fit.
    pub(super) rules: Vec<String>,
}

/// Routes, each with its target reference.
type Routes<'a> = Vec<(&'a TargetRef, &'a Route)>;

/// Finds targets in a cluster.
#[derive(Debug)]
pub(super) struct Finder<'a> {
    cluster: &'a Cluster,
    routes: HashMap<&'a ObjectKey, Routes<'a>>,
    /// The routes to each pool, in the pool's own namespace.
    to_pools: HashMap<&'a TargetRef, Routes<'a>>,
    /// Routes whose rules are named one by one in their own namespace, because one policy is for a
    /// pool behind some of the rules and for other targets. Then its stage can stand behind a stage
    /// for another rule, or for the rest of the route.
    split: HashSet<&'a TargetRef>,
    /// The number of rules at a Gateway that have this name.
    named: BTreeMap<(&'a ObjectKey, &'a str), usize>,
    /// The ready endpoints of each pool.
    pools: HashMap<&'a ObjectKey, u32>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        let mut routes: HashMap<&ObjectKey, Routes<'_>> = HashMap::new();
        let mut to_pools: HashMap<&TargetRef, Routes<'_>> = HashMap::new();
        let mut named: BTreeMap<(&ObjectKey, &str), usize> = BTreeMap::new();
        for (target, route) in cluster.routes.iter() {
            let is_pool = |b: &&TargetRef| {
                b.kind == TargetKind::InferencePool && b.namespace == target.namespace
            };
            for pool in BTreeSet::from_iter(route.rules.iter().flatten().filter(is_pool)) {
                to_pools.entry(pool).or_default().push((target, route));
            }
            for gateway in BTreeSet::from_iter(&route.gateways) {
                routes.entry(gateway).or_default().push((target, route));
                for rule in route.names.values() {
                    *named.entry((gateway, rule)).or_default() += 1;
                }
            }
        }
        let targets = cluster.policies.values().filter_map(|object| {
            let targets = &object.effective.as_ref()?.targets;
            let is_pool = |target: &&TargetRef| target.kind == TargetKind::InferencePool;
            (!targets.iter().all(|target| is_pool(&target))).then(|| targets.iter().filter(is_pool))
        });
        let pools_among_others = targets.flatten().filter_map(|pool| to_pools.get(pool));
        let split = pools_among_others.flatten().map(|(name, _)| *name);
        Self {
            cluster,
            split: split.collect(),
            routes,
            to_pools,
            named,
            pools: pools(cluster),
        }
    }

    /// Finds `target` of a policy in `namespace`. `is_claimed` means that a proxy names the target,
    /// so the labels of its Pods aren't needed.
    ///
    /// # Errors
    /// Returns one line that says what is missing, with the remedy.
    pub(super) fn find(
        &self,
        namespace: &str,
        target: &TargetRef,
        is_claimed: bool,
    ) -> Result<Found, String> {
        if target.namespace != namespace {
            return Err(format!(
                "{target} is not in the policy's own namespace {namespace}"
            ));
        }
        let key = ObjectKey::new(&target.namespace, &target.name);
        match target.kind {
            TargetKind::Service => self.service(target, &key, is_claimed),
            TargetKind::Pod => pods(target),
            TargetKind::Gateway => self.gateway(target, &key),
            TargetKind::HttpRoute | TargetKind::GrpcRoute => self.route(target, is_claimed),
            TargetKind::InferencePool => self.pool(target, &key, is_claimed),
        }
    }

    fn service(
        &self,
        target: &TargetRef,
        key: &ObjectKey,
        is_claimed: bool,
    ) -> Result<Found, String> {
        let service = self
            .cluster
            .services
            .get(key)
            .ok_or_else(|| absent(target))?;
        let mut reach = Vec::new();
        if !service.selector.is_empty() {
            reach.push(everywhere(&target.namespace, service.selector.clone()));
        } else if !is_claimed {
            return Err(format!(
                "Service {key} has no selector, so its Pods are unknown; give it a selector, or \
                 annotate the Pods of its proxies with {TARGET_METADATA}: {target}"
            ));
        }
        Ok(Found {
            reach,
            endpoints: Endpoints::Own,
            claimed_endpoints: Some(self.ready([target])),
            left_out: Vec::new(),
        })
    }

    fn gateway(&self, target: &TargetRef, key: &ObjectKey) -> Result<Found, String> {
        self.check_served(target)?;
        let gateway = self.cluster.gateways.get(key);
        let gateway = gateway.ok_or_else(|| absent(target))?;
        let mut routes = self.routes.get(key).cloned().unwrap_or_default();
        let mut reach = everywhere(&key.namespace, gateway_labels(key));
        let mut left_out = Vec::new();
        if let Some(listener) = &target.section {
            (routes, left_out) = of_listener(listener, target, key, gateway, routes)?;
            reach = self.reach(target, key, &routes, &mut left_out);
        }
        let backends = { routes.iter() }.flat_map(|(_, route)| route.rules.iter().flatten());
        Ok(Found::in_front_of(
            self.ready(backends),
            vec![reach],
            left_out,
        ))
    }

    fn route(&self, target: &TargetRef, is_claimed: bool) -> Result<Found, String> {
        self.check_served(target)?;
        let route = self
            .cluster
            .routes
            .get(target)
            .ok_or_else(|| absent(target))?;
        let parents = BTreeSet::from_iter(&route.gateways);
        // `route.gateways` contains Gateways of other namespaces only if they have accepted the
        // route. The policy applies there only to the route's requests.
        let mut left_out = Vec::new();
        let reach: Vec<Reach> = parents
            .iter()
            .filter(|gateway| self.cluster.gateways.contains_key(**gateway))
            .map(|gateway| self.reach(target, gateway, &[(target, route)], &mut left_out))
            .collect();
        if reach.is_empty() && !is_claimed {
            return Err(without_gateway(target, &parents));
        }
        let endpoints = self.ready(route.rules.iter().flatten());
        Ok(Found::in_front_of(endpoints, reach, left_out))
    }

    /// Finds a pool through the rules of routes that refer to it. A pool's own Pods seldom have
    /// proxies, and such a proxy would be behind the endpoint picker.
    fn pool(&self, target: &TargetRef, key: &ObjectKey, is_claimed: bool) -> Result<Found, String> {
        self.check_served(target)?;
        if !self.cluster.pools.contains_key(key) {
            return Err(absent(target));
        }
        let routes = self.to_pools.get(target).map_or(&[][..], |routes| routes);
        let mut at: BTreeMap<&ObjectKey, Routes<'_>> = BTreeMap::new();
        let mut backends = BTreeSet::from([target]);
        for (name, route) in routes {
            backends.extend(route.rules.iter().filter(|r| r.contains(target)).flatten());
            let gateways = BTreeSet::from_iter(&route.gateways).into_iter();
            for gateway in gateways.filter(|g| self.cluster.gateways.contains_key(*g)) {
                at.entry(gateway).or_default().push((name, route));
            }
        }
        if at.is_empty() && !is_claimed {
            return Err(match routes.first() {
                Some((name, route)) => without_gateway(name, &route.gateways.iter().collect()),
                None => format!(
                    "InferencePool {key} is no backend of a route: no HTTPRoute or GRPCRoute of \
                     its namespace has it in backendRefs; add it to one, or target its Pods by \
                     their labels, with kind Pod"
                ),
            });
        }
        let other = backends.iter().find(|b| **b != target);
        let shared = other.map(|other| {
            format!(
                "{target} shares a route's rule with {other}, so the policy applies to all \
                 requests of the rule; give it a rule of its own"
            )
        });
        let mut left_out = Vec::from_iter(shared);
        let reach = { at.iter() }
            .map(|(gateway, routes)| self.reach(target, gateway, routes, &mut left_out))
            .collect();
        Ok(Found::in_front_of(self.ready(backends), reach, left_out))
    }

    /// Returns the proxies of `gateway` for the requests of these routes. If `target` is a pool,
    /// these are only the requests of the rules that refer to the pool. Adds to `left_out` a
    /// message for each rule that these proxies can't distinguish from a rule outside the target.
    fn reach(
        &self,
        target: &TargetRef,
        gateway: &ObjectKey,
        routes: &[(&'a TargetRef, &'a Route)],
        left_out: &mut Vec<String>,
    ) -> Reach {
        let mut reach = everywhere(&gateway.namespace, gateway_labels(gateway));
        let is_of = |rule: &BTreeSet<TargetRef>| {
            target.kind != TargetKind::InferencePool || rule.contains(target)
        };
        let mut named: BTreeMap<&str, Vec<&TargetRef>> = BTreeMap::new();
        for (name, route) in routes {
            let rules = { route.rules.iter().enumerate() }.filter(|(_, rule)| is_of(rule));
            let numbers: Vec<usize> = rules.map(|(number, _)| number).collect();
            let is_split = numbers.len() > 1
                && name.namespace == target.namespace
                && self.split.contains(name);
            let is_whole = numbers.len() == route.rules.len();
            let rules = || {
                numbers
                    .iter()
                    .flat_map(move |number| rule_names(name, *number))
            };
            if is_whole && !is_split {
                reach.routes.extend(route_names(name));
                left_out.extend(self.taken_in(target, gateway, name, route));
            } else {
                reach.routes.extend(rules());
            }
            match is_whole {
                _ if self.split.is_empty() => {}
                true => reach.whole.extend(route_names(name)),
                false => reach.whole.extend(rules()),
            }
            for rule in numbers.iter().filter_map(|number| route.names.get(number)) {
                named.entry(rule).or_default().push(name);
            }
        }
        for (rule, of) in named {
            // A name with two dots may equal the name that Istio gives to an unnamed rule.
            let is_alone = self.named.get(&(gateway, rule)) == Some(&of.len());
            if is_alone && rule.matches('.').count() < 2 {
                reach.rules.push(rule.to_owned());
            } else if let Some(route) = of.first() {
                left_out.push(format!(
                    "{target} leaves out the rule {rule} of {route} if Gateway {gateway} is of \
                     Istio, which identifies a rule by its name only: other rules have this name, \
                     or may get it; remove or change the rule's name"
                ));
            }
        }
        reach
    }

    /// Returns a warning if Istio's pattern for a route also matches a named rule of another route.
    fn taken_in(
        &self,
        target: &TargetRef,
        gateway: &ObjectKey,
        name: &TargetRef,
        route: &Route,
    ) -> Option<String> {
        let prefix = format!("{}.{}.", name.namespace, name.name);
        let from = self.named.range((gateway, prefix.as_str())..);
        let rules = from.map(|((at, rule), _)| (*at, *rule));
        let (_, rule) = rules
            .take_while(|(at, rule)| *at == gateway && rule.starts_with(&prefix))
            .find(|(_, rule)| !route.names.values().any(|own| own == rule))?;
        Some(format!(
            "{target} also selects the rule {rule} of another route if Gateway {gateway} is of \
             Istio, which names the rules of {name} {prefix}0 and so on; change that rule's name"
        ))
    }

    fn check_served(&self, target: &TargetRef) -> Result<(), String> {
        let kind = target.kind;
        if self.cluster.served_kinds.contains(&kind) {
            return Ok(());
        }
        let (api, others) = match kind {
            TargetKind::InferencePool => ("Gateway API's inference extension", "an HTTPRoute"),
            _ => ("Gateway API", "a Service"),
        };
        Err(format!(
            "{api} isn't installed in this cluster: there is no kind {kind}; install its CRDs, or \
             target {others}"
        ))
    }

    /// Returns the ready endpoints of these Services and InferencePools, each counted once.
    fn ready<'k>(&self, backends: impl IntoIterator<Item = &'k TargetRef>) -> Endpoints {
        let ready = |backend: &TargetRef| {
            let key = ObjectKey::new(&backend.namespace, &backend.name);
            let ready = match backend.kind {
                TargetKind::InferencePool => self.pools.get(&key),
                _ => self.cluster.ready_endpoints.get(&key),
            };
            (backend.clone(), ready.copied().unwrap_or(0))
        };
        Endpoints::Shared(Arc::new(backends.into_iter().map(ready).collect()))
    }
}

/// Returns the number of ready endpoints of each InferencePool. Each port of a ready Pod is one
/// endpoint.
fn pools(cluster: &Cluster) -> HashMap<&ObjectKey, u32> {
    let mut ready: HashMap<&ObjectKey, u32> = HashMap::new();
    if cluster.pools.is_empty() {
        return ready;
    }
    let all: Vec<_> = cluster.pools.iter().collect();
    let selector = |(key, pool): &(&ObjectKey, &Pool)| ProxySelector {
        namespace: key.namespace.clone(),
        labels: pool.selector.clone(),
    };
    let selectors = Selectors::new(all.iter().map(selector).collect());
    let mut matching = Vec::new();
    for (key, pod) in cluster.pods.iter().filter(|(_, pod)| pod.ready) {
        selectors.matching(&key.namespace, &pod.labels, &mut matching);
        for (key, pool) in matching.iter().filter_map(|at| all.get(*at)) {
            *ready.entry(key).or_default() += pool.ports;
        }
    }
    ready
}

fn pods(target: &TargetRef) -> Result<Found, String> {
    let labels = target.labels().unwrap_or_default();
    if labels.is_empty() {
        return Err(format!("{target} names no labels; give matchLabels"));
    }
    Ok(Found {
        reach: vec![everywhere(&target.namespace, labels)],
        endpoints: Endpoints::Own,
        claimed_endpoints: None,
        left_out: Vec::new(),
    })
}

/// Returns the `routes` of a Gateway that attach to this listener only, and a message about routes
/// that attach to other listeners too.
///
/// The names of Envoy's routes contain the name of the Gateway API route, but not the listener of
/// the request.
fn of_listener<'a>(
    listener: &str,
    target: &TargetRef,
    key: &ObjectKey,
    gateway: &Gateway,
    mut routes: Routes<'a>,
) -> Result<(Routes<'a>, Vec<String>), String> {
    if !gateway.listeners.contains(listener) {
        let names: Vec<&str> = gateway.listeners.iter().map(String::as_str).collect();
        let names = names.join(", ");
        return Err(format!(
            "Gateway {key} has no listener {listener}; it has {names}"
        ));
    }
    let named = |route: &'a Route| -> BTreeSet<Option<&str>> {
        let here = route.listeners.iter().filter(|(gateway, _)| gateway == key);
        here.map(|(_, name)| name.as_deref()).collect()
    };
    routes.retain(|(_, route)| {
        let named = named(route);
        named.contains(&Some(listener)) || named.contains(&None)
    });
    let is_alone = |(_, route): &(&TargetRef, &'a Route)| {
        gateway.listeners.len() == 1 || named(route) == BTreeSet::from([Some(listener)])
    };
    let (alone, others): (Vec<_>, Vec<_>) = routes.into_iter().partition(is_alone);
    let advice = format!(
        "give routes sectionName: {listener}, and no other, in their parentRefs for Gateway {key}, \
         or target the routes"
    );
    if alone.is_empty() {
        return Err(format!(
            "no route attaches to listener {listener} only; {advice}"
        ));
    }
    let left_out = others.first().map(|(route, _)| {
        let number = others.len();
        format!(
            "{target} shares {number} routes with other listeners, such as {route}, and the policy \
             doesn't apply to them; {advice}"
        )
    });
    Ok((alone, Vec::from_iter(left_out)))
}

fn everywhere(namespace: &str, labels: BTreeMap<String, String>) -> Reach {
    Reach {
        proxies: ProxySelector {
            namespace: namespace.to_owned(),
            labels,
        },
        routes: Vec::new(),
        whole: Vec::new(),
        rules: Vec::new(),
    }
}

fn gateway_labels(gateway: &ObjectKey) -> BTreeMap<String, String> {
    BTreeMap::from([(GATEWAY_NAME_LABEL.to_owned(), gateway.name.clone())])
}

/// Returns the patterns that match a route's rules in Envoy Gateway and in Istio, which name them
/// `httproute/ns/name/rule/0/match/0/host` and `ns.name.0`. Istio's pattern for a route `a` also
/// matches a route `a.b` of the same namespace, and doesn't match named rules (see
/// [`Route::names`]).
fn route_names(route: &TargetRef) -> [String; 2] {
    let kind = route.kind.as_str().to_ascii_lowercase();
    let (namespace, name) = (&route.namespace, &route.name);
    [
        format!("{kind}/{namespace}/{name}/*"),
        format!("{namespace}.{name}.*"),
    ]
}

/// Returns the patterns that match the rule `number` of a route. [`route_names`] returns the
/// patterns for all rules.
fn rule_names(route: &TargetRef, number: usize) -> [String; 2] {
    let [of_envoy_gateway, of_istio] = route_names(route).map(|name| name.replace('*', ""));
    [
        format!("{of_envoy_gateway}rule/{number}/*"),
        format!("{of_istio}{number}"),
    ]
}

fn absent(target: &TargetRef) -> String {
    let TargetRef {
        kind,
        namespace,
        name,
        ..
    } = target;
    format!("{kind} {namespace}/{name} doesn't exist")
}

fn without_gateway(route: &TargetRef, parents: &BTreeSet<&ObjectKey>) -> String {
    let TargetRef {
        kind,
        namespace,
        name,
        ..
    } = route;
    if parents.is_empty() {
        return format!(
            "{kind} {namespace}/{name} has no parent Gateway in its namespace, and none of another \
             namespace has accepted it; name one in its parentRefs that allows routes from its \
             namespace"
        );
    }
    let names: Vec<String> = parents.iter().map(ToString::to_string).collect();
    format!(
        "{kind} {namespace}/{name} has parent Gateway {}, which doesn't exist",
        names.join(", ")
    )
}
