use std::io::Write as _;

use serde_json::{Value, json};

use super::*;

const POLICY: &str = "apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {name: search.eu, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: search}]
  types:
  - name: Top_Ten
    matches: [{path: {value: /top}}]
    slo: {p50: 18ms, p99.9: 1s500ms}
  - name: default
    slo: {p90: 150ms}
";

fn args(file: &tempfile::NamedTempFile) -> SloArgs {
    SloArgs {
        files: vec![file.path().to_owned()],
        format: Format::Openslo,
        from: None,
        unit: None,
        service: None,
    }
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn written(format: Format) -> Vec<Value> {
    let policy = file(POLICY);
    let output = run(&SloArgs {
        format,
        ..args(&policy)
    });
    serde_saphyr::from_multiple(&output.unwrap().text).unwrap()
}

/// Reads an OpenSLO file whose times are in seconds.
fn read(text: &str) -> Result<String, String> {
    let openslo = file(text);
    let output = run(&SloArgs {
        from: Some(openslo.path().to_owned()),
        unit: Some(Unit::S),
        ..args(&openslo)
    });
    let name = openslo.path().display().to_string();
    let shown = |error| format!("{error:#}").replace(&name, "FILE");
    output.map(|output| output.text).map_err(shown)
}

/// Asserts that `value` has all fields of `required`, and no others except those in `optional`.
fn has(value: &Value, required: &[&str], optional: &[&str]) {
    let fields: Vec<&str> = (value.as_object().unwrap().keys())
        .map(String::as_str)
        .collect();
    for name in required {
        assert!(fields.contains(name), "no {name}: {value}");
    }
    for name in &fields {
        assert!(
            required.contains(name) || optional.contains(name),
            "{name}: {value}"
        );
    }
}

/// The fields, types and limits are those of the specification's text (OpenSLO v1, SLO and SLI).
#[test]
fn documents_have_the_fields_of_openslo() {
    let documents = written(Format::Openslo);
    assert_eq!(documents.len(), 3);
    for document in &documents {
        has(document, &["apiVersion", "kind", "metadata", "spec"], &[]);
        assert_eq!(document["apiVersion"], "openslo/v1");
        assert_eq!(document["kind"], "SLO");
        let metadata = &document["metadata"];
        has(
            metadata,
            &["name"],
            &["displayName", "labels", "annotations"],
        );
        let spec = &document["spec"];
        has(
            spec,
            &[
                "service",
                "indicator",
                "timeWindow",
                "budgetingMethod",
                "objectives",
            ],
            &["description", "alertPolicies"],
        );
        for name in [&metadata["name"], &spec["service"]] {
            let name = name.as_str().unwrap();
            let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!((1..=63).contains(&name.len()) && name.chars().all(is_part));
        }
        assert_eq!(spec["budgetingMethod"], "Occurrences");
        assert_eq!(spec["timeWindow"].as_array().unwrap().len(), 1);
        has(&spec["timeWindow"][0], &["duration", "isRolling"], &[]);
        has(&spec["indicator"], &["metadata", "spec"], &[]);
        has(
            &spec["indicator"]["spec"],
            &["ratioMetric"],
            &["description"],
        );
        let ratio = &spec["indicator"]["spec"]["ratioMetric"];
        has(ratio, &["counter", "good", "total"], &[]);
        for side in ["good", "total"] {
            has(&ratio[side], &["metricSource"], &[]);
            has(
                &ratio[side]["metricSource"],
                &["type", "spec"],
                &["metricSourceRef"],
            );
        }
        for objective in spec["objectives"].as_array().unwrap() {
            has(objective, &["target"], &["displayName"]);
            assert!((0.0..1.0).contains(&objective["target"].as_f64().unwrap()));
        }
    }
}

#[test]
fn an_indicator_is_the_ratio_of_the_filters_counters() {
    let document = &written(Format::Openslo)[1];
    assert_eq!(document["metadata"]["name"], "shop-search-eu-top-ten-p99-9");
    let ratio = &document["spec"]["indicator"]["spec"]["ratioMetric"];
    let query = |side: &str| ratio[side]["metricSource"]["spec"]["query"].clone();
    assert_eq!(
        query("good"),
        "sum(headgate_rq_slo_met_objective{headgate_policy=\"shop/search_eu\",\
         headgate_type=\"Top_Ten\",headgate_objective=\"p99_9\"})"
    );
    assert_eq!(
        query("total"),
        "sum(headgate_rq_completed{headgate_policy=\"shop/search_eu\",headgate_type=\"Top_Ten\"})"
    );
    assert_eq!(document["spec"]["objectives"][0]["target"], 0.999);
}

/// The fields are those of Sloth's type `Spec` (pkg/prometheus/api/v1).
#[test]
fn documents_have_the_fields_of_sloth() {
    let documents = written(Format::Sloth);
    assert_eq!(documents.len(), 1);
    has(&documents[0], &["version", "service", "slos"], &["labels"]);
    assert_eq!(documents[0]["version"], "prometheus/v1");
    assert_eq!(documents[0]["service"], "shop-search-eu");
    let slos = documents[0]["slos"].as_array().unwrap();
    let names: Vec<&str> = slos.iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["top-ten-p50", "top-ten-p99-9", "default-p90"]);
    for slo in slos {
        has(
            slo,
            &["name", "objective", "sli", "alerting"],
            &["description", "labels"],
        );
        has(&slo["sli"]["events"], &["error_query", "total_query"], &[]);
        has(&slo["alerting"], &["name"], &[]);
    }
    assert_eq!(slos[1]["objective"], 99.9);
    let labels = "headgate_policy=\"shop/search_eu\",headgate_type=\"default\"";
    let total = format!("sum(rate(headgate_rq_completed{{{labels}}}[{{{{.window}}}}]))");
    let good = format!(
        "sum(rate(headgate_rq_slo_met_objective{{{labels},headgate_objective=\"p90\"}}\
         [{{{{.window}}}}]))"
    );
    assert_eq!(slos[2]["sli"]["events"]["total_query"], total);
    let errors = format!("{total} - {good}");
    assert_eq!(slos[2]["sli"]["events"]["error_query"], errors);
}

#[test]
fn an_openslo_file_of_a_policy_is_read_as_its_types() {
    let policy = file(POLICY);
    let openslo = run(&args(&policy)).unwrap().text;
    let text = read(&openslo).unwrap();
    let back: Value = serde_saphyr::from_str(&text).unwrap();
    let types = &back["spec"]["types"];
    assert_eq!(types[0]["name"], "Top_Ten");
    assert_eq!(types[0]["slo"]["p50"], "18ms");
    assert_eq!(types[0]["slo"]["p99.9"], "1s500ms");
    assert_eq!(types[1]["name"], "default");
    assert_eq!(types[1]["slo"]["p90"], "150ms");
    assert_eq!(back["metadata"]["name"], "search-eu");
}

#[test]
fn objectives_of_first_bytes_and_of_tokens_are_read_as_such() {
    let policy = file(&POLICY.replace(
        "slo: {p90: 150ms}",
        "ttft: {p90: 2s}\n    tpot: {p50: 40ms, p90: 60ms}",
    ));
    let openslo = run(&args(&policy)).unwrap().text;
    let text = read(&openslo).unwrap();
    let back: Value = serde_saphyr::from_str(&text).unwrap();
    let of_default = &back["spec"]["types"][1];
    assert_eq!(of_default["ttft"], json!({"p90": "2s"}));
    assert_eq!(of_default["tpot"], json!({"p50": "40ms", "p90": "60ms"}));
    assert!(of_default.get("slo").is_none(), "{text}");
    let other = openslo
        .replace("field: tpot", "field: tbt")
        .replace("field\": \"tpot", "field\": \"tbt");
    let error = read(&other).unwrap_err();
    assert!(error.contains("\"tbt\"; slo or ttft or tpot"), "{error}");
}

const THRESHOLD: &str = "apiVersion: openslo/v1
kind: DataSource
metadata: {name: prometheus}
spec: {type: Prometheus}
---
apiVersion: openslo/v1
kind: SLO
metadata: {name: search.latency, labels: {team: [a, b]}}
spec:
  service: search
  budgetingMethod: Occurrences
  timeWindow: [{duration: 28d, isRolling: true}]
  indicator:
    metadata: {name: latency}
    spec: {thresholdMetric: {metricSource: {metricSourceRef: prometheus, spec: {query: x}}}}
  objectives:
  - {op: lte, value: 0.15, targetPercent: 95}
  - {op: lt, value: 2, target: 0.999}
";

#[test]
fn thresholds_are_read_in_the_given_unit() {
    let text = read(THRESHOLD).unwrap();
    assert!(text.contains("- name: search-latency\n"), "{text}");
    assert!(text.contains("slo: {p95: 150ms, p99.9: 2s}\n"), "{text}");
    assert!(
        text.contains(
            "- name: default       # all other requests; the objectives of search-latency"
        ),
        "{text}"
    );
}

#[test]
fn an_error_names_file_field_and_value_that_a_policy_cannot_express() {
    for (from, to, error) in [
        (
            "op: lte",
            "op: gt",
            ".objectives[0].op: \"gt\"; lte or lt: a response time",
        ),
        ("0.15", "0.0001", ".objectives[0].value: 0.0001; 1ms to 1h"),
        ("0.15", "4000", ".objectives[0].value: 4000; 1ms to 1h"),
        ("0.15", "fast", ".objectives[0].value: \"fast\"; a number"),
        (
            "0.999",
            "1",
            ".objectives[1].target: 1; a percentile above 0 and below 100",
        ),
        (
            "0.999",
            "0.95",
            ".objectives[1]: {\"op\":\"lt\",\"target\":0.95,\"value\":2}; type",
        ),
        (
            "Occurrences",
            "Timeslices",
            ".budgetingMethod: \"Timeslices\"; Occurrences",
        ),
        (
            "service: search",
            "service: [a]",
            ".service: [\"a\"]; a text",
        ),
        (
            "service: search",
            "colour: red",
            ".colour: \"red\"; unknown field; known are",
        ),
        (
            "thresholdMetric",
            "ratioMetric",
            ".indicator.spec.ratioMetric: a ratio without a",
        ),
    ] {
        let found = read(&THRESHOLD.replacen(from, to, 1)).unwrap_err();
        let wanted = format!("FILE: document 2: spec{error}");
        assert!(found.starts_with(&wanted), "{found}\n{wanted}");
    }
    for (from, to, error) in [
        (
            "kind: SLO",
            "kind: Dashboard",
            "FILE: document 2: kind: \"Dashboard\"; SLO",
        ),
        (
            "kind: SLO",
            "x: 1",
            "FILE: document 2: x: 1; unknown field; known are apiVersion",
        ),
        (
            "v1\nkind: SLO",
            "v2\nkind: SLO",
            "FILE: document 2: apiVersion: \"openslo/v2\";",
        ),
        ("kind: SLO", "kind: SLI", "FILE: no SLO of openslo/v1"),
        ("value: 2", "value: 0.1", "FILE: the policy:"),
        ("spec:\n  service", "spec: [", "FILE: "),
    ] {
        let found = read(&THRESHOLD.replacen(from, to, 1)).unwrap_err();
        assert!(found.starts_with(error), "{found}\n{error}");
    }
}

#[test]
fn a_threshold_needs_a_unit() {
    let openslo = file(THRESHOLD);
    let error = run(&SloArgs {
        from: Some(openslo.path().to_owned()),
        ..args(&openslo)
    });
    let error = error.unwrap_err().to_string();
    assert!(
        error.ends_with("objectives[0].value: 0.15; in which unit? Say it by --unit s, ms or us"),
        "{error}"
    );
}

#[test]
fn policies_without_objectives_are_refused() {
    let text = POLICY.replace(
        "targetRefs",
        "strategy: {type: MaxQueueLength}\n  targetRefs",
    );
    let lines = text.lines().filter(|line| !line.contains("slo:"));
    let policy = file(&lines.collect::<Vec<_>>().join("\n"));
    for format in [Format::Openslo, Format::Sloth] {
        let output = run(&SloArgs {
            format,
            ..args(&policy)
        });
        assert!(
            output
                .unwrap_err()
                .to_string()
                .contains("no policy has objectives")
        );
    }
}
