//! Writes policies' objectives in the formats of OpenSLO and Sloth.

use std::collections::BTreeSet;

use headgate_api::Duration;
use headgate_api::validate::ValidPolicy;
use headgate_core::config::{Measure, Objective, TypeConfig};
use headgate_core::stats::{prefix, tpot_name};
use headgate_strategies::reason::percentile_name;
use serde_json::{Value, json};

use super::{FIELD, OPENSLO, RESPONSE_TIME, TYPE};
use crate::draft::free_name;

/// The rolling window in an OpenSLO document. Sloth's window is an option of Sloth.
const WINDOW: &str = "4w";

/// An objective of a type, with its metrics.
struct Tracked<'a> {
    kind: &'a TypeConfig,
    percentile: f64,
    response_time: Duration,
    /// The field of the type that holds the objective.
    field: &'static str,
    /// The name, such as `fast-p90`, unique in the policy.
    name: String,
    /// The labels of the type's counters.
    labels: String,
    /// The label of the objective.
    objective: String,
}

impl Tracked<'_> {
    /// Returns the selector of the responses within the objective.
    fn good(&self) -> String {
        format!(
            "headgate_rq_slo_met_objective{{{},headgate_objective=\"{}\"}}",
            self.labels, self.objective
        )
    }

    /// Returns the selector of all measured responses.
    fn total(&self) -> String {
        format!("headgate_rq_completed{{{}}}", self.labels)
    }

    fn description(&self) -> String {
        let of = match self.field {
            "ttft" => " to the first byte, from the arrival at the proxy",
            "tpot" => " per output token",
            _ => ", from the arrival at the proxy",
        };
        format!(
            "{}% of the responses of type {} within {}{of}",
            self.percentile, self.kind.name, self.response_time
        )
    }
}

fn tracked(policy: &ValidPolicy) -> Vec<Tracked<'_>> {
    let stats = prefix(&policy.full_name());
    // The policy is the last part of the prefix, because its name in stats has no dots.
    let shown = stats.rsplit_once('.').map_or("", |(_, name)| name);
    let mut names = BTreeSet::new();
    let types = policy.stage.types.iter();
    let all = types.flat_map(|kind| {
        let field = match policy.stage.measure_of(kind) {
            Measure::LastByte => "slo",
            Measure::FirstByte => "ttft",
        };
        let named = move |o: &'_ Objective| (kind, *o, percentile_name(o.percentile), field);
        let token = move |o: &'_ Objective| (kind, *o, tpot_name(o.percentile), "tpot");
        kind.slo
            .iter()
            .map(named)
            .chain(kind.tpot.iter().map(token))
    });
    all.map(|(kind, objective, named, field)| Tracked {
        kind,
        percentile: objective.percentile,
        response_time: Duration::of_micros(objective.objective_us),
        field,
        name: free_name([&*kind.name, &*named], &mut names),
        labels: format!(
            "headgate_policy=\"{shown}\",headgate_type=\"{}\"",
            kind.name
        ),
        objective: named,
    })
    .collect()
}

/// Returns a document of kind SLO for each objective. An SLO has only one indicator, and each
/// objective counts its own responses.
pub(super) fn openslo(policy: &ValidPolicy) -> Vec<Value> {
    let mut names = BTreeSet::new();
    let document = |slo: Tracked<'_>| {
        let parts = [&*policy.namespace, &*policy.name, &*slo.name];
        let name = free_name(parts, &mut names);
        let source = |query: &str| {
            json!({"metricSource": {
                "type": "Prometheus",
                "spec": {"query": format!("sum({query})")},
            }})
        };
        json!({
            "apiVersion": OPENSLO,
            "kind": "SLO",
            "metadata": {
                "name": name,
                "displayName": format!("{}: {}", policy.full_name(), slo.name),
                "annotations": {
                    TYPE: slo.kind.name,
                    RESPONSE_TIME: slo.response_time,
                    FIELD: slo.field,
                },
            },
            "spec": {
                "description": slo.description(),
                "service": free_name([&*policy.name], &mut BTreeSet::new()),
                "indicator": {
                    "metadata": {"name": name},
                    "spec": {"ratioMetric": {
                        "counter": true,
                        "good": source(&slo.good()),
                        "total": source(&slo.total()),
                    }},
                },
                "timeWindow": [{"duration": WINDOW, "isRolling": true}],
                "budgetingMethod": "Occurrences",
                // The target is rounded, because 99.9 / 100 is slightly more than 0.999.
                "objectives": [{"target": (slo.percentile * 1e4).round() / 1e6}],
            },
        })
    };
    tracked(policy).into_iter().map(document).collect()
}

/// Returns a document with all objectives of a policy, or `None` if the policy has no objectives.
pub(super) fn sloth(policy: &ValidPolicy) -> Option<Value> {
    let service = [&*policy.namespace, &*policy.name];
    let slo = |slo: Tracked<'_>| {
        let rate = |selector: &str| format!("sum(rate({selector}[{{{{.window}}}}]))");
        json!({
            "name": slo.name,
            "description": slo.description(),
            "objective": slo.percentile,
            "labels": {"headgate_policy": policy.full_name(), "headgate_type": slo.kind.name},
            "sli": {"events": {
                "error_query": format!("{} - {}", rate(&slo.total()), rate(&slo.good())),
                "total_query": rate(&slo.total()),
            }},
            "alerting": {"name": "HeadgateErrorBudgetBurns"},
        })
    };
    let slos: Vec<Value> = tracked(policy).into_iter().map(slo).collect();
    (!slos.is_empty()).then(|| {
        json!({
            "version": "prometheus/v1",
            "service": free_name(service, &mut BTreeSet::new()),
            "slos": slos,
        })
    })
}
