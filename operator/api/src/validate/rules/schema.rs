//! The checks of a policy by the API server: the rules of `rules`, as far as the API server can
//! check them.
//!
//! A mistake that `kubectl apply` refuses costs a second. A mistake that is reported in the status,
//! which its author may not read, costs an afternoon. So the API server checks as much as possible.
//! The bounds, formats and defaults of fields come from the tables that the operator uses
//! ([`Field`]), and so do requirements on the presence and the texts of several fields
//! ([`super::requirement`]). Each file of rules contains the other CEL rules on several fields
//! beside its own checks, with the same messages. The API server limits the cost of rules, which it
//! estimates from the largest policy that the schema allows. So every list, map and text is
//! bounded. The operator makes the checks that are too expensive or impossible in CEL (regular
//! expressions, matches that are never reached), and reports the mistakes in the policy's status.

use serde_json::{Map, Value, json};

use super::field::{Absent, By, Field, Format, Unit, duration, literal};

/// The longest text of a duration: four numbers of five digits with their units.
const MAX_DURATION: usize = 28;
/// A duration as in GEP-2257.
const DURATION: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";

/// A field of the schema.
#[derive(Debug)]
pub(super) struct SchemaField<'a> {
    pub(super) node: &'a mut Value,
    path: String,
}

impl<'a> SchemaField<'a> {
    /// Returns the schema of a policy's `spec`.
    pub(super) fn of_spec(node: &'a mut Value) -> Self {
        let path = String::new();
        Self { node, path }
    }

    /// Returns the field at `path` below this one, such as `types[].slo{}`, with `[]` for the items
    /// of a list and `{}` for the values of a mapping.
    pub(super) fn at(&mut self, path: &str) -> SchemaField<'_> {
        let mut node = &mut *self.node;
        for field in path.split('.') {
            let name = field.trim_end_matches(['[', ']', '{', '}']);
            let below = [
                (!name.is_empty()).then_some("properties"),
                (!name.is_empty()).then_some(name),
                field.ends_with("[]").then_some("items"),
                field.ends_with("{}").then_some("additionalProperties"),
            ];
            for key in below.into_iter().flatten() {
                node = &mut node[key];
            }
        }
        let path = format!("{}.{path}", self.path);
        SchemaField { node, path }
    }

    /// Sets `key` of the schema, such as `maxLength`.
    pub(super) fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.node[key] = value.into();
        self
    }

    /// Adds a field's bounds and its default.
    pub(super) fn field(&mut self, field: &Field) -> &mut Self {
        match field {
            Field::Number(range) => {
                let mut within = field.within("self");
                let mut text = "string(self)";
                if range.unit == Unit::Time {
                    self.set("maxLength", MAX_DURATION).rule(Rule::words(
                        is_time("self"),
                        "\"%s\"; %s",
                        &["self", &not_a_duration()],
                    ));
                    within = format!("{} || {within}", not_time("self"));
                    text = "self";
                }
                self.rule(Rule::value(within, text, field.right()));
                if let Absent::Stored(default) = range.absent {
                    // A default without a fraction is written as a whole number, as users do.
                    let default = match range.unit {
                        Unit::Time => json!(duration(default)),
                        _ if default.fract() == 0.0 => json!(default as i64),
                        _ => json!(default),
                    };
                    self.set("default", default);
                }
            }
            Field::Flag(default) => {
                self.set("default", *default);
            }
            Field::Text(format) => {
                self.set("maxLength", format.most).rule(format.rule("self"));
            }
            Field::Free(_, most) => {
                let right = field.right();
                self.set("maxLength", *most)
                    .rule(Rule::quoted("self.matches('^\\\\P{Cc}+$')", "self", &right))
                    .rule(Rule::words(
                        format!("size(bytes(self)) <= {most}"),
                        &format!("%s bytes; {right}"),
                        &["string(size(bytes(self)))"],
                    ));
            }
            Field::List(most, _, by) => {
                self.set("maxItems", *most);
                let kind = match by {
                    By::Key(key) => {
                        self.set("x-kubernetes-list-map-keys", vec![*key]);
                        "map"
                    }
                    By::Text => "set",
                    By::Nothing => "atomic",
                };
                self.set("x-kubernetes-list-type", kind);
            }
            Field::Map(most, _) => {
                self.set("maxProperties", *most);
            }
        }
        self
    }

    /// Returns CEL for the value of the field at `path` below this one, or for its default.
    pub(super) fn value(&mut self, path: &str) -> String {
        let value = format!("self.{path}");
        match Field::at(&self.at(path).path) {
            Some(Field::Number(range)) => match (range.unit, range.absent) {
                (Unit::Time, Absent::Assumed(default)) => {
                    format!("(has({value}) ? {value} : '{}')", duration(default))
                }
                _ => value,
            },
            _ => value,
        }
    }

    /// Returns CEL that tests whether the value of the field at `path` is valid. Rules on several
    /// fields require valid values.
    pub(super) fn right(&mut self, path: &str) -> String {
        let value = self.value(path);
        self.within(path, &value)
    }

    /// Returns CEL that tests whether `value` is right for the field at `path`.
    pub(super) fn within(&mut self, path: &str, value: &str) -> String {
        let field = Field::at(&self.at(path).path);
        let within = field.map_or_else(String::new, |field| field.within(value));
        match field {
            Some(Field::Number(range)) if range.unit == Unit::Time => {
                format!("({} && {within})", is_time(value))
            }
            _ => within,
        }
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
        // This is the fallback message for values that can't be evaluated.
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

    /// Sets the reason of a failure: the field is required.
    pub(super) fn required(self) -> Self {
        self.reason("FieldValueRequired")
    }

    /// Sets the reason of a failure: the field is forbidden.
    pub(super) fn forbidden(self) -> Self {
        self.reason("FieldValueForbidden")
    }

    pub(super) fn reason(mut self, reason: &str) -> Self {
        self.0.insert("reason".to_owned(), reason.into());
        self
    }
}

impl Format {
    /// Returns the rule that `value` has this format.
    pub(super) fn rule(&self, value: &str) -> Rule {
        Rule::quoted(self.cel(value), value, self.right)
    }
}

impl From<Rule> for Value {
    fn from(rule: Rule) -> Self {
        Self::Object(rule.0)
    }
}

/// Returns the CEL of `words` in which the texts of `values` replace each `%s`. Joining texts with
/// `+` would be expensive: the API server assumes the greatest length for a text of unknown length,
/// such as a number's text.
pub(super) fn format(words: &str, values: &[&str]) -> String {
    format!("{}.format([{}])", literal(words), values.join(", "))
}

/// Returns CEL that tests whether the text is a duration. CEL's own durations allow more texts.
fn is_time(text: &str) -> String {
    format!("{text}.matches('{DURATION}')")
}

/// Returns CEL that tests whether the text isn't a duration. Rules on durations need this test,
/// because they would fail with an error for such a text.
pub(super) fn not_time(text: &str) -> String {
    format!("!{}", is_time(text))
}

/// Returns CEL that tests whether the list at `list` exists and isn't empty.
pub(super) fn some(list: &str) -> String {
    format!("(has({list}) && size({list}) > 0)")
}

/// Returns CEL that produces the error of [`crate::Duration::parse`]. The message depends on the
/// first part of the text that isn't a number with a unit.
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
