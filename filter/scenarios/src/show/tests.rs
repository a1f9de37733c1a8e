use serde_json::json;

use super::*;

impl TableEntry {
    /// Whether any of the table's cells has a bound.
    pub(crate) fn is_judged(&self) -> bool {
        self.columns.iter().any(|column| column.within.is_some())
    }

    /// Returns a series that the table names but that isn't run.
    pub(crate) fn wrong(&self, series: &[&str]) -> Option<String> {
        let columns = self
            .columns
            .iter()
            .flat_map(|column| column.series.iter().chain(&column.relative));
        let only = self
            .only
            .iter()
            .flatten()
            .filter(|_| self.rows == Dimension::Series);
        let mut named = columns.chain(only);
        named.find(|name| !series.contains(&name.as_str())).cloned()
    }
}

fn found(series: &str, x: f64, slow: f64, all: f64) -> Found {
    let mut measured = Measured::default();
    measured.note("slow", "rejected_pct", slow);
    measured.note(ALL, "rejected_pct", all);
    measured.draw(ALL, "delay_s", [(0.0, Some(1.0)), (1.0, None)]);
    measured.events.push((0.5, "burst".to_owned()));
    Found {
        series: series.to_owned(),
        labels: vec![("strategy".to_owned(), series.to_owned())],
        x: Some(x),
        measured,
    }
}

fn all() -> [Found; 4] {
    [
        found("Bouncer", 0.9, 0.0, 0.0),
        found("Bouncer", 1.5, 95.0, 12.0),
        found("MaxQueueWait", 0.9, 1.0, 0.5),
        found("MaxQueueWait", 1.5, 40.0, 38.0),
    ]
}

fn entry() -> TableEntry {
    serde_json::from_value(json!({
        "title": "rejected, %", "head": "factor", "rows": "x", "groups": "series",
        "columns": [
            {"head": "slow", "kind": "slow", "metric": "rejected_pct", "decimals": 2, "within": 3,
             "paper": ["-0- 98.46", "0.9 ."]},
            {"head": "ALL", "metric": "rejected_pct", "relative": "Bouncer", "decimals": 1},
        ],
    }))
    .unwrap()
}

#[test]
fn cells_stand_beside_the_papers_and_none_at_all_allows_for_nothing() {
    let found = all();
    let table = table(&entry(), &Results { found: &found });
    assert_eq!(table.columns, ["factor", "slow", "ALL"]);
    let titles: Vec<&str> = table
        .groups
        .iter()
        .map(|group| group.title.as_str())
        .collect();
    assert_eq!(titles, ["Bouncer", "MaxQueueWait"]);
    let slow = |group: usize, row: usize| match &table.groups[group].rows[row].cells[0] {
        Cell::Compared(cell) => (cell.printed.clone(), cell.within, cell.holds()),
        other => (format!("{other:?}"), None, None),
    };
    assert_eq!(slow(0, 0), ("-0-".to_owned(), Some(0.0), Some(true)));
    assert_eq!(slow(0, 1), ("98.46".to_owned(), Some(3.0), Some(false)));
    assert_eq!(slow(1, 0), ("0.9".to_owned(), Some(3.0), Some(true)));
    assert_eq!(
        table.groups[1].rows[1].cells,
        [Cell::Number(40.0, 2), Cell::Number(38.0 / 12.0, 1)]
    );
}

#[test]
fn figures_have_a_line_for_each_series_and_the_papers_points() {
    let found = all();
    let results = Results { found: &found };
    let entry = |more: serde_json::Value| -> FigureEntry {
        let mut entry = json!({
            "title": "t", "metric": "rejected_pct", "kinds": ["slow"], "x": "load", "y": "%",
        });
        entry
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        serde_json::from_value(entry).unwrap()
    };
    let shown = figure(&entry(json!({})), &[self::entry()], &results).unwrap();
    let lines: Vec<(&str, usize)> = shown
        .series
        .iter()
        .map(|l| (l.name.as_str(), l.points.len()))
        .collect();
    assert_eq!(
        lines,
        [
            ("Bouncer", 2),
            ("Bouncer, the paper", 2),
            ("MaxQueueWait", 2),
            ("MaxQueueWait, the paper", 1)
        ]
    );
    assert_eq!(shown.series[0].colour, shown.series[1].colour);
    let time = json!({"metric": "delay_s", "kinds": null, "time": true, "series": ["Bouncer"]});
    let shown = figure(&entry(time), &[], &results).unwrap();
    assert_eq!((shown.x.label.as_str(), shown.events.len()), ("time, s", 1));
    let names: Vec<&str> = shown.series.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["load 0.9", "load 1.5"]);
    assert!(figure(&entry(json!({"kinds": ["fast"]})), &[], &results).is_none());
}
