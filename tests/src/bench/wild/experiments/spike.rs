//! A spike: three times the capacity for 5 s, between loads of 0.8 times the capacity. The results
//! include the times from the start and from the end of the spike until the objectives are met.

use std::time::Duration;

use super::{Case, Measure, Seen, Unit};
use crate::load::Phase;
use crate::mix;

const WORKERS: usize = 16;
/// Factor of the paper's service times.
const SCALE: f64 = 4.0;
const BEGINS: Duration = Duration::from_secs(5);
const ENDS: Duration = Duration::from_secs(10);
/// The resolution of the printed times.
const STEP: Duration = Duration::from_millis(100);
/// The time over which requests are judged together, long enough for a percentile.
const WINDOW: Duration = Duration::from_millis(500);
/// The share of refused requests, ratio 0..=1, below which refusals count as over.
const NONE: f64 = 0.005;

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let mix = mix::natural(SCALE);
    let capacity = mix::capacity_rps(&mix, WORKERS);
    let phase = |duration, load| Phase {
        duration,
        rate: load * capacity,
    };
    vec![Case {
        name: "spike",
        title: "the paper's mix for 16 workers at 0.8 times their capacity, 3 times from \
                5 s to 10 s; from when on 0.5 s of requests are inside all objectives, \
                and when refusals stop",
        phases: vec![
            phase(BEGINS, 0.8),
            phase(ENDS - BEGINS, 3.0),
            phase(Duration::from_secs(if quick { 5 } else { 10 }), 0.8),
        ],
        parallelism: WORKERS,
        ..Case::new(mix, WORKERS, measures)
    }]
}

fn measures(seen: &Seen<'_>) -> Vec<Measure> {
    let rate = |name, from, to| Measure::new(name, Unit::PerSecond, seen.rate_in_time(from, to));
    let refused = |name, from, to| Measure::new(name, Unit::Share, seen.refused(from, to));
    let after = |name, event, until, well: &dyn Fn(Duration) -> bool| {
        let step = |count: u32| STEP * count;
        let mut steps = (0..).map(step);
        let delay = steps
            .by_ref()
            .take_while(|delay| event + *delay + WINDOW <= until)
            .find(|delay| well(event + *delay));
        let ms = delay.map(|delay| delay.as_secs_f64() * 1e3);
        Measure::new(name, Unit::Milliseconds, ms)
    };
    let inside = |from| seen.inside(from, from + WINDOW);
    let accepting = |from| seen.refused(from, from + WINDOW) <= NONE;
    vec![
        refused("refused before", Duration::ZERO, BEGINS),
        after("inside after its begin", BEGINS, ENDS, &inside),
        rate("in time during", BEGINS, ENDS),
        after("inside after its end", ENDS, seen.end, &inside),
        after("no refusals after its end", ENDS, seen.end, &accepting),
        refused("refused at the end", ENDS + 2 * WINDOW, seen.end),
    ]
}
