//! The checks of a policy by the API server: the rules of `rules`, as far as it can check them.
//!
//! A mistake that `kubectl apply` refuses costs a second. A mistake in a status, which its author
//! may not read, costs an afternoon. So each file of rules has its part of the schema beside its
//! checks: the bounds and defaults are the same constants, and a rule in CEL has the same message.
//! The API server limits the cost of rules, by an estimate from the largest policy that the schema
//! allows; hence the bounds of every list, map and text. The operator checks what is too expensive
//! or impossible in CEL (regular expressions, matches that are never reached), and reports it in
//! the policy's status.

use std::fmt::Display;
use std::ops::Bound;

use serde_json::{Map, Value, json};

use super::rules::{self, Real, Time, Whole};
use crate::Duration;

/// The longest text of a duration: four numbers of five digits with their units.
const MAX_DURATION: usize = 28;
/// A duration as in GEP-2257.
const DURATION: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";

/// Adds defaults, bounds and rules to the structural schema of a policy's `spec`.
///
/// # Errors
/// Returns the fields that the rules name and the schema lacks.
pub fn constrain(spec: &mut Value) -> Result<(), Vec<String>> {
    let mut unknown = Vec::new();
    let mut place = Place {
        node: spec,
        path: String::new(),
        unknown: &mut unknown,
    };
    rules::schema(&mut place);
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(unknown),
    }
}

/// A field of the schema.
#[derive(Debug)]
pub(super) struct Place<'a> {
    node: &'a mut Value,
    path: String,
    unknown: &'a mut Vec<String>,
}

impl Place<'_> {
    /// Returns the field at `path` below this one, such as `types[].slo{}`, with `[]` for the items
    /// of a list and `{}` for the values of a mapping.
    pub(super) fn at(&mut self, path: &str) -> Place<'_> {
        let mut node = &mut *self.node;
        let mut is_known = true;
        for field in path.split('.') {
            let name = field.trim_end_matches(['[', ']', '{', '}']);
            let below = [
                (!name.is_empty()).then_some("properties"),
                (!name.is_empty()).then_some(name),
                field.ends_with("[]").then_some("items"),
                field.ends_with("{}").then_some("additionalProperties"),
            ];
            for key in below.into_iter().flatten() {
                is_known &= node.get(key).is_some();
                node = &mut node[key];
            }
        }
        let path = format!("{}.{path}", self.path);
        if !is_known {
            self.unknown.push(path.clone());
        }
        Place {
            node,
            path,
            unknown: self.unknown,
        }
    }

    fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.node[key] = value.into();
        self
    }

    /// Sets the largest number of items of a list.
    pub(super) fn max_items(&mut self, most: usize) -> &mut Self {
        self.set("maxItems", most)
    }

    /// Sets the largest number of entries of a mapping.
    pub(super) fn max_properties(&mut self, most: usize) -> &mut Self {
        self.set("maxProperties", most)
    }

    /// Sets the largest number of characters of a text.
    pub(super) fn max_length(&mut self, most: usize) -> &mut Self {
        self.set("maxLength", most)
    }

    /// Sets the pattern of a text that isn't empty, if the check is too expensive for CEL.
    pub(super) fn pattern(&mut self, pattern: &str) -> &mut Self {
        self.set("minLength", 1).characters(pattern)
    }

    /// Sets the pattern of a text that may be empty.
    pub(super) fn characters(&mut self, pattern: &str) -> &mut Self {
        self.set("pattern", pattern)
    }

    /// Sets the allowed values.
    pub(super) fn values(&mut self, values: impl IntoIterator<Item = &'static str>) -> &mut Self {
        let values: Vec<&str> = values.into_iter().collect();
        self.set("enum", values)
    }

    /// Sets the default value.
    pub(super) fn default(&mut self, value: impl Into<Value>) -> &mut Self {
        self.set("default", value)
    }

    /// Makes the list a map by the names of its items, by which server-side apply identifies them.
    pub(super) fn by_name(&mut self) -> &mut Self {
        self.by("name")
    }

    /// Makes the list a map by the field `key` of its items, by which server-side apply identifies
    /// them.
    pub(super) fn by(&mut self, key: &str) -> &mut Self {
        self.set("x-kubernetes-list-type", "map")
            .set("x-kubernetes-list-map-keys", vec![key])
    }

    /// Makes the list a set of texts, without duplicates.
    pub(super) fn set_of_texts(&mut self) -> &mut Self {
        self.set("x-kubernetes-list-type", "set")
    }

    /// Makes the list atomic: it belongs to one writer as a whole.
    pub(super) fn atomic(&mut self) -> &mut Self {
        self.set("x-kubernetes-list-type", "atomic")
    }

    /// Allows `field`, which has the settings of `owner`, only with that type, or with `other`.
    pub(super) fn settings_of(
        &mut self,
        owner: impl Display,
        other: Option<impl Display>,
        field: &str,
    ) -> &mut Self {
        let right = right_types(&owner, other.as_ref());
        let other = other.map_or(String::new(), |other| format!(" || self.type == '{other}'"));
        self.rule(
            Rule::value(
                format!("!has(self.{field}) || self.type == '{owner}'{other}"),
                &format("given with type %s", &["self.type"]),
                right,
            )
            .on(&format!(".{field}"))
            .forbidden(),
        )
    }

    /// Adds a rule.
    pub(super) fn rule(&mut self, rule: Rule) -> &mut Self {
        let rules = &mut self.node["x-kubernetes-validations"];
        match rules {
            Value::Array(rules) => rules.push(rule.into()),
            none => *none = Value::Array(vec![rule.into()]),
        }
        self
    }

    /// Sets the bounds and the default of a duration.
    pub(super) fn time(&mut self, time: &Time) -> &mut Self {
        self.time_bounds(time)
            .default(Duration::from(time.default).0)
    }

    /// Sets the bounds of a duration.
    pub(super) fn time_bounds(&mut self, time: &Time) -> &mut Self {
        let within = format!("{} || {}", not_time("self"), time_within("self", time));
        self.max_length(MAX_DURATION)
            .rule(Rule::words(
                is_time("self"),
                "\"%s\"; %s",
                &["self", &not_a_duration()],
            ))
            .rule(Rule::value(within, "self", time.right()))
    }

    /// Sets the bounds and the default of a whole number.
    pub(super) fn whole(&mut self, whole: &Whole) -> &mut Self {
        self.whole_bounds(whole).default(whole.default)
    }

    /// Sets the bounds of a whole number.
    pub(super) fn whole_bounds(&mut self, whole: &Whole) -> &mut Self {
        let (min, max) = whole.bounds;
        let within = format!("self >= {min} && self <= {max}");
        self.rule(Rule::value(within, "string(self)", whole.right()))
    }

    /// Sets the bounds and the default of a number.
    pub(super) fn real(&mut self, real: &Real) -> &mut Self {
        // A default without a fraction is a whole number in YAML, as users write it.
        self.real_bounds(real).default(match real.default {
            whole if whole.fract() == 0.0 && whole.abs() < 1e9 => json!(whole as i64),
            other => json!(other),
        })
    }

    /// Sets the bounds of a number.
    pub(super) fn real_bounds(&mut self, real: &Real) -> &mut Self {
        self.rule(Rule::value(
            real_within("self", real),
            "string(self)",
            real.right,
        ))
    }
}

/// A rule in CEL and its message.
#[derive(Debug)]
pub(super) struct Rule(Map<String, Value>);

impl Rule {
    /// Returns a rule with a fixed message.
    pub(super) fn text(rule: impl Into<String>, message: impl Into<String>) -> Self {
        let mut fields = Map::new();
        fields.insert("rule".to_owned(), Value::String(rule.into()));
        fields.insert("message".to_owned(), Value::String(message.into()));
        Self(fields)
    }

    /// Returns a rule with the message `words`, in which the texts of `values`, in CEL, replace
    /// each `%s`.
    pub(super) fn words(rule: impl Into<String>, words: &str, values: &[&str]) -> Self {
        // The message if the values can't be evaluated.
        let message = words.replace("%s", "...").replace("%%", "%");
        let mut fields = Self::text(rule, message).0;
        let expression = Value::String(format(words, values));
        fields.insert("messageExpression".to_owned(), expression);
        Self(fields)
    }

    /// Returns a rule with the message `VALUE; right`, where `value` is the text in CEL.
    pub(super) fn value(rule: impl Into<String>, value: &str, right: impl AsRef<str>) -> Self {
        let words = format!("%s; {}", right.as_ref().replace('%', "%%"));
        Self::words(rule, &words, &[value])
    }

    /// Returns a rule with the message `"VALUE"; right`, where `value` is the text in CEL.
    pub(super) fn quoted(rule: impl Into<String>, value: &str, right: impl AsRef<str>) -> Self {
        let words = format!("\"%s\"; {}", right.as_ref().replace('%', "%%"));
        Self::words(rule, &words, &[value])
    }

    /// Sets the field below the place that the rule is about, such as `.queue.drr`.
    pub(super) fn on(mut self, field: &str) -> Self {
        self.0.insert("fieldPath".to_owned(), field.into());
        self
    }

    /// Sets the reason to a missing field.
    pub(super) fn required(self) -> Self {
        self.reason("FieldValueRequired")
    }

    /// Sets the reason to a field that must be absent.
    pub(super) fn forbidden(self) -> Self {
        self.reason("FieldValueForbidden")
    }

    fn reason(mut self, reason: &str) -> Self {
        self.0.insert("reason".to_owned(), reason.into());
        self
    }
}

impl From<Rule> for Value {
    fn from(rule: Rule) -> Self {
        Self::Object(rule.0)
    }
}

/// Returns the CEL of `words` in which the texts of `values` replace each `%s`. Joining texts with
/// `+` would be expensive: the API server assumes the greatest length for a text whose length it
/// can't estimate, such as a number's.
pub(super) fn format(words: &str, values: &[&str]) -> String {
    format!("{}.format([{}])", literal(words), values.join(", "))
}

/// Returns `text` as a literal of CEL.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Returns CEL that tests whether the text is a duration; CEL's own durations allow more.
fn is_time(text: &str) -> String {
    format!("{text}.matches('{DURATION}')")
}

/// Returns CEL that tests whether the text is not a duration: rules on the length of such a text
/// would end in an error.
pub(super) fn not_time(text: &str) -> String {
    format!("!{}", is_time(text))
}

/// Returns CEL that tests whether the duration `text` is within bounds; it is an error in CEL if
/// `text` isn't a duration.
fn time_within(text: &str, time: &Time) -> String {
    let (min, max) = time.bounds;
    let (min, max) = (Duration::from(min), Duration::from(max));
    format!("(duration({text}) >= duration('{min}') && duration({text}) <= duration('{max}'))")
}

/// Returns the remedy for settings of type `owner`, or of `other`, that are given with another
/// type.
pub(super) fn right_types(owner: impl Display, other: Option<impl Display>) -> String {
    let other = other.map_or(String::new(), |other| format!(" or {other}"));
    format!("leave it out or use type {owner}{other}")
}

/// Returns CEL that tests whether `text` is a duration within bounds, which rules on it together
/// with other fields presuppose.
pub(super) fn right_time(text: &str, time: &Time) -> String {
    format!("({} && {})", is_time(text), time_within(text, time))
}

/// Returns CEL that tests whether `number` is within bounds.
pub(super) fn real_within(number: &str, real: &Real) -> String {
    let min = match real.bounds.0 {
        Bound::Included(min) => Some(format!("{number} >= {min:?}")),
        Bound::Excluded(min) => Some(format!("{number} > {min:?}")),
        Bound::Unbounded => None,
    };
    let max = match real.bounds.1 {
        Bound::Included(max) => Some(format!("{number} <= {max:?}")),
        Bound::Excluded(max) => Some(format!("{number} < {max:?}")),
        Bound::Unbounded => None,
    };
    let within: Vec<String> = min.into_iter().chain(max).collect();
    within.join(" && ")
}

/// Returns CEL that tests whether the list at `list` exists and isn't empty.
pub(super) fn some(list: &str) -> String {
    format!("(has({list}) && size({list}) > 0)")
}

/// Returns CEL for the messages of [`crate::ParseDurationError`], by the first part that isn't a
/// number with a unit.
fn not_a_duration() -> String {
    let parts = "self.findAll('[0-9]+[.,]|[0-9]+[^-+0-9.,]*|[-+.,]|[^-+0-9.,]+')";
    let odd = format!("{parts}.filter(p, !p.matches('^[0-9]{{1,5}}(h|m|s|ms)$'))");
    let no_unit = format("no unit after %s; write %sms, %ss, %sm or %sh", &["p"; 5]);
    let too_many_digits = format(
        "%s has more than 5 digits; use a larger unit",
        &["p.find('^[0-9]+')"],
    );
    let unknown_unit = format(
        "unknown unit \"%s\"; units are h, m, s and ms",
        &["p.find('[^0-9].*')"],
    );
    let no_number = format(
        "no number before \"%s\"; a duration such as 18ms, 1s or 1m30s",
        &["self"],
    );
    format!(
        "self == '' ? 'empty; a duration such as 18ms, 1s or 1m30s' : \
         self.matches('^([0-9]{{1,5}}(h|m|s|ms)){{4}}[0-9]+(h|m|s|ms)([^a-z]|$)') ? \
         'more than 4 units; such as 1h30m20s500ms at most' : \
         {odd}.map(p, \
         p.matches('^[-+]') ? 'durations have no sign' : \
         p.matches('[.,]$') ? \
         'fractions are not allowed; use a smaller unit, such as 1500ms for 1.5s' : \
         p.matches('^[0-9]+$') ? {no_unit} : \
         p.matches('^[0-9]+(h|m|s|ms)$') ? {too_many_digits} : \
         p.matches('^[0-9]') ? {unknown_unit} : {no_number})[0]"
    )
}
