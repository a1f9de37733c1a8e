//! What the paper leaves to future work (§7): other logical expressions, and histograms in a sliding
//! window instead of nonoverlapping ones.
//!
//! `Any` refuses what misses one of its objectives (Alg. 1), `All` what misses every one. A sliding window
//! is as long as the dual buffers' interval and moves on by a tenth of it. Everything else is as in Table 3.

use headgate_core::config::{HistogramWindow, Logic, StageConfig, StrategyConfig};

use super::super::sweep::{Axis, Findings, Metric, Series, Sweep};
use super::stages::{SECOND_US, bouncer};
use super::{blank, by_load};
use crate::report::Claim;
use crate::results::ALL;

pub(super) const NAME: &str = "bouncer-windows";
const ANY: &str = "Bouncer";
const ANY_SLIDING: &str = "Bouncer+Sliding";
const ALL_LOGIC: &str = "Bouncer+All";
const ALL_SLIDING: &str = "Bouncer+All+Sliding";
/// Δ of the sliding windows.
const STEP_US: u64 = SECOND_US / 10;
/// A load at which slow is refused about half of the time.
const OVERLOADED: f64 = 1.2;

pub(super) fn sweep() -> Option<Sweep> {
    let sliding = HistogramWindow::Sliding { step_us: STEP_US };
    let dual = HistogramWindow::DualBuffer;
    Some(Sweep {
        series: vec![
            series(ANY, Logic::Any, dual),
            series(ANY_SLIDING, Logic::Any, sliding),
            series(ALL_LOGIC, Logic::All, dual),
            series(ALL_SLIDING, Logic::All, sliding),
        ],
        shown: vec![
            (Metric::Rejected, ALL),
            (Metric::Rejected, "slow"),
            (Metric::MedianResponseTime, "slow"),
            (Metric::P90ResponseTime, "slow"),
            (Metric::Utilization, ALL),
        ],
        claims,
        ..blank(
            NAME,
            "Bouncer, §7: objectives joined by Any or All, dual buffers or sliding windows",
            Axis::Factor,
        )?
    })
}

fn series(name: &'static str, logic: Logic, window: HistogramWindow) -> Series {
    let mut stage: StageConfig = bouncer(None);
    stage.strategy = StrategyConfig::Bouncer {
        logic,
        shed_by_value: false,
    };
    stage.service_times.window = window;
    by_load(name, &stage)
}

/// The paper has no numbers for these: what can be said is what they change.
fn claims(found: &Findings<'_>) -> Vec<Claim> {
    let apart = |a, b, kind| {
        let curves = found.curve(a, Metric::Rejected, kind).into_iter();
        let pairs = curves.zip(found.curve(b, Metric::Rejected, kind));
        pairs
            .filter_map(|((_, a), (_, b))| Some((a? - b?).abs()))
            .fold(0.0, f64::max)
    };
    let claim = |text: &str, ours: String, holds: bool| Claim {
        text: text.to_owned(),
        paper: String::new(),
        ours,
        holds,
    };
    let (any, all) = (
        apart(ANY, ANY_SLIDING, ALL),
        apart(ALL_LOGIC, ALL_SLIDING, ALL),
    );
    let logic = apart(ANY, ALL_LOGIC, ALL);
    let at = |strategy, metric| {
        let value = found.at(strategy, metric, "slow", OVERLOADED);
        value.unwrap_or(f64::NAN)
    };
    let median = Metric::MedianResponseTime;
    let (any_p50, all_p50) = (at(ANY, median), at(ALL_LOGIC, median));
    let all_p90 = at(ALL_LOGIC, Metric::P90ResponseTime);
    vec![
        claim(
            "where service times don't change, a sliding window rejects as much as dual buffers",
            format!("at most {any:.2} points apart, with All {all:.2}"),
            any <= 1.0 && all <= 1.0,
        ),
        claim(
            "All rejects as much as Any over all types: capacity decides",
            format!("at most {logic:.2} points apart"),
            logic <= 1.0,
        ),
        claim(
            "with All, slow keeps only the looser of its objectives",
            format!(
                "at {OVERLOADED}: p50 of {all_p50:.1} ms, p90 of {all_p90:.1} ms; with Any p50 of \
                 {any_p50:.1} ms"
            ),
            any_p50 <= 18.0 && all_p50 > 18.0 && all_p90 <= 51.5,
        ),
    ]
}
