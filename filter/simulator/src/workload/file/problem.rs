//! Problems of a file: the field, the value found, and a valid value.

use std::cell::RefCell;

use super::Time;

pub(crate) const HOUR_MS: f64 = 3_600_000.0;
/// The maximum number of clients of a closed loop.
pub(crate) const MOST_CLIENTS: i64 = 100_000;

/// An invalid field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The path to the field, such as `types[2].name`.
    pub at: String,
    /// The value found.
    pub found: String,
    /// A valid value.
    pub right: Right,
}

/// A description of valid values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Right {
    /// A text.
    Text(String),
    /// The names of the policy's types. The value found is the invalid name.
    TypeOfPolicy(Vec<String>),
}

/// A field of a file to check, with the problems found so far.
#[derive(Debug, Clone)]
pub(crate) struct At<'p> {
    path: String,
    problems: &'p RefCell<Vec<Problem>>,
}

/// Runs `checks` on the whole file.
///
/// # Errors
/// All problems found.
pub(crate) fn checked<T>(checks: impl FnOnce(&At<'_>) -> Option<T>) -> Result<T, Vec<Problem>> {
    let problems = RefCell::default();
    let result = checks(&At {
        path: String::new(),
        problems: &problems,
    });
    match (result, problems.into_inner()) {
        (Some(result), none) if none.is_empty() => Ok(result),
        (_, problems) => Err(problems),
    }
}

impl<'p> At<'p> {
    fn below(&self, path: String) -> Self {
        Self { path, ..*self }
    }

    /// Returns the field `name` of this mapping.
    pub(crate) fn field(&self, name: &str) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        self.below(format!("{}{dot}{name}", self.path))
    }

    /// Returns the item `i` of this list.
    pub(crate) fn item(&self, i: usize) -> Self {
        self.below(format!("{}[{i}]", self.path))
    }

    /// Checks every item of this list; `None` if an item is invalid.
    pub(crate) fn each<E, T>(
        &self,
        entries: &[E],
        check: impl Fn(&Self, &E) -> Option<T>,
    ) -> Option<Vec<T>> {
        let entries = entries.iter().enumerate();
        let results: Vec<_> = entries
            .map(|(i, entry)| check(&self.item(i), entry))
            .collect();
        results.into_iter().collect()
    }

    pub(crate) fn problem(&self, found: impl Into<String>, right: Right) {
        self.problems.borrow_mut().push(Problem {
            at: self.path.clone(),
            found: found.into(),
            right,
        });
    }

    /// Records that this field is invalid.
    pub(crate) fn note(&self, found: impl Into<String>, right: impl Into<String>) {
        self.problem(found, Right::Text(right.into()));
    }

    /// Records that this field is invalid, and returns `None`.
    pub(crate) fn refuse<T>(
        &self,
        found: impl Into<String>,
        right: impl Into<String>,
    ) -> Option<T> {
        self.note(found, right);
        None
    }

    /// Returns the value made from this field. Records the error as a problem and returns `None` if
    /// there is an error.
    pub(crate) fn made<T>(&self, made: Result<T, impl ToString>) -> Option<T> {
        let note = |error: String| {
            let (found, right) = error.split_once("; ").unwrap_or((&error, "other settings"));
            self.refuse(found, right)
        };
        made.map_or_else(|error| note(error.to_string()), Some)
    }

    /// Returns the length of `time`, ms, if this length is within the bounds; otherwise records a
    /// problem.
    pub(crate) fn time(&self, time: &Time, min: f64, max: f64) -> Option<f64> {
        match time.ms() {
            Ok(ms) if (min..=max).contains(&ms) => Some(ms),
            Ok(_) => self.refuse(&time.0, format!("{} to {}", say(min), say(max))),
            Err(error) => self.refuse(format!("{:?}", time.0), error),
        }
    }

    /// Returns the number if `is_right`; otherwise records a problem.
    pub(crate) fn number(&self, n: f64, is_right: bool, right: impl Into<String>) -> Option<f64> {
        match is_right {
            true => Some(n),
            false => self.refuse(n.to_string(), right),
        }
    }

    pub(crate) fn positive(&self, n: f64) -> Option<f64> {
        self.number(n, n > 0.0 && n.is_finite(), "a number above 0")
    }

    pub(crate) fn not_negative(&self, n: f64) -> Option<f64> {
        self.number(n, n >= 0.0 && n.is_finite(), "a number of at least 0")
    }

    /// Returns the number if it is above 0 and at most `max`; otherwise records a problem.
    pub(crate) fn within(&self, n: f64, max: f64) -> Option<f64> {
        self.number(n, n > 0.0 && n <= max, format!("above 0, at most {max}"))
    }

    /// Returns the number if it is from 1 to `max`; otherwise records a problem. `None` if the
    /// number isn't set.
    pub(crate) fn whole<T: TryFrom<i64>>(&self, n: Option<i64>, max: i64) -> Option<T> {
        let n = n?;
        match (1..=max).contains(&n) {
            true => T::try_from(n).ok(),
            false => self.refuse(n.to_string(), format!("1 to {max}")),
        }
    }

    /// Returns the seed of the first run; `None` if the seed isn't set.
    pub(crate) fn seed(&self, n: Option<i64>) -> Option<u64> {
        let n = n?;
        let wrong = || self.refuse(n.to_string(), "a whole number of at least 0");
        u64::try_from(n).ok().or_else(wrong)
    }
}

fn say(ms: f64) -> String {
    match ms {
        HOUR_MS => "1h".to_owned(),
        ms if ms > HOUR_MS => format!("{}h", ms / HOUR_MS),
        ms if ms > 0.0 && ms < 1.0 => format!("{}us", ms * 1e3),
        ms => format!("{ms}ms"),
    }
}
