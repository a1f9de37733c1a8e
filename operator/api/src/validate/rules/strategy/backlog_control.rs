//! Settings of `BacklogControl`.

use std::ops::Bound::{Excluded, Included};
use std::time::Duration as Span;

use headgate_core::config::{
    BacklogControlConfig, CostConfig, DEFAULT_TYPE, MAX_COST, StrategyConfig,
};

use super::super::names::{all_known, check_known, header, header_schema};
use super::super::types::MAX_TYPES;
use super::super::{HOUR, Problems, Real, SECOND, Time, Whole};
use crate::validate::path::Path;
use crate::validate::schema::{self as cel, Place, Rule, some};
use crate::{AdmissionPolicySpec, BacklogControlSettings, BacklogSignalType, Cost, CostType};

const TIME: Time = Time {
    default: SECOND,
    bounds: (Span::from_millis(10), HOUR),
};
const GAIN: Real = Real {
    default: 1.0,
    bounds: (Excluded(0.0), Included(1e12)),
    right: "a gain, above 0, at most 1e12",
};
const MAX_BACKLOG: Real = Real {
    right: "the largest bound, above 0, at most 1e12",
    ..GAIN
};
/// The cost of a request; 1 by default.
const COST: Whole = Whole {
    default: 1,
    bounds: (1, MAX_COST),
};
const NO_TARGET: &str = "missing; the mean service delay to hold, such as 500ms";
const NO_COSTS: &str = "none; costs of one type or more, such as {slow: 20}; the others cost 1";

pub(super) fn config(
    spec: &AdmissionPolicySpec,
    at: &Path,
    problems: &mut Problems,
) -> StrategyConfig {
    let given = spec.strategy.backlog_control.clone().unwrap_or_default();
    if given.target.is_none() {
        problems.add(at.field("target"), NO_TARGET);
    }
    check_gains(&given, at, problems);
    let mut number = |field: &str, value: Option<f64>, real: &Real| {
        let value = value?;
        Some(problems.real(at.field(field), Some(value), real))
    };
    let proportional_gain = number("proportionalGain", given.proportional_gain, &GAIN);
    let integral_gain = number("integralGain", given.integral_gain, &GAIN);
    let max_backlog = number("maxBacklog", given.max_backlog, &MAX_BACKLOG);
    StrategyConfig::BacklogControl(BacklogControlConfig {
        target_us: problems.time(&at.field("target"), given.target.as_ref(), &TIME),
        control: given.control.into(),
        cost: cost(spec, &given.cost, &at.field("cost"), problems),
        period_us: problems.time(&at.field("period"), given.period.as_ref(), &TIME),
        proportional_gain,
        integral_gain,
        max_backlog,
        hint: given.hint.unwrap_or(true),
    })
}

/// Checks the gains. The control law takes both gains or derives both; `Proportional` has neither
/// an integral part nor a bound.
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
            problems.other_type(at.field(field), cost.kind, owner, None);
        }
    }
    match cost.kind {
        CostType::Measured => CostConfig::Measured,
        CostType::Type => CostConfig::Type {
            costs: costs(spec, cost, &at.field("costs"), problems),
        },
        CostType::Header => {
            let name = cost.header.as_deref().unwrap_or("x-headgate-cost");
            CostConfig::Header {
                header: header(name, &at.field("header"), problems),
            }
        }
    }
}

/// Returns a cost for each type, in the order of the configuration.
fn costs(spec: &AdmissionPolicySpec, cost: &Cost, at: &Path, problems: &mut Problems) -> Vec<u32> {
    if cost.costs.is_empty() {
        problems.add(at.clone(), NO_COSTS);
    }
    let types: Vec<&str> = spec.types.iter().map(|t| t.name.as_str()).collect();
    check_known(cost.costs.keys(), "type", &types, at, problems);
    let mut of_type = |name: &str| {
        let given = cost.costs.get(name).copied();
        problems.whole(at.key(name), given, &COST)
    };
    let others = types.iter().filter(|name| **name != DEFAULT_TYPE);
    let mut costs: Vec<u32> = others.map(|name| of_type(name)).collect();
    costs.push(of_type(DEFAULT_TYPE));
    costs
}

pub(super) fn schema(spec: &mut Place<'_>) {
    let mut settings = spec.at("strategy.backlogControl");
    settings.at("target").time_bounds(&TIME);
    settings.at("period").time(&TIME);
    settings.at("proportionalGain").real_bounds(&GAIN);
    settings.at("integralGain").real_bounds(&GAIN);
    settings.at("maxBacklog").real_bounds(&MAX_BACKLOG);
    settings.at("hint").default(true);
    for (field, what) in [
        ("integralGain", "no integral part"),
        ("maxBacklog", "no bound"),
    ] {
        settings.rule(
            Rule::text(
                format!("self.control != 'Proportional' || !has(self.{field})"),
                format!("given with control Proportional, which has {what}; leave it out"),
            )
            .on(&format!(".{field}"))
            .forbidden(),
        );
    }
    for (given, missing) in [
        ("proportionalGain", "integralGain"),
        ("integralGain", "proportionalGain"),
    ] {
        settings.rule(
            Rule::text(
                format!(
                    "self.control == 'Proportional' || !has(self.{given}) || has(self.{missing})"
                ),
                format!("given without {missing}; give both, or none to have them derived"),
            )
            .on(&format!(".{given}")),
        );
    }
    cost_schema(&mut settings.at("cost"));
    let given = "has(self.backlogControl) && has(self.backlogControl.target)";
    spec.at("strategy").rule(
        Rule::text(
            format!("self.type != 'BacklogControl' || ({given})"),
            NO_TARGET,
        )
        .on(".backlogControl.target")
        .required(),
    );
    let costs = "self.strategy.backlogControl.cost.costs";
    let given = format!("has(self.strategy.backlogControl) && has({costs})");
    let rule = all_known(&given, costs, "type", "self.types");
    spec.rule(rule.on(".strategy.backlogControl.cost.costs"));
}

fn cost_schema(cost: &mut Place<'_>) {
    cost.at("costs").max_properties(MAX_TYPES);
    cost.at("costs{}").whole_bounds(&COST);
    header_schema(&mut cost.at("header"));
    let costs = some("self.costs");
    for (field, is_given, owner) in [
        ("costs", costs.as_str(), CostType::Type),
        ("header", "has(self.header)", CostType::Header),
    ] {
        cost.rule(
            Rule::value(
                format!("self.type == '{owner}' || !{is_given}"),
                &cel::format("given with type %s", &["self.type"]),
                format!("leave it out or use type {owner}"),
            )
            .on(&format!(".{field}"))
            .forbidden(),
        );
    }
    cost.rule(
        Rule::text(format!("self.type != 'Type' || {costs}"), NO_COSTS)
            .on(".costs")
            .required(),
    );
}
