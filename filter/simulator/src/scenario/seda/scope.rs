//! One admission controller for each request type against a single one for all (Figure 11).

use super::load::{SEEDS, TARGET_S, Times, p90};
use super::service::names;
use super::stage::Control;
use super::trial::run;
use super::{claim, mean, words};
use crate::progress::Progress;
use crate::report::{Cell, Compared, Group, Record, Report, Table, TableRow};
use crate::scenario::Size;
use crate::simulation::SimulationError;

/// Figure 11: response time, s, and percent rejected, per stage and then with a single controller.
const FIGURE_11: [[f64; 4]; 7] = [
    [2.07, 44.3, 1.00, 18.8],
    [8.11, 59.6, 3.97, 59.6],
    [8.04, 47.1, 6.20, 53.7],
    [3.90, 23.1, 2.04, 49.1],
    [4.86, 11.3, 3.26, 51.4],
    [4.60, 10.4, 2.12, 54.7],
    [22.2, 0.0, 18.9, 53.3],
];

pub(super) fn figure_11(
    size: &Size,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report, SimulationError> {
    let times = Times::of(size);
    times.setup(&mut report, size);
    report.setup("users", "128");
    let controls = [Control::PerStage(TARGET_S), Control::SingleStage(TARGET_S)];
    let labels = ["per-stage", "single-stage"];
    let trials = controls
        .map(|control| times.trial(128, control))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let runs = run(&trials, size, SEEDS, progress)?;
    let time = |c: usize, kind: usize| mean(&runs[c], |s| p90(&s.pages[kind], times.shown()));
    let refused = |c: usize, kind: usize| {
        mean(&runs[c], |s| s.pages[kind].refused_pct(times.shown())).unwrap_or_default()
    };
    let row = |(kind, name): (usize, &str)| {
        let compared = |ours: Option<f64>, decimals: usize, paper: f64| {
            Cell::Compared(Compared {
                ours,
                decimals,
                expected: paper,
                printed: paper.to_string(),
                within: None,
            })
        };
        let paper = FIGURE_11[kind];
        TableRow {
            label: name.to_owned(),
            cells: vec![
                compared(time(0, kind), 2, paper[0]),
                compared(Some(refused(0, kind)), 1, paper[1]),
                compared(time(1, kind), 2, paper[2]),
                compared(Some(refused(1, kind)), 1, paper[3]),
            ],
        }
    };
    report.tables.push(Table {
        title: "90th percentile response time and rejections by type".to_owned(),
        columns: [
            "type",
            "per-stage, s",
            "rejected, %",
            "single-stage, s",
            "rejected, %",
        ]
        .map(str::to_owned)
        .to_vec(),
        groups: vec![Group {
            title: String::new(),
            rows: names().into_iter().enumerate().map(row).collect(),
        }],
    });
    // list folders and list msgs are the expensive ones, these the cheap ones.
    let cheap = [3, 4, 5];
    let of_cheap = |c: usize| {
        cheap
            .map(|kind| refused(c, kind))
            .into_iter()
            .fold(0.0, f64::max)
    };
    let inner = [1, 2, 3, 4, 5].map(|kind| refused(1, kind));
    let (least, most) = inner
        .into_iter()
        .fold((f64::MAX, 0.0_f64), |(a, b), r| (a.min(r), b.max(r)));
    let faster = (0..names().len())
        .filter(|kind| time(1, *kind) < time(0, *kind))
        .count();
    report.claims = vec![
        claim(
            "per-stage control refuses the expensive list folders, hardly the cheap show, delete, refile",
            "59.6%; 10 to 23%",
            format!("{:.1}%; at most {:.1}%", refused(0, 1), of_cheap(0)),
            refused(0, 1) > 2.0 * of_cheap(0) && refused(0, 1) > 30.0,
        ),
        claim(
            "a single controller refuses show, delete and refile, too, more than per-stage control does",
            "49 to 55%",
            format!("{least:.0} to {most:.0}% over the types after the login"),
            cheap
                .iter()
                .all(|kind| refused(1, *kind) > refused(0, *kind) + 5.0),
        ),
        claim(
            "a single controller leads to lower response times overall",
            "of all 7 types",
            format!("of {faster}"),
            faster >= 5,
        ),
        claim(
            "search is too seldom to be controlled: over its target, nothing refused",
            "22.2 s, 0%",
            format!("{}, {:.0}%", words(time(0, 6), 1, " s"), refused(0, 6)),
            time(0, 6).is_some_and(|t| t > TARGET_S as f64) && refused(0, 6) < 5.0,
        ),
    ];
    for (c, label) in labels.iter().enumerate() {
        for (kind, name) in names().into_iter().enumerate() {
            let row = Record::new()
                .with("strategy", *label)
                .with("type", name)
                .with("rejected_pct", Some(refused(c, kind)))
                .with("rt_p90_s", time(c, kind));
            report.rows.push(row);
        }
    }
    Ok(report)
}
