//! What a cluster says of its policies, as tables for people.

use std::time::SystemTime;

use super::view::{Condition, OperatorView, Policy, Proxy, View, Workload};
use super::{dash, proxies};
use crate::cli::table::{Table, one_line};
use crate::xds::timestamp::age;

/// Tables, and a line for everything that is not as it should be.
#[must_use]
pub fn render(view: &View, now: SystemTime) -> String {
    let mut parts = vec![policies(&view.policies, now)];
    let contested = |w: &&Workload| !w.out_of_force.is_empty();
    if view.workloads.iter().any(|w| contested(&w)) {
        parts.push(workloads(view.workloads.iter().filter(contested)));
    }
    if view.operators.iter().any(|o| o.problem.is_none()) {
        let namespaces = view
            .proxies
            .iter()
            .map(|p| (&p.report, p.report.namespace.as_deref().unwrap_or_default()));
        parts.push(proxies("NAMESPACE", namespaces));
    }
    let remarks = remarks(view);
    if !remarks.is_empty() {
        parts.push(remarks.join("\n") + "\n");
    }
    parts.join("\n")
}

fn policies(policies: &[Policy], now: SystemTime) -> String {
    let mut table = Table::new([
        "POLICY",
        "TARGET",
        "MODE",
        "ACCEPTED",
        "PROGRAMMED",
        "PROXIES",
        "AGE",
    ]);
    for policy in policies {
        for (i, target) in policy.targets.iter().enumerate() {
            // A policy's own columns stand once.
            let once = |text: String| if i == 0 { text } else { String::new() };
            let share = policy.proxies.map(|s| format!("{}/{}", s.in_sync, s.total));
            let created = policy
                .created_at
                .map(|at| age(now.duration_since(at).unwrap_or_default()));
            table.row([
                once(policy.name.clone()),
                target.target.clone(),
                once(policy.mode.clone()),
                condition(&target.accepted, "Accepted"),
                condition(&target.programmed, "Programmed"),
                once(dash(&share.unwrap_or_default())),
                once(dash(&created.unwrap_or_default())),
            ]);
        }
    }
    table.or("No policies.\n")
}

/// Only targets that several policies want.
fn workloads<'a>(workloads: impl Iterator<Item = &'a Workload>) -> String {
    let mut table = Table::new(["WORKLOAD", "IN FORCE", "NOT IN FORCE"]);
    for workload in workloads {
        let losers = workload.out_of_force.iter();
        let losers: Vec<String> = losers
            .map(|l| format!("{} ({})", l.policy, l.reason))
            .collect();
        table.row([
            workload.target.clone(),
            dash(&workload.in_force.join(", ")),
            losers.join(", "),
        ]);
    }
    table.or("")
}

fn condition(condition: &Condition, expected: &str) -> String {
    match condition.reason == expected {
        true => condition.status.clone(),
        false => format!("{} ({})", condition.status, condition.reason),
    }
}

fn remarks(view: &View) -> Vec<String> {
    let mut lines = Vec::new();
    for policy in &view.policies {
        for target in &policy.targets {
            let name = match policy.targets.len() {
                1 => policy.name.clone(),
                _ => format!("{} at {}", policy.name, target.target),
            };
            let (accepted, programmed) = (&target.accepted, &target.programmed);
            if !accepted.is_true() {
                lines.push(format!("{name}: {}: {}", accepted.reason, accepted.message));
            }
            if !programmed.is_true() && programmed.reason != accepted.reason {
                lines.push(format!(
                    "{name}: {}: {}",
                    programmed.reason, programmed.message
                ));
            }
        }
    }
    for Proxy { report: p, .. } in &view.proxies {
        lines.extend(super::proxy_remarks(p));
    }
    for OperatorView { pod, problem, .. } in &view.operators {
        lines.extend(problem.as_ref().map(|why| format!("operator {pod}: {why}")));
    }
    let mut modules: Vec<&str> = view
        .operators
        .iter()
        .filter_map(|o| o.module.as_deref())
        .collect();
    modules.sort_unstable();
    modules.dedup();
    if modules.len() > 1 {
        lines.push(format!(
            "operators give out different modules: {}; a roll-out is under way, or hangs",
            modules.join(", ")
        ));
    }
    lines.iter().map(|line| one_line(line)).collect()
}
