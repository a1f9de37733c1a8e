//! The types of a workload, and the policy's types for their requests.

use std::time::Duration;

use headgate_core::classify::Classifier;
use headgate_core::config::{ConfigError, MAX_TYPES, StageConfig};
use headgate_strategies::strategy::TypeId;

use super::problem::{At, HOUR_MS, Right};
use super::{DistributionName, TypeEntry};
use crate::workload::recorded::Recording;
use crate::workload::request::{Classification, SampleRequest, place};
use crate::workload::{Empirical, ServiceTime, TypeLoad};

/// Returns the types of a workload under `stage`; `None` if problems were recorded.
pub(super) fn types(
    entries: &[TypeEntry],
    stage: &StageConfig,
    recording: Option<&Recording>,
    at: &At<'_>,
) -> Option<Vec<TypeLoad>> {
    let types = at.field("types");
    if entries.len() > MAX_TYPES {
        let right = format!("at most {MAX_TYPES}");
        return types.refuse(format!("{} types", entries.len()), right);
    }
    let rules = |error: ConfigError| at.note("the policy's rules", error.to_string());
    let classifier = Classifier::new(stage).map_err(rules).ok()?;
    for (i, entry) in entries.iter().enumerate() {
        if let Some(first) = entries[..i].iter().position(|e| e.name == entry.name) {
            let right = format!("also the name of types[{first}]; names are unique");
            types
                .item(i)
                .field("name")
                .note(format!("{:?}", entry.name), right);
        }
    }
    types.each(entries, |at, entry| {
        kind(entry, at, stage, &classifier, recording)
    })
}

fn kind(
    entry: &TypeEntry,
    at: &At<'_>,
    stage: &StageConfig,
    classifier: &Classifier,
    recording: Option<&Recording>,
) -> Option<TypeLoad> {
    if entry.name.is_empty() {
        at.field("name")
            .note("\"\"", "a name of 1 character or more");
    }
    let place = match &entry.request {
        None => named(entry, &at.field("name"), stage),
        Some(request) => place(classifier, &SampleRequest::from(request)).or_else(|| {
            let right = "the policy excludes such requests; leave the type out";
            at.field("request").refuse("bypasses admission", right)
        }),
    };
    let share = at.field("share").not_negative(entry.share.unwrap_or(1.0));
    let timeout = entry.timeout.as_ref();
    let timeout = timeout.map(|time| at.field("timeout").time(time, 1.0, HOUR_MS));
    let most = i64::from(u32::MAX);
    let cost = entry
        .cost
        .map(|cost| at.field("cost").whole(Some(cost), most));
    let times = at.field("serviceTime");
    let service_time = match entry.service_time.check(&times) {
        None if entry.service_time.distribution == DistributionName::Recorded => {
            recorded(recording, place.as_ref(), &times)
        }
        other => other,
    };
    let place = place?;
    Some(TypeLoad {
        class: place.class,
        cost: cost.unwrap_or(Some(place.cost))?,
        timeout: match timeout {
            Some(timeout) => Some(Duration::from_secs_f64(timeout? / 1e3)),
            None => place.deadline,
        },
        ..TypeLoad::new(entry.name.clone(), place.kind, share?, service_time?)
    })
}

/// Returns the classification of a type that only names one of the policy's types.
fn named(entry: &TypeEntry, at: &At<'_>, stage: &StageConfig) -> Option<Classification> {
    let found = stage.types.iter().position(|kind| kind.name == entry.name);
    let Some(found) = found.and_then(|at| u16::try_from(at).ok()) else {
        let names = stage.types.iter().map(|kind| kind.name.clone());
        at.problem(&entry.name, Right::TypeOfPolicy(names.collect()));
        return None;
    };
    Some(Classification::of(TypeId(found), stage))
}

/// Returns the service times of recorded requests with the same type of the policy.
fn recorded(
    recording: Option<&Recording>,
    place: Option<&Classification>,
    at: &At<'_>,
) -> Option<ServiceTime> {
    let refuse = |right| at.field("distribution").refuse("\"Recorded\"", right);
    let Some(recording) = recording else {
        return refuse("needs a recording; give recorded: {accessLog: FILE}");
    };
    let times = recording.service_times_ms(place?.kind);
    if times.is_empty() {
        return refuse("no recorded request is of this type; give another distribution");
    }
    at.made(Empirical::of_values(&times).map(ServiceTime::Empirical))
}
