//! The webhook of the chart on a real API server that calls a real operator.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headgate_tests::chart::{self, NAMESPACE};
use headgate_tests::kube::ApiServer;
use headgate_tests::operator::{Operator, OperatorOptions};
use headgate_tests::pki::Pki;
use headgate_tests::policies::Cluster;
use headgate_tests::wait::until_within;
use serde_json::{Value, json};

/// The longest wait. The operator reads its files once a second, and the caches of the API server
/// take more time.
const LONG: Duration = Duration::from_secs(60);
const LABEL: &str = "headgate.dev/inject=enabled";

struct Rig {
    server: &'static ApiServer,
    ca: PathBuf,
}

impl Rig {
    /// Returns the Pod that the API server would create in `namespace`.
    fn create(&self, namespace: &str, pod: &Value, more: &[&str]) -> Result<String> {
        let space = format!("-n={namespace}");
        let mut arguments = vec!["create", "--filename=-", "--output=json", &space];
        arguments.extend(more);
        let kubeconfig = self.server.kubeconfig();
        self.server
            .kubectl_as(kubeconfig, &arguments, Some(&pod.to_string()))
    }

    fn init_containers(&self, namespace: &str, pod: &Value) -> Result<Vec<String>> {
        let created = self.create(namespace, pod, &["--dry-run=server"])?;
        let created: Value = serde_json::from_str(&created)?;
        let containers = created["spec"]["initContainers"].as_array();
        let names = containers.into_iter().flatten();
        Ok(names
            .filter_map(|container| Some(container["name"].as_str()?.to_owned()))
            .collect())
    }

    /// Returns the warning about a Pod. Fails if the webhook changes the Pod.
    fn warning(&self, namespace: &str, pod: &Value) -> Result<String> {
        let found = self.init_containers(namespace, pod)?;
        ensure!(found.is_empty(), "{found:?}");
        let refused = self.create(
            namespace,
            pod,
            &["--dry-run=server", "--warnings-as-errors"],
        );
        let refused = refused.err().context("no warning")?;
        Ok(format!("{refused:#}"))
    }

    fn until_injected(&self, operator: &Operator, namespace: &str) -> Result<()> {
        until_within(LONG, "an injected Pod", || {
            let found = self.init_containers(namespace, &pod());
            match found {
                Ok(found) if found == ["headgate", "envoy"] => Ok(()),
                other => Err(format!("{other:?}\n{}", operator.output())),
            }
        })
    }

    fn until_bundled(&self, operator: &Operator) -> Result<()> {
        let ca = fs::read_to_string(&self.ca)?;
        let template = "--output=go-template={{range .webhooks}}{{with .clientConfig.caBundle}}\
                        {{. | base64decode}}{{end}}{{end}}";
        let get = ["get", "mutatingwebhookconfiguration", "headgate", template];
        until_within(LONG, "the CA in the webhook", || {
            match self.server.kubectl(&get) {
                Ok(found) if found.trim() == ca.trim() => Ok(()),
                other => Err(format!("{other:?}\n{}", operator.output())),
            }
        })
    }
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "search-"},
        "spec": {"containers": [{
            "name": "search",
            "image": "example.com/none:1",
            "ports": [{"name": "http", "containerPort": 8080}],
            "readinessProbe": {"httpGet": {"port": "http"}},
        }]},
    })
}

/// Installs the chart's webhook with an address of this machine in place of the chart's Service.
fn install(server: &ApiServer, operator: &Operator) -> Result<()> {
    let values = Path::new(env!("CARGO_MANIFEST_DIR")).join("helm/good/defaults.yaml");
    let objects = chart::render(&values, &["--set=injection.enabled=true"])?;
    let webhook = objects
        .iter()
        .find(|object| object["kind"] == "MutatingWebhookConfiguration");
    let mut webhook = webhook.context("no webhook")?.clone();
    let address = operator.injection().context("no address of the webhook")?;
    let client = &mut webhook["webhooks"][0]["clientConfig"];
    let path = client["service"]["path"].as_str().context("no path")?;
    *client = json!({"url": format!("https://{address}{path}")});
    server.apply(&webhook.to_string())?;
    Ok(())
}

#[test]
fn pods_of_labelled_namespaces_get_an_envoy() -> Result<()> {
    let server = ApiServer::shared();
    server.install_crds()?;
    let cluster = Cluster::new(server);
    let system = cluster.namespace("system")?;
    let (shop, other) = (cluster.namespace("shop")?, cluster.namespace("other")?);
    server.kubectl(&["create", "namespace", NAMESPACE])?;
    for namespace in [&shop, NAMESPACE, "kube-system"] {
        server.kubectl(&["label", "namespace", namespace, LABEL])?;
    }
    let dir = tempfile::tempdir()?;
    let folder = dir.path().join("pki");
    let pki = Pki::new(folder.clone())?;
    let mut options = OperatorOptions::new("injection", &system);
    options.extra = pki.operator_arguments();
    options.extra.extend(
        [
            "--injection=127.0.0.1:0",
            "--injection-webhook=headgate",
            "--inject-arg=--image=headgate:first",
            "--inject-arg=--image=headgate:test",
        ]
        .map(str::to_owned),
    );
    let kubeconfig = server.user_kubeconfig("injection", Some("system:masters"))?;
    let operator = Operator::start(&kubeconfig, &options)?;
    let rig = Rig {
        server,
        ca: folder.join("ca.crt"),
    };
    install(server, &operator)?;
    rig.until_bundled(&operator)?;
    rig.until_injected(&operator, &shop)?;

    let created: Value = serde_json::from_str(&rig.create(&shop, &pod(), &[])?)?;
    let spec = &created["spec"];
    assert_eq!(spec["initContainers"][0]["image"], "headgate:test");
    let envoy = &spec["initContainers"][1];
    assert_eq!(envoy["restartPolicy"], "Always");
    assert_eq!(envoy["ports"][0]["name"], "http");
    assert_eq!(spec["containers"][0]["ports"][0]["name"], Value::Null);
    let probe = &spec["containers"][0]["readinessProbe"]["httpGet"];
    assert_eq!(probe["port"], 8080);

    // These namespaces lack the label, or are never injected into.
    let none: [&str; 0] = [];
    for namespace in [&other, NAMESPACE, "kube-system"] {
        // A service account is created a moment after its namespace.
        let found = until_within(LONG, "a Pod", || {
            let found = rig.init_containers(namespace, &pod());
            found.map_err(|error| format!("{error:#}"))
        })?;
        assert_eq!(found, none, "{namespace}");
    }
    // These Pods opt out. The API server doesn't call the webhook for a Pod with the label.
    let mut opted_out = pod();
    opted_out["metadata"]["labels"] = json!({"headgate.dev/inject": "disabled"});
    let more = ["--dry-run=server", "--warnings-as-errors"];
    let created = rig.create(&shop, &opted_out, &more)?;
    ensure!(!created.contains("initContainers"), "{created}");
    let mut opted_out = pod();
    opted_out["metadata"]["annotations"] = json!({"headgate.dev/inject": "disabled"});
    let warning = rig.warning(&shop, &opted_out)?;
    ensure!(warning.contains("its annotation"), "{warning}");
    // This Pod can't have an Envoy.
    let mut on_host = pod();
    on_host["spec"]["hostNetwork"] = json!(true);
    let warning = rig.warning(&shop, &on_host)?;
    ensure!(warning.contains("with hostNetwork"), "{warning}");
    // The Envoy shares the resources of the whole Pod, so it mustn't exceed them.
    let mut small = pod();
    let memory = json!({"memory": "16Mi"});
    small["spec"]["resources"] = json!({"requests": memory, "limits": memory});
    assert_eq!(rig.init_containers(&shop, &small)?, ["headgate", "envoy"]);

    // The operator writes the CA again if the webhook loses it, and if the CA changes.
    let lose = r#"[{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]"#;
    let patch = format!("--patch={lose}");
    let webhook = ["mutatingwebhookconfiguration", "headgate", "--type=json"];
    server.kubectl(&[&["patch"], &webhook[..], &[&patch]].concat())?;
    rig.until_bundled(&operator)?;
    let before = fs::read_to_string(&rig.ca)?;
    Pki::new(folder)?;
    ensure!(fs::read_to_string(&rig.ca)? != before, "the same CA");
    rig.until_bundled(&operator)?;
    rig.until_injected(&operator, &shop)?;

    operator.kill()?;
    let found = rig.init_containers(&shop, &pod());
    assert_eq!(found.ok().as_deref(), Some(&[][..]));
    Ok(())
}
