//! The simulation study of Bouncer (§5.3 and §5.5).
//!
//! The paper's Table 1 and Table 2 are figures that its text lacks. The proportions and means are in the
//! text; the medians 0.38, 1.14, 7.40 and 12.51 ms reproduce Table 3's basic rows. L = 400 and T = 10 ms
//! are those of DESIGN's ranges that give the plateaus of Figure 6. The wait limits per type of Figure 14
//! are not given ("carefully chosen"); here each is what the type's objectives leave for waiting.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_core::config::{
    DEFAULT_TYPE, Discipline, Logic, MAX_QUEUE_LENGTH, Match, Measure, Mode, Objective, PathMatch,
    QueueConfig, QueueMode, ServiceTimesConfig, StageConfig, StarvationAvoidance, StrategyConfig,
    TypeConfig,
};
use headgate_core::strategy::TypeId;

use super::paper::{BOUNCER_TABLE_3, BOUNCER_TABLE_4, BOUNCER_TABLE_5, Paper};
use super::{Axis, Metric, Point, Scenario, Series};
use crate::batch::Experiment;
use crate::results::ALL;
use crate::workload::{LogNormal, Rate, TypeLoad, Workload, WorkloadError};

/// P.
const PARALLELISM: u32 = 100;
/// Table 1: name, share, mean and median processing time, ms.
const TYPES: [(&str, f64, f64, f64); 4] = [
    ("fast", 0.4, 1.16, 0.38),
    ("mediumfast", 0.2, 2.53, 1.14),
    ("mediumslow", 0.3, 12.13, 7.40),
    ("slow", 0.1, 20.05, 12.51),
];
/// Objectives of all types, ms.
const SLO: [(f64, u32); 2] = [(50.0, 18), (90.0, 50)];
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
/// L of MaxQL, requests.
const MAX_QUEUE: u32 = 400;
/// T of MaxQWT, µs.
const MAX_WAIT_US: u64 = 10_000;
const MAX_UTILIZATION: f64 = 0.95;
const SECOND_US: u64 = 1_000_000;
const MIN_SAMPLES: u32 = 50;
/// The paper has a warm-up and doesn't say how long; five intervals of the histograms.
const WARM_UP: Duration = Duration::from_secs(5);

pub(super) fn scenario(name: &str) -> Option<Scenario> {
    let scenario = match name {
        "bouncer-table3" => Scenario {
            series: vec![basic(), allowance(), helping()],
            shown: rejected_by_type(),
            paper: Some(Paper::new(BOUNCER_TABLE_3)),
            ..blank(
                "bouncer-table3",
                "Bouncer, Table 3: rejections with and without starvation avoidance",
                Axis::Factor,
            )?
        },
        "bouncer-table4" => Scenario {
            series: vec![by_allowance()],
            shown: rejected_by_type(),
            paper: Some(Paper::new(BOUNCER_TABLE_4)),
            ..blank(
                "bouncer-table4",
                "Bouncer, Table 4: rejections by allowance A at 1.5 times the full load",
                Axis::Parameter,
            )?
        },
        "bouncer-table5" => Scenario {
            series: vec![by_alpha()],
            shown: rejected_by_type(),
            paper: Some(Paper::new(BOUNCER_TABLE_5)),
            ..blank(
                "bouncer-table5",
                "Bouncer, Table 5: rejections by α at 1.5 times the full load",
                Axis::Parameter,
            )?
        },
        "bouncer-fig6" => Scenario {
            series: policies(),
            shown: vec![(Metric::MedianResponseTime, "slow")],
            claims: &[
                "MaxQueueLength levels off at about 40 ms, MaxQueueWait at about 22 ms",
                "Bouncer stays within 18 ms",
                "AcceptFraction grows with the load: in the paper to the top of the figure, for the length \
                 of its queue",
            ],
            ..blank(
                "bouncer-fig6",
                "Bouncer, Figure 6: median response time of slow",
                Axis::Factor,
            )?
        },
        "bouncer-fig7" => Scenario {
            series: policies(),
            shown: vec![(Metric::Utilization, ALL)],
            claims: &["all but AcceptFraction reach nearly 1; AcceptFraction keeps to 0.95"],
            ..blank(
                "bouncer-fig7",
                "Bouncer, Figure 7: utilization",
                Axis::Factor,
            )?
        },
        "bouncer-fig8" => Scenario {
            series: policies(),
            shown: vec![(Metric::Rejected, ALL)],
            claims: &["Bouncer rejects least, AcceptFraction most"],
            ..blank(
                "bouncer-fig8",
                "Bouncer, Figure 8: overall rejections",
                Axis::Factor,
            )?
        },
        "bouncer-fig9" => Scenario {
            series: vec![basic(), allowance(), helping()],
            shown: vec![(Metric::MedianResponseTime, "slow")],
            claims: &[
                "starvation avoidance exceeds 18 ms at high loads, AcceptanceAllowance later and by less",
            ],
            ..blank(
                "bouncer-fig9",
                "Bouncer, Figure 9: median response time of slow",
                Axis::Factor,
            )?
        },
        "bouncer-fig10" => Scenario {
            series: vec![by_allowance(), by_alpha()],
            shown: vec![(Metric::MedianResponseTime, "slow")],
            claims: &[
                "above 20 ms, and less than 10% more at the largest A and α than at the smallest",
            ],
            ..blank(
                "bouncer-fig10",
                "Bouncer, Figure 10: median response time of slow by A and by α at 1.5 times the full load",
                Axis::Parameter,
            )?
        },
        "bouncer-fig14" => Scenario {
            series: vec![basic(), max_queue_wait_by_type()],
            shown: vec![
                (Metric::MedianResponseTime, "slow"),
                (Metric::Rejected, ALL),
            ],
            claims: &["with well-chosen limits MaxQueueWait comes close to Bouncer in both"],
            ..blank(
                "bouncer-fig14",
                "Bouncer, Figure 14: against MaxQueueWait with a limit for each type",
                Axis::Factor,
            )?
        },
        _ => return None,
    };
    Some(scenario)
}

fn blank(name: &'static str, title: &'static str, axis: Axis) -> Option<Scenario> {
    Some(Scenario {
        name,
        title,
        axis,
        series: Vec::new(),
        shown: Vec::new(),
        paper: None,
        claims: &[],
        // The constants above are possible, and a test makes every scenario.
        workload: workload().ok()?,
        warm_up: WARM_UP,
    })
}

fn workload() -> Result<Workload, WorkloadError> {
    let types = (0_u16..)
        .zip(TYPES)
        .map(|(id, (name, share, mean, median))| {
            Ok(TypeLoad {
                name: name.to_owned(),
                kind: TypeId(id),
                share,
                service_time: LogNormal::new(mean, median)?,
            })
        });
    Workload::new(types.collect::<Result<_, _>>()?)
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

fn acceptance_allowance(allowance: f64) -> StarvationAvoidance {
    StarvationAvoidance::AcceptanceAllowance {
        allowance,
        window_us: SECOND_US,
        step_us: 10_000,
    }
}

fn helping_the_underserved(alpha: f64) -> StarvationAvoidance {
    StarvationAvoidance::HelpingTheUnderserved {
        alpha,
        window_us: SECOND_US,
        step_us: 10_000,
    }
}

fn bouncer(avoidance: Option<StarvationAvoidance>) -> StageConfig {
    StageConfig {
        starvation_avoidance: avoidance,
        ..stage(StrategyConfig::Bouncer { logic: Logic::Any })
    }
}

fn max_queue_length() -> StageConfig {
    let mut stage = stage(StrategyConfig::MaxQueueLength);
    stage.queue.max_length = MAX_QUEUE;
    stage
}

fn max_queue_wait(type_limits_us: BTreeMap<String, u64>) -> StageConfig {
    stage(StrategyConfig::MaxQueueWait {
        limit_us: MAX_WAIT_US,
        type_limits_us,
        window_us: 60 * SECOND_US,
        step_us: SECOND_US,
    })
}

fn accept_fraction() -> StageConfig {
    stage(StrategyConfig::AcceptFraction {
        max_utilization: MAX_UTILIZATION,
        window_us: 60 * SECOND_US,
        step_us: SECOND_US,
    })
}

/// What the objectives leave for waiting: the least of objective − processing time over percentiles.
fn wait_limits_by_type() -> BTreeMap<String, u64> {
    let limit = |(name, _, mean, median): &(&str, f64, f64, f64)| {
        let times = LogNormal::new(*mean, *median).ok()?;
        let [p50, p90] = SLO.map(|(_, ms)| f64::from(ms));
        let slack_ms = (p50 - times.median_ms()).min(p90 - times.p90_ms());
        Some(((*name).to_owned(), (slack_ms * 1e3) as u64))
    };
    TYPES.iter().filter_map(limit).collect()
}

/// §5.3 limits neither queue length nor wait, unless the strategy does.
fn stage(strategy: StrategyConfig) -> StageConfig {
    let kind = |name: &str| TypeConfig {
        name: name.to_owned(),
        matches: match name {
            DEFAULT_TYPE => Vec::new(),
            _ => vec![Match {
                path: Some(PathMatch::PathPrefix(format!("/q/{name}"))),
                ..Match::default()
            }],
        },
        slo: SLO
            .map(|(percentile, ms)| Objective {
                percentile,
                objective_us: u64::from(ms) * 1_000,
            })
            .to_vec(),
    };
    StageConfig {
        policy: "default/simulated".to_owned(),
        generation: 1,
        routes: Vec::new(),
        mode: Mode::Enforce,
        parallelism: PARALLELISM,
        queue: QueueConfig {
            mode: QueueMode::Hold,
            discipline: Discipline::Fifo,
            max_length: MAX_QUEUE_LENGTH,
            timeout_us: 3_600 * SECOND_US,
        },
        measure: Measure::LastByte,
        service_times: ServiceTimesConfig {
            interval_us: SECOND_US,
            min_samples: MIN_SAMPLES,
        },
        strategy,
        starvation_avoidance: None,
        types: TYPES
            .iter()
            .map(|t| t.0)
            .chain([DEFAULT_TYPE])
            .map(kind)
            .collect(),
        classes: Vec::new(),
        excluded: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{NAMES, by_name};

    #[test]
    fn every_scenario_is_there_and_has_stages_that_the_filter_takes() {
        for name in NAMES {
            let scenario = by_name(name).unwrap();
            assert_eq!(scenario.name, name);
            for experiment in scenario.experiments() {
                let config = headgate_core::config::FilterConfig {
                    revision: String::new(),
                    stages: vec![experiment.stage],
                };
                assert_eq!(config.check(), Ok(()), "{name}");
            }
        }
        assert!(by_name("bouncer-fig5").is_none());
    }

    #[test]
    fn full_load_is_that_of_the_paper() {
        let workload = workload().unwrap();
        assert!((workload.mean_ms() - 6.614).abs() < 1e-9);
        let full = workload.per_second(Rate::Factor(1.0), PARALLELISM);
        assert_eq!((full / 100.0).round(), 151.0, "15.1 kQPS");
    }

    #[test]
    fn every_cell_of_the_paper_has_an_experiment() {
        for name in ["bouncer-table3", "bouncer-table4", "bouncer-table5"] {
            let scenario = by_name(name).unwrap();
            let paper = scenario.paper.as_ref().unwrap();
            let mut found = 0;
            for series in &scenario.series {
                for point in &series.points {
                    let in_paper =
                        |kind: &str| paper.cell(series.strategy, kind, point.x).is_some();
                    found += scenario
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
