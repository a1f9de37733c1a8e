//! The requests that an operator makes to the API server, depending on its arguments. The chart's
//! roles allow exactly these requests.

use std::fmt;

use headgate_deliver::Adapter;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};

use super::installation::Installation;

/// The requests, except those of deliveries. Each line is one resource. The columns are the scope
/// (`cluster`, the operator's `own` namespace, or each namespace that is `watched`), the argument
/// or condition that needs the request, `group/resource`, the argument with the object's name, and
/// the verbs.
const REQUESTS: &str = "
cluster -             authentication.k8s.io/tokenreviews             -             create
cluster -             authorization.k8s.io/subjectaccessreviews      -             create
cluster adapters      gateway.networking.k8s.io/gatewayclasses       -             list,watch
cluster all-namespaces /namespaces                                   -             list,watch
cluster injection-webhook admissionregistration.k8s.io/mutatingwebhookconfigurations injection-webhook list,watch,patch
own     elects        coordination.k8s.io/leases                     -             create
own     elects        coordination.k8s.io/leases                     lease         get,patch
own     tls-authority /secrets                                       -             create
own     tls-authority /secrets                                       tls-authority get
own     publish-ca    /namespaces                                    namespace     get
own     watch-namespace discovery.k8s.io/endpointslices              -             list,watch
watched -             headgate.dev/admissionpolicies                 -             list,watch
watched -             headgate.dev/admissionpolicies/status          -             patch
watched -             /services                                      -             list,watch
watched -             /pods                                          -             list,watch
watched -             discovery.k8s.io/endpointslices                -             list,watch
watched -             gateway.networking.k8s.io/gateways             -             list,watch
watched -             gateway.networking.k8s.io/httproutes           -             list,watch
watched -             gateway.networking.k8s.io/grpcroutes           -             list,watch
watched -             inference.networking.k8s.io/inferencepools     -             list,watch
watched -             events.k8s.io/events                           -             create
watched publish-ca    /configmaps                                    -             create
watched publish-ca    /configmaps                                    publish-ca    list,watch,patch
";

/// A right that the operator needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Right {
    /// The namespace. Empty for all namespaces, and for cluster-scoped resources.
    namespace: String,
    /// `group/resource` or `group/resource/subresource`.
    resource: String,
    /// The object's name, if the right is limited to one object.
    name: Option<String>,
    /// The verb.
    verb: String,
}

/// Returns the rights that an operator with these arguments needs.
pub(crate) fn needed(operator: &Installation) -> Vec<Right> {
    let watched = operator.watched();
    let delivers = |adapter| operator.adapters().contains(&adapter);
    let has = |argument: &str| operator.has(argument) || operator.argument(argument).is_some();
    let is_needed = |condition: &str| match condition {
        "adapters" => !operator.adapters().is_empty(),
        "all-namespaces" => has("namespace-selector") || (has("publish-ca") && watched.is_empty()),
        "istio-wasm" => delivers("istio") && !has("istio-native"),
        "istio-native" => delivers("istio") && has("istio-native"),
        "elects" => operator.elects(),
        "envoy-gateway" => delivers("envoy-gateway"),
        "-" => true,
        argument => has(argument),
    };
    let name = |argument: &str| match argument {
        "-" => None,
        "lease" => Some(operator.lease().to_owned()),
        "namespace" => Some(operator.namespace.clone()),
        argument => operator.argument(argument).map(str::to_owned),
    };
    let delivered = Adapter::ALL.map(|adapter| {
        let (condition, of) = (adapter.condition(), adapter.resource());
        let verbs = "list,watch,create,patch,delete";
        format!("watched {condition} {}/{} - {verbs}", of.group, of.plural)
    });
    let lines = REQUESTS.lines().chain(delivered.iter().map(String::as_str));
    let mut rights = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [place, condition, resource, named, verbs] = words[..] else {
            continue;
        };
        let namespaces = match place {
            "own" => vec![operator.namespace.as_str()],
            "watched" if !watched.is_empty() => watched.clone(),
            _ => vec![""],
        };
        for namespace in namespaces.into_iter().filter(|_| is_needed(condition)) {
            rights.extend(verbs.split(',').map(|verb| Right {
                namespace: namespace.to_owned(),
                resource: resource.to_owned(),
                name: name(named),
                verb: verb.to_owned(),
            }));
        }
    }
    rights
}

impl Right {
    /// Returns a SubjectAccessReview of whether the operator's account has this right.
    pub(crate) fn review(&self, operator: &Installation) -> SubjectAccessReview {
        let mut parts = self.resource.split('/');
        let mut part = || parts.next().map(str::to_owned);
        let own = &operator.namespace;
        let groups = [
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{own}"),
            "system:authenticated".to_owned(),
        ];
        SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(format!(
                    "system:serviceaccount:{own}:{}",
                    operator.service_account
                )),
                groups: Some(groups.into()),
                resource_attributes: Some(ResourceAttributes {
                    group: part(),
                    resource: part(),
                    subresource: part(),
                    namespace: Some(self.namespace.clone()),
                    name: self.name.clone(),
                    verb: Some(self.verb.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = self.resource.trim_start_matches('/');
        write!(f, "{} {resource}", self.verb)?;
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        match self.namespace.as_str() {
            "" => Ok(()),
            namespace => write!(f, " in {namespace}"),
        }
    }
}
