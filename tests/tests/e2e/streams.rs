//! Tests of streams: server-sent events and gRPC server streaming. Their response headers come
//! before the backend starts to work.

use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::{BackendConfig, Fault, FaultKind, ServiceType};
use headgate_tests::http::{self, Pending};
use headgate_tests::policy;
use headgate_tests::rig::Rig;
use headgate_tests::wait::until;
use serde_json::json;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Events,
    Grpc,
}

/// Returns a proxy with one slot.
fn rig(kind: Kind, measure: &str, release_slot: Option<&str>) -> Result<Rig> {
    let mut policy = policy::queue_only(1, 10);
    policy["spec"]["measure"] = json!(measure);
    if let Some(release) = release_slot {
        policy["spec"]["releaseSlot"] = json!(release);
    }
    let backend = BackendConfig::constant(1_000, Duration::from_millis(1));
    let builder = Rig::builder(backend, policy);
    match kind {
        Kind::Events => builder.start(),
        Kind::Grpc => builder.bootstrap_argument("--upstream-http2").start(),
    }
}

/// Starts a stream of two parts and returns it once its headers have arrived. The backend works on
/// the first part until the test releases it, and then on the second part.
fn stream(rig: &Rig, kind: Kind) -> Result<Pending> {
    rig.backend
        .inject(Fault::new(FaultKind::Hang, "/stream", 2));
    let (method, content) = match kind {
        Kind::Events => ("GET", ("accept", "text/event-stream")),
        Kind::Grpc => ("POST", ("content-type", "application/grpc")),
    };
    let body = (kind == Kind::Grpc).then_some("");
    let mut stream = http::send(rig.addr(), method, "/stream?stream=2", &[content], body)?;
    assert_eq!(stream.head()?.0, 200);
    works_on(rig, 1)?;
    Ok(stream)
}

/// Waits until the backend works on this part of the stream, and on nothing else.
fn works_on(rig: &Rig, part: u64) -> Result<()> {
    until("work on a part of the stream", || {
        let stats = rig.backend.stats();
        match (stats.busy, stats.faults) {
            (1, faults) if faults == part => Ok(()),
            _ => Err(format!("{stats:?}")),
        }
    })
}

/// Lets the backend end the first part. Waits until the part has arrived and the backend works on
/// the second part.
fn first_part(rig: &Rig, stream: &mut Pending) -> Result<()> {
    assert_eq!(rig.backend.release(), 1);
    // This line is the size of a chunk.
    stream.read_line()?;
    works_on(rig, 2)
}

#[test]
fn streams_hold_their_slot_to_the_last_byte() -> Result<()> {
    for kind in [Kind::Events, Kind::Grpc] {
        for (measure, measured) in [("FirstByte", 1), ("LastByte", 0)] {
            let rig = rig(kind, measure, None)?;
            let mut stream = stream(&rig, kind)?;
            let waiting = rig.enqueue("/next", 1)?;
            first_part(&rig, &mut stream)?;
            // The stream counts at the first byte of its body or only at its end, depending on
            // `measure`.
            rig.wait_for_stat("type.default.rq_completed", measured)?;
            assert_eq!(rig.policy_stat("slots_in_use")?, 1, "{kind:?} {measure}");
            assert_eq!(rig.policy_stat("queue_length")?, 1, "{kind:?} {measure}");
            assert_eq!(rig.backend.release(), 1);
            for request in waiting {
                assert_eq!(request.answer()?.status, 200);
            }
            rig.wait_for_stat("type.default.rq_completed", 2)?;
            rig.wait_until_idle()?;
        }
    }
    Ok(())
}

#[test]
fn a_stream_whose_client_leaves_frees_its_slot() -> Result<()> {
    for kind in [Kind::Events, Kind::Grpc] {
        let rig = rig(kind, "FirstByte", None)?;
        let mut stream = stream(&rig, kind)?;
        let waiting = rig.enqueue("/next", 1)?;
        first_part(&rig, &mut stream)?;
        stream.hang_up();
        for request in waiting {
            assert_eq!(request.answer()?.status, 200);
        }
        rig.wait_for_stat("type.default.rq_completed", 2)?;
        rig.wait_until_idle()?;
    }
    Ok(())
}

#[test]
fn slots_are_free_at_the_first_byte_where_the_policy_says_so() -> Result<()> {
    for kind in [Kind::Events, Kind::Grpc] {
        let rig = rig(kind, "FirstByte", Some("FirstByte"))?;
        let mut stream = stream(&rig, kind)?;
        let waiting = rig.enqueue("/next", 1)?;
        first_part(&rig, &mut stream)?;
        for request in waiting {
            let answer = request.answer()?;
            assert_eq!(answer.status, 200, "the stream goes on");
        }
        assert_eq!(rig.backend.stats().busy, 1);
        rig.backend.release();
        rig.wait_for_stat("type.default.rq_completed", 2)?;
        rig.wait_until_idle()?;
    }
    Ok(())
}

/// Returns a proxy with a type of streams and a type of whole responses. Every response meets the
/// objectives for response times. Each part takes 20 ms, so a response of several parts always
/// misses the median objective for tokens.
fn with_tokens() -> Result<Rig> {
    let kind = |name: &str, field: &str| {
        json!({
            "name": name,
            "matches": [{"path": {"value": format!("/{name}")}}],
            field: {"p90": "1h"},
            "tpot": {"p50": "1ms", "p90": "1h"},
        })
    };
    let default = json!({"name": "default", "slo": {"p90": "1h"}});
    let types = [kind("chat", "ttft"), kind("whole", "slo"), default];
    let part = |path| ServiceType::constant(path, Duration::from_millis(20));
    let backend = BackendConfig::new(1_000, vec![part("/")]);
    Rig::builder(backend, policy::policy(4, &types)).start()
}

/// Waits until the counters of a type have these values: measured responses, responses within the
/// objective for their time, and responses within the objectives for tokens at p90 and at p50.
fn met(rig: &Rig, kind: &str, expected: [u64; 4]) -> Result<()> {
    let met = |of: &str| format!("type.{kind}.rq_slo_met.objective.{of}");
    let completed = format!("type.{kind}.rq_completed");
    let stats = [completed, met("p90"), met("tpot_p90"), met("tpot_p50")];
    for (stat, expected) in stats.iter().zip(expected) {
        rig.wait_for_stat(stat, expected)?;
    }
    Ok(())
}

#[test]
fn times_per_token_and_to_the_first_one_have_objectives_of_their_own() -> Result<()> {
    let rig = with_tokens()?;
    let stream = |path: &str, parts: u64| -> Result<()> {
        let answer = http::get(rig.addr(), &format!("{path}?stream={parts}"))?;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.body.matches("data:").count() as u64, parts);
        Ok(())
    };
    // A response of one token has no time per token, so it meets any objective.
    stream("/chat", 1)?;
    met(&rig, "chat", [1, 1, 1, 1])?;
    stream("/chat", 3)?;
    met(&rig, "chat", [2, 2, 2, 1])?;
    stream("/whole", 3)?;
    met(&rig, "whole", [1, 1, 1, 0])?;
    Ok(())
}

#[test]
fn types_of_one_policy_are_measured_to_different_bytes() -> Result<()> {
    let rig = with_tokens()?;
    for (at, (path, measured)) in [("/chat", [1, 1, 0, 0]), ("/whole", [0; 4])]
        .iter()
        .enumerate()
    {
        rig.backend.inject(Fault::new(FaultKind::Hang, path, 2));
        let target = format!("{path}?stream=2");
        let mut stream = http::send(rig.addr(), "GET", &target, &[], None)?;
        assert_eq!(stream.head()?.0, 200);
        works_on(&rig, 2 * at as u64 + 1)?;
        assert_eq!(rig.backend.release(), 1);
        stream.read_line()?;
        works_on(&rig, 2 * at as u64 + 2)?;
        let kind = &path[1..];
        met(&rig, kind, *measured)?;
        rig.wait_for_stat("slots_in_use", 1)?;
        assert_eq!(rig.backend.release(), 1);
        rig.wait_until_idle()?;
        met(&rig, kind, [1, 1, 1, 0])?;
    }
    Ok(())
}
