//! A retry storm. Half of the workers stop for 5 s, and clients give up after 0.5 s. Clients retry
//! immediately, up to three times, after a refusal, an error or a timeout.

use std::time::Duration;

use super::{Case, Event, Measure, Seen, Unit, cheap, constant};

const WORKERS: usize = 8;
const STOP: Duration = Duration::from_secs(5);
const BACK: Duration = Duration::from_secs(10);

pub(super) fn cases(quick: bool) -> Vec<Case> {
    // The rate is 0.8 times the capacity of 8 workers.
    let mix = vec![cheap("fast", "/fast", 320.0, 20)];
    vec![Case {
        name: "retries",
        title: "320/s of 20 ms for 8 workers, of which 4 stop from 5 s to 10 s; clients give up \
                after 0.5 s and try failures, refusals and late answers again at once, three times",
        phases: constant(&mix, if quick { 20 } else { 30 }),
        patience: Some(Duration::from_millis(500)),
        retries: 3,
        events: vec![
            (STOP, Event::Workers(WORKERS / 2)),
            (BACK, Event::Workers(WORKERS)),
        ],
        ..Case::new(mix, WORKERS, measures)
    }]
}

fn measures(seen: &Seen<'_>) -> Vec<Measure> {
    let second = Duration::from_secs(1);
    let rate = |name, from, to| Measure::new(name, Unit::PerSecond, seen.rate_in_time(from, to));
    let seconds = seen.seconds();
    let during = seconds
        .get(STOP.as_secs() as usize..BACK.as_secs() as usize)
        .unwrap_or_default();
    let worst = during.iter().map(|second| second.in_time as f64);
    vec![
        rate("in time before", second, STOP),
        rate("during", STOP, BACK),
        Measure::new(
            "worst second",
            Unit::PerSecond,
            worst.min_by(f64::total_cmp),
        ),
        rate("first 5 s after", BACK, BACK + 5 * second),
        rate("last 5 s", seen.end - 5 * second, seen.end),
        Measure::new("as before after", Unit::Seconds, seen.well_after(BACK)),
    ]
}
