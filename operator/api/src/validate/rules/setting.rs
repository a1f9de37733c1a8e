//! Bounds and defaults of settings: one table for the rules here and for the schema of the API
//! server.

use std::ops::{Bound, RangeBounds as _};
use std::time::Duration as Span;

use super::{Problems, micros};
use crate::Duration;
use crate::validate::path::Path;

/// A whole number.
#[derive(Debug, Clone, Copy)]
pub(in crate::validate) struct Whole {
    pub(in crate::validate) default: u32,
    /// The least and the greatest value.
    pub(in crate::validate) bounds: (u32, u32),
}

/// A duration.
#[derive(Debug, Clone, Copy)]
pub(in crate::validate) struct Time {
    pub(in crate::validate) default: Span,
    /// The shortest and the longest duration.
    pub(in crate::validate) bounds: (Span, Span),
}

/// A number.
#[derive(Debug, Clone, Copy)]
pub(in crate::validate) struct Real {
    pub(in crate::validate) default: f64,
    pub(in crate::validate) bounds: (Bound<f64>, Bound<f64>),
    /// The value and its bounds, in words.
    pub(in crate::validate) right: &'static str,
}

/// The value of a request, relative to others.
pub(super) const VALUE: Real = Real {
    default: 1.0,
    bounds: (Bound::Included(0.001), Bound::Included(1000.0)),
    right: "0.001 to 1000",
};

impl Whole {
    /// Returns the bounds in words.
    pub(in crate::validate) fn right(&self) -> String {
        let (min, max) = self.bounds;
        format!("{min} to {max}")
    }
}

impl Time {
    /// Returns the bounds in words.
    pub(in crate::validate) fn right(&self) -> String {
        let (min, max) = self.bounds;
        format!("{} to {}", Duration::from(min), Duration::from(max))
    }
}

impl Problems {
    /// Returns the length of `duration` in µs; `None`, with a problem added, if it isn't a duration
    /// or is out of bounds.
    pub(super) fn duration(
        &mut self,
        path: &Path,
        duration: &Duration,
        time: &Time,
    ) -> Option<u64> {
        let (min, max) = time.bounds;
        match duration.parse() {
            Err(error) => {
                self.add(path.clone(), format!("{:?}; {error}", duration.0));
                None
            }
            Ok(span) if span < min || span > max => {
                self.add(path.clone(), format!("{duration}; {}", time.right()));
                None
            }
            Ok(span) => Some(micros(span)),
        }
    }

    /// Like [`Self::duration`], with the default in place of `None`.
    pub(super) fn time(&mut self, path: &Path, duration: Option<&Duration>, time: &Time) -> u64 {
        duration
            .and_then(|d| self.duration(path, d, time))
            .unwrap_or(micros(time.default))
    }

    /// Returns `number` if it is within bounds, or the default.
    pub(super) fn real(&mut self, path: Path, number: Option<f64>, real: &Real) -> f64 {
        match number {
            None => real.default,
            Some(number) if real.bounds.contains(&number) => number,
            Some(number) => {
                self.add(path, format!("{number}; {}", real.right));
                real.default
            }
        }
    }

    /// Returns `number` if it is within bounds, or the default.
    pub(super) fn whole(&mut self, path: Path, number: Option<i64>, whole: &Whole) -> u32 {
        let Some(number) = number else {
            return whole.default;
        };
        let (min, max) = whole.bounds;
        match u32::try_from(number) {
            Ok(n) if (min..=max).contains(&n) => n,
            _ => {
                self.add(path, format!("{number}; {}", whole.right()));
                whole.default
            }
        }
    }
}
