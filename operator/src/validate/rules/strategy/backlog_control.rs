//! Settings of `BacklogControl`.

use std::time::Duration as Span;

use headgate_core::config::{
    BacklogControlConfig, CostConfig, DEFAULT_TYPE, MAX_COST, StrategyConfig,
};

use super::super::names::check_known;
use super::super::{HOUR, Problems, SECOND};
use crate::api::{AdmissionPolicySpec, BacklogControlSettings, BacklogSignalType, Cost, CostType};
use crate::validate::path::Path;

const TIME: (Span, Span) = (Span::from_millis(10), HOUR);
const MAX_NUMBER: f64 = 1e12;
const MAX_HEADER_NAME: usize = 256;
/// What a request costs where nothing says it.
const COST_DEFAULT: u32 = 1;

pub(super) fn config(
    spec: &AdmissionPolicySpec,
    at: &Path,
    problems: &mut Problems,
) -> StrategyConfig {
    let given = spec.strategy.backlog_control.clone().unwrap_or_default();
    if given.target.is_none() {
        let right = "the mean service delay to hold, such as 500ms";
        problems.add(at.field("target"), format!("missing; {right}"));
    }
    check_gains(&given, at, problems);
    let mut number = |field: &str, value: Option<f64>, right: &str| {
        let value = value?;
        let allowed = |n| n > 0.0 && n <= MAX_NUMBER;
        Some(problems.real(at.field(field), Some(value), 1.0, allowed, right))
    };
    let right = "a gain, above 0, at most 1e12";
    let proportional_gain = number("proportionalGain", given.proportional_gain, right);
    let integral_gain = number("integralGain", given.integral_gain, right);
    let right = "the largest bound, above 0, at most 1e12";
    let max_backlog = number("maxBacklog", given.max_backlog, right);
    StrategyConfig::BacklogControl(BacklogControlConfig {
        target_us: problems.setting(&at.field("target"), given.target.as_ref(), SECOND, TIME),
        control: given.control.into(),
        cost: cost(spec, &given.cost, &at.field("cost"), problems),
        period_us: problems.setting(&at.field("period"), given.period.as_ref(), SECOND, TIME),
        proportional_gain,
        integral_gain,
        max_backlog,
        hint: given.hint.unwrap_or(true),
    })
}

/// The control law takes both gains or derives both; `Proportional` has neither integral part nor bound.
fn check_gains(given: &BacklogControlSettings, at: &Path, problems: &mut Problems) {
    let (proportional, integral) = (given.proportional_gain, given.integral_gain);
    if given.control == BacklogSignalType::Proportional {
        for (field, is_given, what) in [
            ("integralGain", integral.is_some(), "no integral part"),
            ("maxBacklog", given.max_backlog.is_some(), "no bound"),
        ] {
            if is_given {
                let problem =
                    format!("given with control Proportional, which has {what}; leave it out");
                problems.add(at.field(field), problem);
            }
        }
        return;
    }
    let (field, missing) = match (proportional, integral) {
        (Some(_), None) => ("proportionalGain", "integralGain"),
        (None, Some(_)) => ("integralGain", "proportionalGain"),
        _ => return,
    };
    problems.add(
        at.field(field),
        format!("given without {missing}; give both, or none to have them derived"),
    );
}

fn cost(spec: &AdmissionPolicySpec, cost: &Cost, at: &Path, problems: &mut Problems) -> CostConfig {
    for (field, is_given, owner) in [
        ("costs", !cost.costs.is_empty(), CostType::Type),
        ("header", cost.header.is_some(), CostType::Header),
    ] {
        if is_given && cost.kind != owner {
            let (kind, owner) = (cost.kind.as_str(), owner.as_str());
            problems.add(
                at.field(field),
                format!("given with type {kind}; leave it out or use type {owner}"),
            );
        }
    }
    match cost.kind {
        CostType::Measured => CostConfig::Measured,
        CostType::Type => CostConfig::Type {
            costs: costs(spec, cost, &at.field("costs"), problems),
        },
        CostType::Header => CostConfig::Header {
            header: header(cost.header.as_deref(), &at.field("header"), problems),
        },
    }
}

/// A cost for each type, in the order of the configuration.
fn costs(spec: &AdmissionPolicySpec, cost: &Cost, at: &Path, problems: &mut Problems) -> Vec<u32> {
    if cost.costs.is_empty() {
        let right = "of one type or more, such as {slow: 20}; the others cost 1";
        problems.add(at.clone(), format!("none; costs {right}"));
    }
    let types: Vec<&str> = spec.types.iter().map(|t| t.name.as_str()).collect();
    check_known(cost.costs.keys(), "type", &types, at, problems);
    let mut of_type = |name: &str| {
        let given = cost.costs.get(name).copied();
        problems.number(at.key(name), given, COST_DEFAULT, (1, MAX_COST))
    };
    let others = types.iter().filter(|name| **name != DEFAULT_TYPE);
    let mut costs: Vec<u32> = others.map(|name| of_type(name)).collect();
    costs.push(of_type(DEFAULT_TYPE));
    costs
}

fn header(name: Option<&str>, at: &Path, problems: &mut Problems) -> String {
    let name = name.unwrap_or("x-headgate-cost");
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    if !(1..=MAX_HEADER_NAME).contains(&name.len()) || !name.bytes().all(plain) {
        let right = "a header's name, letters, digits and -";
        problems.add(at.clone(), format!("{name:?}; {right}"));
    }
    name.to_ascii_lowercase()
}
