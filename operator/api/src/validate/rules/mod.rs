//! The rules of a policy beyond its shape, and its conversion from the API's types to types that
//! can't be wrong. All problems are collected; meanwhile a wrong value reads as its default.

mod at;
mod class_admission;
mod classes;
mod errors;
mod identity;
mod matches;
mod names;
mod queue;
mod setting;
mod shadow;
mod stage;
mod strategy;
mod types;
mod window;
mod workflows;

use std::time::Duration as Span;

use headgate_core::config::{ServiceAdmissionConfig, StageConfig};

use super::schema::Place;

use at::Block;
pub(crate) use at::{At, Problems};
pub use identity::is_label;
pub(crate) use identity::{identity, targets};
pub use names::{NAME, is_name};
use setting::VALUE;
pub(in crate::validate) use setting::{Real, Time, Whole};
pub(crate) use stage::{Meaning, stage};

/// Adds warnings about settings that are valid but seldom intended.
pub(crate) fn warnings(
    stage: &StageConfig,
    promises: Option<&ServiceAdmissionConfig>,
    spec: &At<'_>,
) {
    strategy::warnings(stage, spec);
    workflows::warnings(stage, spec);
    class_admission::warnings(stage, promises, spec);
}

const MILLISECOND: Span = Span::from_millis(1);
const SECOND: Span = Span::from_secs(1);
const HOUR: Span = Span::from_secs(3600);

/// Returns `span` in µs; spans of policies are at most years.
fn micros(span: Span) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Adds the checks of the API server.
pub(in crate::validate) fn schema(spec: &mut Place<'_>) {
    identity::schema(spec);
    stage::schema(spec);
    errors::schema(spec);
    queue::schema(spec);
    strategy::schema(spec);
    types::schema(spec);
    classes::schema(spec);
    workflows::schema(spec);
    class_admission::schema(spec);
    spec.at("exclude").atomic();
    matches::schema(&mut spec.at("exclude"));
}
