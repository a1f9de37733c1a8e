//! Settings of `BacklogControl`.

use std::ops::Bound::{Excluded, Included};
use std::time::Duration as Span;

use headgate_core::config::{
    BacklogControlConfig, CostConfig, DEFAULT_TYPE, MAX_COST, StrategyConfig,
};

use super::super::names::{all_known, check_known, header, header_schema};
use super::super::types::MAX_TYPES;
use super::super::{At, Block, HOUR, Real, SECOND, Time, Whole};
use crate::validate::schema::{self as cel, Place, Rule, some};
use crate::{AdmissionPolicySpec, BacklogControlSettings, BacklogSignalType, Cost, CostType};

const BLOCKS: [Block<CostType>; 2] = [
    ("costs", CostType::Type, None),
    ("header", CostType::Header, None),
];
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

pub(super) fn config(spec: &AdmissionPolicySpec, at: &At<'_>) -> StrategyConfig {
    let given = spec.strategy.backlog_control.clone().unwrap_or_default();
    if given.target.is_none() {
        at.field("target").add(NO_TARGET);
    }
    check_gains(&given, at);
    let proportional_gain = at
        .field("proportionalGain")
        .given_real(given.proportional_gain, &GAIN);
    let integral_gain = at
        .field("integralGain")
        .given_real(given.integral_gain, &GAIN);
    let max_backlog = at
        .field("maxBacklog")
        .given_real(given.max_backlog, &MAX_BACKLOG);
    StrategyConfig::BacklogControl(BacklogControlConfig {
        target_us: at.field("target").time(given.target.as_ref(), &TIME),
        control: given.control.into(),
        cost: cost(spec, &given.cost, &at.field("cost")),
        period_us: at.field("period").time(given.period.as_ref(), &TIME),
        proportional_gain,
        integral_gain,
        max_backlog,
        hint: given.hint.unwrap_or(true),
    })
}

/// Checks the gains. The control law takes both gains or derives both; `Proportional` has neither
/// an integral part nor a bound.
fn check_gains(given: &BacklogControlSettings, at: &At<'_>) {
    let (proportional, integral) = (given.proportional_gain, given.integral_gain);
    if given.control == BacklogSignalType::Proportional {
        for (field, is_given, what) in [
            ("integralGain", integral.is_some(), "no integral part"),
            ("maxBacklog", given.max_backlog.is_some(), "no bound"),
        ] {
            if is_given {
                let problem =
                    format!("given with control Proportional, which has {what}; leave it out");
                at.field(field).add(problem);
            }
        }
        return;
    }
    let (field, missing) = match (proportional, integral) {
        (Some(_), None) => ("proportionalGain", "integralGain"),
        (None, Some(_)) => ("integralGain", "proportionalGain"),
        _ => return,
    };
    at.field(field).add(format!(
        "given without {missing}; give both, or none to have them derived"
    ));
}

fn cost(spec: &AdmissionPolicySpec, cost: &Cost, at: &At<'_>) -> CostConfig {
    let is_given = [!cost.costs.is_empty(), cost.header.is_some()];
    at.only_blocks_of(cost.kind, BLOCKS, is_given);
    match cost.kind {
        CostType::Measured => CostConfig::Measured,
        CostType::Type => CostConfig::Type {
            costs: costs(spec, cost, &at.field("costs")),
        },
        CostType::Header => {
            let name = cost.header.as_deref().unwrap_or("x-headgate-cost");
            CostConfig::Header {
                header: header(name, &at.field("header")),
            }
        }
    }
}

/// Returns a cost for each type, in the order of the configuration.
fn costs(spec: &AdmissionPolicySpec, cost: &Cost, at: &At<'_>) -> Vec<u32> {
    if cost.costs.is_empty() {
        at.add(NO_COSTS);
    }
    let types: Vec<&str> = spec.types.iter().map(|t| t.name.as_str()).collect();
    check_known(cost.costs.keys(), "type", &types, at);
    let of_type = |name: &str| {
        let given = cost.costs.get(name).copied();
        at.key(name).whole(given, &COST)
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
    let is_given = [costs.as_str(), "has(self.header)"];
    for ((field, owner, _), is_given) in BLOCKS.into_iter().zip(is_given) {
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
