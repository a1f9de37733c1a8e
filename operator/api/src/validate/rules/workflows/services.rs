//! Downstream services: their names by cluster, and their own quantiles.

use std::collections::BTreeMap;

use headgate_core::config::{MAX_WORKFLOW_NAME, MAX_WORKFLOW_SERVICES};

use super::super::{At, By, Field, Table};
use super::{MAX_BYTES, smoothing};
use crate::validate::rules::schema::{Rule, SchemaField};
use crate::{OutboundService, ServiceQuantile};

pub(super) const NAME: Field = Field::Free("the name of a service", MAX_WORKFLOW_NAME);
/// The fields of `outbound`.
pub(in crate::validate::rules) static OUTBOUND: Table = fields! {
    "services" => Field::List(MAX_WORKFLOW_SERVICES, "services", By::Key("cluster")),
    "services[].name" => NAME,
    "services[].cluster" => Field::Free("the name of an Envoy cluster", MAX_BYTES),
};
const STAR: &str = "* only at the end, where it matches any text";

/// Returns the quantiles by service.
pub(super) fn quantiles(given: &[ServiceQuantile], at: &At<'_>) -> BTreeMap<String, f64> {
    at.count(given.len());
    at.unique("names of services are unique");
    let mut quantiles = BTreeMap::new();
    for (i, service) in given.iter().enumerate() {
        let at = at.item(i);
        at.field("name").text(&service.name);
        let quantile = at.field("quantile").real();
        quantiles.insert(service.name.clone(), quantile);
    }
    quantiles
}

/// Returns the names of services by cluster.
pub(super) fn clusters(given: &[OutboundService], at: &At<'_>) -> BTreeMap<String, String> {
    at.count(given.len());
    at.unique("a cluster has one service");
    for (i, service) in given.iter().enumerate() {
        let at = at.item(i);
        let cluster = &service.cluster;
        at.field("cluster").text(cluster);
        if cluster.strip_suffix('*').unwrap_or(cluster).contains('*') {
            at.field("cluster").add(format!("{cluster:?}; {STAR}"));
        }
        at.field("name").text(&service.name);
    }
    let entry = |s: &OutboundService| (s.cluster.clone(), s.name.clone());
    given.iter().map(entry).collect()
}

/// Adds the schema of the backend's calls to other services.
pub(in crate::validate::rules) fn outbound_schema(outbound: &mut SchemaField<'_>) {
    outbound.at("services[].cluster").rule(Rule::quoted(
        "self.matches('^[^*]*[*]?$')",
        "self",
        STAR,
    ));
    smoothing::schema(&mut outbound.at("smoothing"));
    smoothing::schema(&mut outbound.at("services[].smoothing"));
}
