//! Adds up a type over the proxies that enforce its policy.

use std::collections::BTreeMap;

use super::build::{Change, add, add_count, percentiles, tidy};
use super::{Objective, Traffic, TypeRow};
use crate::top::histogram::Spread;

const REASONS: &str = "rq_rejected.reason.";
const IN_TIME: &str = "rq_slo_met.objective.";
const PROMISED_TIME: &str = "slo_response_time_us.objective.";
const PROMISED_SHARE: &str = "slo_quantile_ppm.objective.";

impl Traffic {
    pub(super) fn add(&mut self, other: &Self) {
        add(&mut self.arrival_rate, other.arrival_rate);
        add(&mut self.accepted_rate, other.accepted_rate);
        add(&mut self.refused_rate, other.refused_rate);
        add(&mut self.would_refuse_rate, other.would_refuse_rate);
        add(&mut self.completed_rate, other.completed_rate);
        for (reason, rate) in &other.refused_by_reason {
            let sum = self.refused_by_reason.entry(reason.clone()).or_default();
            *sum = tidy(*sum + rate);
        }
    }
}

/// Adds up a type at all proxies.
#[derive(Default)]
pub(super) struct TypeSums {
    traffic: Traffic,
    queue_wait: Spread,
    response_time: Spread,
    completed: u64,
    objectives: BTreeMap<String, ObjectiveSums>,
}

#[derive(Default)]
struct ObjectiveSums {
    in_time: Option<u64>,
    time_us: u64,
    quantile_ppm: u64,
}

impl TypeSums {
    pub(super) fn add(&mut self, change: &Change<'_>) {
        let refused = change.rate("rq_rejected_enforced");
        let decided = change.rate("rq_rejected");
        let only_counted = decided
            .zip(refused)
            .map(|(all, done)| (all - done).max(0.0));
        let reasons = change.counts(REASONS).filter(|(_, count)| *count > 0);
        let reasons = reasons.map(|(name, n)| (name.to_owned(), n as f64 / change.seconds));
        self.traffic.add(&Traffic {
            arrival_rate: change.rate("rq_total"),
            accepted_rate: change.rate("rq_accepted"),
            refused_rate: refused,
            would_refuse_rate: only_counted,
            completed_rate: change.rate("rq_completed"),
            refused_by_reason: reasons.collect(),
        });
        self.completed += change.count("rq_completed").unwrap_or(0);
        for (name, sum) in [
            ("queue_wait_us", &mut self.queue_wait),
            ("response_time_us", &mut self.response_time),
        ] {
            sum.add(&change.spread(name).unwrap_or_default());
        }
        for (name, count) in change.counts(IN_TIME) {
            let objective = self.objectives.entry(name.to_owned()).or_default();
            add_count(&mut objective.in_time, Some(count));
        }
        // A removed objective has the value 0.
        for (name, us) in change.after.values(PROMISED_TIME).filter(|v| v.1 > 0) {
            let objective = self.objectives.entry(name.to_owned()).or_default();
            objective.time_us = objective.time_us.max(us);
        }
        for (name, ppm) in change.after.values(PROMISED_SHARE).filter(|v| v.1 > 0) {
            let objective = self.objectives.entry(name.to_owned()).or_default();
            objective.quantile_ppm = objective.quantile_ppm.max(ppm);
        }
    }

    pub(super) fn finish(self, kind: String) -> TypeRow {
        let completed = self.completed;
        let objectives: Vec<Objective> = self
            .objectives
            .into_iter()
            .filter(|(_, o)| o.quantile_ppm > 0 || o.time_us > 0)
            .map(|(objective, o)| {
                let in_time = o.in_time.filter(|_| completed > 0);
                // Counters are read one after the other: a response may be in one and not yet in
                // the other.
                let share = in_time.map(|n| (n as f64 / completed as f64).min(1.0));
                Objective {
                    objective,
                    response_time_ms: (o.time_us > 0).then(|| tidy(o.time_us as f64 / 1e3)),
                    target: (o.quantile_ppm > 0).then(|| o.quantile_ppm as f64 / 1e6),
                    attainment: share.map(tidy),
                }
            })
            .collect();
        let late = objectives.iter().map(Objective::shortfall);
        let late = late.fold(0.0, f64::max) * self.traffic.completed_rate.unwrap_or(0.0);
        let hurt = tidy(self.traffic.refused_rate.unwrap_or(0.0) + late);
        TypeRow {
            kind,
            traffic: self.traffic,
            queue_wait_ms: percentiles(&self.queue_wait),
            response_time_ms: percentiles(&self.response_time),
            objectives,
            hurt,
        }
    }
}
