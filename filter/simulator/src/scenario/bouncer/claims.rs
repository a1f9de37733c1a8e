//! What §5.3.1, §5.3.2 and §5.5 say of Figures 6 to 10 and 14, held against results.
//!
//! The figures' numbers are in pictures that the text lacks, so these are the numbers and the order that
//! the text names. "When overloaded" begins a little above full load, where even a mild excess fills any
//! queue within the run.

use super::super::sweep::{Findings, Metric};
use super::stages::MAX_UTILIZATION;
use crate::report::Claim;
use crate::results::ALL;

const BOUNCER: &str = "Bouncer";
const ALLOWANCE: &str = "Bouncer+AcceptanceAllowance";
const HELPING: &str = "Bouncer+HelpingTheUnderserved";
const LENGTH: &str = "MaxQueueLength";
const WAIT: &str = "MaxQueueWait";
const WAIT_BY_TYPE: &str = "MaxQueueWait+TypeLimits";
const FRACTION: &str = "AcceptFraction";

/// Where overload begins, × full load.
const OVERLOADED: f64 = 1.1;
/// The highest load.
const HIGHEST: f64 = 1.5;
/// The highest load at which Bouncer still serves enough of slow to have a median.
const SERVED: f64 = 1.45;
/// Objective of the median, ms.
const OBJECTIVE_MS: f64 = 18.0;
/// What the estimate may be off: Bouncer promises to estimate, not to know.
const OBJECTIVE_SLACK_MS: f64 = 0.5;

const MEDIAN: (Metric, &str) = (Metric::MedianResponseTime, "slow");
const REJECTED: (Metric, &str) = (Metric::Rejected, ALL);
const BUSY: (Metric, &str) = (Metric::Utilization, ALL);

pub(super) fn none(_: &Findings<'_>) -> Vec<Claim> {
    Vec::new()
}

pub(super) fn fig6(found: &Findings<'_>) -> Vec<Claim> {
    let bouncer = span(found, BOUNCER, MEDIAN, 0.0);
    let fraction = |x| at(found, FRACTION, MEDIAN, x);
    vec![
        plateau(found, LENGTH, 40.0, 3.0).not_judged(),
        plateau(found, WAIT, 22.0, 2.0).not_judged(),
        claim(
            "Bouncer keeps slow within its objective at every load",
            &format!("{OBJECTIVE_MS} ms"),
            format!("at most {:.1} ms", bouncer.1),
            bouncer.1 <= OBJECTIVE_MS + OBJECTIVE_SLACK_MS,
        ),
        claim(
            "AcceptFraction grows with the load, for the length of its queue",
            "to the top of the figure",
            format!(
                "{:.1} ms at {OVERLOADED}, {:.1} ms at {HIGHEST}",
                fraction(OVERLOADED),
                fraction(HIGHEST)
            ),
            fraction(HIGHEST) > fraction(OVERLOADED),
        ),
    ]
}

pub(super) fn fig7(found: &Findings<'_>) -> Vec<Claim> {
    let nearly_one = [BOUNCER, LENGTH, WAIT].map(|strategy| {
        let (low, _) = span(found, strategy, BUSY, OVERLOADED);
        claim(
            &format!("{strategy} reaches nearly full utilization"),
            "nearly 1",
            format!("at least {low:.3}"),
            low >= 0.98,
        )
    });
    let (low, high) = span(found, FRACTION, BUSY, OVERLOADED);
    let mut claims = nearly_one.to_vec();
    claims.push(claim(
        "AcceptFraction keeps to its threshold",
        &MAX_UTILIZATION.to_string(),
        format!("{low:.3} to {high:.3}"),
        (low - MAX_UTILIZATION).abs() <= 0.015 && (high - MAX_UTILIZATION).abs() <= 0.015,
    ));
    claims
}

pub(super) fn fig8(found: &Findings<'_>) -> Vec<Claim> {
    let rejected = |strategy| move |x| at(found, strategy, REJECTED, x);
    let others = [LENGTH, WAIT, FRACTION];
    let overload = || {
        let curve = found.curve(BOUNCER, REJECTED.0, REJECTED.1);
        curve
            .into_iter()
            .map(|(x, _)| x)
            .filter(|x| *x >= OVERLOADED)
    };
    let least = overload().all(|x| {
        let ours = rejected(BOUNCER)(x);
        others.iter().all(|other| ours < rejected(other)(x))
    });
    let most = overload().all(|x| {
        let theirs = rejected(FRACTION)(x);
        [LENGTH, WAIT]
            .iter()
            .all(|other| theirs > rejected(other)(x))
    });
    let highest = |strategy| format!("{strategy} {:.1}%", rejected(strategy)(HIGHEST));
    vec![
        claim(
            "Bouncer rejects least at every overload",
            "",
            format!(
                "at {HIGHEST}: {}",
                [BOUNCER, LENGTH, WAIT].map(highest).join(", ")
            ),
            least,
        ),
        claim(
            "AcceptFraction rejects most at every overload",
            "",
            format!("at {HIGHEST}: {}", highest(FRACTION)),
            most,
        ),
    ]
}

pub(super) fn fig9(found: &Findings<'_>) -> Vec<Claim> {
    let highest = |strategy| at(found, strategy, MEDIAN, HIGHEST);
    let exceeds = |strategy: &str| {
        let curve = found.curve(strategy, MEDIAN.0, MEDIAN.1).into_iter();
        let over =
            |(_, y): &(f64, Option<f64>)| y.is_some_and(|y| y > OBJECTIVE_MS + OBJECTIVE_SLACK_MS);
        curve
            .filter(over)
            .map(|(x, _)| x)
            .fold(f64::INFINITY, f64::min)
    };
    let (allowance, helping) = (highest(ALLOWANCE), highest(HELPING));
    let (from, helping_from) = (exceeds(ALLOWANCE), exceeds(HELPING));
    vec![
        claim(
            "starvation avoidance exceeds the objective at high loads",
            "above 18 ms",
            format!("{allowance:.1} and {helping:.1} ms at {HIGHEST}"),
            allowance > OBJECTIVE_MS && helping > OBJECTIVE_MS,
        ),
        claim(
            "AcceptanceAllowance exceeds it at a higher load than HelpingTheUnderserved",
            "",
            format!("from {from} on, and from {helping_from} on"),
            from > helping_from,
        ),
        claim(
            "AcceptanceAllowance has lower medians at high loads",
            "",
            format!("{allowance:.1} and {helping:.1} ms at {HIGHEST}"),
            allowance < helping,
        ),
    ]
}

pub(super) fn fig10(found: &Findings<'_>) -> Vec<Claim> {
    let of = |strategy: &'static str| {
        let curve = found.curve(strategy, MEDIAN.0, MEDIAN.1);
        let ends = (
            curve.first().and_then(|p| p.1),
            curve.last().and_then(|p| p.1),
        );
        let (first, last) = (ends.0.unwrap_or(f64::NAN), ends.1.unwrap_or(f64::NAN));
        let growth = 100.0 * (last / first - 1.0);
        [
            claim(
                &format!("{strategy}: the median of slow is above 20 ms"),
                "above 20 ms",
                format!("{first:.1} to {last:.1} ms"),
                first > 20.0 && last > 20.0,
            ),
            claim(
                &format!("{strategy}: it grows little with the parameter"),
                "less than 10%",
                format!("{growth:.1}%"),
                growth < 10.0,
            ),
        ]
    };
    [ALLOWANCE, HELPING].into_iter().flat_map(of).collect()
}

pub(super) fn fig14(found: &Findings<'_>) -> Vec<Claim> {
    let apart = |(metric, kind), upto: f64| {
        let pairs = found.curve(BOUNCER, metric, kind).into_iter();
        let pairs = pairs.zip(found.curve(WAIT_BY_TYPE, metric, kind));
        pairs
            .filter(|((x, _), _)| *x <= upto + 1e-9)
            .filter_map(|((_, a), (_, b))| Some((a? - b?).abs()))
            .fold(0.0, f64::max)
    };
    // At the highest load Bouncer serves one slow query in a hundred, whose median says little.
    let (median, rejected) = (apart(MEDIAN, SERVED), apart(REJECTED, HIGHEST));
    vec![
        claim(
            "with well-chosen limits MaxQueueWait has nearly Bouncer's medians of slow",
            "",
            format!("at most {median:.1} ms apart up to {SERVED}"),
            median <= 2.0,
        ),
        claim(
            "and nearly its rejections",
            "",
            format!("at most {rejected:.1} points apart"),
            rejected <= 1.0,
        ),
    ]
}

fn plateau(found: &Findings<'_>, strategy: &str, expected: f64, within: f64) -> Claim {
    let (low, high) = span(found, strategy, MEDIAN, OVERLOADED);
    claim(
        &format!("{strategy} levels off"),
        &format!("about {expected} ms"),
        format!("{low:.1} to {high:.1} ms from {OVERLOADED} on"),
        (low - expected).abs() <= within && (high - expected).abs() <= within,
    )
}

fn claim(text: &str, paper: &str, ours: String, holds: bool) -> Claim {
    Claim {
        text: text.to_owned(),
        paper: paper.to_owned(),
        ours,
        holds: Some(holds),
    }
}

fn at(found: &Findings<'_>, strategy: &str, (metric, kind): (Metric, &str), x: f64) -> f64 {
    found.at(strategy, metric, kind, x).unwrap_or(f64::NAN)
}

fn span(
    found: &Findings<'_>,
    strategy: &str,
    (metric, kind): (Metric, &str),
    from: f64,
) -> (f64, f64) {
    found.range(strategy, metric, kind, from)
}
