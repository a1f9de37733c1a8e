//! Tables of measured and expected values.

use super::Verdict;

/// A table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// The title, with the unit.
    pub title: String,
    /// The headings of the columns. The first heading is above the rows' labels.
    pub columns: Vec<String>,
    /// The rows, in groups.
    pub groups: Vec<Group>,
}

/// A group of rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Group {
    /// The group's name, such as a strategy's; empty for the only group of a table.
    pub title: String,
    /// The rows.
    pub rows: Vec<TableRow>,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TableRow {
    /// The row's name, or its value on an axis.
    pub label: String,
    /// The cells, one for each column except the first.
    pub cells: Vec<Cell>,
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// No value.
    Empty,
    /// A text.
    Text(String),
    /// A number with this many decimals.
    Number(f64, usize),
    /// A measured number and the expected one.
    Compared(Compared),
    /// A number with a limit.
    Limited(Limited),
}

/// A number with a limit, such as a response time with an objective.
#[derive(Debug, Clone, PartialEq)]
pub struct Limited {
    /// The measured value.
    pub ours: f64,
    /// The number of decimals of `ours`.
    pub decimals: usize,
    /// The largest accepted value.
    pub limit: f64,
}

impl Limited {
    /// Whether the value is within its limit.
    pub fn holds(&self) -> bool {
        self.ours <= self.limit
    }
}

/// A measured number and the expected one.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// The measured value.
    pub ours: Option<f64>,
    /// The number of decimals of `ours`.
    pub decimals: usize,
    /// The expected value.
    pub expected: f64,
    /// The expected value as the paper prints it.
    pub printed: String,
    /// The largest accepted difference between `ours` and `expected`; `None` for numbers that are
    /// only shown.
    pub within: Option<f64>,
}

impl Compared {
    /// Whether the value is within its bound; `None` if it has no bound.
    pub fn holds(&self) -> Option<bool> {
        let within = self.within?;
        Some(
            self.ours
                .is_some_and(|ours| (ours - self.expected).abs() <= within),
        )
    }

    fn describe(&self, ours: &str) -> String {
        let bound = match self.within {
            Some(within) if within > 0.0 => format!(" ± {within}"),
            _ => String::new(),
        };
        format!("{ours}, the paper has {}{bound}", self.printed)
    }
}

impl Cell {
    /// Returns a cell with this number and `decimals`. For `None`, returns an empty cell.
    pub fn number(number: Option<f64>, decimals: usize) -> Self {
        number.map_or(Self::Empty, |number| Self::Number(number, decimals))
    }

    /// Returns the text of the measured value.
    pub fn ours(&self) -> String {
        match self {
            Self::Empty => "–".to_owned(),
            Self::Text(text) => text.clone(),
            Self::Number(number, decimals) => format!("{number:.decimals$}"),
            Self::Limited(Limited { ours, decimals, .. }) => format!("{ours:.decimals$}"),
            Self::Compared(cell) => cell.ours.map_or_else(
                || "–".to_owned(),
                |ours| match ours {
                    // An exact 0 is printed as "0", because "0.00" could also be a rounded 0.004.
                    0.0 => "0".to_owned(),
                    ours => format!("{ours:.*}", cell.decimals),
                },
            ),
        }
    }
}

impl Table {
    /// Adds the verdicts on the table's cells.
    pub(super) fn judge(&self, verdict: &mut Verdict) {
        for group in &self.groups {
            for row in &group.rows {
                for (column, cell) in self.columns.iter().skip(1).zip(&row.cells) {
                    let place = || self.place(group, row, column);
                    match cell {
                        Cell::Compared(compared) => {
                            let Some(holds) = compared.holds() else {
                                verdict.unjudged += 1;
                                continue;
                            };
                            verdict.cells += 1;
                            if !holds {
                                let words = compared.describe(&cell.ours());
                                verdict.failures.push(format!("{}: {words}", place()));
                            }
                        }
                        Cell::Limited(limited) => {
                            verdict.limits += 1;
                            if !limited.holds() {
                                let (ours, limit) = (cell.ours(), limited.limit);
                                let words = format!("{column}: {ours}, the objective is {limit}");
                                let (case, label) = (&group.title, &row.label);
                                verdict.failures.push(format!("{case}: {label}, {words}"));
                            }
                        }
                        Cell::Empty | Cell::Text(_) | Cell::Number(..) => {}
                    }
                }
            }
        }
    }

    fn place(&self, group: &Group, row: &TableRow, column: &str) -> String {
        match group.title.as_str() {
            "" => format!("{column}, {} {}", self.axis(), row.label),
            title => format!("{title}, {column}, {} {}", self.axis(), row.label),
        }
    }

    fn axis(&self) -> &str {
        self.columns.first().map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(ours: Option<f64>, expected: f64, within: Option<f64>) -> Cell {
        Cell::Compared(Compared {
            ours,
            decimals: 2,
            expected,
            printed: expected.to_string(),
            within,
        })
    }

    #[test]
    fn cells_are_judged_by_their_bounds() {
        let table = Table {
            title: "rejected, %".into(),
            columns: ["factor", "slow", "ALL", "fast", "p50"]
                .map(Into::into)
                .to_vec(),
            groups: vec![Group {
                title: "Bouncer".into(),
                rows: vec![TableRow {
                    label: "1.5".into(),
                    cells: vec![
                        compared(Some(95.0), 98.5, Some(3.0)),
                        compared(Some(12.0), 11.3, Some(1.0)),
                        compared(Some(0.001), 0.0, None),
                        Cell::Limited(Limited {
                            ours: 19.0,
                            decimals: 1,
                            limit: 18.0,
                        }),
                    ],
                }],
            }],
        };
        let mut verdict = Verdict::default();
        table.judge(&mut verdict);
        assert_eq!((verdict.cells, verdict.limits), (2, 1));
        assert_eq!(verdict.unjudged, 1);
        assert_eq!(
            verdict.failures,
            [
                "Bouncer, slow, factor 1.5: 95.00, the paper has 98.5 ± 3",
                "Bouncer: 1.5, p50: 19.0, the objective is 18",
            ]
        );
    }

    #[test]
    fn a_missing_value_is_outside_of_every_bound_and_zero_is_not_almost_zero() {
        let missing = compared(None, 0.0, Some(1.0));
        let Cell::Compared(cell) = &missing else {
            unreachable!()
        };
        assert_eq!(cell.holds(), Some(false));
        assert_eq!(missing.ours(), "–");
        assert_eq!(compared(Some(0.0), 0.0, None).ours(), "0");
        assert_eq!(compared(Some(0.004), 0.0, None).ours(), "0.00");
    }
}
