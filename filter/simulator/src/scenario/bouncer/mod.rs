//! The simulation study of Bouncer (§5.3 and §5.5).
//!
//! The text of the paper lacks Table 1 (types) and Table 2 (parameters), which are pictures. The proportions and
//! means are in its prose. What was chosen here, and what a result says because of it, is in the reports' notes:
//! [`FITTED`], [`LIMITS`], [`HELP`], [`LIMITS_BY_TYPE`].

mod claims;
mod slack_order;
mod stages;
mod windows;

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_core::config::StageConfig;

use super::paper::{BOUNCER_TABLE_3, BOUNCER_TABLE_4, BOUNCER_TABLE_5, Paper};
use super::sweep::{Axis, Metric, Point, Series, Sweep};
use crate::batch::Experiment;
use crate::results::ALL;
use crate::workload::Rate;
pub(super) use slack_order::SlackOrder;
use stages::{
    TYPES, accept_fraction, acceptance_allowance, bouncer, helping_the_underserved,
    max_queue_length, max_queue_wait, wait_limits_by_type, workload,
};

const NAMES: [&str; 10] = [
    "bouncer-table3",
    "bouncer-table4",
    "bouncer-table5",
    "bouncer-fig6",
    "bouncer-fig7",
    "bouncer-fig8",
    "bouncer-fig9",
    "bouncer-fig10",
    "bouncer-fig14",
    windows::NAME,
];
/// §5.3: from 0.9 to 1.5 times the full load.
const FACTORS: [f64; 13] = [
    0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4, 1.45, 1.5,
];
/// Load of Tables 4 and 5 and Figure 10.
const OVERLOAD: f64 = 1.5;
const ALLOWANCES: [f64; 12] = [
    0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.2, 0.3,
];
const ALPHAS: [f64; 10] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
/// The paper has a warm-up and doesn't say how long; five intervals of the histograms.
const WARM_UP: Duration = Duration::from_secs(5);
const FITTED: &str = "\
     The paper's Table 1 is a picture that its text lacks. Proportions and means of the types are in the text; the \
     medians 0.38, 1.14, 7.40 and 12.51 ms were fitted so that the rows of plain Bouncer in Table 3 come out: that \
     those do is no evidence.";
const LIMITS: &str = "\
     Table 2 is a picture, too. L = 400 and T = 10 ms were fitted to the levels that the text gives for Figure 6.";
const TOLERANCES: &str = "\
     Judged are slow within 3 points, ALL within 1, and -0- as none at all; mediumslow is only shown.";
const HELP: &str = "\
     The listing of Algorithm 3 is a picture, too, and the text leaves its x open. Here x is AAR - AR over the types \
     that received something; another reading comes nearer to Table 5, but would end all help where many types are \
     idle.";
const NOT_THE_PAPERS: &str = "Not in the paper: what is expected are aims of this project.";
const BY_THE_TEXT: &str = "The figure is a picture: judged is only what the text says of it.";
const LIMITS_BY_TYPE: &str = "\
     The paper's limits were \"carefully chosen\" and are not given. Here each is what the type's objectives leave \
     for waiting.";
/// Median response time that the objectives allow, ms.
const OBJECTIVE: (Metric, f64, &str) = (Metric::MedianResponseTime, 18.0, "objective");

/// All of them, in the order of the paper.
pub(super) fn sweeps() -> impl Iterator<Item = Sweep> {
    NAMES.into_iter().filter_map(sweep)
}

fn sweep(name: &str) -> Option<Sweep> {
    let sweep = match name {
        "bouncer-table3" => Sweep {
            series: vec![basic(), allowance(), helping()],
            shown: rejected_by_type(),
            paper: Some(Paper::new(BOUNCER_TABLE_3)),
            notes: vec![FITTED, HELP, TOLERANCES],
            ..blank(
                "bouncer-table3",
                "Bouncer, Table 3: rejections with and without starvation avoidance",
                Axis::Factor,
            )?
        },
        "bouncer-table4" => Sweep {
            series: vec![by_allowance()],
            shown: rejected_by_type(),
            paper: Some(Paper::new(BOUNCER_TABLE_4)),
            notes: vec![FITTED, TOLERANCES],
            ..blank(
                "bouncer-table4",
                "Bouncer, Table 4: rejections by allowance A at 1.5 times the full load",
                Axis::Parameter,
            )?
        },
        "bouncer-table5" => Sweep {
            series: vec![by_alpha()],
            shown: rejected_by_type(),
            paper: Some(Paper::new(BOUNCER_TABLE_5)),
            notes: vec![FITTED, HELP, TOLERANCES],
            ..blank(
                "bouncer-table5",
                "Bouncer, Table 5: rejections by α at 1.5 times the full load",
                Axis::Parameter,
            )?
        },
        "bouncer-fig6" => Sweep {
            series: policies(),
            shown: vec![(Metric::MedianResponseTime, "slow")],
            claims: claims::fig6,
            notes: vec![FITTED, LIMITS, BY_THE_TEXT],
            top: Some(60.0),
            caption: "AcceptFraction leaves the figure, as it does in the paper: nothing limits its queue.",
            ..blank(
                "bouncer-fig6",
                "Bouncer, Figure 6: median response time of slow",
                Axis::Factor,
            )?
        },
        "bouncer-fig7" => Sweep {
            series: policies(),
            shown: vec![(Metric::Utilization, ALL)],
            claims: claims::fig7,
            notes: vec![FITTED, LIMITS, BY_THE_TEXT],
            ..blank(
                "bouncer-fig7",
                "Bouncer, Figure 7: utilization",
                Axis::Factor,
            )?
        },
        "bouncer-fig8" => Sweep {
            series: policies(),
            shown: vec![(Metric::Rejected, ALL)],
            claims: claims::fig8,
            notes: vec![
                FITTED,
                LIMITS,
                BY_THE_TEXT,
                "The text's \"15% to 30% less\" is of Figure 11, on LIquid, which has no scenario.",
            ],
            ..blank(
                "bouncer-fig8",
                "Bouncer, Figure 8: overall rejections",
                Axis::Factor,
            )?
        },
        "bouncer-fig9" => Sweep {
            series: vec![basic(), allowance(), helping()],
            shown: vec![(Metric::MedianResponseTime, "slow")],
            claims: claims::fig9,
            notes: vec![FITTED, HELP, BY_THE_TEXT],
            ..blank(
                "bouncer-fig9",
                "Bouncer, Figure 9: median response time of slow",
                Axis::Factor,
            )?
        },
        "bouncer-fig10" => Sweep {
            series: vec![by_allowance(), by_alpha()],
            shown: vec![(Metric::MedianResponseTime, "slow")],
            claims: claims::fig10,
            notes: vec![FITTED, HELP, BY_THE_TEXT],
            ..blank(
                "bouncer-fig10",
                "Bouncer, Figure 10: median response time of slow by A and by α at 1.5 times the full load",
                Axis::Parameter,
            )?
        },
        "bouncer-fig14" => Sweep {
            series: vec![basic(), max_queue_wait_by_type()],
            shown: vec![
                (Metric::MedianResponseTime, "slow"),
                (Metric::Rejected, ALL),
            ],
            claims: claims::fig14,
            notes: vec![FITTED, LIMITS_BY_TYPE, BY_THE_TEXT],
            ..blank(
                "bouncer-fig14",
                "Bouncer, Figure 14: against MaxQueueWait with a limit for each type",
                Axis::Factor,
            )?
        },
        windows::NAME => windows::sweep()?,
        _ => return None,
    };
    Some(sweep)
}

fn blank(name: &'static str, title: &'static str, axis: Axis) -> Option<Sweep> {
    Some(Sweep {
        name,
        title,
        axis,
        series: Vec::new(),
        shown: Vec::new(),
        paper: None,
        claims: claims::none,
        levels: &[OBJECTIVE],
        top: None,
        caption: "",
        notes: vec![FITTED],
        // The constants above are possible, and a test makes every scenario.
        workload: workload().ok()?,
        warm_up: WARM_UP,
    })
}

fn rejected_by_type() -> Vec<(Metric, &'static str)> {
    let names = TYPES.iter().map(|t| t.0).chain([ALL]);
    names.map(|name| (Metric::Rejected, name)).collect()
}

fn policies() -> Vec<Series> {
    vec![
        basic(),
        by_load("MaxQueueLength", &max_queue_length()),
        by_load("MaxQueueWait", &max_queue_wait(BTreeMap::new())),
        by_load("AcceptFraction", &accept_fraction()),
    ]
}

fn basic() -> Series {
    by_load("Bouncer", &bouncer(None))
}

fn allowance() -> Series {
    let stage = bouncer(Some(acceptance_allowance(0.1)));
    by_load("Bouncer+AcceptanceAllowance", &stage)
}

fn helping() -> Series {
    let stage = bouncer(Some(helping_the_underserved(1.0)));
    by_load("Bouncer+HelpingTheUnderserved", &stage)
}

fn max_queue_wait_by_type() -> Series {
    by_load(
        "MaxQueueWait+TypeLimits",
        &max_queue_wait(wait_limits_by_type()),
    )
}

fn by_load(strategy: &'static str, stage: &StageConfig) -> Series {
    let point = |factor: &f64| Point {
        x: *factor,
        experiment: Experiment {
            stage: stage.clone(),
            rate: Rate::Factor(*factor),
        },
    };
    Series {
        strategy,
        points: FACTORS.iter().map(point).collect(),
    }
}

fn by_allowance() -> Series {
    by_parameter("Bouncer+AcceptanceAllowance", &ALLOWANCES, |a| {
        bouncer(Some(acceptance_allowance(a)))
    })
}

fn by_alpha() -> Series {
    by_parameter("Bouncer+HelpingTheUnderserved", &ALPHAS, |alpha| {
        bouncer(Some(helping_the_underserved(alpha)))
    })
}

fn by_parameter(
    strategy: &'static str,
    values: &[f64],
    stage: impl Fn(f64) -> StageConfig,
) -> Series {
    let point = |x: &f64| Point {
        x: *x,
        experiment: Experiment {
            stage: stage(*x),
            rate: Rate::Factor(OVERLOAD),
        },
    };
    Series {
        strategy,
        points: values.iter().map(point).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sweep_is_there_and_has_stages_that_the_filter_takes() {
        let found: Vec<Sweep> = sweeps().collect();
        let names: Vec<&str> = found.iter().map(|sweep| sweep.name).collect();
        assert_eq!(names, NAMES);
        for experiment in found.iter().flat_map(Sweep::experiments) {
            let config = headgate_core::config::FilterConfig {
                revision: String::new(),
                stages: vec![experiment.stage],
                ..headgate_core::config::FilterConfig::default()
            };
            assert_eq!(config.check(), Ok(()));
        }
    }

    #[test]
    fn full_load_is_that_of_the_paper() {
        let workload = workload().unwrap();
        assert!((workload.mean_ms() - 6.614).abs() < 1e-9);
        let full = workload.per_second(Rate::Factor(1.0), stages::PARALLELISM);
        assert_eq!((full / 100.0).round(), 151.0, "15.1 kQPS");
    }

    #[test]
    fn every_cell_of_the_paper_has_an_experiment() {
        for name in ["bouncer-table3", "bouncer-table4", "bouncer-table5"] {
            let sweep = sweep(name).unwrap();
            let paper = sweep.paper.as_ref().unwrap();
            let mut found = 0;
            for series in &sweep.series {
                for point in &series.points {
                    let in_paper =
                        |kind: &str| paper.cell(series.strategy, kind, point.x).is_some();
                    found += sweep
                        .shown
                        .iter()
                        .filter(|(_, kind)| in_paper(kind))
                        .count();
                }
            }
            assert_eq!(found, paper.len(), "{name}");
        }
    }
}
