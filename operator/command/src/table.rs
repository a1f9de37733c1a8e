//! Tables in the format of kubectl: columns are padded to their widest cell, with three spaces
//! between them.

/// Returns `text` on one line. The text may come from proxies and their clients. So control
/// characters are replaced, because they could move the cursor or overwrite other parts of the
/// terminal.
pub fn one_line(text: &str) -> String {
    let visible = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
        c if c.is_control() => '?',
        c => c,
    };
    text.chars().map(visible).collect()
}

/// Returns the first `most` names, and the number of the others: `a, b +2`.
pub fn first(names: &[impl ToString], most: usize) -> String {
    let (shown, others) = names.split_at(names.len().min(most));
    let shown: Vec<String> = shown.iter().map(ToString::to_string).collect();
    match others.len() {
        0 => shown.join(", "),
        more => format!("{} +{more}", shown.join(", ")),
    }
}

/// A table under construction.
#[derive(Debug, Clone)]
pub struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// Returns a table with these column heads and no rows.
    pub fn new(head: [&str; N]) -> Self {
        Self {
            rows: vec![head.map(str::to_owned)],
        }
    }

    /// Adds a row. Each cell goes through [`one_line`].
    pub fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|c| one_line(&c)));
    }

    /// Returns the table's text, or `empty` if it has no rows.
    pub fn or(&self, empty: &str) -> String {
        if self.rows.len() == 1 {
            return empty.to_owned();
        }
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|r| r[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        let line = |row: &[String; N]| {
            let cells = row
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("   ").trim_end().to_owned() + "\n"
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_or_counted() {
        let names = ["a", "b", "c"];
        assert_eq!(first(&names, 1), "a +2");
        assert_eq!(first(&names, 3), "a, b, c");
        assert_eq!(first(&names[..0], 3), "");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["A", "BB", "C"]);
        table.row(["one".into(), "2".into(), "x\ny\u{1b}[2J".into()]);
        assert_eq!(table.or("none\n"), "A     BB   C\none   2    x y?[2J\n");
        assert_eq!(Table::new(["A"]).or("none\n"), "none\n");
    }
}
