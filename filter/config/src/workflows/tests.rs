use serde_json::{Value, json};

use crate::{ConfigError, FilterConfig, MAX_WORKFLOW_NAME};

fn stage() -> Value {
    json!({
        "policy": "shop/checkout",
        "parallelism": 4,
        "queue": {"max_length": 100, "timeout_us": 1_000_000},
        "strategy": {"type": "MaxQueueLength"},
        "types": [{"name": "default"}],
        "workflows": {
            "identify": [
                {"type": "Baggage", "key": "workflow"},
                {"type": "Header", "name": "x-tenant"},
                {"type": "Metadata", "path": ["envoy.filters.http.jwt_authn", "claims", "tenant"]},
                {"type": "Type"},
            ],
            "quantile": 0.5,
            "service_quantiles": {"extent-node": 1},
            "interval_us": 100_000,
            "rate_ttl_us": 1_000_000,
            "sharing": {
                "type": "DominantResource", "probe": 10, "max_utilization": 0.9,
                "resource": {"capacity": 1000, "report": {"type": "Orca", "metric": "io"}},
            },
            "max_workflows": 2,
            "max_queue_length": 100,
            "workflows": {
                "checkout": {
                    "guarantee": 100, "weight": 2, "quantile": 0.25, "deadline_us": 300_000,
                    "service_quantiles": {"extent-node": 0},
                },
                "search": {},
                "_other": {"weight": 0.1},
            },
            "peers": ["spiffe://cluster.local/ns/shop/*"],
        },
    })
}

fn checked(config: &Value) -> Result<FilterConfig, ConfigError> {
    FilterConfig::from_json(config.to_string().as_bytes())
}

#[test]
fn a_valid_configuration_survives_a_round_trip() {
    for sharing in [
        json!({"type": "StaticGuarantees"}),
        json!({"type": "BottleneckFairness", "probe": 10, "max_utilization": 1}),
        stage()["workflows"]["sharing"].clone(),
    ] {
        let mut stage = stage();
        stage["workflows"]["sharing"] = sharing;
        let config = checked(&json!({"stages": [stage]})).unwrap();
        let json = serde_json::to_vec(&config).unwrap();
        assert_eq!(FilterConfig::from_json(&json).unwrap(), config);
    }
}

#[test]
fn an_error_names_each_invalid_value() {
    let many = |count: usize, what: Value| Value::Array(vec![what; count]);
    // This name is too long for the directory of names.
    let long = "a".repeat(MAX_WORKFLOW_NAME + 1);
    let too_long = format!("{long:?}; 1 to 128 bytes without control characters");
    let wrong = [
        ("/identify", json!([]), "identify", "empty; 1 to 8 sources"),
        (
            "/identify",
            many(9, json!({"type": "Type"})),
            "identify",
            "9 entries; at most 8",
        ),
        (
            "/identify/0/key",
            json!(""),
            "identify",
            "\"\"; 1 to 256 bytes without control characters",
        ),
        (
            "/identify/1/name",
            json!("X-Tenant"),
            "identify",
            "\"X-Tenant\"; a header name of a-z, 0-9 and -",
        ),
        (
            "/identify/2/path",
            json!(["a"]),
            "identify",
            "a metadata path of 1 names; 2 to 8 names",
        ),
        ("/quantile", json!(1.5), "quantile", "1.5; 0 to 1"),
        (
            "/service_quantiles/extent-node",
            json!(-0.1),
            "service_quantiles",
            "-0.1; 0 to 1",
        ),
        (
            "/workflows/checkout/service_quantiles/extent-node",
            json!(1.1),
            "workflows.checkout.service_quantiles",
            "1.1; 0 to 1",
        ),
        (
            "/interval_us",
            json!(9_999),
            "interval_us",
            "9999; 10000 to 10000000",
        ),
        (
            "/rate_ttl_us",
            json!(199_999),
            "rate_ttl_us",
            "199999; 2 × interval_us (200000) to 3600000000",
        ),
        (
            "/sharing/probe",
            json!(0),
            "sharing.probe",
            "0; above 0, at most 1000000",
        ),
        (
            "/sharing/max_utilization",
            json!(1.1),
            "sharing.max_utilization",
            "1.1; above 0, at most 1",
        ),
        (
            "/sharing/resource/capacity",
            json!(0),
            "sharing.resource.capacity",
            "0; above 0, at most 1000000000000000",
        ),
        (
            "/sharing/resource/report/metric",
            json!("\n"),
            "sharing.resource.report",
            "\"\\n\"; 1 to 256 bytes without control characters",
        ),
        ("/max_workflows", json!(0), "max_workflows", "0; 1 to 1000"),
        (
            "/max_workflows",
            json!(1001),
            "max_workflows",
            "1001; 1 to 1000",
        ),
        (
            "/max_workflows",
            json!(1),
            "workflows",
            "3 entries; at most 2",
        ),
        (
            "/max_queue_length",
            json!(10_001),
            "max_queue_length",
            "10001; at most 10000",
        ),
        (
            "/workflows/checkout/guarantee",
            json!(0),
            "workflows.checkout.guarantee",
            "0; above 0, at most 1000000000000000",
        ),
        (
            "/workflows/checkout/weight",
            json!(0),
            "workflows.checkout.weight",
            "0; 0.01 to 100",
        ),
        (
            "/workflows/checkout/quantile",
            json!(2),
            "workflows.checkout.quantile",
            "2; 0 to 1",
        ),
        (
            "/workflows/checkout/deadline_us",
            json!(0),
            "workflows.checkout.deadline_us",
            "0; 1 to 3600000000",
        ),
        (
            "/workflows",
            json!({"": {}}),
            "workflows",
            "\"\"; 1 to 128 bytes without control characters",
        ),
        (
            "/workflows",
            json!({long.as_str(): {}}),
            "workflows",
            too_long.as_str(),
        ),
        (
            "/service_quantiles",
            json!({long.as_str(): 1}),
            "service_quantiles",
            too_long.as_str(),
        ),
        (
            "/peers/0",
            json!("spiffe://a/*/b"),
            "peers",
            "\"spiffe://a/*/b\"; a SPIFFE id, exact or with * at its end",
        ),
        (
            "/peers/0",
            json!("shop"),
            "peers",
            "\"shop\"; a SPIFFE id, exact or with * at its end",
        ),
        (
            "/peers",
            many(65, json!("spiffe://a/b")),
            "peers",
            "65 entries; at most 64",
        ),
    ];
    for (field, value, named, problem) in wrong {
        let mut stage = stage();
        *stage["workflows"].pointer_mut(field).unwrap() = value;
        let error = checked(&json!({"stages": [stage]})).unwrap_err();
        let expected = ConfigError::new(format!("stages[0].workflows.{named}"), problem);
        assert_eq!(error, expected);
    }
}

fn outbound() -> Value {
    json!({
        "direction": "Outbound",
        "outbound": {
            "policy": "shop/checkout",
            "services": {
                "outbound|80||en.shop.svc.cluster.local": "extent-node",
                "outbound|81|*": "cache",
            },
            "peers": ["spiffe://cluster.local/ns/shop/sa/en"],
            "smoothing": {"least_us": 0, "most_us": 300_000, "enforced": true},
            "service_smoothing": {
                "outbound|81|*": {"least_us": 1_000, "most_us": 1_000, "enforced": true},
            },
        },
    })
}

#[test]
fn directions_have_parts_of_their_own() {
    let config = checked(&outbound()).unwrap();
    let json = serde_json::to_vec(&config).unwrap();
    assert_eq!(FilterConfig::from_json(&json).unwrap(), config);
    let problem = |config: &Value| checked(config).unwrap_err().to_string();
    let mut inbound = outbound();
    inbound["direction"] = json!("Inbound");
    assert_eq!(
        problem(&inbound),
        "outbound.policy: \"shop/checkout\"; the policy of a stage with workflows or \
         class_admission"
    );
    let mut gateway = inbound;
    gateway["stages"] = json!([stage()]);
    gateway["outbound"]["policy"] = gateway["stages"][0]["policy"].clone();
    checked(&gateway).unwrap();
    let mut staged = outbound();
    staged["stages"] = json!([stage()]);
    assert_eq!(
        problem(&staged),
        "stages: given with direction Outbound; no stages, or direction Inbound"
    );
    for (field, value, expected) in [
        (
            "/policy",
            json!(""),
            "policy: empty; namespace/name of the policy",
        ),
        (
            "/services",
            json!({"a*b": "a"}),
            "services: \"a*b\"; * only at the end",
        ),
        (
            "/services",
            json!({"a": ""}),
            "services: \"\"; 1 to 128 bytes without control characters",
        ),
        (
            "/peers/0",
            json!("http://x"),
            "peers: \"http://x\"; a SPIFFE id, exact or with * at its end",
        ),
        (
            "/smoothing/least_us",
            json!(300_001),
            "smoothing: least_us 300001 and most_us 300000; most_us 1 to 10000000, least_us 0 \
             to most_us",
        ),
        (
            "/smoothing/most_us",
            json!(10_000_001),
            "smoothing: least_us 0 and most_us 10000001; most_us 1 to 10000000, least_us 0 \
             to most_us",
        ),
        (
            "/service_smoothing/outbound|81|*/most_us",
            json!(999),
            "service_smoothing: least_us 1000 and most_us 999; most_us 1 to 10000000, least_us 0 \
             to most_us",
        ),
        (
            "/service_smoothing",
            json!({"a": {"least_us": 0, "most_us": 1, "enforced": true}}),
            "service_smoothing: \"a\"; a cluster of outbound.services",
        ),
    ] {
        let mut config = outbound();
        *config["outbound"].pointer_mut(field).unwrap() = value;
        assert_eq!(problem(&config), format!("outbound.{expected}"));
    }
}
