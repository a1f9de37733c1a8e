//! Starts a mesh, part by part, and ends it even if a test fails.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::ports::Reserved;
use super::service::{ServiceConfig, ServiceProcess, ServiceStats};
use super::sidecar::{Destination, INBOUND, OUTBOUND, Sidecar, Source};
use super::topology::{NAMESPACE, ServiceSpec, Topology};
use crate::bootstrap::Bootstrap;
use crate::envoy::EnvoyProcess;
use crate::file;
use crate::headgate::{self, Headgate, RunOptions};
use crate::wait::{self, MachineLock};

/// The number of sidecars that start at the same time. Compiling the filter keeps a core busy for a
/// while.
const STARTING: usize = 2;

/// The source of Headgate's configuration for the sidecars of a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slots {
    /// The sidecars are plain proxies without a configuration. The capacity is then that of the
    /// services.
    None,
    /// Files, as `headgate render` writes them.
    Files,
    /// An operator.
    Operator,
}

/// The options of a mesh.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The source of Headgate's configuration for the sidecars.
    pub slots: Slots,
    /// Worker threads of each sidecar.
    pub concurrency: u32,
}

/// A running mesh. Dropping it ends all its processes.
#[derive(Debug)]
pub struct Mesh {
    // The sidecars are dropped before the services and the operator that they connect to.
    nodes: Vec<Node>,
    headgate: Option<Headgate>,
    topology: Topology,
    concurrency: u32,
    dir: TempDir,
    _lock: MachineLock,
}

/// A process of a service, and its sidecar.
#[derive(Debug)]
pub struct Node {
    /// The name of the process, such as `en-2`.
    pub name: String,
    /// The service that the process belongs to.
    pub service: String,
    /// The number of the process in the service, from 1.
    pub number: usize,
    /// Whether the sidecar has Headgate.
    pub headgate: bool,
    /// The sidecar. `None` while a test keeps it stopped.
    sidecar: Option<EnvoyProcess>,
    bootstrap: Bootstrap,
    /// The process of the service.
    pub process: ServiceProcess,
    inbound: Reserved,
    _outbound: Reserved,
}

impl Mesh {
    /// Starts all of `topology` and waits until every proxy serves with its configuration.
    ///
    /// # Errors
    /// If a part doesn't start. The error contains its last lines of output.
    pub fn start(topology: &Topology, options: Options) -> Result<Self> {
        let lock = wait::lock_machine()?;
        let dir = tempfile::Builder::new()
            .prefix("headgate-mesh-")
            .tempdir()?;
        let mut places = Vec::new();
        for spec in &topology.services {
            for number in 1..=spec.processes {
                places.push(Place::new(topology, spec, number, options.slots)?);
            }
        }
        let destinations = destinations(topology, &places);
        let headgate = match options.slots {
            Slots::Operator => Some(operator(topology, dir.path())?),
            Slots::Files | Slots::None => None,
        };
        let mut nodes = Vec::new();
        for (index, place) in places.into_iter().enumerate() {
            let process = ServiceProcess::start(&place.config(topology, index)?)?;
            let source = match (&headgate, options.slots) {
                _ if !place.headgate => Source::None,
                (Some(headgate), _) => Source::Operator {
                    xds: headgate.xds(),
                    outbound: topology.has_workflows(place.spec(topology)?),
                },
                (None, Slots::Files) => files(topology, &place, dir.path())?,
                (None, _) => Source::None,
            };
            let bootstrap = Sidecar {
                node: &place.name,
                service: &place.service,
                inbound: place.inbound.addr(),
                outbound: place.outbound.addr(),
                app: process.addr(),
                source,
                services: &destinations,
            }
            .bootstrap()?;
            nodes.push(Node {
                name: place.name,
                service: place.service,
                number: place.number,
                headgate: place.headgate,
                sidecar: None,
                bootstrap,
                process,
                inbound: place.inbound,
                _outbound: place.outbound,
            });
        }
        let mut mesh = Self {
            nodes,
            headgate,
            topology: topology.clone(),
            concurrency: options.concurrency,
            dir,
            _lock: lock,
        };
        mesh.start_sidecars()?;
        Ok(mesh)
    }

    fn start_sidecars(&mut self) -> Result<()> {
        let concurrency = self.concurrency;
        for group in self.nodes.chunks_mut(STARTING) {
            std::thread::scope(|scope| {
                let starting: Vec<_> = group
                    .iter_mut()
                    .map(|node| scope.spawn(|| node.start_sidecar(concurrency)))
                    .collect();
                starting
                    .into_iter()
                    .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread died"))?)
            })?;
        }
        self.wait_until_in_sync(None)
    }

    /// Replaces the operator's policies by those of `topology`, and waits until every sidecar of a
    /// changed policy runs its new policy. Apart from policies, `topology` must equal the running
    /// topology. Does nothing if both are equal.
    ///
    /// # Errors
    /// If the mesh has no operator, or a policy or a sidecar doesn't follow in time.
    pub fn apply(&mut self, topology: &Topology) -> Result<()> {
        if *topology == self.topology {
            return Ok(());
        }
        let headgate = self
            .headgate
            .as_ref()
            .context("nobody programs this mesh")?;
        let mut before = revisions(headgate)?;
        before.retain(|service, _| {
            let policy = |topology: &Topology| {
                let service = topology.service(service);
                service.and_then(|service| topology.policy_of(service))
            };
            policy(topology) != policy(&self.topology)
        });
        write_policies(topology, &self.dir.path().join(POLICIES))?;
        self.topology = topology.clone();
        self.wait_until_in_sync(Some(&before))
    }

    /// Waits until every sidecar runs the policy of its service. The policies in `before` must have
    /// other revisions than in `before`.
    fn wait_until_in_sync(&self, before: Option<&BTreeMap<String, String>>) -> Result<()> {
        let Some(headgate) = &self.headgate else {
            return Ok(());
        };
        let expected = self.nodes.iter().filter(|node| node.headgate).count();
        wait::until("all sidecars to run their policies", || {
            let status = headgate.status().map_err(|e| e.to_string())?;
            let now = revisions(headgate).map_err(|e| e.to_string())?;
            let old = before.is_some_and(|before| {
                before
                    .iter()
                    .any(|(name, revision)| now.get(name) == Some(revision))
            });
            let proxies = status["proxies"].as_array().map_or(&[][..], Vec::as_slice);
            let running = proxies.iter().filter(|p| p["state"] == "Running").count();
            match running >= expected && !old {
                true => Ok(()),
                false => Err(format!("{running} of {expected}: {status:#}")),
            }
        })
    }

    /// Returns the running topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the operator, if [`Slots::Operator`] was given.
    pub fn headgate(&self) -> Option<&Headgate> {
        self.headgate.as_ref()
    }

    /// Returns all processes, in the order of the topology.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the process of this name, such as `en-2`.
    ///
    /// # Errors
    /// If no process has this name.
    pub fn node(&self, name: &str) -> Result<&Node> {
        let found = self.nodes.iter().find(|node| node.name == name);
        found.with_context(|| format!("there is no process {name}"))
    }

    /// Returns the processes of a service.
    pub fn service(&self, name: &str) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.service == name)
    }

    /// Returns the addresses to which clients send requests for a service.
    pub fn entries(&self, service: &str) -> Vec<SocketAddr> {
        self.service(service).map(Node::inbound).collect()
    }

    /// Resets the counts of all services.
    ///
    /// # Errors
    /// If a service doesn't answer.
    pub fn reset(&self) -> Result<()> {
        self.nodes.iter().try_for_each(|node| node.process.reset())
    }

    /// Returns the counts of all services, by process.
    ///
    /// # Errors
    /// If a service doesn't answer.
    pub fn stats(&self) -> Result<BTreeMap<String, ServiceStats>> {
        let nodes = self.nodes.iter();
        nodes
            .map(|node| Ok((node.name.clone(), node.process.stats()?)))
            .collect()
    }

    /// Waits until no service is working.
    ///
    /// # Errors
    /// If a service doesn't finish in time, or doesn't answer.
    pub fn wait_until_idle(&self) -> Result<()> {
        wait::until("idle services", || {
            let stats = self.stats().map_err(|e| e.to_string())?;
            let busy = |of: &ServiceStats| of.workers.in_flight + of.threads_busy.unwrap_or(0);
            match stats.values().find(|of| busy(of) > 0) {
                Some(of) => Err(format!("{} works on {}", of.process, busy(of))),
                None => Ok(()),
            }
        })
    }

    /// Starts the sidecar of a process again, on the same ports.
    ///
    /// # Errors
    /// If no process has this name, or the proxy doesn't start.
    pub fn restart_sidecar(&mut self, name: &str) -> Result<()> {
        let concurrency = self.concurrency;
        let node = self.node_mut(name)?;
        node.sidecar = None;
        node.start_sidecar(concurrency)
    }

    /// Disconnects a service. Its sidecars keep their connections and answer nothing.
    pub fn partition(&self, service: &str) {
        self.service(service)
            .filter_map(|node| node.sidecar.as_ref())
            .for_each(EnvoyProcess::pause);
    }

    /// Connects a service again after [`partition`](Self::partition).
    pub fn heal(&self, service: &str) {
        self.service(service)
            .filter_map(|node| node.sidecar.as_ref())
            .for_each(EnvoyProcess::resume);
    }

    /// Returns the lines about failures of a filter in the logs of all proxies, each with the name
    /// of the process before it.
    pub fn filter_errors(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for node in &self.nodes {
            let errors = node.sidecar.iter().flat_map(EnvoyProcess::filter_errors);
            lines.extend(errors.map(|line| format!("{}: {line}", node.name)));
        }
        lines
    }

    fn node_mut(&mut self, name: &str) -> Result<&mut Node> {
        let found = self.nodes.iter_mut().find(|node| node.name == name);
        found.with_context(|| format!("there is no process {name}"))
    }
}

impl Node {
    /// Returns the address on which the process's sidecar takes requests.
    pub fn inbound(&self) -> SocketAddr {
        self.inbound.addr()
    }

    /// Returns the sidecar of the process.
    ///
    /// # Errors
    /// If the sidecar is stopped.
    pub fn sidecar(&self) -> Result<&EnvoyProcess> {
        let down = || format!("the sidecar of {} is down", self.name);
        self.sidecar.as_ref().with_context(down)
    }

    /// Returns a counter or gauge of the policy of the process's service, such as `slots_in_use`.
    ///
    /// # Errors
    /// If the sidecar is stopped.
    pub fn policy_stat(&self, name: &str) -> Result<u64> {
        let prefix = format!("wasmcustom.headgate.policy.{NAMESPACE}/{}", self.service);
        self.sidecar()?.stat(&format!("{prefix}.{name}"))
    }

    /// Returns all counters and gauges of the policy of the process's service.
    ///
    /// # Errors
    /// If the sidecar is stopped.
    pub fn policy_stats(&self) -> Result<BTreeMap<String, u64>> {
        let prefix = format!("wasmcustom.headgate.policy.{NAMESPACE}/{}.", self.service);
        self.sidecar()?.stats_under(&prefix)
    }

    fn start_sidecar(&mut self, concurrency: u32) -> Result<()> {
        let of = || format!("the sidecar of {}", self.name);
        let envoy = EnvoyProcess::start(&self.bootstrap, concurrency).with_context(of)?;
        let bound = envoy.listener(INBOUND)?;
        ensure!(bound == self.inbound.addr(), "{}: bound to {bound}", of());
        envoy.listener(OUTBOUND).with_context(of)?;
        self.sidecar = Some(envoy);
        if self.headgate {
            // The policy's stats exist once the filter runs.
            wait::until("the filter to run its policy", || {
                let stats = self.policy_stats().map_err(|e| e.to_string())?;
                match stats.is_empty() {
                    true => Err("no numbers of the policy".to_owned()),
                    false => Ok(()),
                }
            })
            .with_context(of)?;
        }
        Ok(())
    }
}

/// A process to be started.
struct Place {
    name: String,
    service: String,
    number: usize,
    headgate: bool,
    inbound: Reserved,
    outbound: Reserved,
}

impl Place {
    fn new(topology: &Topology, spec: &ServiceSpec, number: usize, slots: Slots) -> Result<Self> {
        let wanted = slots != Slots::None && spec.has_headgate(number);
        Ok(Self {
            name: format!("{}-{number}", spec.name),
            service: spec.name.clone(),
            number,
            headgate: wanted && topology.policy_of(spec).is_some(),
            inbound: Reserved::new()?,
            outbound: Reserved::new()?,
        })
    }

    fn spec<'a>(&self, topology: &'a Topology) -> Result<&'a ServiceSpec> {
        let found = topology.service(&self.service);
        found.context("a place of no service")
    }

    fn config(&self, topology: &Topology, index: usize) -> Result<ServiceConfig> {
        let spec = self.spec(topology)?;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Ok(ServiceConfig {
            process: self.name.clone(),
            listen: any,
            control: any,
            outbound: Some(self.outbound.addr()),
            // The seed makes each process draw different random numbers.
            seed: index as u64 + 1,
            behaviour: spec.behaviour_of(self.number),
        })
    }
}

fn destinations(topology: &Topology, places: &[Place]) -> BTreeMap<String, Destination> {
    let of = |spec: &ServiceSpec| Destination {
        processes: places
            .iter()
            .filter(|place| place.service == spec.name)
            .map(|place| place.inbound.addr())
            .collect(),
        hashed: topology
            .hash_headers(&spec.name)
            .into_iter()
            .map(str::to_owned)
            .collect(),
    };
    let services = topology.services.iter();
    services.map(|spec| (spec.name.clone(), of(spec))).collect()
}

/// Folder of the operator's policies.
const POLICIES: &str = "policies";

/// Starts an operator with the policies of all services.
fn operator(topology: &Topology, dir: &Path) -> Result<Headgate> {
    let policies = dir.join(POLICIES);
    std::fs::create_dir(&policies)?;
    write_policies(topology, &policies)?;
    let mut options = RunOptions::new(&policies);
    options.module_dir = Some(dir.join("modules"));
    options.native = headgate::is_native().then(headgate::native_path);
    Headgate::start(&options)
}

/// Writes the policy of each service to a file.
fn write_policies(topology: &Topology, policies: &Path) -> Result<()> {
    for spec in &topology.services {
        if let Some(policy) = topology.policy_of(spec) {
            let file = policies.join(format!("{}.yaml", spec.name));
            file::replace(&file, serde_json::to_string_pretty(&policy)?)?;
        }
    }
    Ok(())
}

/// Returns the revisions of all policies that the operator reports, by name.
fn revisions(headgate: &Headgate) -> Result<BTreeMap<String, String>> {
    let status = headgate.status()?;
    let policies = status["policies"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |policy: &Value| (text(&policy["name"]), text(&policy["revision"]));
    Ok(policies.iter().map(of).collect())
}

/// Writes the configuration files for the slots of a sidecar, as `headgate render` prints them.
fn files(topology: &Topology, place: &Place, dir: &Path) -> Result<Source> {
    let spec = place.spec(topology)?;
    let policy = topology
        .policy_of(spec)
        .context("a slot without a policy")?;
    let at = |name: &str| dir.join(format!("{}-{name}.json", place.name));
    let source = at("policy");
    std::fs::write(&source, serde_json::to_string_pretty(&policy)?)?;
    let source = source.display().to_string();
    let kind = headgate::tested_kind();
    let module = std::path::absolute(headgate::tested_module())?;
    let (filter, module) = (
        format!("--filter={kind}"),
        format!("--{kind}={}", module.display()),
    );
    let render = |name: &str, more: &[&str]| -> Result<PathBuf> {
        let same = ["render", &source, "--output=json", &filter, &module];
        let arguments = [&same[..], more].concat();
        let file = at(name);
        std::fs::write(&file, headgate::run_command(&arguments)?)?;
        Ok(file)
    };
    let outbound = match topology.has_workflows(spec) {
        true => Some(render("outbound", &["--outbound"])?),
        false => None,
    };
    Ok(Source::Files {
        inbound: render("inbound", &[])?,
        outbound,
    })
}
