//! Tables: what was found, with what was expected beside it.

/// A table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// What it shows, with the unit.
    pub title: String,
    /// Heads of the columns; the first is of the rows' labels.
    pub columns: Vec<String>,
    /// Its rows, in groups.
    pub groups: Vec<Group>,
}

/// Rows that belong together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Group {
    /// Its name, such as a strategy's; empty for the only group of a table.
    pub title: String,
    /// The rows.
    pub rows: Vec<TableRow>,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TableRow {
    /// Its name, or its place on an axis.
    pub label: String,
    /// The cells, one for each column but the first.
    pub cells: Vec<Cell>,
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Nothing to tell.
    Empty,
    /// A text.
    Text(String),
    /// A number with this many decimals.
    Number(f64, usize),
    /// A number beside the one that was expected.
    Compared(Compared),
}

/// A number beside the one that was expected.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// What was found.
    pub ours: Option<f64>,
    /// Decimals of `ours`.
    pub decimals: usize,
    /// What was expected.
    pub expected: f64,
    /// The same as the paper prints it.
    pub printed: String,
    /// How far the two may be apart; `None` for numbers that are only shown.
    pub within: Option<f64>,
}

impl Compared {
    /// Whether it is within its bound; `None` without one.
    #[must_use]
    pub fn holds(&self) -> Option<bool> {
        let within = self.within?;
        Some(
            self.ours
                .is_some_and(|ours| (ours - self.expected).abs() <= within),
        )
    }
}

impl Cell {
    /// A number with `decimals`, or nothing.
    #[must_use]
    pub fn number(number: Option<f64>, decimals: usize) -> Self {
        number.map_or(Self::Empty, |number| Self::Number(number, decimals))
    }

    /// What was found, as text.
    #[must_use]
    pub fn ours(&self) -> String {
        match self {
            Self::Empty => "–".to_owned(),
            Self::Text(text) => text.clone(),
            Self::Number(number, decimals) => format!("{number:.decimals$}"),
            Self::Compared(cell) => cell.ours.map_or_else(
                || "–".to_owned(),
                |ours| match ours {
                    // 0.00 may be one in ten thousand.
                    0.0 => "0".to_owned(),
                    ours => format!("{ours:.*}", cell.decimals),
                },
            ),
        }
    }
}

impl Table {
    /// Cells that have a bound, and those of them that are outside of it, in words.
    pub(super) fn judge(&self) -> (usize, Vec<String>) {
        let (mut cells, mut failures) = (0, Vec::new());
        for group in &self.groups {
            for row in &group.rows {
                for (column, cell) in self.columns.iter().skip(1).zip(&row.cells) {
                    let Cell::Compared(compared) = cell else {
                        continue;
                    };
                    let Some(holds) = compared.holds() else {
                        continue;
                    };
                    cells += 1;
                    if !holds {
                        failures.push(self.describe(group, row, column, cell, compared));
                    }
                }
            }
        }
        (cells, failures)
    }

    fn describe(
        &self,
        group: &Group,
        row: &TableRow,
        column: &str,
        cell: &Cell,
        compared: &Compared,
    ) -> String {
        let place = match group.title.as_str() {
            "" => format!("{column}, {}", row.label),
            title => format!("{title}, {column}, {} {}", self.axis(), row.label),
        };
        let bound = match compared.within {
            Some(within) if within > 0.0 => format!(" ± {within}"),
            _ => String::new(),
        };
        let (ours, printed) = (cell.ours(), &compared.printed);
        format!("{place}: {ours}, the paper has {printed}{bound}")
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
            columns: ["factor", "slow", "ALL", "fast"].map(Into::into).to_vec(),
            groups: vec![Group {
                title: "Bouncer".into(),
                rows: vec![TableRow {
                    label: "1.5".into(),
                    cells: vec![
                        compared(Some(95.0), 98.5, Some(3.0)),
                        compared(Some(12.0), 11.3, Some(1.0)),
                        compared(Some(0.001), 0.0, None),
                    ],
                }],
            }],
        };
        let (cells, failures) = table.judge();
        assert_eq!(cells, 2);
        assert_eq!(
            failures,
            ["Bouncer, slow, factor 1.5: 95.00, the paper has 98.5 ± 3"]
        );
    }

    #[test]
    fn nothing_found_is_not_within_a_bound_and_nothing_is_not_almost_nothing() {
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
