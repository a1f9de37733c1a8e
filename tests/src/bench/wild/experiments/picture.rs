//! One picture for each experiment: the rate of answers in time, over time, in a panel for each
//! case.

use std::fmt::Write as _;

use super::{CaseReport, Run};
use crate::demo::chart::{Panel, Vertical, escape, nice_step};
use crate::demo::palette;

const WIDTH: f64 = 920.0;
/// The largest number of panels side by side.
const COLUMNS: usize = 3;
/// The space at the left of a panel, for its axis, px.
const GAP: f64 = 58.0;
const HEIGHT: f64 = 150.0;
/// The height of a panel with its heading and its axis, px.
const ROW: f64 = HEIGHT + 66.0;

/// Colours of the lines, which also differ by dashes.
const LINES: &str = ".none{stroke:var(--muted)}.offered{stroke-dasharray:2 3}\
.wasm-p{stroke:var(--t0)}.wasm{stroke:var(--t0);stroke-dasharray:6 3}\
.native-p{stroke:var(--t1)}.native{stroke:var(--t1);stroke-dasharray:6 3}";

/// The rows, each with its title in the legend, in the legend's order.
const ROWS: [(&str, &str); 6] = [
    ("offered", "first attempts"),
    ("wasm-p", "Wasm, P given"),
    ("native-p", "native, P given"),
    ("none", "no filter"),
    ("wasm", "Wasm, P found"),
    ("native", "native, P found"),
];

/// Returns a stand-alone SVG: for each case the answers in time per second of each row, as means
/// over the row's runs. Dotted lines mark the events of a case.
pub fn svg(reports: &[CaseReport]) -> String {
    let columns = reports.len().clamp(1, COLUMNS);
    let column = WIDTH / columns as f64;
    let height = reports.len().div_ceil(columns) as f64 * ROW + 60.0;
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Answers in time per second, with and without Headgate"><style>{}{LINES}</style><rect width="{WIDTH}" height="{height}" rx="8" fill="var(--bg)"/>"#,
        palette::CSS
    );
    for (index, report) in reports.iter().enumerate() {
        let (x, y) = ((index % columns) as f64, (index / columns) as f64);
        draw(&mut out, report, x * column, y * ROW + 40.0, column);
    }
    legend(&mut out, height - 40.0);
    out.push_str("</svg>\n");
    out
}

/// Draws the panel of a case into a column of this left edge and width, at the height `y`.
fn draw(out: &mut String, report: &CaseReport, left: f64, y: f64, column: f64) {
    let x = left + GAP;
    let offered = report.runs.first().map_or_else(Vec::new, |run| {
        let seconds = run.seconds.iter().map(|second| second.first as f64);
        seconds.collect()
    });
    let in_time = (report.runs.iter()).flat_map(|run| &run.seconds);
    let in_time = in_time.map(|second| second.in_time as f64);
    let most = offered.iter().copied().chain(in_time).fold(1.0, f64::max);
    let step = nice_step(most / 4.0);
    let panel = Panel {
        x,
        y,
        width: column - GAP - 18.0,
        height: HEIGHT,
        seconds: offered.len().max(1) as f64,
        vertical: Vertical::Linear((most * 1.05 / step).ceil() * step),
    };
    let _ = write!(
        out,
        r#"<text class="sub" x="{x}" y="{:.1}">{}: in time per second</text>"#,
        y - 12.0,
        escape(report.case)
    );
    panel.value_axis(out, |rate| format!("{rate:.0}"));
    panel.time_axis(out, 5.0);
    for at in &report.events_s {
        panel.event(out, *at, "");
    }
    let middle = |second: usize| second as f64 + 0.5;
    let points = offered.iter().enumerate();
    panel.line(
        out,
        "offered",
        points.map(|(second, rate)| (middle(second), Some(*rate))),
    );
    for (row, _) in ROWS {
        let runs: Vec<&Run> = report.runs.iter().filter(|run| run.row == row).collect();
        let points = (0..offered.len()).map(|second| {
            let rates = runs.iter().filter_map(|run| run.seconds.get(second));
            let sum: usize = rates.map(|second| second.in_time).sum();
            let mean = (!runs.is_empty()).then(|| sum as f64 / runs.len() as f64);
            (middle(second), mean)
        });
        panel.line(out, row, points);
    }
}

fn legend(out: &mut String, y: f64) {
    for (index, (class, title)) in ROWS.into_iter().enumerate() {
        let x = GAP + (index % COLUMNS) as f64 * WIDTH / COLUMNS as f64;
        let y = y + (index / COLUMNS) as f64 * 22.0;
        let _ = write!(
            out,
            r#"<path class="line {class}" d="M{x:.1} {y:.1}h26"/><text x="{:.1}" y="{:.1}">{title}</text>"#,
            x + 32.0,
            y + 4.0
        );
    }
}
