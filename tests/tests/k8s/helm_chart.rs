//! The Helm chart without a cluster: the values that it takes, the values that it refuses, its
//! messages, and its objects.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use headgate_tests::chart;
use serde_json::{Value, json};

/// Arguments of `helm template` that claim an API server with the kinds of prometheus-operator. The
/// chart makes objects of these kinds only for such an API server.
const WITH_PROMETHEUS: &[&str] = &["--api-versions", "monitoring.coreos.com/v1"];

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("helm")
        .join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

fn good(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("helm/good/{name}.yaml"));
    assert!(path.is_file(), "{}", path.display());
    path
}

fn find<'a>(objects: &'a [Value], label: &str) -> &'a Value {
    objects
        .iter()
        .find(|object| chart::label(object) == label)
        .unwrap_or_else(|| {
            let labels: Vec<String> = objects.iter().map(chart::label).collect();
            panic!("no {label} in {labels:?}")
        })
}

#[test]
fn good_values_pass_lint_without_a_warning() {
    let folder = chart::folder();
    for file in files("good") {
        chart::helm(&[
            "lint",
            "--strict",
            folder.to_str().unwrap(),
            "--values",
            file.to_str().unwrap(),
        ])
        .unwrap();
    }
}

#[test]
fn bad_values_are_refused_with_the_message_they_expect() {
    for file in files("bad") {
        let text = fs::read_to_string(&file).unwrap();
        let expected = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("# expect: "))
            .expect("the first line holds the message");
        match chart::render(&file, &[]) {
            Ok(_) => panic!("{}: passed", file.display()),
            Err(error) => {
                let error = format!("{error:#}");
                assert!(error.contains(expected), "{}: {error}", file.display());
            }
        }
    }
}

/// Services of Kubernetes before 1.33 find no named port of a sidecar.
#[test]
fn injection_needs_a_newer_kubernetes_than_the_rest() {
    let rendered = |values: &str, version: &str| {
        chart::render(&good(values), &[&format!("--kube-version={version}")])
    };
    rendered("defaults", "1.30.0").unwrap();
    rendered("injection", "1.33.0-gke.1").unwrap();
    let error = format!("{:#}", rendered("injection", "1.32.8").unwrap_err());
    let expected = "injection.enabled is true and Kubernetes is v1.32.8; before 1.33, ";
    assert!(error.contains(expected), "{error}");
}

/// A chart uses the image of its own version, unless values say otherwise.
#[test]
fn the_image_is_that_of_the_charts_version() {
    let images = |arguments: &[&str]| -> BTreeSet<String> {
        chart::render(&good("defaults"), arguments)
            .unwrap()
            .iter()
            .flat_map(|object| [&object["spec"]["template"]["spec"], &object["spec"]])
            .filter_map(|spec| spec["containers"].as_array())
            .flatten()
            .map(|container| container["image"].as_str().unwrap().to_owned())
            .collect()
    };
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(images(&[]), BTreeSet::from([format!("headgate:{version}")]));
    assert_eq!(
        images(&["--set=image.repository=registry.example.com/headgate,image.tag=dev"]),
        BTreeSet::from(["registry.example.com/headgate:dev".to_owned()])
    );
    let digest = format!("sha256:{}", "0".repeat(64));
    assert_eq!(
        images(&[&format!("--set=image.tag=dev,image.digest={digest}")]),
        BTreeSet::from([format!("headgate@{digest}")])
    );
}

#[test]
fn every_object_says_to_what_it_belongs() {
    for file in files("good") {
        for object in chart::render(&file, WITH_PROMETHEUS).unwrap() {
            let name = format!("{}: {}", file.display(), chart::label(&object));
            let labels = &object["metadata"]["labels"];
            assert_eq!(labels["app.kubernetes.io/instance"], "headgate", "{name}");
            assert_eq!(labels["app.kubernetes.io/part-of"], "headgate", "{name}");
            assert_eq!(labels["app.kubernetes.io/managed-by"], "Helm", "{name}");
            let kind = object["kind"].as_str().unwrap();
            let cluster_wide = [
                "ClusterRole",
                "ClusterRoleBinding",
                "CustomResourceDefinition",
                "MutatingWebhookConfiguration",
            ]
            .contains(&kind);
            let namespace = &object["metadata"]["namespace"];
            assert_eq!(namespace.is_null(), cluster_wide, "{name}");
            let watched = ["Role", "RoleBinding"].contains(&kind) && name.ends_with("-watched");
            let elsewhere = watched && namespace != chart::NAMESPACE;
            let own = namespace == chart::NAMESPACE;
            assert!(cluster_wide || own || elsewhere, "{name}");
        }
    }
}

/// `render` refuses a document with a key twice, as Flux and kustomize do. Labels and annotations
/// of one kind of object override those of all objects.
#[test]
fn labels_and_annotations_that_several_values_have_are_there_once() {
    let objects = chart::render(&good("same-labels"), WITH_PROMETHEUS).unwrap();
    let label = |object: &str, key: &str| find(&objects, object)["metadata"]["labels"][key].clone();
    assert_eq!(label("Service/headgate", "release"), "ours");
    for object in [
        "ServiceMonitor/headgate",
        "PodMonitor/headgate-proxies",
        "PrometheusRule/headgate",
    ] {
        assert_eq!(label(object, "release"), "prometheus", "{object}");
    }
    let dashboard = "ConfigMap/headgate-dashboard-headgate-policy";
    assert_eq!(label(dashboard, "grafana_dashboard"), "1");
    let component = "app.kubernetes.io/component";
    assert_eq!(label("Service/headgate-metrics", component), "metrics");
    for (object, role) in [("edit", "admin"), ("edit", "edit"), ("view", "view")] {
        let object = format!("ClusterRole/headgate-{object}");
        let aggregate = format!("rbac.authorization.k8s.io/aggregate-to-{role}");
        assert_eq!(label(&object, &aggregate), "true", "{role}");
    }
    let pods = &find(&objects, "Deployment/headgate")["spec"]["template"]["metadata"];
    assert_eq!(pods["labels"]["release"], "pods");
    let container = "kubectl.kubernetes.io/default-container";
    assert_eq!(pods["annotations"][container], "other");
}

/// Every Pod fulfils the "restricted" Pod security standard and has a read-only root file system.
#[test]
fn every_pod_runs_without_privileges() {
    for file in files("good") {
        let objects = chart::render(&file, WITH_PROMETHEUS).unwrap();
        let specs: Vec<&Value> = objects
            .iter()
            .filter_map(|object| match object["kind"].as_str() {
                Some("Deployment" | "Job") => Some(&object["spec"]["template"]["spec"]),
                Some("Pod") => Some(&object["spec"]),
                _ => None,
            })
            .collect();
        let cleans_up = objects.iter().any(|object| {
            object["kind"] == "ServiceAccount"
                && object["metadata"]["labels"]["app.kubernetes.io/component"] == "clean-up"
        });
        let wanted = 2 + usize::from(cleans_up);
        assert_eq!(
            specs.len(),
            wanted,
            "the operator, the test and the clean-up"
        );
        for spec in specs {
            let pod = &spec["securityContext"];
            assert_eq!(pod["runAsNonRoot"], true);
            let users = ["runAsUser", "runAsGroup", "fsGroup"].map(|user| pod[user].as_u64());
            let user = (!file.ends_with("openshift.yaml")).then_some(65_532);
            assert_eq!(users, [user; 3]);
            assert_eq!(pod["seccompProfile"]["type"], "RuntimeDefault");
            let list = |key: &str| spec[key].as_array().cloned().unwrap_or_default();
            for container in list("initContainers").iter().chain(&list("containers")) {
                assert_eq!(
                    container["securityContext"],
                    json!({
                        "allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true,
                        "capabilities": {"drop": ["ALL"]},
                    })
                );
            }
        }
    }
}

/// Pods of hooks fulfil a ResourceQuota, and are left out of a mesh, as the operator's are.
#[test]
fn every_pod_has_the_resources_labels_and_annotations_of_the_values() {
    let values = [
        "--set=resources.limits.cpu=1",
        "--set-string=podLabels.sidecar\\.istio\\.io/inject=false",
        "--set=podAnnotations.linkerd\\.io/inject=disabled",
    ];
    let objects = chart::render(&good("defaults"), &values).unwrap();
    let operator = &find(&objects, "Deployment/headgate")["spec"]["template"];
    let resources = &operator["spec"]["containers"][0]["resources"];
    assert_eq!(resources["limits"]["cpu"], 1);
    let job = &find(&objects, "Job/headgate-clean-up")["spec"]["template"];
    let components = [
        ("operator", operator),
        ("clean-up", job),
        ("test", find(&objects, "Pod/headgate-test")),
    ];
    for (component, pod) in components {
        assert_eq!(&pod["spec"]["containers"][0]["resources"], resources);
        let metadata = &pod["metadata"];
        let labels = &metadata["labels"];
        assert_eq!(labels["app.kubernetes.io/component"], component);
        assert_eq!(labels["sidecar.istio.io/inject"], "false", "{component}");
        let annotations = &metadata["annotations"];
        assert_eq!(annotations["linkerd.io/inject"], "disabled", "{component}");
    }
}

/// Helm removes a value that is null, so templates find no map or list.
#[test]
fn a_map_or_list_that_is_null_is_rendered_as_an_empty_one() {
    const ON: &str = "--set=injection.enabled=true,metrics.serviceMonitor.enabled=true,\
                      metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true,\
                      metrics.dashboards.enabled=true";
    let rendered = |arguments: &[&str]| {
        let arguments = [WITH_PROMETHEUS, &["--kube-version=1.33.0", ON], arguments].concat();
        chart::render(&good("defaults"), &arguments).unwrap()
    };
    let yaml = fs::read_to_string(chart::folder().join("values.yaml")).unwrap();
    let values = chart::values(&yaml).unwrap();
    let empty = values
        .iter()
        .filter(|value| value.default == json!({}) || value.default == json!([]));
    let nulls: Vec<String> = empty.map(|v| format!("--set={}=null", v.path)).collect();
    assert!(nulls.contains(&"--set=podLabels=null".to_owned()));
    let nulls: Vec<&str> = nulls.iter().map(String::as_str).collect();
    assert_eq!(rendered(&nulls), rendered(&[]));

    // These have defaults. An empty RUST_LOG would mean errors only.
    assert_eq!(rendered(&["--set=log.level=null"]), rendered(&[]));
    let objects = rendered(&["--set=resources=null,metrics.dashboards.labels=null"]);
    let containers = objects
        .iter()
        .flat_map(|object| [&object["spec"]["template"]["spec"], &object["spec"]])
        .filter_map(|spec| spec["containers"].as_array())
        .flatten();
    let resources: Vec<&Value> = containers.map(|c| &c["resources"]).collect();
    assert_eq!(resources, [&json!({}); 3]);
    let dashboard = find(&objects, "ConfigMap/headgate-dashboard-headgate-policy");
    assert!(dashboard["metadata"]["labels"]["grafana_dashboard"].is_null());
}

/// Without the schema, templates would fail with a nil pointer at any place.
#[test]
fn a_section_that_is_null_is_rendered_or_named() {
    fn above(path: &str) -> Option<String> {
        Some(path.rsplit_once('.')?.0.to_owned())
    }
    let yaml = fs::read_to_string(chart::folder().join("values.yaml")).unwrap();
    let values = chart::values(&yaml).unwrap();
    let sections: BTreeSet<String> = values
        .iter()
        .flat_map(|value| std::iter::successors(above(&value.path), |path| above(path)))
        .collect();
    let mut named = Vec::new();
    for section in &sections {
        let null = format!("--set={section}=null");
        if let Err(error) = chart::render(&good("defaults"), &[&null]) {
            let (error, name) = (format!("{error:#}"), section.rsplit('.').next().unwrap());
            let expected = format!("missing property '{name}'");
            assert!(error.contains(&expected), "{section}: {error}");
            named.push(section.as_str());
        }
    }
    for section in [
        "image",
        "tls",
        "delivery",
        "delivery.istio",
        "metrics.service",
    ] {
        assert!(named.contains(&section), "{section}: {named:?}");
    }
}

#[test]
fn no_value_removes_the_operators_pods_from_its_services() {
    let objects = chart::render(&good("everything"), WITH_PROMETHEUS).unwrap();
    let deployment = &find(&objects, "Deployment/headgate")["spec"];
    let labels = &deployment["template"]["metadata"]["labels"];
    assert_eq!(labels["tier"], "control");
    for selector in [
        &deployment["selector"]["matchLabels"],
        &find(&objects, "Service/headgate")["spec"]["selector"],
        &find(&objects, "Service/headgate-metrics")["spec"]["selector"],
        &find(&objects, "PodDisruptionBudget/headgate")["spec"]["selector"]["matchLabels"],
        &find(&objects, "NetworkPolicy/headgate")["spec"]["podSelector"]["matchLabels"],
    ] {
        for (key, value) in selector.as_object().unwrap() {
            assert_eq!(&labels[key], value, "{key}");
        }
    }
}

/// The operators fetch the module through their Service, and request the reports of each other's
/// proxies.
#[test]
fn the_operators_reach_each_other_under_any_network_policy_values() {
    let from = r#"[{"namespaceSelector":{"matchLabels":{"team":"shop"}}}]"#;
    let proxies = format!("--set-json=networkPolicy.proxiesFrom={from}");
    let metrics = format!("--set-json=networkPolicy.metricsFrom={from}");
    let objects = chart::render(&good("defaults"), &[&proxies, &metrics]).unwrap();
    let deployment = &find(&objects, "Deployment/headgate")["spec"];
    let operators = json!({"podSelector": deployment["selector"]});
    let shop = json!({"namespaceSelector": {"matchLabels": {"team": "shop"}}});
    let rules = &find(&objects, "NetworkPolicy/headgate")["spec"]["ingress"];
    for port in ["http-modules", "http-admin"] {
        let admits = |rule: &&Value| {
            let ports = rule["ports"].as_array().unwrap();
            ports.contains(&json!({"port": port}))
        };
        let mut of_port = rules.as_array().unwrap().iter().filter(admits);
        let rule = of_port.next().unwrap();
        assert_eq!(rule["from"], json!([shop, operators]), "{port}");
        assert_eq!(of_port.next(), None, "{port}");
    }
}

#[test]
fn objects_of_prometheus_operator_are_made_only_where_they_are_known() {
    let kinds = ["PodMonitor", "PrometheusRule", "ServiceMonitor"];
    let made = |arguments: &[&str]| -> Vec<String> {
        chart::render(&good("everything"), arguments)
            .unwrap()
            .iter()
            .filter_map(|object| object["kind"].as_str().map(str::to_owned))
            .filter(|kind| kinds.contains(&kind.as_str()))
            .collect()
    };
    assert_eq!(made(WITH_PROMETHEUS), kinds);
    assert!(made(&[]).is_empty());
}

#[test]
fn prometheus_own_token_is_not_sent_over_plain_http() {
    let values = ["--set", "metrics.serviceMonitor.enabled=true"];
    let objects = chart::render(&good("defaults"), &[WITH_PROMETHEUS, &values].concat()).unwrap();
    let endpoint = &find(&objects, "ServiceMonitor/headgate")["spec"]["endpoints"][0];
    let credentials = json!({"name": "headgate-scraper", "key": "token"});
    assert_eq!(endpoint["authorization"]["credentials"], credentials);
    assert_eq!(endpoint["bearerTokenFile"], Value::Null);
    let secret = find(&objects, "Secret/headgate-scraper");
    assert_eq!(secret["type"], "kubernetes.io/service-account-token");

    let own = chart::render(&good("everything"), WITH_PROMETHEUS).unwrap();
    let endpoint = &find(&own, "ServiceMonitor/headgate")["spec"]["endpoints"][0];
    assert_eq!(endpoint["authorization"]["credentials"]["name"], "scraper");
    let is_scraper = |o: &Value| o["metadata"]["name"] == "headgate-scraper";
    assert!(!own.iter().any(is_scraper));
}

#[test]
fn dashboards_and_alerts_are_in_what_is_made() {
    let objects = chart::render(&good("everything"), WITH_PROMETHEUS).unwrap();
    let mut dashboards = 0;
    for map in objects
        .iter()
        .filter(|object| object["kind"] == "ConfigMap")
    {
        assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
        for text in map["data"].as_object().unwrap().values() {
            let dashboard: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
            assert!(
                dashboard["panels"]
                    .as_array()
                    .is_some_and(|p| !p.is_empty())
            );
            dashboards += 1;
        }
    }
    assert_eq!(
        dashboards,
        fs::read_dir(chart::folder().join("dashboards"))
            .unwrap()
            .filter(|file| file.as_ref().unwrap().path().extension() == Some("json".as_ref()))
            .count()
    );
    let rules = find(&objects, "PrometheusRule/headgate");
    let text = rules.to_string();
    for file in fs::read_dir(chart::folder().join("alerts")).unwrap() {
        let file = file.unwrap().path();
        if !file.is_file() {
            continue;
        }
        // The rules must be unchanged, because templates in alerts are templates of Prometheus, not
        // of Helm.
        let expected: Value = serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        for group in expected["groups"].as_array().unwrap() {
            assert!(
                rules["spec"]["groups"].as_array().unwrap().contains(group),
                "{text}"
            );
        }
    }
}

/// The values of 0.1.0 don't have the key `nativeModule`. So after `helm upgrade --reuse-values`
/// from 0.1.0 the key is missing instead of empty.
#[test]
fn the_values_of_the_first_release_keep_the_right_to_write_plugins() {
    let set = "--set=delivery.istio.enabled=true,delivery.istio.nativeModule=null";
    let objects = chart::render(&good("defaults"), &[set]).unwrap();
    let rules = find(&objects, "ClusterRole/headgate")["rules"].clone();
    let mut rules = rules.as_array().unwrap().iter();
    let plugins = rules.find(|rule| rule["apiGroups"] == json!(["extensions.istio.io"]));
    assert_eq!(
        plugins.unwrap()["verbs"],
        json!(["list", "watch", "create", "patch", "delete"])
    );
}

#[test]
fn writing_elsewhere_is_granted_only_where_it_is_wanted() {
    let writes = |values: &str| -> Vec<String> {
        let objects = chart::render(&good(values), &[]).unwrap();
        let rules = find(&objects, "ClusterRole/headgate")["rules"].clone();
        let mut resources: Vec<String> = rules
            .as_array()
            .unwrap()
            .iter()
            .filter(|rule| {
                rule["verbs"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|verb| verb != "list" && verb != "watch")
            })
            .flat_map(|rule| rule["resources"].as_array().unwrap().clone())
            .map(|resource| resource.as_str().unwrap().to_owned())
            .collect();
        resources.sort();
        resources
    };
    assert_eq!(
        writes("defaults"),
        [
            "admissionpolicies/status",
            "configmaps",
            "configmaps",
            "events",
            "subjectaccessreviews",
            "tokenreviews"
        ]
    );
    assert_eq!(
        writes("everything"),
        [
            "admissionpolicies/status",
            "configmaps",
            "configmaps",
            "configmaps",
            "envoyextensionpolicies",
            "envoyfilters",
            "events",
            "mutatingwebhookconfigurations",
            "subjectaccessreviews",
            "tokenreviews",
            "trafficextensions",
            "wasmplugins"
        ]
    );
}

/// Two operators without leader election would both write, so the old operator must end before the
/// new one starts.
#[test]
fn operators_elect_a_leader_unless_there_is_only_one() {
    let parts = |values: &str| {
        let objects = chart::render(&good(values), &[]).unwrap();
        let deployment = find(&objects, "Deployment/headgate")["spec"].clone();
        let args = &deployment["template"]["spec"]["containers"][0]["args"];
        let args = { args.as_array().unwrap().iter() }.filter_map(Value::as_str);
        let args = args.filter_map(|arg| arg.strip_prefix("--leader-elect"));
        let args: Vec<String> = args.map(str::to_owned).collect();
        let has_lease = objects.iter().any(|object| object["kind"] == "Lease");
        (args, deployment["strategy"]["type"].clone(), has_lease)
    };
    let (args, strategy, has_lease) = parts("defaults");
    let times = [
        "-lease-duration=15s",
        "-renew-deadline=10s",
        "-retry-period=2s",
    ];
    assert_eq!(args, times);
    assert_eq!((strategy, has_lease), (json!("RollingUpdate"), true));
    let (args, strategy, has_lease) = parts("no-election");
    assert_eq!(args, ["=false"]);
    assert_eq!((strategy, has_lease), (json!("Recreate"), false));
}

/// The chart has the webhook, and everything that the API server needs to reach and verify the
/// operator.
#[test]
fn pods_are_injected_only_where_it_is_wanted() {
    let parts = |objects: &[Value]| -> Vec<Value> {
        let operator = &find(objects, "Deployment/headgate")["spec"]["template"]["spec"];
        let operator = &operator["containers"][0];
        let rules = &find(objects, "ClusterRole/headgate")["rules"];
        let service = &find(objects, "Service/headgate")["spec"]["ports"];
        let policy = &find(objects, "NetworkPolicy/headgate")["spec"]["ingress"];
        let of_webhook = |items: &Value| -> Value {
            let items = items.as_array().unwrap().iter();
            let words = ["inject", "mutatingwebhookconfigurations"];
            let is = |item: &&Value| words.iter().any(|word| item.to_string().contains(word));
            items.filter(is).cloned().collect()
        };
        let lists = [
            &operator["args"],
            &operator["ports"],
            rules,
            service,
            policy,
        ];
        lists.map(of_webhook).into()
    };
    let off = chart::render(&good("defaults"), &[]).unwrap();
    assert!(parts(&off).iter().all(|part| *part == json!([])));
    assert!(
        off.iter()
            .all(|o| o["kind"] != "MutatingWebhookConfiguration")
    );
    let own = ["--set=injection.enabled=true,injection.args={--image=mine}"];
    let on = chart::render(&good("defaults"), &own).unwrap();
    assert_eq!(
        parts(&on),
        [
            json!([
                "--injection=[::]:18005",
                "--injection-webhook=headgate",
                format!(
                    "--inject-arg=--image=headgate:{}",
                    env!("CARGO_PKG_VERSION")
                ),
                "--inject-arg=--xds=headgate.headgate-system.svc:18000",
                "--inject-arg=--ca-config-map=headgate-ca",
                "--inject-arg=--image=mine",
            ]),
            json!([{"name": "https-inject", "containerPort": 18005}]),
            json!([{
                "apiGroups": ["admissionregistration.k8s.io"],
                "resources": ["mutatingwebhookconfigurations"],
                "resourceNames": ["headgate"],
                "verbs": ["list", "watch", "patch"],
            }]),
            json!([{
                "name": "https-inject",
                "port": 18005,
                "targetPort": "https-inject",
                "appProtocol": "https",
            }]),
            json!([{"ports": [{"port": "https-inject"}]}]),
        ]
    );
    let webhook = &find(&on, "MutatingWebhookConfiguration/headgate")["webhooks"];
    let [webhook] = &webhook.as_array().unwrap()[..] else {
        panic!("{webhook}");
    };
    assert_eq!(webhook["failurePolicy"], "Ignore");
    assert_eq!(webhook["sideEffects"], "None");
    let never = [
        "kube-system",
        "kube-public",
        "kube-node-lease",
        chart::NAMESPACE,
    ];
    let namespaces = json!({
        "matchLabels": {"headgate.dev/inject": "enabled"},
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": never},
        ],
    });
    assert_eq!(webhook["namespaceSelector"], namespaces);
    let watched = chart::render(&good("injection"), &[]).unwrap();
    let webhook = &find(&watched, "MutatingWebhookConfiguration/headgate")["webhooks"][0];
    assert_eq!(
        webhook["namespaceSelector"]["matchExpressions"][1],
        json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["shop"]})
    );
    let selected = chart::render(&good("injection-selector"), &[]).unwrap();
    let webhook = &find(&selected, "MutatingWebhookConfiguration/headgate")["webhooks"][0];
    let expressions = &webhook["namespaceSelector"]["matchExpressions"];
    assert_eq!(
        expressions.as_array().unwrap()[1..],
        [
            json!({"key": "headgate.dev/watch", "operator": "In", "values": ["true", "yes"]}),
            json!({"key": "tier", "operator": "Exists"}),
            json!({"key": "legacy", "operator": "DoesNotExist"}),
            json!({"key": "team", "operator": "NotIn", "values": ["a"]}),
            json!({"key": "env", "operator": "NotIn", "values": ["dev"]}),
            json!({"key": "of", "operator": "In", "values": ["shop"]}),
            json!({"key": "mark", "operator": "In", "values": [""]}),
        ]
    );
}

/// A new release has no leftovers. An upgrade may have left some, by turning a delivery off.
#[test]
fn deleting_what_is_left_is_granted_only_after_an_upgrade() {
    let left = |arguments: &[&str]| {
        let objects = chart::render(&good("defaults"), arguments).unwrap();
        let rules = find(&objects, "ClusterRole/headgate")["rules"].clone();
        let rules = rules.as_array().unwrap().iter();
        let deletes = |rule: &&Value| rule["verbs"] == json!(["list", "delete"]);
        let resources: Vec<Value> = { rules.filter(deletes) }
            .flat_map(|rule| rule["resources"].as_array().unwrap().clone())
            .collect();
        let deployment = find(&objects, "Deployment/headgate").to_string();
        assert_eq!(
            deployment.contains("--keep-leftovers"),
            resources.is_empty(),
            "{arguments:?}"
        );
        resources
    };
    let all = [
        "trafficextensions",
        "wasmplugins",
        "envoyfilters",
        "envoyextensionpolicies",
    ];
    let none: [&str; 0] = [];
    assert_eq!(left(&[]), none);
    assert_eq!(left(&["--is-upgrade"]), all);
    assert_eq!(left(&["--set=delivery.removeLeftovers=true"]), all);
    let never = ["--is-upgrade", "--set=delivery.removeLeftovers=false"];
    assert_eq!(left(&never), none);
    // With a delivery on, the operator watches and deletes objects of the kinds that it no longer
    // writes.
    let on = "--set=delivery.istio.enabled=true,delivery.envoyGateway.enabled=true";
    let objects = chart::render(&good("defaults"), &["--is-upgrade", on]).unwrap();
    let rules = find(&objects, "ClusterRole/headgate")["rules"].clone();
    let mut rules = rules.as_array().unwrap().iter();
    let filters = rules.find(|rule| rule["resources"] == json!(["envoyfilters"]));
    assert_eq!(
        filters.unwrap()["verbs"],
        json!(["list", "watch", "delete"])
    );
}

/// With `watchNamespaces`, the chart grants in Roles of these namespaces everything that a Role can
/// grant.
#[test]
fn a_cluster_role_has_only_what_no_role_can_grant() {
    let objects = chart::render(&good("some-namespaces"), &[]).unwrap();
    let resources = |rules: &Value| -> BTreeSet<String> {
        let rules = rules.as_array().unwrap().iter();
        let resources = rules.flat_map(|rule| rule["resources"].as_array().unwrap());
        resources.map(|r| r.as_str().unwrap().to_owned()).collect()
    };
    let set = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(
        resources(&find(&objects, "ClusterRole/headgate")["rules"]),
        set(&[
            // Operators of 0.1 need this resource during an upgrade.
            "customresourcedefinitions",
            "gatewayclasses",
            "subjectaccessreviews",
            "tokenreviews"
        ])
    );
    let of_kind = |kind: &str| -> Vec<&Value> {
        let label = format!("{kind}/headgate-watched");
        objects
            .iter()
            .filter(|o| chart::label(o) == label)
            .collect()
    };
    let namespaces = |all: &[&Value]| -> Vec<Value> {
        all.iter()
            .map(|o| o["metadata"]["namespace"].clone())
            .collect()
    };
    let roles = of_kind("Role");
    assert_eq!(namespaces(&roles), ["shop", "envoy-gateway-system"]);
    assert_eq!(namespaces(&of_kind("RoleBinding")), namespaces(&roles));
    let watched = resources(&roles[0]["rules"]);
    assert!(watched.is_superset(&set(&[
        "admissionpolicies",
        "configmaps",
        "envoyextensionpolicies"
    ])));
    let args =
        find(&objects, "Deployment/headgate")["spec"]["template"]["spec"]["containers"][0]["args"]
            .clone();
    assert!(
        args.as_array()
            .unwrap()
            .contains(&json!("--watch-namespace=shop")),
        "{args}"
    );
}

/// Any namespace may get the labels, so the operator needs its roles in the whole cluster.
#[test]
fn with_a_selector_of_namespaces_the_operator_has_its_roles_everywhere() {
    let objects = chart::render(&good("namespace-selector"), &[]).unwrap();
    let rules = find(&objects, "ClusterRole/headgate")["rules"].to_string();
    for resource in ["\"namespaces\"", "\"admissionpolicies\"", "\"pods\""] {
        assert!(rules.contains(resource), "{resource}: {rules}");
    }
    let deployment = find(&objects, "Deployment/headgate");
    let args = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
    let selector = json!("--namespace-selector=headgate.dev/watch in (true, yes),tier");
    assert!(args.as_array().unwrap().contains(&selector), "{args}");
}

#[test]
fn uninstalling_keeps_policies_by_default() {
    const CRD: &str = "CustomResourceDefinition/admissionpolicies.headgate.dev";
    const POLICY: &str = "helm.sh/resource-policy";
    let kept = chart::render(&good("defaults"), &[]).unwrap();
    assert_eq!(find(&kept, CRD)["metadata"]["annotations"][POLICY], "keep");
    let objects = chart::render(&good("everything"), &[]).unwrap();
    assert!(find(&objects, CRD)["metadata"]["annotations"][POLICY].is_null());
    let none = chart::render(&good("bare"), &[]).unwrap();
    assert!(none.iter().all(|object| chart::label(object) != CRD));
    // No object except the CRD is ever kept.
    for object in &kept {
        let keep = &object["metadata"]["annotations"][POLICY];
        assert!(keep.is_null() || chart::label(object) == CRD);
    }
}

/// Before a release is removed, a Job stops its operators. It then removes the objects that they
/// may have written, wherever they had the right to write.
#[test]
fn uninstalling_first_removes_what_operators_wrote() {
    let job = |objects: &[Value]| find(objects, "Job/headgate-clean-up").clone();
    let arguments = |job: &Value| job["spec"]["template"]["spec"]["containers"][0]["args"].clone();
    let objects = chart::render(&good("defaults"), &[]).unwrap();
    let all = [
        "clean-up",
        "--deployment=headgate",
        "--publish-ca=headgate-ca",
    ];
    assert_eq!(arguments(&job(&objects)), json!(all));
    let of_hook: Vec<&Value> = (objects.iter())
        .filter(|o| o["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete")
        .collect();
    let labels: BTreeSet<String> = of_hook.iter().map(|o| chart::label(o)).collect();
    let expected = [
        "ClusterRole",
        "ClusterRoleBinding",
        "Job",
        "Role",
        "RoleBinding",
        "ServiceAccount",
    ];
    let expected = expected.map(|kind| format!("{kind}/headgate-clean-up"));
    assert_eq!(labels, BTreeSet::from(expected));
    for object in of_hook {
        let annotations = &object["metadata"]["annotations"];
        let removed = annotations["helm.sh/hook-delete-policy"].as_str().unwrap();
        assert_eq!(removed, "before-hook-creation,hook-succeeded,hook-failed");
        let weight = if object["kind"] == "Job" { "0" } else { "-1" };
        assert_eq!(annotations["helm.sh/hook-weight"], weight);
    }

    let some = chart::render(&good("some-namespaces"), &[]).unwrap();
    let arguments = arguments(&job(&some)).to_string();
    assert!(arguments.contains("--watch-namespace=shop"), "{arguments}");
    let is_wide = |o: &Value| chart::label(o) == "ClusterRole/headgate-clean-up";
    assert!(!some.iter().any(is_wide));
    let is_watched = |o: &&Value| chart::label(o) == "Role/headgate-clean-up-watched";
    let watched = some.iter().filter(is_watched);
    let namespaces: Vec<&Value> = watched.map(|o| &o["metadata"]["namespace"]).collect();
    assert_eq!(namespaces, ["shop", "envoy-gateway-system"]);

    for off in ["cleanUp.enabled=false", "rbac.create=false"] {
        let objects = chart::render(&good("defaults"), &["--set", off]).unwrap();
        let is_hook = |o: &Value| chart::label(o).contains("clean-up");
        assert!(!objects.iter().any(is_hook), "{off}");
    }
}

#[test]
fn notes_say_the_next_command_for_what_was_installed() {
    let folder = chart::folder();
    let notes = |values: &str| {
        let output = chart::helm(&[
            "install",
            "headgate",
            folder.to_str().unwrap(),
            "--namespace",
            chart::NAMESPACE,
            "--dry-run=client",
            "--values",
            good(values).to_str().unwrap(),
        ])
        .unwrap();
        output.split_once("NOTES:").unwrap().1.to_owned()
    };
    for (values, expected) in [
        ("defaults", "headgate inject --image headgate:"),
        ("defaults", " - | kubectl apply -f -"),
        ("bare", "--set tls.mode=Generated"),
        ("bare", "headgate crd | kubectl apply --server-side -f -"),
        ("everything", "examples/istio"),
        ("defaults", "headgate status --all-namespaces\n"),
        ("everything", "doesn't know monitoring.coreos.com/v1"),
    ] {
        let notes = notes(values);
        assert!(notes.contains(expected), "{values}: {notes}");
    }
    // Injected sidecars connect with TLS only.
    let without_tls = notes("bare");
    assert!(!without_tls.contains("| headgate inject"), "{without_tls}");
}

/// With `HEADGATE_RENEW=1`, the test rewrites the table instead of comparing it.
#[test]
fn the_readme_has_every_value() {
    const BEGIN: &str = "<!-- values -->\n";
    const END: &str = "<!-- /values -->\n";
    let readme = chart::folder().join("README.md");
    let yaml = fs::read_to_string(chart::folder().join("values.yaml")).unwrap();
    let table = chart::table(&chart::values(&yaml).unwrap());
    let text = fs::read_to_string(&readme).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    if std::env::var_os("HEADGATE_RENEW").is_some() {
        fs::write(&readme, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    } else {
        assert!(
            found == table,
            "charts/headgate/README.md is not what values.yaml says; run HEADGATE_RENEW=1 cargo \
             test --release -p headgate-tests --test k8s helm_chart"
        );
    }
}

/// Some tools render the chart twice and compare the results.
#[test]
fn the_chart_renders_the_same_each_time() {
    for file in files("good") {
        let render = || chart::render(&file, WITH_PROMETHEUS).unwrap();
        assert_eq!(render(), render(), "{}", file.display());
    }
    let objects = chart::render(&good("defaults"), &[]).unwrap();
    assert!(objects.iter().all(|object| object["kind"] != "Secret"));
}
