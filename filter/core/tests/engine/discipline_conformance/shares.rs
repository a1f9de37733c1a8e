//! What deficit round robin shares over several workers, and what clients that give up can't take.

use std::collections::BTreeMap;

use headgate_core::config::{Discipline, Flow};
use headgate_core::stage::Outcome;
use proptest::prelude::*;

use super::process::{A, B, Process, config, ms};

fn drr(quantum_us: u64, weight_of_a: f64) -> Discipline {
    Discipline::Drr {
        by: Flow::Type,
        quantum_us,
        weights: [("a".to_owned(), weight_of_a)].into(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Two flows that always wait, on any workers: what each got, divided by its weight, differs by at
    /// most a quantum and the largest cost over the smaller weight.
    #[test]
    fn backlogged_flows_share_by_weight_over_all_workers(
        workers in 1_usize..=4,
        weight in prop::sample::select(vec![0.25, 0.5, 1.0, 2.0, 5.0]),
        quantum_us in 1_000_u64..20_000,
        at in prop::collection::vec((0_usize..4, 0_usize..4), 10),
    ) {
        let mut process = Process::new(workers, &config(1, &drr(quantum_us, weight)));
        let mut running = process.arrive(0, A);
        // By stream: its flow.
        let mut flows: BTreeMap<u32, usize> = BTreeMap::new();
        for (n, (a, b)) in at.iter().cycle().take(80).enumerate() {
            process.pass(ms(u64::from(n % 2 == 0)));
            flows.insert(process.arrive(a % workers, A), 0);
            flows.insert(process.arrive(b % workers, B), 1);
        }
        let mut served = [0.0_f64; 2];
        for n in 0..60 {
            process.finish(running, Outcome::Unmeasured);
            process.settle();
            running = *process.started.last().unwrap();
            let flow = flows[&running];
            served[flow] += if flow == 0 { 1.0 / weight } else { 10.0 };
            // Whoever was served comes again.
            process.pass(ms(2));
            let (a, b) = at[n % at.len()];
            let (sent, worker) = if flow == 0 { (A, a) } else { (B, b) };
            flows.insert(process.arrive(worker % workers, sent), flow);
            let quantum = quantum_us as f64 / 1e3;
            let bound = quantum + 10.0 / weight.min(1.0);
            let apart = (served[0] - served[1]).abs();
            prop_assert!(apart <= bound * 1.02, "{apart} ms apart after {n}, at most {bound}");
        }
    }
}

/// A type sends twenty times its share, and most of its clients give up before their turn. At all times it
/// gets its share, and the other type gets its own.
#[test]
fn a_flow_whose_clients_give_up_keeps_its_share() {
    for workers in [1, 2] {
        let mut process = Process::new(workers, &config(1, &drr(10_000, 1.0)));
        let mut running = process.arrive(0, B);
        let mut given_up: Vec<(u64, u32)> = Vec::new();
        let mut flows: BTreeMap<u32, usize> = BTreeMap::new();
        let mut served = [0_u64; 2];
        for now in 1..=4_000_u64 {
            process.pass(ms(1));
            let worker = now as usize % workers;
            // 10 slots' worth of a, two of b; a waits 50 ms at most.
            for _ in 0..10 {
                let stream = process.arrive(worker, A);
                flows.insert(stream, 0);
                given_up.push((now + 50, stream));
            }
            if now % 5 == 0 && process.queued().iter().filter(|s| flows[s] == 1).count() < 4 {
                flows.insert(process.arrive(worker, B), 1);
            }
            while given_up.first().is_some_and(|(at, _)| *at <= now) {
                let (_, stream) = given_up.remove(0);
                if process.queued().contains(&stream) {
                    process.finish(stream, Outcome::Unmeasured);
                }
            }
            let takes = if flows.get(&running) == Some(&0) {
                1
            } else {
                10
            };
            if now % takes == 0 {
                process.finish(running, Outcome::Unmeasured);
                process.settle();
                running = *process.started.last().unwrap();
                let flow = flows[&running];
                served[flow] += if flow == 0 { 1 } else { 10 };
            }
            if now % 10 == 0 {
                process.tick();
                process.settle();
            }
            if now % 200 == 0 {
                let share = served[0] as f64 / (served[0] + served[1]) as f64;
                let kept = (0.4..0.6).contains(&share);
                assert!(kept, "{share} of the time on {workers} until {now} ms");
                served = [0; 2];
            }
        }
    }
}

/// Host calls of an arrival, of the end that gives its slot to the next, and of leaving the queue.
fn calls(discipline: &Discipline) -> [u64; 3] {
    let mut process = Process::new(1, &config(1, discipline));
    let running = process.arrive(0, A);
    process.arrive(0, B);
    let counted = |process: &mut Process, step: &mut dyn FnMut(&mut Process)| {
        let before = process.host.calls();
        step(process);
        process.host.calls() - before
    };
    let mut last = 0;
    // The first of its type defines its flow's gauge.
    process.arrive(0, A);
    let arrives = counted(&mut process, &mut |process| last = process.arrive(0, A));
    let leaves = counted(&mut process, &mut |p| p.finish(last, Outcome::Unmeasured));
    let starts = counted(&mut process, &mut |p| {
        p.finish(running, Outcome::Unmeasured);
    });
    [arrives, starts, leaves]
}

#[test]
fn turns_cost_three_host_calls_and_two_and_two() {
    let (fifo, drr) = (Discipline::Fifo, drr(10_000, 1.0));
    let (fifo, drr) = (calls(&fifo), calls(&drr));
    let [arrives, starts, leaves]: [u64; 3] = std::array::from_fn(|at| drr[at] - fifo[at]);
    assert_eq!((arrives, leaves), (3, 2));
    assert!(starts <= 2, "{starts}");
}

#[test]
fn a_request_that_finds_a_slot_free_takes_no_turn() {
    let calls = |discipline: &Discipline| {
        let mut process = Process::new(1, &config(1, discipline));
        let before = process.host.calls();
        let stream = process.arrive(0, A);
        process.finish(stream, Outcome::Unmeasured);
        process.host.calls() - before
    };
    assert_eq!(calls(&drr(10_000, 1.0)), calls(&Discipline::Fifo));
}
