//! Everything that the operator does on an API server, with only the permissions that the chart
//! grants. The audit log then shows that no request was refused, and that every permission was
//! used.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use headgate_tests::chart::{self, NAMESPACE};
use headgate_tests::headgate::{address, binary_path, module_path, native_path};
use headgate_tests::http;
use headgate_tests::kube::ApiServer;
use headgate_tests::kube::audit::AuditEvent;
use headgate_tests::mesh::ports::free_port;
use headgate_tests::operator::own_address;
use headgate_tests::process::Child;
use headgate_tests::wait;
use serde_json::Value;

/// A set of permissions, each as `verb group/resource`.
type Permissions = BTreeSet<String>;

fn permissions(lines: &[(&str, &str)]) -> Permissions {
    lines
        .iter()
        .flat_map(|(resource, verbs)| {
            verbs
                .split(' ')
                .map(move |verb| format!("{verb} {resource}"))
        })
        .collect()
}

/// Returns the permissions that the operator needs. A reviewer should grant no more.
fn needed() -> Permissions {
    permissions(&[
        ("headgate.dev/admissionpolicies", "list watch"),
        ("headgate.dev/admissionpolicies/status", "patch"),
        ("/services", "list watch"),
        ("/pods", "list watch"),
        ("discovery.k8s.io/endpointslices", "list watch"),
        ("gateway.networking.k8s.io/gateways", "list watch"),
        ("gateway.networking.k8s.io/httproutes", "list watch"),
        ("gateway.networking.k8s.io/grpcroutes", "list watch"),
        ("inference.networking.k8s.io/inferencepools", "list watch"),
        ("events.k8s.io/events", "create"),
        ("coordination.k8s.io/leases", "create get patch"),
        ("authentication.k8s.io/tokenreviews", "create"),
        ("/secrets", "create get"),
        ("/namespaces", "list watch get"),
        ("/configmaps", "list watch create patch"),
        ("authorization.k8s.io/subjectaccessreviews", "create"),
    ])
}

/// Returns the permissions that only operators of the previous minor version need. Such an operator
/// may restart during an upgrade, when the new roles are already in force.
fn needed_before() -> Permissions {
    permissions(&[
        (
            "apiextensions.k8s.io/customresourcedefinitions",
            "list watch",
        ),
        ("events.k8s.io/events", "patch"),
    ])
}

const WRITES: &str = "list watch create patch delete";
/// The longest time until the operator notices that a kind is served: twice its longest pause.
const NOTICED: Duration = Duration::from_secs(60);

/// Returns the additional permissions that the operator needs with all deliveries on. For Istio it
/// writes objects of kinds `written`, and removes leftovers of kinds `left`.
fn needed_to_deliver(written: &[&str], left: &[&str]) -> Permissions {
    let mut lines = vec![
        ("gateway.networking.k8s.io/gatewayclasses", "list watch"),
        ("/configmaps", "list watch create patch"),
        ("gateway.envoyproxy.io/envoyextensionpolicies", WRITES),
    ];
    lines.extend(written.iter().map(|&resource| (resource, WRITES)));
    lines.extend(left.iter().map(|&resource| (resource, "list watch delete")));
    permissions(&lines)
}

/// Returns the permissions of the release's roles.
fn granted(server: &ApiServer) -> Permissions {
    let mut granted = Permissions::new();
    for arguments in [
        &["get", "clusterrole", "headgate", "--output=json"][..],
        &[
            "get",
            "role",
            "headgate",
            "--output=json",
            "--namespace",
            NAMESPACE,
        ],
        &[
            "get",
            "role",
            "headgate-watched",
            "--output=json",
            "--namespace=shop",
            "--ignore-not-found",
        ],
    ] {
        let role = server.kubectl(arguments).unwrap();
        let role: Value = serde_json::from_str(&role).unwrap_or_default();
        granted.extend(of_rules(&role));
    }
    granted
}

/// Returns the permissions of one role.
fn of_rules(role: &Value) -> Permissions {
    let mut granted = Permissions::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        let texts = |key: &str| -> Vec<String> {
            rule[key]
                .as_array()
                .unwrap()
                .iter()
                .map(|text| text.as_str().unwrap().to_owned())
                .collect()
        };
        for group in texts("apiGroups") {
            for resource in texts("resources") {
                for verb in texts("verbs") {
                    granted.insert(format!("{verb} {group}/{resource}"));
                }
            }
        }
    }
    granted
}

/// Returns the permissions that the requests in the audit log used. An apply of an object that
/// doesn't exist needs `create` besides `patch`.
fn used(events: &[AuditEvent]) -> Permissions {
    let mut used = Permissions::new();
    for event in events.iter().filter(|event| !event.resource.is_empty()) {
        let what = format!("{}/{}", event.group, event.resource);
        used.insert(format!("{} {what}", event.verb));
        if event.verb == "patch" && event.code == 201 {
            used.insert(format!("create {what}"));
        }
    }
    used
}

/// A running operator with the chart's permissions and arguments.
struct Operator<'a> {
    server: &'a ApiServer,
    process: Child,
    /// The address of its admin port, which requires tokens.
    admin: SocketAddr,
    folder: tempfile::TempDir,
}

impl<'a> Operator<'a> {
    /// Installs the chart and runs the operator with the Deployment's arguments, except for
    /// addresses and paths, which are of this machine.
    fn install(server: &'a ApiServer, values: &[&str]) -> Self {
        server.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
        let chart = chart::folder();
        let mut arguments = vec![
            "install",
            "headgate",
            chart.to_str().unwrap(),
            "--namespace",
            NAMESPACE,
        ];
        // These are values that a user's Prometheus could need.
        arguments.extend([
            "--set",
            "metrics.readers[0].kind=ServiceAccount,metrics.readers[0].name=default,\
             metrics.readers[0].namespace=shop",
        ]);
        arguments.extend(values);
        server.helm(&arguments).unwrap();
        let kubeconfig = server
            .service_account_kubeconfig(NAMESPACE, "headgate")
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let token = token(server, NAMESPACE, "headgate", AUDIENCE);
        fs::write(folder.path().join("token"), token).unwrap();
        let deployment = server
            .get(&["deployment", "headgate", "--namespace", NAMESPACE])
            .unwrap();
        let modules = free_port().unwrap();
        let mut command = Command::new(binary_path());
        for argument in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
            .as_array()
            .unwrap()
        {
            let argument = argument.as_str().unwrap();
            let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
            let own = folder.path().display();
            let file = value.rsplit('/').next().unwrap_or_default();
            command.arg(match name {
                "--xds" | "--injection" => format!("{name}=127.0.0.1:0"),
                "--admin" | "--probes" => format!("{name}=[::]:0"),
                "--modules" => format!("{name}=127.0.0.1:{modules}"),
                "--modules-url" => format!("{name}=http://127.0.0.1:{modules}"),
                "--module-dir" => format!("{name}={own}/modules"),
                "--native" => format!("{name}={}", native_path().display()),
                "--tls-cert" | "--tls-key" | "--client-ca" | "--peers-token" => {
                    format!("{name}={own}/{file}")
                }
                _ => argument.to_owned(),
            });
        }
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--wasm")
            .arg(module_path())
            .env("POD_NAME", "headgate-0")
            .env("POD_NAMESPACE", NAMESPACE);
        let mut process = Child::spawn("headgate", &mut command).unwrap();
        let line = process.wait_for_line("headgate: xds=").unwrap();
        let port = address(&line, "admin").unwrap().port();
        Self {
            server,
            process,
            admin: SocketAddr::from((own_address().unwrap(), port)),
            folder,
        }
    }

    /// Waits until a condition of a policy at its first target has a reason.
    fn wait_for(&self, policy: &str, condition: &str, reason: &str) {
        let found = wait::until(&format!("{condition} {reason} of {policy}"), || {
            let object = self
                .server
                .get(&["admissionpolicy", policy, "--namespace=shop"])
                .unwrap();
            let conditions = object["status"]["ancestors"][0]["conditions"].clone();
            let found = conditions
                .as_array()
                .into_iter()
                .flatten()
                .find(|c| c["type"] == condition)
                .map(|c| c["reason"].as_str().unwrap_or_default().to_owned());
            if found.as_deref() == Some(reason) {
                Ok(())
            } else {
                Err(conditions.to_string())
            }
        });
        if let Err(error) = found {
            panic!("{error}\n{}", self.process.tail());
        }
    }

    /// Waits until the audit log has a request of this operator that `wanted` accepts.
    fn wait_for_request(&self, what: &str, wanted: impl Fn(&AuditEvent) -> bool) {
        let found = wait::until(what, || {
            if self.requests().iter().any(&wanted) {
                Ok(())
            } else {
                Err("no such request".to_owned())
            }
        });
        if let Err(error) = found {
            panic!("{error}\n{}", self.process.tail());
        }
    }

    /// Waits until the operator has sent a request with this verb and this status code for each of
    /// these kinds. The wait includes the time until the operator notices new CRDs.
    fn wait_for_writes(&self, verb: &str, code: u16, kinds: &[&str]) {
        for kind in kinds {
            let is = |e: &AuditEvent| e.resource == *kind && e.verb == verb && e.code == code;
            let found =
                wait::until_within(NOTICED, &format!("{verb} {kind} {code}"), || {
                    match self.requests().iter().any(is) {
                        true => Ok(()),
                        false => Err("no such request".to_owned()),
                    }
                });
            if let Err(error) = found {
                panic!("{error}\n{}", self.process.tail());
            }
        }
    }

    fn requests(&self) -> Vec<AuditEvent> {
        let user = format!("system:serviceaccount:{NAMESPACE}:headgate");
        let mut events = self.server.audit(Default::default()).unwrap();
        events.retain(|event| event.user == user);
        events
    }

    fn stop(self) -> Vec<AuditEvent> {
        let requests = self.requests();
        let output = self.process.output();
        self.process.stop().unwrap();
        assert!(!output.contains("forbidden"), "{output}");
        assert!(!output.contains("a replica can't be reached"), "{output}");
        drop(self.folder);
        requests
    }
}

/// The option of `kubectl create token` for tokens that operators accept.
const AUDIENCE: &[&str] = &["--audience=headgate.dev"];

/// Returns a new token of a service account.
fn token(server: &ApiServer, namespace: &str, account: &str, arguments: &[&str]) -> String {
    let mut all = vec!["create", "token", account, "--namespace", namespace];
    all.extend(arguments);
    server.kubectl(&all).unwrap().trim().to_owned()
}

/// Returns the token that Prometheus sends according to the chart's ServiceMonitor.
fn token_of_service_monitor(server: &ApiServer) -> String {
    let values = Path::new(env!("CARGO_MANIFEST_DIR")).join("helm/good/defaults.yaml");
    let arguments = [
        "--set=metrics.serviceMonitor.enabled=true",
        "--api-versions=monitoring.coreos.com/v1",
    ];
    let objects = chart::render(&values, &arguments).unwrap();
    // The test applies everything except the ServiceMonitor, whose kind this API server doesn't
    // know.
    let needed = objects
        .iter()
        .filter(|o| o["metadata"]["name"] == "headgate-scraper");
    for object in needed {
        server.apply(&object.to_string()).unwrap();
    }
    let template = "--template={{with .data}}{{.token | base64decode}}{{end}}";
    let secret = [
        "get",
        "secret",
        "headgate-scraper",
        "-n",
        NAMESPACE,
        template,
    ];
    let found = wait::until("the token of the ServiceMonitor", || {
        match server.kubectl(&secret) {
            Ok(token) if !token.contains("<no value>") && !token.is_empty() => Ok(token),
            other => Err(format!("{other:?}")),
        }
    });
    found.unwrap()
}

const SHOP: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
";

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: search, namespace: shop}
spec: {selector: {app: search}, ports: [{port: 80}]}
";

const GATEWAY: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: envoy}
spec: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio}
spec: {controllerName: istio.io/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {gatewayClassName: envoy, listeners: [{name: http, protocol: HTTP, port: 80}]}
";

fn policy(name: &str, target: &str, p50: &str) -> String {
    format!(
        "
apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {{name: {name}, namespace: shop}}
spec:
  targetRefs: [{target}]
  parallelism: {{total: 20}}
  strategy: {{type: Bouncer}}
  types: [{{name: default, slo: {{p50: {p50}, p90: 50ms}}}}]
"
    )
}

const TO_SERVICE: &str = "{group: '', kind: Service, name: search}";
const TO_GATEWAY: &str = "{group: gateway.networking.k8s.io, kind: Gateway, name: edge}";

/// Causes all actions of the operator: creates policies, creates and deletes their targets,
/// installs Gateway API and its extension, and lets the operator lose its Lease.
fn live(operator: &Operator<'_>) {
    let server = operator.server;
    server.apply(SHOP).unwrap();
    // The CRD is served a moment after its creation, and the operator also waits for this.
    wait::until("the API server to take a policy", || {
        let applied = server.apply(&policy("search", TO_SERVICE, "18ms"));
        applied.map_err(|error| format!("{error:#}"))
    })
    .unwrap();
    // A repeated Event is one object that the operator patches.
    for _ in 0..2 {
        operator.wait_for("search", "Accepted", "TargetNotFound");
        server.apply(SERVICE).unwrap();
        operator.wait_for("search", "Accepted", "Accepted");
        server
            .kubectl(&["delete", "service", "search", "--namespace=shop"])
            .unwrap();
    }
    server.apply(SERVICE).unwrap();
    operator.wait_for("search", "Accepted", "Accepted");
    chart::install_crds(server, "gateway-api").unwrap();
    chart::install_crds(server, "inference-extension").unwrap();
    server.apply(GATEWAY).unwrap();
    server.apply(&policy("edge", TO_GATEWAY, "18ms")).unwrap();
    operator.wait_for("edge", "Accepted", "Accepted");
    for resource in ["httproutes", "grpcroutes", "inferencepools"] {
        operator.wait_for_request(resource, |event| {
            event.resource == resource && event.verb == "watch"
        });
    }
    server
        .kubectl(&["delete", "lease", "headgate", "--namespace", NAMESPACE])
        .unwrap();
    operator.wait_for_request("the Lease made anew", |event| {
        event.resource == "leases" && event.verb == "create" && event.code == 201
    });
    only_who_may_is_answered(operator);
    status_has_a_token(operator);
}

/// Checks that only clients with the right get metrics, policies and proxies. The chart's roles
/// grant this right, and the API server reviews it.
fn only_who_may_is_answered(operator: &Operator<'_>) {
    let (server, admin) = (operator.server, operator.admin);
    let scraper = token(server, "shop", "default", &[]);
    let monitor = token_of_service_monitor(server);
    let reader = token(server, NAMESPACE, "headgate-metrics", AUDIENCE);
    let replica = token(server, NAMESPACE, "headgate", AUDIENCE);
    let elsewhere = ["--audience=elsewhere"];
    let elsewhere = token(server, NAMESPACE, "headgate-metrics", &elsewhere);
    let ask = |path: &str, token: &str| {
        let bearer = format!("Bearer {token}");
        http::get_with(admin, path, &[("authorization", &bearer)]).unwrap()
    };
    for path in ["/metrics", "/status", "/status/policies"] {
        let answer = http::get(admin, path).unwrap();
        let asks = answer.header("www-authenticate");
        // Leaders of 0.1.0 send no token, so this path answers requests without a token with 304.
        let refused = match path {
            "/status/policies" => (304, None),
            _ => (401, Some("Bearer")),
        };
        assert_eq!((answer.status, asks), refused, "{path}");
        assert!(!answer.body.contains("policies"), "{}", answer.body);
        assert_eq!(ask(path, "nobody's").status, 401, "{path}");
        assert_eq!(ask(path, &elsewhere).status, 401, "{path}");
    }
    for (path, token, status) in [
        ("/metrics", &scraper, 200),
        ("/metrics", &monitor, 200),
        ("/status", &monitor, 403),
        ("/metrics", &reader, 403),
        ("/status", &scraper, 403),
        ("/status", &reader, 200),
        ("/status/policies", &scraper, 403),
        ("/status/policies", &replica, 200),
    ] {
        // The second answer is from the cache.
        for _ in 0..2 {
            let answer = ask(path, token);
            assert_eq!(answer.status, status, "{path}: {}", answer.body);
        }
    }
    assert_eq!(
        ask("/status", &scraper).body,
        "system:serviceaccount:shop:default may not get /status; a ClusterRole with this path in \
         nonResourceURLs permits it\n"
    );
    for path in ["/healthz", "/readyz"] {
        assert_eq!(http::get(admin, path).unwrap().status, 200, "{path}");
    }
}

/// Checks that `headgate status` works directly, and through the API server's proxy, which removes
/// its own token's header.
fn status_has_a_token(operator: &Operator<'_>) {
    let (server, admin) = (operator.server, operator.admin);
    let pod = OPERATOR
        .replace("10.1.2.3", &admin.ip().to_string())
        .replace("18001", &admin.port().to_string());
    server.apply(&pod).unwrap();
    let ip = admin.ip();
    let status =
        format!("{{\"status\": {{\"podIP\": \"{ip}\", \"podIPs\": [{{\"ip\": \"{ip}\"}}]}}}}");
    server
        .kubectl(&[
            "patch",
            "pod",
            "headgate-0",
            "--namespace",
            NAMESPACE,
            "--subresource=status",
            "--patch",
            &status,
        ])
        .unwrap();
    let headgate = |arguments: &[&str]| {
        let output = Command::new(binary_path())
            .arg("status")
            .args(arguments)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    };
    let kubeconfig = server.kubeconfig().to_str().unwrap();
    let (shown, warning) = headgate(&["-A", "--output=json", "--kubeconfig", kubeconfig]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let version = &shown["operators"][0]["version"];
    assert!(version.is_string(), "{warning}{shown}");

    let address = admin.to_string();
    let (shown, error) = headgate(&["--admin", &address]);
    assert_eq!(shown, "");
    let advice =
        "kubectl create token headgate-metrics --namespace headgate-system --audience headgate.dev";
    assert!(error.contains(advice), "{error}");
    let file = operator.folder.path().join("reader");
    fs::write(
        &file,
        token(server, NAMESPACE, "headgate-metrics", AUDIENCE),
    )
    .unwrap();
    let (shown, error) = headgate(&["--admin", &address, "--token-file", file.to_str().unwrap()]);
    assert!(shown.contains("shop/search"), "{shown}{error}");
}

/// Checks that no request was refused, that every permission of `granted` was used, and that
/// `granted` equals `needed`.
fn judge(requests: &[AuditEvent], granted: &Permissions, needed: &Permissions) {
    let refused: Vec<&AuditEvent> = requests
        .iter()
        .filter(|event| event.code == 401 || event.code == 403)
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
    let (used, mut before) = (used(requests), needed_before());
    if needed.contains("list gateway.networking.k8s.io/gatewayclasses") {
        // Deliveries of 0.1 delete the ConfigMaps that no policy needs.
        before.extend(permissions(&[("/configmaps", "delete")]));
    }
    assert_eq!(granted, &(needed | &before), "granted is what is needed");
    let unused: Vec<&String> = needed.difference(&used).collect();
    assert!(unused.is_empty(), "granted and never used: {unused:?}");
    assert!(
        used.is_disjoint(&before),
        "no longer only for the version before"
    );
}

#[test]
fn the_operator_uses_all_that_it_may_do_and_needs_no_more() {
    let server = ApiServer::start().unwrap();
    let operator = Operator::install(&server, &[]);
    live(&operator);
    let granted = granted(&server);
    judge(&operator.stop(), &granted, &needed());
}

/// A single operator leads without a Lease, and has no right to a Lease.
#[test]
fn a_single_operator_without_an_election_writes() {
    let server = ApiServer::start().unwrap();
    let values = ["--set", "replicas=1,leaderElection.enabled=false"];
    let operator = Operator::install(&server, &values);
    server.apply(SHOP).unwrap();
    wait::until("the API server to take a policy", || {
        let applied = server.apply(&policy("search", TO_SERVICE, "18ms"));
        applied.map_err(|error| format!("{error:#}"))
    })
    .unwrap();
    operator.wait_for("search", "Accepted", "TargetNotFound");
    let is_of_lease = |p: &String| p.contains("coordination.k8s.io");
    assert!(!granted(&server).iter().any(is_of_lease));
    assert!(!used(&operator.stop()).iter().any(is_of_lease));
}

/// An operator of 0.1.0 that restarts during the upgrade still needs the permissions that the chart
/// of 0.1.0 granted.
#[test]
fn an_upgrade_takes_no_right_from_operators_of_the_version_before() {
    let then = permissions(&[
        ("headgate.dev/admissionpolicies", "list watch"),
        ("headgate.dev/admissionpolicies/status", "patch"),
        ("/services", "list watch"),
        ("/pods", "list watch"),
        ("discovery.k8s.io/endpointslices", "list watch"),
        ("gateway.networking.k8s.io/gateways", "list watch"),
        ("gateway.networking.k8s.io/httproutes", "list watch"),
        ("gateway.networking.k8s.io/grpcroutes", "list watch"),
        ("gateway.networking.k8s.io/gatewayclasses", "list watch"),
        (
            "apiextensions.k8s.io/customresourcedefinitions",
            "list watch",
        ),
        ("events.k8s.io/events", "create patch"),
        ("coordination.k8s.io/leases", "create get patch"),
        ("/configmaps", WRITES),
        (PLUGINS, WRITES),
        (POLICIES, WRITES),
    ]);
    let values = Path::new(env!("CARGO_MANIFEST_DIR")).join("helm/values-0.1.0.yaml");
    let deliveries = "--set=delivery.configMap.enabled=true,delivery.istio.enabled=true,\
                      delivery.envoyGateway.enabled=true";
    let objects = chart::render(&values, &["--is-upgrade", deliveries]).unwrap();
    let roles = ["ClusterRole/headgate", "Role/headgate"];
    let roles = { objects.iter() }.filter(|o| roles.contains(&chart::label(o).as_str()));
    let granted: Permissions = roles.flat_map(of_rules).collect();
    assert_eq!(&then - &granted, Permissions::new(), "lost");
}

/// Objects for Istio that an operator with other settings has left.
const LEFT: [(&str, &str); 3] = [
    (
        "envoyfilters",
        "{apiVersion: networking.istio.io/v1alpha3, kind: EnvoyFilter, spec: {configPatches: []}",
    ),
    (
        "trafficextensions",
        "{apiVersion: extensions.istio.io/v1alpha1, kind: TrafficExtension, spec: {wasm: {url: \
         'http://x'}}",
    ),
    (
        "wasmplugins",
        "{apiVersion: extensions.istio.io/v1alpha1, kind: WasmPlugin, spec: {url: 'http://x'}",
    ),
];
const FILTERS: &str = "networking.istio.io/envoyfilters";
const EXTENSIONS: &str = "extensions.istio.io/trafficextensions";
const PLUGINS: &str = "extensions.istio.io/wasmplugins";
const POLICIES: &str = "gateway.envoyproxy.io/envoyextensionpolicies";

/// The delivery starts with an Istio before 1.30. Istio is then upgraded.
#[test]
fn delivery_needs_what_it_is_granted_and_no_more() {
    let server = ApiServer::start().unwrap();
    let before_1_30 = |name: &str| !name.starts_with("trafficextensions");
    chart::install_some_crds(&server, "istio", before_1_30).unwrap();
    let values = ",injection.enabled=true,leaderElection.leaseDuration=20s";
    let operator = deliver(&server, &LEFT[..1], values);
    let lease = server
        .get(&["lease", "headgate", "--namespace", NAMESPACE])
        .unwrap();
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 20);
    operator.wait_for_writes("patch", 200, &["mutatingwebhookconfigurations"]);
    writes(
        &operator,
        &["configmaps", "wasmplugins", "envoyextensionpolicies"],
        ["17ms", "16ms"],
    );
    chart::install_crds(&server, "istio").unwrap();
    writes(&operator, &["trafficextensions"], ["16ms", "15ms"]);
    operator.wait_for_writes("delete", 200, &["wasmplugins"]);
    deletes(&operator, &["trafficextensions", "envoyextensionpolicies"]);
    let granted = granted(&server);
    let webhooks = "admissionregistration.k8s.io/mutatingwebhookconfigurations";
    let needed = &needed() | &permissions(&[(webhooks, "list watch patch")]);
    let needed = &needed | &needed_to_deliver(&[PLUGINS, EXTENSIONS], &[FILTERS]);
    judge(&operator.stop(), &granted, &needed);
}

/// The operator delivers the native filter, and has access to only one namespace.
#[test]
fn delivery_in_one_namespace_needs_what_it_is_granted_and_no_more() {
    let server = ApiServer::start().unwrap();
    chart::install_crds(&server, "istio").unwrap();
    let values = ",delivery.istio.nativeModule=/h.so,\
                  delivery.envoyGateway.nativeModule=headgate,watchNamespaces={shop}";
    let operator = deliver(&server, &LEFT[1..], values);
    let elsewhere = |yaml: &str| server.apply(&yaml.replace("shop", "elsewhere")).unwrap();
    elsewhere(SHOP);
    elsewhere(SERVICE);
    elsewhere(&policy("search", TO_SERVICE, "18ms"));
    let kinds = ["configmaps", "envoyfilters", "envoyextensionpolicies"];
    writes(&operator, &kinds, ["17ms", "16ms"]);
    deletes(&operator, &kinds[1..]);
    let ignored = ["admissionpolicy", "search", "--namespace=elsewhere"];
    assert_eq!(server.get(&ignored).unwrap()["status"], Value::Null);
    let granted = granted(&server);
    // The operator publishes the CA only in the namespaces that the values name.
    let others = permissions(&[("/namespaces", "list watch")]);
    let needed = &needed() - &others;
    let needed = &needed | &needed_to_deliver(&[FILTERS], &[PLUGINS, EXTENSIONS]);
    let requests = operator.stop();
    judge(&requests, &granted, &needed);
    let places: BTreeSet<(&str, &str)> = requests
        .iter()
        .filter(|event| !["shop", NAMESPACE].contains(&event.namespace.as_str()))
        .map(|event| (event.namespace.as_str(), event.resource.as_str()))
        .collect();
    let cluster_wide = ["gatewayclasses", "subjectaccessreviews", "tokenreviews"];
    let named = |(namespace, resource): &(&str, &str)| {
        namespace.is_empty() && (resource.is_empty() || cluster_wide.contains(resource))
    };
    assert!(places.iter().all(named), "{places:?}");
}

/// A release with a delivery turned off removes the leftovers of this delivery. It has the rights
/// for this only as long as the delivery is off.
#[test]
fn a_release_removes_the_objects_of_a_disabled_delivery() {
    let server = ApiServer::start().unwrap();
    for project in ["istio", "envoy-gateway"] {
        chart::install_crds(&server, project).unwrap();
    }
    server.apply(SHOP).unwrap();
    let left = [
        LEFT[0],
        LEFT[1],
        LEFT[2],
        (
            "envoyextensionpolicies",
            "{apiVersion: gateway.envoyproxy.io/v1alpha1, kind: EnvoyExtensionPolicy, \
             spec: {targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]}",
        ),
    ];
    for (_, object) in left {
        let of = |name: &str, labels: &str| {
            format!("{object}, metadata: {{name: {name}, namespace: shop, labels: {{{labels}}}}}}}")
        };
        let ours = "app.kubernetes.io/managed-by: headgate, headgate.dev/adapter: istio";
        server.apply(&of("left", ours)).unwrap();
        server.apply(&of("theirs", "app: theirs")).unwrap();
    }
    let operator = Operator::install(&server, &["--set", "delivery.removeLeftovers=true"]);
    live(&operator);
    let kinds: Vec<&str> = left.iter().map(|(kind, _)| *kind).collect();
    operator.wait_for_writes("delete", 200, &kinds);
    for kind in kinds {
        let theirs = server.get(&[kind, "--namespace=shop"]).unwrap();
        let names: Vec<&Value> = { theirs["items"].as_array().into_iter().flatten() }
            .map(|o| &o["metadata"]["name"])
            .collect();
        assert_eq!(names, ["theirs"], "{kind}");
    }
    let all = [PLUGINS, EXTENSIONS, FILTERS, POLICIES];
    let list_and_delete = permissions(&all.map(|resource| (resource, "list delete")));
    let granted = granted(&server);
    judge(&operator.stop(), &granted, &(&needed() | &list_and_delete));
}

/// Returns an operator that delivers, with additional values of the chart, and that has already
/// removed the objects of `left`.
fn deliver<'a>(server: &'a ApiServer, left: &[(&str, &str)], values: &str) -> Operator<'a> {
    chart::install_crds(server, "envoy-gateway").unwrap();
    server.apply(SHOP).unwrap();
    let metadata = "metadata: {name: left, namespace: shop, labels: {app.kubernetes.io/managed-by: \
                    headgate, headgate.dev/adapter: istio}}";
    for (_, object) in left {
        server.apply(&format!("{object}, {metadata}}}")).unwrap();
    }
    let values = format!(
        "delivery.configMap.enabled=true,delivery.istio.enabled=true,\
         delivery.envoyGateway.enabled=true,delivery.removeLeftovers=true{values}"
    );
    let operator = Operator::install(server, &["--set", &values]);
    live(&operator);
    let kinds: Vec<&str> = left.iter().map(|(kind, _)| *kind).collect();
    operator.wait_for_writes("delete", 200, &kinds);
    operator
}

/// Waits until the operator creates objects of these kinds, then changes the objective of both
/// policies from the first to the second, and waits for the updates.
fn writes(operator: &Operator<'_>, kinds: &[&str], [first, second]: [&str; 2]) {
    for (p50, code) in [(first, 201), (second, 200)] {
        for (name, target) in [("search", TO_SERVICE), ("edge", TO_GATEWAY)] {
            operator.server.apply(&policy(name, target, p50)).unwrap();
        }
        operator.wait_for_writes("patch", code, kinds);
    }
}

/// Deletes the targets of the policies. It doesn't delete the policies, because the garbage
/// collector would then remove the objects.
fn deletes(operator: &Operator<'_>, kinds: &[&str]) {
    let targets = [
        "delete",
        "service/search",
        "gateway/edge",
        "--namespace=shop",
    ];
    operator.server.kubectl(&targets).unwrap();
    operator.wait_for_writes("delete", 200, kinds);
}

/// The Pod and the EndpointSlice that the metrics Service would have if this cluster had nodes.
const OPERATOR: &str = "
apiVersion: v1
kind: Pod
metadata: {name: headgate-0, namespace: headgate-system}
spec: {containers: [{name: headgate, image: headgate:dev}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: headgate-0
  namespace: headgate-system
  labels: {kubernetes.io/service-name: headgate-metrics}
addressType: IPv4
ports: [{name: http-admin, port: 18001}]
endpoints:
- addresses: [10.1.2.3]
  targetRef: {kind: Pod, name: headgate-0, namespace: headgate-system}
";

#[test]
fn the_test_of_the_release_may_do_what_it_does_and_no_more() {
    let server = ApiServer::start().unwrap();
    server.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    let chart = chart::folder();
    let hooks = chart::helm(&[
        "template",
        "headgate",
        chart.to_str().unwrap(),
        "--namespace",
        NAMESPACE,
        "--show-only=templates/tests/version.yaml",
    ])
    .unwrap();
    wait::until("the namespace's service account", || {
        server
            .kubectl(&["get", "serviceaccount", "default", "--namespace", NAMESPACE])
            .map_err(|error| error.to_string())
    })
    .unwrap();
    server
        .kubectl(&[
            "create",
            "serviceaccount",
            "headgate-metrics",
            "--namespace",
            NAMESPACE,
        ])
        .unwrap();
    server.apply(&hooks).unwrap();
    server.apply(OPERATOR).unwrap();
    let pod = server
        .get(&["pod", "headgate-test", "--namespace", NAMESPACE])
        .unwrap();
    let arguments = pod["spec"]["containers"][0]["args"].as_array().unwrap();
    let kubeconfig = server
        .service_account_kubeconfig(NAMESPACE, "headgate-test")
        .unwrap();
    let output = Command::new(binary_path())
        .args(arguments.iter().map(|a| a.as_str().unwrap()))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .output()
        .unwrap();
    // No node runs this Pod, so it doesn't answer. That fails the test of the release, but no
    // request is forbidden.
    assert!(!output.status.success());
    let user = format!("system:serviceaccount:{NAMESPACE}:headgate-test");
    let used = wait::until("the request to the operator", || {
        let mut events = server.audit(Default::default()).unwrap();
        events.retain(|event| event.user == user);
        if events.iter().any(|event| event.resource == "pods/proxy") {
            Ok(events)
        } else {
            Err(String::from_utf8_lossy(&output.stdout).into_owned())
        }
    })
    .unwrap();
    assert!(used.iter().all(|event| event.code != 403), "{used:#?}");
    let role = server
        .get(&["role", "headgate-test", "--namespace", NAMESPACE])
        .unwrap();
    assert_eq!(role["rules"].as_array().unwrap().len(), 3);
    let lines = permissions(&[
        ("discovery.k8s.io/endpointslices", "list"),
        ("/pods/proxy", "get"),
        ("/serviceaccounts/token", "create"),
    ]);
    assert_eq!(self::used(&used), lines);
}

/// The Job of the chart's pre-delete hook, with its rights, stops the operators and removes the
/// objects that they delivered. A ConfigMap that a Pod mounts stays.
#[test]
fn the_clean_up_removes_what_was_delivered_and_may_do_no_more() {
    const OBJECTS: &str = "
apiVersion: v1
kind: ConfigMap
metadata:
  name: delivered
  namespace: shop
  labels: {app.kubernetes.io/managed-by: headgate, headgate.dev/adapter: config-map}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: headgate-ca, namespace: shop, labels: {app.kubernetes.io/managed-by: headgate}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: mounted, namespace: shop, labels: {app.kubernetes.io/managed-by: headgate,
  headgate.dev/adapter: config-map}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other-ca, namespace: shop, labels: {app.kubernetes.io/managed-by: headgate}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: theirs, namespace: shop, labels: {headgate.dev/adapter: config-map}}
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: plugin, namespace: shop, labels: {app.kubernetes.io/managed-by: headgate,
  headgate.dev/adapter: istio}}
spec: {url: 'http://headgate.headgate-system.svc:18002/modules/x.wasm'}
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: theirs, namespace: shop}
spec: {url: 'http://example.com/x.wasm'}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: native, namespace: shop, labels: {app.kubernetes.io/managed-by: headgate,
  headgate.dev/adapter: istio-native}}
spec: {}
---
apiVersion: v1
kind: Pod
metadata: {name: proxy, namespace: shop}
spec:
  containers: [{name: envoy, image: envoy}]
  volumes:
  - name: files
    projected: {sources: [{configMap: {name: mounted}}]}
";
    let server = ApiServer::start().unwrap();
    chart::install_crds(&server, "istio").unwrap();
    for namespace in [NAMESPACE, "shop"] {
        server.kubectl(&["create", "namespace", namespace]).unwrap();
    }
    let folder = chart::folder();
    let folder = folder.to_str().unwrap();
    server
        .helm(&["install", "headgate", folder, "--namespace", NAMESPACE])
        .unwrap();
    let operators = || {
        let selector = "--selector=app.kubernetes.io/component=operator";
        let pods = server
            .get(&["pods", "--namespace", NAMESPACE, selector])
            .unwrap();
        pods["items"].as_array().unwrap().clone()
    };
    let pods = || operators().len();
    wait::until("the operators' Pods", || match pods() {
        2 => Ok(()),
        n => Err(format!("{n} Pods")),
    })
    .unwrap();
    // Scaling the Deployment to zero leaves a Pod that was evicted.
    let evicted = &operators()[0]["metadata"]["name"];
    let patch = [
        "patch",
        "pod",
        evicted.as_str().unwrap(),
        "--namespace",
        NAMESPACE,
        "--subresource=status",
        r#"--patch={"status": {"phase": "Failed", "reason": "Evicted"}}"#,
    ];
    server.kubectl(&patch).unwrap();
    wait::until("another Pod in place of the evicted one", || match pods() {
        3 => Ok(()),
        n => Err(format!("{n} Pods")),
    })
    .unwrap();
    wait::until("the objects", || {
        server.apply(OBJECTS).map_err(|error| format!("{error:#}"))
    })
    .unwrap();
    let hooks = chart::helm(&[
        "template",
        "headgate",
        folder,
        "--namespace",
        NAMESPACE,
        "--show-only=templates/clean-up.yaml",
    ])
    .unwrap();
    server.apply(&hooks).unwrap();
    let job = server
        .get(&["job", "headgate-clean-up", "--namespace", NAMESPACE])
        .unwrap();
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    let kubeconfig = server
        .service_account_kubeconfig(NAMESPACE, "headgate-clean-up")
        .unwrap();
    // A Pod has this default namespace, too.
    let namespace = [
        "config",
        "set-context",
        "--current",
        "--namespace",
        NAMESPACE,
    ];
    server.kubectl_as(&kubeconfig, &namespace, None).unwrap();
    let clean_up = || {
        let output = Command::new(binary_path())
            .args(
                container["args"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|a| a.as_str().unwrap()),
            )
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{out}{err}");
        (out, err)
    };
    let (out, err) = clean_up();
    assert_eq!(pods(), 1, "the evicted one");
    assert_eq!(
        out,
        "deleted WasmPlugin shop/plugin\ndeleted EnvoyFilter shop/native\n\
         deleted ConfigMap shop/delivered\ndeleted ConfigMap shop/headgate-ca\n"
    );
    assert_eq!(
        err,
        "warning: ConfigMap shop/mounted stays: a Pod mounts it\n"
    );
    let left = |kind: &str| -> Vec<String> {
        let list = server.get(&[kind, "--namespace=shop"]).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        let names = items.map(|o| o["metadata"]["name"].as_str().unwrap().to_owned());
        names.filter(|name| name != "kube-root-ca.crt").collect()
    };
    assert_eq!(left("configmaps"), ["mounted", "other-ca", "theirs"]);
    assert_eq!(left("wasmplugins"), ["theirs"]);
    assert!(left("envoyfilters").is_empty());
    // A second Job of the same hook has no work.
    assert_eq!(clean_up().0, "");

    let user = format!("system:serviceaccount:{NAMESPACE}:headgate-clean-up");
    let mut granted = Permissions::new();
    for role in ["clusterrole", "role"] {
        let role = server
            .get(&[role, "headgate-clean-up", "--namespace", NAMESPACE])
            .unwrap();
        granted.extend(of_rules(&role));
    }
    // This cluster has no CRD of Envoy Gateway, and no object of the kind that came with Istio
    // 1.30.
    granted.retain(|p| p != "delete gateway.envoyproxy.io/envoyextensionpolicies");
    granted.retain(|p| p != "delete extensions.istio.io/trafficextensions");
    // The audit log may lag behind.
    wait::until("what was granted to be used", || {
        let mut events = server.audit(Default::default()).unwrap();
        events.retain(|event| event.user == user);
        assert!(events.iter().all(|e| e.code != 403), "{events:#?}");
        match used(&events) {
            used if used == granted => Ok(()),
            used => Err(format!("{used:?}, granted {granted:?}")),
        }
    })
    .unwrap();
}
