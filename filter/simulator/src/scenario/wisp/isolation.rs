//! Figure 7: performance isolation.
//!
//! Workflows A to D read and write at the ENs and then compute at the PS, 100 requests/s each. E only computes at the
//! PS. G sends a request every two seconds that makes 400 reads at once and then 400 writes, 200 ms each. From 50 s
//! on F's four clients ask for more than its fair share of the ENs. Clients and callers give up after 10 s, and what
//! they gave up is still worked on.

use headgate_core::config::{Discipline, MAX_WORKFLOW_QUEUE};

use super::storage::{EN, PsStep, RPC_TIMEOUT, Storage};
use super::{claim, part, setup};
use crate::mesh::seen::quantile;
use crate::mesh::trial::{self, Trial, mean};
use crate::mesh::{Arrivals, Ending, Load, Seen, Setup};
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Figure, Group, Level, Record, Report, Series, Style, Table, TableRow,
};
use crate::scenario::Size;
use crate::simulation::SimulationError;

/// When F begins and when the run ends, s.
const BEGIN: f64 = 50.0;
const END: f64 = 150.0;
/// After F's begin: time that is left out of the averages, s.
const SETTLES: f64 = 20.0;
/// Requests/s of A to E.
const STEADY: f64 = 100.0;
/// F: clients and requests/s of each.
const AGGRESSIVE: (u32, f64) = (4, 175.0);
/// Slots of an EN: G is within its fair share of them, F isn't.
const EN_SLOTS: u32 = 26;
const NAMES: [&str; 7] = ["A", "B", "C", "D", "E", "F", "G"];
const LABELS: [&str; 3] = ["timeouts only", "RC", "FQ+RC"];
const F: usize = 5;
const G: usize = 6;

struct Times {
    begin: f64,
    end: f64,
}

impl Times {
    fn before(&self) -> std::ops::Range<f64> {
        self.begin * 0.2..self.begin
    }

    /// Requests that were sent in this time have ended when the run ends.
    fn after(&self) -> std::ops::Range<f64> {
        let settled = self.begin + (self.end - self.begin) * SETTLES / (END - BEGIN);
        settled..(self.end - RPC_TIMEOUT.as_secs_f64()).max(settled + 1.0)
    }
}

fn mesh(times: &Times) -> (Storage, Vec<Load>) {
    let mut storage = Storage::new();
    storage.graph.services[EN].slots = EN_SLOTS;
    let mut loads = Vec::new();
    let read_write = |ms| [PsStep::call(ms), PsStep::call(ms), PsStep::Compute(5.0)];
    for name in &NAMES[..4] {
        let workflow = storage.workflow(name, &read_write(20.0));
        loads.push(Load::new(workflow, Arrivals::Poisson(STEADY)));
    }
    let workflow = storage.workflow(NAMES[4], &[PsStep::Compute(5.0)]);
    loads.push(Load::new(workflow, Arrivals::Poisson(STEADY)));
    let workflow = storage.workflow(NAMES[F], &read_write(200.0));
    for _ in 0..AGGRESSIVE.0 {
        let load = Load::new(workflow, Arrivals::Poisson(AGGRESSIVE.1));
        loads.push(load.between(times.begin, f64::MAX));
    }
    let burst = PsStep::parallel(400, 200.0);
    let workflow = storage.workflow(NAMES[G], &[burst, burst]);
    loads.push(Load::new(workflow, Arrivals::Even(0.5)));
    (storage, loads)
}

/// With queues of the limiters that deadlines alone bound, as §4.3 has it. A request of G is 800 calls: a bound that is
/// less than a few of them refuses bursts, whatever the order of the queues.
fn patient(mut setup: Setup) -> Setup {
    if let Some(workflows) = &mut setup.workflows {
        workflows.max_queue_length = MAX_WORKFLOW_QUEUE;
    }
    setup
}

pub(super) fn figure_7(
    size: &Size,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report, SimulationError> {
    let times = Times {
        begin: BEGIN * part(size),
        end: END * part(size),
    };
    let (storage, loads) = mesh(&times);
    let setups = [
        Setup::default(),
        patient(setup::rate_control(Discipline::Fifo)),
        patient(setup::rate_control(setup::fair())),
    ];
    let trials = setups.map(|setup| Trial::new(&storage.graph, &loads, setup, times.end));
    let runs = trial::run(&trials, size, 1, progress)?;
    report.setup("services", storage.in_words());
    report.setup(
        "workflows",
        format!(
            "A to E: {STEADY} requests/s each; F: {} clients of {} requests/s from {:.0} s; G: 0.5 requests/s of 800 \
             calls",
            AGGRESSIVE.0, AGGRESSIVE.1, times.begin
        ),
    );
    report.setup("rate control", setup::in_words_with(MAX_WORKFLOW_QUEUE));
    for (label, runs) in LABELS.iter().zip(&runs) {
        let Some(seen) = runs.first() else { continue };
        figures(&mut report, label, seen, &times);
        rows(&mut report, label, seen, &times);
    }
    report.tables.push(table(&runs, &times));
    report.notes.push(note());
    claims(&mut report, &runs, &times);
    Ok(report)
}

/// What a policy's author wouldn't expect.
fn note() -> String {
    format!(
        "F sends {:.0} times what each of A to E does. Queues of the limiters hold {MAX_WORKFLOW_QUEUE} requests of a \
         workflow instead of the default {}, with which G, whose requests are 800 calls each, is refused whatever the \
         order. Each workflow is a type of its own, so fair queues know what its requests cost; under a policy whose \
         workflows share a type all requests cost the same.",
        f64::from(AGGRESSIVE.0) * AGGRESSIVE.1 / STEADY,
        setup::QUEUE
    )
}

/// Figure 7 left and center, of one scenario.
fn figures(report: &mut Report, label: &str, seen: &Seen, times: &Times) {
    let events = vec![Level::new(times.begin, "F begins")];
    let series = |points: &dyn Fn(usize) -> Vec<(f64, Option<f64>)>| {
        let series =
            |(w, name): (usize, &&str)| Series::new(*name, Style::Line, points(w)).coloured(w);
        NAMES.iter().enumerate().map(series).collect()
    };
    let step = ((times.end / 75.0).round()).max(1.0);
    report.figures.push(Figure {
        title: format!("Median latency, {label} (Figure 7, left)"),
        x: Axis::new("time, s"),
        y: Axis::new("latency, s").log(),
        series: series(&|w| seen.medians(w, times.end, step)),
        events: events.clone(),
        ..Figure::default()
    });
    let throughput = |w: usize| -> Vec<(f64, Option<f64>)> {
        let spans = (times.end / step) as usize;
        let span = |n: usize| {
            let begin = n as f64 * step;
            (begin + step, Some(seen.throughput(w, begin..begin + step)))
        };
        (0..spans).map(span).collect()
    };
    report.figures.push(Figure {
        title: format!("Throughput, {label} (Figure 7, center)"),
        x: Axis::new("time, s"),
        y: Axis::new("answered, requests/s"),
        series: series(&throughput),
        events,
        ..Figure::default()
    });
}

fn rows(report: &mut Report, label: &str, seen: &Seen, times: &Times) {
    for (w, name) in NAMES.iter().enumerate() {
        let latencies = seen.latencies(Some(w), times.after());
        let part = |ending| seen.part(Some(w), times.after(), ending).map(|p| p * 100.0);
        let row = Record::new()
            .with("scenario", label.to_owned())
            .with("workflow", *name)
            .with("throughput_before_rps", seen.throughput(w, times.before()))
            .with("throughput_rps", seen.throughput(w, times.after()))
            .with("rt_p50_s", quantile(&latencies, 0.5))
            .with("rt_p99_s", quantile(&latencies, 0.99))
            .with("timed_out_pct", part(Ending::TimedOut))
            .with("failed_pct", part(Ending::Failed))
            .with("refused_pct", part(Ending::Refused));
        report.rows.push(row);
    }
}

fn table(runs: &[Vec<Seen>], times: &Times) -> Table {
    let group = |(label, runs): (&&str, &Vec<Seen>)| {
        let row = |(w, name): (usize, &&str)| {
            let part = |ending| {
                mean(runs, |seen| {
                    seen.part(Some(w), times.after(), ending).map(|p| p * 100.0)
                })
            };
            let latency = |q| {
                mean(runs, |seen| {
                    quantile(&seen.latencies(Some(w), times.after()), q)
                })
            };
            TableRow {
                label: (*name).to_owned(),
                cells: vec![
                    Cell::number(mean(runs, |s| Some(s.throughput(w, times.before()))), 1),
                    Cell::number(mean(runs, |s| Some(s.throughput(w, times.after()))), 1),
                    Cell::number(latency(0.5), 3),
                    Cell::number(latency(0.99), 3),
                    Cell::number(part(Ending::TimedOut), 1),
                    Cell::number(part(Ending::Failed), 1),
                    Cell::number(part(Ending::Refused), 1),
                ],
            }
        };
        Group {
            title: (*label).to_owned(),
            rows: NAMES.iter().enumerate().map(row).collect(),
        }
    };
    Table {
        title: "Before F and once it has settled".to_owned(),
        columns: [
            "workflow",
            "answered before, 1/s",
            "answered, 1/s",
            "median of the answered, s",
            "99th percentile of the answered, s",
            "timed out, %",
            "failed below, %",
            "refused at the FE, %",
        ]
        .map(str::to_owned)
        .to_vec(),
        groups: LABELS.iter().zip(runs).map(group).collect(),
    }
}

fn claims(report: &mut Report, runs: &[Vec<Seen>], times: &Times) {
    let [baseline, rates, fair] = runs else {
        return;
    };
    let answered = |runs: &[Seen], w: usize| {
        mean(runs, |seen| Some(seen.throughput(w, times.after()))).unwrap_or_default()
    };
    let least = |runs: &[Seen]| {
        let answered = (0..F).map(|w| answered(runs, w));
        answered.fold(f64::INFINITY, f64::min)
    };
    let most = (0..F).map(|w| answered(baseline, w)).fold(0.0, f64::max);
    let timed_out = |runs: &[Seen]| {
        mean(runs, |seen| {
            let parts = [Ending::TimedOut, Ending::Failed].map(|ending| {
                seen.part(Some(G), times.after(), ending)
                    .unwrap_or_default()
            });
            Some(100.0 * parts.iter().sum::<f64>())
        })
        .unwrap_or_default()
    };
    let offered = f64::from(AGGRESSIVE.0) * AGGRESSIVE.1;
    report.claims = vec![
        claim(
            "with timeouts only the overload drives all workflows to throughput collapse",
            "",
            format!("at most {most:.1} of {STEADY} requests/s are answered of A to E"),
            most < 0.3 * STEADY,
        ),
        claim(
            "rate control lets the other workflows retain their throughput",
            "",
            format!("at least {:.1} of {STEADY} requests/s", least(rates)),
            least(rates) > 0.93 * STEADY,
        ),
        claim(
            "rate control throttles F",
            "",
            format!("{:.0} of {offered} requests/s", answered(rates, F)),
            (0.1..0.9).contains(&(answered(rates, F) / offered)),
        ),
        claim(
            "with rate control alone the bursty G still times out",
            "12% of its requests",
            format!("{:.0}%", timed_out(rates)),
            timed_out(rates) > 0.0,
        ),
        claim(
            "with fair queues, too, G's timeouts vanish",
            "0%",
            format!("{:.0}%", timed_out(fair)),
            timed_out(fair) < 1.0,
        ),
        claim(
            "and the others retain theirs",
            "",
            format!("at least {:.1} of {STEADY} requests/s", least(fair)),
            least(fair) > 0.93 * STEADY,
        ),
    ];
}
