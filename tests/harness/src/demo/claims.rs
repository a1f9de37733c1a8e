//! The demo's claims, judged by the numbers of the run.

use std::time::Duration;

use super::result::{Claim, Edit, Phase, Setup};
use super::run::{ALLOWANCE, VALUE};
use super::timeline::{Totals, totals};
use crate::load::Sample;
use crate::mix::QueryType;

/// Ratio of answers below which a type counts as starved. Basic Bouncer starves the costliest type
/// in overload. Its few admitted requests find a short queue by chance, so their percentiles are
/// not meaningful.
const STARVED: f64 = 0.2;
/// Ratio of answers above which most requests of a type count as answered.
const MOST: f64 = 0.8;
/// The time within which an edit must take effect.
const IN_FORCE: Duration = Duration::from_secs(1);
/// Ratio of the ideal goodput that must be reached. It bounds the combined cost of refusals, idle
/// slots and late answers. The slots have to be found first.
const OF_IDEAL: f64 = 0.85;
/// The time over which the acceptance ratio is measured after an edit.
const WINDOW: Duration = Duration::from_millis(250);
/// The smallest number of requests in [`WINDOW`] that counts as a measurement.
const ENOUGH_IN_WINDOW: u64 = 10;

/// The data to judge.
pub(super) struct Seen<'a> {
    pub(super) setup: &'a Setup,
    pub(super) without: &'a Phase,
    pub(super) with: &'a Phase,
    pub(super) edits: &'a [Edit],
    pub(super) mix: &'a [QueryType],
    pub(super) samples: &'a [Sample],
}

/// Returns all claims, in the order in which the demo shows them.
pub(super) fn claims(seen: &Seen<'_>) -> Vec<Claim> {
    let mut claims = vec![
        overload_hurts(seen),
        objectives_kept(seen),
        slots_bounded(seen),
        goodput(seen),
    ];
    if let [value, allowance] = seen.edits {
        claims.extend([
            acknowledged(seen.edits),
            value_heeded(seen, value, allowance),
            kept_meanwhile(seen, value),
            allowance_kept(seen, allowance),
        ]);
    }
    claims
}

fn overload_hurts(seen: &Seen<'_>) -> Claim {
    let missed = by_type(seen.without, seen.mix)
        .filter(|(_, totals)| !totals.inside())
        .count();
    Claim {
        text: "Without Headgate the overload puts every type outside its objectives".into(),
        seen: missed == seen.mix.len(),
        evidence: format!("{missed} of {} types outside", seen.mix.len()),
    }
}

fn objectives_kept(seen: &Seen<'_>) -> Claim {
    let told = |(query, totals): (&QueryType, &Totals)| {
        let starved = if totals.acceptance() < STARVED {
            ", starved"
        } else {
            ""
        };
        let (p50, p90) = (totals.p50_ms.unwrap_or(0.0), totals.p90_ms.unwrap_or(0.0));
        format!(
            "{} {p50:.0}/{p90:.0} ms ({:.0}% answered{starved})",
            query.name,
            totals.acceptance() * 100.0
        )
    };
    let evidence: Vec<String> = by_type(seen.with, seen.mix).map(told).collect();
    let served =
        || by_type(seen.with, seen.mix).filter(|(_, totals)| totals.acceptance() >= STARVED);
    Claim {
        text: "With Headgate every type that isn't starved keeps its p50 and p90 objectives".into(),
        seen: served().count() >= 2 && served().all(|(_, totals)| totals.inside()),
        evidence: format!("p50/p90: {}", evidence.join(", ")),
    }
}

fn slots_bounded(seen: &Seen<'_>) -> Claim {
    Claim {
        text: "Headgate finds how many requests the backend can work on, and bounds them to a \
               tenth or less"
            .into(),
        seen: 10 * seen.with.max_in_flight <= seen.without.max_in_flight,
        evidence: format!(
            "found {} slots where {} are right; at most {} in the backend, without Headgate {}; \
             {} before the slots were found",
            seen.with.slots_found.unwrap_or(0),
            seen.setup.parallelism,
            seen.with.max_in_flight,
            seen.without.max_in_flight,
            seen.with.max_in_flight_at_first
        ),
    }
}

fn goodput(seen: &Seen<'_>) -> Claim {
    let (before, after) = (seen.without.goodput_rps, seen.with.goodput_rps);
    Claim {
        text: format!(
            "More requests than the backend's capacity, and at least {:.0}% of the ideal, are \
             answered inside their p90 objective",
            OF_IDEAL * 100.0
        ),
        seen: after > seen.setup.capacity_rps
            && after >= OF_IDEAL * seen.setup.ideal_rps
            && after > before,
        evidence: format!(
            "{after:.0}/s = {:.2}× of capacity, {:.0}% of the ideal; without Headgate \
             {before:.0}/s",
            after / seen.setup.capacity_rps,
            100.0 * after / seen.setup.ideal_rps
        ),
    }
}

fn acknowledged(edits: &[Edit]) -> Claim {
    let slowest = edits
        .iter()
        .map(|edit| edit.acknowledged_ms)
        .fold(0.0, f64::max);
    let in_force: Option<Vec<f64>> = edits.iter().map(|edit| edit.in_force_ms).collect();
    let limit_ms = IN_FORCE.as_secs_f64() * 1e3;
    Claim {
        text: "Each live edit is acknowledged by Envoy, and shows in the answers, within a second"
            .into(),
        seen: slowest <= limit_ms
            && in_force
                .as_ref()
                .is_some_and(|all| all.iter().all(|&ms| ms <= limit_ms)),
        evidence: format!(
            "acknowledged after at most {slowest:.0} ms; showing after {}",
            in_force.map_or_else(
                || "more than a second".to_owned(),
                |all| all
                    .iter()
                    .map(|ms| format!("{ms:.0} ms"))
                    .collect::<Vec<_>>()
                    .join(" and ")
            )
        ),
    }
}

fn value_heeded(seen: &Seen<'_>, edit: &Edit, next: &Edit) -> Claim {
    let costliest = costliest(seen.mix);
    let (from, to) = (after(edit) + IN_FORCE, after(next));
    let of = |kind: usize, from, to| totals(seen.samples, kind, &seen.mix[kind], from, to);
    let before = of(
        costliest,
        after(edit).saturating_sub(to - from),
        after(edit),
    )
    .acceptance();
    let now: Vec<Totals> = (0..seen.mix.len()).map(|kind| of(kind, from, to)).collect();
    let name = seen.mix[costliest].name;
    let served = || now.iter().filter(|totals| totals.acceptance() >= STARVED);
    Claim {
        text: format!(
            "Worth {VALUE:.0}, the costliest type is answered for most, and every type that isn't \
             starved keeps the objectives"
        ),
        seen: before < STARVED
            && now[costliest].acceptance() > MOST
            && served().all(Totals::inside),
        evidence: format!(
            "{name} {:.0}% → {:.0}% answered, p50/p90 {:.0}/{:.0} ms",
            before * 100.0,
            now[costliest].acceptance() * 100.0,
            now[costliest].p50_ms.unwrap_or(0.0),
            now[costliest].p90_ms.unwrap_or(0.0)
        ),
    }
}

fn kept_meanwhile(seen: &Seen<'_>, edit: &Edit) -> Claim {
    let second: Vec<(&QueryType, Totals)> = seen
        .mix
        .iter()
        .enumerate()
        .map(|(kind, query)| {
            let (from, to) = (after(edit), after(edit) + IN_FORCE);
            (query, totals(seen.samples, kind, query, from, to))
        })
        .filter(|(_, totals)| totals.acceptance() >= STARVED)
        .collect();
    let evidence: Vec<String> = second
        .iter()
        .map(|(query, totals)| {
            let (p50, p90) = (totals.p50_ms.unwrap_or(0.0), totals.p90_ms.unwrap_or(0.0));
            format!("{} {p50:.0}/{p90:.0} ms", query.name)
        })
        .collect();
    Claim {
        text: "The edit disturbs no type: in the second after it every type that isn't starved \
               keeps the objectives from before"
            .to_owned(),
        seen: second.len() >= 2 && second.iter().all(|(_, totals)| totals.inside()),
        evidence: format!("p50/p90: {}", evidence.join(", ")),
    }
}

fn allowance_kept(seen: &Seen<'_>, edit: &Edit) -> Claim {
    let from = after(edit) + IN_FORCE;
    let shares: Vec<(&str, Totals)> = seen
        .mix
        .iter()
        .enumerate()
        .map(|(kind, query)| {
            (
                query.name,
                totals(seen.samples, kind, query, from, Duration::MAX),
            )
        })
        .collect();
    // The ratio of a finite number of requests scatters around the allowance, so two standard
    // deviations are accepted.
    let enough = |totals: &Totals| {
        let scatter = (ALLOWANCE * (1.0 - ALLOWANCE) / totals.offered.max(1) as f64).sqrt();
        totals.acceptance() >= ALLOWANCE - 2.0 * scatter
    };
    let evidence: Vec<String> = shares
        .iter()
        .map(|(name, totals)| format!("{name} {:.1}%", totals.acceptance() * 100.0))
        .collect();
    Claim {
        text: format!(
            "With the acceptance allowance no type is answered below {:.0}%",
            ALLOWANCE * 100.0
        ),
        seen: shares
            .iter()
            .all(|(_, totals)| totals.offered > 0 && enough(totals)),
        evidence: evidence.join(", "),
    }
}

pub(super) fn costliest(mix: &[QueryType]) -> usize {
    (0..mix.len())
        .max_by_key(|&kind| mix[kind].mean)
        .unwrap_or_default()
}

/// Returns the time from the edit to the end of the first window in which most requests of the
/// costliest type are answered, ms. If `answered` is false, it is the first window in which most
/// aren't answered.
pub(super) fn costliest_answered_after(
    samples: &[Sample],
    edit: &Edit,
    mix: &[QueryType],
    answered: bool,
) -> Option<f64> {
    let costliest = costliest(mix);
    let is_so = |from: Duration| {
        let now = totals(samples, costliest, &mix[costliest], from, from + WINDOW);
        now.offered >= ENOUGH_IN_WINDOW && (now.acceptance() > 0.5) == answered
    };
    let step = Duration::from_millis(10);
    let ends = (0..500)
        .map(|i| step * i)
        .find(|&start| is_so(after(edit) + start));
    ends.map(|start| (start + WINDOW).as_secs_f64() * 1e3)
}

fn after(edit: &Edit) -> Duration {
    Duration::from_secs_f64(edit.at_s)
}

fn by_type<'a>(
    phase: &'a Phase,
    mix: &'a [QueryType],
) -> impl Iterator<Item = (&'a QueryType, &'a Totals)> {
    mix.iter().zip(phase.types.iter().map(|kind| &kind.totals))
}
