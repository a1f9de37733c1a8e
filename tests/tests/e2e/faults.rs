//! Tests that a crash of any part leaves no slot taken and no request queued. Each test waits until
//! both counts are zero.

use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::{BackendConfig, Fault, FaultKind};
use headgate_tests::load::{self, LoadSpec, Protocol, RequestType};
use headgate_tests::rig::{Rig, RigBuilder};
use headgate_tests::skip::skip;
use headgate_tests::wait::{until, wait_until};
use headgate_tests::{headgate, http, policy};
use serde_json::{Value, json};

/// Returns a rig whose backend has more workers than the policy has slots, so that only Headgate
/// limits concurrency.
fn rig(slots: usize, max_length: usize) -> RigBuilder {
    let backend = BackendConfig::constant(4_096, Duration::from_millis(2));
    Rig::builder(backend, policy::queue_only(slots, max_length))
}

fn answers(pending: Vec<http::Pending>) -> Result<Vec<u16>> {
    pending
        .into_iter()
        .map(|request| Ok(request.answer()?.status))
        .collect()
}

/// Checks that the limit is enforced: `slots` requests take all slots, one more waits, and all are
/// answered.
pub(crate) fn assert_enforced(rig: &Rig, slots: usize) -> Result<()> {
    let held = rig.occupy("/enforced", slots)?;
    let waiting = rig.enqueue("/enforced", 1)?;
    assert_eq!(rig.policy_stat("slots_in_use")?, slots as u64);
    rig.backend.release();
    assert_eq!(answers(held)?, vec![200; slots]);
    assert_eq!(answers(waiting)?, [200]);
    rig.wait_until_idle()
}

#[test]
fn a_thousand_clients_leave_the_queue() -> Result<()> {
    for threads in [1, 4] {
        let rig = rig(8, 2_000).concurrency(threads).start()?;
        let held = rig.occupy("/", 8)?;
        let waiting = rig.enqueue("/", 1_000)?;
        waiting.into_iter().for_each(http::Pending::hang_up);
        rig.wait_for_stat("queue_length", 0)?;
        rig.wait_for_stat("type.default.rq_abandoned", 1_000)?;
        assert_eq!(rig.policy_stat("slots_in_use")?, 8);
        assert_eq!(
            rig.backend.stats().received,
            8,
            "nobody who left reached the backend"
        );
        rig.backend.release();
        assert_eq!(answers(held)?, [200; 8]);
        rig.wait_until_idle()?;
        assert_enforced(&rig, 8)?;
    }
    Ok(())
}

#[test]
fn a_thousand_clients_leave_while_served() -> Result<()> {
    let rig = rig(1_000, 100).start()?;
    let held = rig.occupy("/", 1_000)?;
    // The native filter writes its gauges only at a tick.
    rig.wait_for_stat("slots_in_use", 1_000)?;
    held.into_iter().for_each(http::Pending::hang_up);
    rig.wait_until_idle()?;
    rig.wait_for_stat("type.default.rq_unmeasured", 1_000)?;
    assert_eq!(
        rig.policy_stat("type.default.rq_completed")?,
        0,
        "their times are in no histogram"
    );
    assert_eq!(rig.get("/")?.status, 200);
    rig.wait_until_idle()
}

/// Half of the clients leave long before their requests end. HTTP/1.1 clients close their
/// connection. HTTP/2 clients reset their stream on a connection that has other streams.
#[test]
fn clients_leave_and_others_take_their_place() -> Result<()> {
    let rig = rig(4, 500).start()?;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let mut impatient =
            RequestType::get("impatient", "/leave").header("x-backend-service-us", "50000");
        impatient.abort_after = Some(Duration::from_millis(15));
        let patient = RequestType::get("patient", "/stay");
        let mut spec = LoadSpec::new(
            rig.addr(),
            vec![impatient, patient],
            300.0,
            Duration::from_secs(2),
        );
        (spec.protocol, spec.connections) = (protocol, 8);
        let report = load::run(spec)?;
        let patient = report.of("patient").expect("it was sent");
        assert!(
            report.total.aborted > 100,
            "{protocol:?}: {}",
            report.total.aborted
        );
        assert_eq!(
            (patient.ok, patient.unanswered),
            (patient.offered, 0),
            "{protocol:?}: {patient:?}"
        );
        rig.wait_until_idle()?;
    }
    Ok(())
}

#[test]
fn the_backend_resets_connections() -> Result<()> {
    let rig = rig(4, 500).start()?;
    rig.backend.inject(Fault::new(FaultKind::Reset, "/", 20));
    let statuses = answers(rig.send("/", 60)?)?;
    assert_eq!(
        statuses.iter().filter(|&&s| s == 503).count(),
        20,
        "{statuses:?}"
    );
    assert_eq!(
        statuses.iter().filter(|&&s| s == 200).count(),
        40,
        "{statuses:?}"
    );
    rig.wait_until_idle()?;
    rig.wait_for_stat("type.default.rq_completed", 40)?;
    rig.wait_for_stat("type.default.rq_failed", 20)?;
    assert_enforced(&rig, 4)
}

/// Errors of a backend that fails at once count neither as fast responses nor as responses within
/// an objective.
#[test]
fn errors_are_counted_and_not_measured() -> Result<()> {
    let rig = rig(4, 500).start()?;
    let mut errors = Fault::new(FaultKind::Status, "/", 20);
    rig.backend.inject(errors.clone());
    let statuses = answers(rig.send("/", 60)?)?;
    assert_eq!(statuses.iter().filter(|&&s| s == 500).count(), 20);
    rig.wait_for_stat("type.default.rq_completed", 40)?;
    rig.wait_for_stat("type.default.rq_failed", 20)?;
    let mut policy = policy::queue_only(4, 500);
    policy["spec"]["errors"] = json!({"httpStatuses": ["429", "503"]});
    rig.edit_policy(&policy)?;
    rig.backend.inject(errors.clone());
    assert_eq!(answers(rig.send("/", 20)?)?, [500; 20]);
    rig.wait_for_stat("type.default.rq_completed", 60)?;
    errors.status = 429;
    rig.backend.inject(errors);
    assert_eq!(answers(rig.send("/", 20)?)?, [429; 20]);
    rig.wait_for_stat("type.default.rq_failed", 40)?;
    assert_eq!(rig.policy_stat("type.default.rq_completed")?, 60);
    assert_enforced(&rig, 4)
}

/// Envoy Gateway writes a stats matcher that excludes Headgate's stats, so that Envoy rejects the
/// gauges.
#[test]
fn the_limit_holds_where_envoy_rejects_the_gauges() -> Result<()> {
    for threads in [1, 3] {
        let rig = rig(2, 100)
            .concurrency(threads)
            .change(|bootstrap| {
                let patterns = json!([{"prefix": "wasmcustom.headgate."}]);
                let matcher = json!({"exclusion_list": {"patterns": patterns}});
                bootstrap.root()["stats_config"]["stats_matcher"] = matcher;
                Ok(())
            })
            .start()?;
        let slow = [("x-backend-service-us", "30000")];
        let all: Result<Vec<_>> = (0..20).map(|_| rig.request("/", &slow)).collect();
        assert_eq!(answers(all?)?, [200; 20]);
        assert_eq!(rig.backend.stats().max_in_flight, 2, "{threads} threads");
        // The native filter keeps the limit in memory, so it doesn't need the gauges.
        if !headgate::is_native() {
            wait_until("Envoy's log to say so", || {
                rig.envoy.output().contains("stats_matcher rejects")
            })?;
        }
    }
    Ok(())
}

/// Starts `count` requests over HTTP/2 that wait for the only slot, all on one worker.
fn waiting(rig: &Rig, count: u64) -> Result<load::Running> {
    let kinds = vec![RequestType::get("all", "/")];
    let rate = count as f64 / 4.0 * 1.05;
    let mut spec = LoadSpec::new(rig.addr(), kinds, rate, Duration::from_secs(4));
    (spec.protocol, spec.connections) = (Protocol::Http2, 64);
    spec.max_outstanding = 2 * count as usize;
    // Tests stop Envoy for longer than the queue timeout of the requests.
    spec.drain = Duration::from_secs(60);
    let load = load::start(spec)?;
    until("the queue to fill", || {
        match rig.policy_stat("queue_length") {
            Ok(length) if length >= count => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    Ok(load)
}

const MASS: u64 = 20_000;

fn mass_policy(slots: usize) -> Value {
    let mut policy = policy::queue_only(slots, 2 * MASS as usize);
    policy["spec"]["queue"]["timeout"] = json!("15s");
    policy
}

fn mass_rig() -> RigBuilder {
    let backend = BackendConfig::constant(64, Duration::from_millis(1));
    Rig::builder(backend, mass_policy(1)).concurrency(1)
}

/// Checks that Envoy answers all requests of `load`. Then ends the request that holds the slot.
fn all_are_answered(rig: &mut Rig, load: load::Running, held: Vec<http::Pending>) -> Result<()> {
    rig.wait_for_stat("queue_length", 0)?;
    assert!(rig.envoy.is_running());
    let report = load.wait()?;
    assert_eq!(report.total.unanswered, 0, "{:?}", report.total.status);
    rig.backend.release();
    assert_eq!(answers(held)?, [200]);
    rig.wait_until_idle()
}

/// Envoy carries out each refusal within the call for the refusal before it.
#[test]
fn twenty_thousand_requests_expire_at_once() -> Result<()> {
    let mut rig = mass_rig().start()?;
    let held = rig.occupy("/held", 1)?;
    let load = waiting(&rig, MASS)?;
    rig.envoy.pause();
    // This sleep is longer than the queue timeout of all requests.
    std::thread::sleep(Duration::from_secs(16));
    rig.envoy.resume();
    all_are_answered(&mut rig, load, held)?;
    assert_enforced(&rig, 1)
}

/// A request that ends at once frees its slot for the next request within the call that resumes it.
#[test]
fn twenty_thousand_requests_end_as_soon_as_they_are_resumed() -> Result<()> {
    let mut rig = mass_rig()
        .change(|bootstrap| {
            // The circuit breaker rejects the second request to the backend, and Envoy answers it
            // itself.
            let limits =
                json!([{"max_requests": 1, "max_connections": 1000, "max_pending_requests": 1000}]);
            bootstrap.cluster("upstream")?["circuit_breakers"]["thresholds"] = limits;
            Ok(())
        })
        .start()?;
    let held = rig.occupy("/held", 1)?;
    let load = waiting(&rig, MASS)?;
    rig.edit_policy(&mass_policy(2))?;
    all_are_answered(&mut rig, load, held)
}

/// A request that Envoy answers itself ends within the call that resumes it, perhaps in the
/// callback for another request's headers. The slot must not go to that request before Envoy has
/// paused it, because Envoy would then never resume it.
#[test]
fn requests_that_end_at_once_resume_none_that_is_just_arriving() -> Result<()> {
    let rig = rig(1, 500)
        .concurrency(2)
        .change(|bootstrap| {
            let local = json!({"match": {"path": "/local"}, "direct_response": {"status": 200}});
            bootstrap.routes()?.insert(0, local);
            Ok(())
        })
        .start()?;
    let mut upload = RequestType::get("upload", "/");
    (upload.method, upload.body) = ("POST".to_owned(), "x".repeat(1_024));
    let kinds = vec![RequestType::get("local", "/local"), upload];
    let spec = LoadSpec::new(rig.addr(), kinds, 500.0, Duration::from_secs(15));
    let report = load::run(spec)?;
    assert_eq!(
        (report.total.ok, report.total.unanswered),
        (report.total.offered, 0),
        "{:?}",
        report.total.status
    );
    rig.wait_until_idle()
}

#[test]
fn the_backend_is_dead() -> Result<()> {
    let mut rig = rig(4, 500).start()?;
    let held = rig.occupy("/", 4)?;
    let waiting = rig.enqueue("/", 50)?;
    rig.backend.halt();
    // Requests in service lose their connection, and requests in the queue find no backend.
    assert_eq!(answers(held)?, [503; 4]);
    assert_eq!(answers(waiting)?, [503; 50]);
    rig.wait_until_idle()?;
    rig.wait_for_stat("type.default.rq_failed", 54)?;
    rig.restart_backend()?;
    assert_enforced(&rig, 4)
}

#[test]
fn responses_time_out() -> Result<()> {
    let rig = rig(4, 500)
        .change(|bootstrap| {
            // The timeout is far longer than the last request takes, even on a machine that pauses.
            let route = &mut bootstrap.routes()?[0]["route"];
            route["timeout"] = json!("1s");
            let mut other = json!({"match": {"prefix": "/stream"}, "route": route.clone()});
            other["route"]["timeout"] = json!("0s");
            other["route"]["max_stream_duration"] = json!({"max_stream_duration": "1s"});
            bootstrap.routes()?.insert(0, other);
            Ok(())
        })
        .start()?;
    for (path, failed) in [("/", 4), ("/stream", 8)] {
        rig.backend.inject(Fault::new(FaultKind::Hang, path, 4));
        assert_eq!(answers(rig.send(path, 4)?)?, [504; 4], "{path}");
        rig.wait_until_idle()?;
        rig.wait_for_stat("type.default.rq_failed", failed)?;
    }
    assert_eq!(rig.get("/")?.status, 200);
    rig.wait_until_idle()
}

/// The VM of one worker traps several times while requests are served and queued by all workers.
/// The slots that the dead VM held must become free, and the VM that Envoy starts in its place must
/// take part in the sharing of slots. No VM is left to resume the requests that the dead VM had
/// paused. Envoy ends these requests at its own stream idle timeout.
#[test]
fn a_vm_traps_under_load() -> Result<()> {
    if headgate::is_native() {
        skip("the native filter has no VM; what it does is in a_native_filter_panics_under_load");
        return Ok(());
    }
    let rig = rig(8, 500)
        .module(headgate::variant_path("headgate-trap.wasm"))
        .change(|bootstrap| {
            bootstrap.manager()?["stream_idle_timeout"] = json!("2s");
            Ok(())
        })
        .start()?;
    let normal = RequestType::get("normal", "/").header("x-backend-service-us", "20000");
    let load = load::start(LoadSpec::new(
        rig.addr(),
        vec![normal],
        300.0,
        Duration::from_secs(60),
    ))?;
    for round in 1..=3 {
        let answered = load.snapshot().total.ok;
        wait_until("traffic", || load.snapshot().total.ok > answered + 400)?;
        // Envoy fails the request that trapped, with a 503 or by closing the connection.
        let _ = http::get_with(rig.addr(), "/", &[("x-headgate-trap", "1")]);
        rig.wait_for_stat("workers_lost", round)?;
    }
    load.stop();
    let report = load.wait()?;
    assert_eq!(report.total.unanswered, 0, "{:?}", report.total.status);
    // The worker whose VM died answers 503 until Envoy starts a new VM. The other worker is not
    // affected.
    assert!(
        report.total.ok > report.total.offered / 2,
        "{:?}",
        report.total.status
    );
    rig.wait_until_idle()?;
    assert_enforced(&rig, 8)
}

/// The native filter panics several times, in each hook of a request, while other requests are
/// served and queued. No request is refused for a panic, not even the request that caused it. All
/// requests pass until a new engine is in place, which then has all slots.
#[test]
fn a_native_filter_panics_under_load() -> Result<()> {
    if !headgate::is_native() {
        skip("the Wasm filter's panics end in its VM; see a_vm_traps_under_load");
        return Ok(());
    }
    let rig = rig(8, 5_000)
        .module(headgate::variant_path("libheadgate-trap.so"))
        .start()?;
    let normal = RequestType::get("normal", "/").header("x-backend-service-us", "20000");
    let load = load::start(LoadSpec::new(
        rig.addr(),
        vec![normal],
        300.0,
        Duration::from_secs(120),
    ))?;
    let panics = || rig.envoy.stat("wasmcustom.headgate.panics");
    for (round, hook) in (1..).zip(["request", "response", "scheduled", "request"]) {
        let answered = load.snapshot().total.ok;
        wait_until("traffic", || load.snapshot().total.ok > answered + 100)?;
        // The burst has five times as many requests as slots, because only requests that waited are
        // scheduled.
        let slow = ("x-backend-service-us", "20000");
        let mut burst: Vec<_> = (0..40)
            .map(|_| rig.request("/", &[slow]))
            .collect::<Result<_>>()?;
        burst.push(rig.request("/", &[slow, ("x-headgate-trap", hook)])?);
        assert_eq!(answers(burst)?, [200; 41], "{hook}");
        until("the panic to be counted", || match panics() {
            Ok(now) if now == round => Ok(()),
            other => Err(format!("{other:?} panics; {hook}")),
        })?;
        rig.wait_for_stat("workers_lost", round)?;
    }
    load.stop();
    let report = load.wait()?;
    assert_eq!(
        report.total.ok, report.total.offered,
        "{:?}",
        report.total.status
    );
    rig.wait_until_idle()?;
    assert_enforced(&rig, 8)?;
    let output = rig.envoy.output();
    let told = |what: &str| output.lines().filter(|line| line.contains(what)).count();
    assert_eq!(told("the filter panicked: trapped on request"), 2);
    assert_eq!(told("the filter panicked"), 4);
    assert_eq!(told("the filter works again"), 4);
    Ok(())
}

/// While the operator replaces a WasmPlugin by a TrafficExtension, Istio's proxies have two filters
/// with the same policies. With one slot, the second filter would wait for the slot that the first
/// filter holds.
#[test]
fn a_second_filter_of_the_same_vm_takes_no_slot() -> Result<()> {
    if headgate::is_native() {
        skip("only Istio's Wasm plugins are doubled: an EnvoyFilter has no successor");
        return Ok(());
    }
    // The queue has room for all requests of the load, because after a pause of the machine the
    // requests of the pause come at once.
    const QUEUE: usize = 200;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, policy::queue_only(1, QUEUE).to_string())?;
    let module = headgate::tested_module().display().to_string();
    let file = file.display().to_string();
    let arguments = [
        "render", &file, "--target", "envoy", "--output", "json", "--wasm", &module,
    ];
    let mut rendered: Value = serde_json::from_str(&headgate::run_command(&arguments)?)?;
    let mut plugin = rendered["resources"][0]["typed_config"].take();
    plugin["config"]["name"] = json!("the other");
    let rig = rig(1, QUEUE)
        .change(move |bootstrap| {
            bootstrap.prepend_filter(json!({"name": "the other", "typed_config": plugin}))
        })
        .start()?;
    let load = load::start(LoadSpec::new(
        rig.addr(),
        vec![RequestType::get("all", "/")],
        50.0,
        Duration::from_secs(2),
    ))?;
    let report = load.wait()?;
    assert_eq!(
        report.total.ok, report.total.offered,
        "{:?}",
        report.total.status
    );
    rig.wait_for_stat("type.default.rq_total", report.total.ok)?;
    assert_enforced(&rig, 1)
}

#[test]
fn a_policy_is_edited_under_load() -> Result<()> {
    let rig = rig(4, 2_000).start()?;
    let spec = LoadSpec::new(
        rig.addr(),
        vec![RequestType::get("all", "/")],
        400.0,
        Duration::from_secs(3),
    );
    let load = load::start(spec)?;
    for slots in [1, 16, 2, 8] {
        rig.edit_policy(&policy::queue_only(slots, 2_000))?;
        rig.wait_for_stat("slots", slots as u64)?;
    }
    let report = load.wait()?;
    assert_eq!(
        report.total.ok, report.total.offered,
        "{:?}",
        report.total.status
    );
    rig.wait_until_idle()?;
    assert_enforced(&rig, 8)
}

#[test]
fn fewer_slots_than_are_in_use() -> Result<()> {
    let rig = rig(8, 100).start()?;
    let held = rig.occupy("/", 8)?;
    rig.edit_policy(&policy::queue_only(2, 100))?;
    let waiting = rig.enqueue("/", 10)?;
    rig.backend.reset();
    rig.backend.release();
    assert_eq!(answers(held)?, [200; 8]);
    assert_eq!(answers(waiting)?, [200; 10]);
    rig.wait_until_idle()?;
    assert_enforced(&rig, 2)
}

#[test]
fn a_policy_is_deleted_and_made_again() -> Result<()> {
    let rig = rig(2, 100).start()?;
    let held = rig.occupy("/", 2)?;
    let waiting = rig.enqueue("/", 20)?;
    rig.delete_policy()?;
    // After the deletion, waiting requests continue and nothing limits concurrency.
    assert_eq!(answers(waiting)?, [200; 20]);
    let more = rig.occupy("/", 10)?;
    rig.backend.release();
    assert_eq!(answers(held)?, [200; 2]);
    assert_eq!(answers(more)?, [200; 10]);
    rig.wait_until_idle()?;
    rig.write_policy(&policy::queue_only(2, 100))?;
    rig.wait_for_policy()?;
    rig.wait_for_stat("slots", 2)?;
    assert_enforced(&rig, 2)
}

#[test]
fn a_rejected_policy_leaves_the_last_good_one() -> Result<()> {
    let rig = rig(2, 100).start()?;
    let mut wrong = policy::queue_only(7, 100);
    wrong["spec"]["parallelism"]["total"] = json!(0);
    for (bad, mark) in [
        (wrong, "parallelism"),
        (Value::String("kind: [".to_owned()), ""),
    ] {
        rig.write_policy(&bad)?;
        until("the policy to be rejected", || match rig.accepted() {
            Ok((false, message)) if message.contains(mark) => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
        assert_enforced(&rig, 2)?;
    }
    rig.edit_policy(&policy::queue_only(3, 100))?;
    rig.wait_for_stat("slots", 3)?;
    assert!(rig.accepted()?.0);
    assert_enforced(&rig, 3)
}

#[test]
fn the_operator_is_killed_and_restarted() -> Result<()> {
    let mut rig = rig(2, 100).start()?;
    assert_enforced(&rig, 2)?;
    let held = rig.occupy("/", 2)?;
    let waiting = rig.enqueue("/", 10)?;
    rig.headgate.take().expect("it runs").kill()?;
    rig.backend.release();
    assert_eq!(answers(held)?, [200; 2]);
    assert_eq!(answers(waiting)?, [200; 10]);
    assert_enforced(&rig, 2)?;
    rig.write_policy(&policy::queue_only(3, 100))?;
    rig.restart_headgate()?;
    rig.wait_for_policy()?;
    rig.wait_for_stat("slots", 3)?;
    assert_enforced(&rig, 3)
}

#[test]
fn the_operator_is_absent_at_envoys_start() -> Result<()> {
    let mut rig = rig(2, 100).operator_late().start()?;
    let more = rig.occupy("/", 5)?;
    rig.backend.release();
    assert_eq!(
        answers(more)?,
        [200; 5],
        "traffic flows without an operator"
    );
    rig.restart_headgate()?;
    rig.wait_for_policy()?;
    // The first request after the configuration arrived may still use the old filter chain.
    assert_eq!(rig.get("/")?.status, 200);
    assert_enforced(&rig, 2)
}

#[test]
fn envoy_drains() -> Result<()> {
    let rig = rig(2, 100).start()?;
    let held = rig.occupy("/", 2)?;
    let waiting = rig.enqueue("/", 20)?;
    rig.envoy.drain()?;
    rig.backend.release();
    assert_eq!(answers(held)?, [200; 2]);
    assert_eq!(
        answers(waiting)?,
        [200; 20],
        "queued requests are served to the end"
    );
    rig.wait_until_idle()
}

/// Envoy stops while requests are in progress. It must end by itself, without a crash of the
/// filter.
#[test]
fn envoy_stops_with_a_full_queue() -> Result<()> {
    let mut rig = rig(2, 100).start()?;
    let _held = rig.occupy("/", 2)?;
    let _waiting = rig.enqueue("/", 20)?;
    rig.envoy.terminate();
    let status = rig.envoy.wait_for_end(Duration::from_secs(10))?;
    assert!(status.success(), "{status}\n{}", rig.envoy.output());
    Ok(())
}
