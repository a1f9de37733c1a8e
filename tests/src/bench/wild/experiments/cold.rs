//! The first five seconds of a new process, or after an edit that adds a type, compared to the same
//! seconds of Envoy without a filter.

use std::time::Duration;

use super::{Case, Event, Measure, Run, Seen, Unit};
use crate::load::Phase;
use crate::mix;

const WORKERS: usize = 16;
/// The number of threads that share the one core.
const THREADS: usize = 256;
/// P in front of these threads, in the rows with P given.
const THREADS_AT_ONCE: usize = 4;
/// Factor of the paper's service times for workers that sleep.
const SCALE: f64 = 4.0;
const FIRST: Duration = Duration::from_secs(5);
/// The start of the third second, from which types should be inside their objectives.
const THIRD: Duration = Duration::from_secs(2);
/// The name of the figure that is compared to the run without a filter.
const GOODPUT: &str = "in time, first 5 s";
/// The limit above which a type counts as slower: a multiple of the 90th percentile of its response
/// times without a filter, plus a time, ms.
const UNNOTICED: (f64, f64) = (1.1, 2.0);

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let sleeping = mix::natural(SCALE);
    // All threads share one core, so the service times are divided by the number of workers, and
    // the capacity is that of all workers together. The requests and their objectives stay the
    // same.
    let computing = mix::natural(SCALE)
        .into_iter()
        .map(|query| mix::QueryType {
            mean: query.mean / 16,
            median: query.median / 16,
            ..query
        })
        .collect::<Vec<_>>();
    let capacity = mix::capacity_rps(&sleeping, WORKERS);
    let phases = |load, seconds| {
        vec![Phase {
            duration: FIRST * seconds,
            rate: load * capacity,
        }]
    };
    let length = if quick { 1 } else { 2 };
    let workers = |name, title, load| Case {
        name,
        title,
        phases: phases(load, length),
        ..Case::new(sleeping.clone(), WORKERS, |seen| {
            measures(seen, Duration::ZERO)
        })
    };
    let core = |name, title, load| Case {
        name,
        title,
        one_processor: true,
        parallelism: THREADS_AT_ONCE,
        phases: phases(load, length),
        ..Case::new(computing.clone(), THREADS, |seen| {
            measures(seen, Duration::ZERO)
        })
    };
    let added = |name, title, load| Case {
        added: sleeping.first().map(|query| query.name),
        events: vec![(FIRST, Event::AddType)],
        phases: phases(load, 1 + length),
        ..Case {
            name,
            title,
            ..Case::new(sleeping.clone(), WORKERS, |seen| measures(seen, FIRST))
        }
    };
    vec![
        workers(
            "cold-workers-0.3",
            "16 workers at 0.3 times their capacity",
            0.3,
        ),
        workers(
            "cold-workers-0.5",
            "16 workers at 0.5 times their capacity",
            0.5,
        ),
        workers(
            "cold-workers-0.75",
            "16 workers at 0.75 times their capacity",
            0.75,
        ),
        workers(
            "cold-workers-0.9",
            "16 workers at 0.9 times their capacity",
            0.9,
        ),
        workers(
            "cold-workers-0.95",
            "16 workers at 0.95 times their capacity",
            0.95,
        ),
        workers(
            "cold-workers-1.5",
            "16 workers at 1.5 times their capacity",
            1.5,
        ),
        core("cold-core-0.3", "one core at 0.3 times its capacity", 0.3),
        core("cold-core-0.5", "one core at 0.5 times its capacity", 0.5),
        core(
            "cold-core-0.75",
            "one core at 0.75 times its capacity",
            0.75,
        ),
        core("cold-core-0.9", "one core at 0.9 times its capacity", 0.9),
        core(
            "cold-core-0.95",
            "one core at 0.95 times its capacity",
            0.95,
        ),
        core("cold-core-1.5", "one core at 1.5 times its capacity", 1.5),
        added(
            "added-0.75",
            "16 workers at 0.75 times their capacity, from an edit on that adds a type",
            0.75,
        ),
        added(
            "added-1.5",
            "16 workers at 1.5 times their capacity, from an edit on that adds a type",
            1.5,
        ),
    ]
}

/// Returns the figures of the first seconds after `start`.
fn measures(seen: &Seen<'_>, start: Duration) -> Vec<Measure> {
    let end = start + FIRST;
    let goodput = seen.rate_in_time(start, end);
    let outside = seen.outside(start + THIRD, seen.end) as f64;
    vec![
        Measure::new(GOODPUT, Unit::PerSecond, goodput),
        Measure::new("refused", Unit::Share, seen.refused(start, end)),
        Measure::new("types outside from the third second", Unit::Count, outside),
    ]
}

/// Adds two figures to each run: its goodput as a multiple of the goodput without a filter in the
/// same round, and the number of types that are slower than without a filter.
pub(super) fn relate(runs: &mut [Run]) {
    let goodput = |run: &Run| {
        let mut measures = run.measures.iter();
        measures.find(|measure| measure.name == GOODPUT)?.value
    };
    let p90s = |run: &Run| -> Vec<Option<f64>> {
        let types = run.types.iter();
        types.map(|kind| kind.totals.p90_ms).collect()
    };
    let plain: Vec<_> = runs
        .iter()
        .filter(|run| run.row == "none")
        .map(|run| (run.round, goodput(run), p90s(run)))
        .collect();
    for run in runs {
        let Some((_, without, p90s_without)) = plain.iter().find(|plain| plain.0 == run.round)
        else {
            continue;
        };
        let ratio = without
            .filter(|without| *without > 0.0)
            .and_then(|without| Some(goodput(run)? / without));
        let pairs = p90s(run).into_iter().zip(p90s_without);
        let (factor, more) = UNNOTICED;
        let slower = pairs.filter(|(with, without)| match (with, without) {
            (Some(with), Some(without)) => *with > without * factor + more,
            _ => false,
        });
        let slower = slower.count() as f64;
        run.measures.extend([
            Measure::new("÷ no filter", Unit::Times, ratio),
            Measure::new("types slower in p90", Unit::Count, slower),
        ]);
    }
}
