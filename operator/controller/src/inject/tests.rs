use super::*;
use headgate_xds::module::Kind;

pub(super) fn settings() -> Settings {
    Settings {
        image: "headgate:1".into(),
        envoy_image: "envoy:2".into(),
        xds: "headgate.headgate-system.svc:18000".parse().unwrap(),
        ca_config_map: "headgate-ca".into(),
        tls_secret: None,
        listen_port: 10_000,
        app_port: None,
        upstream_http2: false,
        concurrency: 3,
        filter: Kind::Wasm,
        no_run_as_user: false,
        proxy_cpu_request: "100m".into(),
        proxy_cpu_limit: None,
        proxy_memory_request: "96Mi".into(),
        proxy_memory_limit: "256Mi".into(),
    }
}

fn deployment() -> Value {
    serde_saphyr::from_str(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {name: search, namespace: shop}
spec:
  template:
    metadata: {labels: {app: search}}
    spec:
      initContainers: [{name: migrate, image: m}]
      containers:
      - name: search
        image: s
        ports: [{name: http, containerPort: 8080}, {name: dns, containerPort: 53, protocol: UDP}]
        readinessProbe: {httpGet: {path: /, port: http}}
        lifecycle: {preStop: {httpGet: {port: http}}}
",
    )
    .unwrap()
}

fn injected(object: &mut Value) -> Injected {
    match inject(object, &settings()) {
        Ok(Outcome::Injected(injected)) => injected,
        other => panic!("{other:?}"),
    }
}

#[test]
fn envoy_stands_in_front_of_the_applications_port_and_has_its_name() {
    let mut object = deployment();
    let injected = injected(&mut object);
    assert_eq!(
        (injected.app_port, injected.port_name.as_str()),
        (8080, "http")
    );
    let template = &object["spec"]["template"];
    let spec = &template["spec"];
    assert_eq!(
        names(&spec["initContainers"]),
        ["headgate", "envoy", "migrate"]
    );
    assert_eq!(
        names(&spec["volumes"]),
        ["headgate", "headgate-tls", "headgate-podinfo"]
    );
    let [headgate, envoy] = [0, 1].map(|at| &spec["initContainers"][at]);
    let args: Vec<&str> = headgate["args"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for argument in [
        "--listen=[::]:10000",
        "--upstream=localhost:8080",
        "--admin=127.0.0.1:9901",
        "--stats=[::]:9902",
        "--xds=headgate.headgate-system.svc:18000",
    ] {
        assert!(args.contains(&argument), "{argument} in {args:?}");
    }
    assert_eq!(
        (&headgate["image"], &envoy["image"]),
        (&json!("headgate:1"), &json!("envoy:2"))
    );
    assert_eq!(
        envoy["ports"][0],
        json!({"name": "http", "containerPort": 10_000})
    );
    assert_eq!(envoy["args"][3], "3");
    assert_eq!(
        spec["volumes"][1]["projected"]["sources"],
        json!([
            {"serviceAccountToken": {
                "audience": "headgate",
                "path": "token",
                "expirationSeconds": 3600,
            }},
            {"configMap": {"name": "headgate-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ])
    );
    assert_eq!(
        template["metadata"]["labels"],
        json!({"app": "search", "headgate.dev/proxy": "true"})
    );
    let application = &spec["containers"][0];
    assert_eq!(application["ports"][0], json!({"containerPort": 8080}));
    assert_eq!(application["readinessProbe"]["httpGet"]["port"], 8080);
    assert_eq!(application["lifecycle"]["preStop"]["httpGet"]["port"], 8080);
    // No placeholder of the template remains.
    let text = object.to_string();
    let word = |word: &&str| text.contains(*word);
    assert_eq!(
        [
            "IMAGE",
            "XDS",
            "_PORT",
            "SECRET",
            "CONCURRENCY",
            "PORT_NAME"
        ]
        .iter()
        .find(|w| word(w)),
        None
    );
}

#[test]
fn a_second_injection_changes_nothing_and_another_version_replaces_the_first() {
    let mut object = deployment();
    let first = injected(&mut object);
    let once = object.clone();
    assert_eq!(injected(&mut object), first);
    assert_eq!(object, once);
    let newer = Settings {
        image: "headgate:9".into(),
        filter: Kind::Native,
        ..settings()
    };
    inject(&mut object, &newer).unwrap();
    let spec = &object["spec"]["template"]["spec"];
    let headgate = &spec["initContainers"][0];
    assert_eq!(headgate["image"], "headgate:9");
    let native = json!("--filter=native");
    assert!(headgate["args"].as_array().unwrap().contains(&native));
    assert_eq!(
        names(&spec["initContainers"]),
        ["headgate", "envoy", "migrate"]
    );
}

#[test]
fn services_reach_envoy() {
    let mut object = deployment();
    let injected = injected(&mut object);
    let service = |namespace: &str, app: &str, port: Value| {
        json!({"kind": "Service", "metadata": {"namespace": namespace},
            "spec": {"selector": {"app": app}, "ports": [port]}})
    };
    for (port, target) in [
        (json!({"port": 80, "targetPort": 8080}), json!("http")),
        (json!({"port": 8080}), json!("http")),
        (json!({"port": 80, "targetPort": "http"}), json!("http")),
    ] {
        let mut service = service("shop", "search", port);
        let before = service.clone();
        for _ in 0..2 {
            assert_eq!(redirect(&mut service, &injected), Ok(true));
            assert_eq!(service["spec"]["ports"][0]["targetPort"], target);
        }
        let is_changed = service != before;
        assert_eq!(uninject(&mut service), Ok(is_changed));
        assert_eq!(service, before);
    }
    for (namespace, app, port) in [
        ("shop", "search", json!({"port": 80, "targetPort": 9090})),
        ("shop", "other", json!({"port": 80, "targetPort": 8080})),
        (
            "elsewhere",
            "search",
            json!({"port": 80, "targetPort": 8080}),
        ),
    ] {
        let mut service = service(namespace, app, port);
        let before = service.clone();
        assert_eq!(redirect(&mut service, &injected), Ok(false));
        assert_eq!(service, before);
    }
}

#[test]
fn a_service_follows_an_injection_in_front_of_another_port() {
    let mut object = deployment();
    object["spec"]["template"]["spec"]["containers"][0]["ports"] =
        json!([{"containerPort": 8080}, {"containerPort": 9090, "name": "api"}]);
    let with_port = |port: u16| Settings {
        app_port: Some(port),
        ..settings()
    };
    let mut service = json!({
        "kind": "Service", "metadata": {"namespace": "shop"},
        "spec": {"selector": {"app": "search"}, "ports": [
            {"port": 80, "targetPort": 8080}, {"port": 81, "targetPort": 9090},
        ]},
    });
    let before = service.clone();
    for (port, targets) in [
        (8080, [json!("headgate-http"), json!(9090)]),
        (9090, [json!(8080), json!("api")]),
        (9090, [json!(8080), json!("api")]),
    ] {
        let Ok(Outcome::Injected(injected)) = inject(&mut object, &with_port(port)) else {
            panic!("not injected in front of {port}");
        };
        assert_eq!(reset(&mut service, std::slice::from_ref(&injected)), Ok(()));
        assert_eq!(redirect(&mut service, &injected), Ok(true));
        let ports = &service["spec"]["ports"];
        assert_eq!([0, 1].map(|at| ports[at]["targetPort"].clone()), targets);
    }
    assert_eq!(uninject(&mut service), Ok(true));
    assert_eq!(service, before);
}

#[test]
fn a_service_keeps_its_ports_for_a_workload_that_is_not_injected_again() {
    let mut service = json!({
        "kind": "Service", "metadata": {"namespace": "shop"},
        "spec": {"selector": {"app": "search"}, "ports": [
            {"port": 80, "targetPort": 8080}, {"port": 81, "targetPort": 9090},
        ]},
    });
    let before = service.clone();
    let [mut one, mut other] = [deployment(), deployment()];
    other["spec"]["template"]["spec"]["containers"][0]["ports"] =
        json!([{"containerPort": 9090, "name": "api"}]);
    let mut inject_into = |object: &mut Value| {
        let injected = injected(object);
        assert_eq!(reset(&mut service, std::slice::from_ref(&injected)), Ok(()));
        assert_eq!(redirect(&mut service, &injected), Ok(true));
        [0, 1].map(|at| service["spec"]["ports"][at]["targetPort"].clone())
    };
    inject_into(&mut one);
    for object in [&mut other, &mut one] {
        assert_eq!(inject_into(object), ["http", "api"]);
    }
    assert_eq!(uninject(&mut service), Ok(true));
    assert_eq!(service, before);
}

/// HTTP/3 listens on the same number as HTTPS.
#[test]
fn a_udp_port_with_the_number_of_the_applications_port_keeps_its_name() {
    let mut object = deployment();
    let container = &mut object["spec"]["template"]["spec"]["containers"][0];
    container["ports"] = json!([
        {"name": "quic", "containerPort": 8443, "protocol": "UDP"},
        {"name": "http", "containerPort": 8443, "protocol": "TCP"},
    ]);
    let before = object.clone();
    let injected = injected(&mut object);
    assert_eq!(
        (injected.app_port, injected.port_name.as_str()),
        (8443, "http")
    );
    let spec = &object["spec"]["template"]["spec"];
    assert_eq!(
        spec["containers"][0]["ports"],
        json!([
            {"name": "quic", "containerPort": 8443, "protocol": "UDP"},
            {"containerPort": 8443, "protocol": "TCP"},
        ])
    );
    assert_eq!(spec["initContainers"][1]["ports"][0]["name"], "http");
    assert_eq!(uninject(&mut object), Ok(true));
    assert_eq!(object, before);
}

#[test]
fn an_error_asks_for_a_port_that_nothing_names() {
    let mut object = deployment();
    object["spec"]["template"]["spec"]["containers"][0]["ports"] =
        json!([{"containerPort": 8080}, {"containerPort": 9090}]);
    let problem = inject(&mut object, &settings()).unwrap_err();
    assert_eq!(
        problem,
        "Deployment shop/search: its containers have ports 8080, 9090: select the one behind Envoy \
         with the annotation headgate.dev/app-port of its Pods or with --app-port"
    );
    object["spec"]["template"]["metadata"]["annotations"] = json!({APP_PORT_ANNOTATION: "9090"});
    let injected = injected(&mut object);
    assert_eq!(
        (
            injected.app_port,
            injected.port_name.as_str(),
            injected.took_name
        ),
        (9090, PORT_NAME, false)
    );
    for (annotation, part) in [
        ("http", "\"http\" is no port"),
        ("10000", "choose another --listen-port"),
    ] {
        let mut object = deployment();
        object["spec"]["template"]["metadata"]["annotations"] =
            json!({APP_PORT_ANNOTATION: annotation});
        let problem = inject(&mut object, &settings()).unwrap_err();
        assert!(problem.contains(part), "{problem}");
    }
}

#[test]
fn other_kinds_and_excluded_workloads_are_not_injected() {
    let mut config = json!({"kind": "ConfigMap", "metadata": {"name": "c"}});
    assert_eq!(inject(&mut config, &settings()), Ok(Outcome::NoWorkload));
    for change in [
        |t: &mut Value| t["metadata"]["annotations"] = json!({INJECT_ANNOTATION: "disabled"}),
        |t: &mut Value| t["spec"]["hostNetwork"] = json!(true),
    ] {
        let mut object = deployment();
        change(&mut object["spec"]["template"]);
        let before = object.clone();
        assert!(matches!(
            inject(&mut object, &settings()),
            Ok(Outcome::Skipped(_))
        ));
        assert_eq!(object, before);
    }
}

#[test]
fn containers_and_volumes_of_the_same_names_stay() {
    let mut object = deployment();
    let spec = &mut object["spec"]["template"]["spec"];
    spec["initContainers"] = json!([{"name": "envoy", "image": "mine/preflight:1"}]);
    spec["volumes"] = json!([{"name": "headgate-tls", "emptyDir": {}}]);
    spec["containers"][0]["name"] = json!("headgate");
    let before = object.clone();
    for _ in 0..2 {
        injected(&mut object);
        let spec = &object["spec"]["template"]["spec"];
        let containers = &spec["initContainers"];
        assert_eq!(names(containers), ["headgate-2", "envoy-2", "envoy"]);
        assert_eq!(containers[2]["image"], "mine/preflight:1");
        let volumes = ["headgate-2", "headgate-2-tls", "headgate-2-podinfo"];
        assert_eq!(names(&spec["volumes"])[..3], volumes);
        assert_eq!(names(&containers[0]["volumeMounts"]), volumes);
        assert_eq!(names(&containers[1]["volumeMounts"]), volumes[..2]);
    }
    assert_eq!(uninject(&mut object), Ok(true));
    assert_eq!(object, before);
    assert_eq!(uninject(&mut object), Ok(false));
}

#[test]
fn uninject_keeps_later_changes_by_the_user() {
    let mut object = deployment();
    injected(&mut object);
    let template = &mut object["spec"]["template"];
    template["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] = json!(9000);
    template["metadata"]["labels"]["tier"] = json!("front");
    assert_eq!(uninject(&mut object), Ok(true));
    let mut expected = deployment();
    let template = &mut expected["spec"]["template"];
    template["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] = json!(9000);
    template["metadata"]["labels"]["tier"] = json!("front");
    assert_eq!(object, expected);

    let mut object = deployment();
    object["spec"]["template"]["metadata"]["annotations"] = json!({INJECTED_ANNOTATION: "true"});
    for problem in [
        inject(&mut object, &settings()).unwrap_err(),
        uninject(&mut object).unwrap_err(),
    ] {
        let start = "Deployment shop/search: annotation headgate.dev/injected is not as headgate \
                     inject writes it: ";
        assert!(problem.starts_with(start), "{problem}");
    }
}

/// Any client can send an object to the webhook.
#[test]
fn objects_of_a_wrong_shape_never_panic() {
    let mut object = deployment();
    let containers = &mut object["spec"]["template"]["spec"]["containers"];
    containers.as_array_mut().unwrap().insert(0, json!(false));
    assert_eq!(injected(&mut object).app_port, 8080);
    let annotations = json!({INJECTED_ANNOTATION: r#"{"null":8080}"#});
    for spec in [json!(true), json!({"ports": [true]})] {
        let metadata = json!({"annotations": annotations});
        let mut service = json!({"kind": "Service", "metadata": metadata, "spec": spec});
        assert_eq!(uninject(&mut service), Ok(true));
    }
}

#[test]
fn an_earlier_injections_port_is_kept() {
    let mut object = deployment();
    object["spec"]["template"]["spec"]["containers"][0]["ports"] =
        json!([{"containerPort": 8080}, {"containerPort": 9090}]);
    let by_argument = Settings {
        app_port: Some(9090),
        ..settings()
    };
    inject(&mut object, &by_argument).unwrap();
    let once = object.clone();
    assert_eq!(injected(&mut object).app_port, 9090);
    assert_eq!(object, once);
}

#[test]
fn ports_that_envoy_needs_are_not_another_containers() {
    for (port, problem) in [
        (10_000, "for requests: choose another --listen-port"),
        (9901, "for its admin interface"),
        (9902, "for its statistics"),
    ] {
        let mut object = deployment();
        object["spec"]["template"]["spec"]["initContainers"][0]["ports"] =
            json!([{"containerPort": port}]);
        let expected = format!(
            "Deployment shop/search: container migrate has port {port}, which Envoy needs {problem}"
        );
        assert_eq!(inject(&mut object, &settings()), Err(expected));
    }
}

#[test]
fn both_containers_have_the_resources_asked_for() {
    // A quota applies to each container, so one without a CPU limit is refused under `limits.cpu`.
    let resources = |settings: &Settings| {
        let mut object = deployment();
        inject(&mut object, settings).unwrap();
        let containers = &object["spec"]["template"]["spec"]["initContainers"];
        let [headgate, envoy] = [0, 1].map(|at| containers[at]["resources"].clone());
        assert_eq!(headgate, envoy);
        envoy
    };
    assert_eq!(
        resources(&settings()),
        json!({"requests": {"cpu": "100m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}})
    );
    let asked = Settings {
        proxy_cpu_request: "1".into(),
        proxy_cpu_limit: Some("2".into()),
        proxy_memory_request: "1Gi".into(),
        proxy_memory_limit: "2Gi".into(),
        ..settings()
    };
    assert_eq!(
        resources(&asked),
        json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}})
    );
    let too_much = Settings {
        proxy_memory_request: "1Gi".into(),
        ..settings()
    };
    let refused = inject(&mut deployment(), &too_much);
    assert_eq!(
        refused,
        Err(
            "Deployment shop/search: --proxy-memory-request 1Gi is more than \
             --proxy-memory-limit 256Mi"
                .to_owned()
        )
    );
}

#[test]
fn values_stay_single_words_of_the_template() {
    let mut object = deployment();
    let odd = Settings {
        image: "a@sha256:0\", x: [@XDS@".into(),
        ..settings()
    };
    inject(&mut object, &odd).unwrap();
    let containers = &object["spec"]["template"]["spec"]["initContainers"];
    assert_eq!(containers[0]["image"], odd.image.as_str());
}

#[test]
fn network_policies_are_judged_by_the_pods_and_ports_they_name() {
    let mut object = deployment();
    let injected = injected(&mut object);
    let warned = |spec: Value| {
        let policy = json!({"kind": "NetworkPolicy", "metadata": {"name": "n", "namespace": "shop"},
            "spec": spec});
        cut_off(&policy, &injected)
    };
    let all = json!({});
    let app = json!({"ports": [{"port": 8080}]});
    assert_eq!(
        warned(json!({"podSelector": all, "ingress": [app]})).as_deref(),
        Some(
            "NetworkPolicy shop/n admits port 8080 and not port 10000, where Envoy listens: \
             requests to Deployment shop/search are blocked until the policy admits port http"
        )
    );
    let is_one_of = |values: Value| {
        let expression = json!({"key": "app", "operator": "In", "values": values});
        json!({"matchExpressions": [expression]})
    };
    for spec in [
        json!({"podSelector": {"matchLabels": {"app": "search"}}, "ingress": [app]}),
        json!({"podSelector": is_one_of(json!(["search"])), "ingress": [app]}),
        json!({"podSelector": all, "ingress": [{"ports": [{"port": 8000, "endPort": 9000}]}]}),
        json!({"podSelector": all, "ingress": [app], "policyTypes": ["Egress", "Ingress"]}),
    ] {
        assert!(warned(spec.clone()).is_some(), "{spec}");
    }
    for spec in [
        json!({"podSelector": {"matchLabels": {"app": "other"}}, "ingress": [app]}),
        json!({"podSelector": is_one_of(json!(["other"])), "ingress": [app]}),
        json!({"podSelector": all, "ingress": [app], "policyTypes": ["Egress"]}),
        json!({"podSelector": all, "ingress": [app, {"ports": [{"port": 10_000}]}]}),
        json!({"podSelector": all, "ingress": [app, {"ports": [{"port": "http"}]}]}),
        json!({"podSelector": all, "ingress": [app, {}]}),
        json!({"podSelector": all, "ingress": [{"ports": [{"port": 8080, "protocol": "UDP"}]}]}),
        // This policy admits no traffic, with or without Envoy.
        json!({"podSelector": all}),
    ] {
        assert_eq!(warned(spec.clone()), None, "{spec}");
    }
    let elsewhere = json!({"kind": "NetworkPolicy", "metadata": {"name": "n"},
        "spec": {"podSelector": all, "ingress": [app]}});
    assert_eq!(cut_off(&elsewhere, &injected), None);
}

#[test]
fn the_default_image_is_that_of_a_release() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        settings::released(Some("ghcr.io/owner/headgate")),
        Some(format!("ghcr.io/owner/headgate:{version}"))
    );
    for none in [None, Some("")] {
        assert_eq!(settings::released(none), None);
    }
}

#[test]
fn users_are_those_of_the_containers_or_of_the_cluster() {
    let users = |no_run_as_user| {
        let settings = Settings {
            no_run_as_user,
            ..settings()
        };
        let mut object = deployment();
        inject(&mut object, &settings).unwrap();
        let containers = &object["spec"]["template"]["spec"]["initContainers"];
        [0, 1].map(|at| {
            let context = &containers[at]["securityContext"];
            assert_eq!(context["runAsNonRoot"], true);
            ["runAsUser", "runAsGroup"].map(|field| context[field].as_u64())
        })
    };
    assert_eq!(users(false), [[Some(65_532); 2]; 2]);
    assert_eq!(users(true), [[None; 2]; 2]);
}

#[test]
fn a_secret_with_a_certificate_takes_the_place_of_the_token() {
    let mut object = deployment();
    let settings = Settings {
        tls_secret: Some("mine".into()),
        ..settings()
    };
    inject(&mut object, &settings).unwrap();
    let spec = &object["spec"]["template"]["spec"];
    assert_eq!(
        spec["volumes"][1]["secret"],
        json!({"secretName": "mine", "defaultMode": 0o444})
    );
    let arguments = spec["initContainers"][0]["args"].to_string();
    assert!(
        arguments.contains("--xds-tls-key=/etc/headgate/tls/tls.key"),
        "{arguments}"
    );
    assert!(!arguments.contains("--xds-token"), "{arguments}");
}
