//! The targets of a controller. In order of precedence: the target of the type in this class, the
//! target of the class, the target for all requests, and the type's own objective at the
//! percentile.

use headgate_core::config::{ControlScope, DEFAULT_TYPE};

use super::super::super::At;
use crate::{AdmissionPolicySpec, QueryType, ResponseTimeControllerSettings};

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
    let time = |at: At<'_>| at.is_given().then(|| at.given_time().unwrap_or(1));
    let of_all = time(at.field("target"));
    let at_classes = at.field("classTargets");
    let at_types = at.field("typeTargets");
    // A stage without classes counts as one class without a name.
    let classes: Vec<Option<&String>> = match spec.classes.as_slice() {
        [] => vec![None],
        classes => classes.iter().map(|class| Some(&class.name)).collect(),
    };
    let of = |at: &At<'_>, class: Option<&String>| time(at.key(class?));
    let of_classes = classes.iter().map(|class| of(&at_classes, *class));
    let of_classes: Vec<Option<u64>> = of_classes.collect();
    let row = |kind: Option<&QueryType>| -> Vec<Option<u64>> {
        let own = kind.map(|kind| at_types.key(&kind.name));
        let objective = kind.and_then(|kind| objective(kind, percentile));
        let target = |(class, of_class): (&Option<&String>, &Option<u64>)| {
            let own = own.as_ref().and_then(|at| of(at, *class));
            own.or(*of_class).or(of_all).or(objective)
        };
        classes.iter().zip(&of_classes).map(target).collect()
    };
    let is_open = |row: &[Option<u64>]| row.iter().any(Option::is_none);
    let rows = if given.scope == ControlScope::Policy {
        let row = row(None);
        if is_open(&row) {
            at.field("target").add(NO_TARGET_OF_POLICY);
        }
        vec![row]
    } else {
        // `default` is last, as in the configuration.
        let (default, others): (Vec<_>, Vec<_>) = spec
            .types
            .iter()
            .enumerate()
            .partition(|(_, t)| t.name == DEFAULT_TYPE);
        let types: Vec<(usize, &QueryType)> = others.into_iter().chain(default).collect();
        let rows: Vec<_> = types.iter().map(|(_, kind)| row(Some(kind))).collect();
        if !rows.is_empty() && rows.iter().all(|row| is_open(row)) {
            let right =
                format!("one for all types, such as 500ms, or p{percentile} in each type's slo");
            at.field("target").add(format!("missing; {right}"));
        } else {
            for ((i, _), _) in types.iter().zip(&rows).filter(|(_, row)| is_open(row)) {
                let slo = at.document().field("spec.types").item(*i).field("slo");
                slo.add(format!("no p{percentile}; {NO_OBJECTIVE}"));
            }
        }
        rows
    };
    let known = |row: Vec<Option<u64>>| row.into_iter().map(|target| target.unwrap_or(1)).collect();
    rows.into_iter().map(known).collect()
}

/// Returns the type's objective at `percentile`, µs. An objective that can't be parsed counts as
/// absent here, because the rules for types report this problem.
fn objective(kind: &QueryType, percentile: f64) -> Option<u64> {
    let name = format!("p{percentile}");
    let objective = kind.slo.get(&name).or_else(|| kind.ttft.get(&name))?;
    let objective = objective.parse().ok()?;
    u64::try_from(objective.as_micros()).ok()
}
