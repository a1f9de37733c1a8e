//! The fields of a policy that have bounds, a format or a default. Each field has one row in a
//! table, at the beginning of the file with the field's rules. The row determines the check of the
//! field, the message, and the field's part of the API server's schema.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};
use std::time::Duration as Span;

use regex_lite::Regex;

use crate::Duration;
use crate::validate::schema::literal;

/// Fields by their paths below the table's place, with `[]` for the items of a list and `{}` for
/// the values of a mapping.
pub(super) type Table = &'static [(&'static str, Field)];

/// The requirements on a field.
#[derive(Debug)]
pub(in crate::validate) enum Field {
    Whole(Range<u32>),
    Real(Range<f64>),
    Time(Range<Span>),
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

/// The meaning of an absent field.
#[derive(Debug, Clone, Copy)]
pub(in crate::validate) enum Absent<T> {
    /// A default, which the API server stores.
    Stored(T),
    /// A default that the API server doesn't store, because other fields decide whether the field
    /// may be given.
    Assumed(T),
    /// No default, or a default that depends on other fields.
    Open,
}

/// A range of numbers or durations.
#[derive(Debug, Clone, Copy)]
pub(in crate::validate) struct Range<T> {
    pub(in crate::validate) absent: Absent<T>,
    least: (T, Comparison),
    most: (T, Comparison),
    /// The value in words, before its bounds; may be empty.
    what: &'static str,
    /// The value and its bounds in words, in place of the numbers.
    words: Option<&'static str>,
}

/// `<` or `<=`.
type Comparison = &'static str;

/// The way server-side apply identifies the items of a list.
#[derive(Debug, Clone, Copy)]
pub(in crate::validate) enum By {
    /// By this field of each item.
    Key(&'static str),
    /// By their texts, each of which may occur once.
    Text,
    /// Not at all: the whole list belongs to one writer.
    Nothing,
}

/// A format of texts.
#[derive(Debug)]
pub(in crate::validate) struct Format {
    /// The longest text, in bytes.
    pub(in crate::validate) most: usize,
    /// A regular expression for the whole text.
    pub(in crate::validate) pattern: &'static str,
    /// The format in words.
    pub(in crate::validate) right: &'static str,
    regex: OnceLock<Option<Regex>>,
}

/// Returns the path in its shortest form.
fn plain(path: &str) -> String {
    let path = path.trim_start_matches('.');
    path.replace(".[", "[").replace(".{", "{")
}

pub(super) const fn whole(absent: Absent<u32>, least: u32, most: u32) -> Field {
    Field::Whole(Range::closed(absent, least, most, ""))
}

pub(super) const fn time(absent: Absent<Span>, least: Span, most: Span) -> Field {
    Field::Time(Range::closed(absent, least, most, ""))
}

/// Returns the row of a number; `what` describes the number.
pub(super) const fn real(absent: Absent<f64>, least: f64, most: f64, what: &'static str) -> Field {
    Field::Real(Range::closed(absent, least, most, what))
}

impl Field {
    /// Excludes the least number.
    pub(super) const fn above(self) -> Self {
        match self {
            Self::Real(mut range) => {
                range.least.1 = "<";
                Self::Real(range)
            }
            other => other,
        }
    }

    /// Sets the value and its bounds in words.
    pub(super) const fn words(self, words: &'static str) -> Self {
        match self {
            Self::Real(mut range) => {
                range.words = Some(words);
                Self::Real(range)
            }
            other => other,
        }
    }

    /// Excludes the greatest number.
    pub(super) const fn below(self) -> Self {
        match self {
            Self::Real(mut range) => {
                range.most.1 = "<";
                Self::Real(range)
            }
            other => other,
        }
    }

    /// Returns the field at `path` below `spec`.
    pub(in crate::validate) fn at(path: &str) -> Option<&'static Self> {
        static ALL: LazyLock<HashMap<String, &Field>> = LazyLock::new(|| {
            let all = super::all_fields();
            all.map(|(path, field)| (plain(&path), field)).collect()
        });
        ALL.get(&plain(path)).copied()
    }

    /// Returns CEL that tests whether `value` is within bounds. For a duration field, evaluation
    /// fails if `value` isn't a duration.
    pub(in crate::validate) fn within(&self, value: &str) -> String {
        match self {
            Self::Whole(range) => range.cel(value, |n| n.to_string()),
            Self::Real(range) => range.cel(value, |n| format!("{n:?}")),
            Self::Time(range) => {
                let text = |span| format!("duration('{}')", Duration::from(span));
                format!("({})", range.cel(&format!("duration({value})"), text))
            }
            _ => "true".to_owned(),
        }
    }

    /// Returns the requirement in words.
    pub(in crate::validate) fn right(&self) -> String {
        match self {
            Self::Whole(range) => range.right(|n| n.to_string()),
            Self::Real(range) => range.right(|n| match n {
                large if large >= 1e9 => format!("{large:e}"),
                other => other.to_string(),
            }),
            Self::Time(range) => range.right(|span| Duration::from(span).0),
            Self::Text(format) => format.right.to_owned(),
            Self::Free(what, most) => {
                format!("{what}, 1 to {most} bytes without control characters")
            }
            Self::List(most, ..) | Self::Map(most, _) => format!("at most {most}"),
            Self::Flag(_) => "true or false".to_owned(),
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

impl<T: Copy> Range<T> {
    const fn closed(absent: Absent<T>, least: T, most: T, what: &'static str) -> Self {
        Self {
            absent,
            least: (least, "<="),
            most: (most, "<="),
            what,
            words: None,
        }
    }

    /// Returns the default.
    pub(in crate::validate) fn default(&self) -> Option<T> {
        match self.absent {
            Absent::Stored(value) | Absent::Assumed(value) => Some(value),
            Absent::Open => None,
        }
    }

    /// Returns the value that replaces an absent or invalid field.
    pub(super) fn instead(&self) -> T {
        self.default().unwrap_or(self.least.0)
    }

    fn cel(&self, value: &str, text: impl Fn(T) -> String) -> String {
        let (least, most) = (text(self.least.0), text(self.most.0));
        let above = self.least.1.replace('<', ">");
        format!("{value} {above} {least} && {value} {} {most}", self.most.1)
    }

    fn right(&self, text: impl Fn(T) -> String) -> String {
        if let Some(words) = self.words {
            return words.to_owned();
        }
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
}

impl<T: Copy + PartialOrd> Range<T> {
    /// Whether `value` is within bounds.
    pub(super) fn holds(&self, value: T) -> bool {
        let in_order =
            |low: T, comparison, high: T| low < high || comparison == "<=" && low == high;
        in_order(self.least.0, self.least.1, value) && in_order(value, self.most.1, self.most.0)
    }
}

impl Format {
    /// Returns the format of texts of at most `most` bytes that match `pattern`. `right` is the
    /// format in words.
    pub(in crate::validate) const fn new(
        most: usize,
        pattern: &'static str,
        right: &'static str,
    ) -> Self {
        Self {
            most,
            pattern,
            right,
            regex: OnceLock::new(),
        }
    }

    /// Whether `text` has the format.
    pub(in crate::validate) fn is(&self, text: &str) -> bool {
        let regex = self.regex.get_or_init(|| Regex::new(self.pattern).ok());
        text.len() <= self.most && regex.as_ref().is_some_and(|regex| regex.is_match(text))
    }

    /// Returns CEL that tests whether `value` has the format, apart from its length.
    pub(in crate::validate) fn cel(&self, value: &str) -> String {
        format!("{value}.matches({})", literal(self.pattern))
    }
}
