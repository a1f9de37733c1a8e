//! Proxies of Envoy Gateway that share a policy's slots.
//!
//! Unless told otherwise, Envoy Gateway runs the proxies of all Gateways in a namespace of its own, and they
//! don't have the label by which the Pods of a Gateway are known elsewhere (GEP-1762). Were they not counted,
//! each replica would have all the slots.

use std::collections::BTreeMap;
use std::sync::Arc;

use headgate_core::config::FilterConfig;

use super::workload::Workload;
use crate::compile::revision;
use crate::kubernetes::cluster::{Cluster, ObjectKey, Pod};
use crate::plan::{GATEWAY_NAME_LABEL, Plan, Share, TargetRef};

/// Label of Envoy Gateway's proxies: name of their Gateway.
const OWNER_NAME: &str = "gateway.envoyproxy.io/owning-gateway-name";
/// Label of Envoy Gateway's proxies: namespace of their Gateway.
const OWNER_NAMESPACE: &str = "gateway.envoyproxy.io/owning-gateway-namespace";

/// Ready proxies of Envoy Gateway by Gateway, but those that the plan has counted.
#[must_use]
pub fn proxies(cluster: &Cluster) -> BTreeMap<ObjectKey, u32> {
    let mut counts = BTreeMap::new();
    let gateway = |pod: &Pod| {
        let label = |name: &str| pod.labels.get(name).cloned();
        let counted = pod.labels.contains_key(GATEWAY_NAME_LABEL) || !pod.ready;
        (!counted).then_some(ObjectKey::new(label(OWNER_NAMESPACE)?, label(OWNER_NAME)?))
    };
    for gateway in cluster.pods.values().filter_map(gateway) {
        *counts.entry(gateway).or_default() += 1;
    }
    counts
}

/// What each proxy of `workload` enforces when `proxies` share the slots, too.
#[must_use]
pub fn shared(
    workload: &Workload,
    plan: &Plan,
    cluster: &Cluster,
    proxies: &BTreeMap<ObjectKey, u32>,
) -> Arc<FilterConfig> {
    let of_target = |target: &TargetRef| -> u32 {
        let own = ObjectKey::new(&target.namespace, &target.name);
        match cluster.routes.get(target) {
            Some(route) => route.gateways.iter().filter_map(|g| proxies.get(g)).sum(),
            None => proxies.get(&own).copied().unwrap_or(0),
        }
    };
    let mut config = (*workload.config).clone();
    for stage in &mut config.stages {
        let of_stage = plan.attachments.iter().filter(|a| {
            a.proxies == workload.proxies
                && a.stage.policy == stage.policy
                && workload.targets.contains(&a.target)
        });
        let shares = of_stage.map(|a| {
            let shared = Share {
                proxies: a.share.proxies.saturating_add(of_target(&a.target)),
                ..a.share.clone()
            };
            (a.share.clone(), shared)
        });
        if let Some((own, shared)) = shares.reduce(|a, b| (a.0.and(&b.0), a.1.and(&b.1))) {
            *stage = shared.instead_of(&own, stage);
        }
    }
    if config == *workload.config {
        return Arc::clone(&workload.config);
    }
    config.revision = String::new();
    config.revision = revision(&config);
    Arc::new(config)
}
