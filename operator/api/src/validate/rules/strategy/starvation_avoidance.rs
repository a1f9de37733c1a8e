//! Starvation avoidance around a strategy. It is allowed only if the strategy refuses some types
//! more than others.

use headgate_core::config::{ControlScope, StarvationAvoidance};

use super::super::names::{all_known, check_known};
use super::super::types::MAX_TYPES;
use super::super::window::{self, window};
use super::super::{At, Block, Field, Open, Stored, Table, real};
use crate::validate::rules::schema::{self as cel, Rule, SchemaField, some};
use crate::{StarvationAvoidanceType, StrategyType};

const BLOCKS: [Block<StarvationAvoidanceType>; 2] = {
    use StarvationAvoidanceType as Kind;
    [
        ("acceptanceAllowance", Kind::AcceptanceAllowance, None),
        ("helpingTheUnderserved", Kind::HelpingTheUnderserved, None),
    ]
};
pub(in crate::validate::rules) static FIELDS: Table = fields! {
    "acceptanceAllowance.allowance" => real(Stored(0.1), 0.0, 1.0, "a share of a type's requests"),
    "acceptanceAllowance.allowances" => Field::Map(MAX_TYPES, "allowances"),
    "acceptanceAllowance.allowances{}" => real(Open, 0.0, 1.0, "a share of the type's requests"),
    "helpingTheUnderserved.alpha" =>
        real(Stored(1.0), 0.0, 1.0, "").above().words("a probability above 0, at most 1"),
};
const WITH_TYPES: &str = "leave it out, or use Bouncer, MaxQueueWait with limits, or \
                          ResponseTimeController with scope Type";

pub(super) fn starvation_avoidance(
    strategy: &crate::Strategy,
    types: &[&str],
    at: &At<'_>,
) -> Option<StarvationAvoidance> {
    let avoidance = strategy.starvation_avoidance.as_ref()?;
    if !distinguishes_types(strategy) {
        at.add(format!("given with type {}; {WITH_TYPES}", strategy.kind));
    }
    at.only_blocks_of(avoidance.kind, &BLOCKS);
    Some(match avoidance.kind {
        StarvationAvoidanceType::AcceptanceAllowance => {
            let at = at.field("acceptanceAllowance");
            let (window_us, step_us) = window(&at);
            let given = avoidance.acceptance_allowance.as_ref();
            let allowances = at.field("allowances");
            if let Some(given) = given {
                check_known(given.allowances.keys(), "type", types, &allowances);
            }
            StarvationAvoidance::AcceptanceAllowance {
                allowance: at.field("allowance").real(),
                type_allowances: allowances.values(At::given_real),
                window_us,
                step_us,
            }
        }
        StarvationAvoidanceType::HelpingTheUnderserved => {
            let at = at.field("helpingTheUnderserved");
            let (window_us, step_us) = window(&at);
            StarvationAvoidance::HelpingTheUnderserved {
                alpha: at.field("alpha").real(),
                window_us,
                step_us,
            }
        }
    })
}

/// Whether the strategy refuses some types more than others, so that a type can starve.
fn distinguishes_types(strategy: &crate::Strategy) -> bool {
    match strategy.kind {
        StrategyType::Bouncer => true,
        StrategyType::MaxQueueWait => {
            let settings = strategy.max_queue_wait.as_ref();
            settings.is_some_and(|s| !s.limits.is_empty())
        }
        StrategyType::ResponseTimeController => {
            let settings = strategy.response_time_controller.as_ref();
            settings.is_none_or(|s| s.scope == ControlScope::Type)
        }
        _ => false,
    }
}

pub(super) fn schema(spec: &mut SchemaField<'_>) {
    let block = "self.strategy.starvationAvoidance.acceptanceAllowance";
    let allowances = format!("{block}.allowances");
    let given =
        format!("has(self.strategy.starvationAvoidance) && has({block}) && has({allowances})");
    let known = all_known(&given, &allowances, "type", "self.types");
    spec.rule(known.on(".strategy.starvationAvoidance.acceptanceAllowance.allowances"));
    let mut strategy = spec.at("strategy");
    let rule = format!(
        "!has(self.starvationAvoidance) || self.type == 'Bouncer' || \
         self.type == 'MaxQueueWait' && has(self.maxQueueWait) && {} || \
         self.type == 'ResponseTimeController' && \
         (!has(self.responseTimeController) || self.responseTimeController.scope == 'Type')",
        some("self.maxQueueWait.limits")
    );
    let given = cel::format("given with type %s", &["self.type"]);
    strategy.rule(
        Rule::value(rule, &given, WITH_TYPES)
            .on(".starvationAvoidance")
            .forbidden(),
    );
    let mut avoidance = strategy.at("starvationAvoidance");
    avoidance.only_blocks_of(&BLOCKS);
    for (field, ..) in BLOCKS {
        window::schema(&mut avoidance.at(field));
    }
}
