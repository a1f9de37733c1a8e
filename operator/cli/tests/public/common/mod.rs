//! A running server with plans and modules that a test can change, and clients for it.
#![allow(dead_code, unreachable_pub, missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use envoy_types::pb::envoy::config::core::v3::{Node, TypedExtensionConfig};
use envoy_types::pb::envoy::extensions::filters::http::dynamic_modules::v3::DynamicModuleFilter;
use envoy_types::pb::envoy::extensions::filters::http::wasm::v3::Wasm;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, StringValue, Struct, Value};
use headgate_api::plan::{Plan, PolicyState, TARGET_METADATA, TargetRef};
use headgate_controller::admin::{Admin, View};
use headgate_controller::metrics::Metrics;
use headgate_controller::report::Report;
use headgate_core::config::{FilterConfig, Mode};
use headgate_xds::module::{Module, Modules};
use headgate_xds::registry::Registry;
use headgate_xds::snapshot::Snapshot;
use headgate_xds::{Limits, Server};
use prost::{Message as _, Name as _};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use crate::proxies::{Pair, write_tls};

pub const SEARCH: &str = "Service/default/search";
pub const ADS: &str = "Service/default/ads";

/// A server on free ports.
pub struct World {
    pub plans: watch::Sender<Arc<Plan>>,
    pub modules: watch::Sender<Arc<Modules>>,
    pub registry: Arc<Registry>,
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    pub xds: SocketAddr,
    pub admin: SocketAddr,
    pub shutdown: watch::Sender<bool>,
    pub served: JoinHandle<()>,
    pub metrics: Metrics,
    /// The files of TLS.
    pub dir: TempDir,
}

/// Returns the admin address of a running server.
pub fn admin_of(
    registry: &Arc<Registry>,
    snapshots: &watch::Receiver<Arc<Snapshot>>,
    metrics: &Metrics,
    shutdown: &watch::Sender<bool>,
) -> Admin {
    let view = View {
        registry: Arc::clone(registry),
        snapshots: snapshots.clone(),
        statuses: None,
        metrics: metrics.clone(),
    };
    // Both receivers keep their values after their senders are dropped.
    let (_, view) = watch::channel(Some(view));
    let (_, missing) = watch::channel(String::new());
    Admin::starting(view, missing, "", shutdown.subscribe())
}

impl World {
    pub async fn start(plan: Plan) -> Self {
        Self::limited(plan, Limits::default()).await
    }

    pub async fn limited(plan: Plan, limits: Limits) -> Self {
        Self::start_with(plan, module_at("/modules/headgate-1.wasm"), limits, 0).await
    }

    pub async fn start_with(
        plan: Plan,
        modules: impl Into<Modules>,
        limits: Limits,
        port: u16,
    ) -> Self {
        Self::start_at(([127, 0, 0, 1], port).into(), plan, modules, limits, None).await
    }

    /// Starts a server with TLS. `tls` is its certificate, and the CA of the clients.
    pub async fn secured(plan: Plan, limits: Limits, tls: (&Pair, &str)) -> Self {
        let module = module_at("/modules/headgate-1.wasm");
        Self::start_at(([127, 0, 0, 1], 0).into(), plan, module, limits, Some(tls)).await
    }

    pub async fn start_at(
        address: SocketAddr,
        plan: Plan,
        modules: impl Into<Modules>,
        limits: Limits,
        tls: Option<(&Pair, &str)>,
    ) -> Self {
        let plans = watch::Sender::new(Arc::new(plan));
        let modules = watch::Sender::new(Arc::new(modules.into()));
        let shutdown = watch::Sender::new(false);
        let metrics = Metrics::new();
        let registry = Registry::new(limits.proxies, limits.keep, metrics.xds.clone());
        let registry = Arc::new(registry);
        let (plan, module) = (plans.subscribe(), modules.subscribe());
        let mut server = Server::new(plan, module, limits, Arc::clone(&registry));
        let dir = tempfile::tempdir().unwrap();
        if let Some((pair, client_ca)) = tls {
            let files = write_tls(dir.path(), pair, client_ca);
            server.tls = Some(files.load().await.unwrap());
        }
        let snapshots = server.snapshots();
        let xds = TcpListener::bind(address).await.unwrap();
        let admin = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (xds_address, admin_address) = (xds.local_addr().unwrap(), admin.local_addr().unwrap());
        let shown = admin_of(&registry, &snapshots, &metrics, &shutdown);
        tokio::spawn(shown.serve(admin, None));
        let served = tokio::spawn(server.serve(xds, shutdown.subscribe()));
        Self {
            plans,
            modules,
            registry,
            snapshots,
            xds: xds_address,
            admin: admin_address,
            shutdown,
            served,
            metrics,
            dir,
        }
    }

    pub async fn channel(&self) -> Channel {
        self.plain("127.0.0.1").await.unwrap()
    }

    pub fn report(&self) -> Report {
        let snapshot = Arc::clone(&self.snapshots.borrow());
        Report::new(&snapshot, &self.registry, None, SystemTime::now())
    }

    /// Waits until the report satisfies `done`. The server receives a client's responses some time
    /// after the client has sent them.
    pub async fn until(&self, what: &str, done: impl Fn(&Report) -> bool) -> Report {
        let waited = tokio::time::timeout(std::time::Duration::from_secs(30), async {
            loop {
                let report = self.report();
                if done(&report) {
                    return report;
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        });
        let Ok(report) = waited.await else {
            panic!("never {what}: {:#?}", self.report())
        };
        report
    }

    /// Returns the status code and the body of a GET on the admin address.
    pub async fn get(&self, path: &str) -> (u16, String) {
        get(self.admin, path).await.unwrap()
    }
}

/// Returns the status code and the body of a GET. The body is unchanged, including chunk sizes.
pub async fn get(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let code = head
        .get(9..12)
        .and_then(|c| c.parse().ok())
        .ok_or(std::io::ErrorKind::InvalidData)?;
    Ok((code, body.to_owned()))
}

pub fn module_at(path: &str) -> Module {
    Module {
        path: path.into(),
        hash: "0123".into(),
        sha256: "0".repeat(64),
        bytes: 8,
        architecture: None,
    }
}

/// Returns a configuration that enforces one policy.
pub fn config(policy: &str, revision: &str) -> FilterConfig {
    let json = serde_json::json!({
        "revision": revision,
        "stages": [{
            "policy": policy,
            "parallelism": 4,
            "queue": {"max_length": 10, "timeout_us": 1_000_000},
            "strategy": {"type": "Bouncer"},
            "types": [{"name": "default", "slo": [{"percentile": 50.0, "objective_us": 18_000}]}],
        }],
    });
    FilterConfig::from_json(json.to_string().as_bytes()).unwrap()
}

/// Returns a plan with one policy for each target, in the given revision.
pub fn plan(workloads: &[(&str, &str)]) -> Plan {
    let mut plan = Plan::default();
    for (target, revision) in workloads {
        let target: TargetRef = target.parse().unwrap();
        let name = format!("{}/{}", target.namespace, target.name);
        plan.policies.push(PolicyState {
            name: name.clone(),
            source: "search.yaml".into(),
            generation: 0,
            targets: vec![target.clone()],
            accepted: Ok(()),
            has_version: true,
            conflicts: Vec::new(),
            overridden: Vec::new(),
            without_workflows: Vec::new(),
            warnings: Vec::new(),
            beyond_limit: Default::default(),
            not_found: Vec::new(),
            mode: Mode::Enforce,
            endpoint_slots: None,
            revision: (*revision).to_owned(),
        });
        plan.workloads
            .insert(target, Arc::new(config(&name, revision)));
    }
    plan
}

/// Returns the plan with workflows in the policy of each target, and outbound configurations whose
/// revisions contain the policies' names.
pub fn with_workflows(mut plan: Plan) -> Plan {
    let workflows = serde_json::json!({
        "identify": [{"type": "Type"}], "quantile": 0.5, "interval_us": 100_000,
        "rate_ttl_us": 1_000_000, "sharing": {"type": "StaticGuarantees"},
        "max_workflows": 10, "max_queue_length": 10,
    });
    for config in plan.workloads.values_mut() {
        let mut changed = (**config).clone();
        for stage in &mut changed.stages {
            stage.workflows = serde_json::from_value(workflows.clone()).unwrap();
            let calls = serde_json::json!({
                "revision": format!("calls of {}", stage.policy),
                "direction": "Outbound",
                "outbound": {"policy": stage.policy},
            });
            let calls = FilterConfig::from_json(calls.to_string().as_bytes()).unwrap();
            plan.outbound.insert(stage.policy.clone(), Arc::new(calls));
        }
        *config = Arc::new(changed);
    }
    plan
}

/// Returns a node that claims `target`.
pub fn node(id: &str, target: Option<&str>) -> Option<Node> {
    let target = target.map(|target| (TARGET_METADATA, target));
    node_with(id, target.as_slice())
}

/// Returns a node with these strings as metadata.
pub fn node_with(id: &str, metadata: &[(&str, &str)]) -> Option<Node> {
    let value = |text: &str| Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    };
    let fields = metadata.iter();
    let fields = fields.map(|(key, text)| ((*key).to_owned(), value(text)));
    Some(Node {
        id: id.into(),
        cluster: "edge".into(),
        metadata: Some(Struct {
            fields: fields.collect(),
        }),
        ..Node::default()
    })
}

/// Returns the configuration that a module reads from this resource.
pub fn configuration(resource: &Any) -> FilterConfig {
    let extension = TypedExtensionConfig::decode(&resource.value[..]).unwrap();
    let filter = extension.typed_config.unwrap();
    let configuration = if filter.type_url == Wasm::type_url() {
        let wasm = Wasm::decode(&filter.value[..]).unwrap();
        wasm.config.unwrap().configuration
    } else {
        let native = DynamicModuleFilter::decode(&filter.value[..]).unwrap();
        native.filter_config
    };
    let text = StringValue::decode(&configuration.unwrap().value[..]).unwrap();
    FilterConfig::from_json(text.value.as_bytes()).unwrap()
}

/// Returns the path of the Envoy binary that the test scripts provide.
pub fn envoy() -> std::path::PathBuf {
    let path = std::env::var_os("HEADGATE_ENVOY").expect(
        "HEADGATE_ENVOY is unset: set it to an Envoy 1.40 binary, or run scripts/test, \
         which gets one",
    );
    assert!(
        Path::new(&path).is_file(),
        "HEADGATE_ENVOY is no file: {}",
        path.display()
    );
    path.into()
}

/// Returns a filter module that does nothing but accept or refuse its configuration.
pub fn wasm(accept: bool) -> Vec<u8> {
    fn section(id: u8, content: &[u8]) -> Vec<u8> {
        [&[id, u8::try_from(content.len()).unwrap()][..], content].concat()
    }
    fn export(name: &str, kind: u8, index: u8) -> Vec<u8> {
        [
            &[u8::try_from(name.len()).unwrap()][..],
            name.as_bytes(),
            &[kind, index],
        ]
        .concat()
    }
    let types = [
        3, 0x60, 0, 0, 0x60, 2, 0x7f, 0x7f, 1, 0x7f, 0x60, 1, 0x7f, 1, 0x7f,
    ];
    let exports = [
        vec![4],
        export("memory", 2, 0),
        export("proxy_abi_version_0_2_1", 0, 0),
        export("proxy_on_configure", 0, 1),
        export("malloc", 0, 2),
    ];
    // The functions are (func), (func (param i32 i32) (result i32) (i32.const accept)), and a
    // malloc that is never called.
    let code = [
        3,
        2,
        0,
        0x0b,
        4,
        0,
        0x41,
        u8::from(accept),
        0x0b,
        4,
        0,
        0x41,
        0,
        0x0b,
    ];
    [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, &types),
        section(3, &[3, 0, 1, 2]),
        section(5, &[1, 0, 1]),
        section(7, &exports.concat()),
        section(10, &code),
    ]
    .concat()
}
