//! The tables, figures and rows of a scenario's results, as its data specifies them.
//!
//! Every number has four coordinates: its series, its point of the sweep, its kind and its metric.
//! A table uses one of the first three for its rows, and another for its groups of rows. The
//! columns of the table fix the other coordinates.

use headgate_simulator::report::{
    Axis, Cell, Compared, Figure, Group, Level, ReportRow, Series as Line, Style, Table, TableRow,
};
use serde::Deserialize;

use crate::measured::{ALL, Measured, Number};

/// A case and the averages over its runs.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) series: String,
    /// The fields that identify the series.
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) x: Option<f64>,
    pub(crate) measured: Measured,
}

/// The results of all cases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Results<'a> {
    pub(crate) found: &'a [Found],
}

/// The names of the rows' fields.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fields {
    pub(crate) series: String,
    x: Option<String>,
    kind: Option<String>,
}

/// A dimension in which the rows or groups of a table differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Dimension {
    Series,
    X,
    Kind,
}

/// A table as data.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableEntry {
    title: String,
    /// The heading of the rows' labels.
    head: String,
    rows: Dimension,
    groups: Option<Dimension>,
    /// The series or kinds to show, in this order, if rows are series or kinds. `None` shows all.
    only: Option<Vec<String>>,
    columns: Vec<Column>,
}

/// A column as data, with the common coordinates of its cells.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Column {
    head: String,
    metric: String,
    series: Option<String>,
    x: Option<f64>,
    kind: Option<String>,
    #[serde(default)]
    decimals: usize,
    /// The series by whose numbers the numbers of this column are divided.
    relative: Option<String>,
    /// Whether confidence intervals are shown.
    #[serde(default)]
    interval: bool,
    /// The paper's values, one text per group with one word per row. The word is `.` if the paper
    /// prints no value.
    #[serde(default)]
    paper: Vec<String>,
    /// The largest accepted difference from the paper's value. The value `-0-` ("not one in any
    /// run") accepts no difference.
    within: Option<f64>,
}

/// A figure as data, with lines over the sweep or over time.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FigureEntry {
    title: String,
    metric: String,
    x: String,
    y: String,
    /// Whether the lines are over time. They are then curves of the first run.
    #[serde(default)]
    time: bool,
    series: Option<Vec<String>>,
    kinds: Option<Vec<String>>,
    /// The logarithmic axes (`x`, `y` or `xy`).
    #[serde(default)]
    log: String,
    /// The lower limit of the vertical axis. `to` is the upper limit.
    from: Option<f64>,
    to: Option<f64>,
    /// The values and names of horizontal lines.
    #[serde(default)]
    levels: Vec<(f64, String)>,
    #[serde(default)]
    caption: String,
}

/// The coordinates of a cell, without its metric.
#[derive(Debug, Clone, Copy)]
struct Coordinates<'a> {
    series: &'a str,
    x: Option<f64>,
    kind: &'a str,
}

impl<'a> Results<'a> {
    fn number(&self, place: Coordinates<'_>, metric: &str) -> Option<&'a Number> {
        let same = |x: Option<f64>| match (x, place.x) {
            (Some(a), Some(b)) => (a - b).abs() < 1e-9,
            _ => true,
        };
        let mut found = self
            .found
            .iter()
            .filter(|f| f.series == place.series && same(f.x));
        found.find_map(|found| found.measured.number(place.kind, metric))
    }

    fn series(&self) -> Vec<&'a str> {
        unique(self.found.iter().map(|found| found.series.as_str()))
    }

    fn places(&self) -> Vec<f64> {
        let mut places: Vec<f64> = self.found.iter().filter_map(|found| found.x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }

    /// Returns the kinds that have any of these metrics.
    fn kinds(&self, metrics: &'a [Column]) -> Vec<&'a str> {
        let kinds = |found: &'a Found| {
            metrics
                .iter()
                .flat_map(|column| found.measured.kinds_of(&column.metric))
        };
        unique(self.found.iter().flat_map(kinds))
    }
}

pub(crate) fn unique<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all: Vec<&str> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// A coordinate along one dimension.
#[derive(Debug, Clone, Copy)]
enum Coordinate<'a> {
    Series(&'a str),
    X(f64),
    Kind(&'a str),
}

impl<'a> Coordinate<'a> {
    fn label(self) -> String {
        match self {
            Coordinate::Series(name) | Coordinate::Kind(name) => name.to_owned(),
            Coordinate::X(x) => x.to_string(),
        }
    }

    fn apply(self, place: &mut Coordinates<'a>) {
        match self {
            Coordinate::Series(series) => place.series = series,
            Coordinate::X(x) => place.x = Some(x),
            Coordinate::Kind(kind) => place.kind = kind,
        }
    }
}

impl TableEntry {
    fn steps<'a>(&'a self, dimension: Dimension, results: &Results<'a>) -> Vec<Coordinate<'a>> {
        let only = self
            .only
            .as_deref()
            .filter(|_| dimension == self.rows && dimension != Dimension::X);
        let names = |all: Vec<&'a str>| match only {
            Some(only) => only.iter().map(String::as_str).collect(),
            None => all,
        };
        match dimension {
            Dimension::Series => names(results.series())
                .into_iter()
                .map(Coordinate::Series)
                .collect(),
            Dimension::X => results.places().into_iter().map(Coordinate::X).collect(),
            Dimension::Kind => names(results.kinds(&self.columns))
                .into_iter()
                .map(Coordinate::Kind)
                .collect(),
        }
    }

    /// Returns the coordinates of the groups of rows, or one `None` if the table has no groups.
    fn groups<'a>(&'a self, results: &Results<'a>) -> Vec<Option<Coordinate<'a>>> {
        let steps = |dimension| self.steps(dimension, results).into_iter().map(Some);
        self.groups
            .map_or_else(|| vec![None], |dimension| steps(dimension).collect())
    }

    /// Returns the coordinates of a cell. If neither row nor group nor column gives the series or
    /// the kind, the first series and all kinds together are the default.
    fn place<'a>(
        &'a self,
        column: &'a Column,
        steps: &[Coordinate<'a>],
        results: &Results<'a>,
    ) -> Coordinates<'a> {
        let mut place = Coordinates {
            series: column
                .series
                .as_deref()
                .unwrap_or_else(|| results.series().first().copied().unwrap_or("")),
            x: column.x,
            kind: column.kind.as_deref().unwrap_or(ALL),
        };
        for step in steps {
            step.apply(&mut place);
        }
        place
    }
}

impl Column {
    /// Returns the paper's value in this group and row, or `None` if the paper prints no value.
    fn printed(&self, group: usize, row: usize) -> Option<&str> {
        let printed = self.paper.get(group)?.split_whitespace().nth(row)?;
        (printed != ".").then_some(printed)
    }

    fn cell(&self, place: Coordinates<'_>, printed: Option<&str>, results: &Results<'_>) -> Cell {
        let number = results.number(place, &self.metric);
        let by = self.relative.as_deref().map(|series| {
            let by = results.number(Coordinates { series, ..place }, &self.metric);
            by.and_then(|n| n.value).unwrap_or(f64::NAN)
        });
        let ours = number
            .and_then(|n| n.value)
            .map(|value| value / by.unwrap_or(1.0));
        if let Some((printed, expected)) =
            printed.and_then(|printed| Some((printed, read(printed)?)))
        {
            return Cell::Compared(Compared {
                ours,
                decimals: self.decimals,
                expected,
                printed: printed.to_owned(),
                within: self
                    .within
                    .map(|within| if printed == NONE { 0.0 } else { within }),
            });
        }
        match (ours, number.and_then(|n| n.half).filter(|_| self.interval)) {
            (Some(mean), Some(half)) => {
                Cell::Text(format!("{mean:.0$} ± {half:.0$}", self.decimals))
            }
            _ => Cell::number(ours, self.decimals),
        }
    }
}

/// The text for "not one in any run". The text 0.00 could also mean one in ten thousand.
const NONE: &str = "-0-";

/// Parses a number as a paper prints it, such as `-0-`, `1.52` or `1.52±0.07`.
fn read(printed: &str) -> Option<f64> {
    match printed {
        NONE => Some(0.0),
        _ => printed.split('±').next()?.parse().ok(),
    }
}

pub(crate) fn table(entry: &TableEntry, results: &Results<'_>) -> Table {
    let groups = entry.groups(results);
    let group = |(g, group): (usize, &Option<Coordinate<'_>>)| {
        let row = |(r, row): (usize, Coordinate<'_>)| {
            let steps: Vec<Coordinate<'_>> = group.iter().copied().chain([row]).collect();
            let cell = |column: &Column| {
                let place = entry.place(column, &steps, results);
                column.cell(place, column.printed(g, r), results)
            };
            TableRow {
                label: row.label(),
                cells: entry.columns.iter().map(cell).collect(),
            }
        };
        let rows = entry
            .steps(entry.rows, results)
            .into_iter()
            .enumerate()
            .map(row);
        let empty = |row: &TableRow| row.cells.iter().all(|cell| *cell == Cell::Empty);
        Group {
            title: group.map(Coordinate::label).unwrap_or_default(),
            rows: rows.filter(|row| !empty(row)).collect(),
        }
    };
    let paper = entry.columns.iter().any(|column| !column.paper.is_empty());
    let heads = entry.columns.iter().map(|column| column.head.clone());
    Table {
        title: format!(
            "{}{}",
            entry.title,
            if paper {
                "; the paper's in brackets"
            } else {
                ""
            }
        ),
        columns: std::iter::once(entry.head.clone()).chain(heads).collect(),
        groups: groups
            .iter()
            .enumerate()
            .map(group)
            .filter(|group| !group.rows.is_empty())
            .collect(),
    }
}

/// Returns a figure of the lines that have at least one value other than 0, or `None` if there are
/// no such lines.
pub(crate) fn figure(
    entry: &FigureEntry,
    tables: &[TableEntry],
    results: &Results<'_>,
) -> Option<Figure> {
    let chosen = |names: &Option<Vec<String>>, name: &str| {
        names.as_ref().is_none_or(|n| n.iter().any(|n| n == name))
    };
    let series: Vec<&str> = results
        .series()
        .into_iter()
        .filter(|name| chosen(&entry.series, name))
        .collect();
    let of = |found: &&Found| series.contains(&found.series.as_str());
    let kinds = unique(results.found.iter().filter(of).flat_map(|found| {
        let drawn = found
            .measured
            .curves
            .iter()
            .filter(|c| entry.time && c.metric == entry.metric);
        let drawn = drawn.map(|curve| curve.kind.as_str());
        let noted = found.measured.kinds_of(&entry.metric);
        drawn.chain(noted.filter(|_| !entry.time))
    }));
    let kinds = kinds.into_iter().filter(|kind| chosen(&entry.kinds, kind));
    let kinds: Vec<&str> = kinds.collect();
    let mut lines = Vec::new();
    let several_places = entry.time && results.places().len() > 1;
    for name in &series {
        for kind in &kinds {
            let mut add = |x: Option<f64>, points: Vec<(f64, Option<f64>)>, style| {
                let shown = [
                    (series.len() > 1, (*name).to_owned()),
                    (kinds.len() > 1, (*kind).to_owned()),
                ];
                let mut title: Vec<String> = shown
                    .into_iter()
                    .filter(|(shown, _)| *shown)
                    .map(|(_, name)| name)
                    .collect();
                title.extend(
                    x.filter(|_| several_places)
                        .map(|x| format!("{} {x}", entry.x)),
                );
                let colour = lines
                    .iter()
                    .filter(|l: &&Line| l.style != Style::Paper)
                    .count();
                let (title, colour) = match style {
                    Style::Paper => (
                        format!("{}, the paper", title.join(", ")),
                        colour.saturating_sub(1),
                    ),
                    _ => (title.join(", "), colour),
                };
                if points.iter().any(|(_, y)| y.is_some_and(|y| y != 0.0)) {
                    lines.push(Line::new(title, style, points).coloured(colour));
                }
            };
            let cases = results.found.iter().filter(|found| found.series == *name);
            if entry.time {
                for found in cases {
                    let of =
                        |c: &&crate::measured::Curve| c.kind == *kind && c.metric == entry.metric;
                    let curve = found.measured.curves.iter().find(of);
                    add(
                        found.x,
                        curve.map(|c| c.points.clone()).unwrap_or_default(),
                        Style::Line,
                    );
                }
                continue;
            }
            let point = |found: &Found| {
                let number = found.measured.number(kind, &entry.metric);
                Some((found.x?, number.and_then(|n| n.value)))
            };
            add(None, cases.filter_map(point).collect(), Style::Line);
            add(
                None,
                papers(entry, tables, name, kind, results),
                Style::Paper,
            );
        }
    }
    let event = |(at, label): &(f64, String)| Level::new(*at, label.as_str());
    let events = results
        .found
        .first()
        .filter(|_| entry.time)
        .map(|found| found.measured.events.iter().map(event).collect());
    let axis = |label: &str, log: char| {
        let axis = Axis::new(label);
        if entry.log.contains(log) {
            axis.log()
        } else {
            axis
        }
    };
    (!lines.is_empty()).then(|| Figure {
        title: entry.title.clone(),
        x: axis(if entry.time { "time, s" } else { &entry.x }, 'x'),
        y: Axis {
            from: entry.from,
            to: entry.to,
            ..axis(&entry.y, 'y')
        },
        series: lines,
        levels: entry
            .levels
            .iter()
            .map(|(at, label)| Level::new(*at, label.as_str()))
            .collect(),
        events: events.unwrap_or_default(),
        caption: entry.caption.clone(),
    })
}

/// Returns the points of a line from the paper's tables: the points of the sweep and the values.
fn papers(
    entry: &FigureEntry,
    tables: &[TableEntry],
    series: &str,
    kind: &str,
    results: &Results<'_>,
) -> Vec<(f64, Option<f64>)> {
    let mut points = Vec::new();
    for table in tables.iter().filter(|table| table.rows == Dimension::X) {
        let groups = table.groups(results);
        for column in table
            .columns
            .iter()
            .filter(|column| column.metric == entry.metric)
        {
            for (g, group) in groups.iter().enumerate() {
                for (r, row) in table.steps(Dimension::X, results).into_iter().enumerate() {
                    let steps: Vec<Coordinate<'_>> = group.iter().copied().chain([row]).collect();
                    let place = table.place(column, &steps, results);
                    let printed = column.printed(g, r).and_then(read);
                    if let (true, true, Some(x), Some(y)) =
                        (place.series == series, place.kind == kind, place.x, printed)
                    {
                        points.push((x, Some(y)));
                    }
                }
            }
        }
    }
    points
}

/// Returns the machine-readable rows. The first rows are one per case and kind, and the others one
/// per case, kind and time.
pub(crate) fn rows(
    fields: &Fields,
    tables: &[TableEntry],
    results: &Results<'_>,
) -> Vec<ReportRow> {
    let mut rows = Vec::new();
    let columns = || tables.iter().flat_map(|table| &table.columns);
    let has_interval =
        |metric: &str| columns().any(|column| column.interval && column.metric == metric);
    let place = |found: &Found, kind: &str| {
        let mut row = ReportRow::new();
        for (name, text) in &found.labels {
            row = row.with(name.clone(), text.as_str());
        }
        if let (Some(name), Some(x)) = (&fields.x, found.x) {
            row = row.with(name.clone(), x);
        }
        match &fields.kind {
            Some(name) => row.with(name.clone(), kind),
            None => row,
        }
    };
    for found in results.found {
        let numbers = &found.measured.numbers;
        for kind in unique(numbers.iter().map(|n| n.kind.as_str())) {
            let of_kind = numbers.iter().filter(|n| n.kind == kind);
            rows.push(of_kind.fold(place(found, kind), |row, n| {
                let row = row.with(n.metric.clone(), n.value);
                match has_interval(&n.metric) {
                    true => row.with(format!("{}_ci90", n.metric), n.half),
                    false => row,
                }
            }));
        }
    }
    for found in results.found {
        let curves = &found.measured.curves;
        for kind in unique(curves.iter().map(|c| c.kind.as_str())) {
            let of_kind: Vec<_> = curves.iter().filter(|c| c.kind == kind).collect();
            let moments = of_kind.first().map_or(&[][..], |curve| &curve.points);
            for (at, (time, _)) in moments.iter().enumerate() {
                let row = place(found, kind).with("time_s", *time);
                let value =
                    |curve: &crate::measured::Curve| curve.points.get(at).and_then(|(_, y)| *y);
                rows.push(
                    of_kind
                        .iter()
                        .fold(row, |row, c| row.with(c.metric.clone(), value(c))),
                );
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests;
