//! A mesh as YAML: services, the work of their requests, the policies in front of them, and the
//! workflows that cross them.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::service::plan::{Behaviour, Route, Step, calls};

/// The namespace of a mesh's policies.
pub const NAMESPACE: &str = "mesh";

/// A mesh.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Topology {
    /// The `spec` of the AdmissionPolicy of every service, without `targetRefs`.
    #[serde(default)]
    pub policy: Value,
    /// The services.
    pub services: Vec<ServiceSpec>,
    /// The load from clients, unless a run has its own.
    #[serde(default)]
    pub workflows: Vec<Workload>,
}

/// A service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceSpec {
    /// The name of the service, by which other services call it.
    pub name: String,
    /// The number of the service's processes, each behind a sidecar.
    #[serde(default = "one")]
    pub processes: usize,
    /// The behaviour of the service's processes.
    pub service: Behaviour,
    /// Settings merged over the policy of all services. Mappings are merged field by field, and
    /// other values are replaced as a whole.
    #[serde(default)]
    pub policy: Value,
    /// Whether the service's sidecars have Headgate.
    #[serde(default = "yes")]
    pub headgate: bool,
    /// Processes that differ from the others.
    #[serde(default)]
    pub differences: Vec<Difference>,
}

/// A process that differs from the others of its service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Difference {
    /// The number of the process, from 1.
    pub process: usize,
    /// Whether the process's sidecar has Headgate.
    #[serde(default)]
    pub headgate: Option<bool>,
    /// The divisor of the process's service times.
    #[serde(default)]
    pub speed: Option<f64>,
    /// Headers of the process's answers.
    #[serde(default)]
    pub response_headers: Vec<(String, String)>,
}

/// The requests of one workflow from clients outside the mesh.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workload {
    /// The name of the workflow, which its requests carry in their baggage.
    pub name: String,
    /// The service to whose processes clients send, in turn.
    pub entry: String,
    /// The path of the requests.
    pub path: String,
    /// Additional headers of the requests.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// Consecutive spans of time, each with the arrival rate of clients that don't wait for earlier
    /// answers. Arrivals are Poisson.
    #[serde(default)]
    pub open: Vec<Arrivals>,
    /// Clients that wait for each answer.
    #[serde(default)]
    pub closed: Vec<Clients>,
    /// The time after which a client hangs up, ms.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: f64,
}

/// A span of time with a constant arrival rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Arrivals {
    /// The length of the span, s.
    pub seconds: f64,
    /// Requests/s. 0 is a pause.
    pub rate: f64,
}

/// Clients that wait for each answer before they send again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Clients {
    /// The number of clients.
    pub clients: usize,
    /// The time at which they start, s after the start of the load.
    #[serde(default)]
    pub from_s: f64,
    /// The time at which they end, s after the start of the load.
    pub until_s: f64,
    /// The pause after an answer, ms.
    #[serde(default)]
    pub think_ms: f64,
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

fn timeout_ms() -> f64 {
    10_000.0
}

impl Topology {
    /// Parses YAML.
    ///
    /// # Errors
    /// If the text isn't a mesh, or has calls to services that don't exist. The error names the
    /// field at fault.
    pub fn parse(text: &str) -> Result<Self> {
        let topology: Self = serde_saphyr::from_str(text).context("the topology")?;
        topology.check()?;
        Ok(topology)
    }

    fn check(&self) -> Result<()> {
        for spec in &self.services {
            let name = &spec.name;
            ensure!(spec.processes > 0, "{name}: processes: 0; give at least 1");
            ensure!(
                self.services.iter().filter(|s| s.name == *name).count() == 1,
                "{name}: there are two services of this name"
            );
            spec.service.check().with_context(|| name.clone())?;
            for called in spec.service.calls() {
                ensure!(
                    self.service(called).is_some(),
                    "{name} calls {called}, which isn't there"
                );
            }
            for difference in &spec.differences {
                let there = (1..=spec.processes).contains(&difference.process);
                ensure!(
                    there,
                    "{name}: differences: there is no process {}",
                    difference.process
                );
            }
        }
        for workload in &self.workflows {
            let Workload {
                name,
                entry,
                open,
                closed,
                ..
            } = workload;
            ensure!(
                self.service(entry).is_some(),
                "workflow {name}: entry: there is no service {entry}"
            );
            ensure!(
                open.is_empty() != closed.is_empty(),
                "workflow {name}: give either open or closed"
            );
        }
        Ok(())
    }

    /// Returns the service of this name.
    pub fn service(&self, name: &str) -> Option<&ServiceSpec> {
        self.services.iter().find(|s| s.name == name)
    }

    /// Returns the service of this name as a mutable reference.
    ///
    /// # Errors
    /// If no service has this name.
    pub fn service_mut(&mut self, name: &str) -> Result<&mut ServiceSpec> {
        let found = self.services.iter_mut().find(|s| s.name == name);
        found.with_context(|| format!("there is no service {name}"))
    }

    /// Returns the headers by which any service routes its calls to `service`.
    pub fn hash_headers(&self, service: &str) -> BTreeSet<&str> {
        let operations = self.services.iter().flat_map(|s| &s.service.operations);
        let called = operations
            .flat_map(|o| calls(&o.steps))
            .filter(|call| call.service == service);
        called
            .filter_map(|call| match &call.route {
                Route::Hash(header) => Some(header.as_str()),
                _ => None,
            })
            .collect()
    }

    /// Whether the policy of a service has workflows.
    pub fn has_workflows(&self, service: &ServiceSpec) -> bool {
        [&self.policy, &service.policy]
            .iter()
            .any(|policy| !policy["workflows"].is_null())
    }

    /// Returns the AdmissionPolicy of a service, or `None` without one.
    pub fn policy_of(&self, service: &ServiceSpec) -> Option<Value> {
        let mut spec = self.policy.clone();
        merge(&mut spec, &service.policy);
        if spec.is_null() {
            return None;
        }
        // All clusters of a service belong to this service. There is one cluster for each method of
        // selecting a process.
        let called = service.service.calls();
        if self.has_workflows(service) && !called.is_empty() {
            let named = |name: &&str| json!({"cluster": format!("{name}/*"), "name": name});
            let services: Vec<Value> = called.iter().map(named).collect();
            spec["workflows"]["outbound"] = json!({"services": services});
        }
        spec["targetRefs"] = json!([{"group": "", "kind": "Service", "name": service.name}]);
        Some(json!({
            "apiVersion": "headgate.dev/v1alpha1",
            "kind": "AdmissionPolicy",
            "metadata": {"name": service.name, "namespace": NAMESPACE},
            "spec": spec,
        }))
    }
}

/// Merges `over` into `base`. Mappings are merged field by field, and other values are replaced as
/// a whole.
fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (_, Value::Null) => {}
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over.clone(),
    }
}

impl ServiceSpec {
    /// Returns the behaviour of process `number`.
    pub fn behaviour_of(&self, number: usize) -> Behaviour {
        let mut behaviour = self.service.clone();
        if let Some(difference) = self.difference(number) {
            behaviour.speed = difference.speed.unwrap_or(behaviour.speed);
            let headers = difference.response_headers.iter().cloned();
            behaviour.response_headers.extend(headers);
        }
        behaviour
    }

    /// Whether the sidecar of process `number` has Headgate.
    pub fn has_headgate(&self, number: usize) -> bool {
        self.difference(number)
            .and_then(|d| d.headgate)
            .unwrap_or(self.headgate)
    }

    fn difference(&self, number: usize) -> Option<&Difference> {
        self.differences.iter().find(|d| d.process == number)
    }

    /// Returns the mean service time, ms, of the first computing step of the operation with this
    /// path. Tests compute capacities from this time.
    pub fn mean_ms(&self, path: &str) -> Option<f64> {
        let operation = self.service.operations.iter().find(|o| o.path == path)?;
        operation.steps.iter().find_map(|step| match step {
            Step::Compute(compute) => Some(compute.mean_ms),
            _ => None,
        })
    }
}

impl Workload {
    /// Returns the time at which the last client ends, s after the start.
    pub fn seconds(&self) -> f64 {
        let open: f64 = self.open.iter().map(|p| p.seconds).sum();
        self.closed.iter().map(|c| c.until_s).fold(open, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "
policy: {parallelism: {total: 4}, queue: {maxLength: 10}}
services:
- name: fe
  processes: 2
  service:
    workers: 8
    operations: [{path: /, steps: [{call: {service: en, route: {hash: x-key}}}]}]
- name: en
  service: {workers: 2, operations: [{path: /, steps: [{compute: {meanMs: 20}}]}]}
  policy: {parallelism: {total: 2}}
  differences: [{process: 1, speed: 0.5}]
workflows:
- {name: a, entry: fe, path: /a, open: [{seconds: 10, rate: 50}]}
";

    #[test]
    fn a_services_policy_is_merged_over_that_of_all() {
        let topology = Topology::parse(EXAMPLE).unwrap();
        let en = topology.service("en").unwrap();
        let policy = topology.policy_of(en).unwrap();
        assert_eq!(policy["spec"]["parallelism"]["total"], 2);
        assert_eq!(policy["spec"]["queue"]["maxLength"], 10);
        assert_eq!(policy["spec"]["targetRefs"][0]["name"], "en");
        assert_eq!(en.behaviour_of(1).speed, 0.5);
        assert_eq!(topology.hash_headers("en"), BTreeSet::from(["x-key"]));
        let mut with_workflows = topology.clone();
        with_workflows.policy["workflows"] = json!({"quantile": 0.5});
        let fe = with_workflows.service("fe").unwrap();
        let policy = with_workflows.policy_of(fe).unwrap();
        let services = json!([{"cluster": "en/*", "name": "en"}]);
        assert_eq!(
            policy["spec"]["workflows"]["outbound"]["services"],
            services
        );
        let mut bare = topology.clone();
        bare.policy = Value::Null;
        assert_eq!(bare.policy_of(bare.service("fe").unwrap()), None);
    }

    #[test]
    fn an_error_names_a_missing_service_or_process() {
        let mistakes = [
            (
                "call: {service: en",
                "call: {service: nobody",
                "fe calls nobody",
            ),
            ("process: 1", "process: 2", "no process 2"),
            ("entry: fe", "entry: no", "no service no"),
            (
                "open: [{seconds: 10, rate: 50}]",
                "timeoutMs: 1",
                "either open or closed",
            ),
        ];
        for (right, wrong, told) in mistakes {
            let error = Topology::parse(&EXAMPLE.replace(right, wrong)).unwrap_err();
            assert!(format!("{error:#}").contains(told), "{error:#}");
        }
    }
}
