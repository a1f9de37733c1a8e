//! A place in a policy, through which rules read its setting and record its problems.

use std::cell::RefCell;
use std::fmt::Display;

use super::field::Field;
use super::micros;
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
            row: String::new(),
            problems: self,
        }
    }

    pub(crate) fn into_inner(self) -> Vec<(Path, String)> {
        self.0.into_inner()
    }
}

/// The field of a block of settings, and the one or two types that it belongs to.
pub(super) type Block<T> = (&'static str, T, Option<T>);

/// A place in a policy.
#[derive(Debug, Clone)]
pub(crate) struct At<'p> {
    path: Path,
    /// The path of its row in the tables of fields.
    row: String,
    problems: &'p Problems,
}

impl<'p> At<'p> {
    fn below(&self, path: Path, row: &str) -> Self {
        let row = format!("{}{row}", self.row);
        Self { path, row, ..*self }
    }

    /// Returns the place of a field, or of one in nested blocks (`cost.size`).
    pub(crate) fn field(&self, fields: &str) -> Self {
        let row = match fields {
            // Tables begin there.
            "spec" => String::new(),
            fields => format!(".{fields}"),
        };
        self.below(self.path.field(fields), &row)
    }

    /// Returns the place of the value of `key`, which may contain dots.
    pub(super) fn key(&self, key: &str) -> Self {
        self.below(self.path.key(key), "{}")
    }

    /// Returns the place of an item of a list.
    pub(super) fn item(&self, index: usize) -> Self {
        self.below(self.path.item(index), "[]")
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

    /// Returns the field's row. A field without a row is a problem, so that tests fail.
    fn row(&self) -> Option<&'static Field> {
        let row = Field::at(&self.row);
        if row.is_none() {
            self.add("no row in the tables of fields");
        }
        row
    }

    /// Adds a problem if the list or the mapping has more items than allowed.
    pub(super) fn count(&self, count: usize) {
        if let Some(row @ (Field::List(most, what, _) | Field::Map(most, what))) = self.row()
            && count > *most
        {
            self.add(format!("{count} {what}; {}", row.right()));
        }
    }

    /// Adds a problem unless the text is right. Returns whether it is.
    pub(super) fn text(&self, text: &str) -> bool {
        let problem = self.row().and_then(|row| row.problem(text));
        let is_right = problem.is_none();
        self.add_any(problem);
        is_right
    }

    /// Returns the given value, or the default.
    pub(super) fn flag(&self, given: Option<bool>) -> bool {
        match self.row() {
            Some(Field::Flag(default)) => given.unwrap_or(*default),
            _ => false,
        }
    }

    /// Returns the length of the duration in µs, or of the default.
    pub(super) fn time(&self, given: Option<&Duration>) -> u64 {
        match self.row() {
            Some(Field::Time(range)) => self.given_time(given).unwrap_or(micros(range.instead())),
            _ => 0,
        }
    }

    /// Returns the length of the duration in µs; `None`, with a problem added, if it isn't a
    /// duration or is out of bounds.
    pub(super) fn given_time(&self, given: Option<&Duration>) -> Option<u64> {
        let given = given?;
        match (given.parse(), self.row()?) {
            (Ok(span), Field::Time(range)) if range.holds(span) => return Some(micros(span)),
            (Ok(_), row) => self.add(format!("{given}; {}", row.right())),
            (Err(error), _) => self.add(format!("{:?}; {error}", given.0)),
        }
        None
    }

    /// Returns the number, or the default.
    pub(super) fn real(&self, given: Option<f64>) -> f64 {
        match self.row() {
            Some(Field::Real(range)) => self.given_real(given).unwrap_or(range.instead()),
            _ => 0.0,
        }
    }

    /// Returns the number; `None`, with a problem added, if it is out of bounds.
    pub(super) fn given_real(&self, given: Option<f64>) -> Option<f64> {
        let given = given?;
        match self.row()? {
            Field::Real(range) if range.holds(given) => return Some(given),
            row => self.add(format!("{given}; {}", row.right())),
        }
        None
    }

    /// Returns the number, or the default.
    pub(super) fn whole(&self, given: Option<i64>) -> u32 {
        match self.row() {
            Some(Field::Whole(range)) => self.given_whole(given).unwrap_or(range.instead()),
            _ => 0,
        }
    }

    /// Returns the number; `None`, with a problem added, if it is out of bounds.
    pub(super) fn given_whole(&self, given: Option<i64>) -> Option<u32> {
        let given = given?;
        match (u32::try_from(given), self.row()?) {
            (Ok(number), Field::Whole(range)) if range.holds(number) => return Some(number),
            (_, row) => self.add(format!("{given}; {}", row.right())),
        }
        None
    }
}
