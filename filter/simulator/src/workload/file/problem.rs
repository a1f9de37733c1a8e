//! Problems of a workload: the field, the value found, and a valid value.

use std::borrow::Cow;

use super::Time;
use crate::workload::{ServiceTime, ServiceTimeError};

pub(crate) const HOUR_MS: f64 = 3_600_000.0;
/// The largest number of clients of a closed loop.
pub(crate) const MOST_CLIENTS: i64 = 100_000;

/// One step of the path to a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A field of a mapping.
    Field(Cow<'static, str>),
    /// An item of a list, from 0.
    Item(usize),
}

/// An invalid field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The path to the field.
    pub at: Vec<Step>,
    /// The value found.
    pub found: String,
    /// A valid value.
    pub right: Right,
}

/// A description of valid values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Right {
    /// In words.
    Text(String),
    /// The names of the policy's types; the value found is the name that was written.
    TypeOfPolicy(Vec<String>),
}

/// Gathers problems.
#[derive(Debug, Default)]
pub(crate) struct Checks(pub(crate) Vec<Problem>);

impl Checks {
    pub(crate) fn add(&mut self, at: &[Step], found: String, right: impl Into<String>) {
        self.0.push(Problem {
            at: at.to_vec(),
            found,
            right: Right::Text(right.into()),
        });
    }

    pub(crate) fn missing(&mut self, at: &[Step], field: &'static str, right: &str) {
        self.add(&below(at, field), "missing".to_owned(), right);
    }

    /// Returns the distribution that was built, or notes its error as a problem.
    pub(crate) fn made(
        &mut self,
        at: &[Step],
        made: Result<ServiceTime, ServiceTimeError>,
    ) -> Option<ServiceTime> {
        made.map_err(|error| {
            let error = error.to_string();
            let (found, right) = error.split_once("; ").unwrap_or((&error, "other settings"));
            self.add(at, found.to_owned(), right);
        })
        .ok()
    }

    /// Returns the length of `time`, ms, if it is within bounds.
    pub(crate) fn time(&mut self, at: &[Step], time: &Time, min: f64, max: f64) -> Option<f64> {
        match time.ms() {
            Ok(ms) if (min..=max).contains(&ms) => Some(ms),
            Ok(_) => {
                self.add(at, time.0.clone(), format!("{} to {}", say(min), say(max)));
                None
            }
            Err(error) => {
                self.add(at, format!("{:?}", time.0), error.to_string());
                None
            }
        }
    }

    pub(crate) fn positive(&mut self, at: &[Step], field: &'static str, n: f64) -> Option<f64> {
        let right = n > 0.0 && n.is_finite();
        if !right {
            self.add(&below(at, field), n.to_string(), "a number above 0");
        }
        right.then_some(n)
    }

    pub(crate) fn not_negative(&mut self, at: &[Step], field: &'static str, n: f64) -> Option<f64> {
        let right = n >= 0.0 && n.is_finite();
        if !right {
            self.add(&below(at, field), n.to_string(), "a number of at least 0");
        }
        right.then_some(n)
    }

    pub(crate) fn whole(&mut self, field: &'static str, n: Option<i64>, max: i64) -> Option<i64> {
        self.whole_at(&below(&[], field), n, max)
    }

    pub(crate) fn whole_at(&mut self, at: &[Step], n: Option<i64>, max: i64) -> Option<i64> {
        let n = n?;
        if !(1..=max).contains(&n) {
            self.add(at, n.to_string(), format!("1 to {max}"));
            return None;
        }
        Some(n)
    }

    /// Returns a number if it is above 0 and at most `max`.
    pub(crate) fn within(&mut self, at: &[Step], n: f64, max: f64) -> Option<f64> {
        let right = n > 0.0 && n <= max;
        if !right {
            self.add(at, n.to_string(), format!("above 0, up to {max}"));
        }
        right.then_some(n)
    }
}

pub(crate) fn below(at: &[Step], field: &'static str) -> Vec<Step> {
    [at, &[Step::Field(field.into())]].concat()
}

pub(crate) fn item(at: &[Step], i: usize) -> Vec<Step> {
    [at, &[Step::Item(i)]].concat()
}

fn say(ms: f64) -> String {
    match ms {
        HOUR_MS => "1h".to_owned(),
        ms if ms > HOUR_MS => format!("{}h", ms / HOUR_MS),
        ms if ms > 0.0 && ms < 1.0 => format!("{}us", ms * 1e3),
        ms => format!("{ms}ms"),
    }
}
