//! Objects for other control planes, against the API server and the definitions that those control planes publish.
//!
//! The deliverer runs here as the leader runs it, with the rights that it needs and no more. It looks at the whole
//! cluster, so these tests take turns.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use headgate::kubernetes::cluster::{
    Cluster, Gateway, ObjectKey, Pod, PolicyObject, Route, Service,
};
use headgate::kubernetes::deliver::{self, Delivered, Installed, Settings, View};
use headgate::kubernetes::resolve;
use headgate::plan::{TargetKind, TargetRef};
use headgate::validate::check_file;
use headgate_tests::chart;
use headgate_tests::kube::api_server::client;
use headgate_tests::kube::audit::AuditEvent;
use headgate_tests::kube::{ApiServer, programs};
use headgate_tests::wait::{until, until_within};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::task::JoinHandle;

/// The rights that the deliverer needs.
const RIGHTS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: deliver}
rules:
- apiGroups: [extensions.istio.io]
  resources: [wasmplugins]
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

/// How long a watch may take to notice that a kind is served: [`RETRY`], and what a slow machine adds.
const NOTICED: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(1);
/// How long the API server may take to clean up behind a definition.
const GONE: Duration = Duration::from_secs(240);

fn policy(namespace: &str, name: &str, target: &str, slots: u32) -> String {
    format!(
        "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec:\n  targetRefs: [{target}]\n  parallelism: {{perEndpoint: {slots}}}\n  strategy: {{type: \
         MaxQueueLength}}\n  types: [{{name: default}}]\n"
    )
}

const SEARCH: &str = "{group: '', kind: Service, name: search}";

/// A server of modules that can be told to have none.
struct Modules {
    address: SocketAddr,
    serves: Arc<AtomicBool>,
}

const MODULE: &[u8] = b"a module";

fn sha256() -> String {
    let digest = Sha256::digest(MODULE);
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

impl Modules {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let serves = Arc::new(AtomicBool::new(true));
        let serving = Arc::clone(&serves);
        let path = format!("GET /modules/{}.wasm HTTP/1.1\r\n", sha256());
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut request = [0; 2_048];
                let length = stream.read(&mut request).unwrap_or(0);
                let known = request[..length].starts_with(path.as_bytes());
                let answer = match known && serving.load(Ordering::Relaxed) {
                    true => [
                        format!(
                            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
                            MODULE.len()
                        )
                        .as_bytes(),
                        MODULE,
                    ]
                    .concat(),
                    false => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec(),
                };
                let _ = stream.write_all(&answer);
            }
        });
        Ok(Self { address, serves })
    }
}

/// A deliverer at work, in a cluster with nothing of its own at first.
struct Stage {
    server: &'static ApiServer,
    namespace: String,
    modules: Modules,
    cluster: Cluster,
    views: watch::Sender<View>,
    delivered: watch::Receiver<Arc<Delivered>>,
    task: JoinHandle<()>,
    _turn: MutexGuard<'static, ()>,
}

async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

fn settings(modules: &Modules) -> Settings {
    Settings {
        istio: true,
        envoy_gateway: true,
        config_map_module: Some("/headgate/headgate-{hash}.wasm".into()),
        modules_url: format!("http://{}", modules.address),
        retry: RETRY,
    }
}

fn view(cluster: &Cluster) -> View {
    View {
        plan: Arc::new(resolve::plan(cluster)),
        cluster: Arc::new(cluster.clone()),
        module_sha256: sha256(),
    }
}

fn install(server: &ApiServer, project: &str) -> Result<()> {
    let file = format!("--filename={}", chart::crds(project)?);
    server.kubectl(&["apply", "--server-side", "--force-conflicts", &file])?;
    server.wait_for_crds()
}

/// Removes the one definition of Istio's that is delivered to. The API server cleans up behind each that goes, for which
/// it makes its description of all others anew, so this may take a minute.
fn remove_wasm_plugins(server: &ApiServer) -> Result<()> {
    let arguments = [
        "delete",
        "crd",
        "wasmplugins.extensions.istio.io",
        "--ignore-not-found",
        "--wait=false",
    ];
    server.kubectl(&arguments)?;
    until_within(GONE, "an end of the definition", || {
        let left = server.kubectl(&["get", arguments[1], arguments[2], "--ignore-not-found"]);
        match left {
            Ok(left) if left.trim().is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
}

/// The API server with everybody's CRDs, which are installed once.
fn equipped() -> Result<&'static ApiServer> {
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
    /// With everybody's CRDs.
    async fn set() -> Result<Self> {
        let turn = turn().await;
        Self::with(equipped()?, turn).await
    }

    async fn with(server: &'static ApiServer, turn: MutexGuard<'static, ()>) -> Result<Self> {
        let modules = Modules::start()?;
        let cluster = Cluster::default();
        let (views, _) = watch::channel(view(&cluster));
        let (send, delivered) = watch::channel(Arc::default());
        let user = client(&server.user_kubeconfig("deliver", None)?).await?;
        let run = deliver::run(user, settings(&modules), views.subscribe(), send);
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

    fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let namespace = format!("--namespace={}", self.namespace);
        self.server
            .kubectl(&[arguments, &[namespace.as_str()]].concat())
    }

    /// Applies a policy and makes it known to the deliverer's next view, as the operator does.
    fn policy(&mut self, yaml: &str) -> Result<()> {
        self.server.apply(yaml)?;
        let report = check_file("policy.yaml", yaml.as_bytes());
        let valid = report.policies().next().context("a valid policy")?.clone();
        let (name, namespace) = (valid.name.clone(), valid.namespace.clone());
        let object = self.kubectl(&["get", "admissionpolicy", &name, "--output=json"])?;
        let object: Value = serde_json::from_str(&object)?;
        self.cluster.policies.insert(
            ObjectKey::new(namespace, name),
            PolicyObject {
                uid: object["metadata"]["uid"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                generation: object["metadata"]["generation"]
                    .as_i64()
                    .unwrap_or_default(),
                targets: valid.targets.clone(),
                checked: Ok(valid),
                last_good: None,
            },
        );
        Ok(())
    }

    /// Service `search` with one Pod.
    fn search(&mut self) {
        let labels = BTreeMap::from([("app".to_owned(), "search".to_owned())]);
        let selector = labels.clone();
        self.cluster.services.insert(
            ObjectKey::new(&self.namespace, "search"),
            Service { selector },
        );
        self.cluster.pods.insert(
            ObjectKey::new(&self.namespace, "search-1"),
            Pod {
                labels,
                target: None,
                ready: true,
            },
        );
    }

    fn show(&self) {
        self.views.send_replace(view(&self.cluster));
    }

    /// The only object of this kind in this test's namespace.
    fn only(&self, kind: &str) -> Result<Value, String> {
        let all = self.all(kind).map_err(|e| format!("{e:#}"))?;
        match &all[..] {
            [one] => Ok(one.clone()),
            _ => Err(format!("{} {kind}", all.len())),
        }
    }

    /// All delivered objects of this kind in this test's namespace.
    fn all(&self, kind: &str) -> Result<Vec<Value>> {
        let list = self.kubectl(&[
            "get",
            kind,
            "--selector=app.kubernetes.io/managed-by=headgate",
            "--output=json",
        ])?;
        let list: Value = serde_json::from_str(&list)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    fn wait_for(&self, kind: &str, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        until_within(NOTICED, what, || {
            let object = self.only(kind)?;
            match is(&object) {
                true => Ok(object),
                false => Err(object.to_string()),
            }
        })
    }

    fn wait_until_gone(&self, kind: &str) -> Result<()> {
        until_within(NOTICED, &format!("no {kind}"), || {
            match self.all(kind).map_err(|e| format!("{e:#}"))?.len() {
                0 => Ok(()),
                n => Err(format!("{n} there")),
            }
        })
    }

    /// What a policy's `Programmed` says, once it is so.
    async fn programmed(&mut self, policy: &str, status: bool, part: &str) -> Result<String> {
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

    /// Writes of the deliverer since `mark`.
    fn writes(&self, mark: headgate_tests::kube::audit::AuditMark) -> Result<Vec<AuditEvent>> {
        let mut events = self.server.audit(mark)?;
        events.retain(|e| e.user == "deliver" && e.is_write());
        Ok(events)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.task.abort();
        // The next test's deliverer would delete them, and be seen to.
        for kind in ["wasmplugins", "envoyextensionpolicies", "configmaps"] {
            let _ = self.kubectl(&["delete", kind, "--all", "--ignore-not-found"]);
        }
    }
}

/// One gateway of each control plane, with and without routes, Services and Pods, and every example policy.
#[tokio::test(flavor = "multi_thread")]
async fn everything_passes_the_definitions_that_others_publish() -> Result<()> {
    let _turn = turn().await;
    let server = equipped()?;
    let namespace = server.namespace("dry-run")?;
    let installed = Installed {
        istio: true,
        envoy_gateway: true,
        classes: BTreeMap::from([
            ("istio".to_owned(), "istio.io/gateway-controller".to_owned()),
            (
                "eg".to_owned(),
                "gateway.envoyproxy.io/gatewayclass-controller".to_owned(),
            ),
        ]),
    };
    let settings = settings(&Modules::start()?);
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    for entry in std::fs::read_dir(programs::repository().join("examples/policies"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        let report = check_file("policy.yaml", &std::fs::read(&path)?);
        for example in report.policies() {
            let cluster = everywhere(example, &namespace);
            let plan = resolve::plan(&cluster);
            let wanted = deliver::wanted(&plan, &cluster, &settings, &installed, &sha256());
            assert_eq!(wanted.unwanted, [], "{}", path.display());
            let objects: Vec<String> = wanted
                .objects
                .values()
                .map(|o| o.value.to_string())
                .collect();
            for object in wanted.objects.values() {
                *kinds.entry(object.adapter.kind().to_owned()).or_default() += 1;
            }
            let arguments = [
                "apply",
                "--server-side",
                "--dry-run=server",
                "--validate=strict",
                "--filename=-",
            ];
            server
                .kubectl_as(
                    server.kubeconfig(),
                    &arguments,
                    Some(&objects.join("\n---\n")),
                )
                .with_context(|| path.display().to_string())?;
        }
    }
    for kind in ["WasmPlugin", "EnvoyExtensionPolicy", "ConfigMap"] {
        assert!(kinds.get(kind).is_some_and(|&n| n > 5), "{kinds:?}");
    }
    Ok(())
}

/// A cluster in which this policy is attached to everything that a policy can be attached to.
fn everywhere(example: &headgate::validate::ValidPolicy, namespace: &str) -> Cluster {
    let mut cluster = Cluster {
        served_kinds: vec![
            TargetKind::Gateway,
            TargetKind::HttpRoute,
            TargetKind::GrpcRoute,
        ],
        ..Cluster::default()
    };
    let key = |name: &str| ObjectKey::new(namespace, name);
    let target = |kind: TargetKind, name: &str| TargetRef {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|&(k, v)| (k.to_owned(), v.to_owned()))
            .collect()
    };
    let selector = labels(&[("app", "search")]);
    cluster.services.insert(key("search"), Service { selector });
    let gateways = [
        ("of-istio", "istio"),
        ("of-eg", "eg"),
        ("with-routes", "eg"),
        ("both", "eg"),
    ];
    for (name, class) in gateways {
        let class = class.to_owned();
        cluster.gateways.insert(key(name), Gateway { class });
    }
    let route = |gateway: &str| Route {
        gateways: vec![key(gateway)],
        backends: vec![key("search")],
    };
    let http = target(TargetKind::HttpRoute, "shop");
    let grpc = target(TargetKind::GrpcRoute, "shop");
    let of_both = target(TargetKind::HttpRoute, "of-both");
    cluster.routes.insert(http.clone(), route("with-routes"));
    cluster.routes.insert(grpc.clone(), route("with-routes"));
    cluster.routes.insert(of_both.clone(), route("both"));
    let targets = [
        target(TargetKind::Service, "search"),
        TargetRef::pods(namespace, &labels(&[("app", "other"), ("tier", "web")])),
        target(TargetKind::Gateway, "of-istio"),
        target(TargetKind::Gateway, "of-eg"),
        target(TargetKind::Gateway, "both"),
        of_both,
        http,
        grpc,
    ];
    for (i, target) in targets.into_iter().enumerate() {
        let mut policy = example.clone();
        policy.namespace = namespace.to_owned();
        policy.name = format!("{}-{i}", policy.name);
        policy.stage.policy = policy.full_name();
        policy.targets = vec![target.clone()];
        let object = PolicyObject {
            uid: format!("uid-{i}"),
            generation: 1,
            targets: vec![target],
            checked: Ok(policy.clone()),
            last_good: None,
        };
        cluster.policies.insert(key(&policy.name), object);
    }
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policys_object_lives_as_long_as_the_policy() -> Result<()> {
    let mut stage = Stage::set().await?;
    let namespace = stage.namespace.clone();
    stage.search();
    stage.policy(&policy(&namespace, "p", SEARCH, 3))?;
    stage.show();
    let slots = |object: &Value| object["spec"]["pluginConfig"]["stages"][0]["parallelism"].clone();
    let made = stage.wait_for("wasmplugins", "the plugin", |_| true)?;
    assert_eq!(slots(&made), 3);
    let owner = &made["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"]),
        (&"AdmissionPolicy".into(), &"p".into())
    );
    let managers = stage.kubectl(&[
        "get",
        "wasmplugins",
        "--show-managed-fields",
        "--output=jsonpath={.items[*].metadata.managedFields[*].manager}",
    ])?;
    assert_eq!(managers, "headgate");
    let file = stage.wait_for("configmaps", "the file", |_| true)?;
    assert_eq!(file["metadata"]["name"], "headgate-service-search");
    stage.programmed("p", true, "WasmPlugin").await?;

    stage.policy(&policy(&namespace, "p", SEARCH, 5))?;
    stage.show();
    let changed = stage.wait_for("wasmplugins", "five slots", |o| slots(o) == 5)?;
    assert_eq!(
        changed["metadata"]["uid"], made["metadata"]["uid"],
        "changed, not made anew"
    );

    // Somebody deletes it: it comes back without a new plan.
    stage.kubectl(&["delete", "wasmplugins", "--all"])?;
    let again = stage.wait_for("wasmplugins", "another one", |o| {
        o["metadata"]["uid"] != made["metadata"]["uid"]
    })?;
    assert_eq!(slots(&again), 5);

    stage.cluster.policies.clear();
    stage.show();
    stage.wait_until_gone("wasmplugins")?;
    stage.wait_until_gone("configmaps")
}

/// Kubernetes itself removes an object whose policies are gone, operator or none.
#[tokio::test(flavor = "multi_thread")]
async fn the_garbage_collector_knows_the_owner() -> Result<()> {
    let mut stage = Stage::set().await?;
    let namespace = stage.namespace.clone();
    stage.search();
    stage.policy(&policy(&namespace, "p", SEARCH, 3))?;
    stage.show();
    stage.wait_for("wasmplugins", "the plugin", |_| true)?;
    stage.task.abort();
    stage.server.restart_controllers()?;
    stage.kubectl(&["delete", "admissionpolicy", "p"])?;
    stage.wait_until_gone("wasmplugins")
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_when_nothing_changed() -> Result<()> {
    let mut stage = Stage::set().await?;
    let namespace = stage.namespace.clone();
    stage.search();
    stage.policy(&policy(&namespace, "p", SEARCH, 3))?;
    stage.show();
    stage.programmed("p", true, "WasmPlugin").await?;
    stage.wait_for("configmaps", "the file", |_| true)?;

    let mark = stage.server.audit_mark();
    // A Pod that makes no difference, policies that are judged again, an object that somebody adds to.
    for i in 0..5 {
        let pod = ObjectKey::new(&namespace, format!("other-{i}"));
        stage.cluster.pods.insert(pod, Pod::default());
        stage.show();
        stage.kubectl(&[
            "annotate",
            "wasmplugins",
            "--all",
            "--overwrite",
            &format!("theirs={i}"),
        ])?;
    }
    // All of that is through when what comes after it is.
    stage.policy(&policy(&namespace, "p", SEARCH, 4))?;
    stage.show();
    stage.wait_for("wasmplugins", "four slots", |o| {
        o["spec"]["pluginConfig"]["stages"][0]["parallelism"] == 4
    })?;
    let written = |stage: &Stage| -> Result<Vec<(String, String)>, String> {
        let writes = stage.writes(mark).map_err(|e| format!("{e:#}"))?;
        let mut writes: Vec<_> = writes.into_iter().map(|w| (w.verb, w.resource)).collect();
        writes.sort();
        match writes.len() {
            // The audit log may lag behind.
            0 | 1 => Err(format!("{writes:?}")),
            _ => Ok(writes),
        }
    };
    let writes = until("the writes in the audit log", || written(&stage))?;
    let patch = |resource: &str| ("patch".to_owned(), resource.to_owned());
    assert_eq!(writes, [patch("configmaps"), patch("wasmplugins")]);
    let plugin = stage.only("wasmplugins").map_err(|e| anyhow!(e))?;
    assert_eq!(
        plugin["metadata"]["annotations"]["theirs"], "4",
        "what others add is theirs"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_of_somebody_elses_is_left_to_them() -> Result<()> {
    let mut stage = Stage::set().await?;
    let namespace = stage.namespace.clone();
    stage.search();
    stage.policy(&policy(&namespace, "p", SEARCH, 3))?;
    stage.show();
    let plugin = stage.wait_for("wasmplugins", "the plugin", |_| true)?;
    let name = plugin["metadata"]["name"]
        .as_str()
        .context("name")?
        .to_owned();
    stage.programmed("p", true, "WasmPlugin").await?;

    let mark = stage.server.audit_mark();
    let theirs = r#"{"spec": {"phase": "AUTHN"}}"#;
    let patch = [
        "patch",
        "wasmplugin",
        &name,
        "--type=merge",
        "--field-manager=somebody",
        "-p",
        theirs,
    ];
    stage.kubectl(&patch)?;
    let said = stage.programmed("p", false, "conflict").await?;
    assert!(
        said.contains("\"somebody\"") && said.contains(".spec.phase"),
        "{said}"
    );
    for i in 0..3 {
        let pod = ObjectKey::new(&namespace, format!("other-{i}"));
        stage.cluster.pods.insert(pod, Pod::default());
        stage.show();
    }
    // A ConfigMap shows that those rounds are through.
    stage.kubectl(&["delete", "configmap", "headgate-service-search"])?;
    stage.wait_for("configmaps", "the file again", |_| true)?;
    let plugin = stage.only("wasmplugins").map_err(|e| anyhow!(e))?;
    assert_eq!(plugin["spec"]["phase"], "AUTHN");
    let tries = stage.writes(mark)?;
    let tries: Vec<_> = tries
        .iter()
        .filter(|w| w.resource == "wasmplugins")
        .collect();
    assert_eq!(
        tries.len(),
        1,
        "refused once, and not asked again: {tries:?}"
    );
    assert_eq!(tries[0].code, 409);

    // They give it up.
    stage.kubectl(&["delete", "wasmplugin", &name])?;
    stage.wait_for("wasmplugins", "ours", |o| o["spec"]["phase"] == "STATS")?;
    stage.programmed("p", true, "WasmPlugin").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_somebody_elses_is_not_taken() -> Result<()> {
    let mut stage = Stage::set().await?;
    let namespace = stage.namespace.clone();
    stage.kubectl(&[
        "create",
        "configmap",
        "headgate-service-search",
        "--from-literal=theirs=1",
    ])?;
    stage.search();
    stage.policy(&policy(&namespace, "p", SEARCH, 3))?;
    stage.show();
    let said = stage.programmed("p", false, "is not Headgate's").await?;
    assert!(said.contains("ConfigMap"), "{said}");
    stage.cluster.policies.clear();
    stage.show();
    stage.wait_until_gone("wasmplugins")?;
    let theirs = stage.kubectl(&[
        "get",
        "configmap",
        "headgate-service-search",
        "--output=json",
    ])?;
    let theirs: Value = serde_json::from_str(&theirs)?;
    assert_eq!(theirs["data"], serde_json::json!({"theirs": "1"}));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_may_come_later_and_go() -> Result<()> {
    /// Whatever happens here, the other tests find Istio.
    struct Reinstall(&'static ApiServer);
    impl Drop for Reinstall {
        fn drop(&mut self) {
            let _ = install(self.0, "istio");
        }
    }
    let turn = turn().await;
    let server = equipped()?;
    let _reinstall = Reinstall(server);
    remove_wasm_plugins(server)?;
    let mut stage = Stage::with(server, turn).await?;
    let namespace = stage.namespace.clone();
    stage.search();
    stage.policy(&policy(&namespace, "p", SEARCH, 3))?;
    stage.show();
    let said = stage.programmed("p", true, "ConfigMap").await?;
    assert!(!said.contains("WasmPlugin"), "{said}");
    install(stage.server, "istio")?;
    stage.programmed("p", true, "WasmPlugin").await?;
    stage.wait_for("wasmplugins", "the plugin", |_| true)?;
    remove_wasm_plugins(stage.server)?;
    let policy = format!("{namespace}/p");
    let without = |d: &Arc<Delivered>| {
        let said = d.programmed(&policy);
        said.is_some_and(|(is, _, message)| is && !message.contains("WasmPlugin"))
    };
    let gone = stage.delivered.wait_for(without);
    tokio::time::timeout(NOTICED, gone).await??;
    install(stage.server, "istio")?;
    stage.wait_for("wasmplugins", "the plugin again", |_| true)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_are_sent_only_where_the_module_is() -> Result<()> {
    let mut stage = Stage::set().await?;
    let namespace = stage.namespace.clone();
    stage.modules.serves.store(false, Ordering::Relaxed);
    stage.search();
    stage.policy(&policy(&namespace, "p", SEARCH, 3))?;
    stage.show();
    stage
        .programmed("p", false, "answers 404 Not Found")
        .await?;
    assert_eq!(stage.all("wasmplugins")?, [] as [Value; 0]);
    stage.modules.serves.store(true, Ordering::Relaxed);
    stage.programmed("p", true, "WasmPlugin").await?;
    // An edit sends nobody to another module, so it waits for none.
    stage.modules.serves.store(false, Ordering::Relaxed);
    stage.policy(&policy(&namespace, "p", SEARCH, 4))?;
    stage.show();
    stage.wait_for("wasmplugins", "four slots", |o| {
        o["spec"]["pluginConfig"]["stages"][0]["parallelism"] == 4
    })?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_envoy_gateway_says_comes_back() -> Result<()> {
    let mut stage = Stage::set().await?;
    let namespace = stage.namespace.clone();
    let class = "eg".to_owned();
    stage.cluster.served_kinds = vec![TargetKind::Gateway];
    stage
        .cluster
        .gateways
        .insert(ObjectKey::new(&namespace, "edge"), Gateway { class });
    let edge = "{group: gateway.networking.k8s.io, kind: Gateway, name: edge}";
    stage.policy(&policy(&namespace, "p", edge, 3))?;
    stage.show();
    let object = stage.wait_for("envoyextensionpolicies", "the policy", |_| true)?;
    assert_eq!(object["spec"]["wasm"][0]["failOpen"], true);
    stage
        .programmed("p", false, "has not accepted it yet")
        .await?;
    let name = object["metadata"]["name"]
        .as_str()
        .context("name")?
        .to_owned();
    let status = |accepted: &str, generation: i64| {
        serde_json::json!({"status": {"ancestors": [{
            "ancestorRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"},
            "controllerName": "gateway.envoyproxy.io/gatewayclass-controller",
            "conditions": [{
                "type": "Accepted", "status": accepted, "reason": "Because", "message": "of this",
                "lastTransitionTime": "2026-03-01T12:00:00Z", "observedGeneration": generation,
            }],
        }]}})
        .to_string()
    };
    let say = |stage: &Stage, accepted: &str| {
        let body = status(accepted, 1);
        stage.kubectl(&[
            "patch",
            "envoyextensionpolicy",
            &name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &body,
        ])
    };
    say(&stage, "True")?;
    stage.programmed("p", true, "EnvoyExtensionPolicy").await?;
    say(&stage, "False")?;
    stage
        .programmed("p", false, "Envoy Gateway refuses it: Because: of this")
        .await?;
    Ok(())
}
