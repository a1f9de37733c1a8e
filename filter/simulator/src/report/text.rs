//! A report for a terminal: tables with aligned columns, and descriptions of unexpected results.

use std::fmt::Write as _;
use std::iter::once;

use super::{Cell, Group, Report, Table, TableRow};

/// The mark of a cell outside its bound or limit.
const OUTSIDE: &str = " !";

/// Returns the report as text. Figures are only in pages. The numbers of figures are in the tables
/// or in the JSON.
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
    let cells = |row: &TableRow| -> Vec<String> {
        once(row.label.clone())
            .chain(row.cells.iter().map(cell))
            .collect()
    };
    let group = |group: &Group| -> Vec<Vec<String>> { group.rows.iter().map(cells).collect() };
    let groups: Vec<Vec<Vec<String>>> = table.groups.iter().map(group).collect();
    let lines = || once(&table.columns).chain(groups.iter().flatten());
    let columns = lines().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| widest(lines().filter_map(|cells| cells.get(at).map(String::as_str)));
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |cells: &Vec<String>| {
        let padded = cells.iter().zip(&widths).enumerate();
        let padded: Vec<String> = padded
            .map(|(column, (cell, width))| match column {
                0 => format!("{cell:width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        format!("  {}\n", padded.join("   ").trim_end())
    };
    let _ = write!(out, "{}\n{}", table.title, line(&table.columns));
    for (group, rows) in table.groups.iter().zip(&groups) {
        if !group.title.is_empty() {
            let _ = writeln!(out, "  {}", group.title);
        }
        out.extend(rows.iter().map(line));
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
    use crate::report::{Claim, Compared, Limited, Subject};

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
