//! Tests of the order of service under each discipline, on one worker and on several workers.

use headgate_core::config::{Discipline, Flow};
use headgate_core::stage::Outcome;

use super::process::{A, B, Process, Sent, all, config, ms};

/// Returns five requests that every discipline orders differently.
fn five() -> [Sent; 5] {
    [
        Sent {
            class: "high",
            baggage: "workflow=y",
            progress: Some("elapsed=5, total=30, work=7, total-work=80"),
            ..B
        },
        Sent {
            class: "high",
            baggage: "workflow=y",
            deadline: Some(ms(90)),
            progress: Some("elapsed=20, total=90, work=3, total-work=50"),
            ..A
        },
        Sent {
            class: "high",
            baggage: "workflow=z",
            ..B
        },
        Sent {
            baggage: "workflow=x",
            deadline: Some(ms(92)),
            ..A
        },
        Sent {
            class: "high",
            baggage: "workflow=x",
            deadline: Some(ms(150)),
            progress: Some("elapsed=5, total=60, work=20, total-work=25"),
            ..B
        },
    ]
}

/// Returns the order in which the requests of [`five`] are served, derived by hand from the
/// definition of `discipline`. Times in the comments are from the first arrival on.
fn expected(discipline: &Discipline) -> [usize; 5] {
    match discipline {
        Discipline::Fifo => [0, 1, 2, 3, 4],
        // The deadlines are 100, 92, 104, 98 and 158 ms.
        Discipline::Edf => [1, 3, 0, 2, 4],
        // The order is by the deadline less the remaining processing time, which is 25, 70, 10, 1
        // and 55 ms.
        Discipline::Lstf => [1, 0, 2, 3, 4],
        // The total work is 80, 50, 10, 1 and 25 ms.
        Discipline::Sjf => [3, 2, 4, 1, 0],
        // The remaining processing time is 25, 70, 10, 1 and 55 ms.
        Discipline::Srtf => [3, 2, 0, 4, 1],
        // The work done is 7, 3, 0, 0 and 20 ms.
        Discipline::Lasf => [2, 3, 1, 0, 4],
        // The latest starts are 2, 21, 6, 25 and 10 ms.
        Discipline::Slack => [0, 2, 4, 1, 3],
        // Only the fourth request is of the lower class.
        Discipline::Priority => [0, 1, 2, 4, 3],
        Discipline::Drr { by, .. } => match by {
            // A request of `b` costs 10 ms, which is a round, and one of `a` 1 ms. The rounds are
            // 1, 1, 2, 1, 3.
            Flow::Type => [0, 1, 3, 2, 4],
            // The sums of costs are 10, 11, 21 and 31 ms for `high`, and 1 ms for `low`. The rounds
            // are 1, 2, 3, 1, 4.
            Flow::Class => [0, 3, 1, 2, 4],
            // The sums of costs are 10 and 11 ms for `y`, 10 ms for `z`, and 1 and 11 ms for `x`.
            // The rounds are 1, 2, 1, 1, 2.
            Flow::Workflow => [0, 2, 3, 1, 4],
        },
        Discipline::Wfq { by, .. } => match by {
            // A request of `b` costs 10 ms, and one of `a` 1 ms at a weight of 0.04. The tags are
            // 10, 25, 20, 50, 30.
            Flow::Type => [0, 2, 1, 4, 3],
            // The tags are 10, 11, 21, 1, 31.
            Flow::Class => [3, 0, 1, 2, 4],
            // The tags are 10, 11, 10, 1, 11.
            Flow::Workflow => [3, 0, 2, 1, 4],
        },
    }
}

fn order(process: &mut Process, workers: usize) -> Vec<usize> {
    let running = process.arrive(0, A);
    let streams: Vec<u32> = five()
        .into_iter()
        .enumerate()
        .map(|(n, sent)| {
            process.pass(ms(2));
            process.arrive(n % workers, sent)
        })
        .collect();
    process.started.clear();
    process.finish(running, Outcome::Unmeasured);
    process.settle();
    process.drain();
    let place = |stream: &u32| streams.iter().position(|s| s == stream).unwrap();
    process.started.iter().map(place).collect()
}

#[test]
fn every_discipline_has_an_order_of_its_own_on_any_number_of_workers() {
    let mut orders = Vec::new();
    for discipline in all() {
        for workers in 1..=4 {
            let mut process = Process::new(workers, &config(1, &discipline));
            let order = order(&mut process, workers);
            assert_eq!(order, expected(&discipline), "{discipline:?}, {workers}");
        }
        orders.push(expected(&discipline));
    }
    orders.sort_unstable();
    orders.dedup();
    assert_eq!(orders.len(), all().len(), "all differ");
}

/// Returns the wait of a long request with a late deadline, ms, or `None` if the wait is longer
/// than two seconds. Short and urgent requests arrive continuously, beyond the capacity.
fn wait_of_the_patient(discipline: &Discipline, workers: usize) -> Option<u128> {
    let mut process = Process::new(workers, &config(1, discipline));
    let mut running = process.arrive(0, A);
    let urgent = Sent {
        class: "high",
        baggage: "workflow=y",
        deadline: Some(ms(50)),
        progress: Some("elapsed=0, total=1, work=0, total-work=1"),
        ..A
    };
    let patient = Sent {
        baggage: "workflow=x",
        progress: Some("elapsed=5, total=100, work=50, total-work=500"),
        ..B
    };
    process.pass(ms(1));
    let patient = process.arrive(0, patient);
    let arrived = process.now;
    for n in 0..2_000 {
        process.pass(ms(1));
        for worker in [n, n + 1] {
            process.arrive(worker % workers, urgent);
        }
        process.finish(running, Outcome::Completed);
        process.settle();
        if process.started.contains(&patient) {
            return Some(process.now.since(arrived).as_millis());
        }
        if n % 10 == 0 {
            process.tick();
        }
        running = process.in_backend()[0];
    }
    None
}

#[test]
fn no_request_starves_if_the_discipline_prevents_it() {
    for discipline in all() {
        for workers in [1, 3] {
            let wait = wait_of_the_patient(&discipline, workers);
            let most = match &discipline {
                Discipline::Fifo => Some(2),
                // The long request has a deadline after 100 ms by its type's objective. The urgent
                // requests have deadlines after 50 ms.
                Discipline::Edf => Some(100),
                // The long request has a slack of 100 ms − 95 ms. The urgent requests have a slack
                // of 49 ms.
                Discipline::Lstf => Some(2),
                // The latest start of the long request is after 2 ms.
                Discipline::Slack => Some(3),
                // The first quantum of the long request's flow suffices. The other requests of the
                // same round are served first.
                Discipline::Drr { .. } | Discipline::Wfq { .. } => Some(13),
                Discipline::Sjf | Discipline::Srtf | Discipline::Lasf | Discipline::Priority => {
                    None
                }
            };
            let kept = match (wait, most) {
                (Some(wait), Some(most)) => wait <= most,
                (None, None) => true,
                _ => false,
            };
            assert!(kept, "{discipline:?}: {wait:?} ms, at most {most:?}");
        }
    }
}
