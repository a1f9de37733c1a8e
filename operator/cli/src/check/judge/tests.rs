use std::time::UNIX_EPOCH;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::json;

use super::super::finding::Verdict::{Error, Ok as Fine, Skipped, Warning};
use super::super::finding::{Checked, table};
use super::*;
use headgate_controller::kubernetes::crd;
use headgate_controller::kubernetes::resource::PolicyResource;
use headgate_deliver::Adapter;
use headgate_xds::certificate::new_authority;

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
}

fn installation(arguments: &[&str]) -> Installation {
    Installation {
        name: "headgate".to_owned(),
        namespace: "system".to_owned(),
        service_account: "headgate".to_owned(),
        arguments: arguments.iter().map(|a| (*a).to_owned()).collect(),
        replicas: 2,
        ..Installation::default()
    }
}

#[test]
fn an_old_api_server_is_an_error() {
    for (version, verdict) in [
        (Some("v1.34.1"), Fine),
        (Some("v1.30.0-gke.1"), Fine),
        (Some("v1.29+"), Error),
        (Some("v1.29.9"), Error),
        (None, Fine),
    ] {
        assert_eq!(server(version).verdict, verdict, "{version:?}");
    }
}

#[test]
fn clocks_may_differ_by_half_a_minute() {
    assert_eq!(clock("x", at(100), at(70)).verdict, Fine);
    assert_eq!(clock("x", at(70), at(100)).verdict, Fine);
    let ahead = clock("this clock", at(131), at(100));
    assert_eq!(ahead.verdict, Warning);
    assert_eq!(ahead.message, "this clock is 31s ahead of the API server's");
    let behind = clock("this clock", at(0), at(100)).message;
    assert_eq!(behind, "this clock is 100s behind the API server's");
}

#[test]
fn the_crd_is_compared_field_by_field() {
    let own = crd::definition().unwrap();
    assert_eq!(definition(Some(&own), &own).verdict, Fine);
    assert_eq!(definition(None, &own).verdict, Error);

    let changed = |change: &dyn Fn(&mut Value)| {
        let mut value = serde_json::to_value(&own).unwrap();
        change(&mut value["spec"]["versions"][0]);
        serde_json::from_value::<CustomResourceDefinition>(value).unwrap()
    };
    const SPEC: &str = "/schema/openAPIV3Schema/properties/spec/properties";
    let older = changed(&|version| {
        let fields = version.pointer_mut(SPEC).unwrap().as_object_mut().unwrap();
        fields.remove("mode").unwrap();
    });
    let found = definition(Some(&older), &own);
    assert_eq!(found.verdict, Error);
    assert!(
        found.message.ends_with("drops spec.mode from policies"),
        "{found:?}"
    );
    let newer = definition(Some(&own), &older);
    assert_eq!(newer.verdict, Warning);
    assert!(newer.message.ends_with("it has spec.mode"), "{newer:?}");
    let rules = changed(&|version| {
        version.pointer_mut(SPEC).unwrap()["mode"]["description"] = json!("another");
    });
    assert_eq!(definition(Some(&rules), &own).verdict, Warning);
    let unserved = changed(&|version| version["served"] = json!(false));
    assert_eq!(definition(Some(&unserved), &own).verdict, Error);
}

#[test]
fn some_replicas_are_a_warning_and_none_an_error() {
    for (ready, verdict) in [(0, Error), (1, Warning), (2, Fine)] {
        let mut found = installation(&[]);
        found.ready = ready;
        assert_eq!(deployment("system/headgate", Some(&found)).verdict, verdict);
    }
    assert_eq!(deployment("system/headgate", None).verdict, Error);
}

#[test]
fn versions_may_differ_by_one_minor() {
    let (major, minor) = minor(OWN).unwrap();
    let of = |minor: u32| format!("{major}.{minor}.7");
    let judged = |all: &[&str]| versions(&all.iter().copied().collect()).verdict;
    assert_eq!(judged(&[OWN]), Fine);
    assert_eq!(judged(&[&of(minor + 1)]), Fine);
    assert_eq!(judged(&[&of(minor + 2)]), Warning);
    assert_eq!(judged(&[&format!("{}.{minor}.0", major + 1)]), Warning);
    assert_eq!(judged(&["dev"]), Warning);
    assert_eq!(judged(&[OWN, &of(minor + 1)]), Warning);
    assert_eq!(judged(&[]), Skipped);
}

#[test]
fn a_lease_is_stale_after_its_duration() {
    let spec = |holder: &str| LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(15),
        renew_time: Some(MicroTime(Timestamp::try_from(at(0)).unwrap())),
        ..LeaseSpec::default()
    };
    let judged = |spec: &LeaseSpec, now| lease("system/headgate", Some(spec), at(now)).verdict;
    assert_eq!(judged(&spec("a"), 16), Fine);
    assert_eq!(judged(&spec("a"), 17), Error);
    assert_eq!(judged(&spec(""), 0), Error);
    assert_eq!(lease("system/headgate", None, at(0)).verdict, Error);
}

#[test]
fn a_certificate_is_reported_before_it_expires() {
    let day = 86_400;
    let life = Duration::from_secs(10 * day);
    let pem = new_authority("x", life, at(0)).unwrap().cert;
    let judged = |now| certificate("Secret a/b", Some(pem.as_bytes()), at(now)).verdict;
    assert_eq!(judged(8 * day), Fine);
    assert_eq!(judged(9 * day), Warning);
    assert_eq!(judged(11 * day), Error);
    assert_eq!(certificate("x", Some(b"none"), at(0)).verdict, Error);
    assert_eq!(certificate("x", None, at(0)).verdict, Error);
}

#[test]
fn each_namespace_has_the_same_ca() {
    let all = ["a", "b"].map(str::to_owned);
    let both = BTreeMap::from([("a", "CA\n"), ("b", "CA\n")].map(|(n, c)| (n.into(), c.into())));
    let judged = |found, authority| published("headgate-ca", &all, found, authority);
    assert_eq!(judged(&both, Some("CA")).verdict, Fine);
    assert_eq!(judged(&both, None).verdict, Fine);
    let replaced =
        BTreeMap::from([("a", "NEW\nCA\n"), ("b", "NEW\nCA\n")].map(|(n, c)| (n.into(), c.into())));
    assert_eq!(judged(&replaced, Some("NEW\n")).verdict, Fine);
    let block = |name| format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n");
    let first = BTreeMap::from(["a", "b"].map(|n| (n.to_owned(), block("intermediate"))));
    let chain = block("intermediate") + &block("root");
    assert_eq!(judged(&first, Some(&chain)).verdict, Fine);
    let other = judged(&both, Some("other"));
    assert_eq!(
        other.message,
        "ConfigMap headgate-ca has another CA in a, b"
    );
    // The operator doesn't write in namespaces that it doesn't watch or that are being deleted.
    let left = both.iter().map(|(n, c)| (n.clone(), c.clone()));
    let old = ("left".to_owned(), "OLD".to_owned());
    let left = left.chain([old]).collect();
    let message = judged(&left, Some("CA")).message;
    assert_eq!(message, "ConfigMap headgate-ca is in 2 namespaces");
    let one = BTreeMap::from([("b".to_owned(), "CA".to_owned())]);
    let missing = judged(&one, None);
    assert_eq!(missing.verdict, Error);
    assert!(
        missing
            .message
            .starts_with("no ConfigMap headgate-ca in a:")
    );
}

fn view(of: &[(&str, &str)]) -> View {
    let policy = |(name, programmed): &(&str, &str)| -> PolicyResource {
        let condition = |kind: &str, reason: &str| {
            json!({
                "type": kind, "reason": reason, "message": "m", "observedGeneration": 1,
                "status": if kind == reason { "True" } else { "False" },
                "lastTransitionTime": "2026-03-01T12:00:00Z",
            })
        };
        let accepted = match *programmed {
            "TargetNotFound" => programmed,
            _ => "Accepted",
        };
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop", "generation": 1},
            "spec": {"targetRefs": [{"kind": "Service", "name": "search"}]},
            "status": {"ancestors": [{
                "ancestorRef": {"group": "", "kind": "Service", "name": "search"},
                "controllerName": "headgate.dev/controller",
                "conditions": [
                    condition("Accepted", accepted),
                    condition("Programmed", programmed),
                ],
            }]},
        }))
        .unwrap()
    };
    let policies: Vec<PolicyResource> = of.iter().map(policy).collect();
    View::new(&policies, &[], Vec::new(), None)
}

#[test]
fn a_policy_without_proxies_is_a_warning_and_a_wrong_one_an_error() {
    assert_eq!(policies(&view(&[])).verdict, Fine);
    assert_eq!(policies(&view(&[("a", "Programmed")])).verdict, Fine);
    let alone = policies(&view(&[("a", "Programmed"), ("b", "NoProxies")]));
    assert_eq!(alone.verdict, Warning);
    assert_eq!(
        alone.message,
        "1 of 2 aren't programmed: shop/b (NoProxies)"
    );
    let wrong = policies(&view(&[("a", "NoProxies"), ("b", "TargetNotFound")]));
    assert_eq!(wrong.verdict, Error);
    let named = "2 of 2 aren't programmed: shop/b (TargetNotFound), shop/a (NoProxies)";
    assert_eq!(wrong.message, named);
}

fn operator(proxies: &Value) -> Operator {
    let report = json!({
        "time": "2026-03-01T12:00:00Z", "version": OWN,
        "module": {"path": "/m", "hash": "0", "bytes": 1},
        "policies": [], "proxies": proxies, "problems": [],
    });
    Operator {
        pod: "system/headgate-0".to_owned(),
        report: Ok(serde_json::from_value(report).unwrap()),
    }
}

fn proxy(node: &str, namespace: &str, more: &Value) -> Value {
    let mut proxy = json!({
        "node": node, "cluster": "c", "target": null, "namespace": namespace, "peer": "p",
        "slots": ["headgate"], "policies": [],
        "connected": "2026-03-01T12:00:00Z", "disconnected": null, "state": "Running",
        "problem": null, "sent": null, "acked": null, "nack": null,
    });
    let more = more.as_object().unwrap().clone();
    proxy.as_object_mut().unwrap().extend(more);
    proxy
}

#[test]
fn proxies_with_problems_are_named() {
    let judged = |more: &Value| {
        let operator = operator(&json!([proxy("p1", "shop", more)]));
        proxies(operator.report.unwrap().proxies.iter(), at(0))
    };
    assert_eq!(judged(&json!({})).verdict, Fine);
    assert_eq!(judged(&json!({"expires": rfc3339(at(1))})).verdict, Fine);
    let problem = judged(&json!({"problem": "no identity"}));
    assert_eq!(problem.verdict, Error);
    assert_eq!(problem.message, "1 of 1 have a problem: p1: no identity");
    assert_eq!(judged(&json!({"state": "Rejected"})).verdict, Error);
    assert_eq!(judged(&json!({"slots": []})).verdict, Error);
    assert_eq!(
        judged(&json!({"expires": "2020-01-01T00:00:00Z"})).verdict,
        Error
    );
    let gone = json!({"problem": "no identity", "disconnected": "2026-03-01T12:00:00Z"});
    assert_eq!(judged(&gone).message, "0 connected");
}

#[test]
fn an_operator_that_does_not_serve_its_module_is_named() {
    let here = || {
        Ok(Some(
            "no such module here; available: /modules/0aff.wasm\n".to_owned(),
        ))
    };
    let fine = module(&[("system/a", "0a", here()), ("system/b", "0aff", here())]);
    assert_eq!(
        (fine.verdict, &*fine.message),
        (Fine, "served by 2 operators")
    );
    let away = Err("503: no route".to_owned());
    let found = module(&[("system/a", "0a", away), ("system/b", "1b", here())]);
    assert_eq!(found.verdict, Error);
    assert_eq!(
        found.message,
        "2 of 2 operators don't serve it: system/a: 503: no route, system/b: no such module here; \
         available: /modules/0aff.wasm"
    );
    let shut = module(&[("system/a", "0a", Ok(None)), ("system/b", "0aff", here())]);
    assert_eq!(
        (shut.verdict, &*shut.message),
        (
            Skipped,
            "the API server can't reach the modules' port of system/a; a NetworkPolicy may admit \
             only proxies"
        )
    );
}

#[test]
fn an_injected_pod_that_no_operator_knows_is_named() {
    let gone = json!({"disconnected": "2026-03-01T12:00:00Z"});
    let known = [operator(&json!([
        proxy("a", "shop", &json!({})),
        proxy("b", "shop", &gone),
        proxy("c", "bank", &json!({})),
    ]))];
    let pod = |name: &str| ("shop".to_owned(), name.to_owned());
    assert_eq!(pods(&[pod("a")], &known).verdict, Fine);
    let apart = pods(&["a", "b", "c", "d"].map(pod), &known);
    assert_eq!(apart.verdict, Warning);
    let named = "3 with a sidecar aren't connected: shop/b, shop/c, shop/d";
    assert_eq!(apart.message, named);
}

/// Returns the Pods of `search` with a sidecar. The application's port had the name `http` before.
fn injected_pods() -> [ObjectMeta; 1] {
    let mark = r#"{"initContainers": [], "volumes": [], "labels": [], "appPort": 8080,
                   "portName": "http"}"#;
    [serde_json::from_value(json!({
        "name": "search-1", "namespace": "shop", "labels": {"app": "search", "v": "1"},
        "annotations": {INJECTED_ANNOTATION: mark},
    }))
    .unwrap()]
}

fn service(namespace: &str, app: &str, port: &Value) -> Service {
    serde_json::from_value(json!({
        "metadata": {"name": "search", "namespace": namespace},
        "spec": {"selector": {"app": app}, "ports": [port]},
    }))
    .unwrap()
}

#[test]
fn a_service_that_passes_envoy_by_is_named() {
    let pods = injected_pods();
    let number = json!({"port": 80, "targetPort": 8080});
    for (passes, namespace, app, port) in [
        (true, "shop", "search", &number),
        (true, "shop", "search", &json!({"port": 8080})),
        (
            false,
            "shop",
            "search",
            &json!({"port": 80, "targetPort": "http"}),
        ),
        (
            false,
            "shop",
            "search",
            &json!({"port": 80, "targetPort": 9902}),
        ),
        (
            false,
            "shop",
            "search",
            &json!({"port": 8080, "protocol": "UDP"}),
        ),
        (false, "shop", "other", &number),
        (false, "bank", "search", &number),
    ] {
        let judged = services(&[service(namespace, app, port)], &pods, None);
        let verdict = if passes { Warning } else { Fine };
        assert_eq!(judged.verdict, verdict, "{namespace} {app} {port}");
    }
    let judged = services(&[service("shop", "search", &number)], &pods, None);
    let named = "1 bypass Envoy: shop/search (targetPort 8080)";
    assert_eq!(judged.message, named);
    let mut headless = service(
        "shop",
        "search",
        &json!({"port": 8080, "targetPort": "http"}),
    );
    headless.spec.as_mut().unwrap().cluster_ip = Some("None".to_owned());
    let judged = services(&[headless], &pods, None);
    let named = "1 bypass Envoy: shop/search (targetPort http, headless)";
    assert_eq!((judged.verdict, judged.message.as_str()), (Warning, named));
    let without_selector: Service = serde_json::from_value(json!({
        "metadata": {"name": "search", "namespace": "shop"}, "spec": {"ports": [number]},
    }))
    .unwrap();
    assert_eq!(services(&[without_selector], &pods, None).verdict, Fine);
}

/// Kubernetes before 1.33 looks for a port's name in ordinary containers only.
#[test]
fn a_service_that_finds_no_port_of_a_sidecar_is_named() {
    let pods = injected_pods();
    for (version, target, verdict) in [
        ("v1.32.8", json!("http"), Error),
        ("v1.33.0", json!("http"), Fine),
        ("v1.32.8", json!("metrics"), Fine),
        ("v1.32.8", json!(10_000), Fine),
        ("v1.32.8", json!(8080), Warning),
    ] {
        let port = json!({"port": 80, "targetPort": target});
        let judged = services(&[service("shop", "search", &port)], &pods, Some(version));
        assert_eq!(judged.verdict, verdict, "{version} {target}");
        if verdict == Error {
            let named = "shop/search (targetPort http)";
            assert!(judged.message.ends_with(named), "{}", judged.message);
        }
    }
}

#[test]
fn rights_are_those_of_the_arguments() {
    use super::super::rights::needed;
    let names = |arguments: &[&str]| -> Vec<String> {
        let all = needed(&installation(arguments));
        all.iter().map(ToString::to_string).collect()
    };
    let has = |arguments: &[&str], right: &str| names(arguments).iter().any(|n| n == right);
    assert!(has(&[], "patch headgate.dev/admissionpolicies/status"));
    assert!(has(
        &[],
        "patch coordination.k8s.io/leases headgate in system"
    ));
    assert!(!has(
        &["--leader-elect=false"],
        "create coordination.k8s.io/leases in system"
    ));
    assert!(!has(&[], "patch configmaps headgate-ca"));
    assert!(has(
        &["--publish-ca=headgate-ca"],
        "patch configmaps headgate-ca"
    ));
    assert!(has(&["--tls-authority=x"], "get secrets x in system"));
    assert!(has(
        &["--watch-namespace=a", "--watch-namespace=b"],
        "list pods in b"
    ));
    assert!(!has(&["--watch-namespace=a"], "list pods"));
    // Replicas find each other by them.
    assert!(has(
        &["--watch-namespace=a"],
        "watch discovery.k8s.io/endpointslices in system"
    ));
    assert!(!has(&[], "watch discovery.k8s.io/endpointslices in system"));
    assert!(has(&["--namespace-selector=a=b"], "watch namespaces"));
    assert!(has(
        &["--injection-webhook=headgate"],
        "patch admissionregistration.k8s.io/mutatingwebhookconfigurations headgate"
    ));
    let plugin = "delete extensions.istio.io/wasmplugins";
    assert!(has(&["--adapters=envoy-gateway,istio"], plugin));
    assert!(!has(&["--adapters=none"], plugin));
    assert!(!has(&["--adapters=istio", "--istio-native=/x"], plugin));
    // Each adapter must have an argument that turns it on. A new adapter's argument is added here.
    let on = ["--deliver-config-maps", "--adapters=istio,envoy-gateway"];
    let native = [&on[..], &["--istio-native=/x"]].concat();
    for adapter in Adapter::ALL {
        let of = adapter.resource();
        let plural = format!("{}/{}", of.group, of.plural);
        let right = format!("delete {}", plural.trim_start_matches('/'));
        assert!(has(&on, &right) || has(&native, &right), "{right}");
        assert!(!has(&[], &right), "{right}");
    }
    let lacking = needed(&installation(&[]));
    let found = rights("ServiceAccount system/headgate", 9, &lacking[..1]);
    assert_eq!(found.verdict, Error);
    assert!(
        found
            .message
            .ends_with("may not create authentication.k8s.io/tokenreviews")
    );
}

#[test]
fn control_planes_serve_what_is_written() {
    let served = |of: &[(&'static str, &str, &str)]| -> Served {
        let one = |(kind, version, schema): &(&'static str, &str, &str)| {
            (*kind, (vec![(*version).to_owned()], (*schema).to_owned()))
        };
        of.iter().map(one).collect()
    };
    let plugin = ("wasmplugins.extensions.istio.io", "v1alpha1", "");
    let extension = ("trafficextensions.extensions.istio.io", "v1alpha1", "");
    let filter = ("envoyfilters.networking.istio.io", "v1alpha3", "");
    let old = ("wasmplugins.extensions.istio.io", "v1alpha0", "");
    for (of, is_native, verdict) in [
        (vec![], false, Error),
        (vec![old], false, Error),
        (vec![plugin], false, Fine),
        (vec![plugin, filter], true, Error),
        (vec![plugin, extension, filter], true, Fine),
        (vec![extension], true, Error),
        (vec![extension], false, Fine),
    ] {
        let found = istio(&served(&of), is_native, &Versions::new());
        assert_eq!(found.verdict, verdict, "{of:?}");
    }
    let running = |of: &[Option<&str>]| -> Versions {
        let owned = |version: &Option<&str>| version.map(str::to_owned);
        of.iter().map(owned).collect()
    };
    // CRDs are upgraded before istiod, so the running version decides which kind is written.
    let [older, newer, custom] = [Some("1.29.3"), Some("1.31.0"), Some("latest")];
    for (of, is_native, verdict, message) in [
        (&[older][..], false, Fine, "WasmPlugin for istiod 1.29.3"),
        (
            &[older, newer],
            false,
            Fine,
            "WasmPlugin for istiod 1.29.3 and 1.31.0",
        ),
        (
            &[None],
            false,
            Fine,
            "WasmPlugin for istiod without a version",
        ),
        (&[newer], false, Fine, "TrafficExtension for istiod 1.31.0"),
        (&[custom], true, Fine, "EnvoyFilter for istiod latest"),
        (
            &[],
            true,
            Fine,
            "its CRDs are of 1.30 or newer (EnvoyFilter)",
        ),
        (
            &[older],
            true,
            Error,
            "the native filter needs Istio 1.30 or newer, and istiod 1.29.3 runs",
        ),
    ] {
        let all = served(&[plugin, extension, filter]);
        let found = istio(&all, is_native, &running(of));
        assert_eq!((found.verdict, found.message.as_str()), (verdict, message));
    }
    let policy = |schema| {
        (
            "envoyextensionpolicies.gateway.envoyproxy.io",
            "v1alpha1",
            schema,
        )
    };
    let (native, none) = (policy("wasm dynamicModule"), running(&[]));
    for (of, is_native, versions, verdict) in [
        (vec![], false, &none, Error),
        (vec![policy("wasm")], false, &none, Fine),
        (vec![policy("wasm")], true, &none, Error),
        (vec![native], true, &none, Fine),
        (vec![native], true, &running(&[Some("v1.8.2")]), Error),
        (vec![native], true, &running(&[Some("v1.9.0"), None]), Fine),
    ] {
        let found = envoy_gateway(&served(&of), is_native, versions);
        assert_eq!(found.verdict, verdict, "{of:?}");
    }
    let found = envoy_gateway(&served(&[native]), false, &running(&[Some("v1.9.0")]));
    assert!(found.message.ends_with("for Envoy Gateway v1.9.0"));
}

#[test]
fn a_finding_is_a_line_with_its_fix() {
    let checked = |(check, finding)| Checked { check, finding };
    let findings = [
        ("a", Finding::ok("well")),
        ("check", Finding::error("broken\n", "mend it")),
    ];
    let findings = findings.map(checked);
    let lines =
        "VERDICT   CHECK   FINDING\nok        a       well\nerror     check   broken ; mend it\n";
    assert_eq!(table(&findings), lines);
}
