//! Lookup of targets: the proxies that serve a target and the endpoints behind them, or what is
//! missing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use headgate_core::config::MAX_ROUTES;

use crate::kubernetes::cluster::{Cluster, Gateway, ObjectKey, Pool, Route};
use headgate_api::plan::{
    Endpoints, GATEWAY_NAME_LABEL, ProxySelector, Selectors, TARGET_METADATA, TargetKind, TargetRef,
};

/// The number of names that one route, or one of its rules, has in Envoys.
const NAMES: usize = 2;

/// A target that was found.
#[derive(Debug)]
pub(super) struct Found {
    /// Pods whose proxies enforce a policy of this target, each with the routes that it applies to.
    pub(super) reach: Vec<Reach>,
    /// The endpoints behind those proxies.
    pub(super) endpoints: Endpoints,
    /// The endpoints behind proxies that name the target themselves; `None`: the Pods that are
    /// reached.
    pub(super) claimed_endpoints: Option<Endpoints>,
    /// Requests of the target that proxies can't distinguish from others; one line.
    pub(super) left_out: Option<String>,
}

impl Found {
    /// Returns itself, if its route names fit into one stage together with the `names` route names
    /// of the policy's earlier targets.
    ///
    /// # Errors
    /// One line: they don't fit, with the remedy.
    pub(super) fn within(self, names: &mut usize) -> Result<Self, String> {
        // Each proxy has one of these.
        let more = self.reach.iter().map(|r| r.routes.len()).max();
        let all = *names + more.unwrap_or(0);
        if all > MAX_ROUTES {
            return Err(format!(
                "with it the policy is for {} routes, and {} are the most; target the Gateway, or \
                 fewer routes",
                all / NAMES,
                MAX_ROUTES / NAMES
            ));
        }
        *names = all;
        Ok(self)
    }
}

/// Pods, with the routes that a policy applies to.
#[derive(Debug, PartialEq)]
pub(super) struct Reach {
    /// The Pods.
    pub(super) proxies: ProxySelector,
    /// Patterns of route names, as in `StageConfig`; none: all requests.
    pub(super) routes: Vec<String>,
}

/// Routes, each with its target reference.
type Routes<'a> = Vec<(&'a TargetRef, &'a Route)>;

/// Finds targets in a cluster.
#[derive(Debug)]
pub(super) struct Finder<'a> {
    cluster: &'a Cluster,
    routes: HashMap<&'a ObjectKey, Routes<'a>>,
    /// The routes of a pool's own namespace that have it among their backends.
    to_pools: HashMap<&'a TargetRef, Routes<'a>>,
    /// The ready endpoints of each pool.
    pools: HashMap<&'a ObjectKey, u32>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        let mut routes: HashMap<&ObjectKey, Routes<'_>> = HashMap::new();
        let mut to_pools: HashMap<&TargetRef, Routes<'_>> = HashMap::new();
        for (target, route) in &cluster.routes {
            let is_pool = |b: &&TargetRef| {
                b.kind == TargetKind::InferencePool && b.namespace == target.namespace
            };
            for pool in BTreeSet::from_iter(route.rules.iter().flatten().filter(is_pool)) {
                to_pools.entry(pool).or_default().push((target, route));
            }
            for gateway in BTreeSet::from_iter(&route.gateways) {
                routes.entry(gateway).or_default().push((target, route));
            }
        }
        Self {
            cluster,
            routes,
            to_pools,
            pools: pools(cluster),
        }
    }

    /// Finds `target` of a policy of `namespace`. `is_claimed` means that a proxy names it, so that
    /// its labels need not be known.
    ///
    /// # Errors
    /// One line: what is missing, with the remedy.
    pub(super) fn find(
        &self,
        namespace: &str,
        target: &TargetRef,
        is_claimed: bool,
    ) -> Result<Found, String> {
        if target.namespace != namespace {
            return Err(format!(
                "{target} is not of the policy's own namespace {namespace}"
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
                "Service {key} has no selector, so the Pods behind it are unknown; give it one, or \
                 annotate the Pods whose proxies are in front of it with {TARGET_METADATA}: \
                 {target}"
            ));
        }
        Ok(Found {
            reach,
            endpoints: Endpoints::Own,
            claimed_endpoints: Some(self.ready([target])),
            left_out: None,
        })
    }

    fn gateway(&self, target: &TargetRef, key: &ObjectKey) -> Result<Found, String> {
        self.check_served(target)?;
        let gateway = self.cluster.gateways.get(key);
        let gateway = gateway.ok_or_else(|| absent(target))?;
        let mut routes = self.routes.get(key).cloned().unwrap_or_default();
        let mut reach = everywhere(&key.namespace, gateway_labels(key));
        let mut left_out = None;
        if let Some(listener) = &target.section {
            (routes, left_out) = of_listener(listener, target, key, gateway, routes)?;
            reach.routes = routes
                .iter()
                .flat_map(|(name, _)| route_names(name))
                .collect();
        }
        let endpoints = self.ready(
            routes
                .iter()
                .flat_map(|(_, route)| route.rules.iter().flatten()),
        );
        Ok(Found {
            reach: vec![reach],
            endpoints: endpoints.clone(),
            claimed_endpoints: Some(endpoints),
            left_out,
        })
    }

    fn route(&self, target: &TargetRef, is_claimed: bool) -> Result<Found, String> {
        self.check_served(target)?;
        let route = self
            .cluster
            .routes
            .get(target)
            .ok_or_else(|| absent(target))?;
        let parents = BTreeSet::from_iter(&route.gateways);
        // Gateways of other namespaces count only if they have accepted the route, and only for its
        // requests.
        let reach: Vec<Reach> = parents
            .iter()
            .filter(|gateway| self.cluster.gateways.contains_key(**gateway))
            .map(|gateway| Reach {
                proxies: ProxySelector {
                    namespace: gateway.namespace.clone(),
                    labels: gateway_labels(gateway),
                },
                routes: route_names(target).to_vec(),
            })
            .collect();
        if reach.is_empty() && !is_claimed {
            return Err(without_gateway(target, &parents));
        }
        let endpoints = self.ready(route.rules.iter().flatten());
        Ok(Found {
            reach,
            endpoints: endpoints.clone(),
            claimed_endpoints: Some(endpoints),
            left_out: None,
        })
    }

    /// Finds a pool by the rules of routes that have it among their backends. Its own Pods seldom
    /// have proxies, and one there would be behind the endpoint picker.
    fn pool(&self, target: &TargetRef, key: &ObjectKey, is_claimed: bool) -> Result<Found, String> {
        self.check_served(target)?;
        if !self.cluster.pools.contains_key(key) {
            return Err(absent(target));
        }
        let routes = self.to_pools.get(target).map_or(&[][..], |routes| routes);
        let mut names: BTreeMap<&ObjectKey, Vec<String>> = BTreeMap::new();
        let mut backends = BTreeSet::from([target]);
        for (name, route) in routes {
            let rules = || route.rules.iter().filter(|rule| rule.contains(target));
            backends.extend(rules().flatten());
            let patterns: Vec<String> = match rules().count() == route.rules.len() {
                true => route_names(name).to_vec(),
                false => { route.rules.iter().enumerate() }
                    .filter(|(_, rule)| rule.contains(target))
                    .flat_map(|(number, _)| rule_names(name, number))
                    .collect(),
            };
            let gateways = BTreeSet::from_iter(&route.gateways).into_iter();
            for gateway in gateways.filter(|g| self.cluster.gateways.contains_key(*g)) {
                names
                    .entry(gateway)
                    .or_default()
                    .extend_from_slice(&patterns);
            }
        }
        if names.is_empty() && !is_claimed {
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
        let left_out = other.map(|other| {
            format!(
                "{target} shares a route's rule with {other}, and it is for all requests of the \
                 rule; give it a rule of its own"
            )
        });
        let endpoints = self.ready(backends);
        let reach = names.into_iter().map(|(gateway, routes)| Reach {
            routes,
            ..everywhere(&gateway.namespace, gateway_labels(gateway))
        });
        Ok(Found {
            reach: reach.collect(),
            endpoints: endpoints.clone(),
            claimed_endpoints: Some(endpoints),
            left_out,
        })
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

/// Returns the ready endpoints of each InferencePool: the ports of its ready Pods.
fn pools(cluster: &Cluster) -> HashMap<&ObjectKey, u32> {
    let all: Vec<_> = cluster.pools.iter().collect();
    let selector = |(key, pool): &(&ObjectKey, &Pool)| ProxySelector {
        namespace: key.namespace.clone(),
        labels: pool.selector.clone(),
    };
    let selectors = Selectors::new(all.iter().map(selector).collect());
    let mut ready: HashMap<&ObjectKey, u32> = HashMap::new();
    let mut matching = Vec::new();
    let pods = cluster
        .pods
        .iter()
        .filter(|(_, pod)| pod.ready && !all.is_empty());
    for (key, pod) in pods {
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
        left_out: None,
    })
}

/// Returns the `routes` of a Gateway that are attached only to this listener, and a message about
/// those that are attached to others, too.
///
/// Envoy names its routes after those of Gateway API, without the listener through which a request
/// came.
fn of_listener<'a>(
    listener: &str,
    target: &TargetRef,
    key: &ObjectKey,
    gateway: &Gateway,
    mut routes: Routes<'a>,
) -> Result<(Routes<'a>, Option<String>), String> {
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
        "give routes sectionName: {listener}, and no other, in their parentRefs of Gateway {key}, \
         or target them"
    );
    if alone.is_empty() {
        return Err(format!(
            "no route is at listener {listener} alone; {advice}"
        ));
    }
    let left_out = others.first().map(|(route, _)| {
        let number = others.len();
        format!(
            "{target} shares {number} routes with other listeners, such as {route}, and it is not \
             for these; {advice}"
        )
    });
    Ok((alone, left_out))
}

fn everywhere(namespace: &str, labels: BTreeMap<String, String>) -> Reach {
    Reach {
        proxies: ProxySelector {
            namespace: namespace.to_owned(),
            labels,
        },
        routes: Vec::new(),
    }
}

fn gateway_labels(gateway: &ObjectKey) -> BTreeMap<String, String> {
    BTreeMap::from([(GATEWAY_NAME_LABEL.to_owned(), gateway.name.clone())])
}

/// Returns the patterns of a route's rules in Envoy Gateway and Istio, whose names are
/// `httproute/ns/name/rule/0/match/0/host` and `ns.name.0`. Istio's pattern of a route `a` also
/// matches a route `a.b` of the same namespace.
fn route_names(route: &TargetRef) -> [String; NAMES] {
    let kind = route.kind.as_str().to_ascii_lowercase();
    let (namespace, name) = (&route.namespace, &route.name);
    [
        format!("{kind}/{namespace}/{name}/*"),
        format!("{namespace}.{name}.*"),
    ]
}

/// Returns the patterns of one rule of a route, by its number. In Istio they are for rules without
/// a name of their own.
fn rule_names(route: &TargetRef, number: usize) -> [String; NAMES] {
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
             namespace has accepted it; name one in its parentRefs that allows routes from here"
        );
    }
    let names: Vec<String> = parents.iter().map(ToString::to_string).collect();
    format!(
        "{kind} {namespace}/{name} has parent Gateway {}, which doesn't exist",
        names.join(", ")
    )
}
