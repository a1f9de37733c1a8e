//! `named`: workflows with individual settings.

use headgate_core::config::{
    MAX_WORKFLOW_NAME, MAX_WORKFLOW_QUANTILES, MAX_WORKFLOWS, WorkflowConfig,
};
use std::collections::BTreeMap;

use super::super::{At, By, Field, HOUR, MILLISECOND, Open, Stored, Table, WEIGHT, real, time};
use super::{QUANTILE, services};
use crate::NamedWorkflow;
use crate::validate::rules::schema::{Rule, SchemaField};

/// The id of the workflows without a rate of their own. This id doesn't count towards
/// `maxWorkflows`.
const OTHER: &str = "_other";
pub(in crate::validate::rules) static FIELDS: Table = fields! {
    "" => Field::List(MAX_WORKFLOWS as usize + 1, "workflows", By::Key("name")),
    "[].name" => Field::Free("the id of a workflow", MAX_WORKFLOW_NAME),
    "[].guarantee" => real(Open, 0.0, 1e9, "requests/s").above(),
    "[].weight" => real(Stored(1.0), 0.01, 100.0, WEIGHT),
    "[].quantile" => real(Open, 0.0, 1.0, "").words(QUANTILE),
    "[].services" => Field::List(MAX_WORKFLOW_QUANTILES, "services", By::Key("name")),
    "[].services[].name" => services::NAME,
    "[].services[].quantile" => real(Open, 0.0, 1.0, "").words(QUANTILE),
    "[].deadline" => time(Open, MILLISECOND, HOUR),
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
    at.unique("names of workflows are unique");
    let mut settings = BTreeMap::new();
    for (i, workflow) in given.iter().enumerate() {
        let at = at.item(i);
        at.field("name").text(&workflow.name);
        settings.insert(
            workflow.name.clone(),
            WorkflowConfig {
                quantile: at.field("quantile").given_real(),
                service_quantiles: services::quantiles(&workflow.services, &at.field("services")),
                guarantee: at.field("guarantee").given_real(),
                weight: at.field("weight").real(),
                deadline_us: at.field("deadline").given_time(),
            },
        );
    }
    settings
}

pub(super) fn schema(workflows: &mut SchemaField<'_>) {
    let count = format!("self.named.filter(w, w.name != '{OTHER}').size()");
    let in_bounds = workflows.right("maxWorkflows");
    workflows.rule(
        Rule::words(
            format!("!({in_bounds}) || !has(self.named) || {count} <= self.maxWorkflows"),
            "%s workflows; at most maxWorkflows, %s",
            &[&format!("string({count})"), "string(self.maxWorkflows)"],
        )
        .on(".named"),
    );
}
