//! A place in a policy. Rules read the setting at this place and record its problems through the
//! place.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use super::field::{By, Field};
use super::micros;
use crate::validate::node::{Node, Value};
use crate::validate::path::{Path, Segment};

/// The problems found.
#[derive(Debug, Default)]
pub(crate) struct Problems(RefCell<Vec<(Path, String)>>);

impl Problems {
    /// Returns the place of the whole document, whose content is `given`.
    pub(crate) fn document<'p>(&'p self, given: Option<&'p Node>) -> At<'p> {
        At {
            path: Path::default(),
            row: String::new(),
            given,
            problems: self,
        }
    }

    pub(crate) fn into_inner(self) -> Vec<(Path, String)> {
        self.0.into_inner()
    }
}

/// A place in a policy.
#[derive(Debug, Clone)]
pub(crate) struct At<'p> {
    path: Path,
    /// The path of the field's row in the tables.
    row: String,
    /// The value given at this place; null counts as absent.
    given: Option<&'p Node>,
    problems: &'p Problems,
}

impl<'p> At<'p> {
    fn below(&self, path: Path, row: &str, given: Option<&'p Node>) -> Self {
        Self {
            path,
            row: format!("{}{row}", self.row),
            given: given.filter(|node| node.value != Value::Null),
            problems: self.problems,
        }
    }

    /// Returns the place of a field, or of a field in nested blocks (`cost.size`).
    pub(crate) fn field(&self, fields: &str) -> Self {
        let row = match fields {
            // Paths in the tables are relative to `spec`.
            "spec" => String::new(),
            fields => format!(".{fields}"),
        };
        let field = |node: &'p Node, name| node.get(name);
        let given = self.given;
        let given = given.and_then(|node| fields.split('.').try_fold(node, field));
        self.below(self.path.field(fields), &row, given)
    }

    /// Returns the place of the value of `key`, which may contain dots.
    pub(super) fn key(&self, key: &str) -> Self {
        let given = self.given.and_then(|node| node.get(key));
        self.below(self.path.key(key), "{}", given)
    }

    /// Returns the place of an item of a list.
    pub(super) fn item(&self, index: usize) -> Self {
        let given = self.given.and_then(|node| node.item(index));
        self.below(self.path.item(index), "[]", given)
    }

    /// Returns the place of the whole document.
    pub(super) fn document(&self) -> At<'p> {
        self.problems.document(None)
    }

    pub(super) const fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a problem of this place: the value and a correct value.
    pub(crate) fn add(&self, message: impl Into<String>) {
        let problem = (self.path.clone(), message.into());
        self.problems.0.borrow_mut().push(problem);
    }

    /// Adds `problem`, if any.
    pub(super) fn add_any(&self, problem: Option<String>) {
        if let Some(problem) = problem {
            self.add(problem);
        }
    }

    /// Returns the number of problems found so far, anywhere.
    pub(crate) fn found(&self) -> usize {
        self.problems.0.borrow().len()
    }

    /// Whether a value is given, other than an empty list or mapping.
    pub(super) fn is_given(&self) -> bool {
        let is_empty = |node: &Node| match &node.value {
            Value::List(items) => items.is_empty(),
            Value::Map(members) => members.is_empty(),
            _ => matches!(node.value, Value::Anything),
        };
        match Field::at(&self.row) {
            Some(Field::List(..) | Field::Map(..)) => !self.given.is_none_or(is_empty),
            _ => self.given.is_some(),
        }
    }

    /// Returns the field's row. A missing row is reported as a problem, so that tests fail.
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

    /// Adds a problem at each item of the list that has the key of an earlier item; `right` is the
    /// rule.
    pub(super) fn unique(&self, right: &str) {
        let (Some(Field::List(.., By::Key(key))), Some(Segment::Field(list)), Some(node)) =
            (self.row(), self.path.segments().last(), self.given)
        else {
            return;
        };
        let mut first_of = HashMap::new();
        let items = (0..).map_while(|index| node.item(index));
        for (i, item) in items.enumerate() {
            let Some(name) = item.get(key).and_then(Node::text) else {
                continue;
            };
            let first = *first_of.entry(name).or_insert(i);
            if first < i {
                let problem = format!("{name:?} is also {list}[{first}]; {right}");
                self.item(i).field(key).add(problem);
            }
        }
    }

    /// Adds a problem unless the text is right. Returns whether the text is right.
    pub(super) fn text(&self, text: &str) -> bool {
        let problem = self.row().and_then(|row| row.problem(text));
        let is_right = problem.is_none();
        self.add_any(problem);
        is_right
    }

    /// Returns the given value, or the default.
    pub(super) fn flag(&self) -> bool {
        match (self.row(), self.given) {
            (Some(Field::Flag(default)), None) => *default,
            (_, given) => given.is_some_and(|node| node.value == Value::Bool(true)),
        }
    }

    /// Returns the values of the mapping, as far as `read` returns them.
    pub(super) fn values<T>(&self, read: impl Fn(&Self) -> Option<T>) -> BTreeMap<String, T> {
        let Some(Value::Map(members)) = self.given.map(|node| &node.value) else {
            return BTreeMap::new();
        };
        let value = |key: &String| Some((key.clone(), read(&self.key(key))?));
        members
            .iter()
            .filter_map(|member| value(&member.key))
            .collect()
    }

    /// Returns the number, or the default; of a duration, in ms.
    pub(super) fn real(&self) -> f64 {
        let instead = || match self.row() {
            Some(Field::Number(range)) => range.instead(),
            _ => 0.0,
        };
        self.given_real().unwrap_or_else(instead)
    }

    /// Returns the number; `None`, with a problem added, if the number is out of bounds.
    pub(super) fn given_real(&self) -> Option<f64> {
        let number = self.row()?.number(self.given?);
        number.map_err(|problem| self.add(problem)).ok()
    }

    /// Returns the whole number, or the default.
    pub(super) fn whole(&self) -> u32 {
        self.real() as u32
    }

    /// Returns the whole number; `None`, with a problem added, if it is out of bounds.
    pub(super) fn given_whole(&self) -> Option<u32> {
        self.given_real().map(|number| number as u32)
    }

    /// Returns the length of the duration in µs, or of the default.
    pub(super) fn time(&self) -> u64 {
        micros(self.real())
    }

    /// Returns the length of the duration in µs; `None`, with a problem added, if the value isn't a
    /// duration or is out of bounds.
    pub(super) fn given_time(&self) -> Option<u64> {
        self.given_real().map(micros)
    }
}
