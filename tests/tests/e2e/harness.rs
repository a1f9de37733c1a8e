//! Tests of the test harness itself. The conclusions of the end-to-end tests rely on these
//! properties.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::{Backend, BackendConfig, Fault, FaultKind, OnDisconnect};
use headgate_tests::load::{self, LoadSpec, Protocol, RequestType};
use headgate_tests::wait::wait_until;
use headgate_tests::{http, mix};

fn constant(workers: usize, ms: u64) -> BackendConfig {
    BackendConfig::constant(workers, Duration::from_millis(ms))
}

/// Sends `count` requests and waits until all have arrived at the backend.
fn send(backend: &Backend, path: &str, count: usize) -> Result<Vec<http::Pending>> {
    let before = backend.stats().in_flight;
    let pending = (0..count)
        .map(|_| http::send(backend.addr(), "GET", path, &[], None))
        .collect::<Result<_>>()?;
    wait_until("arrivals", || backend.stats().in_flight == before + count)?;
    Ok(pending)
}

#[test]
fn exactly_p_requests_are_served_at_a_time() {
    let backend = Backend::start(&constant(3, 10)).unwrap();
    let pending: Vec<_> = (0..30)
        .map(|_| http::send(backend.addr(), "GET", "/", &[], None).unwrap())
        .collect();
    for request in pending {
        assert_eq!(request.answer().unwrap().status, 200);
    }
    let stats = backend.stats();
    assert_eq!(
        (stats.max_busy, stats.completed, stats.in_flight),
        (3, 30, 0)
    );
    assert!(
        stats.max_in_flight > 3 && stats.max_in_flight <= 30,
        "{}",
        stats.max_in_flight
    );
    // 30 requests of 10 ms each need at least 300 ms of busy workers.
    assert!(stats.busy_ms >= 300.0, "{}", stats.busy_ms);
    assert!(stats.types["/"].service_ms.p50 >= 10.0);
}

#[test]
fn a_client_that_leaves_the_queue_takes_its_request_along() {
    let backend = Backend::start(&constant(2, 1)).unwrap();
    backend.inject(Fault::new(FaultKind::Hang, "/", 2));
    let held = send(&backend, "/", 2).unwrap();
    let waiting = send(&backend, "/", 5).unwrap();
    assert_eq!(backend.stats().queued, 5);
    waiting.into_iter().for_each(http::Pending::hang_up);
    wait_until("an empty queue", || backend.stats().in_flight == 2).unwrap();
    assert_eq!(backend.stats().cancelled_queued, 5);
    assert_eq!(backend.release(), 2);
    held.into_iter()
        .for_each(|request| assert_eq!(request.answer().unwrap().status, 200));
    assert_eq!(backend.stats().in_flight, 0);
}

#[test]
fn work_in_service_is_cancelled_or_finished_as_configured() {
    for (on_disconnect, completed) in [(OnDisconnect::Cancel, 0), (OnDisconnect::Finish, 1)] {
        // The service time is so long that the client leaves before its end.
        let mut config = constant(1, 1_500);
        config.on_disconnect = on_disconnect;
        let backend = Backend::start(&config).unwrap();
        send(&backend, "/", 1)
            .unwrap()
            .into_iter()
            .for_each(http::Pending::hang_up);
        wait_until("a free worker", || backend.stats().in_flight == 0).unwrap();
        let stats = backend.stats();
        assert_eq!(
            (stats.cancelled_in_service, stats.completed),
            (1, completed),
            "{on_disconnect:?}"
        );
    }
}

#[test]
fn ordered_faults_strike_as_often_as_asked() {
    let backend = Backend::start(&constant(1, 1)).unwrap();
    let get = |path: &str| http::get(backend.addr(), path);
    backend.inject(Fault {
        status: 507,
        ..Fault::new(FaultKind::Status, "/bad", 1)
    });
    assert_eq!(get("/good").unwrap().status, 200);
    assert_eq!(get("/bad").unwrap().status, 507);
    assert_eq!(get("/bad").unwrap().status, 200);
    backend.inject(Fault::new(FaultKind::Reset, "/", 1));
    assert!(get("/").is_err());
    let order = r#"{"kind": "slow", "delay_ms": 30}"#;
    assert_eq!(
        http::post(backend.control_addr(), "/__headgate/fault", order)
            .unwrap()
            .status,
        200
    );
    get("/").unwrap();
    let stats = backend.stats();
    assert!(stats.types["/"].service_ms.max >= 31.0);
    assert_eq!((stats.faults, stats.in_flight), (3, 0));
}

#[test]
fn bodies_are_echoed_streams_start_early_and_upgrades_echo() {
    let backend = Backend::start(&constant(1, 1)).unwrap();
    assert_eq!(
        http::post(backend.addr(), "/", "hello").unwrap().body,
        "hello"
    );

    backend.inject(Fault::new(FaultKind::Hang, "/", 1));
    let mut stream = http::send(backend.addr(), "GET", "/?stream=1", &[], None).unwrap();
    assert_eq!(stream.head().unwrap().0, 200);
    assert_eq!(
        backend.stats().busy,
        1,
        "headers come before the service ends"
    );
    backend.release();
    stream.read_line().unwrap();

    let upgrade = [("connection", "upgrade"), ("upgrade", "echo")];
    let mut socket = http::send(backend.addr(), "GET", "/", &upgrade, None).unwrap();
    assert_eq!(socket.head().unwrap().0, 101);
    socket.write("ping\n").unwrap();
    assert_eq!(socket.read_line().unwrap(), "ping");
    assert_eq!(backend.stats().upgrades, 1);
}

fn load_on(target: SocketAddr, protocol: Protocol) -> LoadSpec {
    let mut spec = LoadSpec::for_mix(target, &mix::bouncer(0.1), 500.0, Duration::from_secs(1));
    spec.protocol = protocol;
    spec.connections = 4;
    spec
}

#[test]
fn the_generator_accounts_for_every_arrival() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let backend = Backend::start(&BackendConfig::for_mix(20, &mix::bouncer(0.1))).unwrap();
        backend.inject(Fault {
            status: 503,
            ..Fault::new(FaultKind::Status, "/q/slow", 10)
        });
        let report = load::run(load_on(backend.addr(), protocol)).unwrap();
        let total = &report.total;
        assert_eq!(
            (total.refused, total.ok),
            (10, total.offered - 10),
            "{protocol:?}"
        );
        assert_eq!(report.of("slow").unwrap().refused_by["status_503"], 10);
        assert_eq!(backend.stats().received, total.offered);
        assert_eq!(
            total.offered,
            report.types.iter().map(|t| t.offered).sum::<u64>()
        );
        assert_eq!(
            total.offered,
            total.series.iter().map(|b| b.offered).sum::<u64>()
        );
        assert!(
            report
                .types
                .iter()
                .all(|t| t.latency_ms.p50 > 0.0 && t.latency_ms.p50 <= t.latency_ms.p90)
        );
    }
}

#[test]
fn the_generator_never_waits_for_a_stuck_server() {
    let backend = Backend::start(&constant(1, 1)).unwrap();
    backend.inject(Fault::new(FaultKind::Hang, "/", 1));
    let mut spec = LoadSpec::new(
        backend.addr(),
        vec![RequestType::get("all", "/")],
        400.0,
        Duration::from_millis(500),
    );
    (spec.max_outstanding, spec.drain) = (50, Duration::ZERO);
    let report = load::run(spec).unwrap();
    assert!(report.total.offered > 100);
    assert_eq!((report.total.unanswered, report.max_outstanding), (50, 50));
    assert_eq!(report.total.not_sent, report.total.offered - 50);
}

#[test]
fn impatient_clients_hang_up() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let backend = Backend::start(&constant(1, 1)).unwrap();
        backend.inject(Fault::new(FaultKind::Hang, "/", 1));
        let mut kind = RequestType::get("all", "/");
        kind.abort_after = Some(Duration::from_millis(20));
        let mut spec = LoadSpec::new(
            backend.addr(),
            vec![kind],
            200.0,
            Duration::from_millis(500),
        );
        (spec.protocol, spec.connections) = (protocol, 4);
        let report = load::run(spec).unwrap();
        assert!(report.total.aborted >= 1);
        assert_eq!(
            report.total.aborted + report.total.ok,
            report.total.offered,
            "{protocol:?}"
        );
        wait_until("the end of all requests", || backend.stats().in_flight == 0).unwrap();
        // A client may leave just when its request is complete, so some clients that leave
        // interrupt no service.
        let stats = backend.stats();
        let cancelled = stats.cancelled_in_service + stats.cancelled_queued;
        assert!(
            (1..=report.total.aborted).contains(&cancelled),
            "{protocol:?}: {cancelled}"
        );
        assert_eq!(cancelled + stats.completed, stats.received, "{protocol:?}");
    }
}

#[test]
fn a_stopped_backend_refuses_connections_and_its_port_can_be_taken_again() {
    let mut backend = Backend::start(&constant(1, 1)).unwrap();
    let mut config = constant(1, 1);
    config.listen = backend.addr();
    http::get(backend.addr(), "/").unwrap();
    backend.halt();
    assert!(http::get(config.listen, "/").is_err());
    let again = Backend::start(&config).unwrap();
    assert_eq!(http::get(again.addr(), "/").unwrap().status, 200);
}
