//! `named`: workflows with individual settings.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

use headgate_core::config::{MAX_WORKFLOW_NAME, MAX_WORKFLOWS, WorkflowConfig};

use super::super::names::check_unique_by;
use super::super::{At, HOUR, MILLISECOND, Real, Time};
use super::text::Text;
use super::{QUANTILE, WORKFLOWS};
use crate::NamedWorkflow;
use crate::validate::schema::{Place, Rule};

/// The id of the workflows without a rate of their own. It doesn't count towards `maxWorkflows`.
const OTHER: &str = "_other";
const ID: Text = Text {
    what: "the id of a workflow",
    most: MAX_WORKFLOW_NAME,
};
const GUARANTEE: Real = Real {
    default: 0.0,
    bounds: (Excluded(0.0), Included(1e9)),
    right: "requests/s, above 0, at most 1e9",
};
const WEIGHT: Real = Real {
    default: 1.0,
    bounds: (Included(0.01), Included(100.0)),
    right: "a weight, 0.01 to 100",
};
const DEADLINE: Time = Time {
    default: HOUR,
    bounds: (MILLISECOND, HOUR),
};

/// Returns the settings by id, of at most `most` workflows.
pub(super) fn named(
    given: &[NamedWorkflow],
    most: u32,
    at: &At<'_>,
) -> BTreeMap<String, WorkflowConfig> {
    let count = given.iter().filter(|w| w.name != OTHER).count();
    if count > most as usize {
        let problem = format!("{count} workflows; at most maxWorkflows, {most}");
        at.add(problem);
    }
    let names: Vec<&str> = given.iter().map(|w| w.name.as_str()).collect();
    check_unique_by(
        &names,
        ("named", "name"),
        "names of workflows are unique",
        at,
    );
    let mut settings = BTreeMap::new();
    for (i, workflow) in given.iter().enumerate() {
        let at = at.item(i);
        ID.check(&workflow.name, &at.field("name"));
        let quantile = at
            .field("quantile")
            .given_real(workflow.quantile, &QUANTILE);
        let guarantee = at
            .field("guarantee")
            .given_real(workflow.guarantee, &GUARANTEE);
        let deadline = workflow.deadline.as_ref();
        let deadline_us = deadline.and_then(|d| at.field("deadline").duration(d, &DEADLINE));
        settings.insert(
            workflow.name.clone(),
            WorkflowConfig {
                quantile,
                guarantee,
                weight: at.field("weight").real(workflow.weight, &WEIGHT),
                deadline_us,
            },
        );
    }
    settings
}

pub(super) fn schema(workflows: &mut Place<'_>) {
    workflows
        .at("named")
        .by("name")
        .max_items(usize::from(MAX_WORKFLOWS) + 1);
    let mut named = workflows.at("named[]");
    ID.schema(&mut named.at("name"));
    named.at("guarantee").real_bounds(&GUARANTEE);
    named.at("weight").real(&WEIGHT);
    named.at("quantile").real_bounds(&QUANTILE);
    named.at("deadline").time_bounds(&DEADLINE);
    let (least, most) = WORKFLOWS.bounds;
    let count = format!("self.named.filter(w, w.name != '{OTHER}').size()");
    let in_bounds = format!("self.maxWorkflows >= {least} && self.maxWorkflows <= {most}");
    workflows.rule(
        Rule::words(
            format!("!({in_bounds}) || !has(self.named) || {count} <= self.maxWorkflows"),
            "%s workflows; at most maxWorkflows, %s",
            &[&format!("string({count})"), "string(self.maxWorkflows)"],
        )
        .on(".named"),
    );
}
