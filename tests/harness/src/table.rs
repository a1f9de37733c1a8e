//! Tables of text for a terminal.

use std::fmt;

/// Rows under headings. The first column is aligned to the left, the others to the right.
#[derive(Debug, Clone, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with these headings.
    pub fn new(headings: &[&str]) -> Self {
        Self {
            rows: vec![headings.iter().map(|&h| h.to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
        };
        (0..columns)
            .map(|column| width(column).unwrap_or(0))
            .collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for (i, row) in self.rows.iter().enumerate() {
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                if column == 0 {
                    write!(f, "  {cell:<width$}")?;
                } else {
                    write!(f, "  {cell:>width$}")?;
                }
            }
            writeln!(f)?;
            if i == 0 {
                let total: usize = widths.iter().map(|width| width + 2).sum();
                writeln!(f, "  {}", "─".repeat(total.saturating_sub(2)))?;
            }
        }
        Ok(())
    }
}

/// Formats a ratio as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// Formats a ratio to a baseline.
pub fn times(ratio: f64) -> String {
    format!("{ratio:.2}×")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_the_characters_cost_in_bytes() {
        let mut table = Table::new(&["name", "ratio"]);
        table.row(["a".to_owned(), times(1.5)]);
        table.row(["longer".to_owned(), "–".to_owned()]);
        let text = table.to_string();
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
    }
}
