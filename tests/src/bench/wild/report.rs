//! The results as tables in Markdown and as one picture.

use std::fmt::Write as _;

use super::{Change, Measured, RowReport, ServiceReport};
use crate::demo::chart::{Panel, Vertical, escape, nice_step};
use crate::demo::palette;

/// Returns the mean, the least and the greatest of several values.
fn spread(values: &[f64]) -> Option<(f64, f64, f64)> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let most = values.iter().copied().max_by(f64::total_cmp)?;
    Some((
        values.iter().sum::<f64>() / values.len() as f64,
        least,
        most,
    ))
}

fn cell(values: &[f64], write: fn(f64) -> String) -> String {
    match spread(values) {
        None => "–".to_owned(),
        Some((mean, ..)) if values.len() == 1 => write(mean),
        Some((mean, least, most)) => format!("{} ({}–{})", write(mean), write(least), write(most)),
    }
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

fn hundredths(value: f64) -> String {
    format!("{value:.2}")
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// Returns the tables of all services.
pub fn markdown(reports: &[ServiceReport]) -> String {
    let mut out = String::from(
        "Goodput: 2xx per second within the p90 objective of their type, mean of the runs, \
         least and most in parentheses. Loads are multiples of the capacity that a ramp finds.\n",
    );
    for report in reports {
        let _ = writeln!(out, "\n### {}: {}\n", report.service, report.title);
        match &report.skipped {
            Some(why) => {
                let _ = writeln!(out, "Skipped: {why}");
            }
            None => service(&mut out, report),
        }
    }
    out
}

fn service(out: &mut String, report: &ServiceReport) {
    let _ = writeln!(out, "{}.", report.description());
    let loads: Vec<f64> = report.ideal.iter().map(|(load, _)| *load).collect();
    let headings: Vec<String> = loads.iter().map(|load| format!("{load}×")).collect();
    let at = |row: &str, load: f64, value: fn(&Measured) -> Option<f64>| -> Vec<f64> {
        let runs = report
            .runs
            .iter()
            .filter(|run| run.row == row && run.load == load);
        runs.filter_map(|run| value(&run.result)).collect()
    };
    heading(out, "goodput/s at load", &headings);
    let _ = writeln!(
        out,
        "| ideal | {} |",
        report
            .ideal
            .iter()
            .map(|(_, rps)| whole(*rps))
            .collect::<Vec<_>>()
            .join(" | ")
    );
    for row in &report.rows {
        let cells = loads.iter().map(|&load| {
            cell(
                &at(&row.name, load, |result| Some(result.goodput_rps)),
                whole,
            )
        });
        line(out, &label(row), cells);
    }
    heading(out, "refused at load", &headings);
    for row in &report.rows {
        let cells = loads
            .iter()
            .map(|&load| cell(&at(&row.name, load, |result| Some(result.refused)), percent));
        line(out, &label(row), cells);
    }
    let counted = |row: &&RowReport| {
        loads
            .iter()
            .any(|&load| !at(&row.name, load, |result| result.needed_replicas).is_empty())
    };
    if report.rows.iter().any(|row| counted(&row)) {
        heading(out, "replicas that the load needs, at load", &headings);
        for row in report.rows.iter().filter(counted) {
            let cells = loads.iter().map(|&load| {
                cell(
                    &at(&row.name, load, |result| result.needed_replicas),
                    hundredths,
                )
            });
            line(out, &label(row), cells);
        }
    }
    for change in Change::ALL {
        if report.changes.iter().all(|run| run.change != change) {
            continue;
        }
        let parts = [
            "before",
            "its first 10 s",
            "after 10 s",
            "afterwards",
            "in time after 10 s",
        ];
        heading(
            out,
            &format!("goodput/s at {}×, {}", super::CHANGE_LOAD, change.title()),
            &parts.map(str::to_owned),
        );
        for row in &report.rows {
            let runs: Vec<_> = report
                .changes
                .iter()
                .filter(|run| run.change == change && run.row == row.name)
                .collect();
            let part = |index: usize| -> Vec<f64> {
                runs.iter()
                    .filter_map(|run| run.parts.get(index))
                    .map(|part| part.goodput_rps)
                    .collect()
            };
            let settled: Vec<f64> = runs
                .iter()
                .filter_map(|run| run.parts.get(2))
                .filter_map(in_time)
                .collect();
            let cells = (0..4)
                .map(|index| cell(&part(index), whole))
                .chain([cell(&settled, percent)]);
            line(out, &label(row), cells);
        }
    }
}

/// Returns the least share, over all types, of the 2xx answers that are within the p90 objective.
/// If it is at least 0.9, all types meet the objective.
fn in_time(part: &Measured) -> Option<f64> {
    let answered = part.types.iter().filter(|kind| kind.answered > 0);
    answered
        .map(|kind| kind.good as f64 / kind.answered as f64)
        .min_by(f64::total_cmp)
}

fn label(row: &super::RowReport) -> String {
    match (&row.skipped, &row.chosen) {
        (_, Some(chosen)) => format!("{} (`{chosen}`)", row.title),
        (Some(why), None) => format!("{} (not run: {why})", row.title),
        (None, None) => row.title.clone(),
    }
}

fn heading(out: &mut String, first: &str, headings: &[String]) {
    let _ = writeln!(out, "\n| {first} | {} |", headings.join(" | "));
    let _ = writeln!(out, "|---|{}", "--:|".repeat(headings.len()));
}

fn line(out: &mut String, label: &str, cells: impl Iterator<Item = String>) {
    let _ = writeln!(
        out,
        "| {label} | {} |",
        cells.collect::<Vec<_>>().join(" | ")
    );
}

/// The width of a page of the book. A wider picture would be scaled down, and its text would be
/// below 12 px.
const WIDTH: f64 = 920.0;
const COLUMN: f64 = 246.0;
const GAP: f64 = 58.0;
const HEIGHT: f64 = 230.0;
/// The width of the label of a load, px.
const LABEL: f64 = 38.0;

/// The colours of the lines by family, some beyond the palette's colours. The lines also differ by
/// dashes.
const LINES: &str = ".w0{stroke:var(--muted)}.w1{stroke:var(--t1)}\
.w2{stroke:var(--t1);stroke-dasharray:6 3}.w3{stroke:var(--t1);stroke-dasharray:2 3}\
.w4{stroke:var(--t2)}.w5{stroke:var(--t2);stroke-dasharray:6 3}\
.w6{stroke:var(--t3)}.w7{stroke:var(--bad)}.w8{stroke:var(--bad);stroke-dasharray:6 3}\
.w9{stroke:var(--t0);stroke-width:3}.w10{stroke:var(--t0);stroke-dasharray:2 3}\
.w11{stroke:var(--t0);stroke-dasharray:6 3}.w12{stroke:var(--p90)}";

/// Returns a stand-alone SVG, which shows for each service the goodput over load, and the goodput
/// over time under each change.
pub fn svg(reports: &[ServiceReport]) -> String {
    let reports: Vec<&ServiceReport> = reports
        .iter()
        .filter(|report| report.skipped.is_none())
        .collect();
    let height = 60.0 + reports.len() as f64 * (HEIGHT + 90.0) + 80.0;
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Goodput of services over load and under changes"><style>{}{LINES}</style><rect width="{WIDTH}" height="{height}" rx="8" fill="var(--bg)"/>"#,
        palette::CSS
    );
    for (index, report) in reports.iter().enumerate() {
        draw(&mut out, report, 70.0 + index as f64 * (HEIGHT + 90.0));
    }
    if let Some(report) = reports.first() {
        legend(&mut out, report, height - 70.0);
    }
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, report: &ServiceReport, y: f64) {
    let _ = write!(
        out,
        r#"<text class="head" x="{GAP}" y="{:.1}">{}</text><text class="sub" x="{GAP}" y="{:.1}">answers in time per second, over load</text>"#,
        y - 48.0,
        escape(&report.title),
        y - 14.0
    );
    let measured = report.runs.iter().map(|run| run.result.goodput_rps);
    let ideal = report.ideal.iter().map(|(_, rps)| *rps);
    let most = measured.chain(ideal).fold(1.0, f64::max);
    let step = nice_step(most / 4.0);
    let top = (most * 1.05 / step).ceil() * step;
    let last = report
        .ideal
        .iter()
        .map(|(load, _)| *load)
        .fold(0.1, f64::max);
    let panel = Panel {
        x: GAP,
        y,
        width: COLUMN,
        height: HEIGHT,
        seconds: last,
        vertical: Vertical::Linear(top),
    };
    panel.value_axis(out, |rps| format!("{rps:.0}"));
    let mut labelled = f64::NEG_INFINITY;
    for (load, _) in &report.ideal {
        let x = panel.at(*load);
        if x - labelled < LABEL {
            continue;
        }
        labelled = x;
        let _ = write!(
            out,
            r#"<text class="tick" x="{x:.1}" y="{:.1}" text-anchor="middle">{load}×</text>"#,
            y + HEIGHT + 14.0
        );
    }
    panel.line(
        out,
        "limit",
        report.ideal.iter().map(|(load, rps)| (*load, Some(*rps))),
    );
    for row in &report.rows {
        let points = report.ideal.iter().map(|(load, _)| {
            let runs = report
                .runs
                .iter()
                .filter(|run| run.row == row.name && run.load == *load);
            let goodput: Vec<f64> = runs.map(|run| run.result.goodput_rps).collect();
            (*load, spread(&goodput).map(|(mean, ..)| mean))
        });
        panel.line(out, &style(row), points);
    }
    for (column, change) in Change::ALL.into_iter().enumerate() {
        let x = GAP + (column as f64 + 1.0) * (COLUMN + GAP);
        draw_change(out, report, change, &Panel { x, ..panel.clone() });
    }
}

fn draw_change(out: &mut String, report: &ServiceReport, change: Change, panel: &Panel) {
    let runs: Vec<_> = report
        .changes
        .iter()
        .filter(|run| run.change == change)
        .collect();
    let Some(seconds) = runs.iter().map(|run| run.curve.len()).max() else {
        return;
    };
    let panel = Panel {
        seconds: seconds as f64,
        ..panel.clone()
    };
    let _ = write!(
        out,
        r#"<text class="sub" x="{x}" y="{:.1}">{},</text><text class="sub" x="{x}" y="{:.1}">at {}× load</text>"#,
        panel.y - 30.0,
        escape(change.title()),
        panel.y - 14.0,
        super::CHANGE_LOAD,
        x = panel.x
    );
    panel.value_axis(out, |rps| format!("{rps:.0}"));
    panel.time_axis(out, 10.0);
    let begin: f64 = super::CALM
        .iter()
        .map(std::time::Duration::as_secs_f64)
        .sum();
    let end = begin
        + super::CHANGED
            .iter()
            .map(std::time::Duration::as_secs_f64)
            .sum::<f64>();
    panel.event(out, begin, "");
    panel.event(out, end, "");
    for row in &report.rows {
        let of_row: Vec<_> = runs.iter().filter(|run| run.row == row.name).collect();
        // Each point is the mean over runs and over 3 s, because single seconds are noisy.
        let points = (0..seconds).map(|second| {
            let around = second.saturating_sub(1)..(second + 2).min(seconds);
            let values: Vec<f64> = of_row
                .iter()
                .flat_map(|run| around.clone().filter_map(|at| run.curve.get(at).copied()))
                .collect();
            (second as f64 + 0.5, spread(&values).map(|(mean, ..)| mean))
        });
        panel.line(out, &style(row), points);
    }
}

/// Returns the CSS class of a row's line.
fn style(row: &RowReport) -> String {
    format!("w{}", row.family() % 13)
}

fn legend(out: &mut String, report: &ServiceReport, y: f64) {
    const COLUMNS: usize = 3;
    let ideal = ("limit".to_owned(), "ideal".to_owned());
    let rows = report
        .rows
        .iter()
        .map(|row| (style(row), row.title.clone()));
    for (index, (class, title)) in rows.chain([ideal]).enumerate() {
        let x = GAP + (index % COLUMNS) as f64 * 285.0;
        let y = y + (index / COLUMNS) as f64 * 22.0;
        let _ = write!(
            out,
            r#"<path class="line {class}" d="M{x:.1} {y:.1}h26"/><text x="{:.1}" y="{:.1}">{}</text>"#,
            x + 32.0,
            y + 4.0,
            escape(&title)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_show_the_spread_of_several_runs() {
        assert_eq!(cell(&[], whole), "–");
        assert_eq!(cell(&[0.25], percent), "25.0%");
        assert_eq!(cell(&[80.0, 120.0, 100.0], whole), "100 (80–120)");
    }
}
