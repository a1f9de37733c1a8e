//! Policies and their types.

use super::{
    BAD, Cell, Column, FAINT, GOOD, Group, Row, group_name, left, longest_wait, plain,
    refused_share, rejected_for, right, row, slots, toned, unwanted,
};
use crate::top::format::{UNKNOWN, count, rate, share, time, times};
use crate::top::view::{Objective, PolicyRow, Traffic, TypeRow};

pub(super) const COLUMNS: &[Column] = &[
    left("POLICY / TYPE", 0),
    right("ARRIVE/s", 0),
    right("ACCEPT/s", 3),
    right("REFUSE/s", 0),
    right("%", 1),
    left("REASONS", 6),
    right("SLOTS", 1),
    right("QUEUE", 2),
    right("WAIT p50", 5),
    right("WAIT p99", 2),
    right("RESPONSE p99", 7),
    left("OBJECTIVE", 0),
];

/// Returns the rows of a policy and its types.
pub(super) fn rows(policy: &PolicyRow) -> Option<Group> {
    let cells = |name: Cell, traffic: &Traffic| {
        let [refused, share] = unwanted(traffic.refused_rate, traffic.arrival_rate);
        vec![
            name,
            plain(rate(traffic.arrival_rate)),
            plain(rate(traffic.accepted_rate)),
            refused,
            share,
            reasons(traffic),
        ]
    };
    let member = |t: &TypeRow| {
        let mut cells = cells(plain(format!("  {}", t.kind)), &t.traffic);
        let (p50, p99) = times(t.queue_wait_ms);
        cells.extend([
            plain(""),
            plain(""),
            plain(p50),
            plain(p99),
            plain(time(t.response_time_ms.map(|p| p.p99))),
            objective(&t.objectives),
        ]);
        let wait = t.queue_wait_ms.map_or(0.0, |p| p.p99);
        row(&t.kind, cells, ranks(t.hurt, &t.traffic, wait))
    };
    let members: Vec<Row> = policy.types.iter().map(member).collect();
    let traffic = &policy.traffic;
    let mut own = cells(group_name(policy), traffic);
    own.extend([
        slots(policy.slots_in_use, policy.slots),
        plain(count(policy.queue_length)),
        plain(""),
        plain(""),
        plain(""),
        match (policy.unmanaged_rate, policy.floors_over_capacity) {
            (Some(v), _) if v > 0.0 => toned(format!("{} unchecked/s", rate(Some(v))), BAD),
            (_, Some(1..)) => toned("floors over capacity".to_owned(), BAD),
            _ => plain(""),
        },
    ]);
    let ranks = ranks(policy.hurt, traffic, longest_wait(&members));
    Some((row(&policy.policy, own, ranks), members))
}

fn ranks(hurt: f64, traffic: &Traffic, wait: f64) -> [f64; 4] {
    let Traffic {
        arrival_rate: arrivals,
        refused_rate: refused,
        ..
    } = *traffic;
    [
        hurt,
        arrivals.unwrap_or(0.0),
        refused_share(refused, arrivals),
        wait,
    ]
}

/// Returns the reasons by weight.
fn reasons(traffic: &Traffic) -> Cell {
    let mut all: Vec<(&String, &f64)> = traffic.refused_by_reason.iter().collect();
    all.sort_by(|a, b| b.1.total_cmp(a.1));
    let one = |(reason, value): (&String, &f64)| format!("{reason} {}", rate(Some(*value)));
    let text = all.into_iter().map(one).collect::<Vec<_>>().join(", ");
    rejected_for(text, traffic.refused_rate, traffic.would_refuse_rate)
}

/// Returns the objective that is missed by most, or met by least.
pub(super) fn objective(objectives: &[Objective]) -> Cell {
    let margin = |o: &&Objective| o.attainment.zip(o.target).map(|(a, t)| a - t);
    let known = objectives.iter().filter(|o| margin(o).is_some());
    let tightest = known.min_by(|a, b| {
        let key = |o| margin(o).unwrap_or(f64::INFINITY);
        key(a).total_cmp(&key(b))
    });
    let Some(o) = tightest else {
        return toned(UNKNOWN, FAINT);
    };
    let (attained, target) = (o.attainment.unwrap_or(0.0), o.target.unwrap_or(0.0));
    let missed = o.shortfall() > 0.0;
    let sign = if missed { "<" } else { ">=" };
    let name = o.objective.replace('_', ".");
    let limit = o
        .response_time_ms
        .map_or_else(String::new, |ms| format!(" {}", time(Some(ms))));
    toned(
        format!(
            "{name}{limit}: {} {sign} {}",
            share(attained),
            share(target)
        ),
        if missed { BAD } else { GOOD },
    )
}
