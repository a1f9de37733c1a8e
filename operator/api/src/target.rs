//! The objects that policies target, and their text form: `kind/namespace/name`, for a Gateway
//! optionally followed by `/listener`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A reference to the object that a policy targets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TargetRef {
    /// `Service`, `Gateway`, `HTTPRoute`, `GRPCRoute`, `InferencePool` or `Pod`.
    pub kind: TargetKind,
    /// The object's namespace, which is the policy's own.
    pub namespace: String,
    /// The object's name. The name of Pods is their labels as `app=search,tier=web`, in the order
    /// of the keys.
    pub name: String,
    /// The Gateway's listener whose requests are targeted; `None` for all listeners.
    pub section: Option<String>,
}

/// Kinds of objects that a policy can target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetKind {
    /// Core `Service`: every proxy in front of its endpoints.
    Service,
    /// Gateway API `Gateway`.
    Gateway,
    /// Gateway API `HTTPRoute`.
    HttpRoute,
    /// Gateway API `GRPCRoute`.
    GrpcRoute,
    /// `InferencePool` of Gateway API's inference extension.
    InferencePool,
    /// Pods by their labels: every proxy in front of one of the Pods.
    Pod,
}

impl TargetKind {
    /// All kinds, in the order in which messages list them.
    pub const ALL: [Self; 6] = [
        Self::Service,
        Self::Gateway,
        Self::HttpRoute,
        Self::GrpcRoute,
        Self::InferencePool,
        Self::Pod,
    ];

    /// Returns the kind as Kubernetes spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::Gateway => "Gateway",
            Self::HttpRoute => "HTTPRoute",
            Self::GrpcRoute => "GRPCRoute",
            Self::InferencePool => "InferencePool",
            Self::Pod => "Pod",
        }
    }

    /// Whether gateways' proxies enforce policies for this kind.
    #[must_use]
    pub const fn is_of_gateways(self) -> bool {
        !matches!(self, Self::Service | Self::Pod)
    }

    /// Returns the API group of the kind; empty for Kubernetes' core.
    #[must_use]
    pub const fn group(self) -> &'static str {
        match self {
            Self::Service | Self::Pod => "",
            Self::Gateway | Self::HttpRoute | Self::GrpcRoute => "gateway.networking.k8s.io",
            Self::InferencePool => "inference.networking.k8s.io",
        }
    }
}

impl fmt::Display for TargetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for TargetKind {
    type Err = ParseTargetError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|k| k.as_str() == s)
            .ok_or_else(|| ParseTargetError(s.to_owned()))
    }
}

/// The error for a text that isn't `Kind/namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no target; kind/namespace/name, such as Service/default/search, of a Service, \
     Gateway, HTTPRoute, GRPCRoute or InferencePool, or Pod/default/app=search"
)]
pub struct ParseTargetError(String);

impl fmt::Display for TargetRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)?;
        match &self.section {
            Some(section) => write!(f, "/{section}"),
            None => Ok(()),
        }
    }
}

impl FromStr for TargetRef {
    type Err = ParseTargetError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let error = || ParseTargetError(s.to_owned());
        // The text is split into at most three parts, because keys of labels may contain a slash.
        let mut parts = s.splitn(3, '/');
        let (Some(kind), Some(namespace), Some(name)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(error());
        };
        let kind: TargetKind = kind.parse().map_err(|_| error())?;
        if namespace.is_empty() || name.is_empty() {
            return Err(error());
        }
        if kind == TargetKind::Pod {
            let labels = parse_labels(name).ok_or_else(error)?;
            return Ok(Self::pods(namespace, &labels));
        }
        let (name, section) = match name.split_once('/') {
            Some((name, section)) if kind == TargetKind::Gateway => (name, Some(section)),
            _ => (name, None),
        };
        let parts = [Some(name), section];
        let is_part = |part: &str| !part.is_empty() && !part.contains('/');
        if !parts.iter().flatten().all(|part| is_part(part)) {
            return Err(error());
        }
        Ok(Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            section: section.map(str::to_owned),
        })
    }
}

impl TargetRef {
    /// Returns a target without a listener.
    pub fn new(kind: TargetKind, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind,
            namespace: namespace.into(),
            name: name.into(),
            section: None,
        }
    }

    /// Returns the target of the Pods of `namespace` that have all of `labels`.
    pub fn pods(namespace: impl Into<String>, labels: &BTreeMap<String, String>) -> Self {
        let pairs: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        Self::new(TargetKind::Pod, namespace, pairs.join(","))
    }

    /// Returns the labels of a target of Pods; `None` for a named object.
    pub fn labels(&self) -> Option<BTreeMap<String, String>> {
        (self.kind == TargetKind::Pod)
            .then(|| parse_labels(&self.name))
            .flatten()
    }
}

/// Parses labels such as `app=search,tier=web`. The order is arbitrary, each key may occur once,
/// and values may be empty.
fn parse_labels(text: &str) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    for pair in text.split(',') {
        let (key, value) = pair.split_once('=')?;
        if key.is_empty() || value.contains('=') {
            return None;
        }
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return None;
        }
    }
    Some(labels)
}

impl TryFrom<String> for TargetRef {
    type Error = ParseTargetError;

    fn try_from(s: String) -> Result<Self, Self::Error> {
        s.parse()
    }
}

impl From<TargetRef> for String {
    fn from(target: TargetRef) -> Self {
        target.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(s: &str) -> TargetRef {
        s.parse().unwrap()
    }

    #[test]
    fn targets_read_back_what_they_print() {
        for text in [
            "Service/default/search",
            "HTTPRoute/a/b",
            "GRPCRoute/a/b",
            "InferencePool/a/b",
            "Gateway/a/b",
            "Gateway/a/b/http",
            "Pod/a/app=search",
            "Pod/a/app.kubernetes.io/name=search,tier=",
        ] {
            assert_eq!(target(text).to_string(), text);
        }
        for text in [
            "",
            "Service",
            "Service/a",
            "Service//b",
            "Service/a/",
            "service/a/b",
            "Service/a/b/c",
            "Gateway/a/b/",
            "Gateway/a/b/c/d",
            "Pod/a/search",
            "Pod/a/=search",
            "Pod/a/app=a,app=b",
            "Pod/a/app=a,",
            "Pod/a/app=a=b",
        ] {
            assert!(text.parse::<TargetRef>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_order_of_labels_does_not_make_another_target() {
        let pods = target("Pod/a/tier=web,app=search");
        assert_eq!(pods, target("Pod/a/app=search,tier=web"));
        let labels = pods.labels().unwrap();
        assert_eq!((labels.len(), labels["tier"].as_str()), (2, "web"));
        assert_eq!(TargetRef::pods("a", &labels), pods);
        assert_eq!(target("Service/a/b").labels(), None);
    }
}
