//! Figure 9: a hotspot.
//!
//! A and B are routed to the same PS, whose slots are what they contend for. A is one open-loop client. B begins at
//! 40 s with thirty clients in a closed loop and doubles at 60 s. C and D read and write by the other PSs, so that
//! they only load the ENs. All queues are FIFO.

use headgate_core::config::Discipline;

use super::storage::{FE, PROCESSES, PS, PsStep, SLOTS, Storage};
use super::{claim, part, setup};
use crate::mesh::seen::quantile;
use crate::mesh::trial::{self, Trial, mean};
use crate::mesh::{Arrivals, Load, Seen, Setup};
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Figure, Group, Level, Record, Report, Series, Style, Table, TableRow,
};
use crate::scenario::Size;
use crate::simulation::SimulationError;
use crate::workload::ServiceTime;

const NAMES: [&str; 4] = ["A", "B", "C", "D"];
const LABELS: [&str; 2] = ["baseline", "Wisp"];
const A: usize = 0;
const B: usize = 1;
/// When B begins, doubles, and the run ends, s.
const BEGIN: f64 = 40.0;
const DOUBLES: f64 = 60.0;
const END: f64 = 120.0;
/// Requests/s of A, C and D.
const A_RATE: f64 = 150.0;
const BACKGROUND: f64 = 200.0;
/// B's clients, twice.
const CLIENTS: u32 = 30;
/// Slots of a PS, and mean time for which A and B compute there, ms.
const PS_SLOTS: u32 = 16;
const COMPUTE_MS: f64 = 20.0;

struct Times {
    begin: f64,
    doubles: f64,
    end: f64,
}

impl Times {
    fn of(size: &Size) -> Self {
        let part = part(size).max(0.2);
        Self {
            begin: BEGIN * part,
            doubles: DOUBLES * part,
            end: END * part,
        }
    }

    /// Alone; with thirty clients; with sixty, once it has settled.
    fn spans(&self) -> [std::ops::Range<f64>; 3] {
        let settled = |from: f64, until: f64| from + (until - from) / 3.0..until;
        [
            self.begin * 0.1..self.begin,
            settled(self.begin, self.doubles),
            settled(self.doubles, self.end - 1.0),
        ]
    }
}

fn mesh(times: &Times) -> (Storage, Vec<Load>) {
    let mut storage = Storage::new();
    storage.graph.services[PS].slots = PS_SLOTS;
    let mut loads = Vec::new();
    for name in &NAMES[..2] {
        let steps = [PsStep::Compute(COMPUTE_MS), PsStep::call(5.0)];
        let workflow = storage.workflow(name, &steps);
        storage.graph.workflows[workflow].partitions = vec![0];
    }
    for name in &NAMES[2..] {
        let steps = [PsStep::call(20.0), PsStep::call(20.0)];
        let workflow = storage.workflow(name, &steps);
        storage.graph.workflows[workflow].partitions = (1..PROCESSES[PS]).collect();
        loads.push(Load::new(workflow, Arrivals::Poisson(BACKGROUND)));
    }
    loads.push(Load::new(A, Arrivals::Poisson(A_RATE)));
    for from in [times.begin, times.doubles] {
        let closed = Arrivals::Closed(CLIENTS, ServiceTime::Constant(0.0));
        loads.push(Load::new(B, closed).between(from, f64::MAX));
    }
    (storage, loads)
}

pub(super) fn figure_9(
    size: &Size,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report, SimulationError> {
    let times = Times::of(size);
    let (storage, loads) = mesh(&times);
    let setups = [Setup::default(), setup::rate_control(Discipline::Fifo)];
    let trials = setups.map(|setup| Trial::new(&storage.graph, &loads, setup, times.end));
    let runs = trial::run(&trials, size, 1, progress)?;
    report.setup("services", storage.in_words());
    report.setup(
        "workflows",
        format!(
            "A: {A_RATE} requests/s; B: {CLIENTS} clients from {:.0} s, {} from {:.0} s; C and D: {BACKGROUND} requests/s \
             each",
            times.begin,
            2 * CLIENTS,
            times.doubles
        ),
    );
    report.setup("Wisp", setup::in_words());
    let events = vec![
        Level::new(times.begin, "B begins"),
        Level::new(times.doubles, "B doubles"),
    ];
    let step = if times.end > 60.0 { 1.0 } else { 0.5 };
    for (label, runs) in LABELS.iter().zip(&runs) {
        let Some(seen) = runs.first() else { continue };
        let series = |(w, name): (usize, &&str)| {
            let style = if w > B { Style::Dashed } else { Style::Line };
            Series::new(*name, style, seen.medians(w, times.end, step)).coloured(w)
        };
        report.figures.push(Figure {
            title: format!("Median latency, {label} (Figure 9)"),
            x: Axis::new("time, s"),
            y: Axis::new("latency, s").log(),
            series: NAMES.iter().enumerate().map(series).collect(),
            events: events.clone(),
            ..Figure::default()
        });
        for (w, name) in NAMES.iter().enumerate() {
            for (at, median) in seen.medians(w, times.end, step) {
                let row = Record::new()
                    .with("scenario", *label)
                    .with("workflow", *name)
                    .with("time_s", at)
                    .with("rt_p50_s", median)
                    .with("throughput_rps", seen.throughput(w, at - step..at));
                report.rows.push(row);
            }
        }
    }
    if let Some(seen) = runs[1].first() {
        let series = |(w, name): (usize, &&str)| {
            Series::new(*name, Style::Line, seen.rates(FE, w)).coloured(w)
        };
        report.figures.push(Figure {
            title: "Rates at the entry: sum over the FEs".to_owned(),
            x: Axis::new("time, s"),
            y: Axis::new("rate, requests/s").log(),
            series: NAMES.iter().enumerate().map(series).collect(),
            events,
            caption: "C and D have rates far above what they send.".to_owned(),
            ..Figure::default()
        });
    }
    let spans = times.spans();
    let latency = |which: usize, w: usize, span: usize, q: f64| {
        mean(&runs[which], |seen| {
            quantile(&seen.latencies(Some(w), spans[span].clone()), q)
        })
    };
    let throughput = |which: usize, w: usize, span: usize| {
        mean(&runs[which], |seen| {
            Some(seen.throughput(w, spans[span].clone()))
        })
    };
    let group = |which: usize| {
        let row = |(w, name): (usize, &&str)| {
            let mut cells: Vec<Cell> = (0..3)
                .map(|span| Cell::number(latency(which, w, span, 0.5).map(|s| s * 1e3), 1))
                .collect();
            cells.push(Cell::number(latency(which, w, 2, 0.99).map(|s| s * 1e3), 1));
            cells.extend((0..3).map(|span| Cell::number(throughput(which, w, span), 1)));
            TableRow {
                label: (*name).to_owned(),
                cells,
            }
        };
        Group {
            title: LABELS[which].to_owned(),
            rows: NAMES.iter().enumerate().map(row).collect(),
        }
    };
    report.tables.push(Table {
        title: "Before B, with its thirty clients, with sixty".to_owned(),
        columns: [
            "workflow",
            "median of the answered before, ms",
            "with 30, ms",
            "with 60, ms",
            "99th percentile with 60, ms",
            "answered before, 1/s",
            "with 30, 1/s",
            "with 60, 1/s",
        ]
        .map(str::to_owned)
        .to_vec(),
        groups: (0..2).map(group).collect(),
    });
    let median = |which, w, span| latency(which, w, span, 0.5).unwrap_or_default() * 1e3;
    let answered = |which, w, span| throughput(which, w, span).unwrap_or_default();
    report.claims = vec![
        claim(
            "in the baseline B inflates A's latency",
            "",
            format!("{:.0} ms to {:.0} ms", median(0, A, 0), median(0, A, 2)),
            median(0, A, 2) > 2.0 * median(0, A, 0),
        ),
        claim(
            "with rates A retains its latency once the rates have settled",
            "",
            format!("{:.0} ms to {:.0} ms", median(1, A, 0), median(1, A, 2)),
            median(1, A, 2) < 1.5 * median(1, A, 0),
        ),
        claim(
            "and its throughput",
            "",
            format!("{:.0} of {A_RATE} requests/s", answered(1, A, 2)),
            answered(1, A, 2) > 0.95 * A_RATE,
        ),
        claim(
            "B is throttled at the entry",
            "",
            format!(
                "{:.0} requests/s instead of {:.0}",
                answered(1, B, 2),
                answered(0, B, 2)
            ),
            answered(1, B, 2) < answered(0, B, 2) && answered(1, B, 2) > 0.3 * answered(0, B, 2),
        ),
        claim(
            "the background workflows are not throttled",
            "",
            format!(
                "{:.0} and {:.0} of {BACKGROUND} requests/s",
                answered(1, 2, 2),
                answered(1, 3, 2)
            ),
            answered(1, 2, 2).min(answered(1, 3, 2)) > 0.96 * BACKGROUND,
        ),
    ];
    let refused = |w: usize| {
        mean(&runs[1], |seen: &Seen| {
            seen.part(Some(w), spans[2].clone(), crate::mesh::Ending::Refused)
        })
        .unwrap_or_default()
    };
    report.notes.push(format!(
        "The paper's text exchanges A and B in one sentence; as its caption says, B begins at 40 s. The contended \
         resource is the PS's slots, {PS_SLOTS} here instead of {}, which a request holds while it computes and while \
         it waits for the EN. Of A's requests {:.1}% were refused.",
        SLOTS[PS],
        refused(A) * 100.0
    ));
    Ok(report)
}
