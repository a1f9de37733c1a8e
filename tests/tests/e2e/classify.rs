//! Tests of the types of requests: each criterion by which a policy can match requests.

use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::BackendConfig;
use headgate_tests::rig::Rig;
use headgate_tests::{http, policy};
use serde_json::{Value, json};

/// The method, the path and the headers of a request, and its expected type.
type Case = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
);

const CASES: &[Case] = &[
    ("GET", "/exact", &[], "exact"),
    ("GET", "/exact?with=query", &[], "exact"),
    ("GET", "/exact/more", &[], "default"),
    ("GET", "/prefix", &[], "prefix"),
    ("GET", "/prefix/more/of/it", &[], "prefix"),
    ("GET", "/prefixed", &[], "default"),
    ("GET", "/regex/17", &[], "regex"),
    ("GET", "/regex/seventeen", &[], "default"),
    ("PUT", "/method", &[], "method"),
    ("GET", "/method", &[], "default"),
    ("GET", "/", &[("x-kind", "report")], "header"),
    ("GET", "/", &[("x-kind", "reports")], "default"),
    ("GET", "/", &[("x-tenant", "t-42")], "header-regex"),
    ("GET", "/", &[("host", "api.headgate.test")], "host"),
    ("GET", "/both", &[("x-both", "yes")], "both"),
    ("GET", "/both", &[], "default"),
    (
        "POST",
        "/search.v1.Search/Query",
        &[("content-type", "application/grpc")],
        "grpc-method",
    ),
    (
        "POST",
        "/search.v1.Search/Other",
        &[("content-type", "application/grpc")],
        "grpc-service",
    ),
    (
        "POST",
        "/search.v1.Searching/Query",
        &[("content-type", "application/grpc")],
        "default",
    ),
    ("GET", "/routed/by/name", &[], "routed"),
    ("GET", "/second-alternative", &[], "exact"),
    ("GET", "/anything", &[], "default"),
];

fn types() -> Vec<Value> {
    let slo = json!({"p50": "1s", "p90": "2s"});
    let kind = |name: &str, matches: Value| json!({"name": name, "matches": matches, "slo": slo});
    let path = |kind: &str, value: &str| json!({"path": {"type": kind, "value": value}});
    let grpc = |method: Value| json!([{"grpc": method}]);
    vec![
        kind(
            "exact",
            json!([
                path("Exact", "/exact"),
                path("Exact", "/second-alternative")
            ]),
        ),
        kind("prefix", json!([path("PathPrefix", "/prefix")])),
        kind("regex", json!([path("RegularExpression", "/regex/[0-9]+")])),
        kind(
            "method",
            json!([{"path": {"type": "Exact", "value": "/method"}, "method": "PUT"}]),
        ),
        kind(
            "header",
            json!([{"headers": [{"type": "Exact", "name": "x-kind", "value": "report"}]}]),
        ),
        kind(
            "header-regex",
            json!([{"headers": [
                {"type": "RegularExpression", "name": "x-tenant", "value": "t-[0-9]+"},
            ]}]),
        ),
        kind(
            "host",
            json!([{"headers": [{"name": "Host", "value": "api.headgate.test"}]}]),
        ),
        kind(
            "both",
            json!([{
                "path": {"type": "Exact", "value": "/both"},
                "headers": [{"name": "x-both", "value": "yes"}],
            }]),
        ),
        kind(
            "grpc-method",
            grpc(json!({"type": "Exact", "service": "search.v1.Search", "method": "Query"})),
        ),
        kind(
            "grpc-service",
            grpc(json!({"type": "Exact", "service": "search.v1.Search"})),
        ),
        kind("routed", json!([{"route": "search-route"}])),
        json!({"name": "default", "slo": slo}),
    ]
}

#[test]
fn every_request_is_counted_as_the_first_type_that_matches() -> Result<()> {
    let backend = BackendConfig::constant(10, Duration::from_millis(1));
    let rig = Rig::builder(backend, policy::policy(10, &types()))
        .change(|bootstrap| {
            let mut routed = bootstrap.routes()?[0].clone();
            routed["name"] = json!("search-route");
            routed["match"] = json!({"prefix": "/routed"});
            bootstrap.routes()?.insert(0, routed);
            Ok(())
        })
        .start()?;
    let names: Vec<String> = types()
        .iter()
        .filter_map(|t| t["name"].as_str().map(str::to_owned))
        .collect();
    let mut expected: Vec<u64> = vec![0; names.len()];
    for &(method, path, headers, kind) in CASES {
        let body = (method != "GET").then_some("");
        http::send(rig.addr(), method, path, headers, body)?.answer()?;
        let index = names
            .iter()
            .position(|name| name == kind)
            .expect("a type of the policy");
        expected[index] += 1;
        rig.wait_for_stat(&format!("type.{kind}.rq_total"), expected[index])
            .map_err(|error| error.context(format!("{method} {path} {headers:?}")))?;
    }
    // Each request was counted once.
    for (name, expected) in names.iter().zip(expected) {
        assert_eq!(rig.type_stat(name, "rq_total")?, expected, "{name}");
    }
    rig.wait_until_idle()
}

/// Tests paths that most backends treat as the same path, through the listener that `headgate
/// bootstrap` writes.
#[test]
fn paths_match_the_type_that_they_look_like() -> Result<()> {
    let backend = BackendConfig::constant(10, Duration::from_millis(1));
    let rig = Rig::builder(backend, policy::policy(10, &types())).start()?;
    let alike = [
        "/exact",
        "//exact",
        "/%65xact",
        "/./exact",
        "/other/../exact",
        "/%65x%61ct?with=query",
    ];
    for (path, count) in alike.into_iter().zip(1..) {
        http::get(rig.addr(), path)?;
        rig.wait_for_stat("type.exact.rq_total", count)
            .map_err(|error| error.context(path))?;
    }
    rig.wait_until_idle()
}

/// Envoy's default timeout of a route is 15 s, so the bootstrap has to set another one.
#[test]
fn the_bootstrap_sets_no_route_timeout() -> Result<()> {
    let backend = BackendConfig::constant(10, Duration::from_secs(16));
    let rig = Rig::builder(backend, policy::policy(10, &types())).start()?;
    let answer = http::get(rig.addr(), "/download")?;
    anyhow::ensure!(answer.status == 200, "{answer:?}");
    rig.wait_until_idle()
}
