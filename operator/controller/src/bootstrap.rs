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
use std::path::PathBuf;
use std::time::Duration;

use minijinja::context;
use minijinja::value::Serde;
use serde::Serialize;

use crate::endpoint::Endpoint;
use crate::template::render;
use headgate_api::plan::TargetRef;
use headgate_xds::VERSION;
use headgate_xds::module::Kind;

pub use outbound::Outbound;
pub use tls::{ProxyIdentity, SdsFiles, XdsTls};

/// The parameters of the bootstrap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Admission {
    /// The address of the server.
    pub address: Endpoint,
    /// TLS, with the same identity and CA as for xDS.
    pub tls: Option<Box<XdsTls>>,
}

/// Limits on the arrival of a request's body, and whether it is buffered before the slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Uploads {
    /// The largest body that is buffered, in bytes. Headgate then processes the request once its
    /// body has arrived. With `None`, Headgate processes the request once its headers have arrived.
    pub buffer: Option<NonZeroU32>,
    /// The time within which the whole request must arrive. `None` means no limit.
    pub timeout: Option<Duration>,
}

/// The node metadata about a proxy's Pod, by which policies select it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
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

impl Bootstrap {
    /// Returns the bootstrap as YAML.
    ///
    /// # Errors
    /// If a path isn't UTF-8.
    pub fn to_yaml(&self) -> anyhow::Result<String> {
        let timeout = self.uploads.timeout;
        let values = context! {
            version => VERSION,
            request_timeout => timeout.map(|timeout| format!("{}s", timeout.as_secs_f64())),
            ..Serde(self)
        };
        let template = include_str!("bootstrap/templates/bootstrap.yaml.j2");
        render("bootstrap.yaml.j2", template, values)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    use headgate_admission::protocol::CLUSTER;
    use headgate_api::plan::{
        ARCHITECTURE_METADATA, FILTER_METADATA, LABELS_METADATA, MODULE_METADATA,
        NAMESPACE_METADATA, NATIVE_MODULE_METADATA, TARGET_METADATA, VERSION_METADATA,
    };
    use headgate_xds::{DEFAULT_SLOT, OUTBOUND_SLOT};
    use serde_json::Value;

    use super::*;

    /// Returns a bootstrap in which everything has a value.
    fn full() -> Bootstrap {
        let at = |text: &str| text.parse::<Endpoint>().unwrap();
        let tls = |identity| {
            Some(Box::new(XdsTls {
                identity,
                ca: "/tls/ca.crt".into(),
                server_name: "headgate.svc".into(),
                sds: SdsFiles {
                    identity: "/identity.yaml".into(),
                    ca: "/ca.yaml".into(),
                },
            }))
        };
        Bootstrap {
            listen: at("[::]:1"),
            upstream: at("localhost:2"),
            upstream_http2: true,
            outbound: Some(Outbound {
                listen: at("[::]:3"),
                services: [("stock".to_owned(), vec![at("localhost:1"), at("stock:2")])].into(),
                http2: true,
                config_file: Some("/outbound.yaml".into()),
            }),
            source: ConfigSource::Xds {
                address: at("headgate.svc:4"),
                tls: tls(ProxyIdentity::Token("/tls/token".into())),
            },
            admission: Some(Admission {
                address: at("10.0.0.1:5"),
                tls: tls(ProxyIdentity::Certificate {
                    cert: "/tls/tls.crt".into(),
                    key: "/tls/tls.key".into(),
                }),
            }),
            admin: at("localhost:6"),
            stats: Some(at("[::]:7")),
            target: Some("Service/shop/search".parse().unwrap()),
            pod: Pod {
                namespace: Some("shop".into()),
                labels: [("app".to_owned(), "search".to_owned())].into(),
                module: Some("/headgate.wasm".into()),
                native_module: Some("/libheadgate.so".into()),
                filter: Kind::Native,
                architecture: Some("x86_64"),
            },
            node_id: "search-0".into(),
            access_log: Some("/log".into()),
            uploads: Uploads {
                buffer: NonZeroU32::new(9),
                timeout: Some(Duration::from_millis(1_500)),
            },
        }
    }

    fn read(yaml: &str) -> Value {
        serde_saphyr::from_str(yaml).unwrap()
    }

    /// A missing value is an error, and one that is `None` would be null.
    #[test]
    fn all_choices_have_their_values() {
        let mut all = vec![full()];
        let changes: [fn(&mut Bootstrap); 13] = [
            |b| b.outbound = None,
            |b| b.outbound.as_mut().unwrap().config_file = None,
            |b| b.source = ConfigSource::File("/inbound.yaml".into()),
            |b| b.admission = None,
            |b| b.admission.as_mut().unwrap().tls = None,
            |b| b.stats = None,
            |b| b.target = None,
            |b| b.pod.filter = Kind::Wasm,
            |b| b.pod = Pod::default(),
            |b| b.access_log = None,
            |b| b.uploads = Uploads::default(),
            |b| {
                let tls = b.admission.as_mut().unwrap().tls.as_mut();
                tls.unwrap().server_name = "::1".into();
            },
            |b| b.upstream_http2 = false,
        ];
        for change in changes {
            let mut one = full();
            change(&mut one);
            all.push(one);
        }
        for bootstrap in all {
            let yaml = bootstrap.to_yaml().unwrap();
            assert!(!read(&yaml).to_string().contains("null"), "{yaml}");
            assert!(yaml.lines().all(|line| !line.trim().is_empty()), "{yaml}");
        }
    }

    #[test]
    fn names_are_those_that_others_know() {
        let read = read(&full().to_yaml().unwrap());
        let metadata = &read["node"]["metadata"];
        assert_eq!(
            *metadata,
            serde_json::json!({
                TARGET_METADATA: "Service/shop/search",
                NAMESPACE_METADATA: "shop",
                MODULE_METADATA: "/headgate.wasm",
                VERSION_METADATA: VERSION,
                FILTER_METADATA: Kind::Native.name(),
                NATIVE_MODULE_METADATA: "/libheadgate.so",
                ARCHITECTURE_METADATA: "x86_64",
                LABELS_METADATA: {"app": "search"},
            })
        );
        let [listeners, clusters] =
            ["listeners", "clusters"].map(|part| &read["static_resources"][part]);
        for (listener, slot, filter) in [(0, DEFAULT_SLOT, 1), (1, OUTBOUND_SLOT, 0)] {
            let manager = &listeners[listener]["filter_chains"][0]["filters"][0]["typed_config"];
            assert_eq!(manager["http_filters"][filter]["name"], slot);
        }
        assert_eq!(clusters[3]["name"], CLUSTER);
        let manager = &listeners[0]["filter_chains"][0]["filters"][0]["typed_config"];
        assert_eq!(manager["request_timeout"], "1.5s");
    }

    #[test]
    fn files_for_sds_name_the_folder_to_watch() {
        for (tls, watched) in [
            (full().admission.unwrap().tls.unwrap(), "tls_certificate"),
            (
                match full().source {
                    ConfigSource::Xds { tls, .. } => tls.unwrap(),
                    ConfigSource::File(_) => unreachable!(),
                },
                "generic_secret",
            ),
        ] {
            let identity = read(&tls.identity_yaml().unwrap());
            assert!(
                identity["resources"][0][watched]
                    .to_string()
                    .contains("\"/tls\"")
            );
            let ca = XdsTls {
                ca: "ca.crt".into(),
                ..*tls
            };
            let ca = read(&ca.ca_yaml().unwrap());
            let context = &ca["resources"][0]["validation_context"];
            assert_eq!(context["watched_directory"]["path"], ".");
        }
    }

    #[test]
    fn a_path_that_is_not_utf_8_is_an_error() {
        let odd = || PathBuf::from(OsString::from_vec(b"/log\xff".to_vec()));
        let changes: [fn(&mut Bootstrap, PathBuf); 4] = [
            |b, path| b.access_log = Some(path),
            |b, path| b.pod.module = Some(path),
            |b, path| b.outbound.as_mut().unwrap().config_file = Some(path),
            |b, path| b.source = ConfigSource::File(path),
        ];
        for change in changes {
            let mut bootstrap = full();
            change(&mut bootstrap, odd());
            let error = bootstrap.to_yaml().unwrap_err().to_string();
            let start = "can't write YAML; paths must be UTF-8: could not serialize to value: \
                         path contains invalid UTF-8 characters (in bootstrap.yaml.j2:";
            assert!(error.starts_with(start), "{error}");
        }
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
        let yaml = bootstrap.to_yaml().unwrap();
        let read = read(&yaml);
        assert_eq!(read["node"]["id"], "a\"b\nc: d");
        let metadata = &read["node"]["metadata"];
        assert_eq!(metadata[NAMESPACE_METADATA], "n\"\n");
        assert_eq!(metadata[LABELS_METADATA]["app\": x\n"], "y: \"z");
        assert_eq!(metadata[MODULE_METADATA], "/m\" #");
        assert_eq!(metadata[VERSION_METADATA], VERSION);
        assert_eq!(read["layered_runtime"], Value::Null);
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
