//! ConfigMaps for Envoys that read their filter from a file (`path_config_source`).
//!
//! The file is the output of `headgate render`. A Pod mounts the ConfigMap as a folder. The
//! bootstrap file has Envoy watch the folder with `watched_directory`, because the kubelet updates
//! such a folder by renaming a symlink.
//!
//! The ConfigMap also contains the file of the outbound slot, even without workflows. An Envoy that
//! is configured to read this file doesn't start without it, and keeps its last configuration if
//! the file disappears. Gateways have no outbound slot, so their ConfigMaps lack the file.
//!
//! A ConfigMap stays after its policies are gone, because without it no further Pod that mounts it
//! could start. Its files then admit every request. A user deletes it, or the clean-up of an
//! uninstallation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headgate_core::config::{Direction, FilterConfig};
use serde_json::{Value, json};

use crate::adapter::Adapter;
use crate::cluster::{Cluster, ObjectKey};
use crate::fit::configuration;
use crate::object::{Object, TARGETS_ANNOTATION, dns, name};
use crate::workload::Workload;
use headgate_api::plan::{TargetKind, TargetRef};
use headgate_xds::resource::discovery_json;
use headgate_xds::{DEFAULT_SLOT, OUTBOUND_SLOT};

/// The key of the inbound slot's file in the ConfigMap.
pub const FILE: &str = "headgate.json";
/// The key of the outbound slot's file in the ConfigMap.
pub const OUTBOUND_FILE: &str = "headgate-outbound.json";
/// The longest target name that is used unchanged in a ConfigMap's name. Kubernetes' limit for the
/// whole name is 253.
const MAX_PLAIN: usize = 200;

/// Returns the files for the proxies of `target`, by name. `module` is the path of the filter
/// module in the proxies. `calls` is the configuration of their outbound slot, if any.
pub fn files(
    target: &TargetRef,
    workload: &Workload,
    calls: Option<&Arc<FilterConfig>>,
    module: &str,
) -> BTreeMap<&'static str, String> {
    let mut files = BTreeMap::from([(FILE, file(&workload.config, DEFAULT_SLOT, module))]);
    if !target.kind.is_of_gateways() {
        let none = FilterConfig {
            direction: Direction::Outbound,
            ..FilterConfig::default()
        };
        let calls = calls.map_or(&none, |calls| &**calls);
        files.insert(OUTBOUND_FILE, file(calls, OUTBOUND_SLOT, module));
    }
    files
}

fn file(config: &FilterConfig, slot: &str, module: &str) -> String {
    format!("{:#}\n", discovery_json(config, slot, module.as_ref()))
}

/// Replaces the path of the module in the files of a ConfigMap's `data`.
pub fn set_module(data: &mut Value, module: &str) {
    for (name, slot, direction) in [
        (FILE, DEFAULT_SLOT, Direction::Inbound),
        (OUTBOUND_FILE, OUTBOUND_SLOT, Direction::Outbound),
    ] {
        let Some(text) = data.get_mut(name) else {
            continue;
        };
        if let Some(config) = configuration(text, direction) {
            *text = file(&config, slot, module).into();
        }
    }
}

/// Returns the ConfigMap of `target`, with these [`files`].
pub fn object(
    target: &TargetRef,
    workload: &Workload,
    files: &BTreeMap<&'static str, String>,
    cluster: &Cluster,
) -> Object {
    let key = ObjectKey::new(&target.namespace, config_map_name(target));
    let mut of_target = workload.clone();
    of_target.targets.retain(|t| t != target);
    of_target.targets.insert(0, target.clone());
    let content = json!({"data": files});
    Object::new(Adapter::ConfigMap, key, &of_target, cluster, None, content)
}

/// Returns the observed ConfigMap `value` without policies. `None` if it names no target whose
/// ConfigMap it is.
pub fn without_policies(
    key: &ObjectKey,
    value: &Value,
    cluster: &Cluster,
    module: &str,
) -> Option<Object> {
    let targets = value["metadata"]["annotations"][TARGETS_ANNOTATION].as_str()?;
    let target: TargetRef = targets.split(' ').next()?.parse().ok()?;
    if target.namespace != key.namespace || config_map_name(&target) != key.name {
        return None;
    }
    let none = Workload::of_target(&target, Arc::default());
    let files = files(&target, &none, None, module);
    Some(object(&target, &none, &files, cluster))
}

/// Returns a name that users can mount, such as `headgate-service-search`. A target whose name is
/// too long, or that has no name, such as Pods, gets a name such as
/// `headgate-pod.app-search-1a2b3c4d`. The dot distinguishes such names from the others.
pub fn config_map_name(target: &TargetRef) -> String {
    let kind = target.kind.as_str().to_ascii_lowercase();
    let plain = target.section.is_none()
        && target.name.len() <= MAX_PLAIN
        && target
            .name
            .split('.')
            .all(|part| !part.is_empty() && dns(part, MAX_PLAIN) == part);
    if plain {
        return format!("headgate-{kind}-{}", target.name);
    }
    let hashed = name(&target.name, &target.to_string());
    hashed.replacen("headgate-", &format!("headgate-{kind}."), 1)
}

/// Whether [`config_map_name`] may return this name.
pub fn may_be_delivered(name: &str) -> bool {
    let is_of = |rest: &str, kind: TargetKind| {
        let rest = rest.strip_prefix(&kind.as_str().to_ascii_lowercase());
        rest.is_some_and(|rest| rest.starts_with(['-', '.']))
    };
    let rest = name.strip_prefix("headgate-");
    rest.is_some_and(|rest| TargetKind::ALL.into_iter().any(|kind| is_of(rest, kind)))
}

/// Returns the namespace and name of each mounted ConfigMap that Headgate may have delivered.
pub fn mounted(cluster: &Cluster) -> BTreeSet<(&str, &str)> {
    let mounts = cluster.pods.iter().flat_map(|(key, pod)| {
        let names = pod.config_maps.iter();
        names.map(|name| (key.namespace.as_str(), name.as_str()))
    });
    mounts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_map_names_are_readable_and_unique() {
        let named = |t: &str| {
            let name = config_map_name(&t.parse().unwrap());
            assert!(may_be_delivered(&name), "{name}");
            name
        };
        assert_eq!(named("Service/a/search"), "headgate-service-search");
        assert_eq!(
            named("HTTPRoute/a/edge.shop"),
            "headgate-httproute-edge.shop"
        );
        let pods = named("Pod/a/app=search,tier=web");
        assert!(
            pods.starts_with("headgate-pod.app-search-tier-web-"),
            "{pods}"
        );
        assert_ne!(pods, named("Pod/a/app=search,tier=Web"));
        assert_ne!(
            named("Service/a/x-1"),
            named("Pod/a/x=1"),
            "kinds are apart"
        );
        let long = named(&format!("Gateway/a/{}", "x".repeat(253)));
        assert!(
            long.len() <= 253 && long.starts_with("headgate-gateway.xxx"),
            "{long}"
        );
        for other in ["headgate-ca", "headgate-services", "service-search"] {
            assert!(!may_be_delivered(other), "{other}");
        }
    }
}
