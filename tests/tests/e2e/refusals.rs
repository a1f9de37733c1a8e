//! Tests of the response to a refused request, and of requests that are never held, refused or
//! measured.

use std::time::Duration;

use anyhow::{Context as _, Result};
use headgate_tests::backend::BackendConfig;
use headgate_tests::docs::commands::page;
use headgate_tests::http::{self, Answer, Pending};
use headgate_tests::load::{self, LoadSpec, Protocol, RequestType};
use headgate_tests::policy;
use headgate_tests::rig::{Rig, RigBuilder};
use headgate_tests::wait::until;
use serde_json::{Value, json};

fn builder(policy: Value) -> RigBuilder {
    let backend = BackendConfig::constant(1_000, Duration::from_millis(1));
    Rig::builder(backend, policy).change(|bootstrap| {
        bootstrap
            .log_access("%REQ(:PATH)% %RESPONSE_CODE% %RESPONSE_CODE_DETAILS% %RESPONSE_FLAGS%")
    })
}

fn rig(policy: Value) -> Result<Rig> {
    builder(policy).start()
}

/// Returns the line of the access log for `path`.
fn access(rig: &Rig, path: &str) -> Result<String> {
    let start = format!("ACCESS {path} ");
    until("the access log", || {
        let output = rig.envoy.output();
        output
            .lines()
            .find_map(|l| l.strip_prefix(&start))
            .map(str::to_owned)
            .ok_or_else(|| "no line yet".to_owned())
    })
}

fn assert_refusal(answer: &Answer, reason: &str) {
    let expected = format!("policy={}; type=default; reason={reason}", policy::NAME);
    assert_eq!(answer.header("x-headgate-refused"), Some(expected.as_str()));
    assert_eq!(answer.header("x-envoy-ratelimited"), Some("true"));
    let number = |name: &str| answer.header(name).and_then(|v| v.parse::<u64>().ok());
    assert!(number("retry-after") >= Some(1), "{answer:?}");
    assert!(number("grpc-retry-pushback-ms") >= Some(1), "{answer:?}");
}

#[test]
fn a_refusal_says_which_policy_type_and_reason() -> Result<()> {
    let rig = rig(policy::queue_only(1, 1))?;
    let held = rig.occupy("/held", 1)?;
    let waiting = rig.enqueue("/waiting", 1)?;

    let http = rig.get("/http")?;
    assert_eq!(http.status, 503);
    assert_refusal(&http, "queue_full");
    assert!(http.body.contains("queue is full"), "{}", http.body);
    let line = access(&rig, "/http")?;
    assert!(
        line.starts_with("503 ") && line.contains("headgate_refused{queue_full}"),
        "{line}"
    );

    let grpc = http::send(
        rig.addr(),
        "POST",
        "/grpc",
        &[("content-type", "application/grpc")],
        Some(""),
    )?
    .answer()?;
    assert_eq!(
        (grpc.status, grpc.header("grpc-status")),
        (200, Some("14")),
        "{grpc:?}"
    );
    assert!(
        grpc.header("grpc-message")
            .is_some_and(|m| m.contains("queue")),
        "{grpc:?}"
    );
    assert_refusal(&grpc, "queue_full");
    assert!(access(&rig, "/grpc")?.contains("headgate_refused{queue_full}"));

    rig.wait_for_stat("type.default.rq_rejected.reason.queue_full", 2)?;
    rig.wait_for_stat("type.default.rq_rejected_enforced", 2)?;
    assert_eq!(
        rig.backend.stats().received,
        1,
        "a refused request never reaches the backend"
    );
    rig.backend.release();
    for request in held.into_iter().chain(waiting) {
        assert_eq!(request.answer()?.status, 200);
    }
    rig.wait_until_idle()
}

/// Sends three requests. The request to `/held` is admitted at once, the request to `/waiting`
/// waits for it, and the request to `/refused` finds the queue full. The policy has one slot and
/// one place in the queue.
pub(crate) fn one_of_each(rig: &Rig) -> Result<()> {
    let held = rig.occupy("/held", 1)?;
    let waiting = rig.enqueue("/waiting", 1)?;
    assert_eq!(rig.get("/refused")?.status, 503);
    rig.backend.release();
    for request in held.into_iter().chain(waiting) {
        assert_eq!(request.answer()?.status, 200);
    }
    Ok(())
}

#[test]
fn the_access_log_of_the_page_has_what_refusals_say() -> Result<()> {
    let page = page("docs/src/tasks/refusal.md")?;
    let mut blocks = page.blocks.iter();
    let shown = blocks.find(|block| block.text.starts_with("access_log:"));
    let shown: Value = serde_saphyr::from_str(&shown.context("no access log")?.text)?;
    let rig = builder(policy::queue_only(1, 1))
        .change(move |bootstrap| {
            bootstrap.manager()?["access_log"] = shown["access_log"].clone();
            Ok(())
        })
        .start()?;
    one_of_each(&rig)?;
    let line = |path: &str| {
        until("the access log", || {
            let output = rig.envoy.output();
            let mut lines = output
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines
                .find(|line| line["path"] == path)
                .ok_or_else(|| output.clone())
        })
    };
    assert_eq!(
        line("/refused")?,
        json!({
            "path": "/refused",
            "status": 503,
            "details": "headgate_refused{queue_full}",
            "refused": format!("policy={}; type=default; reason=queue_full", policy::NAME),
            "first_byte_ms": null,
            "backend_ms": null,
        })
    );
    let admitted = line("/waiting")?;
    assert!(admitted["refused"].is_null(), "{admitted}");
    assert!(admitted["first_byte_ms"].is_u64(), "{admitted}");
    let backend = admitted["backend_ms"].as_str().map(str::parse::<u64>);
    assert!(matches!(backend, Some(Ok(_))), "{admitted}");
    rig.wait_until_idle()
}

#[test]
fn a_request_waits_no_longer_than_the_queues_timeout() -> Result<()> {
    let mut policy = policy::queue_only(1, 10);
    policy["spec"]["queue"]["timeout"] = json!("200ms");
    let rig = rig(policy)?;
    let _held = rig.occupy("/held", 1)?;
    let answer = rig.get("/late")?;
    assert_eq!(answer.status, 503);
    assert_refusal(&answer, "queue_timeout");
    assert!(access(&rig, "/late")?.contains("headgate_refused{queue_timeout}"));
    rig.backend.release();
    rig.wait_until_idle()
}

/// A request whose queue timeout has passed is refused at a tick, or in the callback of another
/// request whose end frees a slot. Proxy-wasm took such a refusal for a reply to the other request,
/// and held the last bytes of that request forever.
#[test]
fn answers_arrive_while_others_run_out_of_time() -> Result<()> {
    let mut policy = policy::queue_only(1, 100);
    policy["spec"]["queue"]["timeout"] = json!("20ms");
    let rig = rig(policy)?;
    let clients = 8;
    let ends = std::thread::scope(|scope| -> Result<Vec<u16>> {
        let client = || -> Result<Vec<u16>> {
            let work = [("x-backend-service-us", "4000")];
            let answer = |_| Ok(http::get_with(rig.addr(), "/", &work)?.status);
            (0..150).map(answer).collect()
        };
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        let mut ends = Vec::new();
        for client in clients {
            let of_client = client.join();
            ends.extend(of_client.map_err(|_| anyhow::anyhow!("a client died"))??);
        }
        Ok(ends)
    })?;
    let count = |status| ends.iter().filter(|end| **end == status).count();
    assert_eq!(count(200) + count(503), ends.len());
    assert!(count(200) > 0 && count(503) > 0, "{} answers", count(200));
    // Clients leave once they have all bytes, so no request may be in progress at that time.
    let held = rig.envoy.stats_under("http.")?;
    let held = held
        .iter()
        .filter(|(name, _)| name.ends_with("destroy_remote_active_rq"));
    assert_eq!(held.map(|(_, count)| count).sum::<u64>(), 0);
    rig.wait_until_idle()
}

#[test]
fn a_request_waits_no_longer_than_its_own_deadline() -> Result<()> {
    let rig = rig(policy::queue_only(1, 10))?;
    let _held = rig.occupy("/held", 1)?;
    let http = http::get_with(rig.addr(), "/own", &[("x-headgate-timeout-ms", "100")])?;
    assert_eq!(http.status, 504);
    assert_refusal(&http, "deadline");
    let headers = [
        ("content-type", "application/grpc"),
        ("grpc-timeout", "100m"),
    ];
    let grpc = http::send(rig.addr(), "POST", "/grpc", &headers, Some(""))?.answer()?;
    assert_eq!(
        (grpc.status, grpc.header("grpc-status")),
        (200, Some("4")),
        "{grpc:?}"
    );
    assert_refusal(&grpc, "deadline");
    rig.wait_for_stat("type.default.rq_rejected.reason.deadline", 2)?;
    rig.backend.release();
    rig.wait_until_idle()
}

#[test]
fn a_request_that_cannot_meet_its_deadline_is_refused_though_slots_are_free() -> Result<()> {
    const SLOW: (&str, &str) = ("x-backend-service-us", "100000");
    const TOLD: (&str, &str) = ("x-headgate-timeout-ms", "20");
    const KNOWN: (&str, &str) = ("x-tenant", "hasty");
    let mut policy = policy::queue_only(10, 10);
    policy["spec"]["workflows"] = json!({
        "identifyBy": [{"type": "Header", "header": {"name": "x-tenant"}}],
        "named": [{"name": "hasty", "deadline": "20ms"}],
    });
    let rig = rig(policy)?;
    let answers = |headers: &[(&str, &str)], count: usize| -> Result<Vec<Answer>> {
        let send = |_| http::send(rig.addr(), "GET", "/", headers, None);
        let sent: Vec<Pending> = (0..count).map(send).collect::<Result<_>>()?;
        sent.into_iter().map(Pending::answer).collect()
    };
    let reasons = |headers: &[(&str, &str)]| -> Result<Vec<Option<String>>, String> {
        let answers = answers(headers, 10).map_err(|e| e.to_string())?;
        let reason = |answer: &Answer| answer.refusal_reason().map(str::to_owned);
        Ok(answers.iter().map(reason).collect())
    };
    let late = Some("deadline".to_owned());
    // While the service time is unknown, all requests are admitted.
    assert_eq!(reasons(&[SLOW, TOLD]), Ok(vec![None; 10]));
    for short in [TOLD, KNOWN] {
        until("requests without the time to be refused", || {
            let reasons = reasons(&[SLOW, short])?;
            // Of ten requests at once, two need not wait long for the rate that the slots allow
            // their workflow.
            match reasons.iter().filter(|reason| **reason == late).count() {
                8.. => Ok(()),
                _ => Err(format!("{reasons:?}")),
            }
        })?;
    }
    until("refusals to be counted", || {
        match rig.policy_stat("workflow.hasty.rq_deadline") {
            Ok(8..) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    let answer = answers(&[SLOW, TOLD], 10)?;
    let refused = answer.iter().find(|answer| answer.status == 504);
    let said = refused.and_then(|answer| answer.header("x-headgate-refused"));
    let by_rate = "policy=default/search; type=default; by=rate; reason=deadline";
    assert_eq!(said, Some(by_rate));
    assert_eq!(
        reasons(&[SLOW, ("x-headgate-timeout-ms", "5000")]),
        Ok(vec![None; 10])
    );
    until("requests to be let in that have the time now", || {
        let reasons = reasons(&[TOLD])?;
        match reasons.iter().all(Option::is_none) {
            true => Ok(()),
            false => Err(format!("{reasons:?}")),
        }
    })?;
    rig.wait_until_idle()
}

#[test]
fn dry_run_decides_and_counts_but_refuses_and_holds_nothing() -> Result<()> {
    let mut policy = policy::queue_only(1, 2);
    policy["spec"]["mode"] = json!("DryRun");
    let rig = rig(policy)?;
    let all = rig.occupy("/", 20)?;
    assert_eq!(rig.backend.stats().busy, 20);
    rig.wait_for_stat("type.default.rq_total", 20)?;
    rig.backend.release();
    let assert_passed = |pending: Pending| -> Result<()> {
        let answer = pending.answer()?;
        let refused = answer.header("x-headgate-refused");
        assert_eq!((answer.status, refused), (200, None));
        Ok(())
    };
    all.into_iter().try_for_each(assert_passed)?;
    // The queue of a dry run is modelled from processing times, so decisions begin once these times
    // are known.
    until("requests that would be refused", || {
        let service = [("x-backend-service-us", "100000")];
        let batch = (0..20).map(|_| http::send(rig.addr(), "GET", "/", &service, None));
        let batch = batch.collect::<Result<Vec<_>>>();
        let passed = batch.and_then(|batch| batch.into_iter().try_for_each(assert_passed));
        passed.map_err(|e| e.to_string())?;
        match rig.policy_stat("type.default.rq_rejected.reason.queue_full") {
            Ok(0) => Err("none".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    })?;
    assert_eq!(rig.policy_stat("type.default.rq_rejected_enforced")?, 0);
    rig.wait_until_idle()
}

#[test]
fn observe_refuses_but_holds_nothing() -> Result<()> {
    let mut policy = policy::queue_only(2, 5);
    policy["spec"]["queue"]["mode"] = json!("Observe");
    let rig = rig(policy)?;
    // The backend has all seven requests: two count as in service, and five count as queued.
    let all = rig.occupy("/", 7)?;
    rig.wait_for_stat("slots_in_use", 2)?;
    rig.wait_for_stat("queue_length", 5)?;
    let answer = rig.get("/one-too-many")?;
    assert_eq!(answer.status, 503);
    assert_refusal(&answer, "queue_full");
    rig.backend.release();
    for request in all {
        assert_eq!(request.answer()?.status, 200);
    }
    rig.wait_until_idle()
}

/// A request that finds the queue full, and a request that waits for too long, continue on another
/// route.
#[test]
fn refused_requests_go_on_to_another_route() -> Result<()> {
    for (timeout, queued) in [("60s", 1), ("50ms", 0)] {
        let mut policy = policy::queue_only(1, 1);
        policy["spec"]["queue"]["timeout"] = json!(timeout);
        policy["spec"]["types"][0]["onRefusal"] =
            json!({"set": [{"name": "X-Model", "value": "small"}]});
        let rig = builder(policy)
            .change(|bootstrap| {
                let mut small = bootstrap.routes()?[0].clone();
                small["match"]["headers"] =
                    json!([{"name": "x-model", "string_match": {"exact": "small"}}]);
                small["response_headers_to_add"] =
                    json!([{"header": {"key": "x-route", "value": "small"}}]);
                bootstrap.routes()?.insert(0, small);
                Ok(())
            })
            .start()?;
        let post = |path: &str| {
            let model = [("x-model", "large")];
            http::send(rig.addr(), "POST", path, &model, Some("a prompt"))?.answer()
        };
        let admitted = post("/admitted")?;
        assert_eq!((admitted.status, admitted.header("x-route")), (200, None));
        let held = rig.occupy("/held", 1)?;
        let waiting = rig.enqueue("/waiting", queued)?;
        let diverted = post("/diverted")?;
        assert_eq!(diverted.status, 200, "{diverted:?}");
        assert_eq!(diverted.header("x-route"), Some("small"));
        assert_eq!(diverted.header("x-headgate-refused"), None);
        assert_eq!(diverted.body, "a prompt");
        assert_eq!(rig.policy_stat("slots_in_use")?, 1, "it had no slot");
        rig.wait_for_stat("type.default.rq_diverted", 1)?;
        rig.wait_for_stat("type.default.rq_rejected_enforced", 1)?;
        rig.backend.release();
        for request in held.into_iter().chain(waiting) {
            assert_eq!(request.answer()?.status, 200);
        }
        rig.wait_for_stat("type.default.rq_completed", 2 + queued as u64)?;
        rig.wait_until_idle()?;
    }
    Ok(())
}

/// A request for an upgrade needs a slot like any other. Otherwise, any client could bypass
/// admission with an upgrade header.
#[test]
fn upgrades_wait_for_a_slot_until_the_backend_switches() -> Result<()> {
    let rig = rig(policy::queue_only(1, 1))?;
    let held = rig.occupy("/held", 1)?;
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    let mut socket = http::send(rig.addr(), "GET", "/socket", &upgrade, None)?;
    rig.wait_for_stat("queue_length", 1)?;
    assert_eq!(rig.backend.stats().upgrades, 0, "it waits");
    rig.backend.release();
    for request in held {
        assert_eq!(request.answer()?.status, 200);
    }
    assert_eq!(socket.head()?.0, 101);
    rig.wait_for_stat("slots_in_use", 0)?;
    socket.write("ping\n")?;
    assert_eq!(socket.read_line()?, "ping");
    rig.wait_for_stat("type.default.rq_completed", 2)?;
    assert_eq!(rig.policy_stat("rq_excluded")?, 0);
    socket.hang_up();
    rig.wait_until_idle()
}

#[test]
fn excluded_requests_pass_a_full_stage() -> Result<()> {
    let mut policy = policy::queue_only(1, 1);
    policy["spec"]["exclude"] = json!([{"path": {"type": "Exact", "value": "/healthz"}}]);
    let rig = rig(policy)?;
    let held = rig.occupy("/held", 1)?;
    for _ in 0..5 {
        assert_eq!(rig.get("/healthz")?.status, 200);
    }
    rig.wait_for_stat("rq_excluded", 5)?;
    rig.backend.release();
    for request in held {
        request.answer()?;
    }
    rig.wait_for_stat("type.default.rq_completed", 1)?;
    assert_eq!(
        rig.policy_stat("type.default.rq_total")?,
        1,
        "a health check is no request of the stage"
    );
    rig.wait_until_idle()
}

#[test]
fn local_replies_are_not_measured() -> Result<()> {
    let rig = builder(policy::queue_only(1, 10))
        .change(|bootstrap| {
            let local = json!({"match": {"prefix": "/local"}, "direct_response": {"status": 200}});
            bootstrap.routes()?.insert(0, local);
            Ok(())
        })
        .start()?;
    for _ in 0..10 {
        assert_eq!(rig.get("/local")?.status, 200);
    }
    rig.wait_for_stat("type.default.rq_unmeasured", 10)?;
    assert_eq!(rig.policy_stat("type.default.rq_completed")?, 0);
    assert_eq!(rig.get("/real")?.status, 200);
    rig.wait_for_stat("type.default.rq_completed", 1)?;
    rig.wait_until_idle()
}

/// The body is larger than Envoy's buffer, so the client is held back until the request has its
/// slot.
#[test]
fn a_queued_request_keeps_its_body() -> Result<()> {
    let rig = rig(policy::queue_only(1, 10))?;
    let held = rig.occupy("/held", 1)?;
    let body = "x".repeat(5_000_000);
    std::thread::scope(|scope| -> Result<()> {
        let posted =
            scope.spawn(|| http::send(rig.addr(), "POST", "/body", &[], Some(&body))?.answer());
        rig.wait_for_stat("queue_length", 1)?;
        rig.backend.release();
        let answer = posted.join().expect("the client doesn't panic")?;
        assert_eq!(answer.status, 200);
        assert!(answer.body == body, "{} bytes came back", answer.body.len());
        Ok(())
    })?;
    for request in held {
        request.answer()?;
    }
    rig.wait_until_idle()
}

#[test]
fn answers_without_a_body_end_at_their_headers() -> Result<()> {
    let rig = rig(policy::queue_only(1, 10))?;
    for _ in 0..3 {
        assert_eq!(
            http::send(rig.addr(), "HEAD", "/", &[], None)?
                .answer()?
                .status,
            200
        );
    }
    rig.wait_for_stat("type.default.rq_completed", 3)?;
    rig.wait_until_idle()
}

/// gRPC uses HTTP/2 on both sides, and its responses end with trailers.
#[test]
fn grpc_answers_end_at_their_trailers() -> Result<()> {
    let rig = builder(policy::queue_only(4, 500))
        .bootstrap_argument("--upstream-http2")
        .start()?;
    let mut call = RequestType::get("call", "/search.v1.Search/Query")
        .header("content-type", "application/grpc");
    call.method = "POST".to_owned();
    let mut spec = LoadSpec::new(rig.addr(), vec![call], 300.0, Duration::from_secs(1));
    (spec.protocol, spec.connections) = (Protocol::Http2, 4);
    let report = load::run(spec)?;
    assert_eq!(
        report.total.ok, report.total.offered,
        "{:?}",
        report.total.status
    );
    rig.wait_for_stat("type.default.rq_completed", report.total.ok)?;
    rig.wait_until_idle()
}
