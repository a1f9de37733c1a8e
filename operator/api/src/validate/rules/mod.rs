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
mod requirement;
mod schema;
mod shadow;
mod stage;
mod strategy;
mod types;
mod window;
mod workflows;

use super::policy::ValidPolicy;

use serde_json::Value;

use crate::AdmissionPolicySpec;

pub(crate) use at::{At, Problems};
use field::Absent::{Assumed, Open, Stored};
use field::{By, Field, Format};
use field::{Table, real, time, whole};
pub(crate) use identity::identity;
pub use identity::is_label;
pub use matches::{MAX_PATH, METHODS};
pub use names::{NAME, is_name};
use schema::SchemaField;
pub(crate) use stage::policy;

/// Adds warnings about settings that are valid but seldom intended.
pub(crate) fn warnings(policy: &ValidPolicy, spec: &At<'_>) {
    strategy::warnings(&policy.stage, spec);
    workflows::warnings(&policy.stage, spec);
    class_admission::warnings(policy, spec);
}

// Durations, ms.
const MILLISECOND: f64 = 1.0;
const SECOND: f64 = 1000.0;
const MINUTE: f64 = 60.0 * SECOND;
const HOUR: f64 = 60.0 * MINUTE;

/// The value of a request, relative to others.
const VALUE: Field = real(Stored(1.0), 0.001, 1000.0, "");
const WEIGHT: &str = "a weight";

/// Returns `ms` in µs.
fn micros(ms: f64) -> u64 {
    (ms * 1000.0).round() as u64
}

/// The tables of fields, each with its place below `spec`. Those of strategies are in
/// [`strategy::TABLES`].
static TABLES: &[(&str, Table)] = fields! {
    "targetRefs" => identity::FIELDS,
    "" => stage::FIELDS,
    "errors" => errors::FIELDS,
    "queue" => queue::FIELDS,
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

/// The tables of requirements on several fields, each with its place below `spec`. Those of
/// strategies are in [`strategy::REQUIREMENTS`].
static REQUIREMENTS: &[(&str, requirement::Rules)] = fields! {
    "targetRefs[]" => identity::REQUIREMENTS,
    "" => stage::REQUIREMENTS,
    "" => queue::REQUIREMENTS,
    "types[]" => types::REQUIREMENTS,
    "types[].matches[]" => matches::REQUIREMENTS,
    "classes[].matches[]" => matches::REQUIREMENTS,
    "exclude[]" => matches::REQUIREMENTS,
    "workflows.identifyBy[]" => workflows::identity::REQUIREMENTS,
    "workflows.sharing" => workflows::sharing::REQUIREMENTS,
    "" => class_admission::REQUIREMENTS,
};

/// Returns the rows of all fields with their paths below `spec`.
fn all_fields() -> impl Iterator<Item = (String, &'static Field)> {
    rows(TABLES).chain(rows(strategy::TABLES))
}

/// Returns all requirements on several fields with their paths below `spec`.
fn all_requirements() -> impl Iterator<Item = (String, &'static requirement::Requirement)> {
    rows(REQUIREMENTS).chain(rows(strategy::REQUIREMENTS))
}

/// Returns the rows of `tables` with their paths below `spec`.
fn rows<T>(tables: &'static [(&str, &[(&str, T)])]) -> impl Iterator<Item = (String, &'static T)> {
    let path = |at: &str, field: &str| match at.is_empty() || field.is_empty() {
        true => format!("{at}{field}"),
        false => format!("{at}.{field}"),
    };
    tables
        .iter()
        .flat_map(move |(at, table)| table.iter().map(move |(field, row)| (path(at, field), row)))
}

/// Adds a problem for each requirement on several fields that `spec`, which is at `at`, lacks.
fn check_requirements(spec: &AdmissionPolicySpec, at: &At<'_>) {
    // In this form, fields with defaults have values, as the API server sees them.
    let value = serde_json::to_value(spec).unwrap_or_default();
    for (place, requirement) in all_requirements() {
        requirement.check(&place, at, &value);
    }
}

/// Adds defaults, bounds and rules to the structural schema of a policy's `spec`. A field that the
/// rules name but the schema lacks is added without a description, which makes a test fail.
pub fn constrain(spec: &mut Value) {
    let spec = &mut SchemaField::of_spec(spec);
    for (path, field) in all_fields() {
        spec.at(&path).field(field);
    }
    for (path, requirement) in all_requirements() {
        requirement.schema(&mut spec.at(&path));
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
