//! A place in a policy: what is wrong with it is added there, and its setting is read there.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeBounds as _;

use super::{Real, Time, Whole, micros};
use crate::Duration;
use crate::validate::path::Path;
use crate::validate::schema::right_types;

/// The problems found.
#[derive(Debug, Default)]
pub(crate) struct Problems(RefCell<Vec<(Path, String)>>);

impl Problems {
    /// Returns the place of the whole document.
    pub(crate) fn document(&self) -> At<'_> {
        At {
            path: Path::default(),
            problems: self,
        }
    }

    pub(crate) fn into_inner(self) -> Vec<(Path, String)> {
        self.0.into_inner()
    }
}

/// The field of a block of settings, and the type or two types that it is for.
pub(super) type Block<T> = (&'static str, T, Option<T>);

/// A place in a policy.
#[derive(Debug, Clone)]
pub(crate) struct At<'p> {
    path: Path,
    problems: &'p Problems,
}

impl<'p> At<'p> {
    fn with(&self, path: Path) -> Self {
        Self { path, ..*self }
    }

    /// Returns the place of a field, or of one in nested blocks (`cost.size`).
    pub(crate) fn field(&self, fields: &str) -> Self {
        self.with(self.path.field(fields))
    }

    /// Returns the place of the value of `key`, which may contain dots.
    pub(super) fn key(&self, key: &str) -> Self {
        self.with(self.path.key(key))
    }

    /// Returns the place of an item of a list.
    pub(super) fn item(&self, index: usize) -> Self {
        self.with(self.path.item(index))
    }

    /// Returns the place of the whole document.
    pub(super) fn document(&self) -> At<'p> {
        self.problems.document()
    }

    pub(super) const fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a problem of this place: its value and a correct value.
    pub(crate) fn add(&self, message: impl Into<String>) {
        let problem = (self.path.clone(), message.into());
        self.problems.0.borrow_mut().push(problem);
    }

    /// Adds a problem if there is one.
    pub(super) fn add_any(&self, problem: Option<String>) {
        if let Some(problem) = problem {
            self.add(problem);
        }
    }

    /// Returns the number of problems found so far, anywhere.
    pub(crate) fn found(&self) -> usize {
        self.problems.0.borrow().len()
    }

    /// Adds a problem if there are more than `most` of `what` here.
    pub(super) fn at_most(&self, most: usize, count: usize, what: &str) {
        if count > most {
            self.add(format!("{count} {what}; at most {most}"));
        }
    }

    /// Adds a problem at each of `blocks` of settings that `is_given`, but not for type `kind`.
    pub(super) fn only_blocks_of<T: Copy + Display + PartialEq, const N: usize>(
        &self,
        kind: T,
        blocks: [Block<T>; N],
        is_given: [bool; N],
    ) {
        for ((field, owner, other), is_given) in blocks.into_iter().zip(is_given) {
            if is_given && kind != owner && Some(kind) != other {
                let right = right_types(owner, other);
                self.field(field)
                    .add(format!("given with type {kind}; {right}"));
            }
        }
    }

    /// Returns the length of `duration` in µs; `None`, with a problem added, if it isn't a duration
    /// or is out of bounds.
    pub(super) fn duration(&self, duration: &Duration, time: &Time) -> Option<u64> {
        let (min, max) = time.bounds;
        match duration.parse() {
            Err(error) => self.add(format!("{:?}; {error}", duration.0)),
            Ok(span) if span < min || span > max => {
                self.add(format!("{duration}; {}", time.right()));
            }
            Ok(span) => return Some(micros(span)),
        }
        None
    }

    /// Like [`Self::duration`], with the default in place of `None`.
    pub(super) fn time(&self, duration: Option<&Duration>, time: &Time) -> u64 {
        duration
            .and_then(|d| self.duration(d, time))
            .unwrap_or(micros(time.default))
    }

    /// Returns `number` if it is within bounds, or the default.
    pub(super) fn real(&self, number: Option<f64>, real: &Real) -> f64 {
        match number {
            None => real.default,
            Some(number) if real.bounds.contains(&number) => number,
            Some(number) => {
                self.add(format!("{number}; {}", real.right));
                real.default
            }
        }
    }

    /// Like [`Self::real`], but without a default for `None`.
    pub(super) fn given_real(&self, number: Option<f64>, real: &Real) -> Option<f64> {
        number.map(|number| self.real(Some(number), real))
    }

    /// Returns `number` if it is within bounds, or the default.
    pub(super) fn whole(&self, number: Option<i64>, whole: &Whole) -> u32 {
        let Some(number) = number else {
            return whole.default;
        };
        let (min, max) = whole.bounds;
        match u32::try_from(number) {
            Ok(n) if (min..=max).contains(&n) => n,
            _ => {
                self.add(format!("{number}; {}", whole.right()));
                whole.default
            }
        }
    }
}
