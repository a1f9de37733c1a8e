//! Downstream services: their names by cluster, and those with a quantile of their own.

use std::collections::BTreeMap;

use headgate_core::config::{MAX_WORKFLOW_NAME, MAX_WORKFLOW_SERVICES};

use super::super::At;
use super::super::names::check_unique_by;
use super::QUANTILE;
use super::smoothing;
use super::text::{MAX_BYTES, Text};
use crate::validate::schema::{Place, Rule};
use crate::{OutboundService, ServiceQuantile};

const NAME: Text = Text {
    what: "the name of a service",
    most: MAX_WORKFLOW_NAME,
};
const CLUSTER: Text = Text {
    what: "the name of an Envoy cluster",
    most: MAX_BYTES,
};
const STAR: &str = "* only at the end, where it matches any text";

/// Returns the quantiles by service.
pub(super) fn quantiles(given: &[ServiceQuantile], at: &At<'_>) -> BTreeMap<String, f64> {
    at.at_most(MAX_WORKFLOW_SERVICES, given.len(), "services");
    let names: Vec<&str> = given.iter().map(|s| s.name.as_str()).collect();
    let unique = "names of services are unique";
    check_unique_by(&names, ("services", "name"), unique, at);
    let mut quantiles = BTreeMap::new();
    for (i, service) in given.iter().enumerate() {
        let at = at.item(i);
        NAME.check(&service.name, &at.field("name"));
        let quantile = at.field("quantile").real(Some(service.quantile), &QUANTILE);
        quantiles.insert(service.name.clone(), quantile);
    }
    quantiles
}

/// Returns the names of services by cluster.
pub(super) fn clusters(given: &[OutboundService], at: &At<'_>) -> BTreeMap<String, String> {
    at.at_most(MAX_WORKFLOW_SERVICES, given.len(), "services");
    let clusters: Vec<&str> = given.iter().map(|s| s.cluster.as_str()).collect();
    let unique = "a cluster is of one service";
    check_unique_by(&clusters, ("services", "cluster"), unique, at);
    for (i, service) in given.iter().enumerate() {
        let at = at.item(i);
        let cluster = &service.cluster;
        CLUSTER.check(cluster, &at.field("cluster"));
        if cluster.strip_suffix('*').unwrap_or(cluster).contains('*') {
            at.field("cluster").add(format!("{cluster:?}; {STAR}"));
        }
        NAME.check(&service.name, &at.field("name"));
    }
    let entry = |s: &OutboundService| (s.cluster.clone(), s.name.clone());
    given.iter().map(entry).collect()
}

pub(super) fn schema(workflows: &mut Place<'_>) {
    let most = MAX_WORKFLOW_SERVICES;
    workflows.at("services").by("name").max_items(most);
    NAME.schema(&mut workflows.at("services[].name"));
    workflows.at("services[].quantile").real_bounds(&QUANTILE);
    outbound_schema(&mut workflows.at("outbound"));
}

/// Adds the schema of the backend's calls to other services.
pub(in crate::validate::rules) fn outbound_schema(outbound: &mut Place<'_>) {
    let most = MAX_WORKFLOW_SERVICES;
    outbound.at("services").by("cluster").max_items(most);
    NAME.schema(&mut outbound.at("services[].name"));
    let mut cluster = outbound.at("services[].cluster");
    CLUSTER.schema(&mut cluster);
    cluster.rule(Rule::quoted("self.matches('^[^*]*[*]?$')", "self", STAR));
    smoothing::schema(&mut outbound.at("smoothing"));
    smoothing::schema(&mut outbound.at("services[].smoothing"));
}
