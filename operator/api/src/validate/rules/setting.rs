//! Bounds and defaults of settings: one table for the rules here and for the schema of the API
//! server.

use std::ops::Bound;
use std::time::Duration as Span;

use crate::Duration;

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
