//! Figure 10: the quantile knob q.
//!
//! A scan workflow of 180 clients in a closed loop, each request of which makes ten calls of the ENs one after the
//! other, competes with a lighter open-loop workflow. The same for several q.

use headgate_core::config::Discipline;

use super::storage::{EN, FE, PROCESSES, PS, PsStep, Storage, TIERS};
use super::{claim, part, setup};
use crate::mesh::trial::{self, Trial, mean};
use crate::mesh::{Arrivals, Load, Seen, Setup};
use crate::progress::Progress;
use crate::report::{Axis, Cell, Figure, Group, Record, Report, Series, Style, Table, TableRow};
use crate::scenario::Size;
use crate::simulation::SimulationError;
use crate::workload::ServiceTime;

const QUANTILES: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];
/// Of the three that the paper has.
const SHOWN: [usize; 3] = [0, 2, 4];
const CLIENTS: u32 = 180;
/// Calls of a scan.
const CALLS: u32 = 10;
const CALL_MS: f64 = 20.0;
/// Slots of an EN.
const EN_SLOTS: u32 = 6;
/// Requests/s of the lighter workflow, which reads once.
const LIGHT: f64 = 300.0;
const LENGTH: f64 = 120.0;
const SCAN: usize = 0;
/// The tiers whose rates are shown.
const SHOWN_TIERS: [usize; 3] = [FE, PS, EN];

fn mesh() -> (Storage, Vec<Load>) {
    let mut storage = Storage::new();
    storage.graph.services[EN].slots = EN_SLOTS;
    let scan = storage.workflow("scan", &[PsStep::sequence(CALLS, CALL_MS)]);
    let light = storage.workflow("light", &[PsStep::call(CALL_MS)]);
    let closed = Arrivals::Closed(CLIENTS, ServiceTime::Constant(0.0));
    let loads = vec![
        Load::new(scan, closed),
        Load::new(light, Arrivals::Poisson(LIGHT)),
    ];
    (storage, loads)
}

/// Spread of a tier's rates: standard deviation by mean, ratio.
fn spread(points: &[(f64, Option<f64>)], from: f64) -> Option<f64> {
    let rates: Vec<f64> = points
        .iter()
        .filter(|(at, _)| *at >= from)
        .filter_map(|(_, rate)| *rate)
        .collect();
    let mean = crate::mesh::seen::mean(&rates)?;
    let squares = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
    Some((squares / rates.len() as f64).sqrt() / mean.max(1e-9))
}

pub(super) fn figure_10(
    size: &Size,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report, SimulationError> {
    let length = LENGTH * part(size).max(0.2);
    let settled = length * 0.3..length - 1.0;
    let (storage, loads) = mesh();
    let trials = QUANTILES.map(|q| {
        let setup = Setup {
            workflows: Some(setup::rates(q)),
            ..setup::rate_control(Discipline::Fifo)
        };
        Trial::new(&storage.graph, &loads, setup, length)
    });
    let runs = trial::run(&trials, size, 1, progress)?;
    report.setup("services", storage.in_words());
    report.setup(
        "workflows",
        format!(
            "scan: {CLIENTS} clients, {CALLS} calls of {CALL_MS} ms one after the other; light: {LIGHT} requests/s, one call"
        ),
    );
    report.setup("rate control", setup::in_words());
    let over = |at: usize, value: &dyn Fn(&Seen) -> Option<f64>| mean(&runs[at], value);
    let goodput = |at| over(at, &|seen| Some(seen.throughput(SCAN, settled.clone())));
    let light = |at| over(at, &|seen| Some(seen.throughput(1, settled.clone())));
    let utilization = |at| {
        over(at, &|seen| {
            Some(seen.utilization(EN, EN_SLOTS, settled.clone()) * 100.0)
        })
    };
    // What the ENs did for scans that came to nothing, and what they refused of them.
    let refused = |at| {
        over(at, &|seen| {
            let refused = |p: &crate::mesh::seen::ProcessSample| p.refused[SCAN] as f64;
            let offered = |p: &crate::mesh::seen::ProcessSample| p.offered[SCAN] as f64;
            let offered = seen.per_second(EN, settled.clone(), offered).max(1e-9);
            Some(100.0 * seen.per_second(EN, settled.clone(), refused) / offered)
        })
    };
    let rate = |at, tier| {
        over(at, &|seen| {
            let rates = seen.rates(tier, SCAN);
            let settled: Vec<f64> = rates
                .iter()
                .filter(|(time, _)| settled.contains(time))
                .filter_map(|(_, rate)| *rate)
                .collect();
            crate::mesh::seen::mean(&settled)
        })
    };
    let unsteady = |at, tier| over(at, &|seen| spread(&seen.rates(tier, SCAN), settled.start));
    let curve = |name: &str, colour, value: &dyn Fn(usize) -> Option<f64>| {
        let points = QUANTILES.iter().enumerate().map(|(at, q)| (*q, value(at)));
        Series::new(name, Style::Line, points.collect::<Vec<_>>()).coloured(colour)
    };
    report.figures.push(Figure {
        title: "Goodput of scans over q (Figure 10, left)".to_owned(),
        x: Axis::new("q"),
        y: Axis::new("answered, requests/s"),
        series: vec![curve("scan", 0, &goodput)],
        ..Figure::default()
    });
    report.figures.push(Figure {
        title: "Utilization and refusals of the ENs over q".to_owned(),
        x: Axis::new("q"),
        y: Axis::new("%").between(0.0, 100.0),
        series: vec![
            curve("slots held", 0, &utilization),
            curve("scans' calls refused", 1, &refused),
        ],
        ..Figure::default()
    });
    for at in SHOWN {
        let Some(seen) = runs[at].first() else {
            continue;
        };
        let series = SHOWN_TIERS.iter().enumerate().map(|(colour, tier)| {
            Series::new(TIERS[*tier], Style::Line, seen.rates(*tier, SCAN)).coloured(colour)
        });
        report.figures.push(Figure {
            title: format!(
                "Σσ of scans by tier, q = {} (Figure 10, right)",
                QUANTILES[at]
            ),
            x: Axis::new("time, s"),
            y: Axis::new("rate, requests/s").log(),
            series: series.collect(),
            ..Figure::default()
        });
    }
    let row = |(at, q): (usize, &f64)| TableRow {
        label: q.to_string(),
        cells: vec![
            Cell::number(goodput(at), 1),
            Cell::number(light(at), 1),
            Cell::number(utilization(at), 1),
            Cell::number(refused(at), 1),
            Cell::number(rate(at, FE), 0),
            Cell::number(rate(at, PS), 0),
            Cell::number(rate(at, EN), 0),
            Cell::number(unsteady(at, FE).map(|s| s * 100.0), 1),
            Cell::number(unsteady(at, EN).map(|s| s * 100.0), 1),
        ],
    };
    report.tables.push(Table {
        title: "Once the rates have settled".to_owned(),
        columns: [
            "q",
            "scans answered, 1/s",
            "light, 1/s",
            "EN slots held, %",
            "scans' calls refused, %",
            "Σσ FE, 1/s",
            "Σσ PS, 1/s",
            "Σσ EN, 1/s",
            "spread of Σσ FE, %",
            "spread of Σσ EN, %",
        ]
        .map(str::to_owned)
        .to_vec(),
        groups: vec![Group {
            title: String::new(),
            rows: QUANTILES.iter().enumerate().map(row).collect(),
        }],
    });
    for (at, q) in QUANTILES.iter().enumerate() {
        let row = Record::new()
            .with("q", *q)
            .with("goodput_rps", goodput(at))
            .with("light_rps", light(at))
            .with("en_utilization_pct", utilization(at))
            .with("en_refused_pct", refused(at))
            .with("sigma_fe_rps", rate(at, FE))
            .with("sigma_ps_rps", rate(at, PS))
            .with("sigma_en_rps", rate(at, EN))
            .with("sigma_fe_spread_pct", unsteady(at, FE).map(|s| s * 100.0))
            .with("sigma_en_spread_pct", unsteady(at, EN).map(|s| s * 100.0));
        report.rows.push(row);
    }
    let value = |found: Option<f64>| found.unwrap_or_default();
    let (none, half, all) = (SHOWN[0], SHOWN[1], SHOWN[2]);
    // Calls/s of ENs that the FEs' rates come to, by the ENs' own rates.
    let asked = |at| value(rate(at, FE)) * f64::from(CALLS) / value(rate(at, EN)).max(1e-9);
    report.claims = vec![
        claim(
            "q = 0 leaves the ENs the least used",
            "",
            format!(
                "{:.0}% of their slots, {:.0}% with q = 0.5",
                value(utilization(none)),
                value(utilization(half))
            ),
            value(utilization(none)) < value(utilization(half)),
        ),
        claim(
            "with q = 0 the throughput of scans is the lowest",
            "",
            format!(
                "{:.0} requests/s, {:.0} with q = 0.5",
                value(goodput(none)),
                value(goodput(half))
            ),
            (1..QUANTILES.len()).all(|at| value(goodput(none)) < value(goodput(at))),
        ),
        claim(
            "with q = 0 the ENs announce far more than the FEs let through",
            "",
            format!(
                "FEs let through {:.0}% of it, {:.0}% with q = 0.5",
                asked(none) * 100.0,
                asked(half) * 100.0
            ),
            asked(none) < asked(half),
        ),
        claim(
            "with q = 1 the ENs get more than they announce",
            "",
            format!("{:.0}% of it", asked(all) * 100.0),
            asked(all) > asked(half),
        ),
        claim(
            "with q = 0.5 the FEs' rates are the steadiest",
            "",
            format!(
                "spread {:.1}%, {:.1}% with q = 0 and {:.1}% with q = 1",
                value(unsteady(half, FE)) * 100.0,
                value(unsteady(none, FE)) * 100.0,
                value(unsteady(all, FE)) * 100.0
            ),
            value(unsteady(half, FE)) <= value(unsteady(none, FE)).min(value(unsteady(all, FE))),
        ),
    ];
    report.notes.push(format!(
        "The ENs have {EN_SLOTS} slots each, so that {CLIENTS} clients, each of which has one call under way, are more \
         than {} of them can serve at once.",
        PROCESSES[EN]
    ));
    Ok(report)
}
