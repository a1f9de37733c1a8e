//! The setup and the results of a trial as tables.

use std::time::Duration;

use super::rows::{CaseRows, Span, TypeRow};
use super::{Amount, Clients, Offered, Trial};
use crate::report::{Cell, Group, Limited, Report, Table, TableRow, words};
use crate::workload::recorded::Recording;
use crate::workload::{Process, Rate, Workload};

pub(super) fn table(trial: &Trial, results: &[CaseRows]) -> Table {
    let percentiles = trial.percentiles();
    let mut columns = vec![
        "type".to_owned(),
        "offered/s".to_owned(),
        "rejected, %".to_owned(),
        "within, %".to_owned(),
        "ideal, %".to_owned(),
    ];
    columns.extend(percentiles.iter().map(|p| format!("p{p}, ms")));
    columns.push("utilization".to_owned());
    let group = |case: &CaseRows| Group {
        title: heading(trial, case),
        rows: case
            .rows
            .iter()
            .map(|row| table_row(trial, row, &percentiles))
            .collect(),
    };
    Table {
        title:
            "by type; within: share answered within the objective at the highest percentile, for \
             ALL by value; ideal: the same with an ideal admission; then response times of \
             served requests, with their objectives in brackets"
                .to_owned(),
        columns,
        groups: results.iter().map(group).collect(),
    }
}

/// The percentage of rejections above which a type's objectives are not meaningful, because its few
/// served requests found free slots.
const HARDLY_ANSWERED_PCT: f64 = 90.0;

fn is_hardly_answered(row: &TypeRow) -> bool {
    row.rejected_pct > HARDLY_ANSWERED_PCT
}

/// Returns a sentence for each type with hardly any answered requests.
pub(super) fn hardly_answered(trial: &Trial, results: &[CaseRows]) -> Vec<String> {
    let named = |row: &&TypeRow| row.kind.is_some() && is_hardly_answered(row);
    let notes = |case: &CaseRows| {
        let title = heading(trial, case);
        let note = |row: &TypeRow| {
            let (name, answered) = (&row.name, 100.0 - row.rejected_pct);
            format!("{title}: {answered:.1}% of {name} is answered; its objectives are not judged")
        };
        case.rows.iter().filter(named).map(note).collect::<Vec<_>>()
    };
    results.iter().flat_map(notes).collect()
}

fn heading(trial: &Trial, case: &CaseRows) -> String {
    let (factor, rate) = (round(case.factor), case.per_second.round());
    match (case.span, &trial.plan.offered) {
        (Span::Phase(number, from, to), _) => {
            let (from, to) = (round(from), round(to));
            format!("phase {number}, {from} to {to} s: {factor} × full load, {rate} requests/s")
        }
        (Span::Whole, Offered::Recorded { .. }) => {
            format!("{factor} × the recorded rate, {rate} requests/s")
        }
        (Span::Whole, _) => format!("{factor} × full load, {rate} requests/s"),
    }
}

fn round(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

fn table_row(trial: &Trial, row: &TypeRow, percentiles: &[f64]) -> TableRow {
    let rejected = Cell::Number(row.rejected_pct, 2);
    let within = Cell::Number(row.within_pct, 2);
    let ideal = Cell::number(row.ideal_pct, 2);
    let mut cells = vec![Cell::Number(row.offered, 0), rejected, within, ideal];
    for percentile in percentiles {
        let ms = row.at(*percentile);
        let limit = trial.objective(row.kind, *percentile);
        cells.push(match (ms, limit) {
            (Some(ours), Some(limit)) if !is_hardly_answered(row) => Cell::Limited(Limited {
                ours,
                decimals: 1,
                limit,
            }),
            (ms, _) => Cell::number(ms, 1),
        });
    }
    // Utilization is only in the row of all types, because all types share the slots.
    cells.push(match row.kind {
        None => Cell::Number(row.utilization, 3),
        Some(_) => Cell::Text(String::new()),
    });
    TableRow {
        label: row.name.clone(),
        cells,
    }
}

impl Trial {
    /// Returns the names of the strategy and of its wrapper, as in a policy.
    pub(super) fn strategy(&self) -> String {
        // A strategy and its wrapper serialize with their name as the tag.
        let name = |value: Result<serde_json::Value, serde_json::Error>| {
            let value = value.ok()?;
            Some(value.get("type")?.as_str()?.to_owned())
        };
        let strategy = name(serde_json::to_value(&self.stage.strategy)).unwrap_or_default();
        let avoidance = self.stage.starvation_avoidance.as_ref();
        match avoidance.and_then(|avoidance| name(serde_json::to_value(avoidance))) {
            Some(avoidance) => format!("{strategy}+{avoidance}"),
            None => strategy,
        }
    }

    pub(super) fn describe(&self, report: &mut Report, amount: &Amount) {
        let stage = &self.stage;
        report.setup("strategy", self.strategy());
        let discipline = serde_json::to_value(&stage.queue.discipline).ok();
        let discipline = discipline.as_ref().and_then(|d| d.get("type")?.as_str());
        let (length, timeout) = (stage.queue.max_length, stage.queue.timeout_us as f64 / 1e3);
        report.setup(
            "queue",
            format!(
                "{}, at most {length} requests and {timeout} ms",
                discipline.unwrap_or_default()
            ),
        );
        let slots = self.slots;
        let requests = match &self.plan.offered {
            Offered::Loads { .. } | Offered::Clients { .. } => Some(amount.requests),
            Offered::Phases { .. } | Offered::Recorded { .. } => None,
        };
        let runs = words::runs(amount.seeds, requests, amount.seed);
        let warm_up = amount.warm_up.as_secs_f64();
        let mut runs = format!("{runs}, after {warm_up} s of warm-up");
        match &self.plan.offered {
            Offered::Loads { workload, .. } | Offered::Phases { workload, .. } => {
                report.setup("arrivals", arrivals(workload));
                modelled(report, workload, slots);
            }
            Offered::Clients { workload, clients } => {
                report.setup("clients", waiting(clients));
                modelled(report, workload, slots);
            }
            Offered::Recorded { recording, .. } => {
                recorded(report, recording, slots);
                runs.push_str("; a replay at a higher speed repeats the recording");
            }
        }
        report.setup("runs", runs);
    }
}

fn recorded(report: &mut Report, recording: &Recording, slots: u32) {
    let (requests, rate) = (recording.count(), recording.per_second());
    let seconds = recording.length_ns() as f64 / 1e9;
    report.setup(
        "arrivals",
        format!("recorded: {requests} requests in {seconds:.1} s, {rate:.0} requests/s"),
    );
    let mean = recording.mean_ms();
    let full = f64::from(slots) * 1e3 / mean;
    let part = rate / full;
    report.setup(
        "backend",
        format!(
            "{slots} slots; mean service time {mean:.2} ms, so full load is {full:.0} requests/s \
             and the recorded rate is {part:.2} of it"
        ),
    );
}

/// Returns a description of the clients.
fn waiting(clients: &Clients) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut text = format!(
        "{}, closed loop, with a think time of {} ms",
        clients.count,
        ms(clients.think)
    );
    if let Some(smoothing) = &clients.smoothing {
        text.push_str(&format!(
            "; with a further delay of {} to {} ms at a probability that equals the rejection rate",
            ms(smoothing.least),
            ms(smoothing.most)
        ));
    }
    text
}

fn arrivals(workload: &Workload) -> String {
    match workload.process() {
        Process::Poisson => "Poisson".to_owned(),
        Process::Constant => "at constant intervals".to_owned(),
        Process::Bursty(bursts) => format!(
            "bursty: {} times the rate in bursts, which take {} of the time and last {} s on \
             average",
            bursts.ratio,
            bursts.share,
            bursts.length.as_secs_f64()
        ),
    }
}

fn modelled(report: &mut Report, workload: &Workload, slots: u32) {
    let full = workload.per_second(Rate::Factor(1.0), slots);
    report.setup(
        "backend",
        format!("{slots} slots; full load is {full:.0} requests/s"),
    );
    for kind in workload.types() {
        let share = 100.0 * workload.share_of(kind);
        let mut text = format!("{share:.1}% of requests; {}", kind.service_time);
        if let Some(timeout) = kind.timeout {
            text.push_str(&format!("; deadline {} ms", timeout.as_secs_f64() * 1e3));
        }
        if kind.cost > 0 {
            text.push_str(&format!("; cost {}", kind.cost));
        }
        report.setup(kind.name.clone(), text);
    }
}
