use std::collections::BTreeSet;
use std::sync::Arc;

use headgate_core::config::{Direction, FilterConfig, PathMatch, PathMatchKind, StageConfig};
use serde_json::{Value, json};

use super::*;
use crate::fit::configuration_in;
use crate::settings::tests::settings as defaults;
use crate::tests::{Example, SHA256, installed, settings};
use crate::workload::{Cut, Cuts};
use headgate_api::plan::GATEWAY_NAME_LABEL;

fn of(example: &Example) -> Wanted {
    after(example, &Observed::default())
}

/// Returns the wanted objects while the API server has `observed`.
fn after(example: &Example, observed: &Observed) -> Wanted {
    let (plan, cluster) = (&example.plan, &example.cluster);
    wanted(plan, cluster, &settings(), &installed(), observed, SHA256)
}

/// Returns the objects on the API server after `wanted` was applied.
fn applied(wanted: &Wanted) -> Observed {
    let mut observed = Observed::default();
    for ((adapter, key), object) in &wanted.objects {
        observed.wrote(*adapter, key.clone(), object.value.clone());
    }
    observed
}

fn names(wanted: &Wanted) -> Vec<String> {
    let name = |(adapter, key): &(Adapter, ObjectKey)| format!("{} {key}", adapter.kind());
    wanted.objects.keys().map(name).collect()
}

fn only(example: &Example) -> Object {
    let mut wanted = of(example);
    assert_eq!(wanted.unwanted, []);
    let (_, object) = wanted.objects.pop_first().expect("an object");
    assert!(wanted.objects.is_empty(), "{:?}", names(&wanted));
    object
}

#[test]
fn a_services_pods_get_a_plugin_on_their_inbound_side() {
    let example = Example::default().policy("a/p", "Service/a/search", ("a", "app=search"), &[]);
    let object = only(&example);
    assert_eq!(object.adapter, Adapter::Istio);
    let spec = &object.value["spec"];
    assert_eq!(spec["selector"], json!({"matchLabels": {"app": "search"}}));
    assert_eq!(spec["match"], json!([{"mode": "SERVER"}]));
    assert_eq!(spec["failStrategy"], "FAIL_OPEN");
    assert_eq!(spec["sha256"], SHA256);
    assert_eq!(
        spec["url"],
        format!("http://headgate.headgate-system.svc:18002/modules/{SHA256}.wasm")
    );
    for absent in ["vmConfig", "imagePullPolicy", "targetRefs"] {
        assert_eq!(
            spec[absent],
            Value::Null,
            "{absent} makes a new VM on each edit, or can't be"
        );
    }
    let text = spec["pluginConfig"].to_string();
    let config = headgate_core::config::FilterConfig::from_json(text.as_bytes()).unwrap();
    assert_eq!(config.stages[0].policy, "a/p");
    let metadata = &object.value["metadata"];
    assert_eq!(
        metadata["labels"],
        json!({
            "app.kubernetes.io/managed-by": "headgate",
            "headgate.dev/adapter": "istio",
            "headgate.dev/target-kind": "Service",
            "headgate.dev/target-name": "search",
        })
    );
    assert_eq!(
        metadata["ownerReferences"],
        json!([{
            "apiVersion": "headgate.dev/v1alpha1",
            "kind": "AdmissionPolicy",
            "name": "p",
            "uid": "uid-of-p",
        }])
    );
}

#[test]
fn istio_1_30_gets_the_same_in_another_kind() {
    let mut installed = installed();
    installed.served.insert(Adapter::IstioExtension);
    let of = |example: &Example| {
        let (plan, cluster) = (&example.plan, &example.cluster);
        let mut wanted = wanted(
            plan,
            cluster,
            &settings(),
            &installed,
            &Observed::default(),
            SHA256,
        );
        wanted.objects.pop_first().expect("an object").1
    };
    let example = || Example::default().policy("a/p", "Service/a/search", ("a", "app=search"), &[]);
    let plugin = only(&example());
    let extension = of(&example());
    assert_eq!(extension.value["kind"], "TrafficExtension");
    assert_eq!(extension.key, plugin.key);
    let (mut old, new) = (plugin.value["spec"].clone(), &extension.value["spec"]);
    for (key, value) in new.as_object().unwrap() {
        match key.as_str() {
            "wasm" => value.as_object().unwrap().iter().for_each(|(key, value)| {
                assert_eq!(old[key].take(), *value, "{key}");
            }),
            _ => assert_eq!(old[key].take(), *value, "{key}"),
        }
    }
    assert!(
        old.as_object().unwrap().values().all(Value::is_null),
        "{old}"
    );

    for (labels, kind) in [
        (
            "app=istiod,app.kubernetes.io/version=1.29.4",
            Adapter::Istio,
        ),
        ("app=istiod", Adapter::Istio),
        (
            "app=istiod,app.kubernetes.io/version=1.30.0",
            Adapter::IstioExtension,
        ),
        (
            "app=istiod,app.kubernetes.io/version=1.31-alpha.4f5c",
            Adapter::IstioExtension,
        ),
        (
            "app=istiod,app.kubernetes.io/version=2.0.0",
            Adapter::IstioExtension,
        ),
        (
            "app=istiod,app.kubernetes.io/version=ours",
            Adapter::IstioExtension,
        ),
        (
            "app=search,app.kubernetes.io/version=1.1",
            Adapter::IstioExtension,
        ),
    ] {
        let newest = "app=istiod,app.kubernetes.io/version=1.31.0";
        let example =
            example()
                .pod("istio-system", "new", newest)
                .pod("istio-system", "other", labels);
        assert_eq!(of(&example).adapter, kind, "{labels}");
    }
    let elsewhere = example().pod("tenant", "pause", "app=istiod");
    let kind = of(&elsewhere).adapter;
    assert_eq!(kind, Adapter::IstioExtension, "anybody's label");
}

#[test]
fn workflows_need_a_second_plugin_for_calls() {
    let plain = || Example::default().policy("a/p", "Service/a/search", ("a", "app=search"), &[]);
    assert_eq!(names(&of(&plain())).len(), 1);
    let wanted = of(&plain().with_workflows());
    assert_eq!(
        names(&wanted),
        [
            "WasmPlugin a/headgate-outbound-search-30f36b79",
            "WasmPlugin a/headgate-search-183ce4e8"
        ]
    );
    let [calls, requests] = [0, 1].map(|i| wanted.objects.values().nth(i).unwrap().clone());
    let (outbound, inbound) = (&calls.value["spec"], &requests.value["spec"]);
    assert_eq!(outbound["match"], json!([{"mode": "CLIENT"}]));
    assert_eq!(outbound["selector"], inbound["selector"]);
    for same in ["url", "sha256", "pluginName", "vmConfig"] {
        assert_eq!(outbound[same], inbound[same], "one VM for both: {same}");
    }
    let text = outbound["pluginConfig"].to_string();
    let config = FilterConfig::from_json(text.as_bytes()).unwrap();
    assert_eq!(config.direction, Direction::Outbound);
    assert_eq!(config.outbound.unwrap().policy, "a/p");
    assert_eq!(calls.policies, ["a/p"]);
    assert_ne!(
        calls.value["metadata"]["annotations"]["headgate.dev/revision"],
        requests.value["metadata"]["annotations"]["headgate.dev/revision"]
    );
    let gateway = Example::default()
        .gateway("infra/edge", "istio")
        .at_gateway("infra/p", "Gateway/infra/edge", "infra/edge", &[])
        .with_workflows();
    assert_eq!(names(&of(&gateway)).len(), 1, "a gateway has one side");
}

/// The module's own parser reads the configurations, as in a proxy.
#[test]
fn the_native_filter_takes_the_place_of_the_other_where_that_is_asked_for() {
    let mut settings = settings();
    settings.args.istio_native = Some("/headgate/bin/libheadgate.so".into());
    settings.args.envoy_gateway_native = Some("headgate".to_owned());
    let of = |example: Example| {
        let (plan, cluster) = (&example.plan, &example.cluster);
        let wanted = wanted(
            plan,
            cluster,
            &settings,
            &installed(),
            &Observed::default(),
            SHA256,
        );
        let objects: Vec<Object> = wanted.objects.into_values().collect();
        assert!(objects.iter().all(|o| o.module.is_none()), "no URL");
        objects
    };
    let sidecars = Example::default().policy("a/p", "Service/a/search", ("a", "app=search"), &[]);
    let objects = of(sidecars.with_workflows());
    for (object, context, direction) in [
        (&objects[0], "SIDECAR_OUTBOUND", Direction::Outbound),
        (&objects[1], "SIDECAR_INBOUND", Direction::Inbound),
    ] {
        assert_eq!(object.adapter.kind(), "EnvoyFilter");
        let spec = &object.value["spec"];
        let labels = json!({"labels": {"app": "search"}});
        assert_eq!(spec["workloadSelector"], labels);
        assert!(spec["priority"].as_i64() > Some(0), "after users' filters");
        let [slot, content] = [0, 1].map(|i| &spec["configPatches"][i]);
        for patch in [slot, content] {
            assert_eq!(patch["match"]["context"], context);
            let proxy = &patch["match"]["proxy"];
            assert_eq!(*proxy, json!({"metadata": {"NAMESPACE": "a"}}));
            assert_eq!(patch["patch"]["value"]["name"], object.key.name);
        }
        let filled = &content["patch"]["value"]["typed_config"];
        let types = &slot["patch"]["value"]["config_discovery"]["type_urls"];
        assert_eq!(types[0], filled["@type"]);
        let module = &filled["dynamic_module_config"]["module"]["local"]["filename"];
        assert_eq!(module, "/headgate/bin/libheadgate.so");
        let text = filled["filter_config"]["value"].as_str().unwrap();
        let config = FilterConfig::from_json(text.as_bytes()).unwrap();
        assert_eq!(config.direction, direction);
    }
    let gateway = |class: &str| {
        let example = Example::default().gateway("infra/edge", class);
        let example = example.at_gateway("infra/p", "Gateway/infra/edge", "infra/edge", &[]);
        let objects = of(example);
        let [object] = &objects[..] else {
            panic!("one object");
        };
        object.value["spec"].clone()
    };
    let istio = gateway("istio");
    assert_eq!(istio["configPatches"][0]["match"]["context"], "GATEWAY");
    let label = &istio["workloadSelector"]["labels"][GATEWAY_NAME_LABEL];
    assert_eq!(label, "edge");
    let eg = gateway("eg");
    assert_eq!(eg["wasm"], Value::Null);
    let module = &eg["dynamicModule"][0];
    assert_eq!(module["name"], "headgate");
    let filter = module["filterName"].as_str().unwrap();
    assert!(filter.starts_with("headgate-edge-"), "{filter}");
    let config = FilterConfig::from_json(module["config"].to_string().as_bytes()).unwrap();
    assert_eq!(config.stages[0].policy, "infra/p");
}

/// Istio applies the plugins of its root namespace to the Pods of all namespaces. A plugin for a
/// Gateway names that Gateway, so it applies to no other proxies.
#[test]
fn a_plugin_for_pods_is_not_written_into_istios_root_namespace() {
    let at = |namespace: &str| {
        let policy = format!("{namespace}/p");
        let target = format!("Service/{namespace}/web");
        of(&Example::default().policy(&policy, &target, (namespace, "app=web"), &[]))
    };
    assert_eq!((at("a").objects.len(), left_out(&at("a"))), (1, vec![]));
    let root = at("istio-system");
    assert_eq!(
        (root.objects.len(), left_out(&root)),
        (0, vec!["istio-system/p"])
    );
    let ObjectState::Failed(why) = &root.unwanted[0].delivery.state else {
        panic!("{:?}", root.unwanted);
    };
    assert!(
        why.starts_with("Istio applies a WasmPlugin in its root namespace"),
        "{why}"
    );
    let edge = Example::default().gateway("istio-system/edge", "istio");
    let target = "Gateway/istio-system/edge";
    let gateway = of(&edge.at_gateway("istio-system/p", target, "istio-system/edge", &[]));
    assert_eq!((gateway.objects.len(), left_out(&gateway)), (1, vec![]));
}

#[test]
fn a_gateway_gets_what_is_for_its_calls_with_the_rest() {
    for (class, at) in [("istio", "/pluginConfig"), ("eg", "/wasm/0/config")] {
        let plain = || {
            Example::default().gateway("infra/edge", class).at_gateway(
                "infra/p",
                "Gateway/infra/edge",
                "infra/edge",
                &[],
            )
        };
        let config = |example: &Example| {
            let wanted = of(example);
            let object = wanted.objects.values().next().unwrap();
            let text = object.value["spec"].pointer(at).unwrap().to_string();
            let config = FilterConfig::from_json(text.as_bytes()).unwrap();
            let annotation = &object.value["metadata"]["annotations"]["headgate.dev/revision"];
            assert_eq!(annotation.as_str().unwrap(), config.revision);
            config
        };
        let (without, with) = (config(&plain()), config(&plain().with_workflows()));
        assert_eq!(without.outbound, None, "{class}");
        assert_eq!(with.outbound.as_ref().unwrap().policy, "infra/p", "{class}");
        assert_eq!(with.direction, Direction::Inbound, "{class}");
        assert_ne!(with.revision, without.revision, "{class}");
    }
}

/// Returns the wanted objects in a cluster without other control planes or objects of Headgate.
fn nothing_installed(example: &Example, settings: &Settings) -> Wanted {
    let (plan, cluster) = (&example.plan, &example.cluster);
    let (none, nothing) = (Installed::default(), Observed::default());
    wanted(plan, cluster, settings, &none, &nothing, SHA256)
}

#[test]
fn a_config_map_holds_the_outbound_file_too() {
    let settings = Settings {
        config_map_module: Some("/headgate/headgate-{hash}.wasm".into()),
        ..settings()
    };
    let calls = |example: Example| {
        let all = nothing_installed(&example, &settings);
        let data = all.objects.values().next().unwrap().value["data"].clone();
        let text = data[config_map::OUTBOUND_FILE].as_str()?;
        let file: Value = serde_json::from_str(text).unwrap();
        let resource = &file["resources"][0];
        assert_eq!(resource["name"], "headgate-outbound");
        let config = &resource["typed_config"]["config"]["configuration"]["value"];
        let config = FilterConfig::from_json(config.as_str().unwrap().as_bytes()).unwrap();
        assert_eq!(config.direction, Direction::Outbound);
        Some(config.outbound.map(|outbound| outbound.policy))
    };
    let plain = || {
        Example::default()
            .policy("a/p", "Service/a/search", ("a", "app=search"), &[])
            .pod("a", "1", "app=search")
    };
    assert_eq!(calls(plain()), Some(None), "a file that does nothing");
    assert_eq!(
        calls(plain().with_workflows()),
        Some(Some("a/p".to_owned()))
    );
    let gateway = Example::default()
        .gateway("infra/edge", "istio")
        .at_gateway("infra/p", "Gateway/infra/edge", "infra/edge", &[]);
    assert_eq!(calls(gateway), None);
}

/// Istio turns each number of `pluginConfig` into a double and prints it again.
#[test]
fn the_configuration_survives_numbers_that_are_doubles() {
    fn doubles(value: &mut Value) {
        match value {
            Value::Number(n) => {
                let double = n.as_f64().unwrap();
                // Go prints a whole double without a point.
                *value = match double.fract() == 0.0 && double.abs() < 9e15 {
                    true => json!(double as i64),
                    false => json!(double),
                };
            }
            Value::Array(all) => all.iter_mut().for_each(doubles),
            Value::Object(all) => all.values_mut().for_each(doubles),
            _ => {}
        }
    }
    let mut seen = 0;
    for entry in std::fs::read_dir("../../examples/policies").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        let report = headgate_api::validate::check_file("f", &std::fs::read(&path).unwrap());
        for policy in report.policies() {
            let config = headgate_api::compile::configuration(policy, 3);
            let mut value = serde_json::to_value(&config).unwrap();
            doubles(&mut value);
            let back = headgate_core::config::FilterConfig::from_json(value.to_string().as_bytes());
            assert_eq!(back.as_ref(), Ok(&config), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen}");
}

#[test]
fn all_policies_of_the_same_pods_are_one_object() {
    let example = Example::default()
        .policy(
            "a/routes",
            "HTTPRoute/a/r",
            ("a", "app=search"),
            &["httproute/a/r/*"],
        )
        .policy("a/p", "Service/a/search", ("a", "app=search"), &[])
        .policy("a/later", "Pod/a/app=search", ("a", "app=search"), &[]);
    let object = only(&example);
    assert_eq!(
        object.policies,
        ["a/routes", "a/p"],
        "the later one is overridden"
    );
    let metadata = &object.value["metadata"];
    assert_eq!(metadata["ownerReferences"].as_array().unwrap().len(), 2);
    assert_eq!(
        metadata["annotations"]["headgate.dev/targets"],
        "HTTPRoute/a/r Service/a/search"
    );
}

#[test]
fn workloads_that_meet_on_a_pod_get_one_object_between_them() {
    let apart = || {
        Example::default()
            .policy("a/p", "Service/a/search", ("a", "app=search"), &[])
            .policy("a/q", "Service/a/hot", ("a", "tier=hot"), &[])
            .pod("a", "1", "app=search")
            .pod("a", "2", "tier=hot")
            .pod("b", "3", "app=search,tier=hot")
    };
    let wanted = of(&apart());
    assert_eq!((wanted.objects.len(), wanted.unwanted.len()), (2, 0));

    let wanted = of(&apart().pod("a", "4", "app=search,tier=hot"));
    assert_eq!(wanted.objects.len(), 1);
    assert_eq!(wanted.objects.values().next().unwrap().policies, ["a/p"]);
    let unwanted = &wanted.unwanted[0];
    assert_eq!(unwanted.policies, ["a/q"]);
    let ObjectState::Failed(why) = &unwanted.delivery.state else {
        panic!("{unwanted:?}");
    };
    assert!(
        why.starts_with("some of its Pods belong to Service/a/search, whose policy has precedence"),
        "{why}"
    );
}

/// If one selector includes the other, they overlap even without an observed Pod.
#[test]
fn only_precedence_separates_overlapping_pods() {
    let narrow = ("a", "app=search,tier=hot");
    let wide = ("a", "app=search");
    let older_is_wide = Example::default()
        .policy("a/p", "Service/a/search", wide, &[])
        .policy("a/q", "Pod/a/app=search,tier=hot", narrow, &[]);
    let wanted = of(&older_is_wide);
    assert_eq!(wanted.objects.len(), 1);
    assert_eq!(
        wanted.unwanted,
        [],
        "a/q is in force nowhere, as its status says"
    );

    let older_is_narrow = Example::default()
        .policy("a/q", "Pod/a/app=search,tier=hot", narrow, &[])
        .policy("a/p", "Service/a/search", wide, &[]);
    let wanted = of(&older_is_narrow);
    assert_eq!(wanted.objects.len(), 1);
    assert_eq!(wanted.objects.values().next().unwrap().policies, ["a/q"]);
    assert_eq!(wanted.unwanted[0].policies, ["a/p"]);
}

#[test]
fn a_gateway_is_programmed_by_its_control_plane() {
    let gateway = |class: &str| {
        Example::default().gateway("infra/edge", class).at_gateway(
            "infra/p",
            "Gateway/infra/edge",
            "infra/edge",
            &[],
        )
    };
    let istio = only(&gateway("istio"));
    assert_eq!(
        istio.value["spec"]["targetRefs"],
        json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}])
    );
    assert_eq!(istio.value["spec"]["selector"], Value::Null);
    assert_eq!(
        istio.value["spec"]["match"],
        Value::Null,
        "a gateway's listeners count as client"
    );

    let eg = only(&gateway("eg"));
    assert_eq!(eg.value["kind"], "EnvoyExtensionPolicy");
    let wasm = &eg.value["spec"]["wasm"][0];
    assert_eq!(wasm["failOpen"], true);
    assert_eq!(wasm["code"]["http"]["sha256"], SHA256);
    assert_eq!(wasm["config"]["stages"][0]["policy"], "infra/p");
    assert_eq!(eg.value["spec"]["targetRefs"][0]["kind"], "Gateway");

    for class in ["other", "unknown"] {
        assert_eq!(names(&of(&gateway(class))), [""; 0], "{class}");
    }
}

#[test]
fn envoy_gateway_runs_the_filter_only_where_it_is_needed() {
    let edge = "infra/edge";
    let route = |namespace: &str| format!("HTTPRoute/{namespace}/shop");
    let of_route = |namespace: &str, gateways: &[&str]| {
        let (route, policy) = (route(namespace), format!("{namespace}/p"));
        let pattern = format!("httproute/{namespace}/shop/*");
        Example::default()
            .gateway(edge, "eg")
            .gateway("infra/inner", "other")
            .route(&route, gateways)
            .at_gateway(&policy, &route, edge, &[&pattern])
    };
    let kinds = |example: &Example| {
        let object = only(example);
        let refs = object.value["spec"]["targetRefs"]
            .as_array()
            .unwrap()
            .clone();
        let kind = |r: &Value| r["kind"].as_str().unwrap().to_owned();
        refs.iter().map(kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&of_route("infra", &[edge])), ["HTTPRoute"]);
    let shared = of_route("infra", &[edge, "infra/inner"]);
    assert_eq!(
        kinds(&shared),
        ["Gateway"],
        "its share is another at the other gateway"
    );
    assert_eq!(
        kinds(&of_route("shop", &[edge])),
        ["Gateway"],
        "not of the gateway's namespace"
    );
    let object = only(&of_route("shop", &[edge]));
    assert_eq!(object.key.namespace, "infra");
    assert_eq!(
        object.value["metadata"]["ownerReferences"],
        Value::Null,
        "an owner in another namespace would have it deleted"
    );
    let both = of_route("infra", &[edge]).at_gateway("infra/g", "Gateway/infra/edge", edge, &[]);
    assert_eq!(kinds(&both), ["Gateway"]);
    assert_eq!(only(&both).policies, ["infra/p", "infra/g"]);
    assert_eq!(
        only(&both).key,
        only(&of_route("infra", &[edge])).key,
        "one name whatever it is attached to: another would make a new VM"
    );
}

/// Kubernetes deletes an object together with its last owner.
#[test]
fn a_shared_gateways_object_outlives_the_policies_of_the_gateways_namespace() {
    let edge = || Example::default().gateway("infra/edge", "eg");
    let own =
        |example: Example| example.at_gateway("infra/g", "Gateway/infra/edge", "infra/edge", &[]);
    let owners = |example: Example| {
        let object = only(&example);
        let owners = object.value["metadata"]["ownerReferences"].as_array();
        owners.map_or(0, Vec::len)
    };
    assert_eq!(owners(own(edge())), 1);
    let route = "HTTPRoute/shop/r";
    let foreign = edge().route(route, &["infra/edge"]);
    let foreign = foreign.at_gateway("shop/p", route, "infra/edge", &["httproute/shop/r/*"]);
    assert_eq!(owners(own(foreign)), 0);
}

#[test]
fn no_objects_are_wanted_for_a_plane_that_is_not_installed_or_not_enabled() {
    let example = Example::default().policy("a/p", "Service/a/search", ("a", "app=search"), &[]);
    let without = |settings: &Settings, installed: &Installed| {
        names(&wanted(
            &example.plan,
            &example.cluster,
            settings,
            installed,
            &Observed::default(),
            SHA256,
        ))
    };
    assert_eq!(without(&settings(), &Installed::default()), [""; 0]);
    assert_eq!(example.plan.attachments.remembered(), 0, "configurations");
    let off = Settings {
        istio: false,
        ..settings()
    };
    assert_eq!(without(&off, &installed()), [""; 0]);
    // Served EnvoyFilters alone show that Istio is installed only if Istio's plugin kinds aren't
    // watched, as with a native module and `keep_leftovers`.
    let only_filters = Installed {
        served: BTreeSet::from([Adapter::IstioNative]),
        ..Installed::default()
    };
    for keep_leftovers in [false, true] {
        let mut native = settings();
        native.args.istio_native = Some("/headgate/bin/libheadgate.so".into());
        native.args.keep_leftovers = keep_leftovers;
        let written = without(&native, &only_filters).len();
        assert_eq!(written, usize::from(keep_leftovers));
    }
    let files = Settings {
        config_map_module: Some("/headgate/headgate-{hash}.wasm".into()),
        ..off
    };
    assert_eq!(
        without(&files, &Installed::default()),
        ["ConfigMap a/headgate-service-search"]
    );
}

#[test]
fn a_config_map_holds_the_file_that_render_writes() {
    let settings = Settings {
        config_map_module: Some("/headgate/headgate-{hash}.wasm".into()),
        ..settings()
    };
    let mut example = Example::default()
        .policy("a/p", "Service/a/search", ("a", "app=search"), &[])
        .pod("a", "1", "app=search");
    let file = |example: &Example| -> Value {
        let all = nothing_installed(example, &settings);
        let object = all.objects.values().next().unwrap();
        let text = object.value["data"][config_map::FILE].as_str().unwrap();
        serde_json::from_str(text).unwrap()
    };
    let resource = &file(&example)["resources"][0];
    assert_eq!(resource["name"], "headgate");
    let plugin = &resource["typed_config"]["config"];
    assert_eq!(
        plugin["vm_config"]["code"]["local"]["filename"],
        format!("/headgate/headgate-{}.wasm", &SHA256[..16])
    );
    let revision = |file: &Value| {
        let text = &file["resources"][0]["typed_config"]["config"]["configuration"]["value"];
        let config: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        config["revision"].as_str().unwrap().to_owned()
    };
    assert_ne!(
        revision(&file(&example)),
        "claimed",
        "its Pods share the slots by their number"
    );
    let pod = Arc::make_mut(&mut example.cluster.pods)
        .values_mut()
        .next()
        .unwrap();
    pod.target = Some("Service/a/search".parse().unwrap());
    assert_eq!(
        revision(&file(&example)),
        "claimed",
        "proxies say that they stand for it"
    );
}

/// Pods keep the module that they started with while operators of another version take over.
#[test]
fn a_config_map_names_no_version_of_the_module() {
    let settings = defaults(&["--deliver-config-maps"]).unwrap();
    let example = Example::default().policy("a/p", "Service/a/search", ("a", "app=search"), &[]);
    let files = |sha256: &str| {
        let (plan, cluster) = (&example.plan, &example.cluster);
        let (none, nothing) = (Installed::default(), Observed::default());
        wanted(plan, cluster, &settings, &none, &nothing, sha256).objects
    };
    assert_eq!(files(SHA256).len(), 1);
    assert_eq!(files(SHA256), files(&"0".repeat(64)));
}

/// Without the ConfigMap, no further Pod of the same workload could start. The mount isn't visible
/// while the only Pod restarts, and in a namespace that is no longer selected.
#[test]
fn a_config_map_outlives_its_policy_and_its_pods() {
    let with_module = |path: &str, example: &Example, observed: &Observed| -> Vec<Object> {
        let settings = Settings {
            config_map_module: Some(path.to_owned()),
            ..settings()
        };
        let (plan, cluster, none) = (&example.plan, &example.cluster, Installed::default());
        let all = wanted(plan, cluster, &settings, &none, observed, SHA256);
        all.objects.into_values().collect()
    };
    let after =
        |example: &Example, observed: &Observed| with_module("/headgate.wasm", example, observed);
    let observed = |object: &Object| {
        let mut observed = Observed::default();
        observed.wrote(object.adapter, object.key.clone(), object.value.clone());
        observed
    };
    let mut example = Example::default()
        .policy("a/p", "Service/a/search", ("a", "app=search"), &[])
        .mounting("a", "1", "headgate-service-search");
    let before = after(&example, &Observed::default());
    let of_former = with_module("/headgate-{hash}.wasm", &example, &Observed::default());
    let owners = &before[0].value["metadata"]["ownerReferences"];
    assert_eq!(*owners, Value::Null, "an owner would take it along");

    // Only the object has the last valid version of an invalid policy.
    example.plan.attachments = Vec::new().into();
    example.plan.workloads.clear();
    example.plan.policies[0].accepted = Err("spec.types: none".into());
    example.plan.policies[0].has_version = false;
    example.plan.policies[0].revision = String::new();
    let kept = after(&example, &observed(&before[0]));
    assert_eq!(kept[0].value, before[0].value);
    // Pods that start now have the module at another path.
    let kept = after(&example, &observed(&of_former[0]));
    assert_ne!(of_former[0].value["data"], before[0].value["data"]);
    assert_eq!(kept[0].value["data"], before[0].value["data"]);

    example.plan.policies.clear();
    let empty = after(&example, &observed(&before[0]));
    let [object] = &empty[..] else {
        panic!("{empty:?}");
    };
    assert_eq!(object.key, before[0].key);
    assert_eq!(object.policies, [""; 0]);
    let config = configuration_in(&object.value).unwrap();
    assert_eq!(config.stages, []);
    assert!(object.value["data"][config_map::OUTBOUND_FILE].is_string());
    assert_eq!(after(&example, &observed(object)), empty);

    let pods = std::mem::take(&mut example.cluster.pods);
    example.cluster.policies = Arc::default();
    assert_eq!(after(&example, &observed(object)), empty);
    assert_eq!(after(&example, &observed(&before[0])), empty);
    example.cluster.pods = pods;
    assert_eq!(after(&example, &observed(object)), empty);
}

/// Returns policies `a/p0`, `a/p1` … of one Gateway, with stages of about these sizes in bytes. The
/// length of a policy's route pattern determines the size.
fn sized(sizes: &[usize]) -> Example {
    let edge = Example::default().gateway("a/edge", "eg");
    { sizes.iter().enumerate() }.fold(edge, |example, (i, size)| {
        let route = format!("HTTPRoute/a/{i}");
        let pattern = format!("httproute/a/{i}/{}*", "x".repeat(*size));
        example.route(&route, &["a/edge"]).at_gateway(
            &format!("a/p{i}"),
            &route,
            "a/edge",
            &[&pattern],
        )
    })
}

fn left_out(wanted: &Wanted) -> Vec<&str> {
    let policies = wanted.unwanted.iter().flat_map(|u| &u.policies);
    policies.map(String::as_str).collect()
}

/// One tenant's policy doesn't remove the filter of the others at a shared Gateway.
#[test]
fn a_policy_that_does_not_fit_is_left_out_and_says_so_and_the_others_stay() {
    let wanted = of(&sized(&[5_000, 990_000, 6_000]));
    let object = wanted.objects.values().next().unwrap();
    assert!(object.bytes() <= MAX_BYTES);
    assert_eq!(object.policies, ["a/p0", "a/p2"]);
    let metadata = &object.value["metadata"];
    assert_eq!(
        metadata["annotations"]["headgate.dev/targets"],
        "HTTPRoute/a/0 HTTPRoute/a/2"
    );
    assert_eq!(metadata["ownerReferences"].as_array().unwrap().len(), 2);
    let config = object.value["spec"]["wasm"][0]["config"].to_string();
    let config = FilterConfig::from_json(config.as_bytes()).unwrap();
    assert_eq!(config.stages.len(), 2);
    assert_eq!(
        config.revision,
        only(&sized_without_the_second()).value["spec"]["wasm"][0]["config"]["revision"],
        "another configuration has another revision"
    );
    assert_eq!(left_out(&wanted), ["a/p1"]);
    let ObjectState::Failed(why) = &wanted.unwanted[0].delivery.state else {
        panic!("{:?}", wanted.unwanted);
    };
    assert!(
        why.contains("left out") && why.contains("at most 1000000"),
        "{why}"
    );
    assert_eq!(wanted.unwanted[0].delivery.object, object.key);
}

fn sized_without_the_second() -> Example {
    let mut example = sized(&[5_000, 990_000, 6_000]);
    let mut all = example.plan.attachments.to_vec();
    all.remove(1);
    example.plan.attachments = all.into();
    example
}

/// Returns each policy in the configuration of the only object, with the bytes of its stage.
fn stages(wanted: &Wanted) -> Vec<(String, usize)> {
    let object = wanted.objects.values().next().unwrap();
    assert!(object.bytes() <= MAX_BYTES);
    let config = object.value["spec"]["wasm"][0]["config"].to_string();
    let config = FilterConfig::from_json(config.as_bytes()).unwrap();
    let part = |s: &StageConfig| {
        let size = serde_json::to_string(s).unwrap().len();
        (s.policy.clone(), size)
    };
    config.stages.iter().map(part).collect()
}

/// Gives policy `at` a path of this size, another number of slots, and the next generation.
fn grown(mut example: Example, at: usize, size: usize) -> Example {
    let mut all = example.plan.attachments.to_vec();
    let mut stage = (*all[at].stage).clone();
    let path = format!("/{}", "x".repeat(size));
    stage.types[0].matches[0].path = Some(PathMatch {
        kind: PathMatchKind::Exact,
        value: path,
    });
    stage.parallelism = 9;
    stage.generation += 1;
    all[at].stage = Arc::new(stage);
    example.plan.attachments = all.into();
    example
}

/// A policy that fitted isn't removed because its successor doesn't fit.
#[test]
fn a_policy_that_outgrows_a_shared_object_keeps_the_version_that_fitted() {
    let sizes = [5_000, 600_000, 6_000];
    let first = of(&sized(&sizes));
    let before = stages(&first);
    // Policy `a/p0` outgrows the object. It remains smaller than `a/p1`.
    let next = grown(sized(&sizes), 0, 500_000);
    let wanted = after(&next, &applied(&first));
    assert_eq!(
        stages(&wanted),
        before,
        "a number of slots has one digit before and after"
    );
    let object = wanted.objects.values().next().unwrap();
    let parallelism = &object.value["spec"]["wasm"][0]["config"]["stages"][0]["parallelism"];
    assert_eq!(parallelism, 9, "slots follow endpoints");
    assert_eq!(left_out(&wanted), ["a/p0"]);
    let ObjectState::Failed(why) = &wanted.unwanted[0].delivery.state else {
        panic!("{:?}", wanted.unwanted);
    };
    assert!(
        why.starts_with("generation 1 of this policy is not in force"),
        "{why}"
    );

    let again = after(&next, &applied(&wanted));
    assert_eq!(again, wanted, "at rest");
    let small = after(&grown(sized(&sizes), 0, 2_000), &applied(&again));
    assert_eq!(left_out(&small), [""; 0]);
    assert_ne!(stages(&small), before);
}

#[test]
fn a_policy_that_is_new_to_an_object_takes_no_other_one_s_room() {
    let first = of(&sized(&[700_000]));
    let wanted = after(&sized(&[700_000, 400_000, 5_000]), &applied(&first));
    assert_eq!(left_out(&wanted), ["a/p1"]);
    assert_eq!(stages(&wanted).len(), 2);
}

/// The policy of the listener had the route before the new policy came.
#[test]
fn requests_of_a_policy_that_does_not_fit_meet_the_next_policy() {
    let (route, listener) = ("HTTPRoute/b/r", "Gateway/a/edge/https");
    let [r, s] = ["httproute/b/r/*", "httproute/b/s/*"];
    let example = Example::default()
        .gateway("a/edge", "eg")
        .route(route, &["a/edge"])
        .at_gateway("b/r", route, "a/edge", &[r])
        .at_gateway("a/tls", listener, "a/edge", &[r, s]);
    let wanted = of(&grown(example, 0, 1_000_000));
    assert_eq!(left_out(&wanted), ["b/r"]);
    let object = wanted.objects.values().next().unwrap();
    let stages = &object.value["spec"]["wasm"][0]["config"]["stages"];
    assert_eq!(stages.as_array().unwrap().len(), 1);
    assert_eq!(stages[0]["routes"], json!([r, s]));
}

/// The stage of the pool and the Gateway is the last, so that of the route leaves the pool's rule
/// to it.
#[test]
fn requests_to_a_pool_whose_policy_does_not_fit_meet_the_policy_of_their_route() {
    let [of_pool, rest] = ["httproute/a/r/rule/0/*", "httproute/a/r/rule/1/*"];
    let route = "HTTPRoute/a/r";
    let example = Example::default()
        .gateway("a/edge", "eg")
        .route(route, &["a/edge"])
        .at_gateway("a/p", "InferencePool/a/llm", "a/edge", &[of_pool])
        .at_gateway("a/r", route, "a/edge", &[of_pool, rest])
        .at_gateway("a/p", "Gateway/a/edge", "a/edge", &[]);
    let routes = |wanted: &Wanted| {
        let object = wanted.objects.values().next().unwrap();
        object.value["spec"]["wasm"][0]["config"]["stages"][0]["routes"].clone()
    };
    assert_eq!(routes(&of(&example)), json!([rest]));
    let wanted = of(&grown(example, 0, 1_000_000));
    assert_eq!(left_out(&wanted), ["a/p"]);
    assert_eq!(routes(&wanted), json!([of_pool, rest]));
}

/// The namespace that came first doesn't keep all of a shared Gateway's object. The policies of the
/// Gateway's own namespace stay.
#[test]
fn a_namespace_with_more_than_its_share_makes_room_for_others() {
    let with = |policies: &[(&str, usize)]| {
        let edge = Example::default().gateway("infra/edge", "eg");
        policies.iter().fold(edge, |example, (namespace, size)| {
            let route = format!("HTTPRoute/{namespace}/r");
            let pattern = format!("httproute/{namespace}/{}*", "x".repeat(*size));
            let policy = format!("{namespace}/p");
            let example = example.route(&route, &["infra/edge"]);
            example.at_gateway(&policy, &route, "infra/edge", &[&pattern])
        })
    };
    for (first, second, out) in [
        (("evil", 950_000), ("shop", 60_000), "evil/p"),
        // Without a smaller namespace, the policy that is new has no room.
        (("evil", 600_000), ("shop", 550_000), "shop/p"),
        (("infra", 950_000), ("shop", 60_000), "shop/p"),
    ] {
        let before = of(&with(&[first]));
        assert_eq!(left_out(&before), [""; 0]);
        let both = with(&[first, second]);
        let wanted = after(&both, &applied(&before));
        assert_eq!(left_out(&wanted), [out], "{first:?}");
        assert_eq!(stages(&wanted).len(), 1);
        assert_eq!(after(&both, &applied(&wanted)), wanted, "at rest");
    }
}

/// The filter refuses a configuration with the calls of a policy that isn't in it. A workload has
/// calls before it is cut if it was joined with the last version of an invalid policy.
#[test]
fn a_policy_that_is_left_out_takes_its_calls_along() {
    let example = Example::default()
        .gateway("infra/edge", "eg")
        .at_gateway("infra/p", "Gateway/infra/edge", "infra/edge", &[])
        .with_workflows();
    let (workloads, _) = workloads(&example.plan, &example.cluster);
    let joined = both_ways(&workloads[0], &example.plan);
    assert!(joined.config.outbound.is_some());
    let rest = joined.with(&Cuts::from([("infra/p", Cut::Out)]), &example.plan);
    assert_eq!(rest.config.check(), Ok(()));
}

#[test]
fn the_largest_and_of_equal_ones_the_last_make_room() {
    assert_eq!(left_out(&of(&sized(&[900_000, 300_000]))), ["a/p0"]);
    let many = of(&sized(&[20_000; 64]));
    let object = many.objects.values().next().unwrap();
    let out = left_out(&many);
    assert!(object.bytes() <= MAX_BYTES && object.bytes() > MAX_BYTES - 40_000);
    assert_eq!(object.policies.len() + out.len(), 64);
    assert_eq!((out[0], object.policies[0].as_str()), ("a/p63", "a/p0"));
}

#[test]
fn equal_objects_have_equal_bytes_and_different_ones_different_hashes() {
    let example = |parallelism: u32| {
        let mut example =
            Example::default().policy("a/p", "Service/a/search", ("a", "app=search"), &[]);
        let mut attachment = example.plan.attachments[0].clone();
        let mut stage = (*attachment.stage).clone();
        stage.parallelism = parallelism;
        attachment.stage = std::sync::Arc::new(stage);
        attachment.share.slots = headgate_api::validate::Slots::Total(parallelism);
        example.plan.attachments = vec![attachment].into();
        only(&example)
    };
    assert_eq!(example(4), example(4));
    assert_ne!(example(4).content(), example(5).content());
    assert_eq!(example(4).key, example(5).key);
}
