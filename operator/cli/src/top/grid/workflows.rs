//! Policies and their workflows.

use ratatui::style::Style;

use super::{
    BAD, Cell, Column, Group, Row, WARNING, group_name, left, longest_wait, plain, refused_share,
    rejected_for, right, row, toned, unwanted,
};
use crate::top::format::{count, rate, time, times};
use crate::top::view::{PolicyRow, WorkflowRow, Workflows, sum};

pub(super) const COLUMNS: &[Column] = &[
    left("POLICY / WORKFLOW", 0),
    right("DEMAND/s", 0),
    right("RATE/s", 0),
    right("ADMIT/s", 2),
    right("REFUSE/s", 0),
    right("%", 3),
    left("REASONS", 6),
    right("HELD", 4),
    right("WAIT p50", 5),
    right("WAIT p99", 3),
    right("COMPLETION", 2),
    left("BOTTLENECK", 1),
];

/// Returns the rows of a policy and its workflows, if it has them.
pub(super) fn rows(policy: &PolicyRow) -> Option<Group> {
    let all = policy.workflows.as_ref()?;
    let members: Vec<Row> = all.rows.iter().map(workflow).collect();
    let total = |part: fn(&WorkflowRow) -> Option<f64>| sum(all.rows.iter().map(part));
    let (demand, refused) = (total(|w| w.demand_rate), total(|w| w.refused_rate));
    let offered = total(|w| w.offered_rate);
    let [refused_cell, share] = unwanted(refused, offered);
    let cells = vec![
        group_name(policy),
        plain(rate(demand)),
        plain(""),
        plain(rate(total(|w| w.admitted_rate))),
        refused_cell,
        share,
        plain(""),
        plain(count(sum(all.rows.iter().map(|w| w.queue_length)))),
        plain(""),
        plain(""),
        plain(""),
        remarks(all),
    ];
    let ranks = [
        all.rows.iter().map(|w| w.hurt).sum(),
        demand.unwrap_or(0.0),
        refused_share(refused, offered),
        longest_wait(&members),
    ];
    Some((row(&policy.policy, cells, ranks), members))
}

/// Returns the problems with the workflows of a policy.
fn remarks(all: &Workflows) -> Cell {
    let mut parts = Vec::new();
    for (value, what) in [
        (all.folded_rate, "folded"),
        (all.rates_refused_rate, "rates refused"),
        (all.rates_expired_rate, "rates expired"),
    ] {
        if value.is_some_and(|v| v > 0.0) {
            parts.push(format!("{what} {}/s", rate(value)));
        }
    }
    let style = match all.rates_refused_rate {
        Some(v) if v > 0.0 => BAD,
        _ => WARNING,
    };
    toned(parts.join(", "), style)
}

/// Returns the reasons of refusals.
fn reasons(w: &WorkflowRow) -> Cell {
    let mut causes = Vec::new();
    for (value, what) in [(w.rate_limited_rate, "rate"), (w.deadline_rate, "deadline")] {
        if value.is_some_and(|v| v > 0.0) {
            causes.push(format!("{what} {}", rate(value)));
        }
    }
    rejected_for(causes.join(", "), w.refused_rate, w.would_refuse_rate)
}

fn workflow(w: &WorkflowRow) -> Row {
    let refused = w.refused_rate;
    let [refused_cell, share] = unwanted(refused, w.offered_rate);
    let (p50, p99) = times(w.wait_ms);
    let limit = match w.limit_rate {
        Some(limit) => rate(Some(limit)),
        None => "no limit".to_owned(),
    };
    // The demand exceeds the rate.
    let short = w.demand_rate.zip(w.limit_rate).is_some_and(|(d, l)| d > l);
    let places: Vec<String> = match &w.bottlenecks[..] {
        [only] => vec![only.place.clone()],
        several => several
            .iter()
            .map(|b| format!("{} ({})", b.place, b.proxies))
            .collect(),
    };
    let style = if short { WARNING } else { Style::new() };
    let cells = vec![
        plain(format!("  {}", w.workflow)),
        toned(rate(w.demand_rate), style),
        toned(limit, style),
        plain(rate(w.admitted_rate)),
        refused_cell,
        share,
        reasons(w),
        plain(count(w.queue_length)),
        plain(p50),
        plain(p99),
        plain(time(w.completion_ms)),
        toned(places.join(", "), style),
    ];
    let ranks = [
        w.hurt,
        w.demand_rate.unwrap_or(0.0),
        refused_share(refused, w.offered_rate),
        w.wait_ms.map_or(0.0, |p| p.p99),
    ];
    row(&w.workflow, cells, ranks)
}
