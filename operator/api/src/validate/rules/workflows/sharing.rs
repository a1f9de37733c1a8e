//! `sharing`: the way a process shares its capacity among workflows.

use headgate_core::config::{ResourceConfig, ResourceReport, SharingConfig};

use super::super::requirement::When::{All, Any, Given, Is, Not};
use super::super::requirement::{Rules, hold, only, required};
use super::super::{At, Field, Format, Open, Stored, Table, real};
use super::MAX_BYTES;
use crate::{ReportedMetric, ReportedResource, Sharing, SharingType};

const PROBE: Field = real(Stored(10.0), 0.0, 1e6, "requests/s").above();
const SHARE: Field = real(Stored(0.9), 0.0, 1.0, "a share of the slots' time").above();
static METRIC: Format = Format::new(
    MAX_BYTES,
    "^[-A-Za-z0-9_.]+$",
    "the name of a metric, 1 to 256 of a-z, A-Z, 0-9, -, _ and .",
);
pub(in crate::validate::rules) static FIELDS: Table = fields! {
    "bottleneckFairness.probe" => PROBE,
    "bottleneckFairness.maxUtilization" => SHARE,
    "dominantResource.probe" => PROBE,
    "dominantResource.maxUtilization" => SHARE,
    "dominantResource.resource.capacity" =>
        real(Open, 0.0, 1e12, "its capacity per second").above(),
    "dominantResource.resource.orca.metric" => Field::Text(&METRIC),
    "dominantResource.resource.serverTiming.metric" => Field::Text(&METRIC),
};
const NO_RESOURCE: &str =
    "missing; the second resource, such as {capacity: 1000, serverTiming: {metric: db}}";
const NO_REPORT: &str = "empty; orca or serverTiming, such as serverTiming: {metric: db}";
const TWO_REPORTS: &str = "orca and serverTiming; give one of them";
pub(in crate::validate::rules) static REQUIREMENTS: Rules = fields! {
    "" => only!("bottleneckFairness", "type", "BottleneckFairness"),
    "" => only!("dominantResource", "type", "DominantResource"),
    "" => required!("dominantResource.resource", Is("type", "DominantResource"), NO_RESOURCE),
    "dominantResource.resource" =>
        hold("", Any(&[Given("orca"), Given("serverTiming")]), NO_REPORT),
    "dominantResource.resource" =>
        hold("", Not(&All(&[Given("orca"), Given("serverTiming")])), TWO_REPORTS),
};

pub(super) fn sharing(given: &Sharing, at: &At<'_>) -> SharingConfig {
    match given.kind {
        SharingType::StaticGuarantees => SharingConfig::StaticGuarantees,
        SharingType::BottleneckFairness => {
            let at = at.field("bottleneckFairness");
            SharingConfig::BottleneckFairness {
                probe: at.field("probe").real(),
                max_utilization: at.field("maxUtilization").real(),
            }
        }
        SharingType::DominantResource => {
            let settings = given.dominant_resource.as_ref();
            let resource_of = settings.and_then(|settings| settings.resource.as_ref());
            let at = at.field("dominantResource");
            SharingConfig::DominantResource {
                probe: at.field("probe").real(),
                max_utilization: at.field("maxUtilization").real(),
                resource: resource(resource_of, &at.field("resource")),
            }
        }
    }
}

fn resource(given: Option<&ReportedResource>, at: &At<'_>) -> ResourceConfig {
    let nothing = ResourceReport::Orca {
        metric: String::new(),
    };
    let Some(given) = given else {
        return ResourceConfig {
            capacity: 1.0,
            report: nothing,
        };
    };
    let metric = |field: &str, reported: &ReportedMetric| {
        at.field(field).field("metric").text(&reported.metric);
        reported.metric.clone()
    };
    let orca = given.orca.as_ref().map(|m| metric("orca", m));
    let timing = given.server_timing.as_ref();
    let timing = timing.map(|m| metric("serverTiming", m));
    let report = match (orca, timing) {
        (Some(metric), None) => ResourceReport::Orca { metric },
        (None, Some(metric)) => ResourceReport::ServerTiming { metric },
        _ => nothing,
    };
    ResourceConfig {
        capacity: at.field("capacity").real(),
        report,
    }
}
