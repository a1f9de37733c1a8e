//! Selects the policies that a proxy enforces, from its node metadata.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Enforced, LABELS_METADATA, NAMESPACE_METADATA, Plan, TARGET_METADATA, TargetRef};

/// The part of a proxy's node metadata that selects its policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyClaims<'a> {
    /// The target whose policies the proxy enforces, if the proxy names a target.
    pub target: Option<&'a TargetRef>,
    /// The namespace of the proxy's Pod.
    pub namespace: Option<&'a str>,
    /// The labels of the proxy's Pod.
    pub labels: &'a BTreeMap<String, String>,
}

impl Plan {
    /// Returns the policies for a proxy, by the target that the proxy names or, without a target,
    /// by the proxy's namespace and labels.
    ///
    /// With a folder, only the target counts. A proxy without a target gets the only workload. If
    /// there are several workloads, the proxy gets none, because a guess could apply one service's
    /// limits to another service. In a cluster, a proxy that names neither a target nor labels gets
    /// no configuration, and a proxy never gets the configuration of another namespace. To get the
    /// result for a selector's Pods, pass the selector's labels.
    ///
    /// A proxy to which no policy applies gets a configuration without stages, so that all requests
    /// pass. The cost is `O(log targets)` for a target. For the cost for labels, see [`enforced`].
    ///
    /// [`enforced`]: super::Attachments::enforced
    pub fn for_proxy(&self, claims: &ProxyClaims<'_>) -> Arc<Enforced> {
        let found = match (claims.target, self.in_cluster) {
            (Some(target), _) => self.by_target(target, claims.namespace),
            (None, false) => self.only_workload(),
            (None, true) => match (claims.namespace, claims.labels.is_empty()) {
                (Some(namespace), false) => {
                    return self.attachments.enforced(namespace, claims.labels);
                }
                (namespace, no_labels) => Err(missing_metadata(namespace.is_some(), !no_labels)),
            },
        };
        Arc::new(found.unwrap_or_else(|problem| Enforced::nothing(Some(problem))))
    }

    fn by_target(&self, target: &TargetRef, namespace: Option<&str>) -> Result<Enforced, String> {
        if let Some(namespace) = namespace.filter(|n| self.in_cluster && *n != target.namespace) {
            return Err(format!(
                "node metadata {TARGET_METADATA:?}: {target} is not of the proxy's own namespace \
                 {namespace}; name a target of {namespace}"
            ));
        }
        if let Some(config) = self.workloads.get(target) {
            return Ok(Enforced::by_target(target, config));
        }
        // A proxy of another namespace must not learn the names in this namespace.
        let namespace = self.in_cluster.then_some(target.namespace.as_str());
        let others = match self.target_names(namespace).as_str() {
            "" => match namespace {
                Some(namespace) => format!("no policy is in force in namespace {namespace}"),
                None => "no policy is accepted".to_owned(),
            },
            names => format!("policies target {names}"),
        };
        Err(format!("no accepted policy targets {target}; {others}"))
    }

    fn only_workload(&self) -> Result<Enforced, String> {
        let Some((target, config)) = self.workloads.first_key_value() else {
            return Ok(Enforced::default());
        };
        // A policy with several targets compiles to the same configuration for each target.
        if self.workloads.values().all(|c| c == config) {
            return Ok(Enforced::by_target(target, config));
        }
        Err(format!(
            "policies have {} different targets and this proxy names none; set node metadata \
             {TARGET_METADATA:?} to one of {}",
            self.workloads.len(),
            self.target_names(None)
        ))
    }

    /// Lists the targets with a configuration, in one namespace or all; at most ten by name.
    fn target_names(&self, namespace: Option<&str>) -> String {
        const SHOWN: usize = 10;
        let all: Vec<String> = self
            .workloads
            .keys()
            .filter(|target| namespace.is_none_or(|n| target.namespace == n))
            .map(ToString::to_string)
            .collect();
        match all.split_at_checked(SHOWN) {
            Some((shown, more)) if !more.is_empty() => {
                format!("{} and {} more", shown.join(", "), more.len())
            }
            _ => all.join(", "),
        }
    }
}

/// Returns the node metadata that a proxy in a cluster lacks.
fn missing_metadata(has_namespace: bool, has_labels: bool) -> String {
    let missing = match (has_namespace, has_labels) {
        (false, true) => {
            format!("labels and no namespace; set node metadata {NAMESPACE_METADATA:?}")
        }
        (true, false) => {
            format!("a namespace and no labels; set node metadata {LABELS_METADATA:?}")
        }
        _ => format!(
            "no target and no labels; set node metadata {NAMESPACE_METADATA:?} and \
             {LABELS_METADATA:?}"
        ),
    };
    format!("this proxy names {missing} (headgate bootstrap does), or {TARGET_METADATA:?}")
}

#[cfg(test)]
mod tests {
    use headgate_core::config::FilterConfig;

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

    /// Returns the revision, or the reason for its absence.
    fn ask(plan: &Plan, claim: Option<&str>, namespace: Option<&str>) -> Result<String, String> {
        let claim = claim.map(target);
        let enforced = plan.for_proxy(&ProxyClaims {
            target: claim.as_ref(),
            namespace,
            labels: &BTreeMap::new(),
        });
        match &enforced.problem {
            Some(problem) => Err(problem.clone()),
            None => Ok(enforced.config.revision.clone()),
        }
    }

    #[test]
    fn a_proxy_without_target_gets_the_only_workload() {
        let asked = |plan: &Plan| ask(plan, None, None).unwrap();
        assert_eq!(asked(&plan(&[])), "");
        assert_eq!(asked(&plan(&[("Service/a/b", "1")])), "1");
        assert_eq!(
            asked(&plan(&[("Service/a/b", "1"), ("Service/a/c", "1")])),
            "1"
        );
    }

    #[test]
    fn a_proxy_without_target_gets_nothing_when_there_is_a_choice() {
        let two = plan(&[("Service/a/b", "1"), ("Service/a/c", "2")]);
        assert_eq!(
            ask(&two, None, None).unwrap_err(),
            "policies have 2 different targets and this proxy names none; set node metadata \
             \"headgate.dev/target\" to one of Service/a/b, Service/a/c"
        );
        assert_eq!(ask(&two, Some("Service/a/c"), None).unwrap(), "2");
    }

    #[test]
    fn an_unknown_target_is_explained() {
        let one = plan(&[("Service/a/b", "1")]);
        let asked = |plan: &Plan| ask(plan, Some("Service/a/x"), None).unwrap_err();
        assert_eq!(
            asked(&one),
            "no accepted policy targets Service/a/x; policies target Service/a/b"
        );
        assert_eq!(
            asked(&plan(&[])),
            "no accepted policy targets Service/a/x; no policy is accepted"
        );
    }

    #[test]
    fn in_a_cluster_a_proxy_gets_nothing_that_it_does_not_name() {
        let mut plan = plan(&[("Service/a/b", "1")]);
        plan.in_cluster = true;
        for namespace in [None, Some("a")] {
            assert_eq!(ask(&plan, Some("Service/a/b"), namespace).unwrap(), "1");
        }
        assert_eq!(
            ask(&plan, None, None).unwrap_err(),
            "this proxy names no target and no labels; set node metadata \
             \"headgate.dev/namespace\" and \"headgate.dev/labels\" (headgate bootstrap does), or \
             \"headgate.dev/target\""
        );
        assert_eq!(
            ask(&plan, None, Some("a")).unwrap_err(),
            "this proxy names a namespace and no labels; set node metadata \"headgate.dev/labels\" \
             (headgate bootstrap does), or \"headgate.dev/target\""
        );
    }

    #[test]
    fn in_a_cluster_no_proxy_gets_or_learns_what_is_for_another_namespace() {
        let mut plan = plan(&[("Service/a/b", "1")]);
        plan.in_cluster = true;
        assert_eq!(
            ask(&plan, Some("Service/a/b"), Some("c")).unwrap_err(),
            "node metadata \"headgate.dev/target\": Service/a/b is not of the proxy's own \
             namespace c; name a target of c"
        );
        assert_eq!(
            ask(&plan, Some("Service/c/b"), Some("c")).unwrap_err(),
            "no accepted policy targets Service/c/b; no policy is in force in namespace c"
        );
    }
}
