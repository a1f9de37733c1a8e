//! Settings of `BacklogControl`.

use headgate_core::config::{
    BacklogControlConfig, BacklogSignal, CostConfig, DEFAULT_TYPE, MAX_COST, StrategyConfig,
};

use super::super::names::{HEADER, all_known, check_known, header};
use super::super::types::MAX_TYPES;
use super::super::{
    At, Block, Field, HOUR, MILLISECOND, Open, SECOND, Stored, Table, real, time, whole,
};
use crate::validate::rules::schema::{self as cel, Rule, SchemaField, some};
use crate::{AdmissionPolicySpec, Cost, CostType};

const BLOCKS: [Block<CostType>; 2] = [
    ("costs", CostType::Type, None),
    ("header", CostType::Header, None),
];
const LEAST: f64 = 10.0 * MILLISECOND;
const GAIN: Field = real(Open, 0.0, 1e12, "a gain").above();
pub(in crate::validate::rules) static FIELDS: Table = fields! {
    "target" => time(Open, LEAST, HOUR),
    "period" => time(Stored(SECOND), LEAST, HOUR),
    "proportionalGain" => GAIN,
    "integralGain" => GAIN,
    "maxBacklog" => real(Open, 0.0, 1e12, "the largest bound").above(),
    "hint" => Field::Flag(true),
    "cost.costs" => Field::Map(MAX_TYPES, "costs"),
    // The cost of a request; 1 by default.
    "cost.costs{}" => whole(Open, 1, MAX_COST),
    "cost.header" => Field::Text(&HEADER),
};
/// The settings that control `Proportional` doesn't have, each with the reason.
const NOT_PROPORTIONAL: [(&str, &str); 2] = [
    ("integralGain", "no integral part"),
    ("maxBacklog", "no bound"),
];
/// Each gain, with the other gain that must be given, too.
const GAINS: [(&str, &str); 2] = [
    ("proportionalGain", "integralGain"),
    ("integralGain", "proportionalGain"),
];
const NO_TARGET: &str = "missing; the mean service delay to hold, such as 500ms";
const NO_COSTS: &str = "none; costs of one type or more, such as {slow: 20}; the others cost 1";

pub(super) fn config(spec: &AdmissionPolicySpec, at: &At<'_>) -> StrategyConfig {
    let given = spec.strategy.backlog_control.clone().unwrap_or_default();
    if given.target.is_none() {
        at.field("target").add(NO_TARGET);
    }
    check_gains(given.control, at);
    StrategyConfig::BacklogControl(BacklogControlConfig {
        target_us: at.field("target").time(),
        control: given.control,
        cost: cost(spec, &given.cost, &at.field("cost")),
        period_us: at.field("period").time(),
        proportional_gain: at.field("proportionalGain").given_real(),
        integral_gain: at.field("integralGain").given_real(),
        max_backlog: at.field("maxBacklog").given_real(),
        hint: at.field("hint").flag(),
    })
}

/// Checks the gains. The control law takes both gains or derives both. `Proportional` has neither
/// an integral part nor a bound.
fn check_gains(control: BacklogSignal, at: &At<'_>) {
    let is_given = |field| at.field(field).is_given();
    if control == BacklogSignal::Proportional {
        for (field, what) in NOT_PROPORTIONAL
            .into_iter()
            .filter(|(field, _)| is_given(field))
        {
            at.field(field).add(not_proportional(what));
        }
        return;
    }
    for (field, missing) in GAINS {
        if is_given(field) && !is_given(missing) {
            at.field(field).add(one_gain(missing));
        }
    }
}

fn not_proportional(what: &str) -> String {
    format!("given with control Proportional, which has {what}; leave it out")
}

fn one_gain(missing: &str) -> String {
    format!("given without {missing}; give both, or none to have them derived")
}

fn cost(spec: &AdmissionPolicySpec, cost: &Cost, at: &At<'_>) -> CostConfig {
    at.only_blocks_of(cost.kind, &BLOCKS);
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
    let types = spec.type_names();
    check_known(cost.costs.keys(), "type", &types, at);
    let of_type = |name: &str| at.key(name).whole();
    let others = types.iter().filter(|name| **name != DEFAULT_TYPE);
    let mut costs: Vec<u32> = others.map(|name| of_type(name)).collect();
    costs.push(of_type(DEFAULT_TYPE));
    costs
}

pub(super) fn schema(spec: &mut SchemaField<'_>) {
    let mut settings = spec.at("strategy.backlogControl");
    for (field, what) in NOT_PROPORTIONAL {
        settings.forbid(
            &format!(".{field}"),
            format!("self.control != 'Proportional' || !has(self.{field})"),
            not_proportional(what),
        );
    }
    for (given, missing) in GAINS {
        let rule =
            format!("self.control == 'Proportional' || !has(self.{given}) || has(self.{missing})");
        settings.rule(Rule::text(rule, one_gain(missing)).on(&format!(".{given}")));
    }
    cost_schema(&mut settings.at("cost"));
    let given = "has(self.backlogControl) && has(self.backlogControl.target)";
    spec.at("strategy").require(
        ".backlogControl.target",
        format!("self.type != 'BacklogControl' || ({given})"),
        NO_TARGET,
    );
    let costs = "self.strategy.backlogControl.cost.costs";
    let given = format!("has(self.strategy.backlogControl) && has({costs})");
    let rule = all_known(&given, costs, "type", "self.types");
    spec.rule(rule.on(".strategy.backlogControl.cost.costs"));
}

fn cost_schema(cost: &mut SchemaField<'_>) {
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
    cost.require(
        ".costs",
        format!("self.type != 'Type' || {costs}"),
        NO_COSTS,
    );
}
