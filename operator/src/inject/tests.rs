use super::*;

fn settings() -> Settings {
    Settings {
        image: "headgate:1".into(),
        envoy_image: "envoy:2".into(),
        xds: "headgate.headgate-system.svc:18000".parse().unwrap(),
        tls_secret: "headgate-proxy-tls".into(),
        listen_port: 10_000,
        app_port: None,
        upstream_http2: false,
        concurrency: 3,
        filter: Kind::Wasm,
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

fn names(items: &Value) -> Vec<&str> {
    let items = items.as_array().unwrap();
    items
        .iter()
        .filter_map(|item| item["name"].as_str())
        .collect()
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
    assert_eq!(names(&spec["volumes"]), VOLUMES);
    let [headgate, envoy] = [0, 1].map(|at| &spec["initContainers"][at]);
    let args: Vec<&str> = headgate["args"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for argument in [
        "--listen=0.0.0.0:10000",
        "--upstream=127.0.0.1:8080",
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
        spec["volumes"][1]["secret"],
        json!({"secretName": "headgate-proxy-tls", "defaultMode": 0o444})
    );
    assert_eq!(
        template["metadata"]["labels"],
        json!({"app": "search", "headgate.dev/proxy": "true"})
    );
    let application = &spec["containers"][0];
    assert_eq!(application["ports"][0], json!({"containerPort": 8080}));
    assert_eq!(application["readinessProbe"]["httpGet"]["port"], 8080);
    assert_eq!(application["lifecycle"]["preStop"]["httpGet"]["port"], 8080);
    // Nothing of the template is left over.
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
        assert!(redirect(&mut service, &injected));
        assert_eq!(service["spec"]["ports"][0]["targetPort"], target);
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
        assert!(!redirect(&mut service, &injected));
        assert_eq!(service, before);
    }
}

#[test]
fn a_port_that_nothing_names_has_to_be_said() {
    let mut object = deployment();
    object["spec"]["template"]["spec"]["containers"][0]["ports"] =
        json!([{"containerPort": 8080}, {"containerPort": 9090}]);
    let problem = inject(&mut object, &settings()).unwrap_err();
    assert_eq!(
        problem,
        "Deployment shop/search: its containers have ports 8080, 9090: say which one Envoy stands in front of, by the \
         annotation headgate.dev/app-port of its Pods or by --app-port"
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
fn what_is_no_workload_or_asks_to_be_left_alone_stays() {
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
