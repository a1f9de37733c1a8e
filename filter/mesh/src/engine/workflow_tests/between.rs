//! Tests with two processes, of which one calls the other. Only headers connect them.

use headgate_core::config::{Direction, OutboundConfig};
use headgate_core::http::BesideHttp;

use super::*;
use crate::workflows::ServiceId;

fn outbound() -> FilterConfig {
    FilterConfig {
        direction: Direction::Outbound,
        outbound: Some(OutboundConfig {
            policy: "ns/p".into(),
            services: [("outbound|80||b.*".to_owned(), "b".to_owned())].into(),
            peers: Vec::new(),
            class_admission: BTreeMap::new(),
            smoothing: None,
            service_smoothing: BTreeMap::new(),
        }),
        ..FilterConfig::default()
    }
}

/// Returns the configuration of the front, whose guarantee for `a` is high (1000 requests/s).
fn front() -> FilterConfig {
    config(|stage| {
        let workflows = stage.workflows.as_mut().unwrap();
        workflows.workflows.get_mut("a").unwrap().guarantee = Some(1_000.0);
        // Held requests make no calls in these tests.
        workflows.max_queue_length = 0;
    })
}

/// Sends a request to the front, which calls the back `calls` times, one call after the other.
/// Returns whether all calls succeeded.
fn request(front: &mut Proxy, back: &mut Proxy, calls: usize) -> bool {
    let (inbound, away) = (front.next as usize % 2, (front.next as usize + 1) % 2);
    let stream = front.arrive(inbound, &of("a"), Some(Duration::from_secs(1)));
    let Some(&(_, pass, _)) = front.running.get(&stream) else {
        return false;
    };
    let now = front.now();
    let token = token(front.workers[inbound].as_ref().unwrap(), pass).unwrap();
    let mut well = true;
    for _ in 0..calls {
        let call = Request::default();
        let mut headers = BTreeMap::new();
        let calling = front.with(away, |e, h, now, a| {
            engine::call(
                e,
                h,
                now,
                (&call, Some(token.as_bytes()), None),
                "outbound|80||b.svc",
                a,
                |name, value: &str| {
                    headers.insert(name.to_owned(), value.as_bytes().to_vec());
                },
            )
        });
        let calling = calling.unwrap().unwrap().unwrap();
        assert_eq!(headers[wire::WORKFLOW], b"a");
        assert_eq!(headers[wire::TIMEOUT], b"1000");
        // The service time of the back is 4 ms.
        let request = Request {
            headers: headers.into_iter().collect(),
            ..Request::get("/")
        };
        let there = back.arrive(0, &request, None);
        let (mut rate, mut progress) = (String::new(), String::new());
        let mut set = |name, value: &str| match name {
            wire::RATE => rate = value.to_owned(),
            _ => progress = value.to_owned(),
        };
        if let Some(&(_, pass, _)) = back.running.get(&there) {
            let later = now + Duration::from_millis(4);
            let engine = back.workers[0].as_mut().unwrap();
            let answer = engine::answer(engine, &back.host, later, pass);
            engine
                .beside_mut()
                .write_answer(answer.as_ref(), None, &mut set);
        } else {
            well = false;
            match back.refused.last() {
                Some(refusal) => {
                    let refusal = *refusal;
                    let engine = back.workers[0].as_mut().unwrap();
                    engine.beside_mut().announce(&refusal, &mut set);
                }
                None => back.finish(there, Outcome::Unmeasured),
            }
        }
        let reply = Reply {
            rate: Some(rate.as_bytes()).filter(|rate| !rate.is_empty()),
            progress: Some(progress.as_bytes()).filter(|p| !p.is_empty()),
            rejection: None,
            peer: None,
            outcome: None,
        };
        front.with(away, |e, h, now, _| {
            e.beside_mut()
                .answered(h, now + Duration::from_millis(4), calling, Some(&reply))
                .unwrap();
        });
    }
    let engine = front.workers[inbound].as_mut().unwrap();
    engine::answer(engine, &front.host, now + Duration::from_millis(10), pass);
    well
}

#[test]
fn a_rate_is_announced_and_adopted_with_its_amplification() {
    let (mut a, mut b) = (
        Proxy::new(2, &front()),
        Proxy::new(
            1,
            &config(|stage| {
                stage.workflows.as_mut().unwrap().max_queue_length = 0;
            }),
        ),
    );
    a.configure(&outbound());
    let mut refused = 0;
    for ms in 0..6_000_u64 {
        a.step();
        b.step();
        if ms.is_multiple_of(10) && !request(&mut a, &mut b, 2) && ms >= 3_000 {
            refused += 1;
        }
    }
    // With two calls for each request, 25 of 100 requests/s pass the front, and few of their calls
    // are refused.
    let rate = a.stat("workflow.a.rate_mhz");
    assert!((23_000..=28_000).contains(&rate), "{rate}");
    assert_eq!(a.stat("workflow.a.bottleneck"), 2);
    assert_eq!(b.stat("workflow.a.bottleneck"), 0);
    let passed = a.passed_in(3_000);
    assert!(
        (68..=85).contains(&passed),
        "{passed} of 75, {refused} refused behind"
    );
    let calls = a.stat("workflow.a.calls");
    assert!(calls > 0 && a.stat("rates_refused") == 0);
    a.assert_nothing_is_left();
}

/// The calls of a request count whatever its answer, so the request counts as well.
#[test]
fn requests_that_fail_after_their_calls_do_not_raise_the_amplification() {
    let back = config(|stage| {
        stage.workflows.as_mut().unwrap().max_queue_length = 0;
    });
    let (mut a, mut b) = (Proxy::new(2, &front()), Proxy::new(1, &back));
    a.configure(&outbound());
    a.outcome = |stream| match stream % 5 {
        0 => Outcome::Completed,
        _ => Outcome::Failed,
    };
    for ms in 0..6_000_u64 {
        a.step();
        b.step();
        if ms.is_multiple_of(10) {
            request(&mut a, &mut b, 1);
        }
    }
    // Each request makes one call, of which 50 requests/s pass.
    let rate = a.stat("workflow.a.rate_mhz");
    assert!((46_000..=54_000).contains(&rate), "{rate}");
    a.assert_nothing_is_left();
}

#[test]
fn progress_comes_up_and_goes_down_the_tree() {
    let (mut a, mut b) = (Proxy::new(2, &front()), Proxy::new(1, &front()));
    a.configure(&outbound());
    for ms in 0..3_000_u64 {
        a.step();
        b.step();
        if ms.is_multiple_of(50) {
            assert!(request(&mut a, &mut b, 2), "after {ms} ms");
        }
    }
    // Earlier requests were in the slot of `a` for 10 ms, of which the calls took 4 ms each.
    let stream = a.arrive(0, &of("a"), None);
    let progress = progress(&mut a, stream);
    assert_eq!(progress.elapsed, Duration::from_millis(3));
    let total = progress.total.unwrap();
    assert!(
        total >= Duration::from_millis(9) && total <= Duration::from_millis(11),
        "{progress:?}"
    );
    assert!(progress.total_work.unwrap() >= total, "{progress:?}");
}

/// Returns the progress in a call that `a` makes for `stream` 3 ms later, on its second worker.
fn progress(a: &mut Proxy, stream: u32) -> Progress {
    let (worker, pass, _) = a.running[&stream];
    let engine = a.workers[worker].as_ref().unwrap();
    let token = token(engine, pass).unwrap();
    let call = Request::default();
    let mut progress = String::new();
    a.ms += 3;
    let calling = a.with(1, |e, h, now, acts| {
        engine::call(
            e,
            h,
            now,
            (&call, Some(token.as_bytes()), None),
            "outbound|80||b.svc",
            acts,
            |name, value: &str| {
                if name == wire::PROGRESS {
                    progress = value.to_owned();
                }
            },
        )
    });
    assert!(calling.unwrap().unwrap().is_some());
    headgate_core::progress::parse(&progress).unwrap()
}

#[test]
fn a_call_carries_the_progress_before_it() {
    let mut a = Proxy::new(2, &config(|_| {}));
    a.configure(&outbound());
    let worked = of("a")
        .with(wire::PROCESS, "0000000000000007")
        .with(wire::PROGRESS, "elapsed=7, work=9");
    let stream = a.arrive(0, &worked, None);
    let progress = progress(&mut a, stream);
    let told = [progress.elapsed, progress.work];
    assert_eq!(told, [10, 12].map(Duration::from_millis));
}

#[test]
fn the_age_of_a_request_goes_on_with_its_calls_and_waits_count() {
    let mut a = Proxy::new(2, &config(|_| {}));
    a.configure(&outbound());
    a.load("a", 40, 2_000);
    let aged = of("a")
        .with(wire::PROCESS, "0000000000000007")
        .with(wire::PROGRESS, "elapsed=1, age=40.5");
    let waits: Vec<(u32, u64)> = (0..3).map(|_| (a.arrive(0, &aged, None), a.ms)).collect();
    let (stream, came) = waits[2];
    assert!(a.held.contains_key(&stream), "for its rate");
    while !a.running.contains_key(&stream) {
        a.step();
    }
    let waited = a.ms - came;
    assert!(waited > 20);
    let age = progress(&mut a, stream).age.as_millis() as u64;
    assert_eq!(age, 40 + waited + 3);
}

/// Calls `cluster` on `worker`, and returns the id of the service.
fn called(a: &mut Proxy, worker: usize, cluster: &str) -> ServiceId {
    let calling = a.with(worker, |e, h, now, acts| {
        engine::call(e, h, now, (&of("a"), None, None), cluster, acts, |_, _| {})
    });
    let calling = calling.unwrap().unwrap().unwrap();
    let service = calling.call.as_ref().unwrap().1.service();
    a.with(worker, |e, h, now, _| {
        let reply = Reply::default();
        let answered = e.beside_mut().answered(h, now, calling, Some(&reply));
        answered.unwrap();
    });
    service
}

/// Routes come and go, each with a cluster of its own.
#[test]
fn a_new_service_gets_the_id_of_one_that_is_no_longer_called() {
    let mut a = Proxy::new(2, &config(|_| {}));
    a.configure(&outbound());
    a.load("a", 100, 500);
    let ids: Vec<ServiceId> = (0..crate::workflows::MAX_SERVICES)
        .map(|n| called(&mut a, 0, &format!("route{n}")))
        .collect();
    assert!(ids.is_sorted() && !ids.contains(&ServiceId(0)));
    a.idle(500);
    for _ in 0..800 {
        a.ms += 900;
        a.idle(100);
        assert_eq!(called(&mut a, 1, "route1"), ids[1]);
    }
    let new = called(&mut a, 1, "new");
    assert_ne!(new, ServiceId(0));
    // The first worker last called this service when the id was not free yet.
    a.idle(100);
    let again = called(&mut a, 0, "route0");
    assert!(again != ServiceId(0) && again != new, "{again:?}");
    assert_eq!(called(&mut a, 0, "new"), new);
    assert_eq!(called(&mut a, 0, "route1"), ids[1]);
}

#[test]
fn a_call_of_an_unknown_request_counts_by_its_own_headers() {
    let mut a = Proxy::new(1, &front());
    a.configure(&outbound());
    a.arrive(0, &of("a"), None);
    for token in [Some(&b"nonsense"[..]), None, Some(&b""[..])] {
        let call = of("a");
        let calling = a.with(0, |e, h, now, acts| {
            engine::call(e, h, now, (&call, token, None), "c", acts, |_, _: &str| {})
        });
        let calling = calling.unwrap().unwrap().unwrap();
        for rate in [&b"nonsense"[..], b"process=\"0000000000000009\", rate=5"] {
            let reply = Reply {
                rate: Some(rate),
                ..Reply::default()
            };
            a.with(0, |e, h, now, _| {
                e.beside_mut().answered(h, now, calling, Some(&reply))
            });
        }
    }
    a.idle(200);
    assert_eq!(a.stat("workflow.a.calls"), 3);
    assert_eq!(a.stat("rates_refused"), 3);
}

#[test]
fn an_answer_that_comes_after_the_configuration_of_calls_is_not_believed() {
    let mut a = Proxy::new(1, &front());
    let mut calls = outbound();
    calls.outbound.as_mut().unwrap().peers = vec!["spiffe://mesh/*".into()];
    a.configure(&calls);
    a.arrive(0, &of("a"), None);
    let calling = a.with(0, |e, h, now, acts| {
        let call = of("a");
        engine::call(e, h, now, (&call, None, None), "b", acts, |_, _: &str| {})
    });
    let calling = calling.unwrap().unwrap().unwrap();
    a.with(0, |e, h, now, _| {
        e.beside_mut().forget_calls();
        let reply = Reply {
            rate: Some(b"process=\"0000000000000009\", rate=5"),
            ..Reply::default()
        };
        e.beside_mut()
            .answered(h, now, calling, Some(&reply))
            .unwrap();
    });
    a.load("a", 100, 1_000);
    assert_eq!(a.stat("workflow.a.rate_mhz"), 1_000_000);
    assert_eq!(a.stat("rates_refused"), 0);
}

/// A gateway learns from the answers to its own requests. It has no application between request and
/// call, and one configuration for both.
#[test]
fn a_gateway_learns_from_the_answers_to_its_own_requests() {
    let mut config = front();
    config.outbound = outbound().outbound;
    let mut gateway = Proxy::new(2, &config);
    for ms in 0..4_000_u64 {
        gateway.step();
        if !ms.is_multiple_of(10) {
            continue;
        }
        let worker = gateway.next as usize % 2;
        let stream = gateway.arrive(worker, &of("a"), None);
        let Some(&(_, ticket, _)) = gateway.running.get(&stream) else {
            continue;
        };
        let mut headers = BTreeMap::new();
        let calling = gateway.with(worker, |e, h, now, acts| {
            assert!(e.beside().is_gateway());
            let token = token(e, ticket).unwrap();
            // A token that the client invented is ignored.
            let request = of("a").with(wire::REQUEST, "nonsense");
            let call = (&request, Some(token.as_bytes()), None);
            engine::call(e, h, now, call, "b", acts, |name, value: &str| {
                headers.insert(name, value.to_owned());
            })
        });
        assert_eq!(headers[wire::WORKFLOW], "a");
        let calling = calling.unwrap().unwrap().unwrap();
        let reply = Reply {
            rate: Some(b"process=\"0000000000000009\", rate=25"),
            ..Reply::default()
        };
        gateway.with(worker, |e, h, now, _| {
            e.beside_mut()
                .answered(h, now, calling, Some(&reply))
                .unwrap();
        });
    }
    let rate = gateway.stat("workflow.a.rate_mhz");
    assert!((23_000..=27_000).contains(&rate), "{rate}");
    let passed = gateway.passed_in(2_000);
    assert!((45..=55).contains(&passed), "{passed} of 50");
    // A configuration without `outbound` ends a gateway's handling of calls, but it doesn't change
    // the configuration of an outbound listener.
    gateway.configure(&front());
    assert!(!gateway.workers[0].as_ref().unwrap().beside().has_outbound());
    gateway.configure(&outbound());
    gateway.configure(&front());
    let engine = gateway.workers[0].as_ref().unwrap();
    assert!(engine.beside().has_outbound() && !engine.beside().is_gateway());
    gateway.assert_nothing_is_left();
}
