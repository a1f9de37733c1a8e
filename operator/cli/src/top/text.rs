//! A view as printed tables.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::Widget as _;

use super::format::rate;
use super::grid::{Choice, Grid, Tab};
use super::view::{PolicyRow, View, sum};

const GAP: u16 = 3;

/// Returns the tables that `wanted` names; without it, those with rows.
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
        let grid = Grid::new(view, &choice);
        match tab {
            _ if !grid.rows.is_empty() => printed(&grid),
            Tab::Types => "No policy is in force.\n".to_owned(),
            Tab::Workflows => "No policy has workflows.\n".to_owned(),
            Tab::Proxies => "No proxies.\n".to_owned(),
        }
    };
    let mut parts: Vec<String> = tabs.into_iter().map(table).collect();
    parts.push(summary(view) + "\n");
    parts.join("\n")
}

fn printed(grid: &Grid) -> String {
    let widths = grid.fit(u16::MAX, GAP).into_iter().map(|c| c.1 + GAP);
    let width = widths.fold(0, u16::saturating_add);
    let height = u16::try_from(grid.rows.len() + 1).unwrap_or(u16::MAX);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    grid.table(width, GAP).render(buffer.area, &mut buffer);
    lines(&buffer).join("\n") + "\n"
}

/// Returns the lines of a buffer, without the spaces at their ends.
pub(super) fn lines(buffer: &Buffer) -> Vec<String> {
    let rows = buffer.content.chunks(usize::from(buffer.area.width));
    rows.map(|row| {
        let text: String = row.iter().map(|cell| cell.symbol()).collect();
        text.trim_end().to_owned()
    })
    .collect()
}

/// Returns the totals of all policies and proxies, in one line.
#[must_use]
pub fn summary(view: &View) -> String {
    let total = |part: fn(&PolicyRow) -> Option<f64>| sum(view.policies.iter().map(part));
    let workflows = view.policies.iter().flat_map(|p| &p.workflows);
    let limited = sum(workflows.flat_map(|w| &w.rows).map(|w| w.refused_rate));
    let mut parts = vec![
        match (view.proxies.len(), view.unreachable()) {
            (1, 0) => "1 proxy".to_owned(),
            (n, 0) => format!("{n} proxies"),
            (n, silent) => format!("{silent} of {n} proxies unreachable"),
        },
        format!(
            "{} requests/s decided",
            rate(total(|p| p.traffic.arrival_rate))
        ),
        format!("{} refused", rate(total(|p| p.traffic.refused_rate))),
    ];
    if limited.is_some() {
        parts.push(format!("{} refused before by rates", rate(limited)));
    }
    format!("{}; over {:.0} s", parts.join(", "), view.window_seconds)
}
