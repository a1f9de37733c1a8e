//! Tests of invariants in any order of events. Slots are conserved and never idle while a request
//! waits. No request is lost, served twice or served too late. No worker's waiter overtakes another
//! worker's waiter by more than the tolerance.

use headgate_core::config::{Discipline, QueueMode};
use headgate_core::stage::{ORDER_TOLERANCE, Outcome};
use proptest::prelude::*;

use super::process::{A, B, Process, Sent, all, config, ms};

#[derive(Debug, Clone, Copy)]
enum Step {
    Arrive { worker: usize, sent: Sent },
    Complete(usize),
    Leave(usize),
    Pass { micros: u64 },
    Tick,
    Parallelism(u32),
}

fn sent() -> impl Strategy<Value = Sent> {
    let deadline = prop::option::weighted(0.3, (1_u64..50).prop_map(ms));
    let progress = prop::option::of(prop::sample::select(vec![
        "elapsed=3, total=4, work=9, total-work=11",
        "elapsed=1, total=90, work=2, total-work=300",
        "work=7",
    ]));
    let classes = prop::sample::select(vec!["high", "low"]);
    let baggage = prop::sample::select(vec!["", "workflow=x", "workflow=y", "user=1,workflow=z"]);
    (any::<bool>(), classes, baggage, progress, deadline).prop_map(
        |(long, class, baggage, progress, deadline)| Sent {
            path: if long { "/b" } else { "/a" },
            class,
            baggage,
            progress,
            deadline,
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0_usize..4, sent()).prop_map(|(worker, sent)| Step::Arrive { worker, sent }),
        4 => any::<usize>().prop_map(Step::Complete),
        2 => any::<usize>().prop_map(Step::Leave),
        4 => (1_u64..8_000).prop_map(|micros| Step::Pass { micros }),
        1 => Just(Step::Tick),
        1 => (1_u32..5).prop_map(Step::Parallelism),
    ];
    prop::collection::vec(step, 1..100)
}

/// Returns [`ORDER_TOLERANCE`] in the unit of the discipline's ranks. The unit is ns, or the
/// discipline's own unit of time above the four lowest bits.
fn tolerance(discipline: &Discipline) -> u64 {
    let nanos = ORDER_TOLERANCE.as_nanos() as u64;
    match discipline {
        Discipline::Fifo | Discipline::Edf | Discipline::Lstf | Discipline::Slack => nanos,
        Discipline::Sjf | Discipline::Srtf | Discipline::Lasf => nanos >> 17 << 4,
        Discipline::Drr { .. } => nanos >> 18 << 4,
        Discipline::Wfq { .. } => nanos >> 20 << 4,
        Discipline::Priority => nanos >> 10 << 4,
    }
}

/// Asserts that the waiter that started was the first, within the tolerance, if exactly one waiter
/// started.
fn assert_in_order(
    process: &Process,
    heads: &[Option<u64>],
    started: &[u32],
    discipline: &Discipline,
) {
    let [stream] = started else { return };
    let Some(own) = process.worker_of(*stream).and_then(|worker| heads[worker]) else {
        return;
    };
    let first = heads.iter().flatten().min().unwrap();
    assert!(
        own <= first + tolerance(discipline),
        "{stream} at {own} overtakes {first}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn invariants_hold_for_any_events(steps in steps(), workers in 1_usize..=4) {
        for discipline in all() {
            let mut p = 2;
            let mut process = Process::new(workers, &config(p, &discipline));
            let mut arrived = 0;
            let mut left = 0;
            for step in &steps {
                let before = process.in_backend().len();
                let (heads, started, refused) =
                    (process.heads(), process.started.len(), process.refused.len());
                match *step {
                    Step::Arrive { worker, sent } => {
                        process.arrive(worker % workers, sent);
                        arrived += 1;
                    }
                    Step::Complete(n) | Step::Leave(n) => {
                        let all: Vec<u32> = process
                            .in_backend()
                            .into_iter()
                            .chain(process.queued())
                            .collect();
                        if !all.is_empty() {
                            let stream = all[n % all.len()];
                            left += usize::from(process.queued().contains(&stream));
                            let completed = matches!(step, Step::Complete(_));
                            process.finish(
                                stream,
                                if completed {
                                    Outcome::Completed
                                } else {
                                    Outcome::Unmeasured
                                },
                            );
                        }
                    }
                    Step::Pass { micros } => process.pass(std::time::Duration::from_micros(micros)),
                    Step::Tick => process.tick(),
                    Step::Parallelism(new) => {
                        p = new;
                        for worker in 0..workers {
                            process.configure(worker, &config(p, &discipline));
                        }
                    }
                }
                process.settle();
                if matches!(step, Step::Complete(_)) && process.refused.len() == refused {
                    assert_in_order(&process, &heads, &process.started[started..], &discipline);
                }
                let (running, queued) = (process.in_backend().len(), process.queued().len());
                prop_assert!(running <= (p as usize).max(before), "{running} run, P is {p}");
                prop_assert!(
                    running >= p as usize || queued == 0,
                    "{queued} wait beside a free slot"
                );
                prop_assert_eq!(process.gauge("slots_in_use"), running as u64);
                prop_assert_eq!(process.booked_queue().0, queued as u64);
            }
            process.drain();
            process.assert_nothing_booked();
            // Every request was served or refused, or its client left.
            prop_assert_eq!(
                process.started.len() + process.refused.len() + left,
                arrived,
                "{:?}",
                discipline
            );
        }
    }
}

/// Deadlines of requests behind the head of the queue expire, too. These requests leave at the next
/// tick and never get a slot.
#[test]
fn expired_requests_leave_from_any_position_of_the_queue() {
    for discipline in all() {
        for workers in 1..=3 {
            let mut process = Process::new(workers, &config(1, &discipline));
            process.arrive(0, A);
            let mut expected = Vec::new();
            for n in 0..12 {
                process.pass(ms(2));
                let deadline = (n % 3 == 1).then_some(ms(400 + 5 * n));
                let sent = if n % 2 == 0 { A } else { B };
                let stream = process.arrive(n as usize % workers, Sent { deadline, ..sent });
                if deadline.is_some() {
                    expected.push(stream);
                }
            }
            process.run_for(ms(360));
            assert_eq!(process.refused, [], "{discipline:?}");
            process.run_for(ms(150));
            let mut refused: Vec<u32> = process.refused.iter().map(|(stream, _)| *stream).collect();
            refused.sort_unstable();
            assert_eq!(refused, expected, "{discipline:?}");
            assert_eq!(process.booked_queue().0, 8);
            assert_eq!(process.drain().len(), 8);
            process.assert_nothing_booked();
        }
    }
}

/// Without a tick after deadlines have expired, a freed slot goes to a request that still has time.
#[test]
fn a_free_slot_is_not_given_to_an_expired_request() {
    for discipline in all() {
        let mut process = Process::new(1, &config(1, &discipline));
        let running = process.arrive(0, A);
        let alive: Vec<u32> = (0..6)
            .map(|n| {
                process.pass(ms(2));
                let (late, other) = if n % 2 == 0 { (A, B) } else { (B, A) };
                let deadline = Some(ms(80));
                process.arrive(0, Sent { deadline, ..late });
                process.pass(ms(2));
                process.arrive(0, other)
            })
            .collect();
        process.pass(ms(500));
        process.finish(running, Outcome::Completed);
        // `Process` fails the test if a late request starts.
        let mut served = process.drain();
        served.extend(process.started.iter().filter(|s| alive.contains(s)));
        served.sort_unstable();
        served.dedup();
        assert_eq!(served, alive, "{discipline:?}");
        process.run_for(ms(10));
        assert_eq!(process.refused.len(), 6);
        process.assert_nothing_booked();
    }
}

/// An observed queue is in the backend, so the configured discipline has no effect.
#[test]
fn a_watched_queue_is_a_fifo_whatever_is_configured() {
    for discipline in all() {
        let mut config = config(1, &discipline);
        let mut process = Process::new(2, &config);
        config.stages[0].queue.mode = QueueMode::Observe;
        for worker in 0..2 {
            process.configure(worker, &config);
        }
        process.run_for(ms(100));
        let waits = |process: &Process| {
            let name = "headgate.policy.ns/p.type.a.queue_wait_us";
            process.host.recorded(name).unwrap()
        };
        let before = waits(&process);
        let sent = [B, B, A, B, A];
        let streams: Vec<u32> = sent
            .into_iter()
            .enumerate()
            .map(|(n, sent)| {
                process.pass(ms(1));
                process.arrive(n % 2, sent)
            })
            .collect();
        assert_eq!(process.in_backend(), streams, "none is held");
        for stream in streams {
            process.pass(ms(10));
            process.finish(stream, Outcome::Completed);
            process.settle();
        }
        // The two requests of type `a` arrived after 3 and 5 ms, and started after 25 and 45 ms.
        let after = waits(&process);
        let found = (after.0 - before.0, after.1 - before.1);
        assert_eq!(found, (2, 22_000 + 40_000), "{discipline:?}");
        process.assert_nothing_booked();
    }
}
