//! What a policy must obey beyond its shape, and what it means: from the API's types to types that can't
//! be wrong. All problems are gathered; a value that is wrong reads as its default meanwhile.

mod classes;
mod identity;
mod matches;
mod names;
mod queue;
mod shadow;
mod stage;
mod strategy;
mod types;
mod window;

use std::time::Duration as Span;

use super::path::Path;
use crate::api::Duration;

pub(crate) use identity::{identity, targets};
pub(crate) use stage::stage;

const MILLISECOND: Span = Span::from_millis(1);
const SECOND: Span = Span::from_secs(1);
const HOUR: Span = Span::from_secs(3600);

/// `span` in µs; spans of policies are at most years.
fn micros(span: Span) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Gathers problems.
#[derive(Debug, Default)]
pub(crate) struct Problems(pub(crate) Vec<(Path, String)>);

impl Problems {
    /// Notes that the field at `path` is wrong: its value and what would be right.
    pub(crate) fn add(&mut self, path: Path, message: impl Into<String>) {
        self.0.push((path, message.into()));
    }

    /// The length of `duration` in µs; `None` with a problem noted when it is none or out of bounds.
    fn duration(&mut self, path: &Path, duration: &Duration, min: Span, max: Span) -> Option<u64> {
        match duration.parse() {
            Err(error) => {
                self.add(path.clone(), format!("{:?}; {error}", duration.0));
                None
            }
            Ok(span) if span < min || span > max => {
                let (min, max) = (Duration::from(min), Duration::from(max));
                self.add(path.clone(), format!("{duration}; {min} to {max}"));
                None
            }
            Ok(span) => Some(micros(span)),
        }
    }

    /// As [`Self::duration`], for a setting that has a default.
    fn setting(
        &mut self,
        path: &Path,
        duration: Option<&Duration>,
        default: Span,
        (min, max): (Span, Span),
    ) -> u64 {
        duration
            .and_then(|d| self.duration(path, d, min, max))
            .unwrap_or(micros(default))
    }

    /// `number` if it is `allowed`, which `right` says in words; or the default.
    fn real(
        &mut self,
        path: Path,
        number: Option<f64>,
        default: f64,
        allowed: impl Fn(f64) -> bool,
        right: &str,
    ) -> f64 {
        match number {
            None => default,
            Some(number) if allowed(number) => number,
            Some(number) => {
                self.add(path, format!("{number}; {right}"));
                default
            }
        }
    }

    /// `number` within bounds, or the default.
    fn number(
        &mut self,
        path: Path,
        number: Option<i64>,
        default: u32,
        (min, max): (u32, u32),
    ) -> u32 {
        let Some(number) = number else { return default };
        match u32::try_from(number) {
            Ok(n) if (min..=max).contains(&n) => n,
            _ => {
                self.add(path, format!("{number}; {min} to {max}"));
                default
            }
        }
    }
}
