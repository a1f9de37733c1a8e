//! The columns of the tables, and the format of their values.

use std::time::Duration;

use headgate_controller::xds::timestamp::age;
use ratatui::layout::HorizontalAlignment::{self, Left, Right};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;
use serde_json::Value;

use super::table::Tab;
use super::view::{ANSWERS, UNREACHABLE, each, margin};

/// A function that returns the cell of a row.
type Cell = fn(&Value) -> Span<'static>;

/// The head of a column, the alignment of its cells, and the cells.
pub(super) type Column = (&'static str, HorizontalAlignment, Cell);

/// The style of values without interest.
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const GOOD: Style = Style::new().fg(Color::Green);
/// The style of values that deserve attention.
pub(super) const WARNING: Style = STRONG.fg(Color::Yellow);
/// The style of problems.
pub(super) const BAD: Style = STRONG.fg(Color::Red);

// The most important columns come first: those at the right are cut off where the terminal ends.
const TYPES: &[Column] = &[
    ("ARRIVE/s", Right, |r| rate(&traffic(r)["arrivalRate"])),
    ("REFUSE/s", Right, |r| refused(traffic(r))),
    ("%", Right, |r| refused_percent(traffic(r))),
    ("SLOTS", Right, slots),
    ("WAIT p99", Right, |r| time(r, "queueWaitMs", "p99")),
    ("OBJECTIVE", Left, objective),
    ("REASONS", Left, reasons),
    ("QUEUE", Right, |r| count(r, "queueLength")),
    ("ACCEPT/s", Right, |r| rate(&traffic(r)["acceptedRate"])),
    ("WAIT p50", Right, |r| time(r, "queueWaitMs", "p50")),
    ("RESPONSE p99", Right, |r| time(r, "responseTimeMs", "p99")),
];
const WORKFLOWS: &[Column] = &[
    ("DEMAND/s", Right, |r| rate(&r["demandRate"])),
    ("RATE/s", Right, limit),
    ("REFUSE/s", Right, refused),
    ("%", Right, refused_percent),
    ("BOTTLENECK", Left, bottleneck),
    ("REASONS", Left, reasons),
    ("ADMIT/s", Right, |r| rate(&r["admittedRate"])),
    ("HELD", Right, |r| count(r, "queueLength")),
    ("WAIT p50", Right, |r| time(r, "waitMs", "p50")),
    ("WAIT p99", Right, |r| time(r, "waitMs", "p99")),
    ("COMPLETION", Right, |r| time(r, "completionMs", "")),
];
const PROXIES: &[Column] = &[
    ("STATE", Left, state),
    ("ARRIVE/s", Right, |r| rate(&r["arrivalRate"])),
    ("REFUSE/s", Right, refused),
    ("SLOTS", Right, slots),
    ("POLICIES", Left, policies),
    ("FILTER", Left, |r| text(&r["filter"])),
    ("ENVOY", Left, |r| text(&r["version"])),
    ("NODE", Left, |r| text(&r["node"])),
    ("UP", Right, |r| number(Some(&r["uptimeSeconds"]), elapsed)),
    ("RESTARTS", Right, |r| count(r, "restarts")),
];

const VALUE: &[Column] = &[
    ("VALUE/SLOT SECOND", Right, value_per_slot_second),
    ("SLOTS ASKED", Right, |r| rate(&r["valueCut"]["slotsAsked"])),
    ("ADMITTED", Right, admitted),
    ("THE CUT", Left, cut),
];

/// The number of cells of the bar of slots that a policy's types demand.
const BAR: usize = 48;

/// Returns the head of the rows' names, and the other columns.
pub(super) fn columns(tab: Tab) -> (&'static str, &'static [Column]) {
    match tab {
        Tab::Types => ("POLICY / TYPE", TYPES),
        Tab::Workflows => ("POLICY / WORKFLOW", WORKFLOWS),
        Tab::Proxies => ("PROXY", PROXIES),
        Tab::Value => ("POLICY / TYPE", VALUE),
    }
}

/// Returns the values of a row's requests; a policy has them in a field of their own.
pub(super) fn traffic(values: &Value) -> &Value {
    values.get("traffic").unwrap_or(values)
}

pub(super) fn name<'a>(values: &'a Value, key: &str) -> &'a str {
    values[key].as_str().unwrap_or_default()
}

fn unknown() -> Span<'static> {
    Span::styled("-", FAINT)
}

fn text(value: &Value) -> Span<'static> {
    let known = value.as_str().filter(|text| !text.is_empty());
    known.map_or_else(unknown, |text| text.to_owned().into())
}

/// Formats a number of a row. A row that doesn't have it is empty there.
fn number(value: Option<&Value>, format: impl Fn(f64) -> String) -> Span<'static> {
    let Some(value) = value else {
        return Span::default();
    };
    let number = value.as_f64();
    number.map_or_else(unknown, |number| format(number).into())
}

/// Formats a rate: `0`, `0.4`, `37.5`, `412`, `12.3k`.
pub(super) fn rate(value: &Value) -> Span<'static> {
    number(Some(value), |rate| match rate {
        0.0 => "0".to_owned(),
        v if v < 0.05 => "<0.1".to_owned(),
        v if v < 99.95 => format!("{v:.1}"),
        v if v < 9_999.5 => format!("{v:.0}"),
        v if v < 999_950.0 => format!("{:.1}k", v / 1e3),
        v => format!("{:.1}M", v / 1e6),
    })
}

fn count(values: &Value, name: &str) -> Span<'static> {
    number(values.get(name), |count| count.to_string())
}

/// Formats a time, or a `part` of several: `0.4ms`, `37ms`, `1.24s`.
fn time(values: &Value, name: &str, part: &str) -> Span<'static> {
    let time = values.get(name);
    let time = time.map(|parts| parts.get(part).unwrap_or(parts));
    number(time, |ms| match ms {
        ms if ms < 9.95 => format!("{ms:.1}ms"),
        ms if ms < 999.5 => format!("{ms:.0}ms"),
        ms if ms < 9_995.0 => format!("{:.2}s", ms / 1e3),
        ms => format!("{:.0}s", ms / 1e3),
    })
}

/// Formats a share with as many decimals as objectives have: `97.2%`, `99.95%`.
fn share(value: f64) -> String {
    let text = format!("{:.2}", value * 100.0);
    let short = text.trim_end_matches('0').trim_end_matches('.');
    format!("{short}%")
}

pub(super) fn arrivals(values: &Value) -> Option<f64> {
    let rate = values.get("arrivalRate").or(values.get("offeredRate"));
    rate?.as_f64()
}

/// Returns the share of requests that were refused, ratio 0..=1.
pub(super) fn refused_share(values: &Value) -> Option<f64> {
    let all = arrivals(values).filter(|all| *all > 0.0)?;
    Some((values["refusedRate"].as_f64()? / all).min(1.0))
}

/// Returns the style of a share whose best value is 0.
fn unwanted(share: Option<f64>) -> Style {
    match share {
        None | Some(0.0) => FAINT,
        Some(share) if share > 0.2 => BAD,
        Some(_) => WARNING,
    }
}

fn refused(values: &Value) -> Span<'static> {
    rate(&values["refusedRate"]).style(unwanted(refused_share(values)))
}

fn refused_percent(values: &Value) -> Span<'static> {
    let share = refused_share(values);
    let text = match share {
        None => return unknown(),
        Some(share) if share > 0.0 && share < 0.01 => "<1%".to_owned(),
        Some(share) => format!("{:.0}%", share * 100.0),
    };
    Span::styled(text, unwanted(share))
}

fn slots(values: &Value) -> Span<'static> {
    let (used, all) = (&values["slotsInUse"], values.get("slots"));
    let Some(all) = all else {
        return Span::default();
    };
    let full = all.as_u64() > Some(0) && used.as_u64() >= all.as_u64();
    let text = [used, all].map(|n| n.as_u64().map_or("-".to_owned(), |n| n.to_string()));
    Span::styled(text.join("/"), if full { WARNING } else { Style::new() })
}

/// Returns the reasons for refusals, the most frequent first. The rejections of a dry run aren't
/// enforced.
fn reasons(values: &Value) -> Span<'static> {
    let values = traffic(values);
    let of_type = values["refusedByReason"].as_object().into_iter().flatten();
    let mut reasons: Vec<(&str, &Value)> = of_type.map(|(name, v)| (name.as_str(), v)).collect();
    reasons.push(("rate", &values["rateLimitedRate"]));
    reasons.push(("deadline", &values["deadlineRate"]));
    let weight = |(_, value): &(&str, &Value)| value.as_f64().unwrap_or(0.0);
    reasons.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    let dry = values["wouldRefuseRate"].as_f64() > Some(0.0) && values["refusedRate"] == 0.0;
    format!("{}{}", if dry { "(dry run) " } else { "" }, named(&reasons)).into()
}

/// Returns the rates above 0, each with its name.
fn named(rates: &[(&str, &Value)]) -> String {
    let rates = rates.iter().filter(|(_, value)| value.as_f64() > Some(0.0));
    let rates = rates.map(|(name, value)| format!("{name} {}", rate(value)));
    rates.collect::<Vec<_>>().join(", ")
}

/// Returns the objective with the least margin. For a policy, returns its problems.
fn objective(values: &Value) -> Span<'static> {
    let remarks = named(&[
        ("unchecked/s", &values["unmanagedRate"]),
        ("floors over capacity", &values["floorsOverCapacity"]),
    ]);
    if !remarks.is_empty() {
        return Span::styled(remarks, BAD);
    }
    let Some(objectives) = values.get("objectives") else {
        return Span::default();
    };
    let known = each(objectives).filter_map(|o| Some((o, margin(o)?)));
    let Some((o, margin)) = known.min_by(|a, b| a.1.total_cmp(&b.1)) else {
        return unknown();
    };
    let (sign, style) = match margin < 0.0 {
        true => ("<", BAD),
        false => (">=", GOOD),
    };
    let name = name(o, "objective").replace('_', ".");
    let [attained, target] =
        ["attainment", "target"].map(|key| share(o[key].as_f64().unwrap_or(0.0)));
    let limit = time(o, "responseTimeMs", "");
    Span::styled(format!("{name} {limit}: {attained} {sign} {target}"), style)
}

fn value_per_slot_second(values: &Value) -> Span<'static> {
    match values["valueCut"].get("perSlotSecond") {
        // Without a rank.
        Some(value) if value == 0.0 => unknown(),
        Some(value) => rate(value),
        None => Span::default(),
    }
}

/// Returns the part of a type's requests that the value cut admits.
fn admitted(values: &Value) -> Span<'static> {
    let Some(part) = values["valueCut"]["admitted"].as_f64() else {
        return Span::default();
    };
    Span::styled(format!("{:.0}%", part * 100.0), unwanted(Some(1.0 - part)))
}

/// Returns a bar of the slots that all types demand, in order of rank. It shows the slots of this
/// type, with the slots of admitted requests filled, and the position of the cut. For a policy,
/// returns the slots that are given out.
fn cut(values: &Value) -> Span<'static> {
    let value = &values["valueCut"];
    let slots = |of: &Value, name: &str| of[name].as_f64().unwrap_or(0.0);
    let Some(all) = value.get("ofAll") else {
        return format!("{:.1} slots are given out", slots(value, "slotsGiven")).into();
    };
    let given = slots(all, "slotsGiven");
    let scale = BAR as f64 / slots(all, "slotsAsked").max(given).max(1e-9);
    let at = |slots: f64| (slots * scale).round() as usize;
    let (from, asked) = (slots(value, "slotsBefore"), slots(value, "slotsAsked"));
    let (begin, filled) = (at(from), at(from + asked * slots(value, "admitted")));
    // A type with traffic gets at least one cell.
    let end = at(from + asked).max(begin + usize::from(asked > 0.0));
    let filled = match slots(value, "admitted") {
        1.0 => end,
        _ => filled,
    };
    let cell = |i: usize| match i {
        i if (begin..filled).contains(&i) => '█',
        i if (begin..end).contains(&i) => '░',
        i if i == at(given) => '│',
        _ => ' ',
    };
    (0..=BAR).map(cell).collect::<String>().into()
}

fn limit(values: &Value) -> Span<'static> {
    match values.get("limitRate") {
        None => Span::default(),
        Some(Value::Null) => "no limit".into(),
        Some(limit) if values["demandRate"].as_f64() > limit.as_f64() => rate(limit).style(WARNING),
        Some(limit) => rate(limit),
    }
}

/// Returns the places that set a workflow's rate. For a policy, returns the problems of its
/// workflows.
fn bottleneck(values: &Value) -> Span<'static> {
    let Some(places) = values.get("bottlenecks") else {
        let remarks = named(&[
            ("folded/s", &values["foldedRate"]),
            ("rates refused/s", &values["ratesRefusedRate"]),
            ("rates expired/s", &values["ratesExpiredRate"]),
        ]);
        return Span::styled(remarks, WARNING);
    };
    let place = |b: &Value| format!("{} ({})", name(b, "place"), b["proxies"]);
    let places: Vec<String> = each(places).map(place).collect();
    places.join(", ").into()
}

fn state(values: &Value) -> Span<'static> {
    match name(values, "state") {
        UNREACHABLE => Span::styled("UNREACHABLE", BAD),
        ANSWERS => Span::styled("answers", GOOD),
        _ => Span::styled("asked", FAINT),
    }
}

/// Returns the policies of a proxy, or the reason why it doesn't answer.
fn policies(values: &Value) -> Span<'static> {
    match silence(values) {
        Some(problem) => Span::styled(problem, BAD),
        None => names(&values["policies"]).into(),
    }
}

pub(super) fn names(list: &Value) -> String {
    let names = each(list).filter_map(Value::as_str);
    names.collect::<Vec<_>>().join(", ")
}

fn elapsed(seconds: f64) -> String {
    age(Duration::from_secs_f64(seconds))
}

/// Returns the reason why a proxy doesn't answer, and the time since its first failure.
pub(super) fn silence(values: &Value) -> Option<String> {
    let since = elapsed(values["silentSeconds"].as_f64()?);
    Some(format!("{} (for {since})", values["problem"].as_str()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_tightest_objective_is_shown() {
        let cell = |objectives: &[(&str, f64, Option<f64>)]| {
            let one = |(name, target, attainment): &(&str, f64, Option<f64>)| {
                json!({
                    "objective": name, "responseTimeMs": 72.0,
                    "target": target, "attainment": attainment,
                })
            };
            objective(&json!({"objectives": objectives.iter().map(one).collect::<Vec<_>>()}))
        };
        let met = cell(&[("p50", 0.5, Some(0.9)), ("p99_9", 0.999, Some(0.9995))]);
        assert_eq!(met.content, "p99.9 72ms: 99.95% >= 99.9%");
        assert_eq!(met.style, GOOD);
        let missed = cell(&[("p50", 0.5, Some(0.25)), ("p90", 0.9, Some(0.89))]);
        assert_eq!(missed.content, "p50 72ms: 25% < 50%");
        assert_eq!(missed.style, BAD);
        assert_eq!(cell(&[("p50", 0.5, None)]).content, "-");
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.01, "<0.1"),
            (0.4, "0.4"),
            (37.5, "37.5"),
            (99.96, "100"),
            (412.4, "412"),
            (12_345.0, "12.3k"),
            (2e6, "2.0M"),
        ] {
            assert_eq!(rate(&json!(value)).content, text);
        }
        assert_eq!(rate(&Value::Null).content, "-");
        for (ms, text) in [
            (0.0, "0.0ms"),
            (9.94, "9.9ms"),
            (37.4, "37ms"),
            (1_240.0, "1.24s"),
            (12_000.0, "12s"),
        ] {
            assert_eq!(time(&json!({"t": ms}), "t", "").content, text);
        }
        let percent = |part, whole| {
            refused_percent(&json!({"refusedRate": part, "arrivalRate": whole})).content
        };
        assert_eq!(percent(1.0, 3.0), "33%");
        assert_eq!(percent(0.001, 3.0), "<1%");
        assert_eq!(percent(1.0, 0.0), "-");
        assert_eq!(share(0.9995), "99.95%");
        assert_eq!(share(0.9), "90%");
    }
}
