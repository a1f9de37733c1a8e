use proptest::prelude::*;

use super::*;
use crate::validate::check_file;

/// Returns a policy with these targets; `created` may be empty.
fn policy(name: &str, created: &str, targets: &[&str]) -> ValidPolicy {
    let refs: String = targets
        .iter()
        .map(|t| format!("{{kind: Service, name: {t}}},"))
        .collect();
    let created = if created.is_empty() { "null" } else { created };
    let yaml = format!(
        "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {{name: {name}, \
         creationTimestamp: {created}}}\nspec:\n  targetRefs: [{refs}]\n  parallelism: \
         {{perEndpoint: 4}}\n  types:\n  - {{name: default, slo: {{p50: 18ms, p90: 50ms}}}}\n  - \
         {{name: slow, matches: [{{path: {{value: /{name}}}}}], slo: {{p99.9: 1s}}}}\n"
    );
    let report = check_file("test.yaml", yaml.as_bytes());
    let problems: Vec<String> = report.all_problems().map(ToString::to_string).collect();
    assert_eq!(problems, [""; 0]);
    report.policies().next().unwrap().clone()
}

fn service(name: &str) -> TargetRef {
    format!("Service/default/{name}").parse().unwrap()
}

#[test]
fn the_oldest_policy_of_a_target_applies() {
    let old = policy("b", "2026-01-01T00:00:00Z", &["x"]);
    let young = policy("a", "2026-02-01T00:00:00Z", &["x", "y"]);
    let ageless = policy("aa", "", &["y", "z"]);
    let compiled = compile(&[&ageless, &young, &old], 1, 1);
    let enforced = |t: &str| compiled.workloads[&service(t)].stages[0].policy.clone();
    assert_eq!(
        [enforced("x"), enforced("y"), enforced("z")],
        ["default/b", "default/a", "default/aa"]
    );
    let lost = |winner: &str, target: &str| {
        vec![Conflict {
            target: service(target),
            winner: winner.into(),
        }]
    };
    let winners = winners(&[&ageless, &young, &old]);
    let conflicts = |p: &ValidPolicy| conflicts(precedence(p), &p.targets, &winners);
    assert_eq!(
        [&old, &young, &ageless].map(conflicts),
        [vec![], lost("default/b", "x"), lost("default/a", "y"),]
    );
}

/// Bouncer App. B.2: objectives are set for groups of types, of which each has its own histogram.
#[test]
fn types_share_objectives_by_a_yaml_anchor() {
    let yaml = "apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {name: a}
spec:
  targetRefs: [{kind: Service, name: x}]
  parallelism: {perEndpoint: 4}
  types:
  - {name: list, matches: [{path: {value: /list}}], slo: &interactive {p50: 18ms, p90: 50ms}}
  - {name: show, matches: [{path: {value: /show}}], slo: *interactive}
  - {name: report, matches: [{path: {value: /report}}], slo: &batch {p90: 1s}}
  - {name: default, slo: *batch}
";
    let report = check_file("test.yaml", yaml.as_bytes());
    let compiled = compile(&[report.policies().next().unwrap()], 1, 1);
    let types = &compiled.workloads[&service("x")].stages[0].types;
    let objectives = |at: usize| {
        let pairs = types[at].slo.iter().map(|o| (o.percentile, o.objective_us));
        pairs.collect::<Vec<_>>()
    };
    let interactive = vec![(50.0, 18_000), (90.0, 50_000)];
    assert_eq!([0, 1].map(objectives), [interactive.clone(), interactive]);
    assert_eq!(
        [2, 3].map(objectives),
        [vec![(90.0, 1_000_000)], vec![(90.0, 1_000_000)]]
    );
}

#[test]
fn equal_ages_are_ordered_by_name() {
    for created in ["", "2026-01-01T00:00:00Z"] {
        let (a, b) = (policy("a", created, &["x"]), policy("b", created, &["x"]));
        let compiled = compile(&[&b, &a], 1, 1);
        assert_eq!(
            compiled.workloads[&service("x")].stages[0].policy,
            "default/a"
        );
    }
}

#[test]
fn slots_follow_endpoints_and_the_revision_follows_slots() {
    let policy = policy("a", "", &["x", "y"]);
    let [one, five] = [1, 5].map(|endpoints| compile(&[&policy], endpoints, 1));
    let [x, y] = ["x", "y"].map(|t| &one.workloads[&service(t)]);
    let z = &five.workloads[&service("x")];
    assert_eq!((x.stages[0].parallelism, z.stages[0].parallelism), (4, 20));
    assert_eq!(x.revision, y.revision);
    assert_ne!(x.revision, z.revision);
    assert_eq!(x.revision.len(), 12);
}

#[test]
fn a_compiled_configuration() {
    let policy = policy("search", "", &["x"]);
    insta::assert_json_snapshot!(configuration(&policy, 1));
}

#[test]
fn the_header_of_retries_goes_to_the_filter() {
    let compiled = |retries: &str| {
        let yaml = format!(
            "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {{name: a}}\n\
             spec:\n  targetRefs: [{{kind: Service, name: x}}]\n  retries: {retries}\n  \
             strategy: {{type: MaxQueueLength}}\n  types: [{{name: default}}]\n"
        );
        let report = check_file("test.yaml", yaml.as_bytes());
        let config = configuration(report.policies().next().unwrap(), 1);
        let json = serde_json::to_vec(&config).unwrap();
        assert_eq!(FilterConfig::from_json(&json).unwrap(), config);
        serde_json::to_value(&config.stages[0]).unwrap()["retries"].take()
    };
    let of = serde_json::json!({"header": "x-retry-attempt", "first_attempt": 1});
    assert_eq!(compiled("{header: X-Retry-Attempt, firstAttempt: 1}"), of);
    let of = serde_json::json!({"header": "x-stainless-retry-count"});
    assert_eq!(compiled("{header: x-stainless-retry-count}"), of);
    assert_eq!(compiled("null"), serde_json::Value::Null);
}

#[test]
fn the_filter_reads_back_a_compiled_policy() {
    let config = configuration(&policy("search", "", &["x"]), 1);
    let json = serde_json::to_vec(&config).unwrap();
    assert_eq!(FilterConfig::from_json(&json).unwrap(), config);
}

proptest! {
    #[test]
    fn order_of_policies_does_not_matter(
        policies in proptest::collection::btree_map(
            "[a-e]",
            (
                "(2026-0[1-3]-01T00:00:00Z)?",
                proptest::collection::btree_set("[x-z]", 1..3),
            ),
            1..5,
        ),
        by in 0..5usize,
        reverse in any::<bool>(),
    ) {
        let policies: Vec<ValidPolicy> = policies
            .iter()
            .map(|(name, (created, targets))| {
                let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
                policy(name, created, &targets)
            })
            .collect();
        let mut shuffled: Vec<&ValidPolicy> = policies.iter().collect();
        let by = by % shuffled.len();
        shuffled.rotate_left(by);
        if reverse {
            shuffled.reverse();
        }
        let straight = compile(&policies.iter().collect::<Vec<_>>(), 1, 1);
        prop_assert_eq!(&straight, &compile(&shuffled, 1, 1));
        let winners = winners(&shuffled);
        // Each target of each policy is either won or lost.
        for policy in &policies {
            let lost = conflicts(precedence(policy), &policy.targets, &winners).len();
            let is_won = |t: &&TargetRef| {
                straight.workloads[*t].stages[0].policy == policy.full_name()
            };
            let won = policy.targets.iter().filter(is_won);
            prop_assert_eq!(won.count() + lost, policy.targets.len());
        }
    }
}

/// A sender's outbound slot has the targets of the services that the sender calls, as the policies
/// in force there say.
#[test]
fn callers_know_what_services_promise() {
    let policies = |of_caller: &str, of_stock: &str, older: &str| {
        let object = |name: &str, namespace: &str, spec: &str| {
            format!(
                "---\napiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {{name: \
                 p-{name}, namespace: {namespace}}}\nspec:\n  targetRefs: [{{kind: Service, name: \
                 {name}}}]\n  strategy: {{type: MaxQueueLength}}\n  types: [{{name: \
                 default}}]\n{spec}"
            )
        };
        let promise = |target: &str| {
            format!(
                "  classes: [{{name: high, matches: [{{path: {{value: /}}}}]}}, {{name: low}}]\n  \
                 classAdmission: {{targets: {{high: {target}}}}}\n"
            )
        };
        let services = "{services: [{cluster: a, name: stock}, {cluster: b, name: stock.far}, \
                        {cluster: c, name: none}]}";
        let yaml = [
            object("stock", "near", &(promise("20ms") + of_stock)),
            object("stock", "far", &promise("30ms")),
            object("shop", "near", &of_caller.replace("OUTBOUND", services)),
            older.to_owned(),
        ];
        let report = check_file("test.yaml", yaml.concat().as_bytes());
        let problems: Vec<String> = report.all_problems().map(ToString::to_string).collect();
        assert_eq!(problems, [""; 0]);
        let policies: Vec<ValidPolicy> = report.policies().cloned().collect();
        let compiled = compile(&policies.iter().collect::<Vec<_>>(), 1, 1);
        assert_eq!(compiled.outbound.len(), 1, "the others make no calls");
        let outbound = compiled.outbound["near/p-shop"].outbound.clone().unwrap();
        let known = outbound.class_admission.into_iter();
        let known = known.map(|(name, of)| (name, of.targets_us, of.enforced));
        known.collect::<Vec<_>>()
    };
    let both = |near, far| {
        let of = |name: &str, us, enforced| (name.to_owned(), vec![us], enforced);
        [of("stock", 20_000, near), of("stock.far", 30_000, far)]
    };
    for calls in [
        "  classAdmission: {outbound: OUTBOUND}\n",
        "  workflows: {outbound: OUTBOUND}\n",
    ] {
        assert_eq!(policies(calls, "", ""), both(true, true));
        assert_eq!(policies(calls, "  mode: DryRun\n", ""), both(false, true));
        let dry = format!("{calls}  mode: DryRun\n");
        assert_eq!(policies(&dry, "", ""), both(false, false));
        let older = "---\napiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: \
                     {name: older, namespace: near}\nspec:\n  targetRefs: [{kind: Service, name: \
                     stock}]\n  strategy: {type: MaxQueueLength}\n  types: [{name: default}]\n";
        assert_eq!(policies(calls, "", older), both(true, true)[1..]);
    }
}
