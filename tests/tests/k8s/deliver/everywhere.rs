//! A cluster with everything that a policy can be attached to.

use std::collections::BTreeMap;
use std::sync::Arc;

use headgate_api::plan::{TargetKind, TargetRef};
use headgate_deliver::cluster::{Cluster, Gateway, ObjectKey, PolicyObject, Pool, Route, Service};

/// Returns a cluster in which this policy is attached to every kind of target.
pub(crate) fn everywhere(
    example: &headgate_api::validate::ValidPolicy,
    namespace: &str,
) -> Cluster {
    let mut cluster = Cluster {
        served_kinds: vec![
            TargetKind::Gateway,
            TargetKind::HttpRoute,
            TargetKind::GrpcRoute,
            TargetKind::InferencePool,
        ],
        ..Cluster::default()
    };
    let key = |name: &str| ObjectKey::new(namespace, name);
    let target = |kind: TargetKind, name: &str| TargetRef {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        section: None,
    };
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|&(k, v)| (k.to_owned(), v.to_owned()))
            .collect()
    };
    let selector = labels(&[("app", "search")]);
    Arc::make_mut(&mut cluster.services).insert(key("search"), Service { selector });
    let gateways = [
        ("of-istio", "istio"),
        ("of-eg", "eg"),
        ("with-routes", "eg"),
        ("both", "eg"),
    ];
    for (name, class) in gateways {
        let class = class.to_owned();
        let listeners = ["http".to_owned()].into();
        Arc::make_mut(&mut cluster.gateways).insert(key(name), Gateway { class, listeners });
    }
    let route = |gateway: &str| Route {
        gateways: vec![key(gateway)],
        rules: vec![[target(TargetKind::Service, "search")].into()],
        ..Route::default()
    };
    let http = target(TargetKind::HttpRoute, "shop");
    let grpc = target(TargetKind::GrpcRoute, "shop");
    let of_both = target(TargetKind::HttpRoute, "of-both");
    Arc::make_mut(&mut cluster.routes).insert(http.clone(), route("with-routes"));
    Arc::make_mut(&mut cluster.routes).insert(grpc.clone(), route("with-routes"));
    Arc::make_mut(&mut cluster.routes).insert(of_both.clone(), route("both"));
    let pool = target(TargetKind::InferencePool, "llm");
    let to_pool = Route {
        gateways: vec![key("both")],
        rules: vec![[pool.clone()].into()],
        ..Route::default()
    };
    let selector = labels(&[("app", "llm")]);
    Arc::make_mut(&mut cluster.pools).insert(key("llm"), Pool { selector, ports: 1 });
    Arc::make_mut(&mut cluster.routes).insert(target(TargetKind::HttpRoute, "llm"), to_pool);
    let targets = [
        pool,
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
            created: None,
            targets: vec![target],
            accepted: Ok(()),
            effective: Some(policy.clone()),
        };
        Arc::make_mut(&mut cluster.policies).insert(key(&policy.name), object.into());
    }
    cluster
}
