//! The identity of a proxy, which is the part of Envoy's `Node` that Headgate keeps.
//!
//! In the first message of a stream, a proxy sends its whole node, including every extension that
//! it was built with. Only a few short strings are kept, so memory is bounded by the number of
//! proxies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::ValueEnum as _;
use envoy_types::pb::envoy::config::core::v3::node::UserAgentVersionType;
use envoy_types::pb::envoy::config::core::v3::{Extension, Node};
use envoy_types::pb::google::protobuf::value::Kind;

use crate::VERSION;
use crate::module::Kind as Filter;
use headgate_api::plan::{
    ARCHITECTURE_METADATA, FILTER_METADATA, LABELS_METADATA, MODULE_METADATA, NAMESPACE_METADATA,
    NATIVE_MODULE_METADATA, TARGET_METADATA, TargetRef, VERSION_METADATA,
};

/// The longest node id, cluster or target that is kept, in bytes.
const MAX_TEXT: usize = 256;
/// The longest path of a module that is kept, in bytes.
const MAX_PATH: usize = 1_024;
/// The longest namespace in Kubernetes, in bytes.
const MAX_NAMESPACE: usize = 63;
/// The largest total size of the keys and values of labels, in bytes.
const MAX_LABELS: usize = 8_192;
/// The suffix of the name of Envoy's filter for native modules.
const DYNAMIC_MODULES: &str = "dynamic_modules";
/// The first Envoy version, major and minor, with all functions that the native module calls. An
/// earlier Envoy would load the module and crash at the first call of a missing function.
const FIRST_WITH_ABI: (u32, u32) = (1, 39);
/// Istio's own metadata keys, which its proxies send without configuration.
const ISTIO_NAMESPACE: &str = "NAMESPACE";
const ISTIO_LABELS: &str = "LABELS";

/// A proxy's identity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// The node id, or `unnamed` if the proxy has none.
    pub id: String,
    /// The service cluster. It may be empty.
    pub cluster: String,
    /// The target that the proxy serves, if it names one.
    pub target: Option<TargetRef>,
    /// The namespace of the proxy's Pod.
    pub namespace: Option<String>,
    /// The labels of the proxy's Pod.
    pub labels: BTreeMap<String, String>,
    /// The absolute path of the proxy's own Wasm module file, which it loads in place of the
    /// operator's.
    pub module: Option<PathBuf>,
    /// The absolute path of the proxy's own native module file, which it loads in place of the
    /// operator's.
    pub native_module: Option<PathBuf>,
    /// The version of the proxy's own module files, if it reports one.
    pub module_version: Option<String>,
    /// The kind of filter that the proxy requests.
    pub filter: Filter,
    /// The processor architecture that the proxy reports, if any.
    pub architecture: Option<String>,
    /// The reason why the proxy can't load a native filter, according to its node.
    pub no_native: Option<String>,
    /// A native module file that the proxy refused before it had run any native module, with the
    /// reason.
    pub refused: Option<(PathBuf, String)>,
    /// The SPIFFE id that the proxy's certificate or token proves, which includes the namespace.
    pub certificate: Option<String>,
    /// The first and the last moment at which the proxy's certificate is valid.
    pub validity: Option<(SystemTime, SystemTime)>,
    /// The error in the proxy's metadata, in one line. A proxy with an error gets no policy.
    pub invalid: Option<String>,
}

impl Identity {
    /// Reads the node of a stream's first message.
    pub fn new(node: Option<&Node>) -> Self {
        let none = Node::default();
        let node = node.unwrap_or(&none);
        let id = if node.id.is_empty() {
            "unnamed"
        } else {
            &node.id
        };
        let mut identity = Self {
            id: clip(id, MAX_TEXT),
            cluster: clip(&node.cluster, MAX_TEXT),
            no_native: no_native(node),
            ..Self::default()
        };
        let target = target(node);
        let metadata = identity.read_metadata(node);
        identity.invalid = metadata.err().or(target.as_ref().err().cloned());
        identity.target = target.ok().flatten();
        identity
    }

    fn read_metadata(&mut self, node: &Node) -> Result<(), String> {
        self.namespace = namespace(node)?;
        self.labels = labels(node)?;
        self.module = module(node, MODULE_METADATA, Filter::Wasm)?;
        self.native_module = module(node, NATIVE_MODULE_METADATA, Filter::Native)?;
        self.filter = filter(node)?;
        let text = |key| match metadata(node, key) {
            Some(Kind::StringValue(text)) => Some(clip(text, MAX_TEXT)),
            _ => None,
        };
        self.module_version = text(VERSION_METADATA);
        self.architecture = text(ARCHITECTURE_METADATA);
        Ok(())
    }

    /// Whether the proxy's own module may be too old for a field of a policy. It may be if its
    /// version is unknown, or is an earlier minor version than this program's.
    pub(crate) fn is_older(&self) -> bool {
        let minor = |version: &str| {
            let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
            Some((numbers.next()??, numbers.next()??))
        };
        let has_own = self.module.is_some() || self.native_module.is_some();
        let known = self.module_version.as_deref().and_then(minor);
        has_own && known.is_none_or(|known| Some(known) < minor(VERSION))
    }

    /// Returns a possible reason for a refusal, if the proxy's own module has another version than
    /// this program.
    pub(crate) fn skew(&self) -> Option<String> {
        self.module.as_ref().or(self.native_module.as_ref())?;
        let version = match self.module_version.as_deref() {
            Some(version) if version == VERSION => return None,
            Some(version) => format!("of version {version}"),
            None => "of an unknown version".to_owned(),
        };
        Some(format!(
            "its own module is {version}, and the operator is of {VERSION}; the module may not \
             know a newer field of the policy: give the proxy a new module, or remove the field; \
             until then the proxy runs the policy without this field if possible"
        ))
    }
}

/// Returns a metadata value that is present and not null.
fn metadata<'a>(node: &'a Node, key: &str) -> Option<&'a Kind> {
    let kind = node.metadata.as_ref()?.fields.get(key)?.kind.as_ref()?;
    (!matches!(kind, Kind::NullValue(_))).then_some(kind)
}

fn target(node: &Node) -> Result<Option<TargetRef>, String> {
    let wrong = match metadata(node, TARGET_METADATA) {
        None => return Ok(None),
        Some(Kind::StringValue(text)) => match text.parse() {
            Ok(target) => return Ok(Some(target)),
            Err(_) => format!("{:?} is no target", clip(text, MAX_TEXT)),
        },
        Some(_) => "no string".to_owned(),
    };
    Err(format!(
        "node metadata {TARGET_METADATA:?}: {wrong}; write kind/namespace/name, such as \
         \"Service/default/search\""
    ))
}

fn namespace(node: &Node) -> Result<Option<String>, String> {
    let name = |key| match metadata(node, key) {
        Some(Kind::StringValue(name)) if (1..=MAX_NAMESPACE).contains(&name.len()) => {
            Some(name.clone())
        }
        _ => None,
    };
    match (metadata(node, NAMESPACE_METADATA), name(NAMESPACE_METADATA)) {
        (Some(_), None) => Err(format!(
            "node metadata {NAMESPACE_METADATA:?} is no namespace; write the Pod's, a string of 1 \
             to {MAX_NAMESPACE} characters"
        )),
        (_, own) => Ok(own.or_else(|| name(ISTIO_NAMESPACE))),
    }
}

fn labels(node: &Node) -> Result<BTreeMap<String, String>, String> {
    match metadata(node, LABELS_METADATA) {
        Some(kind) => strings(kind).map_err(|why| {
            format!("node metadata {LABELS_METADATA:?} {why}; write the Pod's labels")
        }),
        // Istio's key isn't meant for Headgate, so an unreadable value counts as absent.
        None => Ok(metadata(node, ISTIO_LABELS)
            .and_then(|kind| strings(kind).ok())
            .unwrap_or_default()),
    }
}

fn strings(kind: &Kind) -> Result<BTreeMap<String, String>, String> {
    let Kind::StructValue(fields) = kind else {
        return Err("is no struct of strings".to_owned());
    };
    let mut bytes = 0;
    let mut strings = BTreeMap::new();
    for (key, value) in &fields.fields {
        let Some(Kind::StringValue(text)) = &value.kind else {
            return Err(format!(
                "has a value that is no string, at {:?}",
                clip(key, MAX_TEXT)
            ));
        };
        bytes += key.len() + text.len();
        if bytes > MAX_LABELS {
            return Err(format!("is longer than {MAX_LABELS} bytes"));
        }
        strings.insert(key.clone(), text.clone());
    }
    Ok(strings)
}

/// Returns the path of the module file of this kind, if the proxy names one.
fn module(node: &Node, key: &str, kind: Filter) -> Result<Option<PathBuf>, String> {
    match metadata(node, key) {
        None => Ok(None),
        Some(Kind::StringValue(path))
            if path.starts_with('/')
                && Filter::of(Path::new(path)) == kind
                && path.len() <= MAX_PATH
                && !path.chars().any(char::is_control) =>
        {
            Ok(Some(PathBuf::from(path)))
        }
        Some(_) => Err(format!(
            "node metadata {key:?} is no absolute path of a {} module, of at most {MAX_PATH} \
             bytes; write the path that headgate bootstrap --install-module printed",
            kind.name()
        )),
    }
}

fn filter(node: &Node) -> Result<Filter, String> {
    match metadata(node, FILTER_METADATA) {
        None => Ok(Filter::default()),
        Some(kind) => {
            let named = match kind {
                Kind::StringValue(name) => Filter::from_str(name, false).ok(),
                _ => None,
            };
            named.ok_or_else(|| {
                format!(
                    "node metadata {FILTER_METADATA:?} is no kind of filter; write \"wasm\" or \
                     \"native\", as headgate bootstrap --filter does"
                )
            })
        }
    }
}

/// Returns the reason why Envoy can't load the native module, according to the node. Envoy may be
/// too old, or lack the extension.
fn no_native(node: &Node) -> Option<String> {
    let version = match &node.user_agent_version_type {
        Some(UserAgentVersionType::UserAgentBuildVersion(build)) => build.version.as_ref(),
        _ => None,
    };
    let Some(version) = version else {
        return Some("its Envoy reports no version".to_owned());
    };
    let (major, minor) = (version.major_number, version.minor_number);
    if (major, minor) < FIRST_WITH_ABI {
        let (first, with) = FIRST_WITH_ABI;
        return Some(format!(
            "it is Envoy {major}.{minor}, and the native filter needs {first}.{with}"
        ));
    }
    let has = |extension: &Extension| {
        extension.category == "envoy.filters.http" && extension.name.ends_with(DYNAMIC_MODULES)
    };
    match node.extensions.iter().any(has) {
        true => None,
        false => Some("its Envoy is built without dynamic modules".to_owned()),
    }
}

/// Returns `text` cut to at most `max` bytes at a character boundary.
pub fn clip(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(max)])
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use envoy_types::pb::envoy::config::core::v3::BuildVersion;
    use envoy_types::pb::envoy::r#type::v3::SemanticVersion;
    use envoy_types::pb::google::protobuf::{Struct, Value};

    use super::*;

    fn node(kind: Option<Kind>) -> Node {
        let fields = HashMap::from([(TARGET_METADATA.to_owned(), Value { kind })]);
        Node {
            id: "edge-1".into(),
            metadata: Some(Struct { fields }),
            ..Node::default()
        }
    }

    #[test]
    fn the_target_is_read_from_metadata() {
        let identity = Identity::new(Some(&node(Some(Kind::StringValue(
            "Service/default/search".into(),
        )))));
        assert_eq!(
            identity.target,
            Some("Service/default/search".parse().unwrap())
        );
        assert_eq!(Identity::new(Some(&node(None))).target, None);
        assert_eq!(Identity::new(None).id, "unnamed");
    }

    #[test]
    fn a_wrong_target_is_explained() {
        for kind in [Kind::StringValue("search".into()), Kind::NumberValue(1.0)] {
            let why = Identity::new(Some(&node(Some(kind)))).invalid.unwrap();
            assert!(why.contains("Service/default/search"), "{why}");
        }
    }

    fn with(fields: &[(&str, Kind)]) -> Identity {
        let value = |k: &Kind| Value {
            kind: Some(k.clone()),
        };
        let fields = fields
            .iter()
            .map(|(key, kind)| ((*key).to_owned(), value(kind)))
            .collect();
        Identity::new(Some(&Node {
            metadata: Some(Struct { fields }),
            ..Node::default()
        }))
    }

    fn text(text: &str) -> Kind {
        Kind::StringValue(text.into())
    }

    fn labels_of(pairs: &[(&str, Kind)]) -> Kind {
        let value = |k: &Kind| Value {
            kind: Some(k.clone()),
        };
        Kind::StructValue(Struct {
            fields: pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), value(v)))
                .collect(),
        })
    }

    #[test]
    fn a_pod_is_known_by_headgates_keys_or_else_by_istios() {
        let ours = with(&[
            (NAMESPACE_METADATA, text("shop")),
            (LABELS_METADATA, labels_of(&[("app", text("web"))])),
            (MODULE_METADATA, text("/headgate/m.wasm")),
            (NATIVE_MODULE_METADATA, text("/headgate/m.so")),
            (FILTER_METADATA, text("native")),
            (ARCHITECTURE_METADATA, text("aarch64")),
            (VERSION_METADATA, text("0.0.1")),
            (ISTIO_NAMESPACE, text("other")),
            (ISTIO_LABELS, labels_of(&[("app", text("other"))])),
        ]);
        assert_eq!(ours.invalid, None);
        assert_eq!(ours.namespace.as_deref(), Some("shop"));
        assert_eq!(ours.labels["app"], "web");
        assert_eq!(ours.module, Some(PathBuf::from("/headgate/m.wasm")));
        assert_eq!(ours.native_module, Some(PathBuf::from("/headgate/m.so")));
        assert_eq!(ours.module_version.as_deref(), Some("0.0.1"));
        let (filter, architecture) = (ours.filter, ours.architecture.as_deref());
        assert_eq!((filter, architecture), (Filter::Native, Some("aarch64")));
        let istio = with(&[
            (ISTIO_NAMESPACE, text("shop")),
            (ISTIO_LABELS, labels_of(&[("app", text("web"))])),
        ]);
        assert_eq!(
            (istio.namespace.as_deref(), istio.labels["app"].as_str()),
            (Some("shop"), "web")
        );
        let strange = with(&[
            (ISTIO_NAMESPACE, Kind::BoolValue(true)),
            (ISTIO_LABELS, text("x")),
        ]);
        assert_eq!((strange.invalid, strange.namespace), (None, None));
    }

    #[test]
    fn an_envoy_says_by_its_version_and_its_extensions_whether_it_loads_native_modules() {
        let no_native = |minor, extension: &str| {
            let version = Some(SemanticVersion {
                major_number: 1,
                minor_number: minor,
                patch: 0,
            });
            let build = BuildVersion {
                version,
                metadata: None,
            };
            let extension = Extension {
                name: extension.to_owned(),
                category: "envoy.filters.http".to_owned(),
                ..Extension::default()
            };
            let node = Node {
                user_agent_version_type: Some(UserAgentVersionType::UserAgentBuildVersion(build)),
                extensions: vec![extension],
                ..Node::default()
            };
            Identity::new(Some(&node)).no_native
        };
        let extension = "envoy.extensions.filters.http.dynamic_modules";
        assert_eq!(no_native(39, extension), None);
        let old = "it is Envoy 1.38, and the native filter needs 1.39";
        assert_eq!(no_native(38, extension).as_deref(), Some(old));
        let without = no_native(40, "envoy.filters.http.wasm").unwrap();
        assert_eq!(without, "its Envoy is built without dynamic modules");
        let silent = Identity::new(Some(&Node::default())).no_native.unwrap();
        assert!(silent.contains("reports no version"), "{silent}");
    }

    #[test]
    fn wrong_or_huge_metadata_is_explained_and_not_kept() {
        let huge = "x".repeat(MAX_LABELS);
        for (key, kind, says) in [
            (NAMESPACE_METADATA, text(""), "no namespace"),
            (NAMESPACE_METADATA, text(&"x".repeat(64)), "no namespace"),
            (NAMESPACE_METADATA, Kind::NumberValue(1.0), "no namespace"),
            (LABELS_METADATA, text("app=web"), "no struct of strings"),
            (
                LABELS_METADATA,
                labels_of(&[("app", Kind::BoolValue(true))]),
                "\"app\"",
            ),
            (
                LABELS_METADATA,
                labels_of(&[("app", text(&huge))]),
                "longer than 8192 bytes",
            ),
            (MODULE_METADATA, text("m.wasm"), "no absolute path"),
            (
                MODULE_METADATA,
                text("/m.so"),
                "absolute path of a wasm module",
            ),
            (
                NATIVE_MODULE_METADATA,
                text("/m.wasm"),
                "absolute path of a native module",
            ),
            (FILTER_METADATA, text("lua"), "write \"wasm\" or \"native\""),
            (FILTER_METADATA, Kind::BoolValue(true), "no kind of filter"),
            (MODULE_METADATA, text("/m\0.wasm"), "no absolute path"),
            (
                MODULE_METADATA,
                text(&format!("/{huge}")),
                "no absolute path",
            ),
        ] {
            let identity = with(&[(key, kind)]);
            let why = identity.invalid.unwrap();
            assert!(why.contains(key) && why.contains(says), "{why}");
            assert!(identity.labels.is_empty() && identity.module.is_none());
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(clip("äöü", 3), "ä…");
        assert_eq!(clip("abc", 3), "abc");
    }
}
