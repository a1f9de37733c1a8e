//! The Helm chart against a real API server. The server accepts its objects, and a release that is
//! uninstalled leaves nothing behind.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use headgate_tests::chart::{self, NAMESPACE};
use headgate_tests::kube::ApiServer;
use headgate_tests::operator::{Operator, OperatorOptions};
use headgate_tests::pki::Pki;
use headgate_tests::wait;
use serde_json::{Value, json};

/// Every stored object of the cluster except Events: `Kind version namespace/name` and its uid.
type Inventory = BTreeMap<String, String>;

/// Returns the inventory. Fails while a CustomResourceDefinition is being deleted, because its
/// objects are listed but can't be read any more.
fn inventory(server: &ApiServer) -> Result<Inventory> {
    let resources = server.kubectl(&["api-resources", "--verbs=list", "--output=name"])?;
    // Events expire by themselves. Metrics and component statuses are computed, not stored.
    let resources: Vec<&str> = resources
        .lines()
        .filter(|name| !name.starts_with("events") && !name.ends_with("metrics.k8s.io"))
        .filter(|name| *name != "componentstatuses")
        .collect();
    // One kubectl lists all resources, because each kubectl first asks the server which resources
    // it has.
    let resources = resources.join(",");
    let list = server.get(&[&resources, "--all-namespaces"])?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entry = |object: &Value| {
        let [kind, version] = ["kind", "apiVersion"].map(|key| text(&object[key]));
        let [namespace, name, uid] =
            ["namespace", "name", "uid"].map(|key| text(&object["metadata"][key]));
        (format!("{kind} {version} {namespace}/{name}"), uid)
    };
    Ok(list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(entry)
        .collect())
}

/// Returns the keys that are in only one of the two inventories.
fn difference(before: &Inventory, after: &Inventory) -> Vec<String> {
    let only = |a: &Inventory, b: &Inventory, sign: char| -> Vec<String> {
        a.keys()
            .filter(|key| !b.contains_key(*key))
            .map(|key| format!("{sign} {key}"))
            .collect()
    };
    [only(after, before, '+'), only(before, after, '-')].concat()
}

/// Waits until the cluster has the same objects as before, except for those whose key contains a
/// text of `ignored`. Controllers need a moment to remove the dependents of deleted objects.
fn wait_for_nothing_left(server: &ApiServer, before: &Inventory, ignored: &[&str]) {
    wait::until("nothing left by the release", || {
        let now = inventory(server).map_err(|error| format!("{error:#}"))?;
        let rest: Vec<String> = difference(before, &now)
            .into_iter()
            .filter(|line| !ignored.iter().any(|part| line.contains(part)))
            .collect();
        if rest.is_empty() {
            Ok(())
        } else {
            Err(rest.join("\n"))
        }
    })
    .unwrap();
}

fn helm(server: &ApiServer, command: &str, arguments: &[&str]) -> String {
    let folder = chart::folder();
    let mut all = vec![command, "headgate"];
    if command == "install" || command == "upgrade" {
        all.push(folder.to_str().unwrap());
    }
    all.extend(["--namespace", NAMESPACE]);
    all.extend(arguments);
    server.helm(&all).unwrap()
}

/// A release in a namespace of its own, on the API server that the tests share. Only one release
/// exists at a time, because its cluster-wide objects have fixed names.
struct Release {
    server: &'static ApiServer,
    namespace: String,
}

impl Release {
    fn new() -> Self {
        let server = ApiServer::shared();
        let namespace = server.namespace("chart").unwrap();
        Self { server, namespace }
    }

    fn helm(&self, arguments: &[&str]) {
        let all = [arguments, &["--namespace", &self.namespace]].concat();
        self.server.helm(&all).unwrap();
    }

    /// Upgrades to this chart, or installs it.
    fn upgrade(&self, arguments: &[&str]) {
        let folder = chart::folder().display().to_string();
        self.helm(&[&["upgrade", "--install", "headgate", &folder], arguments].concat());
    }
}

/// Uninstalling a release leaves the CRD, and no release of another namespace can own it. So `drop`
/// deletes the CRD, too.
impl Drop for Release {
    fn drop(&mut self) {
        let crd = "crd/admissionpolicies.headgate.dev";
        let uninstall = [
            "uninstall",
            "headgate",
            "--no-hooks",
            "--namespace",
            &self.namespace,
        ];
        for result in [
            self.server.helm(&uninstall),
            self.server.kubectl(&["delete", crd, "--ignore-not-found"]),
        ] {
            if let Err(error) = result {
                println!("{error:#}");
            }
        }
    }
}

const POLICY: &str = "
apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {name: search, namespace: default}
spec:
  targetRefs: [{group: '', kind: Service, name: search}]
  parallelism: {total: 20}
  strategy: {type: Bouncer}
  types: [{name: default, slo: {p50: 18ms, p90: 50ms}}]
";

#[test]
fn the_api_server_accepts_all_that_is_rendered() {
    let server = ApiServer::shared();
    for project in ["prometheus-operator", "cert-manager"] {
        chart::install_crds(server, project).unwrap();
    }
    // Some values list the last two namespaces in `watchNamespaces`.
    for namespace in [NAMESPACE, "shop", "envoy-gateway-system"] {
        server.kubectl(&["create", "namespace", namespace]).unwrap();
    }
    let values = Path::new(env!("CARGO_MANIFEST_DIR")).join("helm/good");
    for file in fs::read_dir(values).unwrap() {
        let file = file.unwrap().path();
        let folder = chart::folder();
        let rendered = chart::helm(&[
            "template",
            "headgate",
            folder.to_str().unwrap(),
            "--namespace",
            NAMESPACE,
            "--values",
            file.to_str().unwrap(),
            "--api-versions=monitoring.coreos.com/v1",
            // Without its service account a Pod is refused. `k8s::permissions` applies the hooks
            // for real.
            "--no-hooks",
        ])
        .unwrap();
        let objects = chart::objects(&rendered).unwrap().len();
        let answer = server
            .dry_run(&rendered)
            .unwrap_or_else(|error| panic!("{}: {error:#}", file.display()));
        assert_eq!(answer.lines().count(), objects, "{answer}");
    }
}

/// Returns the IP families of a Service of the chart.
fn families(server: &ApiServer, service: &str) -> Value {
    let service = server
        .get(&["service", service, "--namespace", NAMESPACE])
        .unwrap();
    service["spec"]["ipFamilies"].clone()
}

/// Argo CD and Flux render the chart and apply it server-side, again and again. An operator writes
/// into two of the applied objects: its Lease, and the webhook, which gets the CA.
#[test]
fn applying_the_chart_again_changes_nothing() {
    let server = ApiServer::start_with_services("10.96.0.0/16,fd00:96::/112").unwrap();
    server.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    let chart = chart::helm(&[
        "template",
        "headgate",
        chart::folder().to_str().unwrap(),
        "--namespace",
        NAMESPACE,
        "--no-hooks",
        "--set=injection.enabled=true,service.ipFamilyPolicy=PreferDualStack",
    ])
    .unwrap();
    let as_gitops = |command: &str| {
        let manager = "--field-manager=gitops";
        let arguments = [command, "--server-side", manager, "--filename=-"];
        server.kubectl_as(server.kubeconfig(), &arguments, Some(&chart))
    };
    let apply_twice = || {
        for _ in 0..2 {
            as_gitops("apply").unwrap();
        }
    };
    // `kubectl diff` exits with code 1 if there is a difference.
    let differs_in_nothing = || assert_eq!(as_gitops("diff").unwrap(), "");
    apply_twice();
    differs_in_nothing();

    let folder = tempfile::tempdir().unwrap();
    let pki = Pki::new(folder.path().join("pki")).unwrap();
    let mut options = OperatorOptions::new("headgate-0", NAMESPACE);
    options.extra = pki.operator_arguments();
    let webhook = [
        "--injection=127.0.0.1:0",
        "--injection-webhook=headgate",
        "--inject-arg=--image=headgate:test",
    ];
    options.extra.extend(webhook.map(str::to_owned));
    let kubeconfig = server
        .service_account_kubeconfig(NAMESPACE, "headgate")
        .unwrap();
    let operator = Operator::start(&kubeconfig, &options).unwrap();
    operator.until_leading().unwrap();
    let ca = || {
        let webhook = server
            .get(&["mutatingwebhookconfiguration", "headgate"])
            .unwrap();
        webhook["webhooks"][0]["clientConfig"]["caBundle"].clone()
    };
    wait::until("the CA in the webhook", || match ca() {
        Value::Null => Err(operator.output()),
        _ => Ok(()),
    })
    .unwrap();
    let written = ca();
    differs_in_nothing();
    apply_twice();
    differs_in_nothing();
    assert_eq!(ca(), written);
    operator.stop().unwrap();

    assert_eq!(families(&server, "headgate"), json!(["IPv4", "IPv6"]));
    assert_eq!(families(&server, "headgate-metrics"), json!(["IPv4"]));
}

#[test]
fn a_cluster_of_ipv6_alone_takes_the_chart() {
    let server = ApiServer::start_with_services("fd00:96::/112").unwrap();
    for (command, policy) in [("install", ""), ("upgrade", "PreferDualStack")] {
        let policy = format!("--set=service.ipFamilyPolicy={policy}");
        helm(&server, command, &["--create-namespace", &policy]);
        for service in ["headgate", "headgate-metrics"] {
            assert_eq!(families(&server, service), json!(["IPv6"]), "{policy}");
        }
    }
}

#[test]
fn roles_of_a_namespace_include_its_policies() {
    let release = Release::new();
    let server = release.server;
    release.upgrade(&[]);
    for role in ["edit", "view"] {
        let (role_argument, user) = (format!("--clusterrole={role}"), format!("--user={role}er"));
        let binding = [
            "create",
            "rolebinding",
            role,
            &role_argument,
            &user,
            "--namespace=default",
        ];
        server.kubectl(&binding).unwrap();
    }
    // `kubectl auth can-i` exits with code 1 for "no".
    let can = |user: &str, verb: &str, namespace: &str| {
        let (user, namespace) = (format!("--as={user}"), format!("--namespace={namespace}"));
        let question = [
            "auth",
            "can-i",
            verb,
            "admissionpolicies",
            &user,
            &namespace,
        ];
        server.kubectl(&question).is_ok()
    };
    wait::until("the roles to be aggregated", || {
        match (
            can("editer", "create", "default"),
            can("viewer", "watch", "default"),
        ) {
            (true, true) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap();
    assert!(can("editer", "list", "default") && can("editer", "delete", "default"));
    assert!(!can("viewer", "create", "default"));
    let own = &release.namespace;
    assert!(!can("editer", "create", own) && !can("viewer", "watch", own));
}

#[test]
fn a_release_loses_nothing_and_leaves_nothing() {
    let server = ApiServer::start().unwrap();
    server.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    // This is the strictest Pod security standard of Kubernetes.
    server
        .kubectl(&[
            "label",
            "namespace",
            NAMESPACE,
            "pod-security.kubernetes.io/enforce=restricted",
        ])
        .unwrap();
    // A controller creates these objects a moment after the namespace.
    wait::until("the namespace's own objects", || {
        server
            .kubectl(&[
                "get",
                "serviceaccount/default",
                "configmap/kube-root-ca.crt",
                "--namespace",
                NAMESPACE,
            ])
            .map_err(|error| format!("{error:#}"))
    })
    .unwrap();
    let before = inventory(&server).unwrap();

    helm(&server, "install", &[]);
    let installed = inventory(&server).unwrap();
    assert!(
        difference(&before, &installed).len() > 10,
        "{:?}",
        difference(&before, &installed)
    );
    wait::until("two Pods in a restricted namespace", || {
        let pods = server.get(&["pods", "--namespace", NAMESPACE]).unwrap();
        match pods["items"].as_array().map_or(0, Vec::len) {
            2 => Ok(()),
            n => Err(format!("{n} Pods")),
        }
    })
    .unwrap();
    // The CRD is served a moment after it is created.
    wait::until("the API server to take a policy", || {
        server.apply(POLICY).map_err(|error| format!("{error:#}"))
    })
    .unwrap();
    let policy = server.get(&["admissionpolicy", "search"]).unwrap();

    // Upgrades and rollbacks keep policies.
    helm(&server, "upgrade", &["--set", "replicas=3,log.level=debug"]);
    let deployment = server
        .get(&["deployment", "headgate", "--namespace", NAMESPACE])
        .unwrap();
    assert_eq!(deployment["spec"]["replicas"], 3);
    helm(&server, "rollback", &["1"]);
    let deployment = server
        .get(&["deployment", "headgate", "--namespace", NAMESPACE])
        .unwrap();
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_eq!(server.get(&["admissionpolicy", "search"]).unwrap(), policy);

    // Uninstalling a release leaves the CRD and the policies. No node could run the hook's Job.
    helm(&server, "uninstall", &["--no-hooks"]);
    assert_eq!(server.get(&["admissionpolicy", "search"]).unwrap(), policy);
    let kept = [
        "AdmissionPolicy headgate.dev/v1alpha1 default/search",
        "/admissionpolicies.headgate.dev",
        "/v1alpha1.headgate.dev",
    ];
    wait_for_nothing_left(&server, &before, &kept);

    // The next release takes over the CRD and the policies. After its upgrade to `crds.keep=false`,
    // uninstalling it leaves nothing.
    helm(&server, "install", &[]);
    assert_eq!(server.get(&["admissionpolicy", "search"]).unwrap(), policy);
    helm(
        &server,
        "upgrade",
        &["--reuse-values", "--set", "crds.keep=false"],
    );
    helm(&server, "uninstall", &["--no-hooks"]);
    wait_for_nothing_left(&server, &before, &[]);
}

#[test]
fn an_upgrade_upgrades_the_crd() {
    const NAME: &str = "admissionpolicies.headgate.dev";
    let release = Release::new();
    let server = release.server;
    release.upgrade(&[]);
    // The patch gives the CRD the description that an older chart could have left.
    server
        .kubectl(&[
            "patch",
            "crd",
            NAME,
            "--type=json",
            r#"--patch=[{"op": "replace", "value": "Old.",
                "path": "/spec/versions/0/schema/openAPIV3Schema/description"}]"#,
        ])
        .unwrap();
    let description = || {
        server.get(&["crd", NAME]).unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            ["description"]
            .clone()
    };
    assert_eq!(description(), "Old.");
    // The patch made kubectl the owner of the field, so the upgrade has to force conflicts. After
    // an older chart this would not be necessary.
    release.upgrade(&["--force-conflicts"]);
    assert_ne!(description(), "Old.");
}

/// The chart of 0.1.0 made a CA, which has signed the certificates of proxies.
#[test]
fn an_upgrade_keeps_the_ca_that_an_older_chart_made() {
    let release = Release::new();
    let older = tempfile::tempdir().unwrap();
    let copied = Command::new("cp")
        .args(["-R", "--dereference"])
        .arg(chart::folder().join("."))
        .arg(older.path())
        .status();
    assert!(copied.unwrap().success());
    let template = older.path().join("templates/tls.yaml");
    let ca = "{{- $ca := genCA \"CA\" 3650 }}
apiVersion: v1
kind: Secret
metadata:
  name: headgate-ca
  namespace: {{ .Release.Namespace }}
  labels: {{- include \"headgate.labels\" . | nindent 4 }}
type: kubernetes.io/tls
data: {tls.crt: {{ $ca.Cert | b64enc }}, tls.key: {{ $ca.Key | b64enc }}}
";
    fs::write(template, ca).unwrap();
    let older = older.path().to_str().unwrap();
    release.helm(&["install", "headgate", older]);
    let secret = || {
        let name = ["secret", "headgate-ca", "--namespace", &release.namespace];
        release.server.get(&name).unwrap()["data"].clone()
    };
    let before = secret();
    assert!(before["tls.key"].is_string(), "{before}");
    for _ in 0..2 {
        release.upgrade(&[]);
        assert_eq!(secret(), before);
    }

    // The Secret is deleted, and the operator makes another CA. The first upgrade then leaves it
    // out of the release's manifest.
    let (server, namespace) = (release.server, &release.namespace);
    let delete = [
        "delete",
        "secret",
        "headgate-ca",
        "--namespace",
        namespace.as_str(),
    ];
    server.kubectl(&delete).unwrap();
    let another = json!({"tls.crt": "bmV3", "tls.key": "bmV3"});
    let of_operator = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": another,
        "metadata": {
            "name": "headgate-ca", "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "headgate"},
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
    });
    server.apply(&of_operator.to_string()).unwrap();
    for _ in 0..2 {
        release.upgrade(&[]);
        assert_eq!(secret(), another);
    }
}

/// `--reuse-values` uses the old chart's values for the new chart, so values that 0.1.0 didn't have
/// are missing.
#[test]
fn an_upgrade_with_the_values_of_the_first_release_has_the_same_rights() {
    let release = Release::new();
    let values = Path::new(env!("CARGO_MANIFEST_DIR")).join("helm/values-0.1.0.yaml");
    let first = tempfile::tempdir().unwrap();
    let definition = "apiVersion: v2\nname: headgate\nversion: 0.1.0\n";
    fs::write(first.path().join("Chart.yaml"), definition).unwrap();
    fs::copy(values, first.path().join("values.yaml")).unwrap();
    let delivery = "delivery.configMap.enabled=true,delivery.istio.enabled=true,\
                    delivery.envoyGateway.enabled=true";
    let folder = first.path().to_str().unwrap();
    release.helm(&["install", "headgate", folder, "--set", delivery]);

    release.upgrade(&["--reuse-values"]);
    let roles = |kind: &str| -> BTreeMap<String, Value> {
        let all = "--selector=app.kubernetes.io/instance=headgate";
        let list = release
            .server
            .get(&[kind, "--all-namespaces", all])
            .unwrap();
        let items = list["items"].as_array().unwrap().iter();
        let of = |object: &Value| (chart::label(object), object["rules"].clone());
        items.map(of).collect()
    };
    let has = |kind| (kind, roles(kind));
    let upgraded = ["clusterroles", "roles"].map(has);
    release.upgrade(&["--reset-then-reuse-values"]);
    assert_eq!(upgraded, ["clusterroles", "roles"].map(has));
    let plugins = &upgraded[0].1["ClusterRole/headgate"].to_string();
    assert!(plugins.contains("trafficextensions"), "{plugins}");
}
