use std::sync::LazyLock;

use crate::memory::{Fault, MemoryHost};
use headgate_core::requests::{Request, Requests};
use headgate_strategies::request::{Attributes, TypeId};
use proptest::prelude::*;

use super::*;

const W: WorkflowId = WorkflowId(3);
const FOREVER: Duration = Duration::from_secs(3_600);

fn at(ms: u64) -> Instant {
    Instant::default() + Duration::from_secs(1_000) + Duration::from_millis(ms)
}

fn level(rate: f64) -> Level {
    Level {
        at: at(0),
        tickets: 0.0,
        rate,
    }
}

/// Returns the ticket of the request in slot `n` of a table.
fn request(n: usize) -> Ticket {
    static TICKETS: LazyLock<Vec<Ticket>> = LazyLock::new(|| {
        let mut requests = Requests::default();
        let request = |n| Request::new(n, Attributes::of(TypeId(0)), at(0));
        (0..4_096).map(|n| requests.insert(request(n))).collect()
    });
    TICKETS[n]
}

/// A limiter, and the level of its only workflow.
struct Limited {
    limiter: Limiter,
    level: Level,
}

fn limiter(rate: f64) -> Limited {
    Limited {
        limiter: Limiter::new("p"),
        level: level(rate),
    }
}

impl Limited {
    fn arrive(
        &mut self,
        host: &MemoryHost,
        ms: u64,
        longest: u32,
        tolerance: Duration,
    ) -> Result<Verdict, HostError> {
        let limited = (W, &self.level);
        self.limiter
            .arrive(host, at(ms), limited, longest, tolerance)
    }

    fn hold(&mut self, n: usize, ms: u64, tolerance: Duration) {
        self.limiter.hold(W, request(n), at(ms), tolerance);
    }

    fn remove(&mut self, n: usize) -> bool {
        self.limiter.remove(W, request(n))
    }
}

/// Decides on an arriving request, and holds the request if it has to wait.
fn arrive(limiter: &mut Limited, host: &MemoryHost, ms: u64, n: usize, longest: u32) -> Verdict {
    let verdict = limiter.arrive(host, ms, longest, FOREVER).unwrap();
    if let Verdict::Wait(_) = verdict {
        limiter.hold(n, ms, FOREVER);
    }
    verdict
}

fn release(limited: &mut Limited, ms: u64) -> Vec<(u32, bool)> {
    let mut out = Vec::new();
    let Limited { limiter, level } = limited;
    let level = |workflow| (workflow == W).then_some(*level);
    limiter.release(at(ms), level, |request, fate| {
        out.push((request.slot(), matches!(fate, Fate::Pass(_))));
    });
    out
}

#[test]
fn requests_go_at_the_rate_in_their_order() {
    let host = MemoryHost::new();
    let mut workers = [limiter(100.0), limiter(100.0)];
    for n in 0..20 {
        let verdict = arrive(&mut workers[n % 2], &host, 0, n, 100);
        let wait = Duration::from_millis(10 * (n as u64 + 1));
        assert_eq!(verdict, Verdict::Wait(wait));
    }
    let mut order = Vec::new();
    for ms in (10..=200).step_by(10) {
        for worker in &mut workers {
            order.extend(release(worker, ms + 1));
        }
        assert_eq!(order.len() as u64, ms / 10);
    }
    let expected: Vec<_> = (0..20).map(|n| (n, true)).collect();
    assert_eq!(order, expected);
}

#[test]
fn an_idle_workflow_finds_a_burst_and_no_more() {
    let host = MemoryHost::new();
    let mut limiter = limiter(1_000.0);
    let passed = |limiter: &mut Limited, ms| {
        let verdicts = (0..100).map(|n| arrive(limiter, &host, ms, n, 0));
        verdicts.filter(|v| *v == Verdict::Pass).count()
    };
    assert_eq!(passed(&mut limiter, 60_000), 20);
    assert_eq!(passed(&mut limiter, 60_005), 5);
    assert_eq!(passed(&mut limiter, 120_000), 20);
}

#[test]
fn a_request_that_cannot_wait_learns_when_it_would_pass() {
    let host = MemoryHost::new();
    let mut limiter = limiter(10.0);
    assert_eq!(
        arrive(&mut limiter, &host, 0, 0, 1),
        Verdict::Wait(Duration::from_millis(100))
    );
    assert_eq!(
        arrive(&mut limiter, &host, 0, 1, 1),
        Verdict::Full(Duration::from_millis(200))
    );
    let tolerance = Duration::from_millis(150);
    let late = limiter.arrive(&host, 0, 9, tolerance).unwrap();
    assert_eq!(late, Verdict::Late(Duration::from_millis(200)));
    // A refused request doesn't use up a number.
    assert_eq!(
        arrive(&mut limiter, &host, 0, 2, 9),
        Verdict::Wait(Duration::from_millis(200))
    );
}

#[test]
fn a_request_that_leaves_frees_its_turn_for_those_behind() {
    let host = MemoryHost::new();
    let mut limiter = limiter(100.0);
    for n in 0..4 {
        arrive(&mut limiter, &host, 0, n, 9);
    }
    assert!(limiter.remove(1) && !limiter.remove(1));
    assert_eq!(release(&mut limiter, 31), [(0, true), (2, true), (3, true)]);
    // The last unused number goes to the next request.
    assert_eq!(
        arrive(&mut limiter, &host, 31, 9, 9),
        Verdict::Wait(Duration::from_millis(9))
    );
    assert_eq!(limiter.limiter.held(), 1);
}

#[test]
fn a_new_rate_applies_to_waiting_requests() {
    let host = MemoryHost::new();
    let mut limiter = limiter(1.0);
    for n in 0..10 {
        arrive(&mut limiter, &host, 0, n, 100);
    }
    let faster = Level {
        at: at(100),
        tickets: level(1.0).reached(at(100)),
        rate: 100.0,
    };
    limiter.level = faster;
    assert_eq!(release(&mut limiter, 201).len(), 10);

    let tolerance = Duration::from_millis(500);
    for n in 0..3 {
        let verdict = limiter.arrive(&host, 201, 9, tolerance).unwrap();
        if let Verdict::Wait(_) = verdict {
            limiter.hold(n, 201, tolerance);
        }
    }
    limiter.level = Level {
        at: at(201),
        rate: 0.0,
        tickets: faster.reached(at(201)),
    };
    let held = limiter.limiter.held();
    assert_eq!(
        release(&mut limiter, 202)
            .iter()
            .filter(|(_, passed)| !passed)
            .count(),
        held
    );
    assert_eq!(limiter.limiter.held(), 0);
}

#[test]
fn a_dead_workers_waiters_lose_their_turns_and_nothing_else() {
    let host = MemoryHost::new();
    let mut workers = [limiter(100.0), limiter(100.0)];
    for n in 0..10 {
        arrive(&mut workers[n % 2], &host, 0, n, 100);
    }
    let [survivor, dead] = &mut workers;
    *dead = limiter(100.0);
    assert_eq!(release(survivor, 101).len(), 5);
    // The numbers of the dead worker's waiters are lost, so the next requests pass at the rate.
    for n in 10..20 {
        assert!(matches!(
            arrive(survivor, &host, 1_000 + 10 * n as u64, n, 0),
            Verdict::Pass
        ));
    }
}

#[test]
fn a_failing_host_takes_no_turn() {
    let host = MemoryHost::new();
    let mut limiter = limiter(100.0);
    arrive(&mut limiter, &host, 0, 0, 9);
    host.inject(Fault::MetricFails, 1);
    assert!(limiter.arrive(&host, 0, 9, FOREVER).is_err());
    assert_eq!(
        arrive(&mut limiter, &host, 0, 1, 9),
        Verdict::Wait(Duration::from_millis(20))
    );
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Arrive(usize),
    Leave(usize),
    Tick(usize),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0_usize..3).prop_map(Step::Arrive),
        1 => any::<usize>().prop_map(Step::Leave),
        2 => (0_usize..3).prop_map(Step::Tick),
        4 => (0_u64..15).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    /// Over three workers and any time t, at most σ·t + burst requests pass, plus the waiters of a
    /// late tick. The waiters of one worker pass in order of arrival.
    #[test]
    fn never_above_the_rate_and_in_order(
        steps in steps(),
        rate in 1.0..500.0_f64,
        longest in 0_u32..40,
    ) {
        let host = MemoryHost::new();
        let mut workers = [limiter(rate), limiter(rate), limiter(rate)];
        let mut waiting: [Vec<u32>; 3] = Default::default();
        let mut gone: Vec<f64> = Vec::new();
        let (mut ms, mut ticked, mut latest) = (0, [0_u64; 3], 0_u64);
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Arrive(w) => match arrive(&mut workers[w], &host, ms, n, longest) {
                    Verdict::Pass => gone.push(ms as f64 / 1e3),
                    Verdict::Wait(_) => waiting[w].push(n as u32),
                    Verdict::Full(_) | Verdict::Late(_) => {}
                },
                Step::Leave(at) => {
                    let w = at % 3;
                    if !waiting[w].is_empty() {
                        let slot = waiting[w].remove(at / 3 % waiting[w].len());
                        prop_assert!(workers[w].remove(slot as usize));
                    }
                }
                Step::Tick(w) => {
                    latest = latest.max(ms - ticked[w]);
                    ticked[w] = ms;
                    let out = release(&mut workers[w], ms);
                    let expected: Vec<_> =
                        waiting[w].drain(..out.len()).map(|n| (n, true)).collect();
                    prop_assert_eq!(&out, &expected);
                    gone.extend(out.iter().map(|_| ms as f64 / 1e3));
                }
                Step::Pass(more) => ms += more,
            }
        }
        // At the start there were no unused numbers.
        for (n, end) in gone.iter().enumerate() {
            prop_assert!(n as f64 + 1.0 <= rate * end + 1e-6, "{} by {}", n + 1, end);
        }
        let slack = level(rate).burst() + rate * latest as f64 / 1e3 + 1e-6;
        for (i, begin) in gone.iter().enumerate() {
            for (j, end) in gone.iter().enumerate().skip(i) {
                let most = rate * (end - begin) + slack + 1.0;
                prop_assert!((j - i + 1) as f64 <= most, "{} in {} s", j - i + 1, end - begin);
            }
        }
    }

    /// While at least one request waits, the whole rate is used, regardless of the requests that
    /// leave.
    #[test]
    fn all_of_the_rate_is_used(
        rate in 5.0..500.0_f64,
        leaves in prop::collection::vec(any::<u8>(), 300),
    ) {
        let host = MemoryHost::new();
        let mut workers = [limiter(rate), limiter(rate)];
        let mut waiting: [Vec<u32>; 2] = Default::default();
        let mut gone = 0_usize;
        let mut n = 0;
        for (tick, leave) in leaves.iter().enumerate() {
            let ms = tick as u64 * 10;
            for w in 0..2 {
                let out = release(&mut workers[w], ms);
                waiting[w].drain(..out.len());
                gone += out.len();
                while waiting[w].len() < 20 {
                    n += 1;
                    if let Verdict::Wait(_) = arrive(&mut workers[w], &host, ms, n, 1_000) {
                        waiting[w].push(n as u32);
                    } else {
                        gone += 1;
                    }
                }
                if leave % 3 == 0 {
                    let slot = waiting[w].remove(usize::from(*leave) % waiting[w].len());
                    prop_assert!(workers[w].remove(slot as usize));
                }
            }
        }
        let could = rate * 2.99;
        prop_assert!(gone as f64 >= could - 3.0 && gone as f64 <= could + 1.0, "{gone} of {could}");
    }
}
