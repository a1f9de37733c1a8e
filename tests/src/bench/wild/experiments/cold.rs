//! The first five seconds of a new process, compared to those of Envoy without a filter.

use std::time::Duration;

use super::{Case, Measure, Run, Seen, Unit};
use crate::load::Phase;
use crate::mix;

const WORKERS: usize = 16;
/// The number of threads that share the one core.
const THREADS: usize = 256;
/// P in front of these threads, in the rows that give it.
const THREADS_AT_ONCE: usize = 4;
/// Factor of the paper's service times for workers that sleep.
const SCALE: f64 = 4.0;
const FIRST: Duration = Duration::from_secs(5);
/// The start of the third second, from which types should be inside their objectives.
const THIRD: Duration = Duration::from_secs(2);
/// The figure that is compared to that without a filter.
const GOODPUT: &str = "in time, first 5 s";

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let sleeping = mix::natural(SCALE);
    // With all threads on one core, costs and capacity are those of all workers together: the
    // requests and their objectives stay the same.
    let computing = mix::natural(SCALE)
        .into_iter()
        .map(|query| mix::QueryType {
            mean: query.mean / 16,
            median: query.median / 16,
            ..query
        })
        .collect::<Vec<_>>();
    let case = |name, title, load, workers: bool| {
        let capacity = mix::capacity_rps(&sleeping, WORKERS);
        let of_workers = Case::new(sleeping.clone(), WORKERS, measures);
        let of_core = Case {
            one_processor: true,
            ..Case::new(computing.clone(), THREADS, measures)
        };
        Case {
            name,
            title,
            parallelism: if workers { WORKERS } else { THREADS_AT_ONCE },
            phases: vec![Phase {
                duration: FIRST * if quick { 1 } else { 2 },
                rate: load * capacity,
            }],
            ..if workers { of_workers } else { of_core }
        }
    };
    vec![
        case(
            "cold-workers-0.75",
            "16 workers at 0.75 times their capacity",
            0.75,
            true,
        ),
        case(
            "cold-workers-0.9",
            "16 workers at 0.9 times their capacity",
            0.9,
            true,
        ),
        case(
            "cold-workers-1.5",
            "16 workers at 1.5 times their capacity",
            1.5,
            true,
        ),
        case(
            "cold-core-0.75",
            "one core at 0.75 times its capacity",
            0.75,
            false,
        ),
        case(
            "cold-core-0.9",
            "one core at 0.9 times its capacity",
            0.9,
            false,
        ),
        case(
            "cold-core-1.5",
            "one core at 1.5 times its capacity",
            1.5,
            false,
        ),
    ]
}

fn measures(seen: &Seen<'_>) -> Vec<Measure> {
    let goodput = seen.rate_in_time(Duration::ZERO, FIRST);
    let outside = seen.outside(THIRD, seen.end) as f64;
    vec![
        Measure::new(GOODPUT, Unit::PerSecond, goodput),
        Measure::new("refused", Unit::Share, seen.refused(Duration::ZERO, FIRST)),
        Measure::new("types outside from the third second", Unit::Count, outside),
    ]
}

/// Adds to each run its goodput as a multiple of the goodput without a filter in the same round.
pub(super) fn relate(runs: &mut [Run]) {
    let goodput = |run: &Run| {
        let mut measures = run.measures.iter();
        measures.find(|measure| measure.name == GOODPUT)?.value
    };
    let plain: Vec<(usize, Option<f64>)> = runs
        .iter()
        .filter(|run| run.row == "none")
        .map(|run| (run.round, goodput(run)))
        .collect();
    for run in runs {
        let without = plain.iter().find(|(round, _)| *round == run.round);
        let ratio = without
            .and_then(|(_, goodput)| *goodput)
            .filter(|goodput| *goodput > 0.0)
            .and_then(|without| Some(goodput(run)? / without));
        run.measures
            .push(Measure::new("÷ no filter", Unit::Times, ratio));
    }
}
