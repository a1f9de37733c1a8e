//! What a set of policies amounts to: which configuration each proxy gets, and what became of each policy.
//!
//! A [`Plan`] is plain data. A source (a folder, later the API server) makes a new one on each real
//! change; the xDS server and `headgate status` only read it. Nothing here does I/O.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use headgate_core::config::{FilterConfig, Mode};
use serde::{Deserialize, Serialize};

/// Node metadata key by which a proxy says which target it stands for.
pub const TARGET_METADATA: &str = "headgate.dev/target";

/// Everything that is to be enforced, and why the rest is not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Every policy known, ordered by `namespace/name`.
    pub policies: Vec<PolicyState>,
    /// One configuration for each target that has an accepted policy.
    pub workloads: BTreeMap<TargetRef, Arc<FilterConfig>>,
    /// Problems of the source that no single policy owns: an unreadable file, a syntax error in a file
    /// that never had a good version, a missing folder.
    pub problems: Vec<SourceProblem>,
}

/// What became of one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyState {
    /// `namespace/name`.
    pub name: String,
    /// Where it came from: a file's path.
    pub source: String,
    /// `metadata.generation`; 0 in a folder, unless the file gives one.
    pub generation: i64,
    /// The targets it names.
    pub targets: Vec<TargetRef>,
    /// `Err` holds one line a problem. While a policy has a last good version, that version stays
    /// enforced, and `revision` is that version's.
    pub accepted: Result<(), String>,
    /// Targets where an older policy applies in place of this one.
    pub conflicts: Vec<Conflict>,
    /// Enforce or only count.
    pub mode: Mode,
    /// [`FilterConfig::revision`] of the workloads that enforce it; empty when none does.
    pub revision: String,
}

/// A target that this policy lost to an older one (GEP-713).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// The contested target.
    pub target: TargetRef,
    /// `namespace/name` of the policy that applies there.
    pub winner: String,
}

/// A problem of the source that no single policy owns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceProblem {
    /// The file or folder at fault, with line and column where they are known.
    pub source: String,
    /// One line: the field, the value, what would be right.
    pub message: String,
}

impl Plan {
    /// The configuration for a proxy that stands for `target`, or for one that says nothing.
    ///
    /// A proxy without a target gets the only workload there is; with several, guessing could put one
    /// service's limits in front of another. No policies at all is the empty configuration.
    ///
    /// # Errors
    /// One line that says why no policy applies and what to set. Serve such a proxy
    /// [`FilterConfig::default`] (everything passes) and show the line.
    pub fn for_proxy(&self, target: Option<&TargetRef>) -> Result<Arc<FilterConfig>, String> {
        if let Some(target) = target {
            return self.workloads.get(target).cloned().ok_or_else(|| {
                format!(
                    "no accepted policy targets {target}; {}",
                    match self.target_names().as_str() {
                        "" => "no policy is accepted".to_owned(),
                        names => format!("policies target {names}"),
                    }
                )
            });
        }
        let mut all = self.workloads.values();
        match (all.next(), all.next()) {
            (None, _) => Ok(Arc::default()),
            (Some(only), None) => Ok(Arc::clone(only)),
            // A policy with several targets compiles to the same configuration for each of them.
            (Some(first), Some(_)) if self.workloads.values().all(|c| c == first) => {
                Ok(Arc::clone(first))
            }
            _ => Err(format!(
                "policies have {} different targets and this proxy names none; set node metadata \
                 {TARGET_METADATA:?} to one of {}",
                self.workloads.len(),
                self.target_names()
            )),
        }
    }

    /// The targets with a configuration, at most ten of them spelled out.
    fn target_names(&self) -> String {
        const SHOWN: usize = 10;
        let names: Vec<String> = self
            .workloads
            .keys()
            .take(SHOWN)
            .map(ToString::to_string)
            .collect();
        match self.workloads.len().saturating_sub(SHOWN) {
            0 => names.join(", "),
            more => format!("{} and {more} more", names.join(", ")),
        }
    }
}

/// The object that a policy applies to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TargetRef {
    /// `Service`, `Gateway`, `HTTPRoute` or `GRPCRoute`.
    pub kind: TargetKind,
    /// Its namespace; the policy's own.
    pub namespace: String,
    /// Its name.
    pub name: String,
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
}

impl TargetKind {
    /// All kinds, in the order in which messages name them.
    pub const ALL: [Self; 4] = [
        Self::Service,
        Self::Gateway,
        Self::HttpRoute,
        Self::GrpcRoute,
    ];

    /// The kind as Kubernetes spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::Gateway => "Gateway",
            Self::HttpRoute => "HTTPRoute",
            Self::GrpcRoute => "GRPCRoute",
        }
    }

    /// The API group of the kind; empty for Kubernetes' core.
    #[must_use]
    pub const fn group(self) -> &'static str {
        match self {
            Self::Service => "",
            Self::Gateway | Self::HttpRoute | Self::GrpcRoute => "gateway.networking.k8s.io",
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

/// A text that is not `Kind/namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no target; kind/namespace/name, such as Service/default/search, of a Service, Gateway, HTTPRoute or GRPCRoute"
)]
pub struct ParseTargetError(String);

impl fmt::Display for TargetRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)
    }
}

impl FromStr for TargetRef {
    type Err = ParseTargetError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let error = || ParseTargetError(s.to_owned());
        let mut parts = s.split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(kind), Some(namespace), Some(name), None)
                if !namespace.is_empty() && !name.is_empty() =>
            {
                Ok(Self {
                    kind: kind.parse().map_err(|_| error())?,
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            _ => Err(error()),
        }
    }
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

    fn plan(workloads: &[(&str, &str)]) -> Plan {
        let config = |revision: &str| {
            Arc::new(FilterConfig {
                revision: revision.to_owned(),
                ..FilterConfig::default()
            })
        };
        Plan {
            workloads: workloads
                .iter()
                .map(|(t, r)| (target(t), config(r)))
                .collect(),
            ..Plan::default()
        }
    }

    #[test]
    fn targets_read_back_what_they_print() {
        for text in [
            "Service/default/search",
            "HTTPRoute/a/b",
            "GRPCRoute/a/b",
            "Gateway/a/b",
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
        ] {
            assert!(text.parse::<TargetRef>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_proxy_without_target_gets_the_only_workload() {
        assert_eq!(plan(&[]).for_proxy(None).unwrap().revision, "");
        assert_eq!(
            plan(&[("Service/a/b", "1")])
                .for_proxy(None)
                .unwrap()
                .revision,
            "1"
        );
        let same = plan(&[("Service/a/b", "1"), ("Service/a/c", "1")]);
        assert_eq!(same.for_proxy(None).unwrap().revision, "1");
    }

    #[test]
    fn a_proxy_without_target_gets_nothing_when_there_is_a_choice() {
        let two = plan(&[("Service/a/b", "1"), ("Service/a/c", "2")]);
        assert_eq!(
            two.for_proxy(None).unwrap_err(),
            "policies have 2 different targets and this proxy names none; set node metadata \
             \"headgate.dev/target\" to one of Service/a/b, Service/a/c"
        );
        assert_eq!(
            two.for_proxy(Some(&target("Service/a/c")))
                .unwrap()
                .revision,
            "2"
        );
    }

    #[test]
    fn an_unknown_target_is_explained() {
        let one = plan(&[("Service/a/b", "1")]);
        assert_eq!(
            one.for_proxy(Some(&target("Service/a/x"))).unwrap_err(),
            "no accepted policy targets Service/a/x; policies target Service/a/b"
        );
        assert_eq!(
            plan(&[])
                .for_proxy(Some(&target("Service/a/x")))
                .unwrap_err(),
            "no accepted policy targets Service/a/x; no policy is accepted"
        );
    }
}
