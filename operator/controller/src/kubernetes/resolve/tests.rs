use std::sync::Arc;
use std::sync::LazyLock;

use headgate_core::config::Mode;

use super::*;
use headgate_api::plan::{GATEWAY_NAME_LABEL, ProxyClaims, TargetKind};
use headgate_api::validate::{Slots, check_file};
use headgate_deliver::cluster::{Gateway, Pod, PolicyObject, Pool, Route, Service};

mod delivered;
mod gateways;
mod incremental;
mod properties;
mod sidecars;
mod workflows;

/// Builds a [`Cluster`] from short texts, such as `shop/search` and `app=search`.
#[derive(Debug, Default, Clone)]
struct World {
    cluster: Cluster,
}

/// Returns `a/b` as a key.
fn key(text: &str) -> ObjectKey {
    text.parse().unwrap()
}

fn target(text: &str) -> TargetRef {
    text.parse().unwrap()
}

/// Returns `app=search,tier=web` as labels.
fn labels(text: &str) -> BTreeMap<String, String> {
    text.split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

/// Returns a policy. `created` is 0 for the oldest policy. `slots` is such as `total: 20` or
/// `perEndpoint: 8`.
fn valid(name: &str, created: u32, slots: &str, targets: &[&str]) -> ValidPolicy {
    let mut policy = PARSED.clone();
    policy.stage.policy = name.to_owned();
    ObjectKey {
        namespace: policy.namespace,
        name: policy.name,
    } = key(name);
    policy.created = Some(format!("2026-01-01T00:00:{created:02}Z"));
    let (field, number) = slots.split_once(": ").unwrap();
    let number = number.parse().unwrap();
    policy.slots = match field {
        "total" => Slots::Total(number),
        _ => Slots::PerEndpoint(number),
    };
    policy.targets = targets.iter().map(|t| target(t)).collect();
    policy
}

/// The policy is parsed only once, because parsing YAML a thousand times would dominate the tests'
/// time.
static PARSED: LazyLock<ValidPolicy> = LazyLock::new(|| {
    let yaml = "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\n\
                metadata: {name: p, generation: 1}\nspec:\n  \
                targetRefs: [{kind: Service, name: x}]\n  parallelism: {total: 1}\n  \
                types:\n  - {name: default, slo: {p50: 18ms, p90: 50ms}}\n";
    let report = check_file("test.yaml", yaml.as_bytes());
    let problems: Vec<String> = report.all_problems().map(ToString::to_string).collect();
    assert_eq!(problems, [""; 0]);
    report.policies().next().unwrap().clone()
});

impl World {
    /// Adds a policy. The first policy added is the oldest.
    fn policy(self, name: &str, slots: &str, targets: &[&str]) -> Self {
        let created = u32::try_from(self.cluster.policies.len()).unwrap();
        self.policy_of_age(name, created, slots, targets)
    }

    fn policy_of_age(mut self, name: &str, created: u32, slots: &str, targets: &[&str]) -> Self {
        let policy = valid(name, created, slots, targets);
        let object = PolicyObject {
            uid: name.to_owned(),
            generation: policy.generation,
            created: policy.created.clone(),
            targets: policy.targets.clone(),
            accepted: Ok(()),
            effective: Some(policy),
        };
        Arc::make_mut(&mut self.cluster.policies).insert(key(name), object.into());
        self
    }

    fn service(mut self, name: &str, selector: &str, ready: u32) -> Self {
        let selector = labels(selector);
        Arc::make_mut(&mut self.cluster.services).insert(key(name), Service { selector });
        Arc::make_mut(&mut self.cluster.ready_endpoints).insert(key(name), ready);
        self
    }

    fn pod(mut self, name: &str, with: &str) -> Self {
        let pod = Pod {
            labels: labels(with),
            ready: true,
            ..Pod::default()
        };
        Arc::make_mut(&mut self.cluster.pods).insert(key(name), pod);
        self
    }

    /// Adds Pods `name-0` to `name-(n-1)`.
    fn pods(self, n: usize, name: &str, with: &str) -> Self {
        (0..n).fold(self, |world, i| world.pod(&format!("{name}-{i}"), with))
    }

    fn unready(mut self, pod: &str) -> Self {
        Arc::make_mut(&mut self.cluster.pods)
            .get_mut(&key(pod))
            .unwrap()
            .ready = false;
        self
    }

    fn claims(mut self, pod: &str, claimed: &str) -> Self {
        Arc::make_mut(&mut self.cluster.pods)
            .get_mut(&key(pod))
            .unwrap()
            .target = Some(target(claimed));
        self
    }

    fn gateway_api(mut self) -> Self {
        self.cluster.served_kinds = vec![
            TargetKind::Gateway,
            TargetKind::HttpRoute,
            TargetKind::GrpcRoute,
            TargetKind::InferencePool,
        ];
        self
    }

    fn gateway(self, name: &str) -> Self {
        self.gateway_with(name, &["http"])
    }

    fn gateway_with(mut self, name: &str, listeners: &[&str]) -> Self {
        let gateway = Gateway {
            class: "envoy".to_owned(),
            listeners: listeners.iter().map(|&l| l.to_owned()).collect(),
        };
        Arc::make_mut(&mut self.cluster.gateways).insert(key(name), gateway);
        self.gateway_api()
    }

    fn route(mut self, route: &str, gateways: &[&str], backends: &[&str]) -> Self {
        // A parent is such as `a/edge` or, for one listener, `a/edge/http`.
        let parent = |name: &&str| {
            let gateway: Vec<&str> = name.splitn(3, '/').collect();
            let listener = gateway.get(2).map(|&l| l.to_owned());
            (ObjectKey::new(gateway[0], gateway[1]), listener)
        };
        // A backend is such as `a/x`, a Service, or `InferencePool/a/x`. The backends of one rule
        // are joined by `+`.
        let backend = |name: &str| match name.matches('/').count() {
            1 => target(&format!("Service/{name}")),
            _ => target(name),
        };
        let rule = |names: &&str| names.split('+').map(backend).collect();
        let parents = || gateways.iter().map(parent);
        let at = Route {
            gateways: parents().map(|(gateway, _)| gateway).collect(),
            listeners: parents().collect(),
            rules: backends.iter().map(rule).collect(),
            names: BTreeMap::new(),
        };
        Arc::make_mut(&mut self.cluster.routes).insert(target(route), at);
        self.gateway_api()
    }

    /// Gives a rule of a route a name.
    fn named(mut self, route: &str, rule: usize, name: &str) -> Self {
        let route = Arc::make_mut(&mut self.cluster.routes)
            .get_mut(&target(route))
            .unwrap();
        route.names.insert(rule, name.to_owned());
        self
    }

    fn pool(mut self, name: &str, selector: &str, ports: u32) -> Self {
        let selector = labels(selector);
        let pool = Pool { selector, ports };
        Arc::make_mut(&mut self.cluster.pools).insert(key(name), pool);
        self.gateway_api()
    }

    fn plan(&self) -> Plan {
        Planner::default().plan(&self.cluster)
    }

    fn state(&self, policy: &str) -> PolicyState {
        let plan = self.plan();
        plan.policies
            .into_iter()
            .find(|p| p.name == policy)
            .unwrap()
    }
}

/// Returns the configuration that the proxy of a Pod with these labels enforces.
fn by_labels(plan: &Plan, namespace: &str, with: &str) -> Arc<Enforced> {
    plan.for_proxy(&ProxyClaims {
        target: None,
        namespace: Some(namespace),
        labels: &labels(with),
    })
}

/// Returns policies, slots and routes of the stages.
fn stages(enforced: &Enforced) -> Vec<(String, u32, Vec<String>)> {
    let stage = |s: &headgate_core::config::StageConfig| {
        (s.policy.clone(), s.parallelism, s.routes.clone())
    };
    enforced.config.stages.iter().map(stage).collect()
}

/// Returns the policies and slots of the stages, which must be for all requests.
fn slots(enforced: &Enforced) -> Vec<(String, u32)> {
    stages(enforced)
        .into_iter()
        .map(|(policy, slots, routes)| {
            assert_eq!(routes, [""; 0]);
            (policy, slots)
        })
        .collect()
}

#[test]
fn a_message_names_the_missing_object() {
    let targets = [
        "Service/shop/search",
        "Service/shop/ext",
        "Gateway/shop/edge",
        "HTTPRoute/shop/r",
        "HTTPRoute/shop/orphan",
        "HTTPRoute/shop/foreign",
        "GRPCRoute/shop/lost",
        "Service/other/x",
    ];
    let world = World::default()
        .policy("shop/p", "total: 8", &targets)
        .service("shop/ext", "", 2);
    let lines = |world: &World| -> Vec<String> {
        let state = world.state("shop/p");
        assert_eq!((state.revision.as_str(), state.accepted), ("", Ok(())));
        assert!(world.plan().workloads.is_empty() && world.plan().attachments.is_empty());
        state.not_found.into_iter().map(|(_, why)| why).collect()
    };
    let not_installed = |kind: &str| {
        format!(
            "Gateway API isn't installed in this cluster: there is no kind {kind}; install its \
             CRDs, or target a Service"
        )
    };
    let before = lines(&world);
    assert_eq!(
        before[..3],
        [
            "Service shop/search doesn't exist".to_owned(),
            "Service shop/ext has no selector, so its Pods are unknown; give it a selector, or \
             annotate the Pods of its proxies with headgate.dev/target: Service/shop/ext"
                .to_owned(),
            not_installed("Gateway"),
        ]
    );
    assert_eq!(before[6], not_installed("GRPCRoute"));
    assert_eq!(
        before[7],
        "Service/other/x is not in the policy's own namespace shop"
    );
    let installed = world
        .route("HTTPRoute/shop/orphan", &[], &[])
        .route("HTTPRoute/shop/foreign", &["infra/edge"], &[])
        .route("GRPCRoute/shop/lost", &["shop/gone", "infra/edge"], &[]);
    assert_eq!(
        lines(&installed)[2..7],
        [
            "Gateway shop/edge doesn't exist",
            "HTTPRoute shop/r doesn't exist",
            "HTTPRoute shop/orphan has no parent Gateway in its namespace, and none of another \
             namespace has accepted it; name one in its parentRefs that allows routes from its \
             namespace",
            "HTTPRoute shop/foreign has parent Gateway infra/edge, which doesn't exist",
            "GRPCRoute shop/lost has parent Gateway infra/edge, shop/gone, which doesn't exist",
        ]
    );
}

#[test]
fn a_policy_with_mistakes_keeps_its_last_good_version_in_force() {
    let mut world = World::default()
        .policy("a/p", "total: 8", &["Service/a/x"])
        .service("a/x", "app=x", 1)
        .pod("a/x-0", "app=x");
    let good = world.state("a/p");
    let object = Arc::make_mut(&mut world.cluster.policies).get_mut(&key("a/p"));
    let object = Arc::make_mut(object.unwrap());
    object.generation = 2;
    object.accepted = Err("spec.types: one\nspec.mode: two".into());
    let kept = world.state("a/p");
    assert_eq!(
        kept,
        PolicyState {
            generation: 2,
            accepted: Err("spec.types: one\nspec.mode: two".into()),
            ..good
        }
    );
    assert!(!kept.revision.is_empty());
    assert_eq!(
        slots(&by_labels(&world.plan(), "a", "app=x")),
        [("a/p".into(), 8)]
    );

    let object = Arc::make_mut(&mut world.cluster.policies).get_mut(&key("a/p"));
    Arc::make_mut(object.unwrap()).effective = None;
    let never = world.state("a/p");
    assert_eq!((never.revision.as_str(), never.mode), ("", Mode::Enforce));
    assert_eq!(never.targets, [target("Service/a/x")]);
    assert!(world.plan().workloads.is_empty());
}

#[test]
fn a_policy_that_was_never_right_wins_nothing() {
    let mut world = World::default()
        .policy("a/old", "total: 8", &["Service/a/x", "HTTPRoute/a/r"])
        .policy("a/young", "total: 4", &["Service/a/x"])
        .service("a/x", "app=x", 1)
        .gateway_api()
        .gateway("infra/edge")
        .route("HTTPRoute/a/r", &["infra/edge"], &["a/x"]);
    assert_eq!(world.plan().lost, []);
    assert_eq!(
        world.state("a/young").conflicts,
        [Conflict {
            target: target("Service/a/x"),
            winner: "a/old".into()
        }]
    );
    let old = Arc::make_mut(&mut world.cluster.policies).get_mut(&key("a/old"));
    let old = Arc::make_mut(old.unwrap());
    (old.accepted, old.effective) = (Err("spec.types: none".into()), None);
    assert_eq!(world.state("a/young").conflicts, []);
    let plan = world.plan();
    let config = &plan.workloads[&target("Service/a/x")];
    assert_eq!(config.stages[0].policy, "a/young");
    let its_own = ProxySelector {
        namespace: "a".to_owned(),
        labels: labels("app=x"),
    };
    assert_eq!(plan.lost, [its_own]);
}

/// Proxies don't miss a policy that wouldn't be in force on them even if it were valid.
#[test]
fn a_policy_is_not_missed_where_an_older_one_applies() {
    let mut world = World::default()
        .policy("a/old", "total: 8", &["Service/a/x"])
        .policy("a/young", "total: 4", &["Service/a/x", "Service/a/y"])
        .service("a/x", "app=x", 1)
        .service("a/y", "app=y", 1);
    let young = Arc::make_mut(&mut world.cluster.policies).get_mut(&key("a/young"));
    let young = Arc::make_mut(young.unwrap());
    (young.accepted, young.effective) = (Err("spec.types: none".into()), None);
    let its_own = ProxySelector {
        namespace: "a".to_owned(),
        labels: labels("app=y"),
    };
    assert_eq!(world.plan().lost, [its_own]);
    assert_eq!(
        world.state("a/young").conflicts,
        [Conflict {
            target: target("Service/a/x"),
            winner: "a/old".into()
        }]
    );
}
