//! How soon rates reach the entry of a chain, and how steady they stay.
//!
//! Not in the paper, whose algorithm says nothing of the time that it takes: a rate travels one hop against the
//! calls with each answer, and is taken up at the next control interval, so a chain of n hops should need about n
//! intervals after the last process has found its own rate. Responses that are lost take their announcements along.
//!
//! A chain of services, two processes each; the last one can serve half of what is asked for, and nobody knows anything
//! when the run begins.

use std::time::Duration;

use headgate_core::config::Discipline;

use super::{claim, part, setup};
use crate::mesh::trial::{self, Trial};
use crate::mesh::{
    Arrivals, Calls, Graph, Load, Network, Route, Seen, Service, Step, Task, Workflow,
};
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Figure, Group, Level, Record, Report, Series, Style, Table, TableRow,
};
use crate::scenario::Size;
use crate::simulation::SimulationError;
use crate::workload::ServiceTime;

const HOPS: [usize; 6] = [1, 2, 3, 4, 5, 6];
const LOST: [f64; 3] = [0.0, 0.01, 0.1];
/// Processes of each service.
const PROCESSES: usize = 2;
/// The last service: slots of a process, and the time of a request, ms.
const SLOTS: u32 = 4;
const SERVICE_MS: f64 = 20.0;
/// When a caller gives up.
const TIMEOUT: Duration = Duration::from_millis(500);
/// When demand doubles what can be served (from the start: no process has seen anything yet), and when a run ends, s.
const BEGIN: f64 = 0.0;
const END: f64 = 30.0;
/// Long runs, s, and when their bands begin.
const LONG: f64 = 600.0;
const LONG_SETTLED: f64 = 20.0;
const LONG_HOPS: [usize; 2] = [1, 3];
/// Time between two looks: a control interval.
const STEP: f64 = 0.1;
/// Rates have converged when they stay within this part of what can be served.
const BAND: f64 = 0.2;
/// Intervals that a mean of the rates is over, when it is held against the band.
const MEAN_OVER: usize = 10;

/// What the last service can serve, requests/s.
fn capacity() -> f64 {
    PROCESSES as f64 * f64::from(SLOTS) * 1e3 / SERVICE_MS
}

fn chain(hops: usize, lost: f64) -> Graph {
    let mut graph = Graph {
        network: Network {
            lost,
            timeout: Some(TIMEOUT),
            ..Network::default()
        },
        ..Graph::default()
    };
    let compute = |ms| Step::Compute(ServiceTime::Exponential(ms));
    // From the last to the first.
    for place in (0..=hops).rev() {
        let last = place == hops;
        let mut steps = vec![compute(if last { SERVICE_MS } else { 1.0 })];
        if !last {
            let below = graph.tasks.len() - 1;
            steps.push(Step::Call(Calls::one(below, Route::RoundRobin)));
        }
        graph.tasks.push(Task {
            service: place,
            steps,
        });
    }
    graph.services = (0..=hops)
        .map(|place| {
            let slots = if place == hops { SLOTS } else { 1_000 };
            Service::new(&format!("s{place}"), PROCESSES, slots)
        })
        .collect();
    graph.workflows = vec![Workflow {
        deadline: Some(2 * TIMEOUT),
        ..Workflow::new("w", graph.tasks.len() - 1)
    }];
    graph
}

fn run(hops: usize, lost: f64, begin: f64, end: f64) -> Trial {
    let demand = capacity();
    let loads = [
        Load::new(0, Arrivals::Poisson(0.5 * demand)),
        Load::new(0, Arrivals::Poisson(1.5 * demand)).between(begin, f64::MAX),
    ];
    let setup = setup::rate_control(Discipline::Fifo);
    let mut trial = Trial::new(&chain(hops, lost), &loads, setup, end);
    trial.sample_every = Duration::from_secs_f64(STEP);
    trial
}

/// Rates at the entry, smoothed over a second.
fn smoothed(seen: &Seen) -> Vec<(f64, Option<f64>)> {
    let rates = seen.rates(0, 0);
    let mean = |at: usize| {
        let window = &rates[(at + 1).saturating_sub(MEAN_OVER)..=at];
        let known: Option<Vec<f64>> = window.iter().map(|(_, rate)| *rate).collect();
        (
            rates[at].0,
            known.and_then(|known| crate::mesh::seen::mean(&known)),
        )
    };
    (0..rates.len()).map(mean).collect()
}

/// What a run shows.
#[derive(Debug, Clone, Copy)]
struct Found {
    /// From the overload to where the smoothed rates enter the band around their later mean for good, s.
    reached: Option<f64>,
    /// Mean of the rates at the entry over the last half, requests/s.
    mean: f64,
    /// Largest distance of the smoothed rates from that mean, once settled, ratio.
    band: f64,
    /// Answered over the last half, requests/s.
    answered: f64,
}

fn found(seen: &Seen, begin: f64, settled: f64, end: f64) -> Found {
    let rates = seen.rates(0, 0);
    let late: Vec<f64> = rates
        .iter()
        .filter(|(at, _)| *at >= settled)
        .filter_map(|(_, rate)| *rate)
        .collect();
    let mean = crate::mesh::seen::mean(&late).unwrap_or(f64::INFINITY);
    let off = |rate: f64| (rate / mean - 1.0).abs();
    let smoothed = smoothed(seen);
    let outside = |rate: Option<f64>| rate.is_none_or(|rate| off(rate) > BAND);
    let last = smoothed.iter().rposition(|(_, rate)| outside(*rate));
    // Whoever was outside in the last tenth has not settled.
    let reached = match last {
        None => Some(begin),
        Some(at) => smoothed
            .get(at + 1)
            .map(|(at, _)| *at)
            .filter(|at| *at < end - (end - begin) / 10.0),
    };
    let band = smoothed
        .iter()
        .filter(|(at, _)| *at >= settled)
        .map(|(_, rate)| rate.map_or(f64::INFINITY, off))
        .fold(0.0, f64::max);
    Found {
        reached: reached.map(|at| at - begin),
        mean,
        band,
        answered: seen.throughput(0, settled..end),
    }
}

pub(super) fn convergence(
    size: &Size,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report, SimulationError> {
    let cases: Vec<(usize, f64)> = LOST
        .iter()
        .flat_map(|lost| HOPS.map(|hops| (hops, *lost)))
        .collect();
    let long = (LONG * part(size)).max(60.0);
    let mut trials: Vec<Trial> = cases
        .iter()
        .map(|(hops, lost)| run(*hops, *lost, BEGIN, END))
        .collect();
    trials.extend(LONG_HOPS.map(|hops| run(hops, 0.0, BEGIN, long)));
    let runs = trial::run(&trials, size, 1, progress)?;
    let first = |at: usize| runs.get(at).and_then(|runs| runs.first());
    let settled = (BEGIN + END) / 2.0;
    let results: Vec<Option<Found>> = (0..cases.len())
        .map(|at| first(at).map(|seen| found(seen, BEGIN, settled, END)))
        .collect();
    let steady: Vec<Option<Found>> = (0..LONG_HOPS.len())
        .map(|at| first(cases.len() + at).map(|seen| found(seen, BEGIN, LONG_SETTLED, long)))
        .collect();
    report.setup(
        "chain",
        format!(
            "1 to 6 hops, {PROCESSES} processes a service; the last can serve {:.0} requests/s and is asked for {:.0}; callers give up after {} ms",
            capacity(),
            2.0 * capacity(),
            TIMEOUT.as_millis()
        ),
    );
    report.setup("rate control", setup::in_words());
    let cells = |found: &Option<Found>| match found {
        None => vec![Cell::Empty; 4],
        Some(found) => vec![
            Cell::number(found.reached, 1),
            Cell::Number(found.mean, 0),
            Cell::Number(found.band * 100.0, 1),
            Cell::Number(found.answered, 1),
        ],
    };
    let columns = [
        "hops",
        "rate reached after, s",
        "Σσ at the entry, 1/s",
        "largest distance from it, %",
        "answered, 1/s",
    ]
    .map(str::to_owned)
    .to_vec();
    let group = |lost: &f64| Group {
        title: format!("{:.0}% of the responses lost", lost * 100.0),
        rows: cases
            .iter()
            .zip(&results)
            .filter(|((_, l), _)| l == lost)
            .map(|((hops, _), found)| TableRow {
                label: hops.to_string(),
                cells: cells(found),
            })
            .collect(),
    };
    report.tables.push(Table {
        title: "Convergence".to_owned(),
        columns: columns.clone(),
        groups: LOST.iter().map(group).collect(),
    });
    report.tables.push(Table {
        title: format!("Stability over {long:.0} s"),
        columns,
        groups: vec![Group {
            title: String::new(),
            rows: LONG_HOPS
                .iter()
                .zip(&steady)
                .map(|(hops, found)| TableRow {
                    label: hops.to_string(),
                    cells: cells(found),
                })
                .collect(),
        }],
    });
    let shown = |lost: f64| {
        let series = cases
            .iter()
            .enumerate()
            .filter(|(_, (hops, l))| (*l - lost).abs() < 1e-9 && [1, 3, 6].contains(hops));
        series
            .enumerate()
            .filter_map(|(colour, (at, (hops, _)))| {
                let name = format!("{hops} hops");
                let rates = first(at)?.rates(0, 0);
                Some(Series::new(name, Style::Line, rates).coloured(colour))
            })
            .collect::<Vec<_>>()
    };
    for lost in [0.0, 0.1] {
        report.figures.push(Figure {
            title: format!(
                "Σσ at the entry, {:.0}% of the responses lost",
                lost * 100.0
            ),
            x: Axis::new("time, s"),
            y: Axis::new("rate, requests/s").log(),
            series: shown(lost),
            levels: vec![Level::new(capacity(), "capacity")],
            ..Figure::default()
        });
    }
    if let Some(seen) = first(cases.len() + LONG_HOPS.len() - 1) {
        report.figures.push(Figure {
            title: format!("Σσ at the entry over {long:.0} s, {} hops", LONG_HOPS[1]),
            x: Axis::new("time, s"),
            y: Axis::new("rate, requests/s"),
            series: vec![Series::new("Σσ", Style::Line, smoothed(seen))],
            levels: vec![Level::new(capacity(), "capacity")],
            caption: "Mean over a second.".to_owned(),
            ..Figure::default()
        });
    }
    let labelled = cases
        .iter()
        .copied()
        .chain(LONG_HOPS.map(|hops| (hops, 0.0)));
    for (at, ((hops, lost), found)) in labelled.zip(results.iter().chain(&steady)).enumerate() {
        let Some(found) = found else { continue };
        let row = Record::new()
            .with(
                "run",
                if at < cases.len() {
                    "convergence"
                } else {
                    "stability"
                },
            )
            .with("hops", hops as u64)
            .with("lost_pct", lost * 100.0)
            .with("reached_s", found.reached)
            .with("sigma_entry_rps", found.mean)
            .with("band_pct", found.band * 100.0)
            .with("answered_rps", found.answered);
        report.rows.push(row);
    }
    let worst = |lost: f64| {
        let of = cases
            .iter()
            .zip(&results)
            .filter(|((_, l), _)| (*l - lost).abs() < 1e-9);
        of.map(|(_, found)| found.and_then(|f| f.reached).unwrap_or(f64::INFINITY))
            .fold(0.0, f64::max)
    };
    let band = steady
        .iter()
        .map(|found| found.map_or(f64::INFINITY, |f| f.band))
        .fold(0.0, f64::max);
    let least = steady
        .iter()
        .map(|found| found.map_or(0.0, |f| f.answered / capacity()))
        .fold(f64::INFINITY, f64::min);
    report.claims = vec![
        claim(
            "rates reach the entry of six hops within two seconds",
            "2 s",
            format!("{:.1} s", worst(0.0)),
            worst(0.0) <= 2.0,
        ),
        claim(
            "and with a tenth of the responses lost within five",
            "5 s",
            format!("{:.1} s", worst(0.1)),
            worst(0.1) <= 5.0,
        ),
        claim(
            "over ten minutes, means of the entry's rates over a second stay within a band of 20%",
            "20%",
            format!("{:.0}%", band * 100.0),
            band <= BAND,
        ),
        claim(
            "while the last service does most of what it can",
            "80%",
            format!("{:.0}%", least * 100.0),
            least >= 0.8,
        ),
    ];
    Ok(report)
}
