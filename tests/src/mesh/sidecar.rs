//! The bootstrap of a sidecar: the output of `headgate bootstrap`, with a listener for the calls of
//! the service.
//!
//! A service selects the services that it calls by `Host`, as behind any service mesh. Each service
//! has one cluster for each method of selecting its process: `en` takes the processes in turn,
//! `en/hash` selects one by the hash of a header, and `en/2` is the second one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::bootstrap::{Bootstrap, socket};
use crate::headgate::{run_command, tested_kind};

/// The name of the listener for calls.
pub(super) const OUTBOUND: &str = "outbound";
/// The name of the slot in the listener for calls.
pub(super) const OUTBOUND_SLOT: &str = "headgate-outbound";
/// The name of the listener for requests to the service, the same as in `headgate bootstrap`.
pub(super) const INBOUND: &str = "ingress";

/// The source of the configurations of a sidecar's slots.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// No source: the sidecar has no slots.
    None,
    /// Files in the form of `headgate render`.
    Files {
        inbound: PathBuf,
        /// The file of the slot for calls. `None` for a sidecar without such a slot.
        outbound: Option<PathBuf>,
    },
    /// An operator, for the target `Service/mesh/NAME`.
    Operator {
        xds: SocketAddr,
        /// Whether the sidecar has a slot for calls.
        outbound: bool,
    },
}

/// The data that determine a sidecar's bootstrap.
#[derive(Debug)]
pub(super) struct Sidecar<'a> {
    /// The name of the process, such as `en-2`.
    pub(super) node: &'a str,
    /// The name of the process's service.
    pub(super) service: &'a str,
    pub(super) inbound: SocketAddr,
    pub(super) outbound: SocketAddr,
    /// The address of the process.
    pub(super) app: SocketAddr,
    pub(super) source: Source,
    /// The services that the process may call.
    pub(super) services: &'a BTreeMap<String, Destination>,
}

/// A service that may be called.
#[derive(Debug, Clone, Default)]
pub(super) struct Destination {
    /// The inbound listeners of the service's sidecars, in the order of the numbers of their
    /// processes.
    pub(super) processes: Vec<SocketAddr>,
    /// Headers by which calls may be routed.
    pub(super) hashed: Vec<String>,
}

/// Returns the `Host` of calls that go to the process that the hash of `header` selects.
pub(super) fn hash_host(service: &str, header: &str) -> String {
    format!("{header}.hash.{service}")
}

/// Returns the `Host` of calls that go to process `number`.
pub(super) fn process_host(service: &str, number: usize) -> String {
    format!("{number}.{service}")
}

impl Sidecar<'_> {
    /// Returns the bootstrap of the sidecar.
    ///
    /// # Errors
    /// If `headgate bootstrap` fails.
    pub(super) fn bootstrap(&self) -> Result<Bootstrap> {
        let mut arguments = vec![
            "bootstrap".to_owned(),
            "--admin=127.0.0.1:0".to_owned(),
            format!("--listen={}", self.inbound),
            format!("--upstream={}", self.app),
            format!("--node-id={}", self.node),
            format!("--filter={}", tested_kind()),
            format!(
                "--target=Service/{}/{}",
                super::topology::NAMESPACE,
                self.service
            ),
        ];
        arguments.push(match &self.source {
            Source::Files { inbound, .. } => format!("--config-file={}", inbound.display()),
            Source::Operator { xds, .. } => format!("--xds={xds}"),
            // The code below removes the slot, so the file doesn't matter.
            Source::None => "--config-file=/dev/null".to_owned(),
        });
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut bootstrap = Bootstrap::parse(&run_command(&arguments)?)?;
        // The services have their own timeouts. Timeouts of the proxies would complicate the
        // results.
        for route in bootstrap.routes()? {
            route["route"]["timeout"] = json!("0s");
        }
        let filters = bootstrap.manager()?["http_filters"]
            .as_array_mut()
            .context("the HTTP manager has no filters")?;
        if matches!(self.source, Source::None) {
            filters.retain(|filter| filter.get("config_discovery").is_none());
        }
        let filters = self.outbound_filters(filters);
        let template = bootstrap.cluster("upstream")?.clone();
        let resources = &mut bootstrap.root()["static_resources"];
        push(resources, "listeners", self.listener(&filters))?;
        for (name, destination) in self.services {
            for cluster in clusters(name, destination, &template) {
                push(resources, "clusters", cluster)?;
            }
        }
        Ok(bootstrap)
    }

    /// Returns the filters of the outbound listener. They are those of the inbound listener, with
    /// the slot for calls, if any, in place of the slot for requests.
    fn outbound_filters(&self, inbound: &[Value]) -> Vec<Value> {
        let (wanted, file) = match &self.source {
            Source::None => (false, None),
            Source::Files { outbound, .. } => (outbound.is_some(), outbound.as_ref()),
            Source::Operator { outbound, .. } => (*outbound, None),
        };
        let is_slot = |filter: &Value| filter.get("config_discovery").is_some();
        let mut filters = inbound.to_vec();
        filters.retain(|filter| wanted || !is_slot(filter));
        for slot in filters.iter_mut().filter(|filter| is_slot(filter)) {
            slot["name"] = json!(OUTBOUND_SLOT);
            if let Some(file) = file {
                slot["config_discovery"]["config_source"]["path_config_source"] =
                    json!({"path": file, "watched_directory": {"path": file.parent()}});
            }
        }
        filters
    }

    fn listener(&self, filters: &[Value]) -> Value {
        let hosts: Vec<Value> = self
            .services
            .iter()
            .flat_map(|(name, destination)| virtual_hosts(name, destination))
            .collect();
        json!({
            "name": OUTBOUND,
            "address": socket(&self.outbound.ip().to_string(), self.outbound.port()),
            "filter_chains": [{"filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    "stat_prefix": OUTBOUND,
                    "stream_idle_timeout": "60s",
                    "route_config": {"name": OUTBOUND, "virtual_hosts": hosts},
                    "http_filters": filters,
                },
            }]}],
        })
    }
}

fn virtual_hosts(name: &str, destination: &Destination) -> Vec<Value> {
    let host = |domain: String, route: Value| {
        json!({
            "name": domain,
            "domains": [domain],
            "routes": [{"name": domain, "match": {"prefix": "/"}, "route": route}],
        })
    };
    let mut hosts = vec![host(
        name.to_owned(),
        json!({"cluster": name, "timeout": "0s"}),
    )];
    hosts.extend(destination.hashed.iter().map(|header| {
        let policy = json!([{"header": {"header_name": header}}]);
        let cluster = format!("{name}/hash");
        let route = json!({"cluster": cluster, "timeout": "0s", "hash_policy": policy});
        host(hash_host(name, header), route)
    }));
    hosts.extend((1..=destination.processes.len()).map(|number| {
        let cluster = format!("{name}/{number}");
        host(
            process_host(name, number),
            json!({"cluster": cluster, "timeout": "0s"}),
        )
    }));
    hosts
}

fn clusters(name: &str, destination: &Destination, template: &Value) -> Vec<Value> {
    let cluster = |name: String, policy: &str, processes: &[SocketAddr]| {
        let endpoints: Vec<Value> = processes
            .iter()
            .map(|p| json!({"endpoint": {"address": socket(&p.ip().to_string(), p.port())}}))
            .collect();
        let mut cluster = template.clone();
        cluster["name"] = json!(name);
        cluster["lb_policy"] = json!(policy);
        cluster["load_assignment"] =
            json!({"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]});
        cluster
    };
    let all = &destination.processes;
    let mut clusters = vec![cluster(name.to_owned(), "ROUND_ROBIN", all)];
    if !destination.hashed.is_empty() {
        clusters.push(cluster(format!("{name}/hash"), "MAGLEV", all));
    }
    for (index, process) in all.iter().enumerate() {
        clusters.push(cluster(
            format!("{name}/{}", index + 1),
            "ROUND_ROBIN",
            &[*process],
        ));
    }
    clusters
}

fn push(resources: &mut Value, list: &str, value: Value) -> Result<()> {
    resources[list]
        .as_array_mut()
        .with_context(|| format!("the bootstrap has no {list}"))?
        .push(value);
    Ok(())
}
