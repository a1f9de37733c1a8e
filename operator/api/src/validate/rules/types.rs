//! Rules for query types: names, objectives, and that exactly one is the default.

use std::collections::BTreeMap;

use headgate_core::classify::Budget;
use headgate_core::config::{
    DEFAULT_TYPE, FIXED_HEADERS, Measure, Objective, RequestCost, RequestSize, SetHeader,
    TypeConfig,
};
use headgate_core::stats::MAX_TYPES_IN_STATS;

use super::matches::check_matches;
use super::names::{HEADER, NAMES, header};
use super::requirement::When::{Given, Is, Not};
use super::requirement::{Rules, When, forbidden, hold, required};
use super::{At, By, Field, Format, HOUR, MILLISECOND, Open, Table, VALUE, time};
use crate::validate::rules::schema::{self as cel, Rule, SchemaField, not_time, some};
use crate::{Duration, QueryType};

/// The largest number of types of one policy, equal to the number of types with their own stats.
pub(super) const MAX_TYPES: usize = MAX_TYPES_IN_STATS;
/// The largest number of matches of one policy.
const MAX_MATCHES_OF_ALL: usize = 4096;
pub(super) static FIELDS: Table = fields! {
    "" => Field::List(MAX_TYPES, "types", By::Key("name")),
    "[].name" => Field::Text(&NAMES),
    "[].slo" => Field::Map(16, "objectives"),
    "[].slo{}" => time(Open, MILLISECOND, HOUR),
    "[].ttft" => Field::Map(4, "objectives"),
    "[].ttft{}" => time(Open, MILLISECOND, HOUR),
    "[].tpot" => Field::Map(4, "objectives"),
    "[].tpot{}" => time(Open, MILLISECOND, HOUR),
    "[].value" => VALUE,
    "[].cost.size.header" => Field::Text(&HEADER),
    "[].onRefusal.set" => Field::List(8, "headers", By::Key("name")),
    "[].onRefusal.set[].name" => Field::Text(&HEADER),
    "[].onRefusal.set[].value" => Field::Free("a header's value", 256),
};
const NO_DEFAULT: &str = "one named default takes all other requests";
const MATCHES_OF_DEFAULT: &str =
    "%s given; default takes all other requests; rename the type or drop its matches";
const NO_MATCHES: &str = "none; at least one, such as {path: {type: PathPrefix, value: /search}}";
const TWO_MEASURES: &str = "given beside slo; a type is measured to the first byte or to the last, so \
                            move the percentiles of slo to ttft, or split the type";
const SETS_NOTHING: &str = "empty; at least one header, which a route matches";
const FIXED: &str = "the host and framing stay; set another header";
const NOT_ASCENDING: &str = "a higher percentile takes at least as long";
const DEFAULT: When = Is("name", DEFAULT_TYPE);
pub(super) static REQUIREMENTS: Rules = fields! {
    "" => forbidden!("matches", Not(&DEFAULT), MATCHES_OF_DEFAULT).showing("matches"),
    "" => required!("matches", Not(&DEFAULT), NO_MATCHES),
    "" => forbidden!("ttft", Not(&Given("slo")), TWO_MEASURES),
    "onRefusal" => hold("set", Given("set"), SETS_NOTHING),
};
/// The name of a percentile in any form, such as `p50` or `p50.0`. `percentile` accepts only the
/// shortest form.
static ANY_PERCENTILE: Format = Format::new(
    9,
    "^p[0-9]{1,3}([.][0-9]{1,4})?$",
    "p followed by a number above 0 and below 100, such as p50 or p99.9",
);
/// The name of a percentile, in its shortest form.
const PERCENTILE: &str = "^p(0|[1-9][0-9]?)([.][0-9]{0,3}[1-9])?$";

/// The reason why each type needs an objective.
pub(super) const BOUNCER_NEEDS_OBJECTIVES: &str = "Bouncer decides by objectives";
/// The reason why each type needs an objective.
pub(super) const SLACK_NEEDS_OBJECTIVES: &str = "the discipline Slack orders by objectives";

/// Checks the types and puts `default` last. If a `reason` is given, each type needs an objective.
/// `measure` is the end of measured times of types without their own measure.
pub(super) fn types(
    types: &[QueryType],
    measure: Measure,
    reason: Option<&str>,
    at: &At<'_>,
    budget: &mut Budget,
) -> Vec<TypeConfig> {
    at.count(types.len());
    let matches: usize = types.iter().map(|t| t.matches.len()).sum();
    if matches > MAX_MATCHES_OF_ALL {
        at.add(format!(
            "{matches} matches in all; at most {MAX_MATCHES_OF_ALL}"
        ));
    }
    if !types.iter().any(|t| t.name == DEFAULT_TYPE) {
        let similar = types
            .iter()
            .find(|t| t.name.eq_ignore_ascii_case(DEFAULT_TYPE));
        let found = match similar {
            Some(similar) => format!(
                "no type is named default, though one is named {}",
                similar.name
            ),
            None if types.is_empty() => "empty".to_owned(),
            None => "no type is named default".to_owned(),
        };
        at.add(format!("{found}; {NO_DEFAULT}"));
    }
    at.unique("names of types are unique");
    let mut checked = Vec::new();
    for (i, kind) in types.iter().enumerate() {
        let at = at.item(i);
        at.field("name").text(&kind.name);
        let rules = check_matches(&kind.matches, &at.field("matches"), budget);
        let whole = objectives(&kind.slo, &at.field("slo"));
        let first = objectives(&kind.ttft, &at.field("ttft"));
        let starts = !kind.ttft.is_empty();
        if let Some(reason) = reason
            && kind.slo.is_empty()
            && !starts
        {
            at.field("slo").add(no_objectives(reason));
        }
        let cost = kind.cost.as_ref().map(|cost| {
            let at = at.field("cost").field("size").field("header");
            let header = header(&cost.size.header, &at);
            RequestCost {
                size: RequestSize { header },
            }
        });
        checked.push(TypeConfig {
            name: kind.name.clone(),
            matches: rules,
            slo: if starts { first } else { whole },
            measure: (starts && measure == Measure::LastByte).then_some(Measure::FirstByte),
            tpot: objectives(&kind.tpot, &at.field("tpot")),
            value: at.field("value").real(),
            cost,
            on_refusal: (kind.on_refusal.as_ref())
                .map_or_else(Vec::new, |given| on_refusal(&given.set, &at)),
        });
    }
    // The sort is stable: the other types keep their order, because the first match wins.
    checked.sort_by_key(|t| t.name == DEFAULT_TYPE);
    checked
}

fn on_refusal(given: &[SetHeader], at: &At<'_>) -> Vec<SetHeader> {
    let at = at.field("onRefusal").field("set");
    at.count(given.len());
    at.unique("a header has one value");
    let set = |(i, of): (usize, &SetHeader)| {
        let at = at.item(i);
        at.field("value").text(&of.value);
        let at = at.field("name");
        let name = header(&of.name, &at);
        if FIXED_HEADERS.contains(&name.as_str()) {
            at.add(format!("{:?}; {FIXED}", of.name));
        }
        SetHeader {
            name,
            value: of.value.clone(),
        }
    };
    given.iter().enumerate().map(set).collect()
}

fn objectives(given: &BTreeMap<String, Duration>, at: &At<'_>) -> Vec<Objective> {
    at.count(given.len());
    let mut objectives: Vec<(&String, &Duration, Objective)> = Vec::new();
    for (name, time) in given {
        let at = at.key(name);
        let percentile = match percentile(name) {
            Ok(percentile) => Some(percentile),
            Err(right) => {
                at.add(format!("{name:?} is no percentile; {right}"));
                None
            }
        };
        let objective_us = at.given_time();
        if let (Some(percentile), Some(objective_us)) = (percentile, objective_us) {
            objectives.push((
                name,
                time,
                Objective {
                    percentile,
                    objective_us,
                },
            ));
        }
    }
    objectives.sort_by(|a, b| a.2.percentile.total_cmp(&b.2.percentile));
    for pair in objectives.windows(2) {
        let [(low_name, low_time, low), (name, time, high)] = pair else {
            continue;
        };
        if high.objective_us < low.objective_us {
            at.key(name).add(format!(
                "{time} is below the {low_time} of {low_name}; {NOT_ASCENDING}"
            ));
        }
    }
    objectives
        .into_iter()
        .map(|(_, _, objective)| objective)
        .collect()
}

/// Returns the percentile that `p50` or `p99.9` names, above 0 and below 100.
fn percentile(name: &str) -> Result<f64, String> {
    let number = name.strip_prefix('p').filter(|_| ANY_PERCENTILE.is(name));
    let percentile: f64 = number.and_then(|n| n.parse().ok()).unwrap_or_default();
    // Only the shortest name is allowed, so that no percentile is given twice.
    let plain = format!("p{percentile}");
    match percentile > 0.0 && percentile < 100.0 {
        true if plain == name => Ok(percentile),
        true => Err(format!("write {plain}")),
        false => Err(ANY_PERCENTILE.right.to_owned()),
    }
}

fn no_objectives(reason: &str) -> String {
    format!("none; {reason}, such as {{p50: 18ms, p90: 50ms}}")
}

pub(super) fn schema(spec: &mut SchemaField<'_>) {
    let mut types = spec.at("types");
    let similar = "self.filter(t, t.name.matches('^(?i)default$'))";
    let though = cel::format(
        "no type is named default, though one is named %s",
        &[&format!("{similar}[0].name")],
    );
    let not_found = format!(
        "size(self) == 0 ? 'empty' : size({similar}) > 0 ? {though} : 'no type is named default'"
    );
    let count = "self.map(t, has(t.matches) ? size(t.matches) : 0).sum()";
    types
        .rule(Rule::value(
            "self.exists(t, t.name == 'default')",
            &not_found,
            NO_DEFAULT,
        ))
        .rule(Rule::value(
            format!("{count} <= {MAX_MATCHES_OF_ALL}"),
            &cel::format("%s matches in all", &[&format!("string({count})")]),
            format!("at most {MAX_MATCHES_OF_ALL}"),
        ));
    let fixed = FIXED_HEADERS.map(|name| format!("'{name}'"));
    let rule = format!("!(self.lowerAscii() in [{}])", fixed.join(", "));
    spec.at("types[].onRefusal.set[].name")
        .rule(Rule::quoted(rule, "self", FIXED));
    for field in ["slo", "ttft", "tpot"] {
        objectives_schema(&mut spec.at(&format!("types[].{field}")));
    }
    for (needed, reason) in [
        ("self.strategy.type == 'Bouncer'", BOUNCER_NEEDS_OBJECTIVES),
        (
            "self.strategy.type != 'Bouncer' && has(self.queue.discipline) && \
             self.queue.discipline == 'Slack'",
            SLACK_NEEDS_OBJECTIVES,
        ),
    ] {
        let either = format!("({} || {})", some("t.slo"), some("t.ttft"));
        let each = format!("self.types.all(t, {either})");
        let rule = Rule::text(format!("!({needed}) || {each}"), no_objectives(reason));
        spec.rule(rule.on(".types").required());
    }
}

fn objectives_schema(objectives: &mut SchemaField<'_>) {
    let is_percentile = format!("(k.matches('{PERCENTILE}') && k != 'p0')");
    let is_odd = format!(
        "{} && double(k.substring(1)) > 0.0 && double(k.substring(1)) < 100.0",
        ANY_PERCENTILE.cel("k")
    );
    let plain = cel::format("write p%s", &["string(double(k.substring(1)))"]);
    let odd = format!("self.filter(k, !{is_percentile})[0]");
    let right = format!(
        "[{odd}].map(k, {is_odd} ? {plain} : '{}')[0]",
        ANY_PERCENTILE.right
    );
    // `b` is a lower percentile than `a`, with a longer time.
    let above =
        "double(a.substring(1)) > double(b.substring(1)) && duration(self[a]) < duration(self[b])";
    let readable = format!(
        "self.exists(k, !{is_percentile} || {})",
        not_time("self[k]")
    );
    let high = format!("self.filter(a, self.exists(b, {above}))[0]");
    let low = format!("[{high}].map(a, self.filter(b, {above})[0])[0]");
    objectives
        .rule(Rule::words(
            format!("self.all(k, {is_percentile})"),
            "\"%s\" is no percentile; %s",
            &[&odd, &right],
        ))
        .rule(Rule::words(
            format!("{readable} || !self.exists(a, self.exists(b, {above}))"),
            &format!("%s is below the %s of %s; {NOT_ASCENDING}"),
            &[&format!("self[{high}]"), &format!("self[{low}]"), &low],
        ));
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles() {
        for (name, expected) in [
            ("p50", 50.0),
            ("p99.9", 99.9),
            ("p1", 1.0),
            ("p0.5", 0.5),
            ("p99.99", 99.99),
        ] {
            assert_eq!(percentile(name), Ok(expected));
        }
        for name in [
            "p0", "p100", "p101", "P50", "50", "p", "p.5", "p5.", "p-1", "p1e1", "pinf", "p50%",
        ] {
            assert!(
                percentile(name).unwrap_err().starts_with("p followed by"),
                "{name}"
            );
        }
        assert_eq!(percentile("p50.0"), Err("write p50".into()));
        assert_eq!(percentile("p05"), Err("write p5".into()));
    }
}
