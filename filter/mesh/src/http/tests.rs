//! Tests of requests and calls from their headers to their end, with hosts and proxies in memory.

use std::time::Duration;

use crate::memory::{MemoryHost, MemoryStream, pairs};
use headgate_core::config::{Direction, FilterConfig};
use headgate_core::decision::{Action, Decision};
use headgate_core::http::Inbound;
use headgate_strategies::time::Instant;

use super::*;

mod central;
mod classes;
#[path = "../../../core/src/http/tests/proxy.rs"]
mod proxy;
mod smoothing;

use proxy::{IN, MAX_QUEUE_LENGTH, Proxy, Request, VIA_UPSTREAM, stage};

/// The id of the configuration for calls.
const OUT: u32 = 2;

/// One workflow, `a`, identified by a header or by the sidecar that sent the request.
const WORKFLOWS: &str = r#""strategy":{"type":"MaxQueueLength"},
    "workflows":{"identify":[{"type":"Header","name":"x-tenant"},
                             {"type":"Header","name":"x-headgate-workflow"}],
        "peers":["spiffe://mesh/*"],
        "quantile":0.5,"interval_us":100000,"rate_ttl_us":1000000,
        "sharing":{"type":"StaticGuarantees"},"max_workflows":10,"max_queue_length":20,
        "workflows":{"a":{"guarantee":1000.0}}}"#;

const OUTBOUND: &str = r#"{"policy":"ns/p","services":{"outbound|80||b.*":"b"}}"#;

/// The headers between sidecars.
const FROM_MESH: [(&str, &str); 4] = [
    (wire::WORKFLOW, "a"),
    (wire::PROCESS, "00000000000000ff"),
    (wire::REQUEST, "stale"),
    ("baggage", "k=v,headgate=stale"),
];

#[test]
fn the_application_sees_a_token_and_nothing_else_of_the_mesh() {
    let mut proxy = Proxy::new(&stage(WORKFLOWS));
    let mut first = proxy.forwarded(&[]);
    let mut mesh = FROM_MESH.to_vec();
    mesh.push((":path", "/"));
    let stream = proxy.stream(&mesh);
    stream.set(Property::DownstreamPeer, "spiffe://mesh/front");
    let mut inbound = Inbound::default();
    let decision = inbound.request_headers(&mut proxy.filter, &stream);
    assert!(matches!(decision, Decision::Hold(_)), "{decision:?}");
    let seen = |stream: &MemoryStream, name| stream.in_request(name);
    for name in [wire::WORKFLOW, wire::PROCESS, wire::REQUEST] {
        assert_eq!(seen(&stream, name), None, "{name}");
    }
    assert_eq!(seen(&stream, "baggage").as_deref(), Some("k=v"));

    // A held request gets its token when it goes to the backend, in the header and in the baggage.
    let held = Request { stream, inbound };
    first.answered(&mut proxy.filter, "200", true);
    proxy.resume(&held);
    let token = held.stream.in_request(wire::REQUEST).unwrap();
    assert_ne!(token, "stale");
    let baggage = held.stream.in_request("baggage").unwrap();
    assert_eq!(baggage, format!("k=v,headgate={token}"));
    assert_eq!(proxy.stat("workflow.a.rq_offered"), 1);
}

#[test]
fn headers_of_the_mesh_from_a_stranger_are_ignored() {
    let mut proxy = Proxy::new(&stage(WORKFLOWS));
    let request = proxy.forwarded(&FROM_MESH);
    assert_eq!(request.stream.in_request(wire::WORKFLOW), None);
    assert_eq!(request.stream.in_request(wire::PROCESS), None);
    let token = request.stream.in_request(wire::REQUEST).unwrap();
    assert_ne!(token, "stale");
    assert!(
        proxy
            .filter
            .host()
            .value("headgate.policy.ns/p.workflow.a.rq_total")
            != Some(1)
    );
}

#[test]
fn without_workflows_headers_stay_unchanged() {
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let request = proxy.forwarded(&FROM_MESH);
    assert_eq!(*request.stream.request.borrow(), pairs(&FROM_MESH));
}

/// Sets the announcement of a process behind a gateway.
fn announcement(response: &MemoryStream) {
    *response.response.borrow_mut() = pairs(&[
        (":status", "200"),
        (
            wire::RATE,
            "process=\"00000000000000aa\", rate=25, ttl=1000",
        ),
        (wire::PROGRESS, "elapsed=3, work=3"),
    ]);
}

#[test]
fn a_call_says_what_it_belongs_to_and_its_answer_is_read() {
    let mut proxy = Proxy::new(&stage(WORKFLOWS));
    let configuration = format!(r#"{{"direction":"Outbound","stages":[],"outbound":{OUTBOUND}}}"#);
    let stream = proxy.stream(&[]);
    let now = Instant::default();
    let configured = proxy
        .filter
        .configure(&stream, now, (OUT, ""), configuration.as_bytes());
    assert_eq!(configured, Ok(()));
    let request = proxy.forwarded(&[("x-tenant", "a")]);
    let token = request.stream.in_request(wire::REQUEST).unwrap();

    let baggage = format!("k=v,headgate={token}");
    let call = proxy.stream(&[(wire::REQUEST, &token), ("baggage", &baggage)]);
    call.set(Property::ClusterName, "outbound|80||b.svc");
    let mut outbound = Outbound::default();
    assert!(outbound.request_headers(&mut proxy.filter, &call));
    assert!(outbound.is_pending());
    assert_eq!(call.in_request(wire::WORKFLOW).as_deref(), Some("a"));
    assert!(call.in_request(wire::PROCESS).is_some());
    assert_eq!(call.in_request(wire::REQUEST), None);
    assert_eq!(call.in_request("baggage").as_deref(), Some("k=v"));

    // Several headers form one list.
    let own = format!("headgate={token}");
    let split = proxy.stream(&[("baggage", "k=v"), ("baggage", &own)]);
    let mut other = Outbound::default();
    assert!(other.request_headers(&mut proxy.filter, &split));
    assert_eq!(split.in_request(wire::WORKFLOW).as_deref(), Some("a"));
    assert_eq!(split.in_request("baggage").as_deref(), Some("k=v"));
    other.done(&mut proxy.filter, &split);

    announcement(&call);
    outbound.response_headers(&mut proxy.filter, &call);
    assert!(!outbound.is_pending());
    assert_eq!(*call.response.borrow(), pairs(&[(":status", "200")]));
    outbound.done(&mut proxy.filter, &call);

    // A call without an answer counts once, too.
    let lost = proxy.stream(&[(wire::REQUEST, &token)]);
    let mut outbound = Outbound::default();
    assert!(outbound.request_headers(&mut proxy.filter, &lost));
    outbound.done(&mut proxy.filter, &lost);
    outbound.done(&mut proxy.filter, &lost);
    proxy.filter.tick(&lost);
    assert_eq!(proxy.stat("workflow.a.calls"), 3);

    proxy.filter.gone(&lost, OUT);
    let mut outbound = Outbound::default();
    assert!(outbound.request_headers(&mut proxy.filter, &lost));
    assert!(!outbound.is_pending());
}

/// A proxy doesn't join the lines of a header.
#[test]
fn lists_are_read_from_all_lines_of_their_headers() {
    let sharing = r#"{"type":"DominantResource","probe":10.0,"max_utilization":0.9,
        "resource":{"capacity":100.0,"report":{"type":"ServerTiming","metric":"db"}}}"#;
    let config = WORKFLOWS
        .replace(r#"{"type":"StaticGuarantees"}"#, sharing)
        .replace(
            r#"{"type":"Header","name":"x-tenant"}"#,
            r#"{"type":"Baggage","key":"workflow"}"#,
        );
    let mut proxy = Proxy::new(&stage(&config));
    let mut request = proxy.forwarded(&[("baggage", "k=v"), ("baggage", "workflow=b")]);
    let timings = [
        ("server-timing", "cpu;dur=1"),
        ("server-timing", "db;dur=50"),
    ];
    request.stream.response.borrow_mut().extend(pairs(&timings));
    request.answered(&mut proxy.filter, "200", true);
    // Of 100 units, 90% are shared, and a request uses 50.
    let rate = proxy.stat("workflow.b.local_rate_mhz");
    assert!((1_790..=1_810).contains(&rate), "{rate}");
}

#[test]
fn at_a_gateway_a_request_is_its_own_call() {
    let config = stage(WORKFLOWS).replace(
        r#""revision":"r","#,
        &format!(r#""revision":"r","outbound":{OUTBOUND},"#),
    );
    let mut proxy = Proxy::new(&config);
    let mut first = proxy.forwarded(&[("x-tenant", "a")]);
    let mut second = proxy.held(&[("x-tenant", "a")]);
    assert_eq!(second.stream.in_request(wire::WORKFLOW), None);
    announcement(&first.stream);
    first.answered(&mut proxy.filter, "200", true);
    // The backend's announcement doesn't reach the client.
    assert_eq!(first.stream.in_response(wire::RATE), None);
    assert_eq!(first.stream.in_response(wire::PROGRESS), None);
    proxy.resume(&second);
    for request in [&first, &second] {
        let workflow = request.stream.in_request(wire::WORKFLOW);
        assert_eq!(workflow.as_deref(), Some("a"));
        assert_eq!(request.stream.in_request(wire::REQUEST), None);
    }
    proxy.done(&mut second);
    assert!(proxy.filter.engine().beside().calls.is_empty());
}
