//! Configurations for filters of the previous minor version.
//!
//! A filter refuses a configuration with an unknown field, and keeps its last configuration with
//! its slots. A proxy's own module may be older than the operator. Then one new field in a policy
//! would keep all later edits and changes of slots from that proxy. So new fields that only add
//! refusals, refine measurements or divert refused requests are left out, because the rest of the
//! policy means the same without them. VERSIONING.md lists them. Other new fields, such as another
//! order of the queue, aren't left out, because they change the meaning of the policy.

use headgate_core::config::{
    FilterConfig, ResponseTimeControllerConfig as Control, StageConfig, StrategyConfig,
};

/// Returns `config` without the new fields that can be left out. `None` if it has none of them.
pub(crate) fn without_new_fields(config: &FilterConfig) -> Option<FilterConfig> {
    let mut older = config.clone();
    older.stages.iter_mut().for_each(strip);
    if let Some(outbound) = &mut older.outbound {
        outbound.class_admission.clear();
        outbound.smoothing = None;
        outbound.service_smoothing.clear();
    }
    if older == *config {
        return None;
    }
    older.revision.push_str("-older");
    Some(older)
}

fn strip(stage: &mut StageConfig) {
    stage.errors = Default::default();
    stage.retries = None;
    stage.class_admission = None;
    stage.tokens = None;
    if let Some(workflows) = &mut stage.workflows {
        let named = workflows.workflows.values_mut();
        named.for_each(|workflow| workflow.service_quantiles.clear());
    }
    for of_type in &mut stage.types {
        of_type.value = 1.0;
        of_type.cost = None;
        of_type.tpot.clear();
        of_type.on_refusal.clear();
    }
    for class in &mut stage.classes {
        class.value = 1.0;
    }
    match &mut stage.strategy {
        StrategyConfig::Bouncer {
            shed_by_value,
            capacity,
            ..
        } => {
            *shed_by_value = false;
            *capacity = None;
        }
        StrategyConfig::ResponseTimeController(control) => require_increase(control),
        _ => {}
    }
}

/// If `increase` isn't set, sets it to SEDA's value, because the previous version requires it. Then
/// also replaces the defaults for an absent `increase` by SEDA's values.
fn require_increase(control: &mut Control) {
    if control.increase.is_some() {
        return;
    }
    let from = Control::adaptive(control.scope, Vec::new());
    let to = Control::figure_4(control.scope, Vec::new());
    control.increase = to.increase;
    if control.requests == from.requests {
        control.requests = to.requests;
    }
    for (value, from, to) in [
        (&mut control.smoothing, from.smoothing, to.smoothing),
        (
            &mut control.increase_below,
            from.increase_below,
            to.increase_below,
        ),
        (&mut control.max_rate, from.max_rate, to.max_rate),
    ] {
        if *value == from {
            *value = to;
        }
    }
    // If other settings aren't defaults, SEDA's values may be out of bounds.
    let most = control.increase_offset.min(control.decrease_above);
    control.increase_below = control.increase_below.min(most);
    control.max_rate = control.max_rate.max(control.min_rate);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use headgate_core::config::{ControlScope, ResponseTimeControllerConfig};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn without_an_increase_a_response_time_controller_gets_that_of_the_version_before() {
        let mut config = FilterConfig::from_json(BEFORE.as_bytes()).unwrap();
        let of = ResponseTimeControllerConfig::adaptive(ControlScope::Type, vec![vec![500_000]]);
        let given = ResponseTimeControllerConfig {
            requests: 30,
            max_rate: 100.0,
            ..of
        };
        config.stages[0].strategy = StrategyConfig::ResponseTimeController(given.clone());
        let older = without_new_fields(&config).unwrap();
        let before = ResponseTimeControllerConfig {
            requests: given.requests,
            max_rate: given.max_rate,
            ..ResponseTimeControllerConfig::figure_4(given.scope, given.targets_us)
        };
        let before = StrategyConfig::ResponseTimeController(before);
        assert_eq!(older.stages[0].strategy, before);
    }

    /// A configuration with all fields of the previous version.
    const BEFORE: &str = include_str!("../../../filter/config/tests/config_format/0.1.json");

    fn fields(of: &Value, at: &str, all: &mut BTreeSet<String>) {
        match of {
            Value::Object(of) => {
                for (name, value) in of {
                    let at = format!("{at}.{name}");
                    fields(value, &at, all);
                    all.insert(at);
                }
            }
            Value::Array(of) => of.iter().for_each(|value| fields(value, at, all)),
            _ => {}
        }
    }

    fn read(config: &Value) -> FilterConfig {
        FilterConfig::from_json(config.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_configuration_without_new_fields_stays() {
        let before = FilterConfig::from_json(BEFORE.as_bytes()).unwrap();
        assert_eq!(without_new_fields(&before), None);
    }

    #[test]
    fn fields_unknown_to_the_previous_version_are_left_out() {
        let config = read(&json!({"revision": "r", "stages": [{
            "policy": "shop/search", "parallelism": 7,
            "tokens": {"budget": 100.0, "output": {"otherwise": 10}, "per_request": 50},
            "queue": {"max_length": 10, "timeout_us": 1_000_000},
            "strategy": {"type": "Bouncer", "shed_by_value": true, "capacity": {
                "max_utilization": 0.9, "window_us": 1_000_000, "step_us": 100_000}},
            "errors": {"http": [[500, 503]], "grpc": [14]},
            "retries": {"header": "x-retry"},
            "class_admission": {"receives": true},
            "workflows": {
                "identify": [{"type": "Type"}], "quantile": 0.5,
                "interval_us": 100_000, "rate_ttl_us": 1_000_000,
                "sharing": {"type": "StaticGuarantees"},
                "max_workflows": 100, "max_queue_length": 100,
                "workflows": {"checkout": {"service_quantiles": {"extent": 1.0}}}},
            "classes": [
                {"name": "high", "value": 2.0, "matches": [
                    {"headers": [{"name": "x-high", "type": "Exact", "value": "1"}]}]},
                {"name": "low"}],
            "types": [{"name": "default", "value": 3.0,
                "cost": {"size": {"header": "content-length"}},
                "tpot": [{"percentile": 90.0, "objective_us": 40_000}],
                "on_refusal": [{"name": "x-model", "value": "small"}],
                "slo": [{"percentile": 50.0, "objective_us": 18_000}]}],
        }]}));
        let older = without_new_fields(&config).unwrap();
        assert_eq!(older.stages[0].parallelism, 7);
        assert_ne!(older.revision, config.revision, "encoded once for each");
        let (mut known, mut has) = (BTreeSet::new(), BTreeSet::new());
        fields(&serde_json::from_str(BEFORE).unwrap(), "", &mut known);
        fields(&serde_json::to_value(&older).unwrap(), "", &mut has);
        // Version 0.1 also wrote this default of the strategy.
        known.insert(".stages.strategy.logic".to_owned());
        let unknown: Vec<&String> = has.difference(&known).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
