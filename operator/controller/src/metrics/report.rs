//! The gauges that are read from the report at each scrape.

use headgate_core::stats::policy_name;
use k8s_openapi::jiff::Timestamp;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::conditions::{Conditions, Type, is_true};
use crate::report::Report;

/// States of a connected proxy.
const STATES: [&str; 3] = ["Running", "Pending", "Rejected"];

type Labelled = Family<[(&'static str, String); 1], Gauge>;

/// Registers the gauges of `report` with their values.
pub(super) fn register(registry: &mut Registry, report: &Report) {
    registry.register(
        "build",
        "Version of the operator, and hash of the module that it serves",
        Info::new([
            ("version", report.version.clone()),
            ("module", report.module.hash.clone()),
        ]),
    );
    let states = STATES.map(|state| {
        let n = report.proxies.iter().filter(|p| p.state == state).count();
        (state.to_lowercase(), n)
    });
    registry.register(
        "xds_proxy_streams",
        "Streams of proxies by the state of their configuration",
        labelled("state", states),
    );
    let connected = { report.proxies.iter() }.filter(|p| p.disconnected.is_none());
    let expires = connected.filter_map(|p| p.expires.as_ref()?.parse::<Timestamp>().ok());
    if let Some(first) = expires.min() {
        registry.register_with_unit(
            "xds_proxy_certificate_expiry_timestamp",
            "Earliest expiry of the client certificates of connected proxies, in Unix time",
            Unit::Seconds,
            ConstGauge::new(first.as_second()),
        );
    }
    // A proxy may have renewed its certificate since it connected, so the time of that counts.
    let overdue =
        { report.proxies.iter() }.filter(|p| p.disconnected.is_none() && p.renewal_overdue);
    registry.register(
        "xds_proxy_certificates_overdue",
        "Streams of proxies that connected with a certificate in the last sixth of its life, at most \
         14 days",
        ConstGauge::new(overdue.count()),
    );
    let by_condition = |of: Type, counts: fn(&Conditions) -> bool| {
        let states = [true, false].map(|status| {
            let policies = report.policies.iter().map(|p| &p.conditions);
            let n = policies
                .filter(|c| counts(c) && is_true(c, of) == status)
                .count();
            (status.to_string(), n)
        });
        labelled("status", states)
    };
    registry.register(
        "policies_accepted",
        "Policies by their Accepted condition",
        by_condition(Type::Accepted, |_| true),
    );
    // Overrides are intended, so an overridden policy doesn't count as unprogrammed.
    registry.register(
        "policies_programmed",
        "Policies that aren't overridden by their Programmed condition",
        by_condition(Type::Programmed, |c| !is_true(c, Type::Overridden)),
    );
    registry.register(
        "policies_overridden",
        "Policies by their Overridden condition",
        by_condition(Type::Overridden, |_| true),
    );
    let given = report.policies.iter();
    let given = given.filter_map(|p| Some((policy_name(&p.name), p.endpoint_slots? as usize)));
    registry.register(
        "endpoint_slots",
        "Slots of one endpoint, of policies with parallelism.perEndpoint",
        labelled("headgate_policy", given),
    );
    registry.register(
        "source_problems",
        "Problems of the source that don't belong to a policy",
        ConstGauge::new(report.problems.len()),
    );
}

fn labelled(label: &'static str, values: impl IntoIterator<Item = (String, usize)>) -> Labelled {
    let family = Labelled::default();
    for (value, n) in values {
        let n = i64::try_from(n).unwrap_or(i64::MAX);
        family.get_or_create(&[(label, value)]).set(n);
    }
    family
}
