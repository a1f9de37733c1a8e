//! The cost of an edit in a large cluster. The cluster has 1,000 policies, each for its own Service
//! with 5 Pods, and a proxy in each Pod.
//!
//! `plan/afresh` is the first plan after a start. `plan/edit` and `plan/scale` are later plans,
//! after one policy was edited or one Pod became unready. `proxies/first` looks up the
//! configurations of all 5,000 Pods' proxies in a new plan; `proxies/again` repeats this.
//! `cluster/copy` is the cost of keeping a copy of the cluster while a change is applied.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use headgate_api::plan::{Plan, ProxyClaims};
use headgate_api::validate::{ValidPolicy, check_file};
use headgate_controller::kubernetes::resolve::Planner;
use headgate_deliver::cluster::{Cluster, ObjectKey, Pod, PolicyObject, Service};

const WORKLOADS: usize = 1_000;
const PODS: usize = 5;

fn policy(n: usize, max_length: usize) -> Option<ValidPolicy> {
    let yaml = format!(
        "apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {{name: p{n:04}, namespace: shop, generation: {max_length}, creationTimestamp: \"2026-01-01T00:00:00Z\"}}
spec:
  targetRefs: [{{kind: Service, name: s{n:04}}}]
  parallelism: {{perEndpoint: 8}}
  queue: {{maxLength: {max_length}}}
  types:
  - {{name: fast, matches: [{{path: {{value: /fast}}}}, {{path: {{value: /quick}}}}], slo: {{p50: 18ms, p90: 50ms}}}}
  - {{name: slow, matches: [{{path: {{value: /slow}}}}, {{headers: [{{name: x-kind, value: report}}]}}], slo: {{p50: 1s}}}}
  - {{name: upload, matches: [{{method: PUT}}], slo: {{p90: 2s}}}}
  - {{name: default, slo: {{p50: 18ms, p90: 50ms, p99.9: 1s}}}}
"
    );
    check_file("bench.yaml", yaml.as_bytes())
        .policies()
        .next()
        .cloned()
}

fn edit(cluster: &mut Cluster, n: usize, max_length: usize) {
    let Some(policy) = policy(n, max_length) else {
        return;
    };
    let key = ObjectKey::new("shop", policy.name.clone());
    let object = PolicyObject {
        uid: n.to_string(),
        generation: policy.generation,
        created: policy.created.clone(),
        targets: policy.targets.clone(),
        accepted: Ok(()),
        effective: Some(policy),
    };
    Arc::make_mut(&mut cluster.policies).insert(key, object.into());
}

fn labels(n: usize) -> BTreeMap<String, String> {
    [
        ("app", format!("s{n:04}")),
        ("app.kubernetes.io/managed-by", "Helm".to_owned()),
        ("app.kubernetes.io/part-of", "shop".to_owned()),
        ("pod-template-hash", format!("{n:x}")),
        ("security.istio.io/tlsMode", "istio".to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    for n in 0..WORKLOADS {
        edit(&mut cluster, n, 100);
        let service = ObjectKey::new("shop", format!("s{n:04}"));
        let selector = labels(n)
            .into_iter()
            .filter(|(key, _)| key == "app" || key.ends_with("part-of"))
            .collect();
        Arc::make_mut(&mut cluster.services).insert(service.clone(), Service { selector });
        Arc::make_mut(&mut cluster.ready_endpoints).insert(service, PODS as u32);
        for i in 0..PODS {
            let pod = Pod {
                labels: labels(n),
                ready: true,
                ..Pod::default()
            };
            let key = ObjectKey::new("shop", format!("s{n:04}-{i}"));
            Arc::make_mut(&mut cluster.pods).insert(key, pod);
        }
    }
    cluster
}

/// Looks up the configurations of all Pods' proxies and returns the sum of their slots.
fn ask_all(cluster: &Cluster, plan: &Plan) -> usize {
    let ask = |(key, pod): (&ObjectKey, &Pod)| {
        let enforced = plan.for_proxy(&ProxyClaims {
            target: None,
            namespace: Some(&key.namespace),
            labels: &pod.labels,
        });
        enforced.config.stages.len()
    };
    cluster.pods.iter().map(ask).sum()
}

fn bench(c: &mut Criterion) {
    let mut cluster = cluster();
    let mut planner = Planner::default();
    let first = planner.plan(&cluster);
    assert_eq!(first.attachments.len(), WORKLOADS);
    assert_eq!(ask_all(&cluster, &first), WORKLOADS * PODS);

    c.bench_function("cluster/copy", |b| b.iter(|| black_box(&cluster).clone()));
    c.bench_function("plan/afresh", |b| {
        b.iter(|| Planner::default().plan(black_box(&cluster)));
    });
    let mut max_length = 100;
    c.bench_function("plan/edit", |b| {
        b.iter_batched(
            || {
                max_length += 1;
                let mut edited = cluster.clone();
                edit(&mut edited, 500, max_length);
                edited
            },
            |edited| {
                let plan = planner.plan(&edited);
                (edited, plan)
            },
            BatchSize::LargeInput,
        );
    });
    c.bench_function("plan/scale", |b| {
        let mut ready = true;
        b.iter(|| {
            ready = !ready;
            let last = Arc::make_mut(&mut cluster.pods).last_entry();
            last.into_iter()
                .for_each(|mut pod| pod.get_mut().ready = ready);
            planner.plan(black_box(&cluster))
        });
    });
    // The previous plan is kept, as in an operator, because proxies keep its configurations.
    let before = planner.plan(&cluster);
    ask_all(&cluster, &before);
    c.bench_function("proxies/first", |b| {
        b.iter_batched(
            || planner.plan(&cluster),
            |plan| {
                ask_all(&cluster, &plan);
                plan
            },
            BatchSize::LargeInput,
        );
    });
    c.bench_function("proxies/again", |b| {
        b.iter(|| ask_all(&cluster, black_box(&before)));
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
