//! The targets of a controller: that of the class, else the one for all, else the type's own
//! objective at the percentile.

use headgate_core::config::DEFAULT_TYPE;

use super::super::super::{At, HOUR, MILLISECOND, Time};
use crate::{
    AdmissionPolicySpec, ControlScopeType, Duration, QueryType, ResponseTimeControllerSettings,
};

pub(super) const TARGET: Time = Time {
    default: MILLISECOND,
    bounds: (MILLISECOND, HOUR),
};
pub(super) const NO_TARGET_OF_POLICY: &str =
    "missing; scope Policy holds one for all types, such as 500ms";
pub(super) const NO_OBJECTIVE: &str =
    "ResponseTimeController holds it; give it, or strategy.responseTimeController.target";

/// Returns the target of each type (of all types under `Policy`) and class, µs.
pub(super) fn targets(
    spec: &AdmissionPolicySpec,
    given: &ResponseTimeControllerSettings,
    percentile: f64,
    at: &At<'_>,
) -> Vec<Vec<u64>> {
    let parse = |at: &At<'_>, target: &Duration| at.duration(target, &TARGET).unwrap_or(1);
    let of_all = given
        .target
        .as_ref()
        .map(|target| parse(&at.field("target"), target));
    let at_classes = at.field("classTargets");
    let of_classes: Vec<Option<u64>> = if spec.classes.is_empty() {
        vec![None]
    } else {
        let of_class = |name: &String| {
            let target = given.class_targets.get(name)?;
            Some(parse(&at_classes.key(name), target))
        };
        spec.classes.iter().map(|c| of_class(&c.name)).collect()
    };
    let row = |of_type: Option<u64>| {
        let target = |of_class: &Option<u64>| of_class.or(of_all).or(of_type);
        of_classes.iter().map(|c| target(c).unwrap_or(1)).collect()
    };
    // Whether some targets must come from the types' objectives.
    let is_open = of_all.is_none() && of_classes.iter().any(Option::is_none);
    if given.scope == ControlScopeType::Policy {
        if is_open {
            at.field("target").add(NO_TARGET_OF_POLICY);
        }
        return vec![row(None)];
    }
    // `default` is last, as in the configuration.
    let (default, others): (Vec<_>, Vec<_>) = spec
        .types
        .iter()
        .enumerate()
        .partition(|(_, t)| t.name == DEFAULT_TYPE);
    let objectives: Vec<(usize, Option<u64>)> = others
        .into_iter()
        .chain(default)
        .map(|(i, kind)| (i, objective(kind, percentile)))
        .collect();
    if is_open && objectives.iter().all(|(_, o)| o.is_none()) {
        let right =
            format!("one for all types, such as 500ms, or p{percentile} in each type's slo");
        at.field("target").add(format!("missing; {right}"));
    } else if is_open {
        for (i, _) in objectives.iter().filter(|(_, o)| o.is_none()) {
            let slo = at.document().field("spec.types").item(*i).field("slo");
            slo.add(format!("no p{percentile}; {NO_OBJECTIVE}"));
        }
    }
    objectives.into_iter().map(|(_, o)| row(o)).collect()
}

/// Returns the type's objective at `percentile`, µs. The rules for types note its mistakes.
fn objective(kind: &QueryType, percentile: f64) -> Option<u64> {
    let objective = kind.slo.get(&format!("p{percentile}"))?.parse().ok()?;
    u64::try_from(objective.as_micros()).ok()
}
