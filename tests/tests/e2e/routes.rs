//! Tests of the policies of routes and of their gateway at one proxy, which is identified by its
//! labels. Each policy has its own requests, slots and stats. The cluster is plain data, and its
//! plan is served over real xDS to a real Envoy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headgate_api::plan::{
    GATEWAY_NAME_LABEL, LABELS_METADATA, NAMESPACE_METADATA, Plan, TargetKind, TargetRef,
};
use headgate_api::validate::check_file;
use headgate_controller::kubernetes::resolve::Planner;
use headgate_controller::metrics::Metrics;
use headgate_deliver::cluster::{Cluster, Gateway, ObjectKey, Pod, PolicyObject, Route};
use headgate_tests::backend::{Backend, BackendConfig, Fault, FaultKind};
use headgate_tests::envoy::EnvoyProcess;
use headgate_tests::http::{self, Pending};
use headgate_tests::wait::{lock_machine, until};
use headgate_tests::{headgate as binary, policy};
use headgate_xds::module::{Module, Modules};
use headgate_xds::registry::Registry;
use headgate_xds::{Limits, Server};
use serde_json::json;
use tokio::sync::watch;

/// The name of each policy, the kind and the name of its target, and its slots.
const POLICIES: [(&str, TargetKind, &str, usize); 3] = [
    ("edge", TargetKind::Gateway, "edge", 3),
    ("search", TargetKind::HttpRoute, "search", 1),
    ("ads", TargetKind::HttpRoute, "ads", 2),
];

/// Returns a cluster with a Gateway `shop/edge` that has one Pod, and with two HTTPRoutes.
fn cluster() -> Result<Cluster> {
    let edge = ObjectKey::new("shop", "edge");
    let mut cluster = Cluster {
        served_kinds: vec![TargetKind::Gateway, TargetKind::HttpRoute],
        ..Cluster::default()
    };
    Arc::make_mut(&mut cluster.gateways).insert(edge.clone(), Gateway::default());
    let labels = BTreeMap::from([(GATEWAY_NAME_LABEL.to_owned(), "edge".to_owned())]);
    let pod = Pod {
        labels,
        ready: true,
        ..Pod::default()
    };
    Arc::make_mut(&mut cluster.pods).insert(edge.clone(), pod);
    for route in ["search", "ads"] {
        let target = format!("HTTPRoute/shop/{route}").parse()?;
        let names = match route {
            "ads" => BTreeMap::from([(1, "sale".to_owned())]),
            _ => BTreeMap::new(),
        };
        let rule: BTreeSet<_> = [TargetRef::new(TargetKind::Service, "shop", route)].into();
        let route = Route {
            gateways: vec![edge.clone()],
            rules: vec![rule.clone(), rule],
            names,
            ..Route::default()
        };
        Arc::make_mut(&mut cluster.routes).insert(target, route);
    }
    for (name, kind, target, slots) in POLICIES {
        let mut document = policy::queue_only(slots, 1);
        document["metadata"] = json!({"name": name, "namespace": "shop"});
        document["spec"]["targetRefs"] =
            json!([{"group": kind.group(), "kind": kind.as_str(), "name": target}]);
        let report = check_file("policy.json", document.to_string().as_bytes());
        let valid = report.policies().next().context("refused")?.clone();
        let object = PolicyObject {
            uid: name.to_owned(),
            generation: 1,
            created: None,
            targets: valid.targets.clone(),
            accepted: Ok(()),
            effective: Some(valid),
        };
        Arc::make_mut(&mut cluster.policies).insert(ObjectKey::new("shop", name), object.into());
    }
    Ok(cluster)
}

/// An xDS server within this process.
struct Operator {
    plans: watch::Sender<Arc<Plan>>,
    xds: SocketAddr,
    _modules: watch::Sender<Arc<Modules>>,
    _shutdown: watch::Sender<bool>,
    _runtime: tokio::runtime::Runtime,
}

impl Operator {
    fn start(plan: Plan, module: Module) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let plans = watch::Sender::new(Arc::new(plan));
        let modules = watch::Sender::new(Arc::new(module.into()));
        let shutdown = watch::Sender::new(false);
        let listener = runtime.block_on(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let xds = listener.local_addr()?;
        let (plan, module, stop) = (plans.subscribe(), modules.subscribe(), shutdown.subscribe());
        let limits = Limits::default();
        let registry = Registry::new(limits.proxies, limits.keep, Metrics::new().xds);
        let server = Server::new(plan, module, limits, Arc::new(registry));
        runtime.spawn(server.serve(listener, stop));
        Ok(Self {
            plans,
            xds,
            _modules: modules,
            _shutdown: shutdown,
            _runtime: runtime,
        })
    }
}

/// Returns one route of a gateway's configuration.
fn route(name: &str, prefix: &str) -> serde_json::Value {
    json!({
        "name": name,
        "match": {"prefix": prefix},
        "route": {"cluster": "upstream", "timeout": "0s"},
    })
}

struct Proxy {
    envoy: EnvoyProcess,
    backend: Backend,
    address: SocketAddr,
}

impl Proxy {
    /// Starts a proxy of a gateway, whose routes have the names that Envoy Gateway and Istio give
    /// them.
    fn start(xds: SocketAddr) -> Result<Self> {
        let backend = Backend::start(&BackendConfig::constant(100, Duration::from_millis(1)))?;
        let mut bootstrap = binary::bootstrap(backend.addr(), xds, &["--node-id=edge-1"])?;
        bootstrap.root()["node"]["metadata"] = json!({
            NAMESPACE_METADATA: "shop",
            LABELS_METADATA: {GATEWAY_NAME_LABEL: "edge", "pod-template-hash": "5d4f"},
        });
        *bootstrap.routes()? = vec![
            // This route comes before /search, which is a prefix of its path.
            route("httproute/shop/searching/rule/0/match/0/*", "/searching"),
            route("httproute/shop/search/rule/0/match/0/*", "/search"),
            route("httproute/shop/search/rule/1/match/0/*", "/find"),
            route("shop.ads.0", "/ads"),
            // The name is in Istio's format, for a rule with a name.
            route("sale", "/sale"),
            route("default", "/"),
        ];
        let envoy = EnvoyProcess::start(&bootstrap, 2)?;
        let address = envoy.listener(&bootstrap.listener_name()?)?;
        Ok(Self {
            envoy,
            backend,
            address,
        })
    }

    fn stats(&self, name: &str) -> Result<[u64; 3]> {
        let mut stats = [0; 3];
        for (stat, (policy, ..)) in stats.iter_mut().zip(POLICIES) {
            let path = format!("wasmcustom.headgate.policy.shop/{policy}.{name}");
            *stat = self.envoy.stat(&path)?;
        }
        Ok(stats)
    }

    /// Waits until a stat of the policies has these values, in the order of [`POLICIES`].
    fn wait_for(&self, name: &str, expected: [u64; 3]) -> Result<()> {
        until(&format!("{name} = {expected:?}"), || {
            match self.stats(name) {
                Ok(now) if now == expected => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
    }

    fn send(&self, path: &str) -> Result<Pending> {
        http::send(self.address, "GET", path, &[], None)
    }
}

#[test]
fn policies_of_routes_and_of_their_gateway_are_apart() -> Result<()> {
    let _lock = lock_machine()?;
    let folder = tempfile::tempdir()?;
    let module = Module::install(&binary::tested_module(), folder.path())?;
    let mut planner = Planner::default();
    let mut cluster = cluster()?;
    let operator = Operator::start(planner.plan(&cluster), module)?;
    let proxy = Proxy::start(operator.xds)?;
    until("the policies to be in force", || {
        let answer = http::get(proxy.address, "/").map_err(|e| e.to_string())?;
        match proxy.stats("slots") {
            Ok([3, 1, 2]) => Ok(()),
            other => Err(format!("{} {other:?}", answer.status)),
        }
    })?;

    // Each stage is filled, and gets one request in its queue, while the other stages still have
    // free slots.
    proxy
        .backend
        .inject(Fault::new(FaultKind::Hang, "/", 1_000));
    let mut pending = Vec::new();
    let mut slots = [0, 0, 0];
    for (at, paths) in [
        (1, &["/search/a", "/find/a"][..]),
        (2, &["/ads/a", "/sale/b", "/ads/c"]),
        (0, &["/", "/searching/a", "/other", "/"]),
    ] {
        // Requests are sent one after the other. Two requests at once could both be in the queue
        // for a moment, and the queue has only one place.
        for (i, path) in paths.iter().enumerate() {
            pending.push(proxy.send(path)?);
            slots[at] = (i + 1).min(POLICIES[at].3) as u64;
            proxy.wait_for("slots_in_use", slots)?;
        }
    }
    proxy.wait_for("queue_length", [1, 1, 1])?;
    for (path, (policy, ..)) in ["/searching", "/find/b", "/ads/d"]
        .into_iter()
        .zip(POLICIES)
    {
        let refused = http::get(proxy.address, path)?;
        let by = refused.header("x-headgate-refused").unwrap_or_default();
        ensure!(
            refused.status == 503 && by.contains(&format!("policy=shop/{policy};")),
            "{path}: {} {by:?}",
            refused.status
        );
    }
    proxy.wait_for("type.default.rq_rejected", [1, 1, 1])?;
    proxy.backend.clear_faults();
    proxy.backend.release();
    for request in pending {
        ensure!(request.answer()?.status == 200);
    }
    for gauge in ["slots_in_use", "queue_length"] {
        proxy.wait_for(gauge, [0, 0, 0])?;
    }

    // Without a policy of its own, a route is subject to the gateway's policy again.
    Arc::make_mut(&mut cluster.policies).remove(&ObjectKey::new("shop", "ads"));
    operator
        .plans
        .send_replace(Arc::new(planner.plan(&cluster)));
    until("the gateway's policy to have /ads", || {
        let before = proxy
            .stats("type.default.rq_total")
            .map_err(|e| e.to_string())?;
        let answer = http::get(proxy.address, "/ads").map_err(|e| e.to_string())?;
        let after = proxy
            .stats("type.default.rq_total")
            .map_err(|e| e.to_string())?;
        match (answer.status, after[0] - before[0], after[2] - before[2]) {
            (200, 1.., 0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    ensure!(proxy.envoy.filter_errors().is_empty());
    Ok(())
}
