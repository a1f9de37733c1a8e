//! A running deliverer, with an API server that has the CRDs of all control planes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use headgate_api::validate::check_file;
use headgate_controller::kubernetes::resolve::Planner;
use headgate_deliver::cluster::{Cluster, ObjectKey, Pod, PolicyObject, Service};
use headgate_deliver::settings::{
    AdapterChoice, DeliverArgs, ENVOY_GATEWAY_NAMESPACE, ISTIO_NAMESPACE,
};
use headgate_deliver::{Delivered, PlannedCluster, Settings};
use headgate_tests::chart;
use headgate_tests::kube::ApiServer;
use headgate_tests::kube::api_server::client;
use headgate_tests::kube::audit::{AuditEvent, AuditMark};
use headgate_tests::wait::{until, until_within};
use headgate_xds::module;
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::task::JoinHandle;

use super::modules::{Modules, sha256};
use super::{SEARCH, policy};

/// The rights that the deliverer needs.
const RIGHTS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: deliver}
rules:
- apiGroups: [extensions.istio.io]
  resources: [wasmplugins, trafficextensions]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [networking.istio.io]
  resources: [envoyfilters]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [gateway.envoyproxy.io]
  resources: [envoyextensionpolicies]
  verbs: [list, watch, create, patch, delete]
- apiGroups: ['']
  resources: [configmaps]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [gatewayclasses]
  verbs: [list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: deliver}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: deliver}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: deliver}]
";

const CLASSES: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio}
spec: {controllerName: istio.io/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: eg}
spec: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
";

/// The longest time until a watch notices that a kind is served: [`RETRY`] and a margin for a slow
/// machine.
pub(crate) const NOTICED: Duration = Duration::from_secs(60);
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// The longest time until the API server has removed a CRD.
const GONE: Duration = Duration::from_secs(240);

/// A running deliverer, in a cluster that has no objects at first.
pub(crate) struct Stage {
    pub(crate) server: &'static ApiServer,
    pub(crate) namespace: String,
    pub(crate) modules: Modules,
    pub(crate) cluster: Cluster,
    pub(crate) views: watch::Sender<Option<PlannedCluster>>,
    pub(crate) delivered: watch::Receiver<Arc<Delivered>>,
    pub(crate) task: JoinHandle<()>,
    _turn: MutexGuard<'static, ()>,
}

pub(crate) async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

pub(crate) fn settings(modules: &Modules) -> Settings {
    let config_map_module = "/headgate/headgate-{hash}.wasm".to_owned();
    let args = DeliverArgs {
        adapters: vec![AdapterChoice::Auto],
        deliver_config_maps: true,
        config_map_module: config_map_module.clone(),
        envoy_gateway_native: None,
        istio_native: None,
        envoy_gateway_namespace: ENVOY_GATEWAY_NAMESPACE.to_owned(),
        istio_namespace: ISTIO_NAMESPACE.to_owned(),
        keep_leftovers: false,
        modules_url: None,
    };
    Settings {
        args,
        istio: true,
        envoy_gateway: true,
        config_map_module: Some(config_map_module),
        operator: "headgate-system/headgate".to_owned(),
        watch_namespaces: Vec::new(),
        modules_url: format!("http://{}", modules.address),
        retry: RETRY,
        refused_retry: RETRY,
    }
}

pub(crate) fn view(cluster: &Cluster) -> PlannedCluster {
    PlannedCluster {
        plan: Arc::new(Planner::default().plan(cluster)),
        cluster: Arc::new(cluster.clone()),
    }
}

/// Returns the number of slots in a TrafficExtension.
pub(crate) fn slots(plugin: &Value) -> &Value {
    &plugin["spec"]["wasm"]["pluginConfig"]["stages"][0]["parallelism"]
}

/// Returns the module that the operator serves.
fn served() -> watch::Receiver<Arc<module::Modules>> {
    let wasm = module::Module {
        sha256: sha256(),
        ..module::Module::default()
    };
    watch::channel(Arc::new(wasm.into())).1
}

pub(crate) fn install(server: &ApiServer, project: &str) -> Result<()> {
    let file = format!("--filename={}", chart::crds(project)?);
    server.kubectl(&["apply", "--server-side", "--force-conflicts", &file])?;
    server.wait_for_crds()
}

/// Removes the CRDs of Istio's plugins. This may take a minute, because the API server rebuilds its
/// description of all other CRDs for each deleted CRD.
pub(crate) fn remove_plugins(server: &ApiServer) -> Result<()> {
    let arguments = [
        "delete",
        "crd",
        "wasmplugins.extensions.istio.io",
        "trafficextensions.extensions.istio.io",
        "--ignore-not-found",
        "--wait=false",
    ];
    server.kubectl(&arguments)?;
    until_within(GONE, "an end of the definitions", || {
        let [_, crd, first, second, ..] = arguments;
        let left = server.kubectl(&["get", crd, first, second, "--ignore-not-found"]);
        match left {
            Ok(left) if left.trim().is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
}

/// Returns the API server with the CRDs of all control planes, which are installed once.
pub(crate) fn equipped() -> Result<&'static ApiServer> {
    static DONE: AtomicBool = AtomicBool::new(false);
    let server = ApiServer::shared();
    if !DONE.load(Ordering::Relaxed) {
        server.install_crds()?;
        for project in ["gateway-api", "istio", "envoy-gateway"] {
            install(server, project)?;
        }
        server.apply(CLASSES)?;
        server.apply(RIGHTS)?;
        DONE.store(true, Ordering::Relaxed);
    }
    Ok(server)
}

impl Stage {
    /// Starts a deliverer on an API server with the CRDs of all control planes.
    pub(crate) async fn set() -> Result<Self> {
        Self::set_with_refused_retry(RETRY).await
    }

    /// Starts a deliverer as [`Stage::set`] does, which attempts a refused write again after this
    /// pause.
    pub(crate) async fn set_with_refused_retry(pause: Duration) -> Result<Self> {
        let turn = turn().await;
        Self::with(equipped()?, turn, pause).await
    }

    pub(crate) async fn with(
        server: &'static ApiServer,
        turn: MutexGuard<'static, ()>,
        refused_retry: Duration,
    ) -> Result<Self> {
        let modules = Modules::start()?;
        let settings = Settings {
            refused_retry,
            ..settings(&modules)
        };
        let cluster = Cluster::default();
        let (views, _) = watch::channel(Some(view(&cluster)));
        let (send, delivered) = watch::channel(Arc::default());
        let user = client(&server.user_kubeconfig("deliver", None)?).await?;
        let (views_seen, outage) = (views.subscribe(), Arc::default());
        let run = headgate_deliver::run(user, settings, outage, views_seen, served(), send);
        Ok(Self {
            namespace: server.namespace("deliver")?,
            server,
            modules,
            cluster,
            views,
            delivered,
            task: tokio::spawn(run),
            _turn: turn,
        })
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let namespace = format!("--namespace={}", self.namespace);
        self.server
            .kubectl(&[arguments, &[namespace.as_str()]].concat())
    }

    /// Applies a policy and adds it to the deliverer's next view, as the operator does.
    pub(crate) fn policy(&mut self, yaml: &str) -> Result<()> {
        // A client-side apply keeps a copy in an annotation of at most 256 KiB.
        let apply = ["apply", "--server-side", "--filename=-"];
        let admin = self.server.kubeconfig();
        self.server.kubectl_as(admin, &apply, Some(yaml))?;
        let report = check_file("policy.yaml", yaml.as_bytes());
        let valid = report.policies().next().context("a valid policy")?.clone();
        let (name, namespace) = (valid.name.clone(), valid.namespace.clone());
        let object = self.kubectl(&["get", "admissionpolicy", &name, "--output=json"])?;
        let object: Value = serde_json::from_str(&object)?;
        Arc::make_mut(&mut self.cluster.policies).insert(
            ObjectKey::new(namespace, name),
            PolicyObject {
                uid: object["metadata"]["uid"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                generation: object["metadata"]["generation"]
                    .as_i64()
                    .unwrap_or_default(),
                created: None,
                targets: valid.targets.clone(),
                accepted: Ok(()),
                effective: Some(valid),
            }
            .into(),
        );
        Ok(())
    }

    /// Replaces the running deliverer with another. `interrupted` tells the new one that no
    /// deliverer may have run for a while.
    pub(crate) async fn start_again(&mut self, interrupted: bool) -> Result<()> {
        self.task.abort();
        let user = client(&self.server.user_kubeconfig("deliver", None)?).await?;
        let (send, delivered) = watch::channel(Arc::default());
        let (settings, views) = (settings(&self.modules), self.views.subscribe());
        self.delivered = delivered;
        self.task = tokio::spawn(headgate_deliver::run(
            user,
            settings,
            Arc::new(AtomicBool::new(interrupted)),
            views,
            served(),
            send,
        ));
        Ok(())
    }

    /// Adds the Service `search` with one Pod, which mounts the service's ConfigMap.
    pub(crate) fn search(&mut self) {
        self.search_by(&[("app", "search")]);
    }

    /// Adds the Service `search`, which selects its only Pod by these labels.
    pub(crate) fn search_by(&mut self, selector: &[(&str, &str)]) {
        let owned = |labels: &[(&str, &str)]| -> BTreeMap<String, String> {
            let pairs = labels.iter().map(|&(k, v)| (k.to_owned(), v.to_owned()));
            pairs.collect()
        };
        let selector = owned(selector);
        let labels = owned(&[("app", "search"), ("tier", "web")]);
        Arc::make_mut(&mut self.cluster.services).insert(
            ObjectKey::new(&self.namespace, "search"),
            Service { selector },
        );
        Arc::make_mut(&mut self.cluster.pods).insert(
            ObjectKey::new(&self.namespace, "search-1"),
            Pod {
                labels,
                ready: true,
                config_maps: vec!["headgate-service-search".to_owned()],
                ..Pod::default()
            },
        );
    }

    /// Applies the policy `p` of the Service `search` with this many slots, and shows it to the
    /// deliverer.
    pub(crate) fn deliver(&mut self, slots: u32) -> Result<()> {
        self.policy(&policy(&self.namespace, "p", SEARCH, slots))?;
        self.show();
        Ok(())
    }

    /// Adds a Pod that belongs to no Service, and shows it to the deliverer.
    pub(crate) fn add_pod(&mut self, name: &str) {
        let pod = ObjectKey::new(&self.namespace, name);
        Arc::make_mut(&mut self.cluster.pods).insert(pod, Pod::default());
        self.show();
    }

    /// Shows the cluster to the deliverer.
    pub(crate) fn show(&self) {
        self.views.send_replace(Some(view(&self.cluster)));
    }

    /// Returns the only object of this kind in this test's namespace.
    pub(crate) fn only(&self, kind: &str) -> Result<Value, String> {
        let all = self.all(kind).map_err(|e| format!("{e:#}"))?;
        match &all[..] {
            [one] => Ok(one.clone()),
            _ => Err(format!("{} {kind}", all.len())),
        }
    }

    /// Returns all delivered objects of this kind in this test's namespace.
    pub(crate) fn all(&self, kind: &str) -> Result<Vec<Value>> {
        let list = self.kubectl(&[
            "get",
            kind,
            "--selector=app.kubernetes.io/managed-by=headgate",
            "--output=json",
        ])?;
        let list: Value = serde_json::from_str(&list)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    pub(crate) fn wait_for(
        &self,
        kind: &str,
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        until_within(NOTICED, what, || {
            let object = self.only(kind)?;
            match is(&object) {
                true => Ok(object),
                false => Err(object.to_string()),
            }
        })
    }

    /// Waits until Istio's plugin has this many slots, and returns the plugin.
    pub(crate) fn wait_for_slots(&self, count: u32) -> Result<Value> {
        let what = format!("{count} slots");
        self.wait_for("trafficextensions", &what, |plugin| slots(plugin) == count)
    }

    /// Waits until the deliverer has requested a module that isn't served.
    pub(crate) fn wait_for_a_miss(&self) -> Result<()> {
        until_within(NOTICED, "a request for the module", || {
            match self.modules.missed.load(Ordering::Relaxed) {
                0 => Err("none".to_owned()),
                _ => Ok(()),
            }
        })
    }

    pub(crate) fn wait_until_gone(&self, kind: &str) -> Result<()> {
        until_within(NOTICED, &format!("no {kind}"), || {
            match self.all(kind).map_err(|e| format!("{e:#}"))?.len() {
                0 => Ok(()),
                n => Err(format!("{n} there")),
            }
        })
    }

    /// Waits until the condition `Programmed` of a policy has this status and a message with
    /// `part`. Returns the message.
    pub(crate) async fn programmed(
        &mut self,
        policy: &str,
        status: bool,
        part: &str,
    ) -> Result<String> {
        let policy = format!("{}/{policy}", self.namespace);
        let is = |d: &Arc<Delivered>| {
            let said = d.programmed(&policy);
            said.is_some_and(|(is, _, message)| is == status && message.contains(part))
        };
        let waited = tokio::time::timeout(NOTICED, self.delivered.wait_for(is)).await;
        let came = matches!(waited, Ok(Ok(_)));
        drop(waited);
        let said = self.delivered.borrow().programmed(&policy);
        match said {
            Some((_, _, message)) if came => Ok(message),
            said => bail!("waited for {status} and {part:?}; {said:?}"),
        }
    }

    /// Returns the writes of the deliverer since `mark`.
    pub(crate) fn writes(&self, mark: AuditMark) -> Result<Vec<AuditEvent>> {
        let mut events = self.server.audit(mark)?;
        events.retain(|e| e.user == "deliver" && e.is_write());
        Ok(events)
    }

    /// Waits for a write of an object of this kind since `mark`, and checks that there is only one.
    pub(crate) fn wrote_once(&self, mark: AuditMark, kind: &str) -> Result<()> {
        let writes = until("the edit in the audit log", || {
            let mut writes = self.writes(mark).map_err(|e| format!("{e:#}"))?;
            writes.retain(|w| w.resource == kind);
            match writes.len() {
                0 => Err("nothing".to_owned()),
                _ => Ok(writes),
            }
        })?;
        assert_eq!(writes.len(), 1, "{writes:?}");
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.task.abort();
        // Otherwise the deliverer of the next test would delete these objects, and that test would
        // see the deletions.
        for kind in [
            "wasmplugins",
            "trafficextensions",
            "envoyfilters",
            "envoyextensionpolicies",
            "configmaps",
        ] {
            let _ = self.kubectl(&["delete", kind, "--all", "--ignore-not-found"]);
        }
    }
}
