//! Tests of uploads. With `headgate bootstrap --buffer-requests`, requests of clients that upload
//! slowly hold no slot during the upload.

use std::time::{Duration, Instant};

use anyhow::Result;
use headgate_tests::backend::BackendConfig;
use headgate_tests::http::{self, Pending};
use headgate_tests::load::{self, Clients, LoadSpec, Protocol, RequestType};
use headgate_tests::policy;
use headgate_tests::rig::{Rig, RigBuilder};
use headgate_tests::wait::until;

/// Returns a rig with one slot and a queue of `max_length`. Without a queue, a request passes only
/// if the slot is free.
fn one_slot(max_length: usize) -> RigBuilder {
    let backend = BackendConfig::constant(10, Duration::from_millis(1));
    Rig::builder(backend, policy::queue_only(1, max_length))
}

/// Sends the headers of an upload and the first of its four bytes, and waits until Envoy has the
/// headers. Envoy has `others` requests besides.
fn begin_upload(rig: &Rig, others: u64) -> Result<Pending> {
    let mut upload = http::send(
        rig.addr(),
        "POST",
        "/upload",
        &[("content-length", "4")],
        None,
    )?;
    upload.write("a")?;
    until("the upload in Envoy", || {
        match rig.envoy.stat("http.ingress.downstream_rq_active") {
            Ok(active) if active == others + 1 => Ok(()),
            other => Err(format!("{other:?} active requests")),
        }
    })?;
    Ok(upload)
}

/// Waits until Envoy uses less than a fifth of a core for a second.
fn wait_until_calm(rig: &Rig) -> Result<()> {
    let mut last = (Instant::now(), rig.envoy.cpu_time()?);
    until("Envoy to be calm", || {
        let (since, before) = last;
        let elapsed = since.elapsed();
        if elapsed < Duration::from_secs(1) {
            return Err("not observed yet".to_owned());
        }
        let now = rig.envoy.cpu_time().map_err(|e| e.to_string())?;
        last = (Instant::now(), now);
        match now - before {
            used if 5 * used < elapsed => Ok(()),
            used => Err(format!("{used:?} of CPU time in {elapsed:?}")),
        }
    })
}

#[test]
fn an_upload_holds_a_slot_from_its_headers_on() -> Result<()> {
    let rig = one_slot(0).start()?;
    let mut upload = begin_upload(&rig, 0)?;
    rig.wait_for_stat("slots_in_use", 1)?;
    assert_eq!(rig.get("/")?.refusal_reason(), Some("queue_full"));
    upload.write("bcd")?;
    assert_eq!(upload.answer()?.status, 200);
    Ok(())
}

#[test]
fn an_upload_that_envoy_collects_first_holds_none() -> Result<()> {
    let rig = one_slot(0)
        .bootstrap_argument("--buffer-requests=1000")
        .start()?;
    let mut upload = begin_upload(&rig, 0)?;
    assert_eq!(rig.get("/")?.status, 200);
    rig.wait_for_stat("slots_in_use", 0)?;
    upload.write("bcd")?;
    assert_eq!(upload.answer()?.status, 200);
    let large = http::post(rig.addr(), "/upload", &"a".repeat(1_001))?;
    assert_eq!(large.status, 413);
    Ok(())
}

#[test]
fn an_upload_that_stalls_ends() -> Result<()> {
    let rig = one_slot(0)
        // The timeout is long enough that the test first sees the upload in Envoy.
        .bootstrap_argument("--request-timeout=2s")
        .start()?;
    let upload = begin_upload(&rig, 0)?;
    assert_eq!(upload.answer()?.status, 408);
    rig.wait_until_idle()?;
    assert_eq!(rig.get("/")?.status, 200);
    Ok(())
}

/// Once Envoy has answered a waiting request, the filter must not try to start it any more.
#[test]
fn an_upload_that_stalls_while_it_waits_is_forgotten() -> Result<()> {
    let rig = one_slot(1)
        .bootstrap_argument("--request-timeout=2s")
        .start()?;
    let running = rig.occupy("/", 1)?;
    let upload = begin_upload(&rig, 1)?;
    assert_eq!(upload.answer()?.status, 408);
    rig.wait_for_stat("queue_length", 0)?;
    wait_until_calm(&rig)?;
    rig.backend.release();
    for request in running {
        assert_eq!(request.answer()?.status, 200);
    }
    rig.wait_until_idle()
}

/// Envoy doesn't return the windows of a paused request that exceeds its buffer. The connection's
/// window must suffice for the uploads that wait and for the upload that has the slot.
#[test]
fn uploads_that_wait_leave_the_connection_to_the_one_that_is_served() -> Result<()> {
    let count = 10;
    let rig = one_slot(count).start()?;
    let mut upload = RequestType::get("upload", "/");
    (upload.method, upload.body) = ("POST".to_owned(), "x".repeat(600_000));
    let mut spec = LoadSpec::new(rig.addr(), vec![upload], 0.0, Duration::ZERO);
    (spec.protocol, spec.connections) = (Protocol::Http2, 1);
    spec.clients.push(Clients {
        count,
        from: Duration::ZERO,
        until: Duration::from_millis(500),
        // Each client sends only once.
        think: Duration::from_secs(1),
    });
    let report = load::run(spec)?;
    let total = &report.total;
    assert_eq!((total.ok, total.unanswered), (count as u64, 0), "{total:?}");
    rig.wait_until_idle()
}
