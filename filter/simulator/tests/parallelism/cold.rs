//! Cold starts: a proxy that has just started, without a configured P, compared with the unfiltered
//! service.

use crate::proxies::{self, Change};
use crate::service::network::Resource;
use crate::service::paced::Paced;
use crate::service::{Kind, NATURAL, PAPER, PAPER_NATURAL, SECOND, Service, UNFILTERED};
use crate::{CORE, CORES, SLEEP};

/// Name, types, workers, steps, capacity.
type Row = (
    &'static str,
    &'static [Kind],
    u32,
    &'static [(f64, Resource)],
    f64,
);

const ROWS: &[Row] = &[
    ("16 workers, paper", PAPER, 16, SLEEP, 16.0),
    ("16 workers, own objectives", PAPER_NATURAL, 16, SLEEP, 16.0),
    ("16 workers, natural", NATURAL, 16, SLEEP, 16.0),
    ("4 cores, natural", NATURAL, u32::MAX, CORES, 4.0),
    ("one core, natural", NATURAL, u32::MAX, CORE, 1.0),
];
/// The paper's mix on one core with 16 times its speed: objectives are 30 to 100 times the service
/// times.
const SMALL: &[Kind] = &[
    ("fast", 0.4, 0.29, 0.095, [50, 150]),
    ("mediumfast", 0.2, 0.63, 0.29, [50, 150]),
    ("mediumslow", 0.3, 3.03, 1.85, [200, 500]),
    ("slow", 0.1, 5.01, 3.13, [200, 500]),
];
const SEEDS: std::ops::Range<u64> = 7..11;

/// The minimum ratio of answers in time, relative to no filter, of a cold start above the capacity.
const LEAST: f64 = 0.95;

/// The results of a cold start, with P found and without a filter, over all seeds.
struct Start {
    /// The ratio of requests that were refused.
    refused: f64,
    /// Answers in time until the end of each second, with P found and without a filter.
    good: [Vec<f64>; 2],
    /// The 90th percentiles of the response time by type, ms, means over the seeds.
    p90: Vec<[f64; 2]>,
    /// The response times at the percentiles that have objectives, by type, as ratios of the
    /// objectives, with P found and from the third second on.
    late: Vec<[f64; 2]>,
    /// P after each second, by seed.
    slots: Vec<Vec<u32>>,
}

impl Start {
    fn of(&(_, kinds, workers, steps, capacity): &Row, load: f64, seconds: u64) -> Self {
        let mut start = Self {
            refused: 0.0,
            good: [vec![0.0; seconds as usize], vec![0.0; seconds as usize]],
            p90: vec![[0.0; 2]; kinds.len()],
            late: vec![[0.0; 2]; kinds.len()],
            slots: Vec::new(),
        };
        let part = 1.0 / SEEDS.count() as f64;
        for seed in SEEDS {
            let service = Service {
                load,
                seed,
                seconds,
                warm_up: 0,
                shed_by_value: true,
                ..Service::new(kinds, workers, steps, capacity)
            };
            let [found, unfiltered] = [None, Some(UNFILTERED)].map(|slots| service.run(slots));
            start.refused += part * found.refused;
            for (at, run) in [&found, &unfiltered].into_iter().enumerate() {
                let mut sum = 0.0;
                for (good, second) in start.good[at].iter_mut().zip(&run.good) {
                    sum += f64::from(*second);
                    *good += sum;
                }
                for (kind, p90) in start.p90.iter_mut().enumerate() {
                    p90[at] += part * run.percentile(kind, 90, 0);
                }
            }
            for (kind, late) in start.late.iter_mut().enumerate() {
                for (at, percentile) in [50, 90].into_iter().enumerate() {
                    let objective = kinds[kind].4[at] as f64;
                    late[at] += part * found.percentile(kind, percentile, 2) / objective;
                }
            }
            start.slots.push(found.slots);
        }
        start
    }

    /// Returns the answers in time until the end of this number of seconds, as a ratio of the
    /// answers in time without a filter.
    fn until(&self, seconds: usize) -> f64 {
        self.good[0][seconds - 1] / self.good[1][seconds - 1]
    }
}

/// Yields the rows of the table for which the backend itself meets the objectives up to 0.95 of its
/// capacity.
fn natural() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(|row| row.0.ends_with("natural"))
}

#[test]
fn below_capacity_a_cold_start_refuses_and_delays_nothing() {
    let loads = [
        (0.3, 0.005),
        (0.5, 0.005),
        (0.75, 0.005),
        (0.9, 0.005),
        (0.95, 0.01),
    ];
    let all = ROWS
        .iter()
        .flat_map(|row| loads[..3].iter().map(move |load| (row, load)));
    let near = natural().flat_map(|row| loads[3..].iter().map(move |load| (row, load)));
    for (row, &(load, refusable)) in all.chain(near) {
        let start = Start::of(row, load, 10);
        let case = format!("{} at {load}", row.0);
        assert!(
            start.refused <= refusable,
            "{case}: {:.4} refused",
            start.refused
        );
        for seconds in [1, 5, 10] {
            let part = start.until(seconds);
            assert!(
                part >= 0.995,
                "{case}: {part:.4} of no filter in {seconds} s"
            );
        }
        for [found, unfiltered] in start.p90 {
            let most = 1.1 * unfiltered + 2.0;
            assert!(
                found <= most,
                "{case}: p90 {found:.1} ms, {unfiltered:.1} without"
            );
        }
    }
}

/// The last type of each row is added after ten seconds, in which its requests are of the type
/// `default`. A reload replaces the two workers and keeps all types. The load of 0.9 is left out
/// for shared cores, because more requests are refused at this load even without a change.
#[test]
fn below_capacity_an_added_type_and_a_reload_are_not_noticed() {
    const CHANGED: u64 = 10;
    for &(name, kinds, workers, steps, capacity) in natural() {
        let loads: &[f64] = if steps == SLEEP {
            &[0.5, 0.75, 0.9]
        } else {
            &[0.5, 0.75]
        };
        for &load in loads {
            let mut totals = [[0.0; 3]; 3];
            for seed in SEEDS {
                let service = Service {
                    load,
                    seed,
                    seconds: CHANGED + 6,
                    warm_up: 0,
                    shed_by_value: true,
                    ..Service::new(kinds, workers, steps, capacity)
                };
                let before = Service {
                    kinds: &kinds[..kinds.len() - 1],
                    ..service
                };
                let (first, all) = (before.stage(None), service.stage(None));
                let runs = [
                    (service.stage(Some(UNFILTERED)), None),
                    (first, Some(Change::Edit(&all))),
                    (all.clone(), Some(Change::Reload)),
                ];
                for ((stage, change), totals) in runs.iter().zip(&mut totals) {
                    let backend = Paced::new(service.network(), &[], &[]);
                    let change = change.map(|change| (CHANGED * SECOND, change));
                    let run = proxies::run_changing(&service, (1, 2), stage, backend, change);
                    let seconds = CHANGED as usize..CHANGED as usize + 5;
                    for (total, count) in totals.iter_mut().zip(run.totals(seconds)) {
                        *total += count;
                    }
                }
            }
            let [[_, unfiltered, _], changed @ ..] = totals;
            for (change, [came, good, refused]) in ["an added type", "a reload"].iter().zip(changed)
            {
                let case = format!("{name} at {load}, {change}");
                let (part, refused) = (good / unfiltered, refused / came);
                assert!(refused <= 0.005, "{case}: {refused:.4} refused");
                assert!(part >= 0.995, "{case}: {part:.4} of no filter");
            }
        }
    }
}

/// At this load, some bursts miss their objectives even without a filter. These bursts must not
/// make the ceilings refuse many more requests in the seconds after a burst.
#[test]
fn near_capacity_a_cold_start_with_p_given_refuses_little() {
    let seeds = 7..31;
    for (load, refusable) in [(0.9, 0.005), (0.95, 0.01)] {
        let (mut refused, mut good) = (0.0, [0.0; 2]);
        for seed in seeds.clone() {
            let service = Service {
                load,
                seed,
                seconds: 5,
                warm_up: 0,
                shed_by_value: true,
                ..Service::new(PAPER_NATURAL, 16, SLEEP, 16.0)
            };
            let [given, unfiltered] = [16, UNFILTERED].map(|slots| service.run(Some(slots)));
            refused += given.refused / seeds.clone().count() as f64;
            good[0] += given.goodput;
            good[1] += unfiltered.goodput;
        }
        assert!(refused <= refusable, "{load}: {refused:.4} refused");
        let part = good[0] / good[1];
        assert!(part >= 0.995, "{load}: {part:.4} of no filter");
    }
}

#[test]
fn above_capacity_a_cold_start_is_not_behind_no_filter() {
    for row in ROWS {
        for load in [1.2, 1.5, 2.0] {
            let start = Start::of(row, load, 10);
            let case = format!("{} at {load}", row.0);
            for seconds in [1, 2, 5] {
                let part = start.until(seconds);
                assert!(
                    part >= LEAST,
                    "{case}: {part:.3} of no filter in {seconds} s"
                );
            }
            assert!(
                start.until(10) >= 1.15,
                "{case}: {:.3} in 10 s",
                start.until(10)
            );
        }
    }
}

#[test]
#[ignore = "prints a table"]
fn cold_starts() {
    for row in ROWS {
        for load in [0.3, 0.5, 0.75, 0.9, 0.95, 1.2, 1.5, 2.0] {
            let start = Start::of(row, load, 10);
            let p90: Vec<String> = start
                .p90
                .iter()
                .map(|[found, unfiltered]| format!("{found:.0}/{unfiltered:.0}"))
                .collect();
            println!(
                "{:27} {load:.2}  -{:5.2}%  until 1 s {:.3} 2 s {:.3} 5 s {:.3} 10 s {:.3}  p90 \
                 {:30} of objectives {} P {:?}",
                row.0,
                100.0 * start.refused,
                start.until(1),
                start.until(2),
                start.until(5),
                start.until(10),
                p90.join(" "),
                start
                    .late
                    .iter()
                    .map(|[p50, p90]| format!("{p50:.1}/{p90:.1}"))
                    .collect::<Vec<_>>()
                    .join(" "),
                start.slots[0].get(..8)
            );
        }
    }
}

#[test]
fn a_queue_from_before_the_first_measured_time_is_not_filled_further() {
    let rows: [Row; 2] = [
        ("one core, small", SMALL, 256, CORE, 1.0),
        ("16 workers, own objectives", PAPER_NATURAL, 16, SLEEP, 16.0),
    ];
    for (row, least) in rows.iter().zip([0.45, 0.8]) {
        let start = Start::of(row, 2.0, 5);
        let second = (start.good[0][2] - start.good[0][0]) / 2.0;
        let settled = start.good[0][4] - start.good[0][3];
        assert!(
            second >= least * settled,
            "{}: {second:.0} of {settled:.0} a second",
            row.0
        );
    }
}
