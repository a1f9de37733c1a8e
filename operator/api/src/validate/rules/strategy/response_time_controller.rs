//! Settings of `ResponseTimeController`.

mod schema;
mod targets;

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::time::Duration as Span;

use headgate_core::config::{
    DegradationConfig, ResponseTimeControllerConfig, StageConfig, StrategyConfig,
};

use super::super::names::check_known;
use super::super::{At, HOUR, Real, SECOND, Time, Whole};
use crate::{
    AdmissionPolicySpec, ControlScopeType, DegradationSettings, ResponseTimeControllerSettings,
};

pub(super) use schema::schema;

const PERCENTILE: Real = Real {
    default: 90.0,
    bounds: (Excluded(0.0), Excluded(100.0)),
    right: "a percentile, above 0, below 100",
};
/// Figure 4's defaults, which apply with an `increase`, as do those of the next ones.
const SMOOTHING: Real = Real {
    default: 0.7,
    bounds: (Included(0.0), Excluded(1.0)),
    right: "the weight of the past, 0 or more, below 1",
};
const REQUESTS: Whole = Whole {
    default: 100,
    bounds: (1, 10_000),
};
const TIMEOUT: Time = Time {
    default: SECOND,
    bounds: (Span::from_millis(10), HOUR),
};
const INCREASE: Real = Real {
    default: 2.0,
    bounds: (Excluded(0.0), Included(1e6)),
    right: "requests/s, above 0, at most 1000000",
};
const DECREASE: Real = Real {
    default: 1.2,
    bounds: (Excluded(1.0), Included(1e6)),
    right: "a divisor, above 1, at most 1000000",
};
const LOWER_CLASS_DECREASE: Real = Real {
    default: 10.0,
    ..DECREASE
};
const LOWER_CLASS_PATIENCE: Whole = Whole {
    default: 20,
    bounds: (0, 1_000_000),
};
const DECREASE_ABOVE: Real = Real {
    default: 0.0,
    bounds: (Included(-1.0), Included(10.0)),
    right: "an error relative to the target, -1 to 10",
};
const INCREASE_OFFSET: Real = Real {
    default: -0.1,
    ..DECREASE_ABOVE
};
const MIN_RATE: Real = Real {
    default: 0.05,
    bounds: (Included(0.001), Included(1e6)),
    right: "requests/s, 0.001 to 1000000",
};
const MAX_RATE: Real = Real {
    default: 2000.0,
    ..MIN_RATE
};
const MIN_QUALITY: Real = Real {
    default: 0.1,
    bounds: (Excluded(0.0), Excluded(1.0)),
    right: "a share of full quality, above 0, below 1",
};
const QUALITY_INCREASE: Real = Real {
    default: 0.05,
    bounds: (Excluded(0.0), Included(1.0)),
    right: "a share of full quality, above 0, at most 1",
};
const WITHOUT_CLASSES: &str = "given without classes; leave it out or add spec.classes";
const WITH_POLICY: &str = "given with scope Policy; leave it out or use scope Type";
/// The ratio of a target to processing times that few services reach.
const FAR_BELOW: f64 = 10.0;
/// The most controllers, because the workers share their state.
const MAX_CONTROLLERS: usize = 256;

pub(super) fn config(spec: &AdmissionPolicySpec, at: &At<'_>) -> StrategyConfig {
    let given = spec.strategy.response_time_controller.clone();
    let given = given.unwrap_or_default();
    let percentile = at.field("percentile").real(given.percentile, &PERCENTILE);
    check_scope(spec, given.scope, at);
    check_classes(spec, &given, at);
    let scope = given.scope.into();
    let defaults = match given.increase {
        Some(_) => ResponseTimeControllerConfig::figure_4(scope, Vec::new()),
        None => ResponseTimeControllerConfig::adaptive(scope, Vec::new()),
    };
    let errors = errors(&given, defaults.increase_below, at);
    let rates = rates(&given, defaults.max_rate, at);
    StrategyConfig::ResponseTimeController(ResponseTimeControllerConfig {
        percentile,
        targets_us: targets::targets(spec, &given, percentile, at),
        scope,
        smoothing: at
            .field("smoothing")
            .real(given.smoothing.or(Some(defaults.smoothing)), &SMOOTHING),
        requests: at.field("requests").whole(
            given.requests.or(Some(i64::from(defaults.requests))),
            &REQUESTS,
        ),
        timeout_us: at.field("timeout").time(given.timeout.as_ref(), &TIMEOUT),
        increase_below: errors.increase_below,
        decrease_above: errors.decrease_above,
        increase: at.field("increase").given_real(given.increase, &INCREASE),
        decrease: at.field("decrease").real(given.decrease, &DECREASE),
        increase_offset: errors.increase_offset,
        min_rate: rates.0,
        max_rate: rates.1,
        lower_class_decrease: at
            .field("lowerClassDecrease")
            .real(given.lower_class_decrease, &LOWER_CLASS_DECREASE),
        lower_class_patience: at
            .field("lowerClassPatience")
            .whole(given.lower_class_patience, &LOWER_CLASS_PATIENCE),
        degradation: given
            .degradation
            .as_ref()
            .map(|d| degradation(d, &at.field("degradation"))),
    })
}

fn check_scope(spec: &AdmissionPolicySpec, scope: ControlScopeType, at: &At<'_>) {
    let (types, classes) = (spec.types.len(), spec.classes.len().max(1));
    if scope == ControlScopeType::Type && types * classes > MAX_CONTROLLERS {
        let right =
            format!("at most {MAX_CONTROLLERS} controllers; scope Policy has one for all types");
        at.field("scope").add(format!(
            "Type with {types} types and {classes} classes; {right}"
        ));
    }
}

/// Checks settings that only make a difference between classes, or between types of a class.
fn check_classes(spec: &AdmissionPolicySpec, given: &ResponseTimeControllerSettings, at: &At<'_>) {
    if given.scope == ControlScopeType::Policy && !given.type_targets.is_empty() {
        at.field("typeTargets").add(WITH_POLICY);
    }
    if spec.classes.is_empty() {
        for (field, is_given) in [
            ("classTargets", !given.class_targets.is_empty()),
            ("typeTargets", !given.type_targets.is_empty()),
            ("lowerClassDecrease", given.lower_class_decrease.is_some()),
            ("lowerClassPatience", given.lower_class_patience.is_some()),
        ] {
            if is_given {
                at.field(field).add(WITHOUT_CLASSES);
            }
        }
    } else {
        let classes: Vec<&str> = spec.classes.iter().map(|c| c.name.as_str()).collect();
        let of_classes = |targets: &BTreeMap<String, _>, at: &At<'_>| {
            check_known(targets.keys(), "class", &classes, at);
        };
        of_classes(&given.class_targets, &at.field("classTargets"));
        let at = at.field("typeTargets");
        for (kind, targets) in &given.type_targets {
            of_classes(targets, &at.key(kind));
        }
        let types: Vec<&str> = spec.types.iter().map(|t| t.name.as_str()).collect();
        check_known(given.type_targets.keys(), "type", &types, &at);
    }
}

struct Errors {
    increase_below: f64,
    decrease_above: f64,
    increase_offset: f64,
}

/// Returns the errors, relative to the target, at which the rate changes.
fn errors(given: &ResponseTimeControllerSettings, below: f64, at: &At<'_>) -> Errors {
    let known = at.found();
    let error = |field: &str, value, real| at.field(field).real(value, real);
    let decrease_above = error("decreaseAbove", given.decrease_above, &DECREASE_ABOVE);
    let increase_offset = error("increaseOffset", given.increase_offset, &INCREASE_OFFSET);
    let increase_below = given.increase_below.unwrap_or(below);
    let most = increase_offset.min(decrease_above);
    if at.found() == known && !(increase_below > -1.0 && increase_below <= most) {
        at.field("increaseBelow").add(format!(
            "{increase_below}; above -1, at most increaseOffset ({increase_offset}) and \
                 decreaseAbove ({decrease_above})"
        ));
    }
    Errors {
        increase_below,
        decrease_above,
        increase_offset,
    }
}

/// Returns the least and the greatest rate.
fn rates(given: &ResponseTimeControllerSettings, most: f64, at: &At<'_>) -> (f64, f64) {
    let known = at.found();
    let rate = |field: &str, value, real| at.field(field).real(value, real);
    let least = rate("minRate", given.min_rate, &MIN_RATE);
    let greatest = rate("maxRate", given.max_rate.or(Some(most)), &MAX_RATE);
    if at.found() == known && greatest < least {
        at.field("maxRate")
            .add(format!("{greatest}; at least minRate ({least})"));
    }
    (least, greatest)
}

/// Adds warnings about rates that the slots can serve only if processing times are far below the
/// targets. The rate starts there, so the queue grows until response times have lowered it.
pub(super) fn warnings(stage: &StageConfig, spec: &At<'_>) {
    let StrategyConfig::ResponseTimeController(control) = &stage.strategy else {
        return;
    };
    if control.increase.is_none() {
        // A decrease starts at the throughput.
        return;
    }
    let Some(target_us) = control.targets_us.iter().flatten().min() else {
        return;
    };
    let slots = stage
        .auto_parallelism
        .map_or(stage.parallelism, |auto| auto.max);
    let each_us = 1e6 * f64::from(slots) / control.max_rate;
    if each_us * FAR_BELOW < *target_us as f64 {
        let time = |us| crate::Duration::from(Span::from_micros(us));
        spec.field("strategy.responseTimeController.maxRate").add(format!(
                "{} requests/s, the rate at first, are more than {slots} slots (of an endpoint, with \
                 perEndpoint) serve if a request takes more than {}, where the target is {}; the queue then grows until response \
                 times have lowered the rate; give about what the service can serve",
                control.max_rate,
                time(each_us as u64),
                time(*target_us),
            ));
    }
}

fn degradation(given: &DegradationSettings, at: &At<'_>) -> DegradationConfig {
    DegradationConfig {
        min_quality: at.field("minQuality").real(given.min_quality, &MIN_QUALITY),
        decrease: at.field("decrease").real(given.decrease, &DECREASE),
        increase: at.field("increase").real(given.increase, &QUALITY_INCREASE),
        admission: given.admission.unwrap_or(true),
    }
}
