//! Wanted objects, with their names, labels, owners and content.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::adapter::Adapter;
use crate::cluster::{Cluster, ObjectKey};
use crate::settings::Settings;
use crate::workload::Workload;
use headgate_api::plan::TargetRef;
use headgate_xds::digest::hash;

/// The field manager of this operator's patches, except those of Events.
pub const FIELD_MANAGER: &str = "headgate";
/// The label of every object that this operator creates, by Kubernetes' convention.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "headgate");
/// The label of delivered objects that names their adapter.
pub const ADAPTER_LABEL: &str = "headgate.dev/adapter";
/// The label of delivered objects that states the kind of their first target in order of
/// precedence.
pub const TARGET_KIND_LABEL: &str = "headgate.dev/target-kind";
/// The label of delivered objects that states the name of their first target in order of
/// precedence, if it is a valid label value.
pub const TARGET_NAME_LABEL: &str = "headgate.dev/target-name";
/// The annotation that lists the targets whose policies are in the object, in order of precedence,
/// as far as they fit into [`MAX_TARGETS_BYTES`].
pub const TARGETS_ANNOTATION: &str = "headgate.dev/targets";
/// The annotation that lists the policies in the object.
pub const POLICIES_ANNOTATION: &str = "headgate.dev/policies";
/// The annotation with the revision of the configuration in the object.
pub const REVISION_ANNOTATION: &str = "headgate.dev/revision";
/// The annotation with the operator that delivers the object, as in [`Settings::operator`].
pub const OPERATOR_ANNOTATION: &str = "headgate.dev/operator";
/// The annotation with the time since which the module has been served again, after a possible
/// interruption. Only a change of it has a meaning.
///
/// istiod pushes a change of metadata alone to proxies only if the key of a label or annotation
/// contains `istio.io`.
pub const SERVED_ANNOTATION: &str = "headgate.dev/istio.io-module-served";
/// The annotation with a hash of the applied content. It detects applied fields that are no longer
/// wanted.
pub const CONTENT_ANNOTATION: &str = "headgate.dev/content";

/// The largest size of an object, in bytes. etcd's limit is 1.5 MiB, and that of a ConfigMap is 1
/// MiB.
pub const MAX_BYTES: usize = 1_000_000;
/// The size of the largest list of targets, in bytes. The API server refuses an object with more
/// than 256 KiB of annotations, and policies of one namespace may have a thousand long targets.
const MAX_TARGETS_BYTES: usize = 128 << 10;
/// The largest number of characters in a label's value.
const MAX_LABEL: usize = 63;
/// The largest number of characters of a target's name that go into an object's name.
const MAX_NAME: usize = 30;

/// A wanted object.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// The adapter of the object's kind.
    pub adapter: Adapter,
    /// The namespace and name of the object.
    pub key: ObjectKey,
    /// The policies in the object, `namespace/name`.
    pub policies: Vec<String>,
    /// Whether a reader of the object was observed. A reader is an Istio proxy that the object
    /// selects, or a Pod that mounts it. Unused for Envoy Gateway, which reports the outcome in the
    /// object's status.
    pub seen: bool,
    /// The module that the object names, if any.
    pub module: Option<ModuleRef>,
    /// The whole object, as applied.
    pub value: Value,
}

/// A module that an object names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModuleRef {
    /// The URL at which the module is served.
    pub url: String,
    /// The SHA-256 of the module, 64 digits of hex.
    pub sha256: String,
}

impl ModuleRef {
    /// Returns a reference to the module with this SHA-256 (64 hex digits) at this operator's URL.
    pub fn new(settings: &Settings, sha256: &str) -> Self {
        Self {
            url: format!("{}/modules/{sha256}.wasm", settings.modules_url),
            sha256: sha256.to_owned(),
        }
    }
}

impl Object {
    /// Returns an object of `adapter` for `workload`, with `content` (`spec` or `data`) in addition
    /// to its metadata.
    pub fn new(
        adapter: Adapter,
        key: ObjectKey,
        workload: &Workload,
        cluster: &Cluster,
        module: Option<ModuleRef>,
        content: Value,
    ) -> Self {
        let (resource, policies) = (adapter.resource(), workload.policies());
        let mut value = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "labels": labels(adapter, &workload.targets),
                "annotations": {
                    TARGETS_ANNOTATION: joined(&workload.targets),
                    POLICIES_ANNOTATION: policies.join(","),
                    REVISION_ANNOTATION: workload.config.revision,
                },
            },
        });
        // A ConfigMap outlives its policies, so it has no owners.
        let owners = match adapter {
            Adapter::ConfigMap => Vec::new(),
            _ => owners(&policies, &key.namespace, cluster),
        };
        if !owners.is_empty() {
            value["metadata"]["ownerReferences"] = Value::Array(owners);
        }
        if let (Value::Object(all), Value::Object(content)) = (&mut value, content) {
            all.extend(content);
        }
        let applied = hash(value.to_string().as_bytes());
        value["metadata"]["annotations"][CONTENT_ANNOTATION] = Value::String(applied);
        Self {
            adapter,
            key,
            policies,
            seen: workload.seen,
            module,
            value,
        }
    }

    /// Returns the wanted object that keeps the observed object `value`. It has the fields that
    /// Headgate wrote, with `module` in place of the module whose URL they have. The module of
    /// another version may no longer be served.
    pub fn kept(adapter: Adapter, key: ObjectKey, value: &Value, module: &ModuleRef) -> Self {
        let mut spec = value["spec"].clone();
        let module = rename_module(&mut spec, module).then(|| module.clone());
        let mut kept = json!({
            "apiVersion": value["apiVersion"],
            "kind": value["kind"],
            "metadata": {"name": key.name, "namespace": key.namespace},
        });
        for field in ["labels", "annotations"] {
            let all = value["metadata"][field].as_object();
            let ours = all.into_iter().flatten().filter(|(name, _)| is_ours(name));
            let ours = ours.map(|(name, value)| (name.clone(), value.clone()));
            kept["metadata"][field] = Value::Object(ours.collect());
        }
        let owners = value["metadata"]["ownerReferences"].as_array();
        let is_policy = |owner: &&Value| owner["kind"] == headgate_api::KIND;
        let owners = owners.into_iter().flatten().filter(is_policy);
        let owners: Vec<Value> = owners.cloned().collect();
        if !owners.is_empty() {
            kept["metadata"]["ownerReferences"] = Value::Array(owners);
        }
        let policies = value["metadata"]["annotations"][POLICIES_ANNOTATION].as_str();
        let policies = policies.into_iter().flat_map(|all| all.split(','));
        for (field, content) in [("spec", spec), ("data", value["data"].clone())] {
            if !content.is_null() {
                kept[field] = content;
            }
        }
        Self {
            adapter,
            key,
            policies: policies.map(str::to_owned).collect(),
            // Unknown, because no workload of the plan has its selector of Pods.
            seen: true,
            module,
            value: kept,
        }
    }

    /// Returns the size of the object as JSON, in bytes.
    pub fn bytes(&self) -> usize {
        self.value.to_string().len()
    }

    /// Returns the error for an object that is too large for the API server. The error is one line
    /// with the size, the limit and the remedy. `None` for other objects.
    pub fn too_large(&self) -> Option<String> {
        let bytes = self.bytes();
        (bytes > MAX_BYTES).then(|| {
            format!(
                "{bytes} bytes, of at most {MAX_BYTES}; an object that was applied before doesn't \
                 change: use fewer types and matches, or shorter ones"
            )
        })
    }

    /// Returns a hash of the applied content.
    pub fn content(&self) -> &str {
        self.value["metadata"]["annotations"][CONTENT_ANNOTATION]
            .as_str()
            .unwrap_or_default()
    }
}

/// Returns the operator that delivers an object with these annotations, if it isn't `own`. An
/// object without an operator is from a version before 0.2, and belongs to each operator.
pub fn other_operator<'a>(annotations: &'a BTreeMap<String, String>, own: &str) -> Option<&'a str> {
    let operator = annotations.get(OPERATOR_ANNOTATION)?.as_str();
    (operator != own).then_some(operator)
}

fn labels(adapter: Adapter, targets: &[TargetRef]) -> BTreeMap<&'static str, String> {
    let mut labels = BTreeMap::from([
        (MANAGED_BY.0, MANAGED_BY.1.to_owned()),
        (ADAPTER_LABEL, adapter.name().to_owned()),
    ]);
    if let Some(first) = targets.first() {
        labels.insert(TARGET_KIND_LABEL, first.kind.as_str().to_owned());
        if is_label(&first.name) {
            labels.insert(TARGET_NAME_LABEL, first.name.clone());
        }
    }
    labels
}

/// Whether a label or annotation of this name is Headgate's.
fn is_ours(name: &str) -> bool {
    name == MANAGED_BY.0 || name.starts_with("headgate.dev/")
}

/// Replaces each reference to an operator's module in `value` by a reference to `module`. A URL
/// that already names `module` keeps its query. Returns whether `value` names any module.
fn rename_module(value: &mut Value, module: &ModuleRef) -> bool {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let found = (text(&value["url"]), text(&value["sha256"]));
    if let (Some(url), Some(sha256)) = found
        && url.contains(&format!("/modules/{sha256}.wasm"))
    {
        if !url.starts_with(&module.url) {
            value["url"] = module.url.as_str().into();
            value["sha256"] = module.sha256.as_str().into();
        }
        return true;
    }
    let rename = |part: &mut Value| rename_module(part, module);
    // `any` isn't used here because it would stop at the first match.
    match value {
        Value::Object(fields) => fields.values_mut().map(rename).fold(false, |a, b| a | b),
        Value::Array(items) => items.iter_mut().map(rename).fold(false, |a, b| a | b),
        _ => false,
    }
}

fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= MAX_LABEL
        && text.chars().all(inner)
        && outer(text.chars().next())
        && outer(text.chars().last())
}

fn joined(targets: &[TargetRef]) -> String {
    let names = targets.iter().map(ToString::to_string);
    let mut bytes = 0;
    let fitting = names.take_while(|name| {
        bytes += name.len() + 1;
        bytes <= MAX_TARGETS_BYTES
    });
    // The names are joined by spaces, because the labels in Pod targets contain commas.
    fitting.collect::<Vec<_>>().join(" ")
}

/// Returns owner references to the policies, if all are in the object's own namespace. Kubernetes
/// would treat owners of other namespaces as nonexistent. Without these, it would delete the object
/// of a shared Gateway together with the last policy of the Gateway's namespace.
fn owners(policies: &[String], namespace: &str, cluster: &Cluster) -> Vec<Value> {
    let mut owners: Vec<Value> = Vec::new();
    for policy in policies {
        let Ok(key) = policy.parse::<ObjectKey>() else {
            continue;
        };
        if key.namespace != namespace {
            return Vec::new();
        }
        let found = cluster.policies.get(&key).filter(|p| !p.uid.is_empty());
        if let Some(found) = found {
            let owner = json!({
                "apiVersion": headgate_api::API_VERSION,
                "kind": headgate_api::KIND,
                "name": key.name,
                "uid": found.uid,
            });
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
    }
    owners
}

/// Returns `headgate-<readable>-<8 digits>`, at most 48 characters. The digits are from a hash of
/// `identity`, so equal identities have equal names.
pub fn name(readable: &str, identity: &str) -> String {
    let readable = dns(readable, MAX_NAME);
    let digits = &hash(identity.as_bytes())[..8];
    match readable.as_str() {
        "" => format!("headgate-{digits}"),
        readable => format!("headgate-{readable}-{digits}"),
    }
}

/// Converts `text` to a part of a DNS label. The part has at most `max` lower-case letters, digits
/// and inner hyphens.
pub fn dns(text: &str, max: usize) -> String {
    let allowed = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9') => c,
        _ => '-',
    };
    let text: String = text.chars().map(allowed).take(max).collect();
    text.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use headgate_core::config::FilterConfig;

    use super::*;
    use crate::tests::stage;
    use crate::workload::ProxyKind;
    use headgate_api::plan::ProxySelector;

    #[test]
    fn names_are_bounded_and_tell_workloads_apart() {
        assert_eq!(name("search", "x"), "headgate-search-2d711642");
        let long = name(&"Search.Engine-".repeat(20), "x");
        assert!(long.len() <= 48, "{long}");
        assert!(long.starts_with("headgate-search-engine-search"), "{long}");
        assert_ne!(name("search", "x"), name("search", "y"));
        assert_eq!(name("…", "x"), "headgate-2d711642");
    }

    /// A Gateway's proxies have at most 64 policies of at most 16 targets each.
    #[test]
    fn annotations_stay_below_the_limit_of_the_api_server() {
        let long = "r".repeat(250);
        let targets = (0..64 * 16).map(|i| format!("HTTPRoute/{}/{long}{i:03}", "n".repeat(63)));
        let targets: Vec<TargetRef> = targets.map(|target| target.parse().unwrap()).collect();
        let policies = (0..64).map(|i| format!("{}/{long}{i:03}", "n".repeat(63)));
        let config = FilterConfig {
            stages: policies.map(|policy| stage(&policy, &[])).collect(),
            ..FilterConfig::default()
        };
        let workload = Workload {
            proxies: ProxySelector {
                namespace: "a".to_owned(),
                labels: BTreeMap::new(),
            },
            kind: ProxyKind::Pods,
            seen: false,
            config: Arc::new(config),
            targets,
        };
        let (key, content) = (ObjectKey::new("a", "b"), json!({"spec": {}}));
        let adapter = Adapter::EnvoyGateway;
        let object = Object::new(adapter, key, &workload, &Cluster::default(), None, content);
        let annotations = object.value["metadata"]["annotations"].as_object().unwrap();
        let bytes = |(name, value): (&String, &Value)| name.len() + value.as_str().unwrap().len();
        let bytes: usize = annotations.iter().map(bytes).sum();
        assert!(bytes <= 256 << 10, "{bytes}");
        let listed = annotations[TARGETS_ANNOTATION].as_str().unwrap();
        let listed: Vec<TargetRef> = listed.split(' ').map(|t| t.parse().unwrap()).collect();
        assert!(listed.len() > 300 && workload.targets.starts_with(&listed));
    }

    #[test]
    fn labels_hold_what_a_label_may() {
        for (text, is) in [
            ("search", true),
            ("a.b", true),
            ("", false),
            ("app=search", false),
            ("-a", false),
            ("a.", false),
        ] {
            assert_eq!(is_label(text), is, "{text}");
        }
        assert!(is_label(&"a".repeat(63)) && !is_label(&"a".repeat(64)));
    }
}
