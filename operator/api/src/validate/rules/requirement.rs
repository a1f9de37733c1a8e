//! Requirements on several fields. Each is one row of a table, beside the table of the fields. The
//! row determines the operator's check, the message, and the API server's rule.

use serde_json::Value;

use super::At;
use super::names::{all_known, check_known};
use super::schema::{Rule, SchemaField};

/// Requirements by the paths of their places below the table's place, with `[]` for the items of a
/// list.
pub(super) type Rules = &'static [(&'static str, Requirement)];

/// A condition on the fields below a place.
#[derive(Debug)]
pub(super) enum When {
    Always,
    /// The field is given, other than as an empty list or mapping.
    Given(&'static str),
    /// The list has more than one item.
    Several(&'static str),
    /// The text of the field, or of its default, is this one.
    Is(&'static str, &'static str),
    Not(&'static When),
    All(&'static [When]),
    Any(&'static [When]),
}

use When::{All, Always, Any, Given, Is, Not, Several};

/// A requirement on a field below a place, or on the place itself.
#[derive(Debug)]
pub(super) struct Requirement {
    /// The path of the field that a problem is about; empty for the place itself.
    on: &'static str,
    when: When,
    /// If given, the keys of the mapping `on` are names of these, provided that the condition
    /// holds. Otherwise, the condition has to hold.
    names: Option<Names>,
    /// The message. If a field is shown, the field's text, or the length of the list, replaces
    /// `%s`.
    message: &'static str,
    shown: Option<&'static str>,
    /// The reason of a failure for the API server, if any.
    reason: Option<&'static str>,
}

/// A noun for the items of a list of `spec`, and the list.
type Names = (&'static str, &'static str);

pub(super) const TYPES: Names = ("type", "types");
pub(super) const CLASSES: Names = ("class", "classes");
pub(super) const REQUIRED: Option<&str> = Some("FieldValueRequired");
pub(super) const FORBIDDEN: Option<&str> = Some("FieldValueForbidden");

/// Returns the requirement that the condition holds.
pub(super) const fn hold(on: &'static str, when: When, message: &'static str) -> Requirement {
    Requirement {
        on,
        when,
        names: None,
        message,
        shown: None,
        reason: None,
    }
}

/// Returns the requirement that, if the condition holds, each key of the mapping `on` is the name
/// of an item of the list. The requirement's place is `spec`.
pub(super) const fn known(on: &'static str, when: When, names: Names) -> Requirement {
    let mut requirement = hold(on, when, "");
    requirement.names = Some(names);
    requirement
}

/// Makes the requirement that the field is absent unless the condition holds.
macro_rules! forbidden {
    ($on:literal, $unless:expr, $message:expr $(,)?) => {{
        use $crate::validate::rules::requirement::{FORBIDDEN, When, hold};
        let when = When::Any(&[When::Not(&When::Given($on)), $unless]);
        hold($on, when, $message).reason(FORBIDDEN)
    }};
}

/// Makes the requirement that the field is given if the condition holds.
macro_rules! required {
    ($on:literal, $when:expr, $message:expr $(,)?) => {{
        use $crate::validate::rules::requirement::{REQUIRED, When, hold};
        let when = When::Any(&[When::Not(&$when), When::Given($on)]);
        hold($on, when, $message).reason(REQUIRED)
    }};
}

/// Makes the requirement that the first field is absent unless the second has one of the texts.
macro_rules! only {
    ($on:literal, $by:literal, $text:literal $(or $more:literal)?) => {{
        use $crate::validate::rules::requirement::forbidden;
        forbidden!(
            $on,
            When::Any(&[When::Is($by, $text) $(, When::Is($by, $more))?]),
            concat!("given with ", $by, " %s; leave it out or use ", $by, " ", $text
                $(, " or ", $more)?)
        )
        .showing($by)
    }};
}

pub(super) use {forbidden, only, required};

impl Requirement {
    /// Adds the text of the field, or the length of the list, to the message.
    pub(super) const fn showing(mut self, field: &'static str) -> Self {
        self.shown = Some(field);
        self
    }

    /// Sets the reason of a failure.
    pub(super) const fn reason(mut self, reason: Option<&'static str>) -> Self {
        self.reason = reason;
        self
    }

    /// Adds a problem at each place below `at`, whose value is `of`, that lacks the requirement.
    pub(super) fn check(&self, place: &str, at: &At<'_>, of: &Value) {
        let (first, rest) = place.split_once('.').unwrap_or((place, ""));
        let name = first.trim_end_matches("[]");
        match &of[name] {
            _ if place.is_empty() => self.check_at(at, of),
            Value::Null => {}
            Value::Array(items) if first.ends_with("[]") => {
                let at = at.field(name);
                for (i, item) in items.iter().enumerate() {
                    self.check(rest, &at.item(i), item);
                }
            }
            of => self.check(rest, &at.field(name), of),
        }
    }

    fn check_at(&self, at: &At<'_>, of: &Value) {
        let at = match self.on {
            "" => at.clone(),
            on => at.field(on),
        };
        let holds = self.when.holds(of);
        if let Some((what, list)) = self.names {
            if let (true, Value::Object(given)) = (holds, get(of, self.on)) {
                let items = of[list].as_array().into_iter().flatten();
                let names: Vec<_> = items.filter_map(|item| item["name"].as_str()).collect();
                check_known(given.keys(), what, &names, &at);
            }
        } else if !holds {
            let text = match self.shown.map(|field| get(of, field)) {
                Some(Value::Array(items)) => items.len().to_string(),
                text => text.and_then(Value::as_str).unwrap_or_default().to_owned(),
            };
            let parts = self.message.split("\"%s\"");
            let parts: Vec<_> = parts.map(|part| part.replace("%s", &text)).collect();
            at.add(parts.join(&format!("{text:?}")));
        }
    }

    /// Adds the API server's rule to the schema of the place.
    pub(super) fn schema(&self, at: &mut SchemaField<'_>) {
        let schema = &*at.node;
        let when = self.when.cel(schema);
        let rule = match (self.names, self.shown) {
            (Some((what, list)), _) => {
                let mut tests = exist(self.on, schema);
                tests.extend(Some(when).filter(|when| when != "true"));
                let (mapping, list) = (format!("self.{}", self.on), format!("self.{list}"));
                all_known(&tests.join(" && "), &mapping, what, &list)
            }
            (None, None) => Rule::text(bare(&when), self.message),
            (None, Some(field)) => {
                let text = match node(field, schema)["type"] == "array" {
                    true => format!("string(size(self.{field}))"),
                    false => format!("self.{field}"),
                };
                Rule::words(bare(&when), self.message, &[&text])
            }
        };
        let rule = match self.on {
            "" => rule,
            on => rule.on(&format!(".{on}")),
        };
        at.rule(self.reason.into_iter().fold(rule, Rule::reason));
    }
}

impl When {
    /// Whether the fields of `of` meet the condition.
    fn holds(&self, of: &Value) -> bool {
        match self {
            Always => true,
            Given(field) => match get(of, field) {
                Value::Null => false,
                Value::Array(items) => !items.is_empty(),
                // Only mappings may be empty: a block's fields are in it even if they are absent.
                Value::Object(members) => !members.is_empty(),
                _ => true,
            },
            Several(list) => get(of, list).get(1).is_some(),
            Is(field, text) => get(of, field) == text,
            Not(when) => !when.holds(of),
            All(all) => all.iter().all(|when| when.holds(of)),
            Any(any) => any.iter().any(|when| when.holds(of)),
        }
    }

    /// Returns the condition in CEL on the fields of `self`, which has this schema: a test or, in
    /// parentheses, several.
    fn cel(&self, schema: &Value) -> String {
        let tests = |field, test: String| {
            let mut tests = exist(field, schema);
            tests.retain(|exists| *exists != test);
            tests.push(test);
            several(&tests, " && ")
        };
        let all = |all: &[Self]| all.iter().map(|when| when.cel(schema)).collect::<Vec<_>>();
        match self {
            Always => "true".to_owned(),
            Given(field) => {
                let node = node(field, schema);
                let is_list = node["type"] == "array" || node["additionalProperties"].is_object();
                let test = match is_list {
                    true => format!("size(self.{field}) > 0"),
                    false => format!("has(self.{field})"),
                };
                tests(field, test)
            }
            Several(list) => tests(list, format!("size(self.{list}) > 1")),
            Is(field, text) => tests(field, format!("self.{field} == '{text}'")),
            Not(when) => not(&when.cel(schema)),
            All(whens) => several(&all(whens), " && "),
            Any(whens) => several(&all(whens), " || "),
        }
    }
}

/// Returns the value of the field at `path`; null if the field is absent.
fn get<'v>(of: &'v Value, path: &str) -> &'v Value {
    path.split('.').fold(of, |of, name| &of[name])
}

/// Returns the schema of the field at `path`.
fn node<'s>(path: &str, schema: &'s Value) -> &'s Value {
    let below = |schema: &'s Value, name| &schema["properties"][name];
    path.split('.').fold(schema, below)
}

/// Returns a test in CEL for each field on `path` that may be absent.
fn exist(path: &str, mut schema: &Value) -> Vec<String> {
    let mut tests = Vec::new();
    let mut at = "self".to_owned();
    for name in path.split('.') {
        at = format!("{at}.{name}");
        let required = schema["required"].as_array().into_iter().flatten();
        let is_required = required.into_iter().any(|field| field == name);
        schema = &schema["properties"][name];
        if !is_required && schema["default"].is_null() {
            tests.push(format!("has({at})"));
        }
    }
    tests
}

/// Returns the tests joined by `by`, in parentheses unless the test is short.
fn several(tests: &[String], by: &str) -> String {
    match tests {
        [test] if !test.starts_with("size(") => test.clone(),
        tests => format!("({})", tests.join(by)),
    }
}

/// Returns the opposite of a test.
fn not(cel: &str) -> String {
    match cel.strip_prefix('!') {
        Some(cel) => cel.to_owned(),
        None if cel.starts_with(['(', 'h']) => format!("!{cel}"),
        None if cel.contains(" == ") => cel.replace(" == ", " != "),
        None => cel.replace(" != ", " == "),
    }
}

/// Returns tests without the parentheses around them.
fn bare(cel: &str) -> &str {
    let inner = cel.strip_prefix('(').and_then(|cel| cel.strip_suffix(')'));
    inner.unwrap_or(cel)
}
