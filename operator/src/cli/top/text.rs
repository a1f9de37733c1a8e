//! A view as tables, for people who read it later.

use super::format::rate;
use super::grid::{Choice, Grid, Tab};
use super::view::View;

const GAP: &str = "   ";

/// The tables that `wanted` names; without, those in which there is something.
#[must_use]
pub fn render(view: &View, choice: &Choice, wanted: Option<Tab>) -> String {
    let has_workflows = view.policies.iter().any(|p| p.workflows.is_some());
    let tabs = match wanted {
        Some(tab) => vec![tab],
        None if has_workflows => vec![Tab::Types, Tab::Workflows],
        None => vec![Tab::Types],
    };
    let table = |tab: Tab| {
        let choice = Choice {
            tab,
            ..choice.clone()
        };
        let nothing = match tab {
            Tab::Types => "No policy is in force.\n",
            Tab::Workflows => "No policy has workflows.\n",
            Tab::Proxies => "No proxies.\n",
        };
        lines(&Grid::new(view, &choice), nothing)
    };
    let mut parts: Vec<String> = tabs.into_iter().map(table).collect();
    parts.push(summary(view) + "\n");
    parts.join("\n")
}

fn lines(grid: &Grid, nothing: &str) -> String {
    if grid.rows.is_empty() {
        return nothing.to_owned();
    }
    let fit = grid.fit(usize::MAX, GAP.len());
    let line = |cell: &dyn Fn(usize) -> String| {
        let cells = fit.iter().map(|&(at, width)| {
            let text = cell(at);
            match grid.columns[at].right {
                true => format!("{text:>width$}"),
                false => format!("{text:width$}"),
            }
        });
        let cells: Vec<String> = cells.collect();
        cells.join(GAP).trim_end().to_owned() + "\n"
    };
    let head = line(&|at| grid.columns[at].head.to_owned());
    let rows = grid.rows.iter();
    head + &rows
        .map(|row| line(&|at| row.cells[at].text.clone()))
        .collect::<String>()
}

/// All of it in one line.
#[must_use]
pub fn summary(view: &View) -> String {
    let mut parts = Vec::new();
    let proxies = view.proxies.len();
    parts.push(match (proxies, view.unreachable()) {
        (1, 0) => "1 proxy".to_owned(),
        (n, 0) => format!("{n} proxies"),
        (n, silent) => format!("{silent} of {n} proxies unreachable"),
    });
    let sum = |part: &dyn Fn(&super::view::PolicyRow) -> Option<f64>| {
        let parts = view.policies.iter().filter_map(part);
        parts.fold(None, |sum: Option<f64>, v| Some(sum.unwrap_or(0.0) + v))
    };
    let limited = |p: &super::view::PolicyRow| {
        let rows = p.workflows.iter().flat_map(|w| &w.rows);
        let refused = rows.filter_map(|w| w.refused_rate);
        refused.fold(None, |sum: Option<f64>, v| Some(sum.unwrap_or(0.0) + v))
    };
    parts.push(format!(
        "{} requests/s decided",
        rate(sum(&|p| p.traffic.arrival_rate))
    ));
    parts.push(format!(
        "{} refused",
        rate(sum(&|p| p.traffic.refused_rate))
    ));
    if let Some(limited) = sum(&limited) {
        parts.push(format!("{} refused before by rates", rate(Some(limited))));
    }
    format!("{}; over {:.0} s", parts.join(", "), view.window_seconds)
}
