//! The proxies themselves.

use std::time::Instant;

use super::build::{add, add_count, change, in_force, policies, tidy};
use super::{ProxyRow, State};
use crate::top::fleet::{Fleet, Reach};
use headgate_controller::xds::module::Kind;

/// Returns a row for each proxy, by place.
pub(super) fn rows(fleet: &Fleet, now: Instant) -> Vec<ProxyRow> {
    let row = |name: &String| {
        let proxy = fleet.proxies.get(name)?;
        let mut row = ProxyRow {
            proxy: name.clone(),
            node: proxy.about.node.clone(),
            version: proxy.about.version.clone(),
            restarts: proxy.history.restarts(),
            ..ProxyRow::default()
        };
        match &proxy.reach {
            Reach::Asked => row.state = State::Asked,
            Reach::Silent { since, why } => {
                row.state = State::Unreachable;
                row.problem = Some(why.clone());
                let silent = now.saturating_duration_since(*since);
                row.silent_seconds = Some(tidy(silent.as_secs_f64()));
            }
            Reach::Answers => {
                row.state = State::Answers;
                row.uptime_seconds = proxy
                    .history
                    .latest()
                    .and_then(|s| s.uptime)
                    .map(|u| u.as_secs());
            }
        }
        let span = proxy.history.span().filter(|_| row.state == State::Answers);
        if let Some(span) = span {
            let kind = match span.after.is_native {
                true => Kind::Native,
                false => Kind::Wasm,
            };
            row.filter = (!span.after.policies.is_empty()).then(|| kind.name());
            for (policy, _) in in_force(&span) {
                row.policies.push(policy.clone());
                if let Some(own) = change(&span, policy, |p| Some(&p.own)) {
                    add_count(&mut row.slots, own.gauge("slots"));
                    add_count(&mut row.slots_in_use, own.gauge("slots_in_use"));
                }
            }
            for policy in policies(fleet, Some(name)).policies {
                add(&mut row.arrival_rate, policy.traffic.arrival_rate);
                add(&mut row.refused_rate, policy.traffic.refused_rate);
                for workflow in policy.workflows.iter().flat_map(|w| &w.rows) {
                    add(&mut row.refused_rate, workflow.refused_rate);
                }
                row.hurt += policy.hurt;
            }
            row.hurt = tidy(row.hurt);
        }
        Some(row)
    };
    fleet.proxies.keys().filter_map(row).collect()
}
