//! A table of P found against the best fixed P, over backends, mixes, strategies and seeds.

use crate::service::network::Resource;
use crate::service::{Kind, NATURAL, PAPER, Service, UNFILTERED};
use crate::{CONTENTION, CORE, CORES, LOCK, POOL, SLEEP};

/// Name, workers, steps, capacity and the fixed P to try.
type Row = (
    &'static str,
    u32,
    &'static [(f64, Resource)],
    f64,
    &'static [u32],
);

const ROWS: &[Row] = &[
    ("1 worker", 1, SLEEP, 1.0, &[1, 2, 3, 4, 6]),
    ("2 workers", 2, SLEEP, 2.0, &[1, 2, 3, 4, 6]),
    ("4 workers", 4, SLEEP, 4.0, &[3, 4, 5, 6, 8]),
    ("16 workers", 16, SLEEP, 16.0, &[12, 14, 16, 18, 20, 24]),
    ("64 workers", 64, SLEEP, 64.0, &[56, 64, 72, 80]),
    ("1 core", u32::MAX, CORE, 1.0, &[1, 2, 3, 4, 6, 8, 12]),
    ("4 cores", u32::MAX, CORES, 4.0, &[3, 4, 5, 6, 8, 12]),
    (
        "contention",
        u32::MAX,
        CONTENTION,
        7.0,
        &[6, 7, 8, 9, 10, 12],
    ),
    ("SQLite", 3, CORE, 1.0, &[1, 2, 3, 4, 6, 8]),
    ("lock", 64, LOCK, 5.0, &[4, 5, 6, 7, 8, 10, 12, 16]),
    ("pool", 32, POOL, 10.0, &[8, 10, 12, 14, 16, 20]),
];
const SEEDS: [u64; 4] = [7, 8, 9, 10];

#[test]
#[ignore = "prints a table, for two minutes"]
fn found_against_fixed() {
    let mixes: [(&str, &'static [Kind], bool); 2] = [
        ("paper, by value", PAPER, true),
        ("natural, by value", NATURAL, true),
    ];
    for (mix, kinds, shed_by_value) in mixes {
        for &(name, workers, steps, capacity, fixed) in ROWS {
            for load in [1.2, 2.0] {
                let run = |slots, seed| {
                    let service = Service {
                        load,
                        shed_by_value,
                        seed,
                        seconds: 30,
                        warm_up: 10,
                        ..Service::new(kinds, workers, steps, capacity)
                    };
                    service.run(slots)
                };
                let mean = |sum: f64| sum / SEEDS.len() as f64;
                let goodput = |&slots: &u32| {
                    let sum = SEEDS
                        .iter()
                        .map(|&seed| run(Some(slots), seed).goodput)
                        .sum();
                    (slots, mean(sum))
                };
                let swept: Vec<(u32, f64)> = fixed.iter().map(goodput).collect();
                let best = swept
                    .iter()
                    .map(|(_, goodput)| *goodput)
                    .fold(0.0, f64::max);
                let found: Vec<_> = SEEDS.iter().map(|&seed| run(None, seed)).collect();
                let ratio = mean(found.iter().map(|found| found.goodput).sum()) / best;
                let slots: Vec<u32> = found
                    .iter()
                    .map(|found| crate::median(found, 20..30))
                    .collect();
                let swept: Vec<String> = swept
                    .iter()
                    .map(|(slots, goodput)| format!("{slots}:{:.2}", goodput / best))
                    .collect();
                println!(
                    "{mix:18} {name:11} {load:.1}  {best:6.0}/s  {ratio:.2}  P {slots:?}  {}",
                    swept.join(" ")
                );
            }
        }
    }
}

/// Shows the ratios of offered requests answered in time and refused: without a filter, with P
/// found, and with P fixed.
#[test]
#[ignore = "prints a table"]
fn below_capacity() {
    let finite = ROWS
        .iter()
        .filter(|row| !["64 workers", "contention", "lock", "pool"].contains(&row.0));
    for &(name, workers, steps, capacity, fixed) in finite {
        for load in [0.5, 0.75, 0.9, 1.0] {
            let run = |slots| {
                let (mut in_time, mut refused) = (0.0, 0.0);
                for seed in SEEDS {
                    let service = Service {
                        load,
                        shed_by_value: true,
                        seed,
                        warm_up: 10,
                        ..Service::new(NATURAL, workers, steps, capacity)
                    };
                    let found = service.run(slots);
                    in_time += found.goodput / service.per_second() / SEEDS.len() as f64;
                    refused += found.refused / SEEDS.len() as f64;
                }
                format!("{in_time:.3} -{:4.1}%", 100.0 * refused)
            };
            let middle = fixed[fixed.len() / 2];
            println!(
                "{name:11} {load:.2}  unfiltered {}  found {}  P={middle} {}",
                run(Some(UNFILTERED)),
                run(None),
                run(Some(middle))
            );
        }
    }
}
