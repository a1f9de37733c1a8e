//! Who a proxy says it is: the part of Envoy's `Node` that Headgate keeps.
//!
//! A proxy sends its whole node, with every extension it was built with, in the first message of a
//! stream. Only a few short strings are remembered, so that memory is bounded by the number of proxies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use envoy_types::pb::envoy::config::core::v3::node::UserAgentVersionType;
use envoy_types::pb::envoy::config::core::v3::{Extension, Node};
use envoy_types::pb::google::protobuf::value::Kind;

use super::module::Kind as Filter;
use crate::plan::{
    FILTER_METADATA, LABELS_METADATA, MODULE_METADATA, NAMESPACE_METADATA, TARGET_METADATA,
    TargetRef,
};

/// Longest node id, cluster or target that is kept, in bytes.
const MAX_TEXT: usize = 256;
/// Longest path of a module that is kept, in bytes.
const MAX_PATH: usize = 1_024;
/// Longest namespace in Kubernetes, in bytes.
const MAX_NAMESPACE: usize = 63;
/// Keys and values of labels that are kept, in bytes of them all.
const MAX_LABELS: usize = 8_192;
/// End of the name of Envoy's filter for native modules.
const DYNAMIC_MODULES: &str = "dynamic_modules";
/// Major and minor version of the first Envoy that loads a native module from a path.
const FIRST_WITH_PATHS: (u32, u32) = (1, 38);
/// Istio's own keys, which its proxies have anyway.
const ISTIO_NAMESPACE: &str = "NAMESPACE";
const ISTIO_LABELS: &str = "LABELS";

/// A proxy's identity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// Node id; `unnamed` when the proxy has none.
    pub id: String,
    /// Service cluster; may be empty.
    pub cluster: String,
    /// The target it stands for; `Err` says what is wrong with the metadata.
    pub target: TargetClaim,
    /// Namespace of its Pod.
    pub namespace: Option<String>,
    /// Labels of its Pod.
    pub labels: BTreeMap<String, String>,
    /// The module file that it has, an absolute path, in place of the operator's own.
    pub module: Option<PathBuf>,
    /// The kind of filter that it asks for, where it has no module file of its own.
    pub filter: Filter,
    /// Whether it says of itself that it can load a native filter.
    pub loads_native: bool,
    /// SPIFFE id of the certificate that proves the namespace.
    pub certificate: Option<String>,
    /// When that certificate ends.
    pub expires: Option<SystemTime>,
    /// What is wrong with its namespace, labels or module; one line. Such a proxy gets no policy.
    pub invalid: Option<String>,
}

/// What a proxy's metadata says about its target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TargetClaim {
    /// Nothing.
    #[default]
    None,
    /// A target.
    Target(TargetRef),
    /// Something that is no target; one line that says so.
    Invalid(String),
}

impl Identity {
    /// Reads the node of a stream's first message.
    #[must_use]
    pub fn new(node: Option<&Node>) -> Self {
        let Some(node) = node else {
            return Self {
                id: "unnamed".to_owned(),
                ..Self::default()
            };
        };
        let id = if node.id.is_empty() {
            "unnamed".to_owned()
        } else {
            clip(&node.id, MAX_TEXT)
        };
        let mut identity = Self {
            id,
            cluster: clip(&node.cluster, MAX_TEXT),
            target: claim(node),
            loads_native: loads_native(node),
            ..Self::default()
        };
        identity.invalid = identity.read_metadata(node).err();
        identity
    }

    fn read_metadata(&mut self, node: &Node) -> Result<(), String> {
        self.namespace = namespace(node)?;
        self.labels = labels(node)?;
        self.module = module(node)?;
        self.filter = filter(node)?;
        Ok(())
    }

    /// The module file that the proxy is to load. `wasm` is the operator's own, and `native` as well, if it has one. A
    /// proxy that can't load a native module gets `wasm`, whatever it asks for: it would refuse the other.
    #[must_use]
    pub fn module_of<'a>(&'a self, wasm: &'a Path, native: Option<&'a Path>) -> &'a Path {
        let wanted = match (&self.module, self.filter) {
            (Some(own), _) => own,
            (None, Filter::Native) => native.unwrap_or(wasm),
            (None, Filter::Wasm) => wasm,
        };
        match Filter::of(wanted) {
            Filter::Native if !self.loads_native => wasm,
            _ => wanted,
        }
    }
}

/// A metadata value that is there and not null.
fn metadata<'a>(node: &'a Node, key: &str) -> Option<&'a Kind> {
    let kind = node.metadata.as_ref()?.fields.get(key)?.kind.as_ref()?;
    (!matches!(kind, Kind::NullValue(_))).then_some(kind)
}

fn claim(node: &Node) -> TargetClaim {
    match metadata(node, TARGET_METADATA) {
        None => TargetClaim::None,
        Some(Kind::StringValue(text)) => match text.parse() {
            Ok(target) => TargetClaim::Target(target),
            Err(_) => TargetClaim::Invalid(format!(
                "node metadata {TARGET_METADATA:?}: {:?} is no target; write kind/namespace/name, such as \
                 Service/default/search",
                clip(text, MAX_TEXT)
            )),
        },
        Some(_) => TargetClaim::Invalid(format!(
            "node metadata {TARGET_METADATA:?} is no string; write kind/namespace/name, such as \
             \"Service/default/search\""
        )),
    }
}

fn namespace(node: &Node) -> Result<Option<String>, String> {
    match metadata(node, NAMESPACE_METADATA) {
        Some(Kind::StringValue(name)) if (1..=MAX_NAMESPACE).contains(&name.len()) => {
            Ok(Some(name.clone()))
        }
        Some(_) => Err(format!(
            "node metadata {NAMESPACE_METADATA:?} is no namespace; write the Pod's, a string of 1 to \
             {MAX_NAMESPACE} characters"
        )),
        None => Ok(match metadata(node, ISTIO_NAMESPACE) {
            Some(Kind::StringValue(name)) if (1..=MAX_NAMESPACE).contains(&name.len()) => {
                Some(name.clone())
            }
            _ => None,
        }),
    }
}

fn labels(node: &Node) -> Result<BTreeMap<String, String>, String> {
    match metadata(node, LABELS_METADATA) {
        Some(kind) => strings(kind).map_err(|why| {
            format!("node metadata {LABELS_METADATA:?} {why}; write the Pod's labels")
        }),
        // Istio's key is not for us: one that we can't read is as good as none.
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

fn module(node: &Node) -> Result<Option<PathBuf>, String> {
    match metadata(node, MODULE_METADATA) {
        None => Ok(None),
        Some(Kind::StringValue(path))
            if path.starts_with('/')
                && path.len() <= MAX_PATH
                && !path.chars().any(char::is_control) =>
        {
            Ok(Some(PathBuf::from(path)))
        }
        Some(_) => Err(format!(
            "node metadata {MODULE_METADATA:?} is no absolute path of at most {MAX_PATH} bytes; write the \
             path that headgate bootstrap --install-module printed"
        )),
    }
}

fn filter(node: &Node) -> Result<Filter, String> {
    match metadata(node, FILTER_METADATA) {
        None => Ok(Filter::default()),
        Some(kind) => {
            let named = match kind {
                Kind::StringValue(name) => Filter::named(name),
                _ => None,
            };
            named.ok_or_else(|| {
                format!(
                    "node metadata {FILTER_METADATA:?} is no kind of filter; write \"wasm\" or \"native\", as headgate \
                     bootstrap --filter does"
                )
            })
        }
    }
}

/// Whether Envoy is new enough and has the extension built in, as it says of itself. Before 1.38 it takes no path of a
/// module.
fn loads_native(node: &Node) -> bool {
    let Some(UserAgentVersionType::UserAgentBuildVersion(build)) = &node.user_agent_version_type
    else {
        return false;
    };
    let version = build.version.as_ref();
    let version = version.map(|version| (version.major_number, version.minor_number));
    let has = |extension: &Extension| {
        extension.category == "envoy.filters.http" && extension.name.ends_with(DYNAMIC_MODULES)
    };
    version >= Some(FIRST_WITH_PATHS) && node.extensions.iter().any(has)
}

/// `text`, cut to at most `max` bytes at a character boundary.
#[must_use]
pub fn clip(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max)
        .rev()
        .find(|&i| text.is_char_boundary(i))
        .unwrap_or(0);
    format!("{}…", &text[..end])
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
            TargetClaim::Target("Service/default/search".parse().unwrap())
        );
        assert_eq!(Identity::new(Some(&node(None))).target, TargetClaim::None);
        assert_eq!(Identity::new(None).id, "unnamed");
    }

    #[test]
    fn a_wrong_target_is_explained() {
        for kind in [Kind::StringValue("search".into()), Kind::NumberValue(1.0)] {
            let TargetClaim::Invalid(why) = Identity::new(Some(&node(Some(kind)))).target else {
                panic!("accepted");
            };
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
            (ISTIO_NAMESPACE, text("other")),
            (ISTIO_LABELS, labels_of(&[("app", text("other"))])),
        ]);
        assert_eq!(ours.invalid, None);
        assert_eq!(ours.namespace.as_deref(), Some("shop"));
        assert_eq!(ours.labels["app"], "web");
        assert_eq!(ours.module, Some(PathBuf::from("/headgate/m.wasm")));
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
    fn who_cannot_load_a_native_filter_gets_wasm() {
        let node = |minor, extension: &str| {
            let version = SemanticVersion {
                major_number: 1,
                minor_number: minor,
                patch: 0,
            };
            let kind = Some(text("native"));
            Node {
                metadata: Some(Struct {
                    fields: HashMap::from([(FILTER_METADATA.to_owned(), Value { kind })]),
                }),
                user_agent_version_type: Some(UserAgentVersionType::UserAgentBuildVersion(
                    BuildVersion {
                        version: Some(version),
                        metadata: None,
                    },
                )),
                extensions: vec![Extension {
                    name: extension.to_owned(),
                    category: "envoy.filters.http".to_owned(),
                    ..Extension::default()
                }],
                ..Node::default()
            }
        };
        let (wasm, native) = (Path::new("/m.wasm"), Path::new("/m.so"));
        let of = |node: &Node| {
            let identity = Identity::new(Some(node));
            assert_eq!(
                (identity.invalid.as_ref(), identity.filter),
                (None, Filter::Native)
            );
            identity.module_of(wasm, Some(native)).to_owned()
        };
        let able = node(40, "envoy.extensions.filters.http.dynamic_modules");
        assert_eq!(of(&able), native);
        assert_eq!(
            of(&node(37, "envoy.extensions.filters.http.dynamic_modules")),
            wasm
        );
        assert_eq!(of(&node(40, "envoy.filters.http.wasm")), wasm);
        assert_eq!(Identity::new(Some(&able)).module_of(wasm, None), wasm);
        // Its own file counts as little where it can't be loaded.
        let mut own = Identity::new(Some(&able));
        own.module = Some("/own.so".into());
        assert_eq!(own.module_of(wasm, None), Path::new("/own.so"));
        own.loads_native = false;
        assert_eq!(own.module_of(wasm, None), wasm);
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
