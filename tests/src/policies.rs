//! The objects of a cluster as users write them, and the status of policies.

use std::ops::Deref;

use anyhow::Result;
use serde_json::Value;

use crate::kube::api_server::ApiServer;
use crate::kube::programs;
use crate::wait::until;

/// Returns a policy of `total` slots for one target.
pub fn policy(namespace: &str, name: &str, kind: &str, target: &str, total: u32) -> String {
    let group = match kind {
        "Service" => "\"\"",
        "InferencePool" => "inference.networking.k8s.io",
        _ => "gateway.networking.k8s.io",
    };
    format!(
        "
apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  targetRefs: [{{group: {group}, kind: {kind}, name: {target}}}]
  parallelism: {{total: {total}}}
  types: [{{name: default, slo: {{p50: 18ms, p90: 50ms}}}}]
"
    )
}

/// Returns a Service whose selector is `key=value`.
pub fn service(namespace: &str, name: &str, selector: &str) -> String {
    let selector = selector.replace('=', ": ");
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{selector: {{{selector}}}, ports: [{{name: http, port: 80}}]}}
"
    )
}

/// Returns the EndpointSlice of a Service, with ready endpoints that no controller manages.
pub fn endpoints(namespace: &str, service: &str, addresses: &[&str]) -> String {
    let endpoints: Vec<String> = addresses
        .iter()
        .map(|a| format!("{{addresses: [\"{a}\"], conditions: {{ready: true}}}}"))
        .collect();
    format!(
        "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: {service}-test
  namespace: {namespace}
  labels: {{kubernetes.io/service-name: {service}, endpointslice.kubernetes.io/managed-by: test}}
addressType: IPv4
endpoints: [{}]
ports: [{{name: http, port: 80}}]
",
        endpoints.join(", ")
    )
}

/// Returns a Pod with labels such as `app: search`.
pub fn pod(namespace: &str, name: &str, labels: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}}}
spec: {{containers: [{{name: c, image: example.com/none:1}}]}}
"
    )
}

/// A cluster as its users see it, which dereferences to its API server.
pub struct Cluster<'a> {
    server: &'a ApiServer,
}

impl Deref for Cluster<'_> {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        self.server
    }
}

impl<'a> Cluster<'a> {
    /// Returns the cluster of this API server.
    pub fn new(server: &'a ApiServer) -> Self {
        Self { server }
    }

    /// Creates a namespace whose name starts with `prefix`, in which Pods can be created.
    ///
    /// # Errors
    /// If the namespace can't be created.
    pub fn namespace(&self, prefix: &str) -> Result<String> {
        let name = self.server.namespace(prefix)?;
        until("the service account of Pods", || {
            let get = ["get", "serviceaccount", "default", "-n", &name];
            self.kubectl(&get).map_err(|e| e.to_string())
        })?;
        Ok(name)
    }

    /// Installs the CRDs of another project (`scripts/get-crds`).
    ///
    /// # Errors
    /// If the CRDs aren't available or are refused.
    pub fn install(&self, project: &str) -> Result<()> {
        let file = format!("--filename={}", programs::crds(project)?.display());
        self.kubectl(&["apply", "--server-side", &file])?;
        self.server.wait_for_crds()
    }

    /// Returns a condition of a policy at its target with index `target`, or null if it is absent.
    ///
    /// # Errors
    /// If the policy can't be read.
    pub fn condition(
        &self,
        namespace: &str,
        policy: &str,
        target: usize,
        condition: &str,
    ) -> Result<Value> {
        let object = self
            .server
            .get(&["admissionpolicy", policy, "-n", namespace])?;
        let conditions = &object["status"]["ancestors"][target]["conditions"];
        let all = conditions.as_array().into_iter().flatten();
        let found = all.into_iter().find(|c| c["type"] == condition);
        Ok(found.cloned().unwrap_or(Value::Null))
    }

    /// Waits until a condition has this status and reason.
    ///
    /// # Errors
    /// If the condition doesn't get them in time. The error contains its last state.
    pub fn until_condition(
        &self,
        namespace: &str,
        policy: &str,
        target: usize,
        condition: &str,
        status: &str,
        reason: &str,
    ) -> Result<Value> {
        let what = format!("{namespace}/{policy}: {condition} {status} {reason}");
        until(&what, || {
            let found = self.condition(namespace, policy, target, condition);
            let found = found.map_err(|e| e.to_string())?;
            match found["status"] == status && found["reason"] == reason {
                true => Ok(found),
                false => Err(found.to_string()),
            }
        })
    }

    /// Waits until `Programmed` is true with this `observedGeneration`.
    ///
    /// # Errors
    /// If the condition isn't true in time. The error contains its last state.
    pub fn until_generation(
        &self,
        namespace: &str,
        policy: &str,
        generation: i64,
    ) -> Result<Value> {
        until(
            &format!("{namespace}/{policy}: generation {generation}"),
            || {
                let found = self.condition(namespace, policy, 0, "Programmed");
                let found = found.map_err(|e| e.to_string())?;
                match found["observedGeneration"] == generation && found["status"] == "True" {
                    true => Ok(found),
                    false => Err(found.to_string()),
                }
            },
        )
    }

    /// Returns the reasons of the Events about a policy, the oldest first.
    ///
    /// # Errors
    /// If the Events can't be read.
    pub fn event_reasons(&self, namespace: &str, policy: &str) -> Result<Vec<String>> {
        let selector =
            format!("--field-selector=regarding.kind=AdmissionPolicy,regarding.name={policy}");
        let list = self.kubectl(&[
            "get",
            "events.v1.events.k8s.io",
            "-n",
            namespace,
            &selector,
            "--sort-by=.eventTime",
            "-o=jsonpath={.items[*].reason}",
        ])?;
        Ok(list.split_whitespace().map(str::to_owned).collect())
    }

    /// Returns the time at which a policy was created, as the API server writes it.
    ///
    /// # Errors
    /// If the policy can't be read.
    pub fn creation_second(&self, namespace: &str, policy: &str) -> Result<String> {
        let path = "-o=jsonpath={.metadata.creationTimestamp}";
        self.kubectl(&["get", "admissionpolicy", policy, "-n", namespace, path])
    }

    /// Returns the API server's present time, to the second.
    ///
    /// # Errors
    /// If the API server doesn't answer.
    pub fn now(&self) -> Result<String> {
        let made = self.kubectl(&[
            "create",
            "configmap",
            "now",
            "-n=default",
            "--dry-run=server",
            "-o=jsonpath={.metadata.creationTimestamp}",
        ])?;
        Ok(made.trim().to_owned())
    }

    /// Sets the readiness of a Pod, as a node would.
    ///
    /// # Errors
    /// If the Pod doesn't exist.
    pub fn pod_is_ready(&self, namespace: &str, pod: &str, ready: bool) -> Result<()> {
        let status = if ready { "True" } else { "False" };
        let patch = format!(
            r#"{{"status":{{"phase":"Running",
                "conditions":[{{"type":"Ready","status":"{status}"}}]}}}}"#
        );
        let patch = format!("--patch={patch}");
        self.kubectl(&[
            "patch",
            "pod",
            pod,
            "-n",
            namespace,
            "--subresource=status",
            &patch,
        ])
        .map(drop)
    }
}
