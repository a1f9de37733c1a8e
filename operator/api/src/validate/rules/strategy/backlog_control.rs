//! Settings of `BacklogControl`.

use headgate_core::config::{
    BacklogControlConfig, CostConfig, DEFAULT_TYPE, MAX_COST, StrategyConfig,
};

use super::super::names::{HEADER, header};
use super::super::requirement::When::{Always, Any, Given, Is, Not};
use super::super::requirement::{Rules, TYPES, When, forbidden, hold, known, only, required};
use super::super::types::MAX_TYPES;
use super::super::{At, Field, HOUR, MILLISECOND, Open, SECOND, Stored, Table, real, time, whole};
use crate::{AdmissionPolicySpec, Cost, CostType};

const LEAST: f64 = 10.0 * MILLISECOND;
const GAIN: Field = real(Open, 0.0, 1e12, "a gain").above();
pub(super) static FIELDS: Table = fields! {
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
const PROPORTIONAL: When = Is("control", "Proportional");
const GAIN_P: When = Given("proportionalGain");
const GAIN_I: When = Given("integralGain");
const NO_INTEGRAL: &str =
    "given with control Proportional, which has no integral part; leave it out";
const NO_BOUND: &str = "given with control Proportional, which has no bound; leave it out";
const ONE_GAIN: &str = "given without integralGain; give both, or none to have them derived";
const OTHER_GAIN: &str = "given without proportionalGain; give both, or none to have them derived";
const NO_TARGET: &str = "missing; the mean service delay to hold, such as 500ms";
const NO_COSTS: &str = "none; costs of one type or more, such as {slow: 20}; the others cost 1";
/// `Proportional` has neither an integral part nor a bound. The other control laws take both gains
/// or derive both.
pub(super) static REQUIREMENTS: Rules = fields! {
    "strategy" => required!("backlogControl.target", Is("type", "BacklogControl"), NO_TARGET),
    "strategy.backlogControl" => forbidden!("integralGain", Not(&PROPORTIONAL), NO_INTEGRAL),
    "strategy.backlogControl" => forbidden!("maxBacklog", Not(&PROPORTIONAL), NO_BOUND),
    "strategy.backlogControl" =>
        hold("proportionalGain", Any(&[PROPORTIONAL, Not(&GAIN_P), GAIN_I]), ONE_GAIN),
    "strategy.backlogControl" =>
        hold("integralGain", Any(&[PROPORTIONAL, Not(&GAIN_I), GAIN_P]), OTHER_GAIN),
    "strategy.backlogControl.cost" => only!("costs", "type", "Type"),
    "strategy.backlogControl.cost" => only!("header", "type", "Header"),
    "strategy.backlogControl.cost" => required!("costs", Is("type", "Type"), NO_COSTS),
    "" => known("strategy.backlogControl.cost.costs", Always, TYPES),
};

pub(super) fn config(spec: &AdmissionPolicySpec, at: &At<'_>) -> StrategyConfig {
    let given = spec.strategy.backlog_control.clone().unwrap_or_default();
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

fn cost(spec: &AdmissionPolicySpec, cost: &Cost, at: &At<'_>) -> CostConfig {
    match cost.kind {
        CostType::Measured => CostConfig::Measured,
        CostType::Type => CostConfig::Type {
            costs: costs(spec, &at.field("costs")),
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
fn costs(spec: &AdmissionPolicySpec, at: &At<'_>) -> Vec<u32> {
    let types = spec.type_names();
    let of_type = |name: &str| at.key(name).whole();
    let others = types.iter().filter(|name| **name != DEFAULT_TYPE);
    let mut costs: Vec<u32> = others.map(|name| of_type(name)).collect();
    costs.push(of_type(DEFAULT_TYPE));
    costs
}
