//! Figure 8: low-latency workflows beside throughput-intensive clients.
//!
//! Six clients, each a workflow of its own, send 10 requests/s each that read once and have a deadline of 300 ms.
//! 40 to 200 clients in a closed loop, one workflow, send requests that make twenty calls of the ENs at once.

use std::time::Duration;

use super::storage::{EN, PsStep, SLOTS, Storage};
use super::{claim, part, setup};
use crate::mesh::trial::{self, Trial, mean};
use crate::mesh::{Arrivals, Load, Seen, Setup};
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Figure, Group, Level, Record, Report, Series, Style, Table, TableRow,
};
use crate::scenario::Size;
use crate::simulation::SimulationError;
use crate::workload::ServiceTime;

/// Throughput-intensive clients.
const CLIENTS: [u32; 5] = [40, 80, 120, 160, 200];
/// Low-latency workflows, and requests/s of each.
const LOW: usize = 6;
const LOW_RATE: f64 = 10.0;
const DEADLINE_S: f64 = 0.3;
/// Mean time of a call at the EN, ms, of both kinds.
const CALL_MS: f64 = 40.0;
const LENGTH: f64 = 60.0;
const LABELS: [&str; 2] = ["baseline", "Wisp"];

fn mesh(clients: u32) -> (Storage, Vec<Load>) {
    let mut storage = Storage::new();
    let mut loads = Vec::new();
    for n in 0..LOW {
        let steps = [PsStep::call(CALL_MS), PsStep::Compute(2.0)];
        let workflow = storage.workflow(&format!("low{n}"), &steps);
        storage.graph.workflows[workflow].deadline = Some(Duration::from_secs_f64(DEADLINE_S));
        loads.push(Load::new(workflow, Arrivals::Poisson(LOW_RATE)));
    }
    let steps = [PsStep::parallel(20, CALL_MS), PsStep::Compute(2.0)];
    let workflow = storage.workflow("throughput", &steps);
    let closed = Arrivals::Closed(clients, ServiceTime::Constant(0.0));
    loads.push(Load::new(workflow, closed));
    (storage, loads)
}

/// Of one run.
#[derive(Debug, Clone, Copy)]
struct Found {
    /// Mean latency of what was answered of the low-latency workflows, s.
    latency: f64,
    /// Part of their answered requests that met the deadline, ratio.
    hits: f64,
    /// Part of them that was not answered, ratio.
    dropped: f64,
    /// Throughput of the others, requests/s.
    throughput: f64,
}

fn found(seen: &Seen, length: f64) -> Found {
    let time = length * 0.2..length - 1.0;
    let (mut sum, mut hits, mut served, mut all) = (0.0, 0_u64, 0_u64, 0_u64);
    for ended in (0..LOW).flat_map(|w| seen.sent_in(Some(w), time.clone())) {
        all += 1;
        if ended.is_served() {
            served += 1;
            sum += ended.latency_s();
            hits += u64::from(ended.latency_s() <= DEADLINE_S);
        }
    }
    let served = served.max(1) as f64;
    Found {
        latency: sum / served,
        hits: hits as f64 / served,
        dropped: 1.0 - served / all.max(1) as f64,
        throughput: seen.throughput(LOW, time),
    }
}

pub(super) fn figure_8(
    size: &Size,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report, SimulationError> {
    let length = (LENGTH * part(size)).max(10.0);
    let mut trials = Vec::new();
    for setup in [Setup::default(), setup::rate_control(setup::fair())] {
        for clients in CLIENTS {
            let (storage, loads) = mesh(clients);
            trials.push(Trial::new(&storage.graph, &loads, setup.clone(), length));
        }
    }
    let runs = trial::run(&trials, size, 1, progress)?;
    let of = |which: usize, at: usize, value: &dyn Fn(Found) -> f64| {
        let runs = &runs[which * CLIENTS.len() + at];
        mean(runs, |seen| Some(value(found(seen, length)))).unwrap_or_default()
    };
    report.setup("services", Storage::new().in_words());
    report.setup(
        "workflows",
        format!(
            "{LOW} of {LOW_RATE} requests/s with one call of {CALL_MS} ms; one of closed-loop clients with 20 calls of \
             {CALL_MS} ms at once"
        ),
    );
    report.setup("Wisp", format!("fair queues; {}", setup::in_words()));
    let curve = |which: usize, value: &dyn Fn(Found) -> f64| {
        let points = CLIENTS.iter().enumerate();
        let points = points.map(|(at, n)| (f64::from(*n), Some(of(which, at, value))));
        Series::new(LABELS[which], Style::Line, points.collect::<Vec<_>>()).coloured(which)
    };
    let latency = |f: Found| f.latency * 1e3;
    let late = |f: Found| (1.0 - f.hits) * 100.0;
    report.figures.push(Figure {
        title: "Average latency of the answered low-latency requests (Figure 8)".to_owned(),
        x: Axis::new("throughput-intensive clients"),
        y: Axis::new("latency, ms"),
        series: (0..2).map(|which| curve(which, &latency)).collect(),
        levels: vec![Level::new(DEADLINE_S * 1e3, "deadline")],
        ..Figure::default()
    });
    report.figures.push(Figure {
        title: "Late requests of low-latency workflows (Figure 8)".to_owned(),
        x: Axis::new("throughput-intensive clients"),
        y: Axis::new("late, % of the answered").between(0.0, 100.0),
        series: (0..2).map(|which| curve(which, &late)).collect(),
        ..Figure::default()
    });
    let group = |which: usize| {
        let row = |(at, clients): (usize, &u32)| TableRow {
            label: clients.to_string(),
            cells: vec![
                Cell::Number(of(which, at, &latency), 1),
                Cell::Number(of(which, at, &late), 1),
                Cell::Number(of(which, at, &|f| f.dropped * 100.0), 1),
                Cell::Number(of(which, at, &|f| f.throughput), 1),
            ],
        };
        Group {
            title: LABELS[which].to_owned(),
            rows: CLIENTS.iter().enumerate().map(row).collect(),
        }
    };
    report.tables.push(Table {
        title: "Low-latency workflows, and what the others got".to_owned(),
        columns: [
            "clients",
            "average latency of the answered, ms",
            "late, % of the answered",
            "not answered, %",
            "throughput of the others, 1/s",
        ]
        .map(str::to_owned)
        .to_vec(),
        groups: (0..2).map(group).collect(),
    });
    for (which, label) in LABELS.iter().enumerate() {
        for (at, clients) in CLIENTS.iter().enumerate() {
            let row = Record::new()
                .with("scenario", *label)
                .with("clients", u64::from(*clients))
                .with("rt_mean_ms", of(which, at, &latency))
                .with("late_pct", of(which, at, &late))
                .with("dropped_pct", of(which, at, &|f| f.dropped * 100.0))
                .with("throughput_rps", of(which, at, &|f| f.throughput));
            report.rows.push(row);
        }
    }
    let last = CLIENTS.len() - 1;
    let (without, with) = (of(0, last, &latency), of(1, last, &latency));
    let times = without / with.max(1e-9);
    let dropped = |which: usize| of(which, last, &|f| f.dropped * 100.0);
    let (hits, few) = (
        100.0 - of(1, last, &late),
        of(0, 0, &late).max(of(1, 0, &late)),
    );
    report.claims = vec![
        claim(
            "with 40 clients both meet all deadlines",
            "100%",
            format!("{:.1}% at least", 100.0 - few),
            few < 1.0,
        ),
        claim(
            "with 200 clients the average latency improves by a factor of two",
            "2",
            format!(
                "{times:.1}: {without:.0} ms to {with:.0} ms of the answered; {:.1}% and {:.1}% are not answered",
                dropped(0),
                dropped(1)
            ),
            times >= 1.7,
        ),
        claim(
            "and most of the admitted requests meet their deadlines",
            "about 80%",
            format!(
                "{hits:.0}%; {:.1}% are not admitted or not answered",
                dropped(1)
            ),
            hits >= 75.0,
        ),
    ];
    report.notes.push(format!(
        "The ENs have {} slots each, and a call takes {CALL_MS} ms on average; the paper doesn't say what it had. Each \
         workflow is a type of its own, so fair queues know what its requests cost.",
        SLOTS[EN]
    ));
    Ok(report)
}
