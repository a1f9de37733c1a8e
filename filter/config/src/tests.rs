use super::*;
use crate::{Discipline, RetriesConfig};

/// Returns the error for backlog control with the fields `json`, in addition to those without a
/// default.
fn backlog_control(json: &str) -> Option<(String, String)> {
    let json = format!(
        r#"{{"stages":[{{"policy":"ns/p","parallelism":1,"queue":{{"max_length":1,"timeout_us":1}},
        "strategy":{{"type":"BacklogControl","control":"Backlog",{json}}},
        "types":[{{"name":"a","matches":[{{"method":"GET"}}]}},{{"name":"default"}}]}}]}}"#
    );
    let error = FilterConfig::from_json(json.as_bytes()).err()?;
    Some((error.field, error.problem))
}

#[test]
fn backlog_control_is_checked() {
    let measured = r#""target_us":2000000,"period_us":1000000,"cost":{"type":"Measured"}"#;
    assert_eq!(backlog_control(measured), None);
    let cost = |cost: &str| {
        backlog_control(&format!(
            r#""target_us":2000000,"period_us":1000000,"cost":{cost}"#
        ))
    };
    assert_eq!(cost(r#"{"type":"Type","costs":[20,1]}"#), None);
    assert_eq!(cost(r#"{"type":"Header","header":"x-cost"}"#), None);
    let at = |field: &str| format!("stages[0].strategy.{field}");
    for (cost, field, problem) in [
        (
            r#"{"type":"Type","costs":[20]}"#,
            "cost.costs",
            "1 costs; one for each of 2 types",
        ),
        (
            r#"{"type":"Type","costs":[20,0]}"#,
            "cost.costs",
            "0; 1 to 16777216",
        ),
        (
            r#"{"type":"Header","header":"X-Cost"}"#,
            "cost.header",
            "\"X-Cost\"; a header name of a-z, 0-9 and -",
        ),
        (
            r#"{"type":"Header","header":""}"#,
            "cost.header",
            "\"\"; a header name of a-z, 0-9 and -",
        ),
    ] {
        let found = backlog_control(&format!(
            r#""target_us":2000000,"period_us":1000000,"cost":{cost}"#
        ));
        assert_eq!(found, Some((at(field), problem.to_owned())));
    }
    for (field, value) in [
        ("proportional_gain", "0"),
        ("integral_gain", "-1"),
        ("max_backlog", "1e13"),
    ] {
        let (found, problem) = backlog_control(&format!("{measured},\"{field}\":{value}")).unwrap();
        assert_eq!(found, at(field));
        assert!(
            problem.ends_with("; above 0, at most 1000000000000"),
            "{problem}"
        );
    }
    for times in [
        r#""target_us":0,"period_us":1000000"#,
        r#""target_us":1000000,"period_us":9999"#,
    ] {
        let (_, problem) =
            backlog_control(&format!(r#"{times},"cost":{{"type":"Measured"}}"#)).unwrap();
        assert!(problem.ends_with("; 10000 to 3600000000"), "{problem}");
    }
    let (_, problem) = backlog_control(&format!("{measured},\"hints\":true")).unwrap();
    assert!(problem.contains("unknown field `hints`"), "{problem}");
}

#[test]
fn the_header_of_retries_is_checked() {
    let with = |retries: &str| {
        let json = format!(
            r#"{{"stages":[{{"policy":"ns/p","parallelism":1,"retries":{retries},
            "queue":{{"max_length":1,"timeout_us":1}},
            "strategy":{{"type":"MaxQueueLength"}},"types":[{{"name":"default"}}]}}]}}"#
        );
        let config = FilterConfig::from_json(json.as_bytes())?;
        Ok(config.stages[0].retries.clone())
    };
    let read = |first_attempt| {
        Ok(Some(RetriesConfig {
            header: "x-retry-attempt".to_owned(),
            first_attempt,
        }))
    };
    assert_eq!(with("null"), Ok(None));
    assert_eq!(with(r#"{"header":"x-retry-attempt"}"#), read(0));
    let from_one = r#"{"header":"x-retry-attempt","first_attempt":1}"#;
    assert_eq!(with(from_one), read(1));
    for bad in ["", "X-Retry", "x retry", ":path"] {
        let problem = format!("{bad:?}; a header name of a-z, 0-9 and -");
        assert_eq!(
            with(&format!(r#"{{"header":{bad:?}}}"#)),
            Err(ConfigError::new("stages[0].retries.header", problem))
        );
    }
}

fn with(discipline: &str) -> Result<FilterConfig, ConfigError> {
    let json = format!(
        r#"{{"stages":[{{"policy":"ns/p","parallelism":1,
        "queue":{{"discipline":{discipline},"max_length":10,"timeout_us":1000000}},
        "strategy":{{"type":"MaxQueueLength"}},"types":[{{"name":"default"}}]}}]}}"#
    );
    FilterConfig::from_json(json.as_bytes())
}

#[test]
fn disciplines_by_their_names() {
    for name in ["FIFO", "EDF", "LSTF", "SJF", "SRTF", "LASF", "Slack"] {
        let config = with(&format!(r#"{{"type":{name:?}}}"#)).unwrap();
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(FilterConfig::from_json(json.as_bytes()), Ok(config));
    }
    let drr = r#"{"type":"DRR","by":"Type","quantum_us":10000,"weights":{"default":2.5}}"#;
    let config = with(drr).unwrap();
    let expected = Discipline::Drr {
        by: Flow::Type,
        quantum_us: 10_000,
        weights: [("default".to_owned(), 2.5)].into(),
    };
    assert_eq!(config.stages[0].queue.discipline, expected);
    let json = serde_json::to_string(&config).unwrap();
    assert_eq!(FilterConfig::from_json(json.as_bytes()), Ok(config));
    let config = with(r#"{"type":"WFQ","by":"Type","weights":{"default":2.5}}"#).unwrap();
    let expected = Discipline::Wfq {
        by: Flow::Type,
        weights: [("default".to_owned(), 2.5)].into(),
        tokens: None,
    };
    assert_eq!(config.stages[0].queue.discipline, expected);
    let json = serde_json::to_string(&config).unwrap();
    assert_eq!(FilterConfig::from_json(json.as_bytes()), Ok(config));
}

#[test]
fn mistakes_in_fair_queues_are_named() {
    let wfq = with(r#"{"type":"WFQ","by":"Type","weights":{"fast":1}}"#).unwrap_err();
    let expected = r#"weights: "fast"; the name of a type"#;
    assert_eq!(
        wfq.to_string(),
        format!("stages[0].queue.discipline.{expected}")
    );
    assert!(with(r#"{"type":"WFQ","by":"Type","quantum_us":1000}"#).is_err());
    let problem = |rest: &str| {
        let error = with(&format!(r#"{{"type":"DRR",{rest}}}"#)).unwrap_err();
        error.to_string()
    };
    let at = "stages[0].queue.discipline.";
    for (rest, expected) in [
        (
            r#""by":"Type","quantum_us":99"#,
            "quantum_us: 99; 100 to 60000000",
        ),
        (
            r#""by":"Class","quantum_us":1000"#,
            "by: Class without classes; Type, Workflow, or a stage with classes",
        ),
        (
            r#""by":"Type","quantum_us":1000,"weights":{"fast":1}"#,
            r#"weights: "fast"; the name of a type"#,
        ),
        (
            r#""by":"Workflow","quantum_us":1000,"weights":{"":1}"#,
            r#"weights: ""; the id of a workflow, 1 to 128 bytes"#,
        ),
        (
            r#""by":"Type","quantum_us":1000,"weights":{"default":0}"#,
            r#"weights: 0 for "default"; 0.01 to 100"#,
        ),
    ] {
        assert_eq!(problem(rest), format!("{at}{expected}"));
    }
}

#[test]
fn routes_are_names_or_beginnings_of_names() {
    let checked = |routes: &[&str]| {
        let routes = serde_json::to_string(routes).unwrap();
        let json = format!(
            r#"{{"stages":[{{"policy":"ns/p","parallelism":1,"routes":{routes},
            "queue":{{"max_length":10,"timeout_us":1000000}},
            "strategy":{{"type":"MaxQueueLength"}},"types":[{{"name":"default"}}]}}]}}"#
        );
        let error = FilterConfig::from_json(json.as_bytes()).err();
        error.map(|e| e.to_string()).unwrap_or_default()
    };
    assert_eq!(
        checked(&["a", "httproute/shop/search/*", "shop.search.*"]),
        ""
    );
    assert_eq!(checked(&vec!["a"; MAX_ROUTES]), "");
    let why =
        "the name of a route, or the beginning of names and then *; no routes for all requests";
    for (routes, problem) in [
        (&["a", ""][..], format!("[1]: \"\"; {why}")),
        (&["*"], format!("[0]: \"*\"; {why}")),
        (&["a*b"], "[0]: \"a*b\"; * only at the end".to_owned()),
        (&["a**"], "[0]: \"a**\"; * only at the end".to_owned()),
        (
            &["a"; MAX_ROUTES + 1],
            ": 65 entries; at most 64".to_owned(),
        ),
    ] {
        assert_eq!(checked(routes), format!("stages[0].routes{problem}"));
    }
}

#[test]
fn headers_for_refused_requests_are_checked() {
    let with = |set: &str| {
        let json = format!(
            r#"{{"stages":[{{"policy":"ns/p","parallelism":1,
            "queue":{{"max_length":1,"timeout_us":1}},"strategy":{{"type":"MaxQueueLength"}},
            "types":[{{"name":"default","on_refusal":[{set}]}}]}}]}}"#
        );
        let error = FilterConfig::from_json(json.as_bytes()).err();
        error.map(|error| (error.field, error.problem))
    };
    let header = r#"{"name":"x-model","value":"small"}"#;
    assert_eq!(with(header), None);
    for (set, field, problem) in [
        (
            r#"{"name":"X-Model","value":"a"}"#.to_owned(),
            "[0].name",
            "\"X-Model\"; a header name of a-z, 0-9 and -",
        ),
        (
            r#"{"name":"host","value":"a"}"#.to_owned(),
            "[0].name",
            "\"host\"; none of host, connection, content-length, transfer-encoding, upgrade",
        ),
        (
            r#"{"name":"x-model","value":"a\nb"}"#.to_owned(),
            "[0].value",
            "\"a\\nb\"; a header value of 1 byte or more, without control characters",
        ),
        ([header; 9].join(","), "", "9 entries; at most 8"),
    ] {
        let at = format!("stages[0].types[0].on_refusal{field}");
        assert_eq!(with(&set), Some((at, problem.to_owned())));
    }
}

#[test]
fn a_budget_of_tokens_is_checked() {
    let with = |tokens: &str| {
        let json = format!(
            r#"{{"stages":[{{"policy":"ns/p","parallelism":1,"tokens":{tokens},
            "queue":{{"max_length":1,"timeout_us":1}},
            "strategy":{{"type":"MaxQueueLength"}},"types":[{{"name":"default"}}]}}]}}"#
        );
        FilterConfig::from_json(json.as_bytes())
    };
    let whole = r#"{"budget":100.0,"prompt":{"header":"content-length","per_unit":0.25,
        "otherwise":7},"output":{"otherwise":30},"per_request":60}"#;
    let config = with(whole).unwrap();
    let tokens = config.stages[0].tokens.as_ref().unwrap();
    assert_eq!(tokens.whole_budget(), 100);
    assert_eq!(tokens.of(Some(9), None), (33, 3), "2.25 and 30, rounded up");
    assert_eq!(tokens.of(Some(9), Some(8)), (11, 3));
    assert_eq!(tokens.of(None, None), (37, 7));
    assert_eq!(tokens.of(Some(u32::MAX), None), (60, 60));
    let json = serde_json::to_string(&config).unwrap();
    assert_eq!(FilterConfig::from_json(json.as_bytes()), Ok(config));
    let of_nothing = with(r#"{"budget":0.5}"#)
        .unwrap()
        .stages
        .remove(0)
        .tokens
        .unwrap();
    assert_eq!(
        (of_nothing.whole_budget(), of_nothing.of(Some(5), None)),
        (1, (1, 0))
    );
    for (tokens, field, problem) in [
        (
            r#"{"budget":0}"#,
            "budget",
            "0; above 0, at most 1000000000",
        ),
        (
            r#"{"budget":1,"per_request":0}"#,
            "per_request",
            "0; 1 to 1000000000",
        ),
        (
            r#"{"budget":1,"output":{"header":"X-Max","otherwise":1}}"#,
            "output.header",
            "\"X-Max\"; a header name of a-z, 0-9 and -",
        ),
        (
            r#"{"budget":1,"prompt":{"per_unit":0,"otherwise":1}}"#,
            "prompt.per_unit",
            "0; 0.001 to 1000",
        ),
        (
            r#"{"budget":1,"prompt":{"otherwise":1000000001}}"#,
            "prompt.otherwise",
            "1000000001; 0 to 1000000000",
        ),
    ] {
        let field = format!("stages[0].tokens.{field}");
        assert_eq!(with(tokens), Err(ConfigError::new(field, problem)));
    }
}
