//! The rules of a policy beyond its structure, and the conversion of a policy from the API's types
//! to types that can't be wrong. All problems are collected. An invalid value counts as its
//! default.

/// Makes a table of rows `"path" => requirement`.
macro_rules! fields {
    ($($path:literal => $field:expr),+ $(,)?) => {
        &[$(($path, $field)),+]
    };
}

mod at;
mod class_admission;
mod classes;
mod errors;
mod field;
mod identity;
mod matches;
mod names;
mod queue;
mod shadow;
mod stage;
mod strategy;
mod types;
mod window;
mod workflows;

use std::time::Duration as Span;

use super::policy::ValidPolicy;
use super::schema::SchemaField;

pub(in crate::validate) use at::Block;
pub(crate) use at::{At, Problems};
use field::Absent::{Assumed, Open, Stored};
pub(in crate::validate) use field::{Absent, By, Field, Format, Range};
use field::{Table, real, time, whole};
pub(crate) use identity::identity;
pub use identity::is_label;
pub use matches::{MAX_PATH, METHODS};
pub use names::{NAME, is_name};
pub(crate) use stage::policy;

/// Adds warnings about settings that are valid but seldom intended.
pub(crate) fn warnings(policy: &ValidPolicy, spec: &At<'_>) {
    strategy::warnings(&policy.stage, spec);
    workflows::warnings(&policy.stage, spec);
    class_admission::warnings(policy, spec);
}

const MILLISECOND: Span = Span::from_millis(1);
const SECOND: Span = Span::from_secs(1);
const HOUR: Span = Span::from_secs(3600);

/// The value of a request, relative to others.
const VALUE: Field = real(Stored(1.0), 0.001, 1000.0, "");
const WEIGHT: &str = "a weight";

/// Returns `span` in µs. A policy's durations are far too short to overflow.
fn micros(span: Span) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// The tables of fields, each with its place below `spec`.
static TABLES: &[(&str, Table)] = fields! {
    "targetRefs" => identity::FIELDS,
    "" => stage::FIELDS,
    "errors" => errors::FIELDS,
    "queue" => queue::FIELDS,
    "strategy.bouncer" => strategy::bouncer::FIELDS,
    "strategy.maxQueueWait" => strategy::max_queue_wait::FIELDS,
    "strategy.maxQueueWait" => window::MINUTE_IN_SECONDS,
    "strategy.acceptFraction" => strategy::accept_fraction::FIELDS,
    "strategy.acceptFraction" => window::MINUTE_IN_SECONDS,
    "strategy.responseTimeController" => strategy::response_time_controller::FIELDS,
    "strategy.backlogControl" => strategy::backlog_control::FIELDS,
    "strategy.starvationAvoidance" => strategy::starvation_avoidance::FIELDS,
    "strategy.starvationAvoidance.acceptanceAllowance" => window::SECOND_IN_HUNDREDTHS,
    "strategy.starvationAvoidance.helpingTheUnderserved" => window::SECOND_IN_HUNDREDTHS,
    "types" => types::FIELDS,
    "types[].matches" => matches::FIELDS,
    "classes" => classes::FIELDS,
    "classes[].matches" => matches::FIELDS,
    "exclude" => matches::FIELDS,
    "workflows" => workflows::FIELDS,
    "workflows.identifyBy" => workflows::identity::FIELDS,
    "workflows.sharing" => workflows::sharing::FIELDS,
    "workflows.named" => workflows::named::FIELDS,
    "workflows.peers" => workflows::peers::FIELDS,
    "workflows.outbound" => workflows::services::OUTBOUND,
    "workflows.outbound" => workflows::smoothing::FIELDS,
    "classAdmission" => class_admission::FIELDS,
    "classAdmission.peers" => workflows::peers::FIELDS,
    "classAdmission.outbound" => workflows::services::OUTBOUND,
    "classAdmission.outbound" => workflows::smoothing::FIELDS,
};

/// Returns all fields with their paths below `spec`.
fn all_fields() -> impl Iterator<Item = (String, &'static Field)> {
    let path = |at: &str, field: &str| match at.is_empty() || field.is_empty() {
        true => format!("{at}{field}"),
        false => format!("{at}.{field}"),
    };
    TABLES
        .iter()
        .flat_map(move |(at, table)| table.iter().map(move |(field, row)| (path(at, field), row)))
}

/// Adds the checks to the API server's schema.
pub(in crate::validate) fn schema(spec: &mut SchemaField<'_>) {
    for (path, field) in all_fields() {
        spec.at(&path).field(field);
    }
    identity::schema(&mut spec.at("targetRefs"));
    stage::schema(spec);
    queue::schema(spec);
    strategy::schema(spec);
    types::schema(spec);
    classes::schema(&mut spec.at("classes"));
    workflows::schema(&mut spec.at("workflows"));
    class_admission::schema(spec);
    for matches in ["types[].matches", "classes[].matches", "exclude"] {
        matches::schema(&mut spec.at(matches));
    }
}
