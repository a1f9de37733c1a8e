//! Experiments in which one route, one endpoint or the whole backend of eight workers breaks. A
//! worker with a hanging request is free again when Envoy or the client resets the request, like a
//! thread that waits for a lock.

use std::time::Duration;

use super::{Case, Event, Measure, Seen, Unit, cheap, constant, dear};
use crate::backend::{Fault, FaultKind};
use crate::mix::QueryType;

const WORKERS: usize = 8;
/// The time at which a working route or endpoint breaks.
const BREAKS: Duration = Duration::from_secs(4);
/// The number of consecutive timeouts that eject an endpoint, Envoy's default.
const EJECTS: u32 = 5;
/// The time at which the whole backend starts to hang.
const ALL_HANG: Duration = Duration::from_secs(5);
/// The time at which the whole backend recovers.
const ALL_BACK: Duration = Duration::from_secs(10);
/// The start of the measured time for a route that hangs from the start: the fourth second.
const FOURTH: Duration = Duration::from_secs(3);
/// The start of the measured time for a route that breaks later: two seconds after [`BREAKS`].
const THIRD_AFTER: Duration = Duration::from_secs(6);

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let seconds = if quick { 14 } else { 24 };
    let hanging = |fast, hang| {
        vec![
            cheap("fast", "/fast", fast, 20),
            dear("hang", "/hang", hang, 20),
        ]
    };
    let three = |third| {
        vec![
            cheap("fast", "/fast", 100.0, 20),
            cheap("other", "/other", 100.0, 20),
            third,
        ]
    };
    let case = |name, title, mix: Vec<QueryType>, events, measures| Case {
        name,
        title,
        phases: constant(&mix, seconds),
        route_timeout: Some(Duration::from_secs(3)),
        events,
        ..Case::new(mix, WORKERS, measures)
    };
    let always = |kind, path| vec![(Duration::ZERO, broken(kind, path))];
    let later = |kind, path| vec![(BREAKS, broken(kind, path))];
    let endpoint = |name, title, ejects| Case {
        workers: WORKERS / 4,
        endpoints: 4,
        ejects,
        ..case(
            name,
            title,
            vec![cheap("fast", "/", 200.0, 20)],
            later(FaultKind::Hang, "/"),
            from_the_third_second_after,
        )
    };
    let slow = Fault {
        delay_ms: 180,
        ..Fault::new(FaultKind::Slow, "/slow", u64::MAX)
    };
    vec![
        case(
            "hang",
            "fast 220/s of 20 ms, hang 4/s that never answer; route timeout 3 s; from the fourth second on",
            hanging(220.0, 4.0),
            always(FaultKind::Hang, "/hang"),
            from_the_fourth_second,
        ),
        Case {
            route_timeout: Some(Duration::from_secs(2)),
            ..case(
                "hang-2s",
                "fast 200/s of 20 ms, hang 5/s that never answer; route timeout 2 s; from the first second on",
                hanging(200.0, 5.0),
                always(FaultKind::Hang, "/hang"),
                from_the_first_second,
            )
        },
        Case {
            route_timeout: None,
            patience: Some(Duration::from_secs(10)),
            ..case(
                "hang-no-timeout",
                "fast 220/s of 20 ms, hang 4/s that never answer; no route timeout, clients give up after 10 s; from the \
                 fourth second on",
                hanging(220.0, 4.0),
                always(FaultKind::Hang, "/hang"),
                from_the_fourth_second,
            )
        },
        case(
            "one-of-three",
            "fast and other 100/s of 20 ms each; third, 20/s of 20 ms, never answers from 4 s on; route timeout 3 s; from \
             the third second after",
            three(dear("third", "/third", 20.0, 20)),
            later(FaultKind::Hang, "/third"),
            from_the_third_second_after,
        ),
        case(
            "errors",
            "fast 250/s of 20 ms, dear 80/s of 50 ms: 1.1 times the capacity; third, 100/s of 1 ms, answers 500 from 4 s \
             on; from the third second after",
            vec![
                cheap("fast", "/fast", 250.0, 20),
                dear("dear", "/dear", 80.0, 50),
                cheap("third", "/third", 100.0, 1),
            ],
            later(FaultKind::Status, "/third"),
            from_the_third_second_after,
        ),
        case(
            "ten-times-slower",
            "fast and other 100/s of 20 ms each; slow, 40/s, takes 20 ms and 200 ms from 4 s on; from the third second after",
            three(dear("slow", "/slow", 40.0, 20)),
            vec![(BREAKS, Event::Break(slow))],
            from_the_third_second_after,
        ),
        endpoint(
            "endpoint",
            "fast 200/s of 20 ms over four endpoints with two workers each, one of which never answers from 4 s on; route \
             timeout 3 s; from the third second after",
            None,
        ),
        endpoint(
            "endpoint-ejected",
            "the same with outlier detection: the fifth timeout in a row ejects the endpoint",
            Some(EJECTS),
        ),
        case(
            "all-hang",
            "fast 220/s of 20 ms, dear 10/s of 100 ms; nothing is answered from 5 s to 10 s; route timeout 3 s",
            vec![
                cheap("fast", "/fast", 220.0, 20),
                dear("dear", "/dear", 10.0, 100),
            ],
            vec![
                (ALL_HANG, broken(FaultKind::Hang, "/")),
                (ALL_BACK, Event::Mend),
            ],
            all_hang,
        ),
    ]
}

fn broken(kind: FaultKind, path: &str) -> Event {
    Event::Break(Fault::new(kind, path, u64::MAX))
}

fn from_the_first_second(seen: &Seen<'_>) -> Vec<Measure> {
    from(seen, Duration::ZERO)
}

fn from_the_fourth_second(seen: &Seen<'_>) -> Vec<Measure> {
    from(seen, FOURTH)
}

fn from_the_third_second_after(seen: &Seen<'_>) -> Vec<Measure> {
    from(seen, THIRD_AFTER)
}

/// Returns the shares of each type's requests, from `from` on, that were answered in time and that
/// were refused.
fn from(seen: &Seen<'_>, from: Duration) -> Vec<Measure> {
    let mut measures = Vec::new();
    for (kind, query) in seen.case.mix.iter().enumerate() {
        let totals = seen.totals(kind, from, seen.end);
        let share =
            |what, count| Measure::share(format!("{} {what}", query.name), count, totals.offered);
        measures.push(share("in time", totals.good));
        measures.push(share("refused", totals.refused));
    }
    measures
}

fn all_hang(seen: &Seen<'_>) -> Vec<Measure> {
    let second = Duration::from_secs(1);
    let rate = |name, from, to| Measure::new(name, Unit::PerSecond, seen.rate_in_time(from, to));
    vec![
        rate("in time before", second, ALL_HANG),
        rate("during", ALL_HANG, ALL_BACK),
        rate("first 5 s after", ALL_BACK, ALL_BACK + 5 * second),
        Measure::new("well after", Unit::Seconds, seen.well_after(ALL_BACK)),
    ]
}
