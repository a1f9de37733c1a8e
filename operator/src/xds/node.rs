//! Who a proxy says it is: the part of Envoy's `Node` that Headgate keeps.
//!
//! A proxy sends its whole node, with every extension it was built with, in the first message of a
//! stream. Only a few short strings are remembered, so that memory is bounded by the number of proxies.

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::google::protobuf::value::Kind;

use crate::plan::{TARGET_METADATA, TargetRef};

/// Longest node id, cluster or target that is kept, in bytes.
const MAX_TEXT: usize = 256;

/// A proxy's identity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// Node id; `unnamed` when the proxy has none.
    pub id: String,
    /// Service cluster; may be empty.
    pub cluster: String,
    /// The target it stands for; `Err` says what is wrong with the metadata.
    pub target: TargetClaim,
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
        Self {
            id,
            cluster: clip(&node.cluster, MAX_TEXT),
            target: claim(node),
        }
    }
}

fn claim(node: &Node) -> TargetClaim {
    let value = node
        .metadata
        .as_ref()
        .and_then(|m| m.fields.get(TARGET_METADATA));
    match value.map(|v| v.kind.as_ref()) {
        None | Some(None | Some(Kind::NullValue(_))) => TargetClaim::None,
        Some(Some(Kind::StringValue(text))) => match text.parse() {
            Ok(target) => TargetClaim::Target(target),
            Err(_) => TargetClaim::Invalid(format!(
                "node metadata {TARGET_METADATA:?}: {:?} is no target; write kind/namespace/name, such as \
                 Service/default/search",
                clip(text, MAX_TEXT)
            )),
        },
        Some(Some(_)) => TargetClaim::Invalid(format!(
            "node metadata {TARGET_METADATA:?} is no string; write kind/namespace/name, such as \
             \"Service/default/search\""
        )),
    }
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

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(clip("äöü", 3), "ä…");
        assert_eq!(clip("abc", 3), "abc");
    }
}
