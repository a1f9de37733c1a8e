//! `headgate check` of an installation on a real API server: its findings about a complete
//! installation, and about broken ones.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headgate_tests::chart::{self, NAMESPACE};
use headgate_tests::headgate::binary_path;
use headgate_tests::kube::ApiServer;
use headgate_tests::mesh::ports::free_port;
use headgate_tests::operator::{Operator, OperatorOptions, own_address};
use headgate_tests::wait::{until, until_within};
use serde_json::{Value, json};

/// The longest wait: the duration of a Lease plus a margin for a busy machine.
const LONG: Duration = Duration::from_secs(90);

/// The result of one `headgate check`: the verdict and the text of each check's worst finding, the
/// exit code, and the output.
#[derive(Debug)]
struct Checked {
    code: Option<i32>,
    findings: BTreeMap<String, (String, String)>,
    text: String,
}

impl Checked {
    fn verdict(&self, check: &str) -> &str {
        self.findings.get(check).map_or("", |(verdict, _)| verdict)
    }

    fn message(&self, check: &str) -> &str {
        self.findings.get(check).map_or("", |(_, message)| message)
    }

    /// Returns the names of the checks with this verdict.
    fn with(&self, verdict: &str) -> Vec<&str> {
        let all = self.findings.iter().filter(|(_, (v, _))| v == verdict);
        all.map(|(check, _)| check.as_str()).collect()
    }
}

fn check(kubeconfig: &Path, arguments: &[&str]) -> Result<Checked> {
    let output = Command::new(binary_path())
        .args(["check", "--output=json", "--kubeconfig"])
        .arg(kubeconfig)
        .args(arguments)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let all: Vec<Value> = serde_json::from_str(&text)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    const WORSE: [&str; 4] = ["ok", "skipped", "warning", "error"];
    let rank = |verdict: &str| WORSE.iter().position(|v| *v == verdict);
    let mut findings = BTreeMap::<String, (String, String)>::new();
    for finding in &all {
        let field = |key: &str| finding[key].as_str().unwrap_or_default().to_owned();
        let verdict = field("verdict");
        ensure!(rank(&verdict).is_some(), "{finding}");
        let needs_fix = ["warning", "error"].contains(&verdict.as_str());
        ensure!(finding["fix"].is_string() == needs_fix, "{finding}");
        let worst = findings.get(&field("check")).map(|(v, _)| rank(v));
        if worst.is_none_or(|worst| worst < rank(&verdict)) {
            findings.insert(field("check"), (verdict, field("message")));
        }
    }
    Ok(Checked {
        code: output.status.code(),
        findings,
        text,
    })
}

/// A release of the chart on an API server without nodes. This machine runs the operator in place
/// of the only Pod.
struct Release<'a> {
    server: &'a ApiServer,
    pod: String,
    admin: SocketAddr,
    modules: SocketAddr,
}

impl<'a> Release<'a> {
    /// Applies the chart's objects, with free ports in place of the ports of the Pods.
    fn install(server: &'a ApiServer) -> Result<Self> {
        server.kubectl(&["create", "namespace", NAMESPACE])?;
        let (admin, modules) = (free_port()?, free_port()?);
        let folder = chart::folder().display().to_string();
        let values = "--set=replicas=1,delivery.istio.enabled=true,image.repository=headgate";
        let release = ["template", "headgate", &folder, "--namespace", NAMESPACE];
        let objects = chart::helm(&[&release[..], &[values, "--no-hooks"]].concat())?;
        let objects = objects
            .replace("containerPort: 18001", &format!("containerPort: {admin}"))
            .replace("containerPort: 18002", &format!("containerPort: {modules}"));
        let apply = ["apply", "--server-side", "--filename=-"];
        server.kubectl_as(server.kubeconfig(), &apply, Some(&objects))?;
        server.wait_for_crds()?;
        let label = "--selector=app.kubernetes.io/component=operator";
        let get = ["get", "pods", label, "--namespace", NAMESPACE];
        let name = [&get[..], &["--output=jsonpath={.items[*].metadata.name}"]].concat();
        let pod = until("the operator's Pod", || {
            let found = server.kubectl(&name).map_err(|e| format!("{e:#}"))?;
            match found.trim() {
                "" => Err("none".to_owned()),
                name => Ok(name.to_owned()),
            }
        })?;
        let ip = own_address()?;
        let release = Self {
            server,
            pod,
            admin: SocketAddr::from((ip, admin)),
            modules: SocketAddr::from((ip, modules)),
        };
        release.set_ready(true)?;
        release.apply_endpoints()?;
        Ok(release)
    }

    /// Applies the EndpointSlice of the reports' Service, because the controllers ignore a Pod
    /// without a node.
    fn apply_endpoints(&self) -> Result<()> {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": "headgate-metrics-own", "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": "headgate-metrics"},
            },
            "addressType": "IPv4",
            "endpoints": [{
                "addresses": [self.admin.ip()], "conditions": {"ready": true},
                "targetRef": {"kind": "Pod", "name": self.pod, "namespace": NAMESPACE},
            }],
            "ports": [{"name": "http-admin", "port": self.admin.port(), "protocol": "TCP"}],
        });
        self.server.apply(&slice.to_string()).map(drop)
    }

    /// Writes the Pod's status as a kubelet does, and waits until the Deployment's status agrees.
    fn set_ready(&self, is_ready: bool) -> Result<()> {
        let ip = self.admin.ip();
        let status = json!({"status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{
                "type": "Ready", "status": if is_ready { "True" } else { "False" },
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }});
        let patch = ["patch", "pod", &self.pod, "--namespace", NAMESPACE];
        let status = ["--subresource=status", "--patch", &status.to_string()];
        self.server.kubectl(&[&patch[..], &status].concat())?;
        let get = ["get", "deployment/headgate", "--namespace", NAMESPACE];
        let ready = [&get[..], &["--output=jsonpath={.status.readyReplicas}"]].concat();
        let wanted = if is_ready { "1" } else { "" };
        until("the Deployment to know", || {
            let found = self.server.kubectl(&ready).map_err(|e| format!("{e:#}"))?;
            match found.trim() == wanted {
                true => Ok(()),
                false => Err(found),
            }
        })
    }

    /// Runs the operator with the Deployment's arguments, except for addresses and paths, which are
    /// of this machine.
    fn start(&self, folder: &Path) -> Result<Operator> {
        let deployment = ["deployment/headgate", "--namespace", NAMESPACE];
        let found = self.server.get(&deployment)?;
        let arguments = &found["spec"]["template"]["spec"]["containers"][0]["args"];
        let own = folder.display();
        let adapted = |argument: &Value| {
            let argument = argument.as_str()?;
            let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
            let file = value.rsplit('/').next().unwrap_or_default();
            match name {
                "run" | "--kubernetes" | "--xds" | "--admin" | "--module-dir" | "--native"
                | "--peers-token" | "--peers-service" | "--admission" => None,
                "--probes" => Some(format!("{name}=127.0.0.1:0")),
                "--modules-url" => Some(format!("{name}=http://{}", self.modules)),
                "--modules" => Some(format!("{name}={}", self.modules)),
                "--tls-cert" | "--tls-key" | "--client-ca" => Some(format!("{name}={own}/{file}")),
                _ => Some(argument.to_owned()),
            }
        };
        let arguments = arguments.as_array().context("arguments")?;
        let kubeconfig = self
            .server
            .service_account_kubeconfig(NAMESPACE, "headgate")?;
        let options = OperatorOptions {
            admin: self.admin,
            extra: arguments.iter().filter_map(adapted).collect(),
            ..OperatorOptions::new(&self.pod, NAMESPACE)
        };
        Operator::start(&kubeconfig, &options)
    }
}

const SEARCH: &str = "
apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {name: search, namespace: default}
spec:
  targetRefs: [{group: '', kind: Service, name: search}]
  parallelism: {total: 20}
  strategy: {type: MaxQueueLength}
  types: [{name: default}]
---
apiVersion: v1
kind: Service
metadata: {name: search, namespace: default}
spec: {selector: {app: search}, ports: [{port: 80}]}
";

const ISTIOD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: istiod
  namespace: istio-system
  labels: {app: istiod, app.kubernetes.io/version: 1.29.3}
spec: {containers: [{name: discovery, image: istiod}]}
";

/// All checks except `policies`.
const WHOLE: [&str; 14] = [
    "api-server",
    "certificate",
    "clock",
    "crd",
    "envoy-gateway",
    "istio",
    "leader",
    "module",
    "operator",
    "pods",
    "proxies",
    "published-ca",
    "rights",
    "version",
];

#[test]
fn an_installation_is_checked_and_what_is_broken_is_named() -> Result<()> {
    let server = &ApiServer::start()?;
    let admin = server.kubeconfig();

    // Nothing is installed.
    let bare = check(admin, &[])?;
    assert_eq!(
        (bare.code, bare.with("error")),
        (Some(1), vec!["crd", "operator"])
    );
    assert!(
        bare.message("crd")
            .contains("the CRD of AdmissionPolicy isn't installed"),
        "{bare:?}"
    );

    chart::install_crds(server, "istio")?;
    chart::install_crds(server, "envoy-gateway")?;
    let release = Release::install(server)?;
    let folder = tempfile::tempdir()?;
    let operator = release.start(folder.path())?;
    // The metrics of this operator need a token, so the test reads the log instead.
    until("leadership", || {
        match operator.output().contains("leading: this replica writes") {
            true => Ok(()),
            false => Err(operator.output()),
        }
    })?;
    server.apply(SEARCH)?;
    let whole = until_within(LONG, "all to be well", || {
        let found = check(admin, &[]).map_err(|e| format!("{e:#}"))?;
        // The policy has no proxies, so its verdict is "warning".
        let is_whole = WHOLE.iter().all(|check| found.verdict(check) == "ok")
            && found.with("warning") == ["policies"]
            && found.with("skipped").is_empty()
            && found.findings.len() == WHOLE.len() + 1;
        match is_whole && found.code == Some(0) {
            true => Ok(found),
            false => Err(found.text),
        }
    })?;
    assert!(whole.message("istio").contains("1.30"), "{whole:?}");
    let text = Command::new(binary_path())
        .args(["check", "--kubeconfig"])
        .arg(admin)
        .output()?;
    assert!(text.stdout.starts_with(b"VERDICT"), "{text:?}");
    let usage = Command::new(binary_path())
        .args(["check", "--nonsense"])
        .output()?;
    assert_eq!(usage.status.code(), Some(2));

    // The CRDs are newer than the istiod that runs.
    server.kubectl(&["create", "namespace", "istio-system"])?;
    until("an istiod", || {
        server.apply(ISTIOD).map_err(|e| format!("{e:#}"))
    })?;
    let older = check(admin, &[])?;
    assert_eq!(older.message("istio"), "WasmPlugin for istiod 1.29.3");

    // A user without rights gets the verdicts that need no rights.
    let user = server.user_kubeconfig("person", None)?;
    let forbidden = check(&user, &[])?;
    assert_eq!(
        (forbidden.code, forbidden.with("error").len()),
        (Some(0), 0),
        "{forbidden:?}"
    );
    assert_eq!(forbidden.verdict("api-server"), "ok");
    for check in ["crd", "operator", "policies", "reports"] {
        assert_eq!(
            forbidden.verdict(check),
            "skipped",
            "{check}: {forbidden:?}"
        );
    }

    // The test takes away permissions, makes the Pod unready, and installs the CRD of an older
    // version.
    server.kubectl(&["delete", "clusterrolebinding", "headgate"])?;
    release.set_ready(false)?;
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/mode";
    let patch = json!([{"op": "remove", "path": path}]).to_string();
    let name = "crd/admissionpolicies.headgate.dev";
    server.kubectl(&["patch", name, "--type=json", "--patch", &patch])?;
    let broken = until_within(LONG, "the API server to deny", || {
        let found = check(admin, &[]).map_err(|e| format!("{e:#}"))?;
        match found.verdict("rights") {
            "error" => Ok(found),
            _ => Err(found.text),
        }
    })?;
    assert_eq!(broken.code, Some(1));
    assert!(
        broken.message("rights").contains("tokenreviews"),
        "{broken:?}"
    );
    assert!(
        broken
            .message("operator")
            .ends_with("0 of 1 replicas ready"),
        "{broken:?}"
    );
    assert!(
        broken.message("crd").contains("drops spec.mode"),
        "{broken:?}"
    );

    // A killed operator no longer renews its Lease.
    assert_eq!(broken.verdict("leader"), "ok");
    operator.kill()?;
    until_within(LONG, "the Lease to be stale", || {
        let found = check(admin, &[]).map_err(|e| format!("{e:#}"))?;
        match found.verdict("leader") {
            "error" => Ok(()),
            _ => Err(found.text),
        }
    })?;

    // An unreachable API server gives only one finding.
    server.stop_api_server()?;
    let away = check(admin, &[])?;
    assert_eq!(
        (away.code, away.with("error")),
        (Some(1), vec!["api-server"])
    );
    assert_eq!(away.findings.len(), 1);
    fs::remove_dir_all(folder.path())?;
    Ok(())
}
