//! Cells of a paper's table, kept in the form in which the paper prints them.

use std::fmt;

/// A table of percentages: by strategy, type and place on the axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Paper {
    rows: Vec<PaperRow>,
}

#[derive(Debug, Clone, PartialEq)]
struct PaperRow {
    strategy: &'static str,
    kind: &'static str,
    cells: Vec<(f64, PaperCell)>,
}

/// A percentage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PaperCell {
    /// As printed.
    pub percent: f64,
    /// Printed "-0-": not one rejection in any run, where 0.00 may be one in ten thousand.
    pub none_at_all: bool,
}

impl fmt::Display for PaperCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.none_at_all {
            return f.pad("-0-");
        }
        f.pad(&format!("{:.2}", self.percent))
    }
}

impl Paper {
    /// Reads a table: first a line of the axis, then, for each strategy, a line with its name and a line
    /// for each type with its cells. What isn't a number is left out, and a test finds it missing.
    pub(super) fn new(table: &'static str) -> Self {
        let mut lines = table.lines().filter(|line| !line.trim().is_empty());
        let axis: Vec<f64> = lines
            .next()
            .into_iter()
            .flat_map(str::split_whitespace)
            .filter_map(|x| x.parse().ok())
            .collect();
        let mut strategy = "";
        let mut rows = Vec::new();
        for line in lines {
            let mut words = line.split_whitespace();
            let Some(kind) = words.next() else { continue };
            let cells: Vec<(f64, PaperCell)> = axis
                .iter()
                .zip(words)
                .filter_map(|(x, word)| Some((*x, read(word)?)))
                .collect();
            if cells.is_empty() {
                strategy = kind;
            } else {
                rows.push(PaperRow {
                    strategy,
                    kind,
                    cells,
                });
            }
        }
        Self { rows }
    }

    /// The cell of this strategy and type at `x`.
    #[must_use]
    pub fn cell(&self, strategy: &str, kind: &str, x: f64) -> Option<PaperCell> {
        let row = self
            .rows
            .iter()
            .find(|row| row.strategy == strategy && row.kind == kind)?;
        let at = |(place, _): &&(f64, PaperCell)| (place - x).abs() < 1e-9;
        row.cells.iter().find(at).map(|(_, cell)| *cell)
    }

    /// Cells in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.iter().map(|row| row.cells.len()).sum()
    }

    /// Whether it has no cells.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn read(word: &str) -> Option<PaperCell> {
    let none_at_all = word == "-0-";
    let percent = if none_at_all { 0.0 } else { word.parse().ok()? };
    Some(PaperCell {
        percent,
        none_at_all,
    })
}

/// Bouncer, Table 3.
pub(super) const BOUNCER_TABLE_3: &str = "
            0.9  0.95 1.0  1.05  1.1   1.15  1.2   1.25  1.3   1.35  1.4   1.45  1.5
Bouncer
fast        -0-  -0-  -0-  -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-
mediumfast  -0-  -0-  -0-  -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-
mediumslow  -0-  -0-  -0-  -0-   -0-   0.00  0.00  0.01  0.05  0.23  0.82  2.29  4.86
slow        0.01 0.53 5.02 15.89 29.27 41.84 53.63 64.37 74.18 82.88 90.37 95.68 98.46
ALL         0.00 0.05 0.50 1.59  2.93  4.18  5.36  6.44  7.43  8.36  9.28  10.25 11.30
Bouncer+AcceptanceAllowance
fast        -0-  -0-  -0-  -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-
mediumfast  -0-  -0-  -0-  -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-
mediumslow  -0-  -0-  -0-  -0-   -0-   -0-   0.02  0.07  0.36  1.29  3.45  6.86  10.83
slow        0.01 0.53 4.97 15.98 29.31 41.86 53.58 64.24 73.56 80.97 85.63 87.58 88.12
ALL         0.00 0.05 0.50 1.60  2.93  4.19  5.36  6.45  7.46  8.48  9.60  10.82 12.06
Bouncer+HelpingTheUnderserved
fast        -0-  -0-  -0-  -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-
mediumfast  -0-  -0-  -0-  -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-
mediumslow  -0-  -0-  -0-  -0-   -0-   0.04  0.25  1.35  4.06  7.96  12.20 16.29 20.36
slow        0.01 0.53 5.03 15.99 29.34 41.89 53.21 61.93 67.08 69.26 70.21 70.84 71.37
ALL         0.00 0.05 0.50 1.60  2.94  4.20  5.40  6.60  7.93  9.31  10.68 11.97 13.25
";

/// Bouncer, Table 4.
pub(super) const BOUNCER_TABLE_4: &str = "
            0.01  0.02  0.03  0.04  0.05  0.06  0.07  0.08  0.09  0.1   0.2   0.3
Bouncer+AcceptanceAllowance
fast        -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-
mediumfast  -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-
mediumslow  5.56  6.08  6.64  7.24  7.72  8.38  9.04  9.57  9.96  10.74 16.49 22.26
slow        97.21 96.23 95.25 94.30 93.26 92.19 91.20 90.17 89.16 88.13 77.48 67.26
ALL         11.39 11.45 11.52 11.60 11.64 11.73 11.83 11.89 11.91 12.03 12.70 13.40
";

/// Bouncer, Table 5.
pub(super) const BOUNCER_TABLE_5: &str = "
            0.1   0.2   0.3   0.4   0.5   0.6   0.7   0.8   0.9   1.0
Bouncer+HelpingTheUnderserved
fast        -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-
mediumfast  -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-   -0-
mediumslow  7.07  9.01  10.98 12.60 14.19 15.98 16.97 17.99 19.10 20.41
slow        94.74 91.32 88.11 84.81 82.38 79.47 77.10 75.01 72.98 71.15
ALL         11.59 11.83 12.11 12.26 12.50 12.74 12.80 12.90 13.03 13.24
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_the_tables_is_read() {
        for (table, cells) in [
            (BOUNCER_TABLE_3, 3 * 5 * 13),
            (BOUNCER_TABLE_4, 5 * 12),
            (BOUNCER_TABLE_5, 5 * 10),
        ] {
            assert_eq!(Paper::new(table).len(), cells);
        }
        let table = Paper::new(BOUNCER_TABLE_3);
        let cell = table.cell("Bouncer", "slow", 1.2).unwrap();
        assert_eq!(cell.to_string(), "53.63");
        assert!(!cell.none_at_all);
        let zero = table.cell("Bouncer", "fast", 1.5).unwrap();
        assert_eq!(format!("{zero:>5}"), "  -0-");
        assert_eq!(table.cell("Bouncer", "fast", 1.51), None);
    }
}
