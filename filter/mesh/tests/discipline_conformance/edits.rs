//! Tests of edits of the discipline while requests wait.

use headgate_core::config::Discipline;
use headgate_core::stage::Outcome;

use super::process::{A, B, Process, Sent, all, config, ms};

/// Returns the process, and the numbers of six requests in the order in which they are served after
/// `edit`. At the edit, these requests wait behind a running request.
fn order(
    workers: usize,
    discipline: &Discipline,
    edit: impl FnOnce(&mut Process),
) -> (Process, Vec<usize>) {
    let mut process = Process::new(workers, &config(1, discipline));
    let running = process.arrive(0, A);
    let high = |sent| Sent {
        class: "high",
        ..sent
    };
    let deadline = Some(ms(80));
    let sent = [
        A,
        high(B),
        B,
        high(A),
        Sent { deadline, ..B },
        Sent { deadline, ..A },
    ];
    let streams: Vec<u32> = sent
        .into_iter()
        .enumerate()
        .map(|(n, sent)| {
            process.pass(ms(3));
            process.arrive(n % workers, sent)
        })
        .collect();
    process.started.clear();
    edit(&mut process);
    process.finish(running, Outcome::Unmeasured);
    process.settle();
    process.drain();
    let place = |stream: &u32| streams.iter().position(|s| s == stream).unwrap();
    let order = process.started.iter().map(place).collect();
    (process, order)
}

#[test]
fn an_edit_reorders_waiting_requests_as_if_in_force_from_the_start() {
    let mut orders = Vec::new();
    for after in all() {
        for workers in 1..=3 {
            let (_, expected) = order(workers, &after, |_| {});
            for before in all() {
                let (process, found) = order(workers, &before, |process| {
                    for worker in 0..workers {
                        process.configure(worker, &config(1, &after));
                    }
                });
                process.assert_nothing_booked();
                let turns = matches!(after, Discipline::Drr { .. } | Discipline::Wfq { .. });
                if turns && workers > 1 && before != after {
                    // The order may differ, because the worker that receives the edit first has the
                    // first turns of each flow.
                    assert_eq!(found.len(), expected.len());
                    continue;
                }
                assert_eq!(found, expected, "{before:?} to {after:?}, {workers}");
            }
            orders.push(expected);
        }
    }
    orders.sort_unstable();
    orders.dedup();
    assert!(orders.len() >= 4, "the edits do change orders");
}

/// Until the edit has reached every worker, each worker serves its own requests first, in its own
/// order. No slot is idle and no request is forgotten.
#[test]
fn an_edit_that_has_reached_only_some_workers_idles_no_slot() {
    let afters = |before: Discipline| all().into_iter().map(move |after| (before.clone(), after));
    for (before, after) in all().into_iter().flat_map(afters) {
        let mut process = Process::new(2, &config(2, &before));
        let running: Vec<u32> = (0..2).map(|worker| process.arrive(worker, A)).collect();
        let waiting: Vec<u32> = (0..8)
            .map(|n| {
                process.pass(ms(3));
                process.arrive(usize::from(n >= 4), if n % 2 == 0 { A } else { B })
            })
            .collect();
        process.configure(0, &config(2, &after));
        process.settle();
        assert_eq!(process.in_backend(), running);
        let mut served = 0;
        while let Some(stream) = process.in_backend().first().copied() {
            process.finish(stream, Outcome::Unmeasured);
            process.settle();
            served += 1;
            let (running, queued) = (process.in_backend().len(), process.queued().len());
            assert!(running == 2 || queued == 0, "{before:?} to {after:?}");
            if served == 6 {
                process.configure(1, &config(2, &after));
            }
        }
        assert_eq!(served, running.len() + waiting.len());
        process.assert_nothing_booked();
    }
}
