//! What a policy must obey beyond its shape, and what it means: from the API's types to types that can't
//! be wrong. All problems are gathered; a value that is wrong reads as its default meanwhile.

mod identity;
mod matches;
mod shadow;
mod stage;
mod types;

use std::time::Duration as Span;

use super::path::Path;
use crate::api::Duration;

pub(crate) use identity::{identity, targets};
pub(crate) use stage::stage;

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
            Ok(span) => u64::try_from(span.as_micros()).ok(),
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
        let default = u64::try_from(default.as_micros()).unwrap_or(u64::MAX);
        duration
            .and_then(|d| self.duration(path, d, min, max))
            .unwrap_or(default)
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
