//! What the demo claims, judged by the numbers of the run.

use std::time::Duration;

use super::result::{Claim, Edit, Phase, Setup};
use super::run::ALLOWANCE;
use super::timeline::{Totals, totals};
use crate::load::{Ended, Sample};
use crate::mix::QueryType;

/// Share of answers below which a type counts as starved, as basic Bouncer does to the costliest in overload. The few
/// that pass find a short queue by chance, and their percentiles say little.
const STARVED: f64 = 0.2;
/// Answers from which a median is judged in the seconds around an edit.
const ENOUGH: u64 = 200;
/// How soon an edit must show.
const IN_FORCE: Duration = Duration::from_secs(1);
/// Share of the ideal goodput that must be reached. It bounds what refusing, idle slots and late answers cost together.
const OF_IDEAL: f64 = 0.9;
/// Span of requests from which a median after an edit is taken, and the answers it needs.
const WINDOW: Duration = Duration::from_millis(250);
const ENOUGH_IN_WINDOW: u64 = 20;

/// What there is to judge.
pub(super) struct Seen<'a> {
    pub(super) setup: &'a Setup,
    pub(super) without: &'a Phase,
    pub(super) with: &'a Phase,
    pub(super) edits: &'a [Edit],
    pub(super) mix: &'a [QueryType],
    pub(super) tightened: &'a [QueryType],
    pub(super) samples: &'a [Sample],
}

/// All claims, in the order in which the demo shows things.
pub(super) fn claims(seen: &Seen<'_>) -> Vec<Claim> {
    let mut claims = vec![
        overload_hurts(seen),
        objectives_kept(seen),
        slots_bounded(seen),
        goodput(seen),
    ];
    if let [tightened, allowance] = seen.edits {
        claims.extend([
            acknowledged(seen.edits),
            tighter_objective_kept(seen, tightened, allowance),
            kept_meanwhile(seen, tightened),
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
    let (p50, p90) = (
        seen.setup.types[0].slo_p50_ms,
        seen.setup.types[0].slo_p90_ms,
    );
    Claim {
        text: format!(
            "With Headgate every type that isn't starved keeps p50 ≤ {p50:.0} ms and p90 ≤ {p90:.0} ms"
        ),
        seen: served().count() >= 2 && served().all(|(_, totals)| totals.inside()),
        evidence: format!("p50/p90: {}", evidence.join(", ")),
    }
}

fn slots_bounded(seen: &Seen<'_>) -> Claim {
    Claim {
        text: format!(
            "Never more than P = {} requests in the backend",
            seen.setup.parallelism
        ),
        seen: seen.with.max_in_flight <= seen.setup.parallelism,
        evidence: format!(
            "at most {}; without Headgate {}",
            seen.with.max_in_flight, seen.without.max_in_flight
        ),
    }
}

fn goodput(seen: &Seen<'_>) -> Claim {
    let (before, after) = (seen.without.goodput_rps, seen.with.goodput_rps);
    Claim {
        text: format!(
            "More requests than the backend's capacity, and at least {:.0}% of the ideal, are answered inside their p90 objective",
            OF_IDEAL * 100.0
        ),
        seen: after > seen.setup.capacity_rps
            && after >= OF_IDEAL * seen.setup.ideal_rps
            && after > before,
        evidence: format!(
            "{after:.0}/s = {:.2}× of capacity, {:.0}% of the ideal; without Headgate {before:.0}/s",
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

/// The queue must have been longer than the new objective allows, or nothing would be shown.
fn tighter_objective_kept(seen: &Seen<'_>, edit: &Edit, next: &Edit) -> Claim {
    let (from, to) = (after(edit) + IN_FORCE, after(next));
    let span = to.saturating_sub(from);
    let mut evidence = Vec::new();
    let (mut inside, mut was_outside) = (true, false);
    for (kind, query) in seen.tightened.iter().enumerate() {
        let before = totals(
            seen.samples,
            kind,
            query,
            after(edit).saturating_sub(span),
            after(edit),
        );
        let now = totals(seen.samples, kind, query, from, to);
        if now.answered < ENOUGH {
            continue;
        }
        let (Some(before), Some(now)) = (before.p50_ms, now.p50_ms) else {
            continue;
        };
        let objective = query.p50.as_secs_f64() * 1e3;
        inside &= now <= objective;
        was_outside |= before > objective;
        evidence.push(format!("{} {before:.0} → {now:.0} ms", query.name));
    }
    Claim {
        text: format!(
            "The tightened objective is kept: p50 ≤ {:?}",
            seen.tightened[0].p50
        ),
        seen: inside && was_outside && !evidence.is_empty(),
        evidence: format!("p50: {}", evidence.join(", ")),
    }
}

/// Not by the share of the costliest type that passes meanwhile: its median is near the tightened objective, so that share
/// depends on how the last fifty of its service times happened to fall.
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
        text: "The edit disturbs nobody: in the second after it every type that isn't starved keeps the objectives from before"
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
    // The share of a finite number of requests scatters around the allowance: two standard deviations are granted.
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

/// From the edit to the end of the first window in which the median of the type that fills the queue, the one with the
/// most work that isn't starved, is inside the new objective, ms.
pub(super) fn median_inside_after(
    samples: &[Sample],
    edit: &Edit,
    tightened: &[QueryType],
) -> Option<f64> {
    let costliest = costliest(tightened);
    let work = |kind: usize| tightened[kind].share * tightened[kind].mean.as_secs_f64();
    let kind = (0..tightened.len())
        .filter(|&kind| kind != costliest)
        .max_by(|&a, &b| work(a).total_cmp(&work(b)))?;
    let inside = |from: Duration| {
        let now = totals(samples, kind, &tightened[kind], from, from + WINDOW);
        now.answered >= ENOUGH_IN_WINDOW
            && now
                .p50_ms
                .is_some_and(|ms| ms <= tightened[kind].p50.as_secs_f64() * 1e3)
    };
    let step = Duration::from_millis(10);
    let ends = (0..500)
        .map(|i| step * i)
        .find(|&start| inside(after(edit) + start));
    ends.map(|start| (start + WINDOW).as_secs_f64() * 1e3)
}

fn costliest(mix: &[QueryType]) -> usize {
    (0..mix.len())
        .max_by_key(|&kind| mix[kind].mean)
        .unwrap_or_default()
}

/// From the edit to the first answer to a request of the costliest type, which was starved before, ms.
pub(super) fn starved_answered_after(
    samples: &[Sample],
    edit: &Edit,
    mix: &[QueryType],
) -> Option<f64> {
    let costliest = costliest(mix);
    let first = samples
        .iter()
        .find(|s| s.kind == costliest && s.at >= after(edit) && s.ended == Ended::Ok)?;
    Some((first.at + first.latency - after(edit)).as_secs_f64() * 1e3)
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
