//! A complete Envoy bootstrap with a slot for Headgate, for a trial with one command.
//!
//! It is a template with comments rather than serialized messages, because people copy from it into
//! configurations of their own. Its properties that matter there:
//!
//! - The slot has a `default_config` and `apply_default_config_without_warming`. Without them the
//!   listener waits for the operator, or answers every request with 500.
//! - The default is an RBAC filter without rules, which does nothing. Envoy 1.40 refuses the
//!   obvious choice, a Wasm filter without code, at start (measured).
//! - A proxy in front of a service must not end requests that the service would have answered.
//!   Envoy's default route timeout is 15 s.
//! - Paths are normalized, because types match on paths: else `//search` and `/%73earch` would be
//!   requests of other types and yet reach the same handler.
//! - `retry_back_off` bounds the time until a proxy reconnects to a restarted operator; Envoy's own
//!   bound is 30 s. HTTP/2 pings detect an operator whose connection was never closed, as when its
//!   node dies.
//! - Certificates and tokens come through SDS from files: Envoy would never read a renewed one that
//!   the cluster itself names.
//!
//! Workflows also need the application's own calls. A second listener with its own slot takes them
//! ([`outbound`]).

mod outbound;
mod stats;
mod tls;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use headgate_mesh::class_admission::protocol::CLUSTER;

use crate::endpoint::{Endpoint, LOCALHOST};
use crate::xds::DEFAULT_SLOT;
use crate::xds::module::Kind;
use headgate_api::plan::{
    ARCHITECTURE_METADATA, FILTER_METADATA, LABELS_METADATA, MODULE_METADATA, NAMESPACE_METADATA,
    NATIVE_MODULE_METADATA, TARGET_METADATA, TargetRef,
};

pub use outbound::Outbound;
pub use tls::{ProxyIdentity, SdsFiles, XdsTls};

/// The parameters of the bootstrap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootstrap {
    /// The address on which Envoy listens; `[::]` is any address of both families.
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
    /// The address of a listener for Prometheus and probes, if any: the only paths of the admin
    /// interface that other hosts need.
    pub stats: Option<Endpoint>,
    /// The target that this proxy serves.
    pub target: Option<TargetRef>,
    /// The Pod of this proxy.
    pub pod: Pod,
    /// The proxy's name in `headgate status`.
    pub node_id: String,
    /// The path of the access log, if any.
    pub access_log: Option<PathBuf>,
    /// Bounds that keep slow clients from holding slots.
    pub uploads: Uploads,
}

/// The server of class admission, which the filter calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Its address.
    pub address: Endpoint,
    /// TLS, with the same identity and CA as for xDS.
    pub tls: Option<Box<XdsTls>>,
}

/// Bounds on the arrival of a request's body, and whether it is buffered in front of the slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Uploads {
    /// The largest body that is buffered, in bytes: Headgate sees the request once its body has
    /// arrived. `None`: Headgate sees it once its headers have arrived.
    pub buffer: Option<NonZeroU32>,
    /// The time within which the whole request must arrive; `None`: unlimited.
    pub timeout: Option<Duration>,
}

impl Uploads {
    /// Returns lines of the HTTP connection manager.
    fn manager(self) -> String {
        let timeout = |timeout: Duration| {
            format!(
                "\n# A request that has not arrived whole by then is answered \
                 408.\nrequest_timeout: {}s",
                timeout.as_secs_f64()
            )
        };
        self.timeout.map(timeout).unwrap_or_default()
    }

    /// Returns an HTTP filter that precedes the slot.
    fn filter(self) -> String {
        let filter = |bytes| {
            format!(
                "\
# Holds a request until its body is there: a slow upload has no slot. Larger bodies are answered 413.
- name: envoy.filters.http.buffer
  typed_config:
    \"@type\": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer
    max_request_bytes: {bytes}
"
            )
        };
        self.buffer.map(filter).unwrap_or_default()
    }
}

/// The node metadata about a proxy's Pod, by which policies select it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The path of the Wasm module file that the proxy loads, absolute; by default, the operator's
    /// own.
    pub module: Option<PathBuf>,
    /// The path of the native module file that the proxy loads, absolute; by default, the
    /// operator's own.
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
        /// Its address.
        address: Endpoint,
        /// Whether one aggregated stream (ADS) is used, rather than one for the slot.
        ads: bool,
        /// Whether the delta variant of the protocol is used.
        delta: bool,
        /// TLS, with the identities of both ends.
        tls: Option<Box<XdsTls>>,
    },
    /// A file that `headgate render` wrote. Envoy follows moves of another file into its place.
    File(PathBuf),
}

/// Returns `text` as a YAML scalar, quoted whatever it contains.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns `block` with every line but the first indented by `spaces`.
fn indented(block: &str, spaces: usize) -> String {
    block
        .trim_end()
        .replace('\n', &format!("\n{}", " ".repeat(spaces)))
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

/// Returns an endpoint of a cluster. DNS would choose one address family for `localhost`, but
/// applications listen on one, the other or both: Envoy connects to the first loopback address that
/// accepts.
fn lb_endpoint(endpoint: &Endpoint) -> String {
    if endpoint.host != LOCALHOST {
        return format!("{{address: {}}}", socket(endpoint));
    }
    let [v4, v6] = ["127.0.0.1", "::1"].map(|host| {
        socket(&Endpoint {
            host: host.to_owned(),
            port: endpoint.port,
        })
    });
    format!("{{address: {v4}, additional_addresses: [{{address: {v6}}}]}}")
}

impl Bootstrap {
    /// Returns the bootstrap as YAML.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        format!(
            "\
# Envoy bootstrap with a Headgate slot, written by `headgate bootstrap`.
node:
  id: {node}
  cluster: headgate{metadata}
admin:
  address: {admin}
{dynamic}{stats}{runtime}static_resources:
  listeners:
  - {ingress}{outbound}{stats_listener}
  clusters:
  - {upstream}{services}{xds}{admission}{stats_cluster}
",
            node = quoted(&self.node_id),
            metadata = self.metadata(),
            admin = socket(&self.admin),
            dynamic = self.dynamic_resources(),
            stats = STATS,
            runtime = match self.pod.filter {
                Kind::Wasm => "",
                Kind::Native => RUNTIME,
            },
            ingress = indented(&self.ingress(), 4),
            outbound = self.outbound_listener(),
            upstream = indented(&self.upstream(), 4),
            services = self
                .outbound
                .as_ref()
                .map_or_else(String::new, Outbound::clusters),
            xds = self.xds_cluster(),
            admission = self.admission_cluster(),
            stats_listener = self
                .stats
                .as_ref()
                .map_or_else(String::new, stats::listener),
            stats_cluster = match self.stats {
                Some(_) => stats::cluster(&self.admin),
                None => String::new(),
            },
        )
    }

    fn metadata(&self) -> String {
        let mut lines = String::new();
        let mut line = |comment: &str, key: &str, value: &str| {
            lines.push_str(&format!("\n    # {comment}\n    {key}: {}", quoted(value)));
        };
        if let Some(target) = &self.target {
            line(
                "The target of the policies that this proxy enforces.",
                TARGET_METADATA,
                &target.to_string(),
            );
        }
        if let Some(namespace) = &self.pod.namespace {
            line(
                "Namespace and labels of its Pod: policies for them apply.",
                NAMESPACE_METADATA,
                namespace,
            );
        }
        let own =
            "The filter module that this proxy has. Without it, the operator names its own file.";
        if let Some(module) = &self.pod.module {
            line(own, MODULE_METADATA, &module.display().to_string());
        }
        if self.pod.filter == Kind::Native {
            line(
                "The kind of filter. Where the operator has none of it, or this proxy can't load \
                 it, it is wasm.",
                FILTER_METADATA,
                self.pod.filter.name(),
            );
            if let Some(module) = &self.pod.native_module {
                line(own, NATIVE_MODULE_METADATA, &module.display().to_string());
            }
            if let Some(architecture) = self.pod.architecture {
                let comment = "The processor, for which a native module has to be built.";
                line(comment, ARCHITECTURE_METADATA, architecture);
            }
        }
        if !self.pod.labels.is_empty() {
            lines.push_str(&format!("\n    {LABELS_METADATA}:"));
            for (key, value) in &self.pod.labels {
                lines.push_str(&format!("\n      {}: {}", quoted(key), quoted(value)));
            }
        }
        match lines.is_empty() {
            true => lines,
            false => format!("\n  metadata:{lines}"),
        }
    }

    fn dynamic_resources(&self) -> String {
        match &self.source {
            ConfigSource::Xds {
                ads: true, delta, ..
            } => {
                format!(
                    "dynamic_resources:\n  ads_config:\n    {}\n",
                    indented(&grpc(*delta), 4)
                )
            }
            ConfigSource::Xds { .. } | ConfigSource::File(_) => String::new(),
        }
    }

    fn ingress(&self) -> String {
        Listener {
            name: "ingress",
            address: &self.listen,
            direction: "",
            manager: format!(
                "upgrade_configs:\n- upgrade_type: websocket{}{}",
                self.access_log(),
                self.uploads.manager()
            ),
            virtual_hosts: "\
- name: all
  domains: [\"*\"]
  routes:
  - name: default
    match: {prefix: /}
    # No timeout; Envoy's default is 15 s.
    route: {cluster: upstream, timeout: 0s}"
                .to_owned(),
            before_slot: self.uploads.filter(),
            slot_is: "\
# The slot that Headgate fills. Requests pass untouched until it has answered once; from then on
# the last configuration stays, also while it is down.",
            slot: slot(DEFAULT_SLOT, &self.source),
        }
        .to_yaml()
    }

    fn outbound_listener(&self) -> String {
        let Some(outbound) = &self.outbound else {
            return String::new();
        };
        format!("\n  - {}", indented(&outbound.listener(&self.source), 4))
    }

    fn access_log(&self) -> String {
        let Some(path) = &self.access_log else {
            return String::new();
        };
        let format = "[%START_TIME%] \\\"%REQ(:METHOD)% %REQ(:PATH)% %PROTOCOL%\\\" \
                      %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %DURATION%ms \
                      refused=\\\"%RESP(X-HEADGATE-REFUSED)%\\\" retry_after=%RESP(RETRY-AFTER)% \
                      upstream=%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%ms\\n";
        let block = format!(
            "access_log:
- name: envoy.access_loggers.file
  typed_config:
    \"@type\": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
    path: {path}
    log_format:
      text_format_source:
        inline_string: \"{format}\"",
            path = quoted(&path.display().to_string()),
        );
        format!("\n{block}")
    }

    fn upstream(&self) -> String {
        cluster(
            "upstream",
            std::slice::from_ref(&self.upstream),
            self.upstream_http2,
        )
    }

    fn xds_cluster(&self) -> String {
        let ConfigSource::Xds { address, tls, .. } = &self.source else {
            return String::new();
        };
        let comment =
            "# A Service's name, behind which there may be several operators: all serve the same.";
        operator("headgate_xds", comment, address, tls.as_deref())
    }

    fn admission_cluster(&self) -> String {
        let Some(Admission { address, tls }) = &self.admission else {
            return String::new();
        };
        let comment = "# The server of class admission, to which the filter reports. One of \
                       several operators listens: their leader.";
        operator(CLUSTER, comment, address, tls.as_deref())
    }
}

/// An HTTP listener with a slot.
struct Listener<'a> {
    name: &'static str,
    address: &'a Endpoint,
    /// The line of the traffic direction, or nothing.
    direction: &'static str,
    /// Further lines of the connection manager.
    manager: String,
    virtual_hosts: String,
    /// HTTP filters that precede the slot, or nothing.
    before_slot: String,
    /// A comment about the slot.
    slot_is: &'static str,
    slot: String,
}

impl Listener<'_> {
    fn to_yaml(&self) -> String {
        format!(
            "\
name: {name}
address: {address}
# What a connection buffers. Bodies of waiting requests count: Envoy's default is 1 MiB.
per_connection_buffer_limit_bytes: 262144
{direction}filter_chains:
- filters:
  - name: envoy.filters.network.http_connection_manager
    typed_config:
      \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: {name}
      codec_type: AUTO
      # `//x` and `/%78` are what they look like for policies, and for the backend.
      normalize_path: true
      merge_slashes: true
      # Ends streams on which nothing has moved for longer than any objective, such as what a dead Wasm VM left paused
      # (Envoy's default is 5 minutes). Nothing else ends a request by default. In front of clients that aren't your
      # own, see --buffer-requests and --request-timeout, and set common_http_protocol_options.max_stream_duration.
      stream_idle_timeout: 3600s
      # What a waiting request's body may fill over HTTP/2; Envoy's default is 16 MiB each.
      http2_protocol_options: {{initial_stream_window_size: 262144, initial_connection_window_size: 1048576}}
{manager}      route_config:
        name: {name}
        virtual_hosts:
        {virtual_hosts}
      http_filters:
      {before_slot}{slot_is}
      - {slot}
      - name: envoy.filters.http.router
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            name = self.name,
            address = socket(self.address),
            direction = self.direction,
            manager = match self.manager.as_str() {
                "" => String::new(),
                manager => format!("      {}\n", indented(manager, 6)),
            },
            virtual_hosts = indented(&self.virtual_hosts, 8),
            before_slot = match self.before_slot.as_str() {
                "" => String::new(),
                filters => format!("{}\n      ", indented(filters, 6)),
            },
            slot_is = indented(self.slot_is, 6),
            slot = indented(&self.slot, 8),
        )
    }
}

/// Returns a cluster of the operator, as one more item of `clusters`.
fn operator(name: &str, comment: &str, address: &Endpoint, tls: Option<&XdsTls>) -> String {
    let filters = tls.map_or_else(String::new, XdsTls::http_filters);
    let tls = tls.map_or_else(String::new, |tls| format!("\n{}", tls.transport_socket()));
    let block = format!(
        "\
name: {name}
{comment}
{discovery}
connect_timeout: 1s
{XDS_HTTP2}{filters}load_assignment:
  cluster_name: {name}
  endpoints:
  - lb_endpoints:
    - endpoint: {{address: {address}}}{tls}",
        discovery = discovery(address.is_address()),
        address = socket(address),
    );
    format!("\n  - {}", indented(&block, 4))
}

/// Returns the slot `name`, filled by `source`.
fn slot(name: &str, source: &ConfigSource) -> String {
    let source = match source {
        ConfigSource::Xds { ads: true, .. } => "ads: {}".to_owned(),
        ConfigSource::Xds { delta, .. } => {
            format!("api_config_source:\n  {}", indented(&grpc(*delta), 2))
        }
        ConfigSource::File(path) => {
            format!(
                "path_config_source: {{path: {}}}",
                quoted(&path.display().to_string())
            )
        }
    };
    format!(
        "\
name: {name}
config_discovery:
  config_source:
    resource_api_version: V3
    {source}
  apply_default_config_without_warming: true
  default_config:
    # No rules: does nothing.
    \"@type\": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC
  type_urls:
  - type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
  - type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter
  - type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
        source = indented(&source, 4),
    )
}

/// Returns a cluster with round robin over `endpoints`.
fn cluster(name: &str, endpoints: &[Endpoint], http2: bool) -> String {
    let addresses: Vec<String> = endpoints
        .iter()
        .map(|e| format!("    - endpoint: {}", lb_endpoint(e)))
        .collect();
    let is_static = |e: &Endpoint| e.is_address() || e.host == LOCALHOST;
    format!(
        "\
name: {name}
{discovery}
connect_timeout: 1s
# Headgate bounds what the backend gets; Envoy's own default of 1024 would interfere.
circuit_breakers:
  thresholds:
  - {{max_connections: 1000000, max_pending_requests: 1000000, max_requests: 1000000, max_retries: 1000}}
{protocol}load_assignment:
  cluster_name: {name}
  endpoints:
  - lb_endpoints:
{addresses}",
        discovery = discovery(endpoints.iter().all(is_static)),
        protocol = if http2 { HTTP2 } else { "" },
        addresses = addresses.join("\n"),
    )
}

fn discovery(is_static: bool) -> &'static str {
    match is_static {
        true => "type: STATIC",
        false => "type: STRICT_DNS",
    }
}

fn grpc(delta: bool) -> String {
    let api_type = if delta { "DELTA_GRPC" } else { "GRPC" };
    format!(
        "\
api_type: {api_type}
transport_api_version: V3
set_node_on_first_message_only: true
grpc_services:
- envoy_grpc:
    cluster_name: headgate_xds
    retry_policy:
      retry_back_off: {{base_interval: 0.25s, max_interval: 5s}}"
    )
}

/// Extracts policy, type, workflow, service, reason, objective, class and worker into labels. Envoy
/// takes the second group's text as the value and removes the first group from the name. Requests
/// choose the names of workflows, so no regex may match a workflow called `reason` as anything but
/// a name. `workflow` stays in the name, since types and workflows have the same counters. Buckets,
/// in µs, are finer than Envoy's in the range of objectives.
const STATS: &str = r#"stats_config:
  stats_tags:
  - tag_name: headgate_policy
    regex: '^wasmcustom\.headgate\.(policy\.([^.]+)\.)'
  - tag_name: headgate_type
    regex: '^wasmcustom\.headgate\.policy\.[^.]+\.(type\.([^.]+)\.)'
  - tag_name: headgate_workflow
    regex: '^wasmcustom\.headgate\.policy\.[^.]+\.workflow(\.([^.]+))\.'
  - tag_name: headgate_service
    regex: '^wasmcustom\.headgate\.policy\.[^.]+\.service(\.([^.]+))\.(?:index|calls_delayed|rejection_permille|(?:calls|calls_downgraded|admit_permille)\.class\.[^.]+)$'
  - tag_name: headgate_reason
    regex: '^wasmcustom\.headgate\.policy\.[^.]+\.type\..*\.reason(\.([^.]+))$'
  - tag_name: headgate_objective
    regex: '^wasmcustom\.headgate\.policy\.[^.]+\.type\..*\.objective(\.([^.]+))$'
  - tag_name: headgate_class
    regex: '^wasmcustom\.headgate\..*(?:_mhz|_permille|\.calls|\.calls_downgraded)\.class(\.([^.]+))$'
  - tag_name: headgate_limiter
    regex: '^wasmcustom\.headgate\.policy\.[^.]+\.limiter(\.([0-9]+))\.tickets$'
  - tag_name: headgate_worker
    regex: '^wasmcustom\.headgate\.(?:.*\.)?worker(\.([0-9]+))\.'
  histogram_bucket_settings:
  - match: {prefix: wasmcustom.headgate.}
    buckets: [50, 100, 250, 500, 1000, 2000, 4000, 6000, 8000, 10000, 12500, 15000, 17500, 20000, 25000,
      30000, 40000, 50000, 75000, 100000, 150000, 200000, 300000, 500000, 750000, 1000000, 2000000, 5000000,
      10000000]
"#;

/// Prometheus shows a native filter's stats under the names of the Wasm filter's.
const RUNTIME: &str = "\
layered_runtime:
  layers:
  - name: headgate
    static_layer: {envoy.reloadable_features.dynamic_modules_strip_custom_stat_prefix: true}
";

const HTTP2: &str = "\
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
    explicit_http_config:
      http2_protocol_options:
        connection_keepalive: {interval: 30s, timeout: 10s}
";

/// HTTP/2 options of connections to the operator. A dead operator that never closed its connection
/// is detected within 15 s; Envoy then connects to its successor.
const XDS_HTTP2: &str = "\
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
    explicit_http_config:
      http2_protocol_options:
        connection_keepalive: {interval: 10s, timeout: 5s}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_can_not_break_out_of_their_scalar() {
        let bootstrap = Bootstrap {
            listen: "127.0.0.1:1".parse().unwrap(),
            upstream: "backend:2".parse().unwrap(),
            upstream_http2: false,
            outbound: None,
            source: ConfigSource::File("/x\"\n y: z".into()),
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
        let read: serde_json::Value = serde_saphyr::from_str(&bootstrap.to_yaml()).unwrap();
        assert_eq!(read["node"]["id"], "a\"b\nc: d");
        let metadata = &read["node"]["metadata"];
        assert_eq!(metadata[NAMESPACE_METADATA], "n\"\n");
        assert_eq!(metadata[LABELS_METADATA]["app\": x\n"], "y: \"z");
        assert_eq!(metadata[MODULE_METADATA], "/m\" #");
        assert_eq!(read["layered_runtime"], serde_json::Value::Null);
        assert_eq!(
            read["static_resources"]["clusters"][0]["type"],
            "STRICT_DNS"
        );
        let admission = &read["static_resources"]["clusters"][1];
        assert_eq!(admission["name"], CLUSTER);
        assert_eq!(admission["type"], "STRICT_DNS");
        let listener = &read["static_resources"]["listeners"][0];
        let hcm = &listener["filter_chains"][0]["filters"][0]["typed_config"];
        assert_eq!(hcm["access_log"][0]["typed_config"]["path"], "/log \" '");
        let route = &hcm["route_config"]["virtual_hosts"][0]["routes"][0]["route"];
        assert_eq!(route["timeout"], "0s");
        let slot = &hcm["http_filters"][0]["config_discovery"];
        assert_eq!(
            slot["config_source"]["path_config_source"]["path"],
            "/x\"\n y: z"
        );
    }
}
