//! Tests of requests from their headers to their end, as a host reports them, on proxies in memory.

use std::time::Duration;

use headgate_strategies::reason::Reason;
use headgate_strategies::time::Instant;

use super::*;
use crate::config::Direction;
use crate::decision::{Action, Decision, Refusal};
use crate::engine::Prepared;
use crate::memory::{Fault, MemoryHost, MemoryStream, pairs};

mod calls;
mod proxy;
mod sampling;

use proxy::{IN, MAX_QUEUE_LENGTH, Proxy, Request, VIA_UPSTREAM, stage};

const DEGRADATION: &str = r#""strategy":{"type":"ResponseTimeController","percentile":90,
    "scope":"Type","targets_us":[[50000]],"smoothing":0.7,"requests":100,"timeout_us":1000000,
    "increase_below":-0.5,"decrease_above":0,"increase":2,"decrease":1.2,"increase_offset":-0.1,
    "min_rate":0.05,"max_rate":2000,
    "lower_class_decrease":10,"lower_class_patience":20,
    "degradation":{"min_quality":0.1,"decrease":1.2,"increase":0.05,"admission":true}}"#;

#[test]
fn a_retry_is_known_by_its_headers() {
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let _running = proxy.forwarded(&[]);
    let mut waiting = proxy.held(&[("x-envoy-attempt-count", "2")]);
    let reason = |proxy: &mut Proxy, headers: &[(&str, &str)]| match proxy.arrive(headers).1 {
        Decision::Refuse(refusal) => refusal.reason,
        decision => panic!("{decision:?}"),
    };
    assert_eq!(reason(&mut proxy, &[]), Reason::QueueFull);
    proxy.done(&mut waiting);
    for retry in [
        ("x-envoy-attempt-count", "2"),
        ("grpc-previous-rpc-attempts", "1"),
    ] {
        assert_eq!(reason(&mut proxy, &[retry]), Reason::Retry);
    }
    let _first = proxy.held(&[("x-envoy-attempt-count", "1")]);
}

#[test]
fn a_retry_is_known_by_the_header_of_its_policy() {
    let retries = r#""retries":{"header":"x-retry-attempt","first_attempt":1}"#;
    let mut proxy = Proxy::new(&stage(&format!("{MAX_QUEUE_LENGTH},{retries}")));
    let reason = |proxy: &mut Proxy, headers: &[(&str, &str)]| match proxy.arrive(headers).1 {
        Decision::Refuse(refusal) => refusal.reason,
        decision => panic!("{decision:?}"),
    };
    let _running = proxy.forwarded(&[]);
    let mut waiting = proxy.held(&[("x-retry-attempt", "2")]);
    let first = [("x-retry-attempt", "1"), ("x-envoy-attempt-count", "1")];
    assert_eq!(reason(&mut proxy, &first), Reason::QueueFull);
    proxy.done(&mut waiting);
    for retry in [
        [("x-retry-attempt", "2"), ("x-envoy-attempt-count", "1")],
        [("x-retry-attempt", "1"), ("x-envoy-attempt-count", "2")],
    ] {
        assert_eq!(reason(&mut proxy, &retry), Reason::Retry);
    }
    let _first = proxy.held(&first);
}

#[test]
fn a_refusal_has_policy_reason_and_retry_delay() {
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let _running = proxy.forwarded(&[]);
    let _waiting = proxy.held(&[]);
    let (request, decision) = proxy.arrive(&[]);
    let Decision::Refuse(refusal) = decision else {
        panic!("{decision:?}")
    };
    assert!(!request.inbound.is_pending());
    let reply = proxy.filter.reply(&refusal);
    assert_eq!((reply.status, reply.grpc_status), (503, 14));
    assert_eq!(reply.details, "headgate_refused{queue_full}");
    let header = |name| {
        let found = reply.headers.iter().find(|(n, _)| *n == name);
        found.map(|(_, value)| value.as_ref())
    };
    assert_eq!(
        header("x-headgate-refused"),
        Some("policy=ns/p; type=default; reason=queue_full")
    );
    assert_eq!(header("x-envoy-ratelimited"), Some("true"));
    assert!(header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    let pushback: u64 = header("grpc-retry-pushback-ms").unwrap().parse().unwrap();
    assert!(pushback > 0);
    assert!(
        reply
            .body
            .starts_with("headgate refused this \"default\" request: "),
        "{}",
        reply.body
    );
    // The header distinguishes a deadline that the service can't meet from one that is missed only
    // because of the rate.
    for (by_rate, reason, described) in [
        (true, Reason::Deadline, "by=rate; reason=deadline"),
        (false, Reason::Deadline, "reason=deadline"),
        (true, Reason::RateLimited, "reason=rate_limit"),
    ] {
        let refusal = Refusal {
            reason,
            by_rate,
            ..refusal
        };
        let reply = proxy.filter.reply(&refusal);
        let said = (reply.headers.iter()).find(|(name, _)| *name == "x-headgate-refused");
        let expected = format!("policy=ns/p; type=default; {described}");
        assert_eq!(said.map(|(_, value)| &**value), Some(&*expected));
    }
}

#[test]
fn a_refused_request_goes_on_by_the_headers_of_its_type() {
    let kind = r#"{"name":"default","on_refusal":[{"name":"x-model","value":"small"}]}"#;
    let config = stage(MAX_QUEUE_LENGTH).replace(r#"{"name":"default"}"#, kind);
    let mut proxy = Proxy::new(&config);
    let _running = proxy.forwarded(&[("x-model", "large")]);
    let mut waiting = proxy.held(&[("x-model", "large")]);
    let (request, decision) = proxy.arrive(&[("x-model", "large")]);
    let Decision::Refuse(refusal) = decision else {
        panic!("{decision:?}")
    };
    let model = |request: &Request| request.stream.in_request("x-model").unwrap();
    // A request beyond its workflow's rate may also lack the time to wait for the rate.
    for (reason, by_rate) in [(Reason::RateLimited, false), (Reason::Deadline, true)] {
        let limited = Refusal {
            reason,
            by_rate,
            ..refusal
        };
        assert!(proxy.filter.refuse(&request.stream, &limited).is_some());
        assert_eq!(model(&request), "large");
    }
    assert_eq!(proxy.filter.refuse(&request.stream, &refusal), None);
    assert_eq!(model(&request), "small");
    assert!(request.stream.route_cleared.get());
    // The waiting request waits for too long.
    (0..2).for_each(|_| assert_eq!(proxy.stat("slots_in_use"), 1));
    let actions = std::mem::take(proxy.filter.actions());
    let [Action::Refuse { refusal, .. }] = actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(proxy.filter.refuse(&waiting.stream, &refusal), None);
    assert_eq!(model(&waiting), "small");
    waiting.answered(&mut proxy.filter, "200", false);
    assert!(!waiting.inbound.is_pending() && !waiting.inbound.awaits_part());
    proxy.done(&mut waiting);
    assert_eq!(proxy.stat("type.default.rq_diverted"), 2);
    assert_eq!(proxy.stat("type.default.rq_rejected_enforced"), 2);
    assert_eq!(proxy.stat("type.default.rq_accepted"), 1);
    assert_eq!(proxy.in_use(), 1);
}

#[test]
fn a_held_request_goes_on_when_the_one_before_it_ends() {
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let mut first = proxy.forwarded(&[]);
    let mut second = proxy.held(&[]);
    first.answered(&mut proxy.filter, "200", false);
    assert!(proxy.filter.actions().is_empty(), "its body is under way");
    first.inbound.response_end(&mut proxy.filter, &first.stream);
    proxy.resume(&second);
    proxy.done(&mut first);
    assert_eq!(proxy.in_use(), 1, "the end of the stream is no second end");
    second.answered(&mut proxy.filter, "200", true);
    proxy.done(&mut second);
    assert_eq!(proxy.in_use(), 0);
    assert!(proxy.filter.actions().is_empty());
    assert_eq!(proxy.stat("type.default.rq_completed"), 2);
}

#[test]
fn an_engine_that_failed_leaves_nothing_booked_to_the_next() {
    let config = stage(MAX_QUEUE_LENGTH);
    let mut proxy = Proxy::new(&config);
    let _running = proxy.forwarded(&[]);
    let _waiting = proxy.held(&[]);
    assert_eq!(proxy.in_use(), 1);
    let stream = proxy.stream(&[]);
    proxy.filter.restart(&stream, 2);
    // The bookings are released at once, not after a lease.
    assert_eq!(proxy.in_use(), 0);
    assert_eq!(proxy.stat("queue_length"), 0);
    assert_eq!(proxy.stat("workers_lost"), 1);
    let mut first = proxy.forwarded(&[]);
    let _second = proxy.held(&[]);
    proxy.done(&mut first);
    assert_eq!(proxy.in_use(), 1);
    // A worker is buried only once.
    let (host, dead) = (&proxy.filter.host, proxy.filter.engine.worker());
    let own = dead.expect("it joined");
    for gone in [1 - own, own, 7] {
        let now = Instant::default();
        let buried = proxy.filter.engine.bury(host, now, gone, &mut Vec::new());
        assert_eq!(buried, Ok(()));
    }
    assert_eq!(proxy.stat("workers_lost"), 1);
}

#[test]
fn a_client_that_leaves_is_forgotten() {
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let mut first = proxy.forwarded(&[]);
    let mut second = proxy.held(&[]);
    proxy.done(&mut second);
    assert!(!second.inbound.is_pending());
    proxy.done(&mut first);
    proxy.done(&mut first);
    assert!(proxy.filter.actions().is_empty());
    assert_eq!(proxy.in_use(), 0);
    assert_eq!(proxy.stat("type.default.rq_completed"), 0);
    assert_eq!(proxy.stat("type.default.rq_abandoned"), 1);
    assert_eq!(proxy.stat("type.default.rq_unmeasured"), 2);
    proxy.forwarded(&[]);
}

/// Envoy destroys the stream without a callback for the response's headers.
#[test]
fn a_redirect_that_envoy_follows_is_an_answer() {
    for (details, host, completed) in [
        ("internal_redirect", "10.0.0.1:80", 1),
        ("internal_redirect", "", 0),
        ("downstream_remote_disconnect", "10.0.0.1:80", 0),
    ] {
        let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
        let mut request = proxy.forwarded(&[]);
        request.stream.set(Property::ResponseCodeDetails, details);
        request.stream.set(Property::UpstreamAddress, host);
        proxy.done(&mut request);
        assert_eq!(proxy.in_use(), 0);
        let counts = ["completed", "unmeasured"];
        let counts = counts.map(|name| proxy.stat(&format!("type.default.rq_{name}")));
        assert_eq!(counts, [completed, 1 - completed], "{details} {host}");
    }
}

/// The body of the backend's response then doesn't pass.
#[test]
fn a_response_that_a_filter_in_front_replaces_is_an_answer() {
    for (status, counted) in [("404", "completed"), ("503", "failed")] {
        for details in [Some(""), None] {
            let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
            let mut request = proxy.forwarded(&[]);
            request.answered(&mut proxy.filter, status, false);
            request.stream.properties.borrow_mut().clear();
            if let Some(details) = details {
                request.stream.set(Property::ResponseCodeDetails, details);
            }
            proxy.done(&mut request);
            assert_eq!(proxy.in_use(), 0);
            let count = proxy.stat(&format!("type.default.rq_{counted}"));
            assert_eq!(count, 1, "{status} {details:?}");
        }
    }
}

/// Runs a request up to one callback. Returns whether its slot is free after the callback.
fn frees(more: &str, request: &[(&str, &str)], status: &str, details: &str) -> bool {
    let mut proxy = Proxy::new(&stage(more));
    let mut request = proxy.forwarded(request);
    request.stream.set(Property::ResponseCodeDetails, details);
    request.answered(&mut proxy.filter, status, false);
    proxy.in_use() == 0
}

#[test]
fn response_headers_end_a_request_where_nothing_of_the_backend_follows() {
    let first_byte =
        format!(r#"{MAX_QUEUE_LENGTH},"measure":"FirstByte","release_slot":"FirstByte""#);
    let get = [(":method", "GET")];
    let upgrade = [(":method", "GET"), ("upgrade", "websocket")];
    let connect = [(":method", "CONNECT")];
    for (more, request, status, details, expected) in [
        (MAX_QUEUE_LENGTH, &get[..], "200", VIA_UPSTREAM, false),
        // The headers are not the first byte of the body.
        (&first_byte, &get[..], "200", VIA_UPSTREAM, false),
        // Envoy itself answers.
        (
            MAX_QUEUE_LENGTH,
            &get[..],
            "503",
            "no_healthy_upstream",
            true,
        ),
        (MAX_QUEUE_LENGTH, &get[..], "504", "response_timeout", true),
        (MAX_QUEUE_LENGTH, &upgrade[..], "101", VIA_UPSTREAM, true),
        // The backend ignores the requested upgrade.
        (MAX_QUEUE_LENGTH, &upgrade[..], "200", VIA_UPSTREAM, false),
        (MAX_QUEUE_LENGTH, &connect[..], "200", VIA_UPSTREAM, true),
        (MAX_QUEUE_LENGTH, &connect[..], "404", VIA_UPSTREAM, false),
    ] {
        let freed = frees(more, request, status, details);
        assert_eq!(freed, expected, "{request:?} {status} {details}");
    }
}

/// Returns a proxy whose streams end their processing time at the first byte.
fn streaming(more: &str) -> Proxy {
    Proxy::new(&stage(&format!(
        r#"{MAX_QUEUE_LENGTH},"measure":"FirstByte"{more}"#
    )))
}

/// Starts a request whose response headers arrive at once, and whose first byte arrives 20 ms
/// later.
fn streams(proxy: &mut Proxy) -> Request {
    let mut request = proxy.forwarded(&[]);
    request.answered(&mut proxy.filter, "200", false);
    assert_eq!(proxy.in_use(), 1, "headers are no work");
    assert!(request.inbound.awaits_part());
    proxy.ms += 20;
    let now = Instant::default() + Duration::from_millis(proxy.ms);
    request.stream.now.set(Some(now));
    (request.inbound).response_part(&mut proxy.filter, &request.stream);
    assert!(!request.inbound.awaits_part());
    request
}

fn by_body(request: &mut Request, filter: &mut Filter<MemoryHost>) {
    request.inbound.response_end(filter, &request.stream);
}

fn by_trailers(request: &mut Request, filter: &mut Filter<MemoryHost>) {
    request.inbound.response_trailers(filter, &request.stream);
}

fn by_failure(request: &mut Request, filter: &mut Filter<MemoryHost>) {
    *request.stream.trailers.borrow_mut() = pairs(&[("grpc-status", "14")]);
    by_trailers(request, filter);
}

fn by_client(request: &mut Request, filter: &mut Filter<MemoryHost>) {
    request.inbound.done(filter, &request.stream);
}

#[test]
fn a_stream_is_measured_at_its_first_byte_and_holds_its_slot_to_its_last() {
    for end in [by_body, by_trailers, by_failure, by_client] {
        let mut proxy = streaming("");
        let mut request = streams(&mut proxy);
        let next = proxy.held(&[]);
        let times = "headgate.policy.ns/p.type.default.processing_time_us";
        let times = proxy.filter.host.recorded(times);
        assert_eq!(times, Some((1, 20_000)), "until the first byte");
        // Further parts of the body have no effect.
        (request.inbound).response_part(&mut proxy.filter, &request.stream);
        assert!(proxy.filter.actions().is_empty(), "the stream goes on");
        end(&mut request, &mut proxy.filter);
        proxy.resume(&next);
        assert!(!request.inbound.is_pending());
        proxy.done(&mut request);
        assert_eq!(proxy.in_use(), 1, "its slot comes back once");
        for (stat, count) in [("completed", 1), ("failed", 0), ("unmeasured", 0)] {
            let stat = format!("type.default.rq_{stat}");
            assert_eq!(proxy.stat(&stat), count, "{stat}");
        }
    }
}

#[test]
fn a_slot_is_free_at_the_first_byte_where_the_policy_says_so() {
    let mut proxy = streaming(r#","release_slot":"FirstByte""#);
    let mut request = streams(&mut proxy);
    assert_eq!(proxy.in_use(), 0);
    assert!(!request.inbound.is_pending());
    let _next = proxy.forwarded(&[]);
    request
        .inbound
        .response_end(&mut proxy.filter, &request.stream);
    proxy.done(&mut request);
    assert_eq!(proxy.in_use(), 1, "the slot of the next");
    assert_eq!(proxy.stat("type.default.rq_completed"), 1);
}

#[test]
fn answers_without_a_body_are_measured_to_their_end() {
    for more in ["", r#","release_slot":"FirstByte""#] {
        let mut proxy = streaming(more);
        let mut alone = proxy.forwarded(&[]);
        alone.answered(&mut proxy.filter, "204", true);
        assert_eq!(proxy.in_use(), 0);
        let mut trailers = proxy.forwarded(&[]);
        trailers.answered(&mut proxy.filter, "200", false);
        (trailers.inbound).response_trailers(&mut proxy.filter, &trailers.stream);
        assert_eq!(proxy.in_use(), 0);
        assert_eq!(proxy.stat("type.default.rq_completed"), 2);
        // An error with a body is not measured.
        let mut failed = proxy.forwarded(&[]);
        failed.answered(&mut proxy.filter, "500", false);
        (failed.inbound).response_part(&mut proxy.filter, &failed.stream);
        proxy.done(&mut failed);
        assert_eq!(proxy.in_use(), 0);
        assert_eq!(proxy.stat("type.default.rq_completed"), 2);
    }
}

#[test]
fn a_stream_without_a_known_first_byte_is_not_measured() {
    let mut proxy = streaming("");
    let mut request = proxy.forwarded(&[]);
    request.answered(&mut proxy.filter, "200", false);
    let now = request.stream.now.replace(None);
    (request.inbound).response_part(&mut proxy.filter, &request.stream);
    request.stream.now.set(now);
    request
        .inbound
        .response_end(&mut proxy.filter, &request.stream);
    assert_eq!(proxy.in_use(), 0);
    assert_eq!(proxy.stat("type.default.rq_completed"), 0);
    assert_eq!(proxy.stat("type.default.rq_unmeasured"), 1);
}

/// Returns a proxy with three types: streams, whole responses with an objective for tokens, and
/// responses without such an objective. Each request's type is its path.
fn with_objectives() -> Proxy {
    let kind = |name: &str, more: &str| {
        format!(
            r#"{{"name":"{name}",
            "matches":[{{"path":{{"type":"Exact","value":"/{name}"}}}}]{more}}}"#
        )
    };
    let slo = r#","slo":[{"percentile":90,"objective_us":30000}]"#;
    let tpot = r#","tpot":[{"percentile":50,"objective_us":10000},
        {"percentile":90,"objective_us":20000}]"#;
    let types = [
        kind("chat", &format!(r#"{slo}{tpot},"measure":"FirstByte""#)),
        kind("whole", &format!("{slo}{tpot}")),
        kind("plain", slo),
        r#"{"name":"default"}"#.to_owned(),
    ];
    let config = stage(MAX_QUEUE_LENGTH);
    Proxy::new(&config.replace(r#"{"name":"default"}"#, &types.join(",")))
}

/// Starts a request whose response headers arrive at once, followed by one of `events` every 20 ms.
fn speaks(proxy: &mut Proxy, path: &str, events: &[&str]) -> Request {
    speaks_as(
        proxy,
        path,
        &[("content-type", "text/event-stream")],
        events,
    )
}

/// Starts a request like [`speaks`], with these response headers.
fn speaks_as(proxy: &mut Proxy, path: &str, headers: &[(&str, &str)], events: &[&str]) -> Request {
    let mut request = proxy.forwarded(&[(":path", path)]);
    *request.stream.response.borrow_mut() = pairs(headers);
    request.answered(&mut proxy.filter, "200", false);
    for event in events {
        pass_time(proxy, &request, 20);
        *request.stream.body.borrow_mut() = event.as_bytes().to_vec();
        if request.inbound.awaits_part() {
            (request.inbound).response_part(&mut proxy.filter, &request.stream);
        }
    }
    request.stream.body.borrow_mut().clear();
    request
}

fn pass_time(proxy: &mut Proxy, request: &Request, ms: u64) {
    proxy.ms += ms;
    let now = Instant::default() + Duration::from_millis(proxy.ms);
    request.stream.now.set(Some(now));
}

impl Proxy {
    /// Returns the number of a type's responses that were measured, the number that met the
    /// objective for the response time, and the numbers that met each of the two objectives for the
    /// time per output token.
    fn met(&mut self, kind: &str) -> [u64; 4] {
        let met = |of: &str| format!("type.{kind}.rq_slo_met.objective.{of}");
        let completed = format!("type.{kind}.rq_completed");
        [completed, met("p90"), met("tpot_p50"), met("tpot_p90")].map(|stat| self.stat(&stat))
    }

    fn token_times(&self, kind: &str) -> Option<(u64, u64)> {
        let name = format!("headgate.policy.ns/p.type.{kind}.time_per_output_token_us");
        let all = self.filter.host.recorded(&name);
        all.filter(|(responses, _)| *responses > 0)
    }
}

#[test]
fn types_of_one_policy_end_their_processing_times_at_different_bytes() {
    let mut proxy = with_objectives();
    for (path, [begun, in_time]) in [("/chat", [1, 1]), ("/whole", [0, 0]), ("/plain", [0, 0])] {
        let mut request = speaks(&mut proxy, path, &["data: a\n\n", "data: b\n\n"]);
        assert_eq!(proxy.in_use(), 1, "{path}");
        let kind = &path[1..];
        let completed = format!("type.{kind}.rq_completed");
        assert_eq!(proxy.stat(&completed), begun, "{path}");
        (request.inbound).response_end(&mut proxy.filter, &request.stream);
        assert_eq!(proxy.in_use(), 0, "{path}");
        assert_eq!(proxy.stat(&completed), 1, "{path}");
        // The first byte arrives after 20 ms, within the objective, and the last byte arrives after
        // the objective has passed.
        let met = format!("type.{kind}.rq_slo_met.objective.p90");
        assert_eq!(proxy.stat(&met), in_time, "{path}");
    }
}

#[test]
fn times_per_output_token_are_compared_with_their_objectives() {
    type End = fn(&mut Request, &mut Filter<MemoryHost>);
    let [body, trailers, failing, leaves]: [End; 4] = [by_body, by_trailers, by_failure, by_client];
    let (one, two, three) = ("data: a\n\n", "data: a\n\ndata: b\n\n", "data: [DONE]\n\n");
    for (path, events, end, expected, took) in [
        // An event arrives every 20 ms. `three` is the end mark, which is no token but takes time,
        // too.
        (
            "/chat",
            &[one, one, one, three][..],
            body,
            [1, 1, 0, 0],
            Some((1, 30_000)),
        ),
        (
            "/chat",
            &[one, one, one],
            body,
            [1, 1, 0, 1],
            Some((1, 20_000)),
        ),
        (
            "/chat",
            &[one, one, one],
            trailers,
            [1, 1, 0, 1],
            Some((1, 20_000)),
        ),
        (
            "/chat",
            &[two, two, two],
            body,
            [1, 1, 1, 1],
            Some((1, 8_000)),
        ),
        // These responses have fewer than two tokens.
        ("/chat", &[one], body, [1, 1, 1, 1], None),
        ("/chat", &[], body, [1, 1, 1, 1], None),
        // The client leaves while the fourth token is due, or the backend aborts the response.
        (
            "/chat",
            &[one, one, one],
            leaves,
            [1, 1, 0, 1],
            Some((1, 13_333)),
        ),
        ("/chat", &[one, one, one], failing, [1, 1, 0, 0], None),
        (
            "/whole",
            &[one, one, one],
            body,
            [1, 0, 0, 1],
            Some((1, 20_000)),
        ),
        ("/whole", &[one], body, [1, 1, 1, 1], None),
        // These responses are not measured at all.
        ("/whole", &[one, one, one], leaves, [0, 0, 0, 0], None),
        ("/whole", &[one, one, one], failing, [0, 0, 0, 0], None),
    ] {
        let mut proxy = with_objectives();
        let mut request = speaks(&mut proxy, path, events);
        end(&mut request, &mut proxy.filter);
        proxy.done(&mut request);
        assert_eq!(proxy.in_use(), 0);
        let kind = &path[1..];
        assert_eq!(proxy.met(kind), expected, "{path} {events:?}");
        assert_eq!(proxy.token_times(kind), took, "{path} {events:?}");
    }
}

#[test]
fn the_body_of_a_type_without_objectives_for_tokens_is_not_read() {
    let mut proxy = with_objectives();
    let mut plain = proxy.forwarded(&[(":path", "/plain")]);
    plain.answered(&mut proxy.filter, "200", false);
    // Only the beginning is reported.
    (plain.inbound).response_part(&mut proxy.filter, &plain.stream);
    assert!(!plain.inbound.awaits_part());
    proxy.done(&mut plain);
    assert_eq!(proxy.token_times("plain"), None);
}

/// The rest of the body may wait for a client that reads slowly.
#[test]
fn the_backend_owes_no_answer_whose_body_has_begun() {
    for (status, is_owed) in [("200", false), ("500", true)] {
        let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
        let mut request = proxy.forwarded(&[]);
        request.answered(&mut proxy.filter, status, false);
        let owed = |proxy: &Proxy| {
            let mut requests = proxy.policy().requests.iter();
            requests.any(|of| of.unanswered_since().is_some())
        };
        assert!(owed(&proxy), "headers are no work");
        (request.inbound).response_part(&mut proxy.filter, &request.stream);
        assert_eq!(owed(&proxy), is_owed, "{status}");
        proxy.done(&mut request);
        assert_eq!(proxy.in_use(), 0);
    }
}

/// Each request has a maximum of 90 output tokens, and outputs have ten.
#[test]
fn a_budget_learns_the_tokens_of_streams_and_follows_them() {
    let tokens = r#""tokens":{"budget":1000,"prompt":{"otherwise":10},
        "output":{"header":"x-max-tokens","otherwise":90}}"#;
    let event = "data: a\n\n";
    for (content_type, [starts, ends]) in
        [("text/event-stream", [21, 34]), ("text/plain", [100; 2])]
    {
        let mut proxy = Proxy::new(&stage(&format!("{MAX_QUEUE_LENGTH},{tokens}")));
        let headers = [("content-type", content_type)];
        for _ in 0..200 {
            let mut request = speaks_as(&mut proxy, "/", &headers, &[event; 10]);
            by_body(&mut request, &mut proxy.filter);
        }
        for (events, expected) in [(0, starts), (11, starts), (12, ends)] {
            let mut request = speaks_as(&mut proxy, "/", &headers, &vec![event; events]);
            assert_eq!(
                proxy.stat("tokens_in_use"),
                expected,
                "{content_type}, {events}"
            );
            proxy.done(&mut request);
            assert_eq!(proxy.stat("tokens_in_use"), 0);
        }
    }
}

/// A response in JSON, as OpenAI's API sends it without `stream`, may have any length. An error has
/// no output.
#[test]
fn a_budget_gives_requests_their_most_while_many_outputs_of_their_type_are_not_counted() {
    let tokens = r#""tokens":{"budget":1000,"prompt":{"otherwise":10},
        "output":{"header":"x-max-tokens","otherwise":90}}"#;
    let mut proxy = Proxy::new(&stage(&format!("{MAX_QUEUE_LENGTH},{tokens}")));
    let mut answer = |count, status, content_type, body: &[&str]| {
        for _ in 0..count {
            let mut request = proxy.forwarded(&[]);
            *request.stream.response.borrow_mut() = pairs(&[("content-type", content_type)]);
            request.answered(&mut proxy.filter, status, false);
            for part in body {
                *request.stream.body.borrow_mut() = part.as_bytes().to_vec();
                by_body(&mut request, &mut proxy.filter);
            }
        }
        let mut next = proxy.forwarded(&[]);
        let taken = proxy.stat("tokens_in_use");
        proxy.done(&mut next);
        taken
    };
    let events = "data: a\n\n".repeat(10);
    assert_eq!(answer(200, "200", "text/event-stream", &[&events]), 21);
    assert_eq!(answer(20, "404", "application/json", &["{}"]), 21);
    assert_eq!(answer(20, "200", "application/json", &["{}"]), 100);
}

/// Handles a response without a body that Envoy sends itself.
fn ends(request: &mut Request, filter: &mut Filter<MemoryHost>, details: &str) {
    request.stream.set(Property::ResponseCodeDetails, details);
    (request.inbound).response_headers(filter, &request.stream, true);
}

#[test]
fn failures_of_the_backend_are_no_measurements() {
    type End = fn(&mut Request, &mut Filter<MemoryHost>);
    const OF_CLUSTER: &str = "upstream_max_stream_duration_reached";
    let trailers: End = |request, filter| {
        request.answered(filter, "200", false);
        *request.stream.trailers.borrow_mut() = pairs(&[("grpc-status", "14")]);
        request.inbound.response_trailers(filter, &request.stream);
    };
    let alone: End = |request, filter| {
        *request.stream.response.borrow_mut() = pairs(&[("grpc-status", "14")]);
        request.answered(filter, "200", true);
    };
    // If a body follows, `grpc-status` in the headers doesn't count.
    let with_body: End = |request, filter| {
        *request.stream.response.borrow_mut() = pairs(&[("grpc-status", "14")]);
        request.answered(filter, "200", false);
        request.inbound.response_end(filter, &request.stream);
    };
    let status: End = |request, filter| request.answered(filter, "500", true);
    let reset: End = |request, filter| {
        request.answered(filter, "200", false);
        request.stream.properties.borrow_mut().clear();
        let details = "upstream_reset_after_response_started{remote_reset}";
        request.stream.set(Property::ResponseCodeDetails, details);
        request.inbound.done(filter, &request.stream);
    };
    let timeout: End = |request, filter| ends(request, filter, "upstream_response_timeout");
    let duration: End = |request, filter| ends(request, filter, "max_duration_timeout");
    // Clients that upload too slowly are no failure of the backend.
    let uploaded: End = |request, filter| {
        request.inbound.body_follows(filter);
        request.inbound.request_end(filter, &request.stream);
        ends(request, filter, "max_duration_timeout");
    };
    let upload: End = |request, filter| {
        request.inbound.body_follows(filter);
        ends(request, filter, "max_duration_timeout");
    };
    let cluster_duration: End = |request, filter| ends(request, filter, OF_CLUSTER);
    let cluster_upload: End = |request, filter| {
        request.inbound.body_follows(filter);
        ends(request, filter, OF_CLUSTER);
    };
    // A long stream that its cluster's limit ends was answered.
    let cluster_stream: End = |request, filter| {
        request.answered(filter, "200", false);
        request.stream.properties.borrow_mut().clear();
        request
            .stream
            .set(Property::ResponseCodeDetails, OF_CLUSTER);
        request.inbound.done(filter, &request.stream);
    };
    for (name, end, failed) in [
        ("trailers", trailers, 1),
        ("alone", alone, 1),
        ("with body", with_body, 0),
        ("status", status, 1),
        ("reset", reset, 1),
        ("timeout", timeout, 1),
        ("duration", duration, 1),
        ("uploaded", uploaded, 1),
        ("upload", upload, 0),
        ("cluster's duration", cluster_duration, 1),
        ("upload to the cluster", cluster_upload, 0),
        ("stream of the cluster", cluster_stream, 0),
    ] {
        let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
        let mut request = proxy.forwarded(&[]);
        end(&mut request, &mut proxy.filter);
        proxy.done(&mut request);
        assert_eq!(proxy.stat("type.default.rq_failed"), failed, "{name}");
        let completed = proxy.stat("type.default.rq_completed");
        let completes = name == "with body";
        assert_eq!(completed, u64::from(completes), "{name}");
        assert_eq!(proxy.in_use(), 0, "{name}");
    }
}

#[test]
fn a_proxy_that_fails_lets_requests_pass_and_says_so_once() {
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let mut running = proxy.forwarded(&[]);
    proxy.filter.host.inject(Fault::MetricFails, 100);
    let (first, decision) = proxy.arrive(&[]);
    assert_eq!(decision, Decision::PassBy);
    let (second, decision) = proxy.arrive(&[]);
    assert_eq!(decision, Decision::PassBy);
    assert!(!second.inbound.is_pending());
    proxy.filter.host.inject(Fault::MetricFails, 0);
    let log = first.stream.log.borrow();
    assert_eq!(log.len(), 1, "{log:?}");
    assert_eq!(log[0].0, Level::Warn);
    assert!(
        log[0].1.contains("requests pass without a decision"),
        "{log:?}"
    );
    assert!(second.stream.log.borrow().is_empty());

    // Without a clock a request is let through unmanaged, but a slot is still released.
    let stream = proxy.stream(&[]);
    stream.now.set(None);
    let mut inbound = Inbound::default();
    let decision = inbound.request_headers(&mut proxy.filter, &stream);
    assert_eq!(decision, Decision::PassBy);
    running.stream.now.set(None);
    running.answered(&mut proxy.filter, "200", true);
    assert_eq!(proxy.in_use(), 0);
    assert_eq!(proxy.stat("type.default.rq_completed"), 0);
}

#[test]
fn a_bad_configuration_keeps_the_last_good_one() {
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let stream = proxy.stream(&[]);
    let bad = stage(MAX_QUEUE_LENGTH).replace("\"parallelism\":1", "\"parallelism\":0");
    let now = Instant::default();
    let refused = proxy
        .filter
        .configure(&stream, now, (3, ""), bad.as_bytes());
    assert_eq!(refused.unwrap_err().field, "stages[0].parallelism");
    assert!(proxy.filter.is_configured());
    {
        let log = stream.log.borrow();
        assert_eq!(log[0].0, Level::Error);
        assert!(log[0].1.ends_with("; the last good one stays"), "{log:?}");
    }
    proxy.forwarded(&[]);

    let mut fresh = Filter::<_, ()>::new(MemoryHost::new(), 1);
    assert!(
        fresh
            .configure(&stream, now, (IN, ""), b"nonsense")
            .is_err()
    );
    assert!(!fresh.is_configured());
    let log = stream.log.borrow();
    assert!(!log[1].1.contains("stays"), "{log:?}");
    let mut inbound = Inbound::default();
    let decision = inbound.request_headers(&mut fresh, &stream);
    assert_eq!(decision, Decision::PassBy);
}

/// The proxy has adopted the configuration, so the filter must not continue with the previous one.
#[test]
fn a_configuration_during_which_the_host_fails_is_in_force() {
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let mut running = proxy.forwarded(&[]);
    proxy.done(&mut running);
    let other = stage(MAX_QUEUE_LENGTH).replace("ns/p", "ns/other");
    let stream = proxy.stream(&[]);
    let now = Instant::default();
    let prepared = Prepared::from_json(&proxy.filter.host, other.as_bytes());
    proxy.filter.host.inject(Fault::MetricFails, 100);
    let configured = proxy.filter.take_over(&stream, now, (3, ""), prepared);
    proxy.filter.host.inject(Fault::MetricFails, 0);
    assert_eq!(configured, Ok(()));
    let newest = proxy.filter.listeners().newest(Direction::Inbound);
    assert_eq!(newest, Some(3));
    {
        let log = stream.log.borrow();
        let warned = |(level, _): &(Level, String)| *level == Level::Warn;
        assert!(log.iter().any(warned), "{log:?}");
        assert!(
            !log.iter().any(|(_, line)| line.contains("stays")),
            "{log:?}"
        );
    }
    proxy.filter.tick(&stream);
    let (_, decision) = proxy.arrive(&[]);
    let Decision::Forward(ticket) = decision else {
        panic!("{decision:?}")
    };
    let stage = proxy.filter.engine().stage(ticket.policy).unwrap();
    assert_eq!(stage.config().policy, "ns/other");
}

#[test]
fn a_configuration_that_is_dropped_gives_way_to_the_one_before() {
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let stream = proxy.stream(&[]);
    let now = Instant::default();
    let two = stage(MAX_QUEUE_LENGTH).replace("\"parallelism\":1", "\"parallelism\":2");
    let configured = proxy
        .filter
        .configure(&stream, now, (3, ""), two.as_bytes());
    assert_eq!(configured, Ok(()));
    let mut requests = [proxy.forwarded(&[]), proxy.forwarded(&[])];
    for request in &mut requests {
        proxy.done(request);
    }
    // Removing the old configuration has no effect. Removing the new one restores the old policies.
    proxy.filter.gone(&stream, 3);
    assert_eq!(
        proxy.filter.listeners().newest(Direction::Inbound),
        Some(IN)
    );
    let mut first = proxy.forwarded(&[]);
    let mut second = proxy.held(&[]);
    proxy.done(&mut first);
    proxy.resume(&second);
    proxy.done(&mut second);

    // Without any configuration the filter leaves the process, and a new configuration finds the
    // shared state unchanged.
    proxy.filter.gone(&stream, IN);
    assert_eq!(proxy.filter.engine().worker(), None);
    let configured = proxy
        .filter
        .configure(&stream, now, (4, ""), two.as_bytes());
    assert_eq!(configured, Ok(()));
    proxy.forwarded(&[]);
    assert_eq!(proxy.stat("workers_lost"), 0);
}

/// The proxy may drop a new configuration because another part of its update fails.
#[test]
fn requests_of_a_removed_policy_wait_until_the_update_is_settled() {
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let _running = proxy.forwarded(&[]);
    let mut waits = proxy.held(&[]);
    let stream = proxy.stream(&[]);
    let other = stage(MAX_QUEUE_LENGTH).replace("ns/p", "ns/other");
    // A host call of the change fails, and the next tick continues the change.
    let configure = |proxy: &mut Proxy, id| {
        let prepared = Prepared::from_json(&proxy.filter.host, other.as_bytes());
        let now = Instant::default();
        proxy.filter.host.inject(Fault::MetricFails, 1);
        let configured = proxy.filter.take_over(&stream, now, (id, ""), prepared);
        assert_eq!(configured, Ok(()));
        proxy.filter.tick(&stream);
        assert_eq!(*proxy.filter.actions(), []);
    };
    configure(&mut proxy, 3);
    proxy.filter.gone(&stream, 3);
    proxy.filter.settle(&stream);
    assert_eq!(*proxy.filter.actions(), []);
    configure(&mut proxy, 4);
    proxy.filter.settle(&stream);
    proxy.resume(&waits);
    proxy.done(&mut waits);
}

#[test]
fn a_configuration_from_json_leaves_requests_of_a_removed_policy_waiting() {
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let _running = proxy.forwarded(&[]);
    let waits = proxy.held(&[]);
    let stream = proxy.stream(&[]);
    let other = stage(MAX_QUEUE_LENGTH).replace("ns/p", "ns/other");
    let now = Instant::default();
    let configured = (proxy.filter).configure(&stream, now, (3, ""), other.as_bytes());
    assert_eq!(configured, Ok(()));
    assert_eq!(*proxy.filter.actions(), []);
    proxy.filter.settle(&stream);
    proxy.resume(&waits);
}

/// Returns a configuration of one slot for `policy`, for requests of these routes.
fn routed(policy: &str, routes: &str) -> String {
    let stage = format!(r#""policy":"{policy}","routes":[{routes}]"#);
    self::stage(MAX_QUEUE_LENGTH).replace(r#""policy":"ns/p""#, &stage)
}

#[test]
fn listeners_with_different_policies_are_in_force_side_by_side() {
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let stream = proxy.stream(&[]);
    let now = Instant::default();
    let configure = |proxy: &mut Proxy, id, name, json: &str| {
        let configured = proxy
            .filter
            .configure(&stream, now, (id, name), json.as_bytes());
        assert_eq!(configured, Ok(()));
    };
    let arrive = |proxy: &mut Proxy, listener: &str, route: &str| {
        let mut stream = proxy.stream(&[]);
        listener.clone_into(&mut stream.listener);
        stream.set(Property::RouteName, route);
        let mut inbound = Inbound::default();
        let decision = inbound.request_headers(&mut proxy.filter, &stream);
        (Request { stream, inbound }, decision)
    };
    proxy.filter.gone(&stream, IN);
    configure(&mut proxy, 3, "a", &routed("ns/a", ""));
    let (mut of_a, decision) = arrive(&mut proxy, "a", "x");
    assert!(matches!(decision, Decision::Forward(_)), "{decision:?}");
    configure(&mut proxy, 4, "b", &routed("ns/b", r#""y""#));
    assert_eq!(*proxy.filter.actions(), []);

    // A listener's own policies decide about its requests, even if the policies of another listener
    // cover any route.
    let (mut waits, decision) = arrive(&mut proxy, "a", "y");
    assert!(matches!(decision, Decision::Hold(_)), "{decision:?}");
    let (mut of_b, decision) = arrive(&mut proxy, "b", "y");
    assert!(matches!(decision, Decision::Forward(_)), "{decision:?}");
    for (listener, route) in [("b", "x"), ("c", "y")] {
        let (_, decision) = arrive(&mut proxy, listener, route);
        assert_eq!(decision, Decision::PassBy, "{listener} {route}");
    }
    proxy.done(&mut of_a);
    proxy.resume(&waits);
    proxy.done(&mut waits);
    proxy.done(&mut of_b);

    // A policy of both listeners runs once, and each listener has its own routes.
    configure(&mut proxy, 5, "b", &routed("ns/a", r#""z""#));
    let (mut of_a, decision) = arrive(&mut proxy, "a", "x");
    assert!(matches!(decision, Decision::Forward(_)), "{decision:?}");
    let (mut waits, decision) = arrive(&mut proxy, "b", "z");
    assert!(matches!(decision, Decision::Hold(_)), "{decision:?}");
    // The edit removed this listener's policy, although the old configuration still exists.
    let (_, decision) = arrive(&mut proxy, "b", "y");
    assert_eq!(decision, Decision::PassBy);
    proxy.done(&mut of_a);
    proxy.resume(&waits);
    proxy.done(&mut waits);

    // The removal of a listener removes its policies, but not the policies of other listeners.
    proxy.filter.gone(&stream, 3);
    let (_, decision) = arrive(&mut proxy, "a", "x");
    assert_eq!(decision, Decision::PassBy);
    let (_, decision) = arrive(&mut proxy, "b", "z");
    assert!(matches!(decision, Decision::Forward(_)), "{decision:?}");
}

#[test]
fn a_refused_configuration_is_not_used_by_later_engines() {
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let stream = proxy.stream(&[]);
    let refused = proxy
        .filter
        .configure(&stream, Instant::default(), (3, ""), b"{\"stages\":0}");
    assert!(refused.is_err());
    assert_eq!(proxy.filter.listeners().last(), Some(IN));
    // If the proxy keeps the listener of a refused configuration, the last valid configuration
    // applies to that listener.
    proxy.filter.refused((3, ""), Direction::Inbound);
    proxy.filter.gone(&stream, IN);
    proxy.forwarded(&[]);
    proxy.filter.restart(&stream, 2);
    proxy.forwarded(&[]);
}

#[test]
fn clients_receive_the_rejection_rate() {
    let hint = r#""strategy":{"type":"BacklogControl","target_us":20000,"control":"Backlog",
        "cost":{"type":"Measured"},"period_us":100000,"hint":true}"#;
    let mut proxy = Proxy::new(&stage(hint));
    let mut request = proxy.forwarded(&[]);
    *request.stream.response.borrow_mut() = pairs(&[("x-headgate-rejection-rate", "0.9")]);
    request.answered(&mut proxy.filter, "200", true);
    let told = request.stream.in_response("x-headgate-rejection-rate");
    assert_eq!(told.as_deref(), Some("0"), "the backend's is another's");
}

#[test]
fn the_application_gets_the_quality_from_headgate_and_not_from_clients() {
    let mut proxy = Proxy::new(&stage(DEGRADATION));
    let forwarded = proxy.forwarded(&[("x-headgate-quality", "7")]);
    let held = proxy.held(&[]);
    for request in [forwarded, held] {
        let told = request.stream.in_request("x-headgate-quality");
        assert_eq!(told.as_deref(), Some("1.00"));
    }
}

#[test]
fn a_clients_quality_header_never_reaches_the_application() {
    let elsewhere = r#""routes":["other"]"#;
    let excluded = r#""excluded":[{"path":{"type":"Exact","value":"/"}}]"#;
    for more in [r#""mode":"DryRun""#, elsewhere, excluded] {
        let mut proxy = Proxy::new(&stage(&format!("{DEGRADATION},{more}")));
        let (request, _) = proxy.arrive(&[(":path", "/"), ("x-headgate-quality", "7")]);
        let told = request.stream.in_request("x-headgate-quality");
        assert_eq!(told, None, "{more}");
    }
    let mut proxy = Proxy::new(&stage(DEGRADATION));
    proxy.filter.host.inject(Fault::MetricFails, 100);
    let (unmanaged, decision) = proxy.arrive(&[("x-headgate-quality", "7")]);
    assert_eq!(decision, Decision::PassBy);
    assert_eq!(unmanaged.stream.in_request("x-headgate-quality"), None);
    // If no stage degrades service, the header belongs to the application.
    let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
    let request = proxy.forwarded(&[("x-headgate-quality", "7")]);
    let told = request.stream.in_request("x-headgate-quality");
    assert_eq!(told.as_deref(), Some("7"));
}
