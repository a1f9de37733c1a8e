use std::fmt::Write as _;
use std::io::Write as _;

use headgate_core::config::StageConfig;
use headgate_simulator::workload::recorded::Recording;

use super::*;
use crate::input::select;

/// Returns the suggested policy for a log with these requests, and the log. The requests are a
/// tenth of a second apart, each with its method, path and time in ms.
fn suggested<'a>(requests: impl IntoIterator<Item = (&'a str, String, u32)>) -> (String, String) {
    let mut log = String::new();
    for (n, (method, path, ms)) in requests.into_iter().enumerate() {
        let (s, tenth) = (n / 10, n % 10);
        let (h, m, s) = (10 + s / 3_600, s / 60 % 60, s % 60);
        // Writing to a String does not fail.
        let _ = writeln!(
            log,
            "[2026-01-05T{h:02}:{m:02}:{s:02}.{tenth}00Z] \"{method} {path} HTTP/1.1\" 200 - 0 9 \
             {ms} {ms} \"-\" \"-\" \"-\" \"x\" \"10.0.0.2:80\""
        );
    }
    (policy_for(&log).unwrap(), log)
}

fn policy_for(log: &str) -> anyhow::Result<String> {
    policy_of(log, None)
}

fn policy_of(log: &str, gateway: Option<ObjectKey>) -> anyhow::Result<String> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(log.as_bytes())?;
    let args = SuggestArgs {
        log: Some(file.path().to_owned()),
        proxy: None,
        service: service("shop/web").unwrap(),
        gateway,
        types: 12,
    };
    Ok(run(&args)?.text)
}

/// Returns the stage that a proxy would enforce for the policy, which must have no mistakes.
fn stage(policy: &str) -> StageConfig {
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    file.write_all(policy.as_bytes()).unwrap();
    let selection = select(&[file.path().to_owned()], None, 1, 1);
    let selection = selection.unwrap_or_else(|error| panic!("{error:#}\n{policy}"));
    selection.stage().unwrap().clone()
}

/// Counts the requests of the log by their types in the policy.
fn by_type(policy: &str, log: &str) -> Vec<(String, usize)> {
    let recording = Recording::read(log.as_bytes(), &stage(policy)).unwrap();
    let types = recording.types().iter();
    let count = |id| recording.service_times_ms(id).len();
    types.map(|(name, id)| (name.clone(), count(*id))).collect()
}

fn has(policy: &str, line: &str) {
    assert!(policy.lines().any(|l| l.trim() == line), "{line}\n{policy}");
}

#[test]
fn a_gateway_is_the_target_if_one_is_named() {
    let log = include_str!("../../../../examples/simulate/access.log");
    let gateway = service("shop/edge").unwrap();
    let policy = policy_of(log, Some(gateway)).unwrap();
    stage(&policy);
    has(&policy, "metadata: {name: edge, namespace: shop}");
    let target = "- {group: gateway.networking.k8s.io, kind: Gateway, name: edge}";
    has(&policy, target);
}

#[test]
fn each_route_of_the_example_gets_a_type() {
    let log = include_str!("../../../../examples/simulate/access.log");
    let policy = policy_for(log).unwrap();
    let types = by_type(&policy, log);
    let names: Vec<&str> = types.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "q-mediumslow",
            "q-slow",
            "q-mediumfast",
            "q-fast",
            "default"
        ]
    );
    has(
        &policy,
        "mode: DryRun        # decides and counts, but refuses no request; remove it when the \
         counts are as expected",
    );
}

#[test]
fn ids_and_names_of_things_fold_and_what_is_rare_is_default() {
    let requests = (0..60).flat_map(|n| {
        [
            ("GET", format!("/users/{n}/orders?page={n}"), 4),
            ("GET", format!("/users/me-{}/x.y", n % 2), 40),
            ("GET", format!("/blobs/5f0c{n:04x}-9b2e"), 7),
            (
                "GET",
                format!("/cities/town{}/weather", "a".repeat(n + 1)),
                9,
            ),
            ("GET", "/cart".to_owned(), 3),
            ("POST", "/cart".to_owned(), 20),
            (
                "GET",
                if n < 9 {
                    "/rare".to_owned()
                } else {
                    "/".to_owned()
                },
                1,
            ),
        ]
    });
    let (policy, log) = suggested(requests);
    let mut types = by_type(&policy, &log);
    types.sort();
    let expected = [
        ("blobs-id", 60),
        ("cities-id-weather", 60),
        ("default", 9 + 60),
        ("get-cart", 60),
        ("post-cart", 60),
        ("root", 51),
        ("users-id-orders", 60),
    ];
    assert_eq!(
        types,
        expected.map(|(name, n)| (name.to_owned(), n)),
        "{policy}"
    );
    has(
        &policy,
        r#"- {path: {type: RegularExpression, value: "/users/[^/]+/orders"}}"#,
    );
    has(
        &policy,
        r#"- {path: {type: Exact, value: "/cart"}, method: "POST"}"#,
    );
}

#[test]
fn numbers_follow_from_what_was_measured_as_the_comments_say() {
    // A fifth of the requests takes 60 ms, which is the 90th percentile of all requests.
    let requests = (0..500).map(|n| match n % 5 {
        0 => ("GET", "/report".to_owned(), 60),
        _ => ("GET", "/fast".to_owned(), 2),
    });
    let (policy, _) = suggested(requests);
    // 2 · 2.5 + 60.5 = 65.5 and 2 · 2.5 + 2 · 60.5 = 126. The times have half a millisecond more,
    // because Envoy rounds down by half a millisecond on average.
    has(&policy, "slo: {p50: 70ms, p90: 150ms}");
    // 3 · 60.5 = 181.5 and 4 · 60.5 = 242.
    has(&policy, "slo: {p50: 200ms, p90: 300ms}");
    has(
        &policy,
        "# 100 responses took 60 ms (p50) and 60 ms (p90), 86% of all service time",
    );
    let names: Vec<String> = stage(&policy).types.into_iter().map(|t| t.name).collect();
    assert_eq!(names, ["report", "fast", "default"]);
}

#[test]
fn paths_mean_themselves_whatever_is_in_them() {
    let requests = (0..50).flat_map(|n| {
        [
            ("GET", format!("/a.b/{n}/(x)+"), 4),
            ("GET", format!("/axb/{n}/xx"), 5),
            ("GET", "/q'%7Bid%7D,#".to_owned(), 6),
        ]
    });
    let (policy, log) = suggested(requests);
    let types = by_type(&policy, &log);
    assert!(
        types.iter().all(|(_, n)| *n == 50) && types.len() == 3,
        "{types:?}\n{policy}"
    );
}

/// `no` is a boolean for kubectl, whose YAML is that of version 1.1.
#[test]
fn names_that_are_no_strings_in_yaml_are_quoted() {
    let paths = ["/null", "/true", "/%20", "/no", "/1e5", "/a"];
    let requests =
        { paths.iter() }.flat_map(|path| (0..ENOUGH).map(move |_| ("GET", (*path).to_owned(), 20)));
    let (policy, log) = suggested(requests);
    assert_eq!(by_type(&policy, &log).len(), paths.len(), "{policy}");
    for name in [
        r#""null""#,
        r#""true""#,
        r#""20""#,
        r#""no""#,
        r#""1e5""#,
        "a",
    ] {
        has(&policy, &format!("- name: {name}"));
    }
    let number = service("123/on").unwrap();
    let policy = policy_of(&log, Some(number)).unwrap();
    has(&policy, r#"metadata: {name: "on", namespace: "123"}"#);
    stage(&policy);
}

#[test]
fn a_log_with_too_few_answers_says_so() {
    let error = policy_for("hello\n").unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("fewer than 50 responses of a backend; 1 line was skipped"),
        "{error}"
    );
}

#[test]
fn objectives_round_up_and_never_down() {
    for (ms, to) in [
        (3.0, 10.0),
        (10.0, 10.0),
        (10.1, 15.0),
        (71.0, 100.0),
        (100.0, 100.0),
        (2_001.0, 3_000.0),
    ] {
        assert_eq!(policy::round_up(ms), to, "{ms}");
    }
}

#[test]
fn paths_and_methods_of_an_envoy_that_normalizes_nothing_are_valid() {
    let lines = [
        ("GET", "/api//items"),
        ("GET", "/api/./items"),
        ("GET", "/old/../api/items"),
        ("GET", "/%7Ebob/feed"),
        ("GET", "/api/%2e%2E/%zz%2F/"),
        ("PROPFIND", "/dav"),
        ("GET", "/a\tb"),
        ("GET", "/dav"),
    ];
    let requests = lines
        .iter()
        .flat_map(|(method, path)| (0..ENOUGH).map(move |_| (*method, (*path).to_owned(), 20)));
    let (policy, _) = suggested(requests);
    let stage = stage(&policy);
    let rules = stage.types.iter().flat_map(|kind| &kind.matches);
    let mut paths: Vec<String> = rules
        .map(|rule| rule.path.as_ref().unwrap())
        .map(|path| format!("{:?} {}", path.kind, path.value))
        .collect();
    paths.sort();
    let exact = ["/%zz%2F/", "/api/items", "/dav", "/~bob/feed"];
    assert_eq!(paths, exact.map(|path| format!("Exact {path}")));
    has(
        &policy,
        &format!(
            "# All other requests, with objectives from the response times of all requests: {} \
             responses took 20 ms (p50) \
             and 20 ms (p90)",
            lines.len() * ENOUGH
        ),
    );
}

#[test]
fn a_query_does_not_count_for_the_length_of_a_path() {
    let query = format!("/graphql?query={}", "x".repeat(2_000));
    let long = format!("/{}", "x".repeat(1_100));
    let requests = (0..2 * ENOUGH).map(|n| match n % 2 {
        0 => ("GET", query.clone(), 20),
        _ => ("GET", long.clone(), 20),
    });
    let (policy, _) = suggested(requests);
    has(&policy, r#"- {path: {type: Exact, value: "/graphql"}}"#);
    assert!(!policy.contains("xxx"), "{policy}");
}
