//! Settings of `ResponseTimeController`.

mod schema;
mod targets;

use headgate_core::config::{
    ControlScope, DegradationConfig, MAX_CLASSES, MAX_CONTROLLERS, ResponseTimeControllerConfig,
    StageConfig, StrategyConfig,
};

use super::super::names::check_known;
use super::super::requirement::When::Given;
use super::super::requirement::{CLASSES, Rules, TYPES, forbidden, known, only};
use super::super::types::MAX_TYPES;
use super::super::{
    Assumed, At, Field, HOUR, MILLISECOND, Open, SECOND, Stored, Table, real, time, whole,
};
use crate::{AdmissionPolicySpec, Duration, ResponseTimeControllerSettings};

pub(super) use schema::schema;

const PERCENTILE: f64 = 90.0;
const DECREASE: Field = real(Stored(1.2), 1.0, 1e6, "a divisor").above();
const ERROR: &str = "an error relative to the target";
const RATE: &str = "requests/s";
pub(super) static FIELDS: Table = fields! {
    "percentile" => real(Stored(PERCENTILE), 0.0, 100.0, "a percentile").above().below(),
    "target" => time(Open, MILLISECOND, HOUR),
    "classTargets" => Field::Map(MAX_CLASSES, "targets"),
    "classTargets{}" => time(Open, MILLISECOND, HOUR),
    "typeTargets" => Field::Map(MAX_TYPES, "types"),
    "typeTargets{}" => Field::Map(MAX_CLASSES, "targets"),
    "typeTargets{}.{}" => time(Open, MILLISECOND, HOUR),
    // The open defaults depend on whether `increase` is given.
    "smoothing" =>
        real(Open, 0.0, 1.0, "").below().words("the weight of the past, 0 or more, below 1"),
    "requests" => whole(Open, 1, 10_000),
    "timeout" => time(Stored(SECOND), 10.0 * MILLISECOND, HOUR),
    "increase" => real(Open, 0.0, 1e6, "requests/s").above(),
    "decrease" => DECREASE,
    "decreaseAbove" => real(Stored(0.0), -1.0, 10.0, ERROR),
    "increaseOffset" => real(Stored(-0.1), -1.0, 10.0, ERROR),
    "minRate" => real(Stored(0.05), 0.001, 1e6, RATE),
    "maxRate" => real(Open, 0.001, 1e6, RATE),
    // These settings are valid only with classes.
    "lowerClassDecrease" => real(Assumed(10.0), 1.0, 1e6, "a divisor").above(),
    "lowerClassPatience" => whole(Assumed(20.0), 0, 1_000_000),
    "degradation.minQuality" =>
        real(Stored(0.1), 0.0, 1.0, "a share of full quality").above().below(),
    "degradation.decrease" => DECREASE,
    "degradation.increase" => real(Stored(0.05), 0.0, 1.0, "a share of full quality").above(),
    "degradation.admission" => Field::Flag(true),
};
const WITHOUT_CLASSES: &str = "given without classes; leave it out or add spec.classes";

pub(super) static REQUIREMENTS: Rules = fields! {
    "strategy.responseTimeController" => only!("typeTargets", "scope", "Type"),
    "" => forbidden!(
        "strategy.responseTimeController.classTargets", Given("classes"), WITHOUT_CLASSES
    ),
    "" => forbidden!(
        "strategy.responseTimeController.typeTargets", Given("classes"), WITHOUT_CLASSES
    ),
    "" => forbidden!(
        "strategy.responseTimeController.lowerClassDecrease", Given("classes"), WITHOUT_CLASSES
    ),
    "" => forbidden!(
        "strategy.responseTimeController.lowerClassPatience", Given("classes"), WITHOUT_CLASSES
    ),
    "" => known("strategy.responseTimeController.classTargets", Given("classes"), CLASSES),
    "" => known("strategy.responseTimeController.typeTargets", Given("classes"), TYPES),
};
/// The ratio of a target to processing times that few services reach.
const FAR_BELOW: f64 = 10.0;

pub(super) fn config(spec: &AdmissionPolicySpec, at: &At<'_>) -> StrategyConfig {
    let given = spec.strategy.response_time_controller.clone();
    let given = given.unwrap_or_default();
    let percentile = at.field("percentile").real();
    check_scope(spec, given.scope, at);
    check_classes(spec, &given, at);
    let scope = given.scope;
    let defaults = match given.increase {
        Some(_) => ResponseTimeControllerConfig::figure_4(scope, Vec::new()),
        None => ResponseTimeControllerConfig::adaptive(scope, Vec::new()),
    };
    let [increase_below, decrease_above, increase_offset] =
        errors(&given, defaults.increase_below, at);
    let (min_rate, max_rate) = rates(defaults.max_rate, at);
    StrategyConfig::ResponseTimeController(ResponseTimeControllerConfig {
        percentile,
        targets_us: targets::targets(spec, &given, percentile, at),
        scope,
        smoothing: { at.field("smoothing") }
            .given_real()
            .unwrap_or(defaults.smoothing),
        requests: { at.field("requests") }
            .given_whole()
            .unwrap_or(defaults.requests),
        timeout_us: at.field("timeout").time(),
        increase_below,
        decrease_above,
        increase: at.field("increase").given_real(),
        decrease: at.field("decrease").real(),
        increase_offset,
        min_rate,
        max_rate,
        lower_class_decrease: at.field("lowerClassDecrease").real(),
        lower_class_patience: at.field("lowerClassPatience").whole(),
        degradation: given
            .degradation
            .as_ref()
            .map(|_| degradation(&at.field("degradation"))),
    })
}

fn check_scope(spec: &AdmissionPolicySpec, scope: ControlScope, at: &At<'_>) {
    let (types, classes) = (spec.types.len(), spec.classes.len().max(1));
    if scope == ControlScope::Type && types * classes > MAX_CONTROLLERS {
        let right =
            format!("at most {MAX_CONTROLLERS} controllers; scope Policy has one for all types");
        at.field("scope").add(format!(
            "Type with {types} types and {classes} classes; {right}"
        ));
    }
}

/// Checks the names of classes below the names of types.
fn check_classes(spec: &AdmissionPolicySpec, given: &ResponseTimeControllerSettings, at: &At<'_>) {
    let classes = spec.class_names();
    for (kind, targets) in given.type_targets.iter().filter(|_| !classes.is_empty()) {
        let at = at.field("typeTargets").key(kind);
        check_known(targets.keys(), "class", &classes, &at);
    }
}

/// Returns the errors, relative to the target, at which the rate changes: `increaseBelow`,
/// `decreaseAbove` and `increaseOffset`.
fn errors(given: &ResponseTimeControllerSettings, below: f64, at: &At<'_>) -> [f64; 3] {
    let known = at.found();
    let decrease_above = at.field("decreaseAbove").real();
    let increase_offset = at.field("increaseOffset").real();
    let increase_below = given.increase_below.unwrap_or(below);
    let most = increase_offset.min(decrease_above);
    if at.found() == known && !(increase_below > -1.0 && increase_below <= most) {
        at.field("increaseBelow").add(format!(
            "{increase_below}; above -1, at most increaseOffset ({increase_offset}) and \
                 decreaseAbove ({decrease_above})"
        ));
    }
    [increase_below, decrease_above, increase_offset]
}

/// Returns the least and the greatest rate.
fn rates(most: f64, at: &At<'_>) -> (f64, f64) {
    let known = at.found();
    let least = at.field("minRate").real();
    let greatest = at.field("maxRate").given_real().unwrap_or(most);
    if at.found() == known && greatest < least {
        at.field("maxRate")
            .add(format!("{greatest}; at least minRate ({least})"));
    }
    (least, greatest)
}

/// Adds warnings about rates that the slots can serve only if processing times are far below the
/// targets. A controller starts at this rate, so the queue grows until response times have lowered
/// the rate.
pub(super) fn warnings(stage: &StageConfig, spec: &At<'_>) {
    let StrategyConfig::ResponseTimeController(control) = &stage.strategy else {
        return;
    };
    if control.increase.is_none() {
        // Without `increase`, a decrease starts at the throughput.
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
        spec.field("strategy.responseTimeController.maxRate")
            .add(format!(
                "{} requests/s, the rate at first, are more than {slots} slots (of an endpoint, \
                 with perEndpoint) serve if a request takes more than {}, where the target is {}; \
                 the queue then grows until response times have lowered the rate; give about what \
                 the service can serve",
                control.max_rate,
                Duration::of_micros(each_us as u64),
                Duration::of_micros(*target_us),
            ));
    }
}

fn degradation(at: &At<'_>) -> DegradationConfig {
    DegradationConfig {
        min_quality: at.field("minQuality").real(),
        decrease: at.field("decrease").real(),
        increase: at.field("increase").real(),
        admission: at.field("admission").flag(),
    }
}
