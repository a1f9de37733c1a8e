//! A report for a terminal: tables with aligned columns, and descriptions of unexpected results.

use std::fmt::Write as _;

use super::{Cell, Report, Table};

/// The mark of a cell outside its bound or limit.
const OUTSIDE: &str = " !";

/// Returns the report as text. Figures are only in pages. The numbers of figures are in the tables
/// or in the JSON.
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
            let mark = match claim.holds {
                Some(true) => "holds",
                Some(false) => "FAILS",
                None => "not judged",
            };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Claim, Compared, Group, Limited, Subject, TableRow};

    #[test]
    fn columns_line_up_and_what_is_outside_is_marked_and_named() {
        let compared = |ours, expected: f64| {
            Cell::Compared(Compared {
                ours: Some(ours),
                decimals: 2,
                expected,
                printed: format!("{expected:.2}"),
                within: Some(3.0),
            })
        };
        let row = |label: &str, ours, expected, p50| TableRow {
            label: label.into(),
            cells: vec![
                compared(ours, expected),
                Cell::Limited(Limited {
                    ours: p50,
                    decimals: 1,
                    limit: 18.0,
                }),
            ],
        };
        let mut report = Report::new(Subject::Scenario("x".into()), "Title");
        report.setup("runs", "one");
        report.tables.push(Table {
            title: "rejected, %".into(),
            columns: ["factor", "slow", "p50"].map(Into::into).to_vec(),
            groups: vec![Group {
                title: "Bouncer".into(),
                rows: vec![row("0.9", 0.0, 0.01, 9.0), row("1.45", 90.0, 95.68, 18.5)],
            }],
        });
        report.claims.push(Claim {
            text: "it levels off".into(),
            paper: "about 40 ms".into(),
            ours: "39 ms".into(),
            holds: Some(true),
        });
        report.claims.push(Claim {
            text: "it was made to fit".into(),
            paper: String::new(),
            ours: "39 ms".into(),
            holds: None,
        });
        report.notes.push("1 line was skipped".into());
        assert_eq!(
            text(&report),
            "\
Title
  runs  one

rejected, %
  factor              slow            p50
  Bouncer
  0.9             0 (0.01)      9.0 (≤18)
  1.45     90.00 (95.68) !   18.5 (≤18) !

holds  it levels off: 39 ms (expected: about 40 ms)
not judged  it was made to fit: 39 ms

1 line was skipped

3 of 5 results are as expected; 1 shown for comparison, not judged; the others:
  Bouncer, slow, factor 1.45: 90.00, the paper has 95.68 ± 3
  Bouncer: 1.45, p50: 18.5, the objective is 18
"
        );
    }
}
