//! A complete Envoy bootstrap with a slot for Headgate, so that one command suffices for a trial.
//!
//! The bootstrap is a template with comments rather than serialized messages, because users copy
//! parts of it into their own configurations. These properties matter in such a copy:
//!
//! - The slot has a `default_config` and `apply_default_config_without_warming`. Without them the
//!   listener waits for the operator, or answers every request with 500.
//! - The default is an RBAC filter without rules, which does nothing. Envoy 1.40 refuses the
//!   obvious choice, a Wasm filter without code, at start (measured).
//! - A proxy in front of a service must not end requests that the service would have answered.
//!   Envoy's default route timeout is 15 s.
//! - Paths are normalized, because request types match on paths. Otherwise `//search` and
//!   `/%73earch` would be requests of another type than `/search`, and yet reach the same handler.
//! - `retry_back_off` bounds the time until a proxy reconnects to a restarted operator. Envoy's own
//!   bound is 30 s. HTTP/2 pings detect an operator that died without closing its connection, for
//!   example with its node.
//! - Certificates and tokens come from files through SDS. Envoy doesn't reload files that the
//!   cluster itself names.
//! - `stats_tags` extract policy, type, workflow, service, reason, objective, class and worker into
//!   labels. Envoy takes the second group's text as the value and removes the first group from the
//!   name. Requests determine the names of workflows, so every regex must treat a workflow called
//!   `reason` as a name. `workflow` stays in the name, since types and workflows have the same
//!   counters. Buckets, in µs, are finer than Envoy's in the range of objectives.
//!
//! For workflows, the application's own calls must also pass through Headgate. A second listener
//! with its own slot accepts them ([`outbound`]).

mod outbound;
mod tls;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_admission::protocol::CLUSTER;

use crate::endpoint::{Endpoint, LOCALHOST};
use headgate_api::plan::{
    ARCHITECTURE_METADATA, FILTER_METADATA, LABELS_METADATA, MODULE_METADATA, NAMESPACE_METADATA,
    NATIVE_MODULE_METADATA, TARGET_METADATA, TargetRef, VERSION_METADATA,
};
use headgate_xds::module::Kind;
use headgate_xds::{DEFAULT_SLOT, VERSION};

pub use outbound::Outbound;
pub use tls::{ProxyIdentity, SdsFiles, XdsTls};

/// The parameters of the bootstrap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootstrap {
    /// The address on which Envoy listens. `[::]` covers all addresses of both families.
    pub listen: Endpoint,
    /// The backend. On `localhost` it may listen on either loopback address.
    pub upstream: Endpoint,
    /// Whether the backend speaks HTTP/2 (gRPC) rather than HTTP/1.1.
    pub upstream_http2: bool,
    /// The listener for the application's own calls, if any.
    pub outbound: Option<Outbound>,
    /// The source of the configuration.
    pub source: ConfigSource,
    /// The server of class admission, if any.
    pub admission: Option<Admission>,
    /// Envoy's admin address.
    pub admin: Endpoint,
    /// The address of a listener for Prometheus and probes, if any. It serves the only paths of the
    /// admin interface that other hosts need.
    pub stats: Option<Endpoint>,
    /// The target that this proxy serves.
    pub target: Option<TargetRef>,
    /// The Pod of this proxy.
    pub pod: Pod,
    /// The proxy's name in `headgate status`.
    pub node_id: String,
    /// The path of the access log, if any.
    pub access_log: Option<PathBuf>,
    /// Limits that prevent slow clients from holding slots.
    pub uploads: Uploads,
}

/// The server of class admission, which the filter calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The address of the server.
    pub address: Endpoint,
    /// TLS, with the same identity and CA as for xDS.
    pub tls: Option<Box<XdsTls>>,
}

/// Limits on the arrival of a request's body, and whether it is buffered before the slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Uploads {
    /// The largest body that is buffered, in bytes. Headgate then processes the request once its
    /// body has arrived. With `None`, Headgate processes the request once its headers have arrived.
    pub buffer: Option<NonZeroU32>,
    /// The time within which the whole request must arrive. `None` means no limit.
    pub timeout: Option<Duration>,
}

/// The node metadata about a proxy's Pod, by which policies select it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// The namespace of the Pod.
    pub namespace: Option<String>,
    /// The labels of the Pod.
    pub labels: BTreeMap<String, String>,
    /// The absolute path of the Wasm module file that the proxy loads. Without a path, the proxy
    /// loads the operator's own file.
    pub module: Option<PathBuf>,
    /// The absolute path of the native module file that the proxy loads. Without a path, the proxy
    /// loads the operator's own file.
    pub native_module: Option<PathBuf>,
    /// The kind of filter that the proxy requests.
    pub filter: Kind,
    /// The processor architecture that the proxy runs on, if it is known.
    pub architecture: Option<&'static str>,
}

/// The source of a proxy's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigSource {
    /// An xDS server.
    Xds {
        /// The address of the server.
        address: Endpoint,
        /// TLS, with the identities of both ends.
        tls: Option<Box<XdsTls>>,
    },
    /// A file that `headgate render` wrote. Envoy reloads it when anything is moved into its
    /// folder.
    File(PathBuf),
}

/// Returns `text` as a quoted YAML scalar.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns `path` as a YAML scalar.
fn path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// Returns the folder of `file` as a YAML scalar, for a directory that Envoy watches.
fn folder(file: &Path) -> String {
    let parent = file.parent().filter(|p| !p.as_os_str().is_empty());
    path(parent.unwrap_or(Path::new(".")))
}

/// Returns `block` with every line but the first indented by `spaces`.
fn indented(block: &str, spaces: usize) -> String {
    block.replace('\n', &format!("\n{}", " ".repeat(spaces)))
}

/// Returns `blocks` as the items of a YAML list.
fn items(blocks: &[String]) -> String {
    let item = |block: &String| format!("- {}", indented(block, 2));
    blocks.iter().map(item).collect::<Vec<_>>().join("\n")
}

/// Fills the placeholders of a template. A placeholder is `$` and a name in capitals. The lines of
/// a text are indented to the column of its placeholder. A line that contains nothing but an empty
/// text is left out. Texts may themselves contain `$` and capitals.
pub(crate) fn fill(template: &str, texts: &[(&str, &str)]) -> String {
    let mut filled = Vec::new();
    for line in template.lines() {
        let mut parts = line.split('$');
        let mut row = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_uppercase() && c != '_');
            let (name, rest) = part.split_at(end.unwrap_or(part.len()));
            match texts.iter().find(|(hole, _)| *hole == name) {
                Some((_, text)) => row += &indented(text, row.len()),
                None => row += &format!("${name}"),
            }
            row += rest;
        }
        if !row.trim().is_empty() {
            filled.push(row);
        }
    }
    filled.join("\n")
}

fn socket(endpoint: &Endpoint) -> String {
    let both = match endpoint.host.as_str() {
        "::" => ", ipv4_compat: true",
        _ => "",
    };
    format!(
        "{{socket_address: {{address: {}, port_value: {}{both}}}}}",
        quoted(&endpoint.host),
        endpoint.port
    )
}

/// Returns an endpoint of a cluster. For `localhost`, DNS would select one address family, but
/// applications listen on either or both. So the endpoint has both loopback addresses, and Envoy
/// connects to the first one that accepts.
fn lb_endpoint(endpoint: &Endpoint) -> String {
    if endpoint.host != LOCALHOST {
        return format!("endpoint: {{address: {}}}", socket(endpoint));
    }
    let [v4, v6] = ["127.0.0.1", "::1"].map(|host| {
        socket(&Endpoint {
            host: host.to_owned(),
            port: endpoint.port,
        })
    });
    format!("endpoint: {{address: {v4}, additional_addresses: [{{address: {v6}}}]}}")
}

impl Bootstrap {
    /// Returns the bootstrap as YAML.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let native = self.pod.filter == Kind::Native;
        let outbound = self.outbound.as_ref();
        let mut listeners = vec![self.ingress()];
        listeners.extend(outbound.map(|outbound| outbound.listener(&self.source)));
        listeners.extend(self.stats.as_ref().map(stats_listener));
        let upstream = std::slice::from_ref(&self.upstream);
        let mut clusters = vec![cluster("upstream", upstream, self.upstream_http2)];
        clusters.extend(outbound.into_iter().flat_map(Outbound::clusters));
        if let ConfigSource::Xds { address, tls, .. } = &self.source {
            let comment = "# A Service's name, behind which there may be several operators: all \
                           serve the same.";
            clusters.push(operator("headgate_xds", comment, address, tls.as_deref()));
        }
        if let Some(Admission { address, tls }) = &self.admission {
            let comment = "# The server of class admission, to which the filter reports. One of \
                           several operators listens: their leader.";
            clusters.push(operator(CLUSTER, comment, address, tls.as_deref()));
        }
        if self.stats.is_some() {
            let admin = std::slice::from_ref(&self.admin);
            clusters.push(cluster("headgate_admin", admin, false));
        }
        let filled = fill(
            include_str!("bootstrap/templates/bootstrap.yaml"),
            &[
                ("NODE", &quoted(&self.node_id)),
                ("METADATA", &self.metadata()),
                ("ADMIN", &socket(&self.admin)),
                ("RUNTIME", if native { RUNTIME } else { "" }),
                ("LISTENERS", &items(&listeners)),
                ("CLUSTERS", &items(&clusters)),
            ],
        );
        filled + "\n"
    }

    fn metadata(&self) -> String {
        let pod = &self.pod;
        let is_native = pod.filter == Kind::Native;
        let own =
            "The filter module that this proxy has. Without it, the operator names its own file.";
        let entries = [
            (
                "The target of the policies that this proxy enforces.",
                TARGET_METADATA,
                self.target
                    .as_ref()
                    .map(|target| quoted(&target.to_string())),
            ),
            (
                "Namespace and labels of its Pod: policies for them apply.",
                NAMESPACE_METADATA,
                pod.namespace.as_deref().map(quoted),
            ),
            (own, MODULE_METADATA, pod.module.as_deref().map(path)),
            (
                "The kind of filter. Where the operator has none of it, or this proxy can't load \
                 it, it is wasm.",
                FILTER_METADATA,
                is_native.then(|| quoted(pod.filter.name())),
            ),
            (
                own,
                NATIVE_MODULE_METADATA,
                pod.native_module.as_deref().filter(|_| is_native).map(path),
            ),
            (
                "The version of that module, by which the operator explains a refusal.",
                VERSION_METADATA,
                pod.module.as_ref().map(|_| quoted(VERSION)),
            ),
            (
                "The processor, for which a native module has to be built.",
                ARCHITECTURE_METADATA,
                pod.architecture.filter(|_| is_native).map(quoted),
            ),
        ];
        let mut lines: String = (entries.into_iter())
            .filter_map(|(comment, key, value)| Some((comment, key, value?)))
            .map(|(comment, key, value)| format!("\n  # {comment}\n  {key}: {value}"))
            .collect();
        if !pod.labels.is_empty() {
            lines += &format!("\n  {LABELS_METADATA}:");
        }
        for (key, value) in &pod.labels {
            lines += &format!("\n    {}: {}", quoted(key), quoted(value));
        }
        match lines.is_empty() {
            true => lines,
            false => format!("metadata:{lines}"),
        }
    }

    fn ingress(&self) -> String {
        let mut manager = "upgrade_configs:\n- upgrade_type: websocket".to_owned();
        if let Some(log) = &self.access_log {
            let log = fill(
                include_str!("bootstrap/templates/access_log.yaml"),
                &[("PATH", &path(log))],
            );
            manager += &format!("\n{log}");
        }
        if let Some(timeout) = self.uploads.timeout {
            manager += &format!(
                "\n# A request that has not arrived whole by then is answered 408.\n\
                 request_timeout: {}s",
                timeout.as_secs_f64()
            );
        }
        let buffer = include_str!("bootstrap/templates/buffer.yaml");
        let buffer = self
            .uploads
            .buffer
            .map(|bytes| fill(buffer, &[("BYTES", &bytes.to_string())]));
        fill(
            LISTENER,
            &[
                ("NAME", "ingress"),
                ("ADDRESS", &socket(&self.listen)),
                ("DIRECTION", ""),
                ("MANAGER", &manager),
                ("VIRTUAL_HOSTS", ALL_HOSTS),
                ("BUFFER", &buffer.unwrap_or_default()),
                ("SLOT_IS", SLOT_IS),
                ("SLOT", &slot(DEFAULT_SLOT, &self.source)),
            ],
        )
    }
}

/// An HTTP listener with a slot.
const LISTENER: &str = include_str!("bootstrap/templates/listener.yaml");

const ALL_HOSTS: &str = "\
- name: all
  domains: [\"*\"]
  routes:
  - name: default
    match: {prefix: /}
    # No timeout; Envoy's default is 15 s.
    route: {cluster: upstream, timeout: 0s}";

const SLOT_IS: &str = "\
# The slot that Headgate fills. Requests pass untouched until it has answered once; from then on
# the last configuration stays, also while it is down.";

/// A runtime setting that gives the native filter's stats the same names in Prometheus as the Wasm
/// filter's.
const RUNTIME: &str = "\
layered_runtime:
  layers:
  - name: headgate
    static_layer: {envoy.reloadable_features.dynamic_modules_strip_custom_stat_prefix: true}";

/// Returns a cluster of the operator. An operator that died without closing its connection is
/// detected within 15 s. Envoy then connects to another one.
fn operator(name: &str, comment: &str, address: &Endpoint, tls: Option<&XdsTls>) -> String {
    let filters = tls.map_or_else(String::new, XdsTls::http_filters);
    fill(
        include_str!("bootstrap/templates/operator.yaml"),
        &[
            ("NAME", name),
            ("COMMENT", comment),
            ("TYPE", discovery(is_static(address))),
            ("HTTP_TWO", &http2("10s", "5s", &filters)),
            ("ENDPOINT", &lb_endpoint(address)),
            (
                "TLS",
                &tls.map_or_else(String::new, XdsTls::transport_socket),
            ),
        ],
    )
}

/// Returns the listener at `address` for Prometheus and probes. It serves only the two paths that
/// other hosts need. The admin interface stays on the loopback address, because it lets any client
/// stop Envoy and read its configuration.
fn stats_listener(address: &Endpoint) -> String {
    fill(
        include_str!("bootstrap/templates/stats.yaml"),
        &[("ADDRESS", &socket(address))],
    )
}

/// Returns the slot `name`, filled by `source`.
fn slot(name: &str, source: &ConfigSource) -> String {
    let source = match source {
        ConfigSource::Xds { .. } => fill(include_str!("bootstrap/templates/xds_source.yaml"), &[]),
        ConfigSource::File(file) => fill(
            include_str!("bootstrap/templates/file_source.yaml"),
            &[("FILE", &path(file)), ("FOLDER", &folder(file))],
        ),
    };
    let template = include_str!("bootstrap/templates/slot.yaml");
    fill(template, &[("NAME", name), ("SOURCE", &source)])
}

/// Returns a cluster with round robin over `endpoints`.
fn cluster(name: &str, endpoints: &[Endpoint], http2_only: bool) -> String {
    let addresses: Vec<String> = endpoints.iter().map(lb_endpoint).collect();
    let protocol = http2_only.then(|| http2("30s", "10s", ""));
    fill(
        include_str!("bootstrap/templates/cluster.yaml"),
        &[
            ("NAME", name),
            ("TYPE", discovery(endpoints.iter().all(is_static))),
            ("HTTP_TWO", &protocol.unwrap_or_default()),
            ("ENDPOINTS", &items(&addresses)),
        ],
    )
}

/// Whether [`lb_endpoint`] needs no DNS.
fn is_static(endpoint: &Endpoint) -> bool {
    endpoint.is_address() || endpoint.host == LOCALHOST
}

fn discovery(is_static: bool) -> &'static str {
    match is_static {
        true => "STATIC",
        false => "STRICT_DNS",
    }
}

/// Returns the options of HTTP/2 connections with pings, and with the HTTP filters `filters`.
fn http2(interval: &str, timeout: &str, filters: &str) -> String {
    let texts = [
        ("INTERVAL", interval),
        ("TIMEOUT", timeout),
        ("FILTERS", filters),
    ];
    fill(include_str!("bootstrap/templates/http2.yaml"), &texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_keep_the_column_of_their_hole_and_are_not_searched_for_holes() {
        let texts = [("X", "1\n2"), ("Y", ""), ("Z", "$X")];
        let filled = fill("a:\n  - $X\n  $Y\nb: $Z$'", &texts);
        assert_eq!(filled, "a:\n  - 1\n    2\nb: $X$'");
    }

    #[test]
    fn texts_can_not_break_out_of_their_scalar() {
        let bootstrap = Bootstrap {
            listen: "127.0.0.1:1".parse().unwrap(),
            upstream: "backend:2".parse().unwrap(),
            upstream_http2: false,
            outbound: None,
            source: ConfigSource::File("/x\"/f\n y: z".into()),
            admission: Some(Admission {
                address: "headgate.svc:4".parse().unwrap(),
                tls: None,
            }),
            admin: "127.0.0.1:3".parse().unwrap(),
            stats: None,
            target: None,
            pod: Pod {
                namespace: Some("n\"\n".into()),
                labels: [("app\": x\n".to_owned(), "y: \"z".to_owned())].into(),
                module: Some("/m\" #".into()),
                ..Pod::default()
            },
            node_id: "a\"b\nc: d".into(),
            access_log: Some("/log \" '".into()),
            uploads: Uploads::default(),
        };
        let yaml = bootstrap.to_yaml();
        let mut names = yaml.split('$').skip(1);
        let is_hole = |name: &str| name.starts_with(|c: char| c.is_ascii_uppercase());
        assert!(!names.any(is_hole), "{yaml}");
        let read: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(read["node"]["id"], "a\"b\nc: d");
        let metadata = &read["node"]["metadata"];
        assert_eq!(metadata[NAMESPACE_METADATA], "n\"\n");
        assert_eq!(metadata[LABELS_METADATA]["app\": x\n"], "y: \"z");
        assert_eq!(metadata[MODULE_METADATA], "/m\" #");
        assert_eq!(metadata[VERSION_METADATA], VERSION);
        assert_eq!(read["layered_runtime"], serde_json::Value::Null);
        assert_eq!(
            read["static_resources"]["clusters"][0]["type"],
            "STRICT_DNS"
        );
        let admission = &read["static_resources"]["clusters"][1];
        assert_eq!(admission["name"], CLUSTER);
        assert_eq!(admission["type"], "STRICT_DNS");
        assert_eq!(admission["dns_lookup_family"], "ALL");
        let listener = &read["static_resources"]["listeners"][0];
        let hcm = &listener["filter_chains"][0]["filters"][0]["typed_config"];
        assert_eq!(hcm["access_log"][0]["typed_config"]["path"], "/log \" '");
        let route = &hcm["route_config"]["virtual_hosts"][0]["routes"][0]["route"];
        assert_eq!(route["timeout"], "0s");
        let slot = &hcm["http_filters"][0]["config_discovery"];
        assert_eq!(
            slot["config_source"]["path_config_source"],
            serde_json::json!({
                "path": "/x\"/f\n y: z",
                "watched_directory": {"path": "/x\""},
            })
        );
    }
}
