//! The fields of a policy that have bounds, a format or a default. Each field has one row in a
//! table, at the beginning of the file with the field's rules. The row determines the check of the
//! field, the message, and the field's part of the API server's schema.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

use regex_lite::Regex;

use super::micros;
use crate::Duration;
use crate::validate::node::{Node, Value};

/// Fields by their paths below the table's place, with `[]` for the items of a list and `{}` for
/// the values of a mapping.
pub(super) type Table = &'static [(&'static str, Field)];

/// The requirements on a field.
#[derive(Debug)]
pub(super) enum Field {
    Number(Range),
    /// True or false, with its default.
    Flag(bool),
    Text(&'static Format),
    /// A text whose meaning is defined outside of the policy: its description, and its maximum
    /// length in bytes.
    Free(&'static str, usize),
    /// A list: its maximum length, a noun for its items, and the way in which the items are
    /// identified.
    List(usize, &'static str, By),
    /// A mapping: its maximum size, and a noun for its items.
    Map(usize, &'static str),
}

/// The meaning of an absent number.
#[derive(Debug, Clone, Copy)]
pub(super) enum Absent {
    /// A default, which the API server stores.
    Stored(f64),
    /// A default that the API server doesn't store, because other fields decide whether the field
    /// may be given.
    Assumed(f64),
    /// No default, or a default that depends on other fields.
    Open,
}

/// The way a number is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Whole,
    Real,
    /// A duration, whose number is in ms.
    Time,
}

/// A range of numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    pub(super) unit: Unit,
    pub(super) absent: Absent,
    least: (f64, Comparison),
    most: (f64, Comparison),
    /// The value in words, before its bounds; may be empty.
    what: &'static str,
    /// The value and its bounds in words, in place of the numbers.
    words: Option<&'static str>,
}

/// `<` or `<=`.
type Comparison = &'static str;

/// The way server-side apply identifies the items of a list.
#[derive(Debug, Clone, Copy)]
pub(super) enum By {
    /// By this field of each item.
    Key(&'static str),
    /// By their texts, each of which may occur once.
    Text,
    /// Not at all: the whole list belongs to one writer.
    Nothing,
}

/// A format of texts.
#[derive(Debug)]
pub(super) struct Format {
    /// The longest text, in bytes.
    pub(super) most: usize,
    /// A regular expression for the whole text.
    pub(super) pattern: &'static str,
    /// The format in words.
    pub(super) right: &'static str,
    regex: OnceLock<Option<Regex>>,
}

/// Returns the path in its shortest form.
fn plain(path: &str) -> String {
    let path = path.trim_start_matches('.');
    path.replace(".[", "[").replace(".{", "{")
}

/// Returns the row of a whole number.
pub(super) const fn whole(absent: Absent, least: u32, most: u32) -> Field {
    Field::Number(Range::closed(
        Unit::Whole,
        absent,
        least as f64,
        most as f64,
        "",
    ))
}

/// Returns the row of a duration; all numbers are in ms.
pub(super) const fn time(absent: Absent, least: f64, most: f64) -> Field {
    Field::Number(Range::closed(Unit::Time, absent, least, most, ""))
}

/// Returns the row of a number; `what` describes the number.
pub(super) const fn real(absent: Absent, least: f64, most: f64, what: &'static str) -> Field {
    Field::Number(Range::closed(Unit::Real, absent, least, most, what))
}

impl Field {
    /// Excludes the least number.
    pub(super) const fn above(mut self) -> Self {
        if let Self::Number(range) = &mut self {
            range.least.1 = "<";
        }
        self
    }

    /// Sets the value and its bounds in words.
    pub(super) const fn words(mut self, words: &'static str) -> Self {
        if let Self::Number(range) = &mut self {
            range.words = Some(words);
        }
        self
    }

    /// Excludes the greatest number.
    pub(super) const fn below(mut self) -> Self {
        if let Self::Number(range) = &mut self {
            range.most.1 = "<";
        }
        self
    }

    /// Returns the field at `path` below `spec`.
    pub(super) fn at(path: &str) -> Option<&'static Self> {
        static ALL: LazyLock<HashMap<String, &Field>> = LazyLock::new(|| {
            let all = super::all_fields();
            all.map(|(path, field)| (plain(&path), field)).collect()
        });
        ALL.get(&plain(path)).copied()
    }

    /// Returns CEL that tests whether `value` is within bounds. For a duration field, evaluation
    /// fails if `value` isn't a duration.
    pub(super) fn within(&self, value: &str) -> String {
        match self {
            Self::Number(range) => range.cel(value),
            _ => "true".to_owned(),
        }
    }

    /// Returns the requirement in words.
    pub(super) fn right(&self) -> String {
        match self {
            Self::Number(range) => range.right(),
            Self::Text(format) => format.right.to_owned(),
            Self::Free(what, most) => {
                format!("{what}, 1 to {most} bytes without control characters")
            }
            Self::List(most, ..) | Self::Map(most, _) => format!("at most {most}"),
            Self::Flag(_) => "true or false".to_owned(),
        }
    }

    /// Returns the number that is `given`, or its problem.
    pub(super) fn number(&self, given: &Node) -> Result<f64, String> {
        let (number, shown) = match (&given.value, self) {
            (Value::Text(text), _) => {
                let span = Duration(text.clone()).parse();
                let span = span.map_err(|error| format!("{text:?}; {error}"))?;
                (span.as_secs_f64() * 1000.0, text.clone())
            }
            (Value::Float(number), _) => (*number, number.to_string()),
            (Value::Int(number), _) => (*number as f64, number.to_string()),
            _ => (0.0, given.describe()),
        };
        match self {
            Self::Number(range) if range.holds(number) => Ok(number),
            _ => Err(format!("{shown}; {}", self.right())),
        }
    }

    /// Returns the problem of a text.
    pub(super) fn problem(&self, text: &str) -> Option<String> {
        let found = match self {
            Self::Free(_, most) if text.len() > *most => format!("{} bytes", text.len()),
            Self::Free(..) if !text.is_empty() && !text.chars().any(char::is_control) => {
                return None;
            }
            Self::Text(format) if format.is(text) => return None,
            _ => format!("{text:?}"),
        };
        Some(format!("{found}; {}", self.right()))
    }
}

/// Returns the text of a duration of `ms`.
pub(super) fn duration(ms: f64) -> String {
    Duration::of_micros(micros(ms)).0
}

impl Range {
    const fn closed(unit: Unit, absent: Absent, least: f64, most: f64, what: &'static str) -> Self {
        Self {
            unit,
            absent,
            least: (least, "<="),
            most: (most, "<="),
            what,
            words: None,
        }
    }

    /// Returns the value that replaces an absent or invalid field.
    pub(super) const fn instead(&self) -> f64 {
        match self.absent {
            Absent::Stored(value) | Absent::Assumed(value) => value,
            Absent::Open => self.least.0,
        }
    }

    fn cel(&self, value: &str) -> String {
        let text = |number: f64| match self.unit {
            Unit::Whole => number.to_string(),
            Unit::Real => format!("{number:?}"),
            Unit::Time => format!("duration('{}')", duration(number)),
        };
        let (least, most) = (text(self.least.0), text(self.most.0));
        let above = self.least.1.replace('<', ">");
        let below = self.most.1;
        match self.unit {
            Unit::Time => {
                let value = format!("duration({value})");
                format!("({value} {above} {least} && {value} {below} {most})")
            }
            _ => format!("{value} {above} {least} && {value} {below} {most}"),
        }
    }

    fn right(&self) -> String {
        if let Some(words) = self.words {
            return words.to_owned();
        }
        let text = |number: f64| match self.unit {
            Unit::Real if number >= 1e9 => format!("{number:e}"),
            Unit::Whole | Unit::Real => number.to_string(),
            Unit::Time => duration(number),
        };
        let (least, most) = (text(self.least.0), text(self.most.0));
        let bounds = match (self.least.1, self.most.1) {
            ("<=", "<=") => format!("{least} to {most}"),
            ("<", "<=") => format!("above {least}, at most {most}"),
            ("<=", _) => format!("{least} to less than {most}"),
            _ => format!("above {least}, below {most}"),
        };
        let comma = if self.what.is_empty() { "" } else { ", " };
        format!("{}{comma}{bounds}", self.what)
    }

    /// Whether `value` is within bounds.
    fn holds(&self, value: f64) -> bool {
        let in_order =
            |low: f64, comparison, high: f64| low < high || comparison == "<=" && low == high;
        in_order(self.least.0, self.least.1, value) && in_order(value, self.most.1, self.most.0)
    }
}

impl Format {
    /// Returns the format of texts of at most `most` bytes that match `pattern`. `right` is the
    /// format in words.
    pub(super) const fn new(most: usize, pattern: &'static str, right: &'static str) -> Self {
        Self {
            most,
            pattern,
            right,
            regex: OnceLock::new(),
        }
    }

    /// Whether `text` has the format.
    pub(super) fn is(&self, text: &str) -> bool {
        let regex = self.regex.get_or_init(|| Regex::new(self.pattern).ok());
        text.len() <= self.most && regex.as_ref().is_some_and(|regex| regex.is_match(text))
    }

    /// Returns CEL that tests whether `value` has the format, apart from its length.
    pub(super) fn cel(&self, value: &str) -> String {
        format!("{value}.matches({})", literal(self.pattern))
    }
}

/// Returns `text` as a literal of CEL.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
