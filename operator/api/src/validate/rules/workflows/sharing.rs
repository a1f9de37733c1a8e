//! `sharing`: the way a process shares its capacity among workflows.

use std::ops::Bound::{Excluded, Included};

use headgate_core::config::{ResourceConfig, ResourceReport, SharingConfig};

use super::super::{At, Block, Real};
use super::text;
use crate::validate::schema::{Place, Rule};
use crate::{ReportedMetric, ReportedResource, Sharing, SharingType};

const BLOCKS: [Block<SharingType>; 2] = [
    ("bottleneckFairness", SharingType::BottleneckFairness, None),
    ("dominantResource", SharingType::DominantResource, None),
];
const PROBE: Real = Real {
    default: 10.0,
    bounds: (Excluded(0.0), Included(1e6)),
    right: "requests/s, above 0, at most 1000000",
};
const MAX_UTILIZATION: Real = Real {
    default: 0.9,
    bounds: (Excluded(0.0), Included(1.0)),
    right: "a share of the slots' time, above 0, at most 1",
};
const CAPACITY: Real = Real {
    default: 1.0,
    bounds: (Excluded(0.0), Included(1e12)),
    right: "what there is of it in a second, above 0, at most 1e12",
};
const NO_RESOURCE: &str =
    "missing; what is shared beside slots, such as {capacity: 1000, serverTiming: {metric: db}}";
const NO_REPORT: &str = "empty; orca or serverTiming, such as serverTiming: {metric: db}";
const TWO_REPORTS: &str = "orca and serverTiming; give one of them";
const METRIC: &str = "the name of a metric, 1 to 256 of a-z, A-Z, 0-9, -, _ and .";

pub(super) fn sharing(given: &Sharing, at: &At<'_>) -> SharingConfig {
    let (bottleneck, dominant) = (&given.bottleneck_fairness, &given.dominant_resource);
    let is_given = [bottleneck.is_some(), dominant.is_some()];
    at.only_blocks_of(given.kind, BLOCKS, is_given);
    match given.kind {
        SharingType::StaticGuarantees => SharingConfig::StaticGuarantees,
        SharingType::BottleneckFairness => {
            let settings = bottleneck.clone().unwrap_or_default();
            let at = at.field("bottleneckFairness");
            SharingConfig::BottleneckFairness {
                probe: at.field("probe").real(settings.probe, &PROBE),
                max_utilization: at
                    .field("maxUtilization")
                    .real(settings.max_utilization, &MAX_UTILIZATION),
            }
        }
        SharingType::DominantResource => {
            let settings = dominant.clone().unwrap_or_default();
            let at = at.field("dominantResource");
            SharingConfig::DominantResource {
                probe: at.field("probe").real(settings.probe, &PROBE),
                max_utilization: at
                    .field("maxUtilization")
                    .real(settings.max_utilization, &MAX_UTILIZATION),
                resource: resource(settings.resource.as_ref(), &at.field("resource")),
            }
        }
    }
}

fn resource(given: Option<&ReportedResource>, at: &At<'_>) -> ResourceConfig {
    let nothing = ResourceReport::Orca {
        metric: String::new(),
    };
    let Some(given) = given else {
        at.add(NO_RESOURCE);
        return ResourceConfig {
            capacity: CAPACITY.default,
            report: nothing,
        };
    };
    let metric = |field: &str, reported: &ReportedMetric| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let name = &reported.metric;
        if !(1..=text::MAX_BYTES).contains(&name.len()) || !name.bytes().all(plain) {
            let at = at.field(field).field("metric");
            at.add(format!("{name:?}; {METRIC}"));
        }
        name.clone()
    };
    let orca = given.orca.as_ref().map(|m| metric("orca", m));
    let timing = given.server_timing.as_ref();
    let timing = timing.map(|m| metric("serverTiming", m));
    let report = match (orca, timing) {
        (Some(metric), None) => ResourceReport::Orca { metric },
        (None, Some(metric)) => ResourceReport::ServerTiming { metric },
        (Some(_), Some(_)) => {
            at.add(TWO_REPORTS);
            nothing
        }
        (None, None) => {
            at.add(NO_REPORT);
            nothing
        }
    };
    ResourceConfig {
        capacity: at.field("capacity").real(Some(given.capacity), &CAPACITY),
        report,
    }
}

pub(super) fn schema(sharing: &mut Place<'_>) {
    for (field, owner, other) in BLOCKS {
        sharing.settings_of(owner, other, field);
        let mut settings = sharing.at(field);
        settings.at("probe").real(&PROBE);
        settings.at("maxUtilization").real(&MAX_UTILIZATION);
    }
    sharing.rule(
        Rule::text(
            "self.type != 'DominantResource' || \
             (has(self.dominantResource) && has(self.dominantResource.resource))",
            NO_RESOURCE,
        )
        .on(".dominantResource.resource")
        .required(),
    );
    let mut resource = sharing.at("dominantResource.resource");
    resource.at("capacity").real_bounds(&CAPACITY);
    resource
        .rule(Rule::text(
            "has(self.orca) || has(self.serverTiming)",
            NO_REPORT,
        ))
        .rule(Rule::text(
            "!(has(self.orca) && has(self.serverTiming))",
            TWO_REPORTS,
        ));
    for field in ["orca", "serverTiming"] {
        resource
            .at(field)
            .at("metric")
            .max_length(text::MAX_BYTES)
            .rule(Rule::quoted(
                "self.matches('^[-A-Za-z0-9_.]+$')",
                "self",
                METRIC,
            ));
    }
}
