//! Tests with generated policies. The filter accepts every policy that `validate` accepts, and
//! `validate` accepts every policy within the documented bounds.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use headgate_api::compile::configuration;
use headgate_api::validate::check_file;
use headgate_controller::kubernetes::crd;
use headgate_core::config::FilterConfig;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};
use serde_json::{Value, json};

use crate::any_policy::{Dice, STRATEGIES, policy, with_one_slip};

fn throws() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(any::<u32>(), 0..120)
}

#[test]
fn policies_of_every_strategy_are_generated() {
    let error = serde_json::from_str::<headgate_api::StrategyType>("\"\"").unwrap_err();
    let error = error.to_string();
    // The message is: unknown variant ``, expected one of `Bouncer`, …
    let known: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
    assert_eq!(STRATEGIES[..], known[..]);
}

/// Adds the schema of each field below `schema` to `all`, by path. In a path, `[]` means the items
/// of a list, and `{}` the values of a mapping.
fn fields<'a>(schema: &'a Value, at: &str, all: &mut BTreeMap<String, &'a Value>) {
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        all.insert(at.clone(), schema);
        fields(schema, &at, all);
    }
    for (below, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[below].is_object() {
            let at = format!("{at}{mark}");
            all.insert(at.clone(), &schema[below]);
            fields(&schema[below], &at, all);
        }
    }
}

/// Adds the paths of the fields in `value`.
fn given(value: &Value, schema: &Value, at: &str, all: &mut BTreeSet<String>) {
    all.insert(at.to_owned());
    for item in value.as_array().into_iter().flatten() {
        given(item, &schema["items"], &format!("{at}[]"), all);
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        match &schema["additionalProperties"] {
            values @ Value::Object(_) => given(value, values, &format!("{at}{{}}"), all),
            _ => given(
                value,
                &schema["properties"][name],
                &format!("{at}.{name}"),
                all,
            ),
        }
    }
}

/// Each field is in a generated policy or in the policy with every field, and each number has
/// bounds.
#[test]
fn generated_policies_have_every_field() {
    let definition = serde_json::to_value(crd::definition().unwrap()).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let spec = &schema["properties"]["spec"];
    let mut all = BTreeMap::new();
    fields(spec, "spec", &mut all);
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut shown = BTreeSet::new();
    for strategy in STRATEGIES.iter().flat_map(|s| [s; 200]) {
        let throws: Vec<u32> = (0..120).map(|_| random.next_u32()).collect();
        let policy = policy(strategy, &mut Dice::new(throws));
        given(&policy["spec"], spec, "spec", &mut shown);
    }
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/policies/everything.yaml"
    );
    let everything: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    given(&everything["spec"], spec, "spec", &mut shown);
    // All lists of matches have the same fields.
    let of_types = |field: &str| {
        let field = field.replace("spec.exclude[]", "spec.types[].matches[]");
        field.replace("spec.classes[].matches[]", "spec.types[].matches[]")
    };
    let is_missing = |field: &&String| !shown.contains(&of_types(field));
    let missing: Vec<&String> = all.keys().filter(is_missing).collect();
    assert!(missing.is_empty(), "no policy has {missing:?}");
    let is_number = |schema: &Value| matches!(schema["type"].as_str(), Some("integer" | "number"));
    let is_free = |(_, schema): &(&String, &&Value)| {
        is_number(schema) && schema["x-kubernetes-validations"].is_null()
    };
    let free: Vec<&String> = all.iter().filter(is_free).map(|(field, _)| field).collect();
    // The bounds of this field depend on other fields, so the rule is at the field's parent.
    let relative = ["spec.strategy.responseTimeController.increaseBelow"];
    assert_eq!(free, relative, "numbers without bounds");
}

/// The settings of a strategy have no effect beside another one.
#[test]
fn settings_of_another_strategy_are_refused() {
    let strategy = &crd::spec()["properties"]["strategy"]["properties"];
    let is_block = |(_, schema): &(&String, &Value)| schema["properties"].is_object();
    for (block, _) in strategy.as_object().unwrap().iter().filter(is_block) {
        // This strategy has no settings.
        let mut policy = policy("MaxQueueLength", &mut Dice::new(Vec::new()));
        let settings = match block.as_str() {
            "starvationAvoidance" => json!({"type": "AcceptanceAllowance"}),
            _ => json!({}),
        };
        policy["spec"]["strategy"][block] = settings;
        let report = check_file("any.json", policy.to_string().as_bytes());
        let problems: Vec<String> = report.all_problems().map(ToString::to_string).collect();
        let expected = format!("spec.strategy.{block}: given with type MaxQueueLength");
        let is_refused = problems.iter().any(|line| line.contains(&expected));
        assert!(is_refused, "{block} belongs to no strategy: {problems:?}");
    }
}

/// Adds the JSON pointers of the numbers in `value`.
fn numbers(value: &Value, at: &str, all: &mut Vec<String>) {
    match value {
        Value::Number(_) => all.push(at.to_owned()),
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                numbers(item, &format!("{at}/{i}"), all);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                numbers(value, &format!("{at}/{name}"), all);
            }
        }
        _ => {}
    }
}

/// Other programs than the operator may write configurations, so the filter checks numbers too.
#[test]
fn the_filter_checks_every_number() {
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut free = BTreeSet::new();
    for strategy in STRATEGIES.iter().flat_map(|s| [s; 40]) {
        let throws: Vec<u32> = (0..120).map(|_| random.next_u32()).collect();
        let text = policy(strategy, &mut Dice::new(throws)).to_string();
        let report = check_file("any.json", text.as_bytes());
        let config = configuration(report.policies().next().unwrap(), 3);
        let config = serde_json::to_value(&config).unwrap();
        let mut all = Vec::new();
        numbers(&config, "", &mut all);
        for at in all {
            let mut odd = config.clone();
            *odd.pointer_mut(&at).unwrap() = json!(1_000_000_000_000_000_000_u64);
            if FilterConfig::from_json(&serde_json::to_vec(&odd).unwrap()).is_ok() {
                let names = at.split('/').skip(1);
                let names = names.filter(|name| name.parse::<usize>().is_err());
                let path = names.collect::<Vec<_>>().join(".");
                // All values of a mapping have the same bounds.
                let (field, _) = path.split_once("_us.").unwrap_or((&path, ""));
                free.insert(field.trim_end_matches("_us").to_owned());
            }
        }
    }
    // Kubernetes counts generations.
    let free = Vec::from_iter(free);
    assert_eq!(
        free,
        ["stages.generation"],
        "numbers without a largest value in `check`"
    );
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(1000)
    })]

    #[test]
    fn policies_within_the_bounds_are_accepted(
        strategy in proptest::sample::select(&STRATEGIES[..]),
        throws in throws(),
    ) {
        let mut dice = Dice::new(throws);
        let text = policy(strategy, &mut dice).to_string();
        let report = check_file("any.json", text.as_bytes());
        let problems: Vec<String> = report.all_problems().map(ToString::to_string).collect();
        prop_assert!(problems.is_empty(), "{:?}\n{}", problems, text);
        let config = configuration(report.policies().next().unwrap(), 3);
        let read = FilterConfig::from_json(&serde_json::to_vec(&config).unwrap());
        prop_assert!(read.is_ok(), "{:?}\n{}", read, text);
    }
}

/// Each value in turn is wrong, in several ways. `check_file` calls the filter's check last, so a
/// policy that only the filter refuses reveals a missing rule.
#[test]
fn the_filter_accepts_every_accepted_policy() {
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    for strategy in STRATEGIES.iter().flat_map(|s| [s; 3]) {
        let throws: Vec<u32> = (0..120).map(|_| random.next_u32()).collect();
        let mut refused = 0;
        for (policy, slipped) in with_one_slip(strategy, &throws) {
            let text = policy.to_string();
            let report = check_file("any.json", text.as_bytes());
            let problems: Vec<String> = report.all_problems().map(ToString::to_string).collect();
            assert!(slipped || problems.is_empty(), "{problems:?}\n{text}");
            for line in &problems {
                assert!(!line.contains("refused by the filter"), "{line}\n{text}");
                assert!(!line.contains('\n'), "{line}");
            }
            refused += usize::from(!problems.is_empty());
        }
        // Some of the wrong values are valid by chance, but many are mistakes.
        assert!(refused > 20, "{strategy}: {refused}");
    }
}
