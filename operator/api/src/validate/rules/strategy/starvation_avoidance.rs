//! Starvation avoidance around a strategy. It is allowed only if the strategy refuses some types
//! more than others.

use headgate_core::config::StarvationAvoidance;

use super::super::requirement::When::{All, Always, Any, Given, Is, Not};
use super::super::requirement::{Rules, TYPES, When, forbidden, known, only};
use super::super::types::MAX_TYPES;
use super::super::window::window;
use super::super::{At, Field, Open, Stored, Table, real};
use crate::StarvationAvoidanceType;

pub(super) static FIELDS: Table = fields! {
    "acceptanceAllowance.allowance" => real(Stored(0.1), 0.0, 1.0, "a share of a type's requests"),
    "acceptanceAllowance.allowances" => Field::Map(MAX_TYPES, "allowances"),
    "acceptanceAllowance.allowances{}" => real(Open, 0.0, 1.0, "a share of the type's requests"),
    "helpingTheUnderserved.alpha" =>
        real(Stored(1.0), 0.0, 1.0, "").above().words("a probability above 0, at most 1"),
};
const OF_POLICY: When = Is("responseTimeController.scope", "Policy");
const WITH_TYPES: &str = "given with type %s; leave it out, or use Bouncer, MaxQueueWait with \
                          limits, or ResponseTimeController with scope Type";
pub(super) static REQUIREMENTS: Rules = fields! {
    // The strategy has to refuse some types more than others, so that a type can starve.
    "strategy" => forbidden!(
        "starvationAvoidance",
        Any(&[
            Is("type", "Bouncer"),
            All(&[Is("type", "MaxQueueWait"), Given("maxQueueWait.limits")]),
            All(&[Is("type", "ResponseTimeController"), Not(&OF_POLICY)]),
        ]),
        WITH_TYPES,
    )
    .showing("type"),
    "strategy.starvationAvoidance" => only!("acceptanceAllowance", "type", "AcceptanceAllowance"),
    "strategy.starvationAvoidance" =>
        only!("helpingTheUnderserved", "type", "HelpingTheUnderserved"),
    "" => known("strategy.starvationAvoidance.acceptanceAllowance.allowances", Always, TYPES),
};

pub(super) fn starvation_avoidance(
    strategy: &crate::Strategy,
    at: &At<'_>,
) -> Option<StarvationAvoidance> {
    let avoidance = strategy.starvation_avoidance.as_ref()?;
    Some(match avoidance.kind {
        StarvationAvoidanceType::AcceptanceAllowance => {
            let at = at.field("acceptanceAllowance");
            let (window_us, step_us) = window(&at);
            StarvationAvoidance::AcceptanceAllowance {
                allowance: at.field("allowance").real(),
                type_allowances: at.field("allowances").values(At::given_real),
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
