//! §4.1.2: the trade-off of the quantile on the example of Figure 3.
//!
//! ```text
//! w1: a1 → b1 twice; b1 → c1 and c2; each of these → e1 and e2
//! w2: a1 → b1 → d1; d1 → e1 and e2
//! w3: a1 → b1 → e2
//! ```
//!
//! 100 requests/s of each make 400, 100 and 0 requests/s at e1 and 400, 100 and 100 at e2, and e1 and e2 can serve
//! 500 each. The topology is one of those that give these loads; the paper's text doesn't name all of its edges.

use std::time::Duration;

use headgate_core::config::{Discipline, SharingConfig};

use super::{claim, part, setup};
use crate::mesh::seen::ProcessSample;
use crate::mesh::trial::{self, Trial, mean};
use crate::mesh::{
    Arrivals, Calls, Graph, Load, Network, Route, Seen, Service, Setup, Step, Task, Workflow,
};
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Compared, Figure, Group, Record, Report, Series, Style, Table, TableRow,
};
use crate::scenario::Size;
use crate::simulation::SimulationError;
use crate::workload::ServiceTime;

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const D: usize = 3;
const E: usize = 4;
/// Demand of each workflow, requests/s.
const DEMAND: f64 = 100.0;
/// What e1 and e2 can serve, requests/s: so many slots, so many ms each.
const CAPACITY: f64 = 500.0;
const E_SLOTS: u32 = 10;
const E_MS: f64 = 20.0;
const QUANTILES: [f64; 3] = [0.0, 0.5, 1.0];
const LENGTH: f64 = 60.0;
/// What the paper has of q = 0 and q = 1: σ of w1 at a1, dropped at e2, spare at e1, requests/s.
const PAPER: [Option<[f64; 3]>; 3] = [Some([75.0, 0.0, 100.0]), None, Some([100.0, 100.0, 0.0])];

fn graph() -> Graph {
    let mut graph = Graph {
        services: vec![
            Service::new("a", 1, 200),
            Service::new("b", 1, 200),
            Service::new("c", 2, 200),
            Service::new("d", 1, 200),
            Service::new("e", 2, E_SLOTS),
        ],
        network: Network {
            timeout: Some(Duration::from_secs(5)),
            ..Network::default()
        },
        ..Graph::default()
    };
    let mut task = |service, steps| {
        graph.tasks.push(Task { service, steps });
        graph.tasks.len() - 1
    };
    let compute = |ms| Step::Compute(ServiceTime::Constant(ms));
    let both = |task| Step::Call(Calls::several(task, 2, 2, Route::Each));
    let e = task(E, vec![compute(E_MS)]);
    let c = task(C, vec![compute(1.0), both(e)]);
    let d = task(D, vec![compute(1.0), both(e)]);
    let one = |task, process| Step::Call(Calls::one(task, Route::Fixed(process)));
    let b = [
        task(B, vec![compute(1.0), both(c)]),
        task(B, vec![compute(1.0), one(d, 0)]),
        task(B, vec![compute(1.0), one(e, 1)]),
    ];
    let twice = Step::Call(Calls::several(b[0], 2, 2, Route::Fixed(0)));
    let a = [
        task(A, vec![compute(1.0), twice]),
        task(A, vec![compute(1.0), one(b[1], 0)]),
        task(A, vec![compute(1.0), one(b[2], 0)]),
    ];
    let names = ["w1", "w2", "w3"];
    graph.workflows = names
        .iter()
        .zip(a)
        .map(|(n, a)| Workflow::new(n, a))
        .collect();
    graph
}

pub(super) fn example(
    size: &Size,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report, SimulationError> {
    let graph = graph();
    let length = LENGTH * part(size).max(0.5);
    let settled = length / 2.0..length;
    let loads: Vec<Load> = (0..3)
        .map(|w| Load::new(w, Arrivals::Even(DEMAND)))
        .collect();
    let trials = QUANTILES.map(|q| {
        let mut rates = setup::rates(q);
        // What exceeds a rate is dropped, rather than queued for long.
        rates.max_queue_length = 10;
        rates.sharing = SharingConfig::BottleneckFairness {
            probe: setup::PROBE,
            max_utilization: 1.0,
        };
        let setup = Setup {
            workflows: Some(rates),
            ..setup::rate_control(Discipline::Fifo)
        };
        Trial::new(&graph, &loads, setup, length)
    });
    let runs = trial::run(&trials, size, 1, progress)?;
    let (e1, e2) = (0, 1);
    // Of one process of e, by the second.
    let of_e = |seen: &Seen, process: usize, value: &dyn Fn(&ProcessSample) -> u64| {
        let process = seen.services[E].start + process;
        seen.per_second_of(process..process + 1, settled.clone(), |p| value(p) as f64)
    };
    let found = |at: usize| -> [f64; 3] {
        let over = |value: &dyn Fn(&Seen) -> f64| {
            mean(&runs[at], |seen| Some(value(seen))).unwrap_or_default()
        };
        [
            over(&|seen| {
                let rates = seen.rates(A, 0);
                let settled: Vec<f64> = rates
                    .iter()
                    .filter(|(time, _)| settled.contains(time))
                    // Without a rate all that is asked for passes.
                    .map(|(_, rate)| rate.unwrap_or(DEMAND))
                    .collect();
                crate::mesh::seen::mean(&settled).unwrap_or_default()
            }),
            over(&|seen| of_e(seen, e2, &|p| p.refused.iter().sum())),
            over(&|seen| CAPACITY - of_e(seen, e1, &|p| p.completed.iter().sum())),
        ]
    };
    let found: Vec<[f64; 3]> = (0..QUANTILES.len()).map(found).collect();
    report.setup(
        "topology",
        "w1: a1 → 2 b1, b1 → c1 + c2, each → e1 + e2; w2: a1 → b1 → d1 → e1 + e2; w3: a1 → b1 → e2",
    );
    report.setup(
        "demand",
        format!("{DEMAND} requests/s of each workflow, evenly"),
    );
    report.setup("capacity", format!("{CAPACITY} requests/s of e1 and of e2"));
    let row = |(at, q): (usize, &f64)| TableRow {
        label: q.to_string(),
        cells: (0..3)
            .map(|which| match PAPER[at] {
                None => Cell::Number(found[at][which], 1),
                Some(paper) => Cell::Compared(Compared {
                    ours: Some(found[at][which]),
                    decimals: 1,
                    expected: paper[which],
                    printed: format!("{}", paper[which]),
                    within: Some(12.0),
                }),
            })
            .collect(),
    };
    report.tables.push(Table {
        title: "Requests/s".to_owned(),
        columns: ["q", "σ of w1 at a1", "dropped at e2", "spare at e1"]
            .map(str::to_owned)
            .to_vec(),
        groups: vec![Group {
            title: String::new(),
            rows: QUANTILES.iter().enumerate().map(row).collect(),
        }],
    });
    report.figures.push(Figure {
        title: "σ of w1 at a1".to_owned(),
        x: Axis::new("time, s"),
        y: Axis::new("rate, requests/s"),
        series: (0..QUANTILES.len())
            .filter_map(|at| {
                let seen = runs[at].first()?;
                let name = format!("q = {}", QUANTILES[at]);
                Some(Series::new(name, Style::Line, seen.rates(A, 0)).coloured(at))
            })
            .collect(),
        ..Figure::default()
    });
    for (at, q) in QUANTILES.iter().enumerate() {
        let row = Record::new()
            .with("q", *q)
            .with("sigma_a1_w1", found[at][0])
            .with("dropped_e2", found[at][1])
            .with("spare_e1", found[at][2]);
        report.rows.push(row);
    }
    let rises = |which: usize| {
        found
            .windows(2)
            .all(|pair| pair[0][which] <= pair[1][which] + 3.0)
    };
    report.claims = vec![claim(
        "what is let in at a1 rises with q, and so does what e2 drops",
        "",
        format!(
            "{:.0}, {:.0}, {:.0} and {:.0}, {:.0}, {:.0} requests/s",
            found[0][0], found[1][0], found[2][0], found[0][1], found[1][1], found[2][1]
        ),
        rises(0) && rises(1),
    )];
    Ok(report)
}
