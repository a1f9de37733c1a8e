//! Tests of clients that upload slowly: with `headgate bootstrap --buffer-requests`, their requests
//! hold no slot during the upload.

use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::BackendConfig;
use headgate_tests::http::{self, Pending};
use headgate_tests::policy;
use headgate_tests::rig::{Rig, RigBuilder};
use headgate_tests::wait::until;

/// Returns a rig with one slot and no queue. A request passes only if the slot is free.
fn one_slot() -> RigBuilder {
    let backend = BackendConfig::constant(10, Duration::from_millis(1));
    Rig::builder(backend, policy::queue_only(1, 0))
}

/// Sends the headers of an upload and the first of its four bytes, and waits until Envoy has the
/// headers.
fn begin_upload(rig: &Rig) -> Result<Pending> {
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
            Ok(1) => Ok(()),
            other => Err(format!("{other:?} active requests")),
        }
    })?;
    Ok(upload)
}

#[test]
fn an_upload_holds_a_slot_from_its_headers_on() -> Result<()> {
    let rig = one_slot().start()?;
    let mut upload = begin_upload(&rig)?;
    rig.wait_for_stat("slots_in_use", 1)?;
    assert_eq!(rig.get("/")?.refusal_reason(), Some("queue_full"));
    upload.write("bcd")?;
    assert_eq!(upload.answer()?.status, 200);
    Ok(())
}

#[test]
fn an_upload_that_envoy_collects_first_holds_none() -> Result<()> {
    let rig = one_slot()
        .bootstrap_argument("--buffer-requests=1000")
        .start()?;
    let mut upload = begin_upload(&rig)?;
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
    let rig = one_slot()
        // The timeout is long enough that the test first sees the upload in Envoy.
        .bootstrap_argument("--request-timeout=2s")
        .start()?;
    let upload = begin_upload(&rig)?;
    assert_eq!(upload.answer()?.status, 408);
    rig.wait_until_idle()?;
    assert_eq!(rig.get("/")?.status, 200);
    Ok(())
}
