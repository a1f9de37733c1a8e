//! Routes that fail: the other routes' share of the backend, and the recovery of the failing route.

// Clippy doesn't recognize helpers outside of `#[test]` functions as test code.
#![allow(clippy::unwrap_used)]

mod endpoints;
mod faulty;
#[path = "../../../core/tests/memory/mod.rs"]
mod memory;
#[path = "../parallelism/proxies.rs"]
#[allow(dead_code)]
mod proxies;
#[path = "../parallelism/service.rs"]
#[allow(dead_code)]
mod service;

use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

use endpoints::Endpoints;
use faulty::{Effect, Fault, Faulty};
use service::network::Resource;
use service::{Found, Kind, Peak, SECOND, Service, UNFILTERED};

const SLEEP: &[(f64, Resource)] = &[(1.0, Resource::Sleep)];
const WORKERS: u32 = 8;

/// 220 requests/s of 20 ms, the work of 4.4 workers, and 4/s of the route that fails.
const HALF: &[Kind] = &[
    ("fast", 220.0 / 224.0, 20.0, 19.0, [50, 150]),
    ("other", 4.0 / 224.0, 20.0, 19.0, [200, 500]),
];
/// 200 requests/s of 20 ms, and 5/s of the route that fails.
const LESS: &[Kind] = &[
    ("fast", 200.0 / 205.0, 20.0, 19.0, [50, 150]),
    ("other", 5.0 / 205.0, 20.0, 19.0, [200, 500]),
];
/// 220 requests/s of 20 ms and 10/s of 100 ms, the work of 5.4 workers.
const BOTH: &[Kind] = &[
    ("fast", 220.0 / 230.0, 20.0, 20.0, [50, 150]),
    ("dear", 10.0 / 230.0, 100.0, 100.0, [200, 500]),
];
/// 100 requests/s of 20 ms for each of two types, and 20/s of the type that fails.
const ONE_OF_THREE: &[Kind] = &[
    ("fast", 100.0 / 220.0, 20.0, 20.0, [50, 150]),
    ("other", 100.0 / 220.0, 20.0, 20.0, [50, 150]),
    ("third", 20.0 / 220.0, 20.0, 20.0, [200, 500]),
];
/// 200 requests/s of 20 ms.
const ONE: &[Kind] = &[("fast", 1.0, 20.0, 20.0, [50, 150])];
/// The mean of [`ONE`] with other service times: a small variation in `SPREAD`, and the variation
/// of an exponential distribution in `TAIL`.
const SPREAD: &[Kind] = &[("fast", 1.0, 20.0, 19.0, [50, 150])];
const TAIL: &[Kind] = &[("fast", 1.0, 20.0, 13.9, [50, 150])];
const THREE: &[Kind] = &[
    ("fast", 0.6, 20.0, 19.0, [50, 150]),
    ("search", 0.3, 40.0, 30.0, [100, 300]),
    ("report", 0.1, 100.0, 80.0, [250, 600]),
];

/// Returns three types that share the eight workers.
fn three(load: f64, seed: u64) -> Service {
    Service {
        seconds: 36,
        warm_up: 0,
        shed_by_value: true,
        load,
        seed,
        ..Service::new(THREE, WORKERS, SLEEP, f64::from(WORKERS))
    }
}

/// Returns a service of these types at `rate` requests per second, for 24 s.
fn constant(kinds: &'static [Kind], rate: f64, seed: u64) -> Service {
    let service = Service {
        seconds: 24,
        kinds,
        ..three(1.0, seed)
    };
    // `load` is relative to the capacity by mean service times.
    let load = rate / service.per_second();
    Service { load, ..service }
}

/// Runs the service behind a route with a timeout of `timeout` seconds.
fn run(service: &Service, slots: Option<u32>, timeout: u64, faults: &[Fault]) -> Found {
    let backend = Faulty::new(WORKERS, Duration::from_secs(timeout), faults);
    service.run_on(slots, backend)
}

fn fault(kind: Option<usize>, span: (u64, u64), effect: Effect) -> Fault {
    Fault {
        kind,
        one_in: 1,
        span: (span.0 * SECOND, span.1.saturating_mul(SECOND)),
        effect,
    }
}

#[test]
fn a_route_that_hangs_from_the_start_leaves_the_other_its_slots() {
    let hangs = [fault(Some(1), (0, u64::MAX), Effect::Hangs)];
    for (kinds, rate, timeout, from, least) in [
        (HALF, 224.0, 3, 4, 0.99),
        (LESS, 205.0, 2, 0, 0.98),
        // The route has no timeout. The clients give up after 10 s.
        (LESS, 205.0, 10, 0, 0.98),
    ] {
        for slots in [Some(WORKERS), None] {
            for seed in 7..11 {
                let service = Service {
                    seconds: 30,
                    ..constant(kinds, rate, seed)
                };
                let part = |slots| run(&service, slots, timeout, &hangs).in_time(0, from..30);
                let (found, unfiltered) = (part(slots), part(Some(UNFILTERED)));
                let case = format!("{rate}/s, {timeout} s, P {slots:?}, seed {seed}");
                assert!(found >= least, "{case}: {found:.3} in time");
                assert!(unfiltered < 0.1, "{case}: {unfiltered:.3} unfiltered");
            }
        }
    }
}

/// The route's timeout of 3 s ends the hung requests in the seventh second. Until then, the hung
/// requests leave enough slots for the other types, because the rest of the route's requests wait
/// apart from the queue.
#[test]
fn a_route_that_hangs_later_is_found_before_it_holds_all_slots() {
    for (slots, least) in [(Some(WORKERS), [0.85, 0.985]), (None, [0.8, 0.975])] {
        let mut parts = [[0.0; 2]; 2];
        for seed in 1..9 {
            let hangs = [fault(Some(2), (4, u64::MAX), Effect::Hangs)];
            let service = constant(ONE_OF_THREE, 220.0, seed);
            let unfiltered = run(&service, Some(UNFILTERED), 3, &hangs);
            for kind in 0..2 {
                let part = unfiltered.in_time(kind, 7..24);
                assert!(part < 0.5, "seed {seed}: {part:.3} unfiltered");
            }
            let found = run(&service, slots, 3, &hangs);
            for (parts, span) in parts.iter_mut().zip([5..7, 6..24]) {
                for (kind, part) in parts.iter_mut().enumerate() {
                    *part += found.in_time(kind, span.clone()) / 8.0;
                }
            }
        }
        for (parts, least) in parts.iter().zip(least) {
            assert!(
                parts.iter().all(|part| *part >= least),
                "P {slots:?}: {parts:.3?}"
            );
        }
    }
}

/// The workers of a proxy with the Wasm filter decide by themselves, and exchange what they have
/// measured.
#[test]
fn workers_find_a_route_that_hangs_later() {
    for (workers, slots, least) in [
        (2, Some(WORKERS), [0.7, 0.975]),
        (4, Some(WORKERS), [0.5, 0.96]),
        (2, None, [0.4, 0.95]),
    ] {
        let mut parts = [[0.0; 2]; 2];
        for seed in 1..9 {
            let hangs = [fault(Some(2), (4, u64::MAX), Effect::Hangs)];
            let service = constant(ONE_OF_THREE, 220.0, seed);
            let backend = Faulty::new(WORKERS, Duration::from_secs(3), &hangs);
            let found = proxies::run(&service, (1, workers), slots, backend);
            for (parts, span) in parts.iter_mut().zip([5..7, 6..24]) {
                for (kind, part) in parts.iter_mut().enumerate() {
                    *part += found.in_time(kind, span.clone()) / 8.0;
                }
            }
        }
        for (parts, least) in parts.iter().zip(least) {
            assert!(
                parts.iter().all(|part| *part >= least),
                "{workers} workers, P {slots:?}: {parts:.3?}"
            );
        }
    }
}

/// Returns the ratio of requests arriving in these seconds that are answered in time. One endpoint
/// of four hangs from the fourth second on.
fn behind_a_hung_endpoint(
    kinds: &'static [Kind],
    slots: Option<u32>,
    ejects: Option<u32>,
    spans: &[Range<usize>; 2],
) -> [f64; 2] {
    let mut parts = [0.0; 2];
    for seed in 1..9 {
        let hangs = [fault(None, (4, u64::MAX), Effect::Hangs)];
        let endpoint = |faults| Faulty::new(WORKERS / 4, Duration::from_secs(3), faults);
        let well: [&[Fault]; 3] = [&[]; 3];
        let all = std::iter::once(hangs.as_slice()).chain(well).map(endpoint);
        let found = constant(kinds, 200.0, seed).run_on(slots, Endpoints::new(all, ejects));
        for (part, span) in parts.iter_mut().zip(spans) {
            *part += found.in_time(0, span.clone()) / 8.0;
        }
    }
    parts
}

/// A quarter of the requests goes to the hung endpoint. The other requests are answered, because
/// requests of a host that answers nothing give their slots back.
#[test]
fn an_endpoint_that_hangs_holds_slots_for_a_moment() {
    for kinds in [ONE, SPREAD, TAIL] {
        let unfiltered = behind_a_hung_endpoint(kinds, Some(UNFILTERED), None, &[7..11, 11..24]);
        for slots in [Some(WORKERS), None] {
            let parts = behind_a_hung_endpoint(kinds, slots, None, &[7..11, 11..24]);
            let case = format!("{kinds:?}, P {slots:?}: {parts:.3?} of {unfiltered:.3?}");
            let [soon, after] = [0, 1].map(|at| parts[at] / unfiltered[at]);
            assert!(soon >= 0.9 && after >= 0.98, "{case}");
        }
    }
}

/// Answers are late because a quarter of the requests hangs, not because many requests are in the
/// backend. So the P that is found must be no less than the slots that work. Half of the few
/// requests in flight would be less: with that P, a tenth of all requests was refused for seconds.
#[test]
fn an_endpoint_that_hangs_does_not_lower_p_below_the_slots_that_work() {
    let unfiltered = behind_a_hung_endpoint(ONE, Some(UNFILTERED), None, &[4..8, 8..11]);
    let parts = behind_a_hung_endpoint(ONE, None, None, &[4..8, 8..11]);
    let kept = [0, 1].map(|at| parts[at] / unfiltered[at]);
    assert!(kept.iter().all(|kept| *kept >= 0.97), "{kept:.3?}");
}

/// Slow requests of endpoints that answer keep their slots, even under overload.
#[test]
fn endpoints_that_answer_never_have_more_than_p_requests() {
    for (kinds, load) in [(TAIL, 0.9), (TAIL, 1.3), (THREE, 1.3)] {
        let most = Cell::new(0);
        for seed in 1..5 {
            let endpoint = |_| Faulty::new(WORKERS / 4, Duration::from_secs(3), &[]);
            let backend = Peak::new(Endpoints::new((0..4).map(endpoint), None), &most);
            let service = Service {
                kinds,
                ..three(load, seed)
            };
            service.run_on(Some(WORKERS), backend);
        }
        assert_eq!(most.get(), WORKERS, "{kinds:?} at {load}");
    }
}

/// Outlier detection ejects the endpoint at the fifth timeout. The other endpoints get the slots
/// that the ejected endpoint doesn't hold.
#[test]
fn an_endpoint_that_hangs_is_ejected() {
    for slots in [Some(WORKERS), None] {
        let [meanwhile, after] = behind_a_hung_endpoint(ONE, slots, Some(5), &[8..11, 11..24]);
        assert!(meanwhile >= 0.8, "P {slots:?}: {meanwhile:.3}");
        assert!(after >= 0.98, "P {slots:?}: {after:.3}");
    }
}

/// The fault lasts from the eighth to the twentieth second, and the route's timeout is 3 s. Until
/// the first timeout, the earliest requests hold the workers.
#[test]
fn a_route_that_breaks_is_contained_and_comes_back() {
    let (begin, end) = (8, 20);
    let errors = Effect::Errors(Duration::from_millis(1));
    for (broken, effect, from) in [
        (0, Effect::Hangs, begin + 4),
        (1, Effect::Hangs, begin + 4),
        (2, Effect::Hangs, begin + 4),
        (2, Effect::Slow(10.0), begin + 4),
        (0, errors, begin),
        (1, errors, begin),
    ] {
        for slots in [Some(WORKERS), None] {
            let mut parts = [[0.0; 3]; 3];
            for seed in 3..7 {
                let service = three(0.6, seed);
                let faults = [fault(Some(broken), (begin, end), effect)];
                let found = run(&service, slots, 3, &faults);
                let spans = [2..begin, from..end, end + 5..35];
                for (parts, span) in parts.iter_mut().zip(spans) {
                    let span = span.start as usize..span.end as usize;
                    for (kind, part) in parts.iter_mut().enumerate() {
                        *part += found.in_time(kind, span.clone()) / 4.0;
                    }
                }
            }
            let case = format!("{effect:?} of {broken}, P {slots:?}: {parts:.3?}");
            let [before, meanwhile, after] = parts;
            assert!(before.iter().all(|part| *part >= 0.99), "before, {case}");
            let others = meanwhile
                .iter()
                .enumerate()
                .filter(|(kind, _)| *kind != broken);
            assert!(
                others.map(|(_, part)| part).all(|part| *part >= 0.9),
                "meanwhile, {case}"
            );
            assert!(after.iter().all(|part| *part >= 0.9), "after it, {case}");
        }
    }
}

#[test]
fn a_backend_that_hangs_as_a_whole_is_used_again_once_it_answers() {
    for slots in [Some(WORKERS), None] {
        let mut parts = [0.0; 3];
        for seed in 3..7 {
            let faults = [fault(None, (8, 13), Effect::Hangs)];
            let found = run(&three(0.6, seed), slots, 3, &faults);
            for (kind, part) in parts.iter_mut().enumerate() {
                *part += found.in_time(kind, 18..35) / 4.0;
            }
        }
        assert!(
            parts.iter().all(|part| *part >= 0.9),
            "{slots:?}: {parts:.3?}"
        );
    }
}

/// Returns the ratio of the first type's requests in these seconds that are answered in time, after
/// the whole backend has hung for this span.
fn after_a_hang(
    service: &Service,
    slots: Option<u32>,
    span: (u64, u64),
    seconds: Range<usize>,
) -> f64 {
    let found = run(service, slots, 3, &[fault(None, span, Effect::Hangs)]);
    found.in_time(0, seconds)
}

/// Requests that hang hold their slots for the route's timeout, 150 times as long as usual. The
/// first answers end this, also for the number of slots that the type demands. When that number
/// was averaged over a second, it exceeded all slots for five more seconds, in which 30% of the
/// requests were refused.
#[test]
fn requests_of_a_backend_that_answers_again_ask_for_their_usual_slots() {
    for slots in [Some(WORKERS), None] {
        for seed in 3..7 {
            let part = after_a_hang(&constant(HALF, 224.0, seed), slots, (8, 13), 16..24);
            assert!(part >= 0.97, "{slots:?}, seed {seed}: {part:.3}");
        }
    }
}

/// The type that broke last isn't restricted, and its requests also hold their slots until the
/// timeout. This is a regression test: when that time was counted, the type's arrivals demanded a
/// hundred slots, and for three seconds after the end of the fault only one request in twenty was
/// admitted.
#[test]
fn the_type_that_broke_last_asks_for_its_usual_slots_again() {
    for slots in [Some(WORKERS), None] {
        for seed in 3..15 {
            let part = after_a_hang(&constant(BOTH, 230.0, seed), slots, (5, 10), 12..18);
            assert!(part >= 0.9, "{slots:?}, seed {seed}: {part:.3}");
        }
    }
}

/// A type whose requests all fail has no value, even if they are cheap. Under overload, the slots
/// of this type go to other types.
#[test]
fn under_overload_a_type_that_only_fails_comes_last() {
    let errors = Effect::Errors(Duration::from_millis(30));
    let faults = [fault(Some(0), (0, u64::MAX), errors)];
    let mean = |slots, faults: &[Fault], kind| {
        let runs = (3..7).map(|seed| run(&three(1.5, seed), Some(slots), 3, faults));
        runs.map(|found| found.in_time(kind, 5..35)).sum::<f64>() / 4.0
    };
    assert!(
        mean(WORKERS, &[], 1) < 0.8,
        "search is cut for the sake of fast"
    );
    let search = mean(WORKERS, &faults, 1);
    assert!(search > 0.95, "{search:.3} of search in time");
    let unfiltered = mean(UNFILTERED, &faults, 1);
    assert!(unfiltered < 0.5, "{unfiltered:.3} of search unfiltered");
}
