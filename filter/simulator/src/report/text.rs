//! A report for a terminal: tables whose columns line up, and what is not as expected in words.

use std::fmt::Write as _;

use super::{Cell, Report, Table};

/// Mark of a cell outside of its bound or limit.
const OUTSIDE: &str = " !";

/// The report as text. Figures are for pages; their numbers are in the tables or in the JSON.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = writeln!(out, "{}", report.title);
    let widest = widest(report.setup.iter().map(|(name, _)| name.as_str()));
    for (name, value) in &report.setup {
        let _ = writeln!(out, "  {name:widest$}  {value}");
    }
    for table in &report.tables {
        out.push('\n');
        write_table(&mut out, table);
    }
    if !report.claims.is_empty() {
        out.push('\n');
        for claim in &report.claims {
            let mark = if claim.holds { "holds" } else { "FAILS" };
            let _ = writeln!(out, "{mark}  {}", claim.describe());
        }
    }
    if !report.notes.is_empty() {
        out.push('\n');
        for note in &report.notes {
            let _ = writeln!(out, "{note}");
        }
    }
    let verdict = report.verdict();
    if let Some(summary) = verdict.summary() {
        let _ = writeln!(out, "\n{summary}");
        for failure in &verdict.failures {
            let _ = writeln!(out, "  {failure}");
        }
    }
    out
}

fn write_table(out: &mut String, table: &Table) {
    let mut lines: Vec<Line<'_>> = vec![Line::Cells(table.columns.clone())];
    for group in &table.groups {
        if !group.title.is_empty() {
            lines.push(Line::Title(&group.title));
        }
        for row in &group.rows {
            let mut cells = vec![row.label.clone()];
            cells.extend(row.cells.iter().map(cell));
            lines.push(Line::Cells(cells));
        }
    }
    let columns = lines.iter().map(Line::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| widest(lines.iter().filter_map(|line| line.at(column))))
        .collect();
    let _ = writeln!(out, "{}", table.title);
    for line in &lines {
        match line {
            Line::Title(title) => {
                let _ = writeln!(out, "  {title}");
            }
            Line::Cells(cells) => {
                let padded = cells.iter().zip(&widths).enumerate();
                let padded: Vec<String> = padded
                    .map(|(column, (cell, width))| match column {
                        0 => format!("{cell:width$}"),
                        _ => format!("{cell:>width$}"),
                    })
                    .collect();
                let _ = writeln!(out, "  {}", padded.join("   ").trim_end());
            }
        }
    }
}

enum Line<'a> {
    Title(&'a str),
    Cells(Vec<String>),
}

impl Line<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Title(_) => 0,
            Self::Cells(cells) => cells.len(),
        }
    }

    fn at(&self, column: usize) -> Option<&str> {
        match self {
            Self::Title(_) => None,
            Self::Cells(cells) => cells.get(column).map(String::as_str),
        }
    }
}

fn cell(cell: &Cell) -> String {
    let ours = cell.ours();
    let outside = |holds: bool| if holds { "" } else { OUTSIDE };
    match cell {
        Cell::Compared(compared) => {
            let mark = outside(compared.holds() != Some(false));
            format!("{ours} ({}){mark}", compared.printed)
        }
        Cell::Limited(limited) => {
            let mark = outside(limited.holds());
            format!("{ours} (≤{}){mark}", limited.limit)
        }
        Cell::Empty | Cell::Text(_) | Cell::Number(..) => ours,
    }
}

fn widest<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0)
}
