//! The CustomResourceDefinition on a real API server. The API server refuses the policies that
//! `headgate validate` refuses, in the same words. It takes the policies that `validate` takes, and
//! the stored policies mean the same.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../../operator/cli/tests/public/any_policy/mod.rs"]
mod any_policy;
mod api;
#[path = "../../../../operator/cli/tests/public/bad_policies.rs"]
mod bad_policies;
mod own_words;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use api::{Refusal, client, create};
use bad_policies::bad_policies;
use futures::stream::{self, StreamExt as _};
use headgate_api::validate::{ValidPolicy, check_file};
use headgate_controller::kubernetes::crd;
use headgate_controller::kubernetes::resource::PolicyResource;
use headgate_tests::kube::ApiServer;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use own_words::{OTHER_WORDS, TAKEN};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

const YAML: &str = "application/yaml";
const JSON: &str = "application/json";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

async fn ensure_namespace(client: &Client, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    Api::<Namespace>::all(client.clone())
        .patch(name, &PatchParams::apply("test"), &Patch::Apply(object))
        .await
        .unwrap();
}

#[tokio::test]
async fn the_definition_is_established_without_a_complaint() -> Result<()> {
    let client = client().await?;
    let api = Api::<CustomResourceDefinition>::all(client);
    let found = api.get(crd::NAME).await?;
    let conditions = found
        .status
        .unwrap_or_default()
        .conditions
        .unwrap_or_default();
    let of = |kind: &str| {
        let condition = conditions.iter().find(|c| c.type_ == kind);
        condition.map(|c| (c.status.as_str(), c.message.as_deref().unwrap_or_default()))
    };
    assert_eq!(of("Established").map(|c| c.0), Some("True"));
    assert_eq!(of("NamesAccepted").map(|c| c.0), Some("True"));
    assert_eq!(of("NonStructuralSchema"), None);
    // `kubectl apply` keeps the whole object in an annotation of at most 256 KiB.
    let size = serde_json::to_vec(&crd::definition()?)?.len();
    assert!(size < 200 << 10, "{size} bytes");
    Ok(())
}

#[tokio::test]
async fn kubectl_explains_every_level_and_shows_columns() -> Result<()> {
    let client = client().await?;
    let server = ApiServer::shared();
    let explained = |field: &str| {
        let text = server.kubectl(&["explain", field]).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (field, words) in [
        (
            "admissionpolicies",
            "Keeps a backend inside its latency objectives",
        ),
        (
            "admp.spec",
            "The number of slots: the requests that the backend processes at once",
        ),
        (
            "admp.spec.strategy.bouncer.interval",
            "Length of the window",
        ),
        (
            "admp.spec.strategy.type",
            "Refuses a request whose estimated response time misses an objective",
        ),
        (
            "admp.spec.targetRefs.matchLabels",
            "Labels that a Pod must have",
        ),
        (
            "admp.spec.types.matches.path.type",
            "ENUM: Exact PathPrefix RegularExpression",
        ),
        (
            "admp.status.conditions",
            "if they are `True` at each target",
        ),
        ("admp.status.ancestors.conditions", "Programmed"),
    ] {
        let text = explained(field);
        assert!(text.contains(words), "{field}: {words:?} is not in: {text}");
    }

    let namespace = server.namespace("columns")?;
    let space = format!("--namespace={namespace}");
    let policies = [
        json!({"kind": "Service", "name": "search"}),
        json!({"kind": "Pod", "matchLabels": {"app": "search"}}),
    ];
    let api = Api::<PolicyResource>::namespaced(client, &namespace);
    for (name, target) in ["a", "b"].into_iter().zip(policies) {
        let policy = json!({
            "apiVersion": "headgate.dev/v1alpha1", "kind": "AdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "targetRefs": [target], "parallelism": {"total": 1},
                "types": [{"name": "default", "slo": {"p50": "1s"}}],
            },
        });
        api.patch(name, &PatchParams::apply("test"), &Patch::Apply(policy))
            .await?;
        let transition = "2026-01-31T12:00:00Z";
        let condition = |kind: &str, status: &str| {
            json!({
                "type": kind, "status": status, "reason": "Because", "message": "so",
                "lastTransitionTime": transition,
            })
        };
        let status = json!({
            "apiVersion": "headgate.dev/v1alpha1", "kind": "AdmissionPolicy",
            "status": {
                "conditions": [condition("Accepted", "True"), condition("Programmed", "Unknown")],
                "ancestors": [{
                    "ancestorRef": {"kind": "Service", "name": "search"},
                    "controllerName": "headgate.dev/controller",
                    "conditions": [
                        condition("Accepted", "False"), condition("Programmed", "False"),
                    ],
                }],
            },
        });
        api.patch_status(name, &PatchParams::apply("test"), &Patch::Apply(status))
            .await?;
    }
    let table = server.kubectl(&["get", "headgate", &space])?;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows[0],
        ["NAME", "TARGET", "MODE", "ACCEPTED", "PROGRAMMED", "AGE"]
    );
    assert_eq!(rows[1][..5], ["a", "search", "Enforce", "True", "Unknown"]);
    assert_eq!(
        rows[2][..5],
        ["b", "{\"app\":\"search\"}", "Enforce", "True", "Unknown"]
    );
    let wide = server.kubectl(&["get", "admissionpolicies", &space, "--output=wide"])?;
    let wide: Vec<&str> = wide.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(wide[6..], ["KIND", "STRATEGY", "REASON", "MESSAGE"]);
    Ok(())
}

/// Returns what is wrong with the answer to a bad policy, or `None` if the answer is right.
fn wrong_answer(name: &str, expected: &str, answer: &Result<String, Refusal>) -> Option<String> {
    let is_in = |files: &[&str]| files.contains(&name);
    if let Some((why, _)) = TAKEN.iter().find(|(_, files)| is_in(files)) {
        return answer.as_ref().err().map(|refusal| {
            format!(
                "is refused now, so drop it from the list ({why}): {}",
                refusal.message
            )
        });
    }
    let Err(refusal) = answer else {
        return Some("is accepted".to_owned());
    };
    if let Some((_, own, _)) = OTHER_WORDS.iter().find(|(_, _, files)| is_in(files)) {
        let is_known = refusal.message.contains(own);
        return (!is_known).then(|| format!("is not refused as {own:?} but: {}", refusal.message));
    }
    // The text has the form `LINE:COLUMN: FIELD: VALUE; what would be right`.
    let text = expected.split_once(": ").map_or(expected, |(_, text)| text);
    let (field, words) = text.split_once(": ").unwrap_or(("", text));
    match refusal.causes.as_slice() {
        [(of, said)] if said.contains(words) && field.starts_with(of.as_str()) => None,
        _ => Some(format!(
            "{:?} is not said of {field} but: {:?}",
            words, refusal.causes
        )),
    }
}

#[tokio::test]
async fn every_bad_policy_is_refused_in_the_words_of_validate() -> Result<()> {
    let client = client().await?;
    ensure_namespace(&client, "default").await;
    let mut wrong = Vec::new();
    let policies = bad_policies();
    for (name, policy) in &policies {
        let answer = create(&client, "default", YAML, policy.document.clone()).await?;
        if let Some(problem) = wrong_answer(name, &policy.message, &answer) {
            wrong.push(format!("{name}: {problem}"));
        }
    }
    let listed = OTHER_WORDS.iter().flat_map(|(_, _, files)| files.iter());
    let listed = listed.chain(TAKEN.iter().flat_map(|(_, files)| files.iter()));
    for name in listed {
        if !policies.contains_key(*name) {
            wrong.push(format!("{name}: is listed and doesn't exist"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Returns the good policies of the repository, each with its file.
fn good_policies() -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = vec![
        repository().join("operator/cli/tests/policies/everything.yaml"),
        repository().join("operator/cli/tests/policies/rival.yaml"),
        repository().join("operator/cli/tests/policies/short-period.yaml"),
    ];
    for folder in fs::read_dir(repository().join("examples")).unwrap() {
        let folder = folder.unwrap().path();
        if folder.is_dir() {
            files.extend(fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()));
        }
    }
    let mut policies = Vec::new();
    for file in files {
        if file.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        // If a file has several objects, only the policies count.
        for document in fs::read_to_string(&file).unwrap().split("\n---") {
            if document.lines().any(|line| line == "kind: AdmissionPolicy") {
                policies.push((file.clone(), document.as_bytes().to_vec()));
            }
        }
    }
    policies
}

/// Returns the policy without the fields that the API server sets.
fn meaning(file: &str, text: &[u8]) -> ValidPolicy {
    let report = check_file(file, text);
    let problems: Vec<String> = report.all_problems().map(ToString::to_string).collect();
    assert_eq!(problems, [""; 0], "{}", String::from_utf8_lossy(text));
    let mut policy = report.policies().next().unwrap().clone();
    policy.generation = 0;
    policy.stage.generation = 0;
    policy.created = None;
    policy
}

#[tokio::test]
async fn every_good_policy_is_taken_and_still_means_the_same() -> Result<()> {
    let client = client().await?;
    let policies = good_policies();
    assert!(policies.len() >= 12, "{} policies", policies.len());
    for (file, text) in policies {
        let file = file.display().to_string();
        let policy = meaning(&file, &text);
        ensure_namespace(&client, &policy.namespace).await;
        let stored = create(&client, &policy.namespace, YAML, text).await?;
        let stored = stored.unwrap_or_else(|refusal| panic!("{file}: {}", refusal.message));
        // The API server has added the defaults to the stored object.
        let object: Value = serde_json::from_str(&stored)?;
        assert!(
            object["spec"]["mode"].is_string() && object["spec"]["queue"]["timeout"].is_string()
        );
        assert_eq!(meaning(&file, stored.as_bytes()), policy, "{file}");
    }
    Ok(())
}

/// Checks that the API server and `validate` agree about a policy.
fn agrees(policy: &Value, answer: &Result<String, Refusal>) -> Result<(), String> {
    let text = policy.to_string();
    let report = check_file("any.json", text.as_bytes());
    let problems: Vec<String> = report.all_problems().map(|p| p.message.clone()).collect();
    match (problems.as_slice(), answer) {
        ([], Ok(stored)) => {
            let (sent, stored) = (
                meaning("sent", text.as_bytes()),
                meaning("stored", stored.as_bytes()),
            );
            let is_same = sent == stored;
            is_same
                .then_some(())
                .ok_or_else(|| format!("means something else: {stored:?}\n  {sent:?}"))
        }
        ([], Err(refusal)) => Err(format!("is refused: {}", refusal.message)),
        (_, Ok(_)) => Err(format!("is accepted, with {problems:?}")),
        // Go formats numbers differently, so only the part of each message after the value is
        // compared.
        (_, Err(refusal)) => problems
            .iter()
            .all(|problem| {
                let right = problem
                    .split_once("; ")
                    .map_or(problem.as_str(), |(_, right)| right);
                let right = right.split(" (").next().unwrap_or(right);
                refusal.message.contains(right)
            })
            .then_some(())
            .ok_or_else(|| format!("is refused with {:?}, not {problems:?}", refusal.causes)),
    }
}

#[tokio::test]
async fn the_api_server_and_validate_agree_on_generated_policies() -> Result<()> {
    let client = client().await?;
    let mut random = StdRng::seed_from_u64(20);
    let mut policies = Vec::new();
    for strategy in any_policy::STRATEGIES {
        for _ in 0..3 {
            let mut throws = || (0..120).map(|_| random.random()).collect::<Vec<u32>>();
            for _ in 0..20 {
                let mut dice = any_policy::Dice::new(throws());
                policies.push(any_policy::policy(strategy, &mut dice));
            }
            let slipped = any_policy::with_one_slip(strategy, &throws());
            policies.extend(slipped.into_iter().map(|(policy, _)| policy));
        }
    }
    let mut answers = stream::iter(policies)
        .map(|policy| {
            let body = policy.to_string().into_bytes();
            let client = &client;
            async move { (policy, create(client, "default", JSON, body).await) }
        })
        .buffer_unordered(8);
    let (mut wrong, mut counted) = (BTreeSet::new(), [0, 0]);
    while let Some((policy, answer)) = answers.next().await {
        let answer = answer?;
        counted[usize::from(answer.is_ok())] += 1;
        if let Err(how) = agrees(&policy, &answer) {
            wrong.insert(format!("{how}\n   {policy}"));
        }
    }
    assert!(counted.iter().all(|n| *n > 300), "{counted:?}");
    let shown: Vec<&String> = wrong.iter().take(10).collect();
    assert!(
        wrong.is_empty(),
        "{} of {counted:?}: {shown:#?}",
        wrong.len()
    );
    Ok(())
}

/// Kubernetes limits the cost of CEL rules for each object. No policy that `validate` takes may
/// exceed the limit.
#[tokio::test]
async fn the_largest_policies_are_within_the_budget_of_rules() -> Result<()> {
    let client = client().await?;
    let slo: Value = (1..=16)
        .map(|i| (format!("p{}", 83 + i), json!(format!("{i}ms"))))
        .collect();
    let name = |i: usize| {
        if i == 0 {
            "default".to_owned()
        } else {
            format!("type-{}-{i}", "x".repeat(50))
        }
    };
    let path = |i: usize, j: usize| format!("/{i}/{j}/{}", "p".repeat(80));
    let matches = |i: usize| -> Vec<Value> {
        let of = |j| {
            let headers = [json!({"name": format!("x-{j}"), "value": "v".repeat(20)})];
            json!({"path": {"value": path(i, j)}, "headers": headers})
        };
        (0..16).map(of).collect()
    };
    let types: Vec<Value> = (0..256)
        .map(|i| match i {
            0 => json!({"name": name(0), "slo": slo}),
            _ => json!({"name": name(i), "slo": slo, "matches": matches(i)}),
        })
        .collect();
    let all = |value: Value| {
        (0..256)
            .map(|i| (name(i), value.clone()))
            .collect::<Value>()
    };
    let strategies = [
        json!({"type": "Bouncer"}),
        json!({
            "type": "MaxQueueWait",
            "maxQueueWait": {"limit": "1s", "limits": all(json!("2s"))},
        }),
        json!({"type": "ResponseTimeController", "responseTimeController": {"percentile": 90}}),
        json!({
            "type": "BacklogControl",
            "backlogControl": {
                "target": "1s", "cost": {"type": "Type", "costs": all(json!(7))},
            },
        }),
    ];
    let id = |i: usize| format!("{}-{i}", "w".repeat(60));
    let quantiles = |i: usize| json!({"name": id(i), "quantile": 0.5});
    let workflows = json!({
        "identifyBy": (0..8)
            .map(|i| json!({"type": "Metadata", "metadata": {"path": vec![id(i); 8]}}))
            .collect::<Value>(),
        "maxWorkflows": 1000,
        "named": (0..1000)
            .map(|i| json!({
                "name": id(i), "guarantee": 10, "weight": 2, "quantile": 0.5,
                "deadline": "1s500ms",
            }))
            .collect::<Value>(),
        "services": (0..256).map(quantiles).collect::<Value>(),
        "peers": (0..64)
            .map(|i| format!("spiffe://cluster.local/ns/{}/*", id(i)))
            .collect::<Vec<_>>(),
        "outbound": {"services": (0..256)
            .map(|i| json!({"cluster": id(i), "name": id(i)}))
            .collect::<Value>()},
    });
    for strategy in strategies {
        let policy = json!({
            "apiVersion": "headgate.dev/v1alpha1", "kind": "AdmissionPolicy",
            "metadata": {"name": "largest"},
            "spec": {
                "targetRefs": (0..16)
                    .map(|i| json!({"kind": "Service", "name": format!("s{i}")}))
                    .collect::<Value>(),
                "parallelism": {"total": 20}, "strategy": strategy, "types": types,
                "queue": {"discipline": "DRR", "drr": {"weights": all(json!(2))}},
                "exclude": matches(1000),
                "workflows": workflows,
            },
        });
        let text = policy.to_string().into_bytes();
        meaning("largest.json", &text);
        let answer = create(&client, "default", JSON, text).await?;
        assert!(answer.is_ok(), "{strategy}: {answer:?}");
    }
    Ok(())
}

/// The filter tries types in order, so their order has a meaning.
#[tokio::test]
async fn server_side_apply_keeps_the_order_of_types() -> Result<()> {
    let client = client().await?;
    let namespace = ApiServer::shared().namespace("order")?;
    let api = Api::<PolicyResource>::namespaced(client, &namespace);
    let apply = async |order: &[&str]| -> Result<Vec<String>> {
        let of = |name: &&str| match *name {
            "default" => json!({"name": "default", "slo": {"p50": "1s"}}),
            name => {
                json!({
                    "name": name, "slo": {"p50": "1s"},
                    "matches": [{"path": {"value": format!("/{name}")}}],
                })
            }
        };
        let policy = json!({
            "apiVersion": "headgate.dev/v1alpha1", "kind": "AdmissionPolicy",
            "metadata": {"name": "ordered"},
            "spec": {
                "targetRefs": [{"kind": "Service", "name": "a"}], "parallelism": {"total": 1},
                "types": order.iter().map(of).collect::<Vec<_>>(),
            },
        });
        let params = PatchParams::apply("test");
        let stored = api.patch("ordered", &params, &Patch::Apply(policy)).await?;
        assert_eq!(stored.name_any(), "ordered");
        let types = stored.spec["types"].as_array().cloned().unwrap_or_default();
        Ok(types
            .iter()
            .map(|t| t["name"].as_str().unwrap().to_owned())
            .collect())
    };
    for order in [
        &["a", "b", "default"][..],
        &["b", "a", "default"],
        &["default", "c", "a", "b"],
        &["b", "default", "a"],
    ] {
        assert_eq!(apply(order).await?, order);
    }
    Ok(())
}
