//! Tests of correct policies: their meaning, and the examples, which have no problems.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;

use headgate_api::compile::configuration;
use headgate_api::validate::{FileReport, ValidPolicy, check_file};

fn policy(path: &str) -> ValidPolicy {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let report = check_file("policy.yaml", &fs::read(path).unwrap());
    let problems: Vec<String> = report.all_problems().map(ToString::to_string).collect();
    assert_eq!(problems, [""; 0]);
    report.policies().next().unwrap().clone()
}

#[test]
fn every_field_means_something() {
    let policy = policy("tests/policies/everything.yaml");
    assert_eq!(policy.created.as_deref(), Some("2026-01-31T12:00:00Z"));
    let targets: Vec<String> = policy.targets.iter().map(ToString::to_string).collect();
    assert_eq!(
        targets,
        [
            "Service/shop/search",
            "Gateway/shop/edge.shop",
            "Gateway/shop/edge.shop/https",
            "HTTPRoute/shop/search",
            "GRPCRoute/shop/search",
            "InferencePool/shop/llm",
            "Pod/shop/app.kubernetes.io/name=search,canary=,tier=web"
        ]
    );
    insta::assert_json_snapshot!(configuration(&policy, 3));
}

/// The examples have a policy for each strategy. Each policy is accepted, and its compiled form
/// equals a reviewed snapshot.
#[test]
fn examples_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/policies");
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "README.md")
        .collect();
    names.sort();
    for name in &names {
        let policy = policy(&format!("../../examples/policies/{name}"));
        let stage = configuration(&policy, 1).stages.remove(0);
        let name = name.trim_end_matches(".yaml");
        insta::assert_json_snapshot!(format!("example_{name}"), stage);
    }
    let strategies = [
        "accept-fraction.yaml",
        "backlog-control.yaml",
        "bouncer.yaml",
        "class-admission.yaml",
        "fair-queue.yaml",
        "inference-pool.yaml",
        "llm.yaml",
        "max-queue-length.yaml",
        "max-queue-wait.yaml",
        "priority.yaml",
        "response-time-controller.yaml",
        "smoothing.yaml",
        "urgency.yaml",
        "value.yaml",
        "workflows.yaml",
    ];
    assert_eq!(names, strategies);
}

/// The text has the format in which `kubectl get --output=yaml` writes several objects.
#[test]
fn a_list_is_read_as_its_items() {
    let item = |name: &str, p50: &str| {
        format!(
            "- apiVersion: headgate.dev/v1alpha1\n  kind: AdmissionPolicy\n  metadata: {{name: \
             {name}}}\n  spec:\n    targetRefs: [{{kind: Service, name: {name}}}]\n    types: \
             [{{name: default, slo: {{p50: {p50}, p90: 50ms}}}}]\n"
        )
    };
    let (search, cart) = (item("search", "18ms"), item("cart", "0ms"));
    for kind in [
        "v1\nkind: List",
        "headgate.dev/v1alpha1\nkind: AdmissionPolicyList",
    ] {
        let text = format!("apiVersion: {kind}\nitems:\n{search}{cart}");
        let report = check_file("all.yaml", text.as_bytes());
        let names: Vec<String> = report.policies().map(ValidPolicy::full_name).collect();
        assert_eq!(names, ["default/search"]);
        let problems: Vec<String> = report.all_problems().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            ["all.yaml:15:35: spec.types[0].slo.p50: 0ms; 1ms to 1h"]
        );
    }
}

#[test]
fn the_quick_start_is_right() {
    let policy = policy("../../examples/quickstart/policy.yaml");
    assert_eq!(policy.full_name(), "default/search");
    assert!(policy.stage.auto_parallelism.is_some());
}

#[test]
fn json_is_as_good_as_yaml() {
    let yaml = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies/everything.yaml"),
    );
    let value: serde_json::Value = serde_saphyr::from_str(&yaml.unwrap()).unwrap();
    let json = serde_json::to_string_pretty(&value).unwrap();
    let report = check_file("policy.json", json.as_bytes());
    assert_eq!(
        report.policies().next(),
        Some(&policy("tests/policies/everything.yaml"))
    );
}

#[test]
fn a_file_may_hold_many_policies_and_comments() {
    let one = |name: &str| {
        format!(
            "# {name}\napiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {{name: \
             {name}}}\nspec: {{targetRefs: [{{kind: Service, name: {name}}}], \
             parallelism: {{total: 1}}, strategy: {{type: MaxQueueLength}}, types: [{{name: \
             default}}]}}\n"
        )
    };
    let text = format!("---\n{}---\n# nothing\n---\n{}...\n", one("a"), one("b"));
    let report: FileReport = check_file("policy.yaml", text.as_bytes());
    let names: Vec<String> = report.policies().map(ValidPolicy::full_name).collect();
    assert_eq!(names, ["default/a", "default/b"]);
    assert_eq!(report.all_problems().count(), 0);
}
