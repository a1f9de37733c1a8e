//! Adds up a workflow over the processes that enforce its policy.

use std::collections::BTreeMap;

use super::build::{Change, add, add_count, percentiles, tidy};
use super::{Bottleneck, WorkflowRow};
use crate::top::histogram::Spread;

/// Adds up a workflow at all processes.
#[derive(Default)]
pub(super) struct WorkflowSums {
    row: WorkflowRow,
    wait: Spread,
    /// Whether some process has no limit.
    unlimited: bool,
    /// Completion times and their weights.
    completion: (f64, f64),
    bottlenecks: BTreeMap<String, usize>,
}

impl WorkflowSums {
    pub(super) fn add(&mut self, change: &Change<'_>, services: &BTreeMap<u64, String>) {
        let row = &mut self.row;
        let millihertz = |name| change.gauge(name).map(|mhz: u64| mhz as f64 / 1e3);
        add(&mut row.demand_rate, millihertz("demand_mhz"));
        let in_force = change.gauge("limited") != Some(0);
        if in_force {
            add(&mut row.limit_rate, millihertz("rate_mhz"));
        } else {
            self.unlimited = true;
        }
        let local = millihertz("local_rate_mhz").filter(|_| in_force);
        add(&mut row.local_limit_rate, local);
        add(&mut row.offered_rate, change.rate("rq_offered"));
        add(&mut row.admitted_rate, change.rate("rq_admitted"));
        let (limited, late) = (change.rate("rq_rate_limited"), change.rate("rq_deadline"));
        let refused = change.rate("rq_rejected_enforced");
        let would_refuse = limited.zip(late).zip(refused);
        let would_refuse = would_refuse.map(|((a, b), done)| (a + b - done).max(0.0));
        add(&mut row.rate_limited_rate, limited);
        add(&mut row.deadline_rate, late);
        add(&mut row.refused_rate, refused);
        add(&mut row.would_refuse_rate, would_refuse);
        add(&mut row.completed_rate, change.rate("rq_completed"));
        add(&mut row.calls_rate, change.rate("calls"));
        add_count(&mut row.queue_length, change.gauge("queue_length"));
        self.wait
            .add(&change.spread("limiter_wait_us").unwrap_or_default());
        if let Some(us) = change.gauge("completion_us").filter(|us| *us > 0) {
            // Nearly 0 without completed requests, so that a mean exists even if no process
            // completed any.
            let weight = change.rate("rq_completed").unwrap_or(0.0) + 1e-9;
            self.completion.0 += us as f64 / 1e3 * weight;
            self.completion.1 += weight;
        }
        if let Some(at) = change.gauge("bottleneck").filter(|_| in_force) {
            let place = match (at, services.get(&at)) {
                (0, _) => "local".to_owned(),
                (_, Some(service)) => service.clone(),
                // Services beyond the cap have no names of their own.
                (1, None) => "_other".to_owned(),
                (_, None) => format!("service {at}"),
            };
            *self.bottlenecks.entry(place).or_default() += 1;
        }
    }

    pub(super) fn finish(self, workflow: String) -> WorkflowRow {
        let mut row = self.row;
        row.workflow = workflow;
        if self.unlimited {
            row.limit_rate = None;
            row.local_limit_rate = None;
        }
        row.hurt = row.refused_rate.unwrap_or(0.0);
        row.wait_ms = percentiles(&self.wait);
        let (sum, weight) = self.completion;
        row.completion_ms = (weight > 0.0).then(|| tidy(sum / weight));
        let places = self.bottlenecks.into_iter();
        row.bottlenecks = places
            .map(|(place, proxies)| Bottleneck { place, proxies })
            .collect();
        row.bottlenecks
            .sort_by_key(|b| std::cmp::Reverse(b.proxies));
        row
    }
}
