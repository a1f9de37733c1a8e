//! Settings of `ResponseTimeController`.

mod targets;

use std::time::Duration as Span;

use headgate_core::config::{DegradationConfig, ResponseTimeControllerConfig, StrategyConfig};

use super::super::names::check_known;
use super::super::{HOUR, Problems, SECOND};
use crate::api::{
    AdmissionPolicySpec, ControlScopeType, DegradationSettings, ResponseTimeControllerSettings,
};
use crate::validate::path::Path;

const TIMEOUT: (Span, Span) = (Span::from_millis(10), HOUR);
const MAX_REQUESTS: u32 = 10_000;
const MAX_PATIENCE: u32 = 1_000_000;
const MIN_RATE: f64 = 0.001;
const MAX_RATE: f64 = 1e6;
/// Most controllers: the workers share their state.
const MAX_CONTROLLERS: usize = 256;

pub(super) fn config(
    spec: &AdmissionPolicySpec,
    at: &Path,
    problems: &mut Problems,
) -> StrategyConfig {
    let given = spec.strategy.response_time_controller.clone();
    let given = given.unwrap_or_default();
    let percentile = problems.real(
        at.field("percentile"),
        given.percentile,
        90.0,
        |p| p > 0.0 && p < 100.0,
        "a percentile, above 0, below 100",
    );
    check_scope(spec, given.scope, at, problems);
    check_classes(spec, &given, at, problems);
    let errors = errors(&given, at, problems);
    let rates = rates(&given, at, problems);
    StrategyConfig::ResponseTimeController(ResponseTimeControllerConfig {
        percentile,
        targets_us: targets::targets(spec, &given, percentile, at, problems),
        scope: given.scope.into(),
        smoothing: problems.real(
            at.field("smoothing"),
            given.smoothing,
            0.7,
            |a| (0.0..1.0).contains(&a),
            "the weight of the past, 0 or more, below 1",
        ),
        requests: problems.number(at.field("requests"), given.requests, 100, (1, MAX_REQUESTS)),
        timeout_us: problems.setting(
            &at.field("timeout"),
            given.timeout.as_ref(),
            SECOND,
            TIMEOUT,
        ),
        increase_below: errors.increase_below,
        decrease_above: errors.decrease_above,
        increase: problems.real(
            at.field("increase"),
            given.increase,
            2.0,
            |i| i > 0.0 && i <= MAX_RATE,
            "requests/s, above 0, at most 1000000",
        ),
        decrease: divisor(at.field("decrease"), given.decrease, 1.2, problems),
        increase_offset: errors.increase_offset,
        min_rate: rates.0,
        max_rate: rates.1,
        lower_class_decrease: divisor(
            at.field("lowerClassDecrease"),
            given.lower_class_decrease,
            10.0,
            problems,
        ),
        lower_class_patience: problems.number(
            at.field("lowerClassPatience"),
            given.lower_class_patience,
            20,
            (0, MAX_PATIENCE),
        ),
        degradation: given
            .degradation
            .as_ref()
            .map(|d| degradation(d, &at.field("degradation"), problems)),
    })
}

fn check_scope(
    spec: &AdmissionPolicySpec,
    scope: ControlScopeType,
    at: &Path,
    problems: &mut Problems,
) {
    let (types, classes) = (spec.types.len(), spec.classes.len().max(1));
    if scope == ControlScopeType::Type && types * classes > MAX_CONTROLLERS {
        let right =
            format!("at most {MAX_CONTROLLERS} controllers; scope Policy has one for all types");
        problems.add(
            at.field("scope"),
            format!("Type with {types} types and {classes} classes; {right}"),
        );
    }
}

/// Settings that only make a difference between classes.
fn check_classes(
    spec: &AdmissionPolicySpec,
    given: &ResponseTimeControllerSettings,
    at: &Path,
    problems: &mut Problems,
) {
    let targets = at.field("classTargets");
    if spec.classes.is_empty() {
        for (field, is_given) in [
            ("classTargets", !given.class_targets.is_empty()),
            ("lowerClassDecrease", given.lower_class_decrease.is_some()),
            ("lowerClassPatience", given.lower_class_patience.is_some()),
        ] {
            if is_given {
                let right = "leave it out or add spec.classes";
                problems.add(at.field(field), format!("given without classes; {right}"));
            }
        }
    } else {
        let classes: Vec<&str> = spec.classes.iter().map(|c| c.name.as_str()).collect();
        let names = given.class_targets.keys();
        check_known(names, "class", &classes, &targets, problems);
    }
}

struct Errors {
    increase_below: f64,
    decrease_above: f64,
    increase_offset: f64,
}

/// The errors, relative to the target, at which the rate changes.
fn errors(given: &ResponseTimeControllerSettings, at: &Path, problems: &mut Problems) -> Errors {
    let right = "an error relative to the target, -1 to 10";
    let known = problems.0.len();
    let mut error = |field: &str, value, default| {
        problems.real(
            at.field(field),
            value,
            default,
            |e| (-1.0..=10.0).contains(&e),
            right,
        )
    };
    let decrease_above = error("decreaseAbove", given.decrease_above, 0.0);
    let increase_offset = error("increaseOffset", given.increase_offset, -0.1);
    let increase_below = given.increase_below.unwrap_or(-0.5);
    let most = increase_offset.min(decrease_above);
    if problems.0.len() == known && !(increase_below > -1.0 && increase_below <= most) {
        problems.add(
            at.field("increaseBelow"),
            format!(
                "{increase_below}; above -1, at most increaseOffset ({increase_offset}) and \
                 decreaseAbove ({decrease_above})"
            ),
        );
    }
    Errors {
        increase_below,
        decrease_above,
        increase_offset,
    }
}

/// Least and greatest rate.
fn rates(given: &ResponseTimeControllerSettings, at: &Path, problems: &mut Problems) -> (f64, f64) {
    let known = problems.0.len();
    let mut rate = |field: &str, value, default| {
        problems.real(
            at.field(field),
            value,
            default,
            |r| (MIN_RATE..=MAX_RATE).contains(&r),
            "requests/s, 0.001 to 1000000",
        )
    };
    let least = rate("minRate", given.min_rate, 0.05);
    let greatest = rate("maxRate", given.max_rate, 2000.0);
    if problems.0.len() == known && greatest < least {
        problems.add(
            at.field("maxRate"),
            format!("{greatest}; at least minRate ({least})"),
        );
    }
    (least, greatest)
}

fn divisor(at: Path, given: Option<f64>, default: f64, problems: &mut Problems) -> f64 {
    problems.real(
        at,
        given,
        default,
        |d| d > 1.0 && d <= 1e6,
        "a divisor, above 1, at most 1000000",
    )
}

fn degradation(
    given: &DegradationSettings,
    at: &Path,
    problems: &mut Problems,
) -> DegradationConfig {
    DegradationConfig {
        min_quality: problems.real(
            at.field("minQuality"),
            given.min_quality,
            0.1,
            |q| q > 0.0 && q < 1.0,
            "a share of full quality, above 0, below 1",
        ),
        decrease: divisor(at.field("decrease"), given.decrease, 1.2, problems),
        increase: problems.real(
            at.field("increase"),
            given.increase,
            0.05,
            |i| i > 0.0 && i <= 1.0,
            "a share of full quality, above 0, at most 1",
        ),
        admission: given.admission.unwrap_or(true),
    }
}
