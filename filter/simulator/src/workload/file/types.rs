//! The types of a workload, and the policy's types of their requests.

use std::time::Duration;

use headgate_core::classify::Classifier;
use headgate_core::config::{MAX_TYPES, StageConfig};
use headgate_core::strategy::TypeId;

use super::problem::{Checks, HOUR_MS, Problem, Right, Step, below, item};
use super::{DistributionName, TypeEntry};
use crate::workload::recorded::Recording;
use crate::workload::request::{Place, SampleRequest, place};
use crate::workload::{Empirical, ServiceTime, TypeLoad};

/// Returns the types of a workload under `stage`; `None` if problems were noted.
pub(super) fn types(
    entries: &[TypeEntry],
    stage: &StageConfig,
    recording: Option<&Recording>,
    checks: &mut Checks,
) -> Option<Vec<TypeLoad>> {
    let at = below(&[], "types");
    if entries.len() > MAX_TYPES {
        checks.add(
            &at,
            format!("{} types", entries.len()),
            format!("at most {MAX_TYPES}"),
        );
        return None;
    }
    let classifier = match Classifier::new(stage) {
        Ok(classifier) => classifier,
        Err(error) => {
            checks.add(&[], "the policy's rules".to_owned(), error.to_string());
            return None;
        }
    };
    let mut all = Some(Vec::new());
    for (i, entry) in entries.iter().enumerate() {
        let here = item(&at, i);
        if let Some(first) = entries[..i].iter().position(|e| e.name == entry.name) {
            let right = format!("names are unique, and types[{first}] has this one");
            checks.add(&below(&here, "name"), format!("{:?}", entry.name), right);
        }
        match (
            kind(entry, &here, stage, &classifier, recording, checks),
            &mut all,
        ) {
            (Some(kind), Some(all)) => all.push(kind),
            _ => all = None,
        }
    }
    all
}

fn kind(
    entry: &TypeEntry,
    at: &[Step],
    stage: &StageConfig,
    classifier: &Classifier,
    recording: Option<&Recording>,
    checks: &mut Checks,
) -> Option<TypeLoad> {
    if entry.name.is_empty() {
        checks.add(
            &below(at, "name"),
            "\"\"".to_owned(),
            "a name for the results",
        );
    }
    let place = match &entry.request {
        None => named(entry, at, stage, checks),
        Some(request) => {
            let place = place(classifier, &SampleRequest::from(request));
            if place.is_none() {
                let right = "the policy excludes such requests; leave the type out";
                checks.add(
                    &below(at, "request"),
                    "bypasses admission".to_owned(),
                    right,
                );
            }
            place
        }
    };
    let share = checks.not_negative(at, "share", entry.share.unwrap_or(1.0));
    let timeout = entry.timeout.as_ref().map(|timeout| {
        let ms = checks.time(&below(at, "timeout"), timeout, 1.0, HOUR_MS)?;
        Some(Duration::from_secs_f64(ms / 1e3))
    });
    let cost = match entry.cost.map(u32::try_from) {
        None => Some(None),
        Some(Ok(cost)) if cost > 0 => Some(Some(cost)),
        Some(_) => {
            let found = entry.cost.unwrap_or_default().to_string();
            checks.add(&below(at, "cost"), found, format!("1 to {}", u32::MAX));
            None
        }
    };
    let times = below(at, "serviceTime");
    let service_time = match entry.service_time.check(&times, checks) {
        None if entry.service_time.distribution == DistributionName::Recorded => {
            recorded(recording, place.as_ref(), &times, checks)
        }
        other => other,
    };
    let place = place?;
    Some(TypeLoad {
        class: place.class,
        cost: cost?.unwrap_or(place.cost),
        timeout: match timeout {
            Some(timeout) => Some(timeout?),
            None => place.deadline,
        },
        ..TypeLoad::new(entry.name.clone(), place.kind, share?, service_time?)
    })
}

/// Returns the classification of a type that only names one of the policy's.
fn named(
    entry: &TypeEntry,
    at: &[Step],
    stage: &StageConfig,
    checks: &mut Checks,
) -> Option<Place> {
    let found = stage.types.iter().position(|kind| kind.name == entry.name);
    let Some(found) = found.and_then(|at| u16::try_from(at).ok()) else {
        checks.0.push(Problem {
            at: below(at, "name"),
            found: entry.name.clone(),
            right: Right::TypeOfPolicy(stage.types.iter().map(|kind| kind.name.clone()).collect()),
        });
        return None;
    };
    Some(Place::of(TypeId(found), stage))
}

/// Returns the service times of recorded requests of the same type of the policy.
fn recorded(
    recording: Option<&Recording>,
    place: Option<&Place>,
    at: &[Step],
    checks: &mut Checks,
) -> Option<ServiceTime> {
    let distribution = below(at, "distribution");
    let Some(recording) = recording else {
        let right = "needs a recording; give recorded: {accessLog: FILE}";
        checks.add(&distribution, "\"Recorded\"".to_owned(), right);
        return None;
    };
    let times = recording.service_times_ms(place?.kind);
    if times.is_empty() {
        let right = "no recorded request is of this type; give another distribution";
        checks.add(&distribution, "\"Recorded\"".to_owned(), right);
        return None;
    }
    checks.made(at, Empirical::of_values(&times).map(ServiceTime::Empirical))
}
