//! The columns of the tables, and the format of their values. A cell is empty if its value is
//! unknown or the row doesn't have it.

use std::time::Duration;

use headgate_xds::timestamp::age;
use ratatui::layout::HorizontalAlignment::{self, Left, Right};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;
use serde_json::Value;

use crate::view::{ANSWERS, UNREACHABLE, each, field, margin, refused_share, traffic_of};

/// The heading of a column, the alignment of its cells, and the function that formats the cell of a
/// row.
pub(crate) type Column = (
    &'static str,
    HorizontalAlignment,
    fn(&Value) -> Span<'static>,
);

/// The style of unimportant values.
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const GOOD: Style = Style::new().fg(Color::Green);
/// The style of values that need attention.
pub(crate) const WARNING: Style = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
/// The style of problems. It is underlined too, for terminals without colours and for `NO_COLOR`.
pub(crate) const BAD: Style = WARNING.fg(Color::Red).add_modifier(Modifier::UNDERLINED);

// The most important columns come first, because the rightmost columns are left out if the terminal
// is too narrow.
pub(crate) const TYPES: &[Column] = &[
    ("ARRIVE/s", Right, |r| rate(&traffic_of(r)["arrivalRate"])),
    ("REFUSE/s", Right, |r| refused(traffic_of(r))),
    ("%", Right, |r| refused_percent(traffic_of(r))),
    ("SLOTS", Right, slots),
    ("WAIT p99", Right, |r| time(&r["queueWaitMs"]["p99"])),
    ("OBJECTIVE", Left, objective),
    ("REASONS", Left, |r| reasons(traffic_of(r))),
    ("QUEUE", Right, |r| count(&r["queueLength"])),
    ("ACCEPT/s", Right, |r| rate(&traffic_of(r)["acceptedRate"])),
    ("WAIT p50", Right, |r| time(&r["queueWaitMs"]["p50"])),
    ("RESPONSE p99", Right, |r| time(&r["responseTimeMs"]["p99"])),
];
pub(crate) const WORKFLOWS: &[Column] = &[
    ("DEMAND/s", Right, |r| rate(&r["demandRate"])),
    ("RATE/s", Right, limit),
    ("REFUSE/s", Right, refused),
    ("%", Right, refused_percent),
    ("BOTTLENECK", Left, bottleneck),
    ("REASONS", Left, reasons),
    ("ADMIT/s", Right, |r| rate(&r["admittedRate"])),
    ("HELD", Right, |r| count(&r["queueLength"])),
    ("WAIT p50", Right, |r| time(&r["waitMs"]["p50"])),
    ("WAIT p99", Right, |r| time(&r["waitMs"]["p99"])),
    ("COMPLETION", Right, |r| time(&r["completionMs"])),
];
pub(crate) const PROXIES: &[Column] = &[
    ("STATE", Left, state),
    ("ARRIVE/s", Right, |r| rate(&r["arrivalRate"])),
    ("REFUSE/s", Right, refused),
    ("SLOTS", Right, slots),
    ("POLICIES", Left, policies),
    ("FILTER", Left, |r| field(r, "filter").to_owned().into()),
    ("ENVOY", Left, |r| field(r, "version").to_owned().into()),
    ("NODE", Left, |r| field(r, "node").to_owned().into()),
    ("UP", Right, |r| number(&r["uptimeSeconds"], elapsed)),
    ("RESTARTS", Right, |r| count(&r["restarts"])),
];
pub(crate) const VALUE: &[Column] = &[
    ("VALUE/SLOT SECOND", Right, |r| {
        rate(&r["valueCut"]["perSlotSecond"])
    }),
    ("SLOTS ASKED", Right, |r| rate(&r["valueCut"]["slotsAsked"])),
    ("ADMITTED", Right, admitted),
    ("THE CUT", Left, cut),
];

/// The width of the bar of the slots that a policy's types demand, in cells.
const BAR: f64 = 48.0;

fn number(value: &Value, format: impl Fn(f64) -> String) -> Span<'static> {
    value.as_f64().map(format).unwrap_or_default().into()
}

/// Formats a rate: `0`, `0.4`, `37.5`, `412`, `12.3k`.
pub(crate) fn rate(value: &Value) -> Span<'static> {
    number(value, |rate| match rate {
        0.0 => "0".to_owned(),
        v if v < 0.05 => "<0.1".to_owned(),
        v if v < 99.95 => format!("{v:.1}"),
        v if v < 9_999.5 => format!("{v:.0}"),
        v if v < 999_950.0 => format!("{:.1}k", v / 1e3),
        v => format!("{:.1}M", v / 1e6),
    })
}

fn count(value: &Value) -> Span<'static> {
    number(value, |count| count.to_string())
}

/// Formats a time: `0.4ms`, `37ms`, `1.24s`.
fn time(value: &Value) -> Span<'static> {
    number(value, |ms| match ms {
        ms if ms < 9.95 => format!("{ms:.1}ms"),
        ms if ms < 999.5 => format!("{ms:.0}ms"),
        ms if ms < 9_995.0 => format!("{:.2}s", ms / 1e3),
        ms => format!("{:.0}s", ms / 1e3),
    })
}

/// Formats a share with the precision of objectives: `97.2%`, `99.95%`.
fn share(value: &Value) -> String {
    let hundredths = (value.as_f64().unwrap_or(0.0) * 1e4).round();
    format!("{}%", hundredths / 1e2)
}

fn elapsed(seconds: f64) -> String {
    // Envoy's uptime wraps below zero if the system's clock is set back, and the cast saturates.
    age(Duration::from_secs(seconds as u64))
}

/// Returns the style of a share whose best value is 0.
fn unwanted(share: f64) -> Style {
    match share {
        0.0 => FAINT,
        share if share > 0.2 => BAD,
        _ => WARNING,
    }
}

fn refused(values: &Value) -> Span<'static> {
    rate(&values["refusedRate"]).style(unwanted(refused_share(values).unwrap_or(0.0)))
}

fn refused_percent(values: &Value) -> Span<'static> {
    let Some(share) = refused_share(values) else {
        return Span::default();
    };
    let text = match share {
        share if share > 0.0 && share < 0.01 => "<1%".to_owned(),
        share => format!("{:.0}%", share * 100.0),
    };
    Span::styled(text, unwanted(share))
}

fn slots(values: &Value) -> Span<'static> {
    let slots = values["slotsInUse"].as_u64().zip(values["slots"].as_u64());
    slots.map_or_else(Span::default, |(used, all)| {
        let style = if all > 0 && used >= all {
            WARNING
        } else {
            Style::new()
        };
        Span::styled(format!("{used}/{all}"), style)
    })
}

/// Returns the reasons for rejections, the most frequent first. In a dry run, rejections aren't
/// enforced.
fn reasons(values: &Value) -> Span<'static> {
    let of_type = values["refusedByReason"].as_object().into_iter().flatten();
    let mut reasons: Vec<(&str, &Value)> = of_type.map(|(name, v)| (name.as_str(), v)).collect();
    reasons.push(("rate", &values["rateLimitedRate"]));
    reasons.push(("deadline", &values["deadlineRate"]));
    let weight = |(_, value): &(&str, &Value)| value.as_f64().unwrap_or(0.0);
    reasons.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    let dry = values["wouldRefuseRate"].as_f64() > Some(0.0) && values["refusedRate"] == 0.0;
    format!("{}{}", if dry { "(dry run) " } else { "" }, named(&reasons)).into()
}

/// Returns the rates above 0 with their names.
fn named(rates: &[(&str, &Value)]) -> String {
    let rates = rates.iter().filter(|(_, value)| value.as_f64() > Some(0.0));
    let rates = rates.map(|(name, value)| format!("{name} {}", rate(value)));
    rates.collect::<Vec<_>>().join(", ")
}

/// Returns the objective with the smallest margin. For a policy, returns its problems.
fn objective(values: &Value) -> Span<'static> {
    let known = each(&values["objectives"]).filter_map(|o| Some((o, margin(o)?)));
    let Some((o, margin)) = known.min_by(|a, b| a.1.total_cmp(&b.1)) else {
        let remarks = named(&[
            ("unchecked/s", &values["unmanagedRate"]),
            ("floors over capacity", &values["floorsOverCapacity"]),
        ]);
        return Span::styled(remarks, BAD);
    };
    let (sign, style) = if margin < 0.0 {
        ("<", BAD)
    } else {
        (">=", GOOD)
    };
    let name = field(o, "objective")
        .replace("tpot_", "tpot ")
        .replace('_', ".");
    let [attained, target] = ["attainment", "target"].map(|key| share(&o[key]));
    let limit = time(&o["responseTimeMs"]);
    Span::styled(format!("{name} {limit}: {attained} {sign} {target}"), style)
}

/// Returns the fraction of a type's requests that the value cut admits.
fn admitted(values: &Value) -> Span<'static> {
    let part = &values["valueCut"]["admitted"];
    let refused = 1.0 - part.as_f64().unwrap_or(1.0);
    number(part, |part| format!("{:.0}%", part * 100.0)).style(unwanted(refused))
}

/// Returns a bar of the slots that all types demand, in order of rank. The bar marks the slots of
/// this type and the position of the cut. The slots of the type's admitted requests are filled. For
/// a policy, returns the number of allotted slots as text.
fn cut(values: &Value) -> Span<'static> {
    let value = &values["valueCut"];
    let slots = |of: &Value, name: &str| of[name].as_f64().unwrap_or(0.0);
    let Some(all) = value.get("ofAll") else {
        return format!("{:.1} slots allotted", slots(value, "slotsGiven")).into();
    };
    let given = slots(all, "slotsGiven");
    let scale = BAR / slots(all, "slotsAsked").max(given).max(1e-9);
    let at = |slots: f64| (slots * scale).round() as usize;
    let (from, asked) = (slots(value, "slotsBefore"), slots(value, "slotsAsked"));
    // A type with traffic gets at least one cell.
    let end = at(from + asked).max(at(from) + usize::from(asked > 0.0));
    let filled = match slots(value, "admitted") {
        1.0 => end,
        part => at(from + asked * part),
    };
    let cell = |i: usize| match i {
        i if i >= at(from) && i < filled => '█',
        i if i >= at(from) && i < end => '░',
        i if i == at(given) => '│',
        _ => ' ',
    };
    (0..=BAR as usize).map(cell).collect::<String>().into()
}

fn limit(values: &Value) -> Span<'static> {
    match &values["limitRate"] {
        Value::Null if values.get("limitRate").is_some() => "no limit".into(),
        limit if values["demandRate"].as_f64() > limit.as_f64() => rate(limit).style(WARNING),
        limit => rate(limit),
    }
}

/// Returns the bottlenecks that determine a workflow's rate. For a policy, returns the problems of
/// its workflows.
fn bottleneck(values: &Value) -> Span<'static> {
    let place = |b: &Value| format!("{} ({})", field(b, "place"), b["proxies"]);
    let places = each(&values["bottlenecks"]).map(place).collect::<Vec<_>>();
    let remarks = named(&[
        ("folded/s", &values["foldedRate"]),
        ("rates refused/s", &values["ratesRefusedRate"]),
        ("rates expired/s", &values["ratesExpiredRate"]),
    ]);
    match places.is_empty() {
        true => Span::styled(remarks, WARNING),
        false => places.join(", ").into(),
    }
}

fn state(values: &Value) -> Span<'static> {
    match field(values, "state") {
        UNREACHABLE => Span::styled("UNREACHABLE", BAD),
        ANSWERS => Span::styled("answers", GOOD),
        _ => Span::styled("asked", FAINT),
    }
}

/// Returns the policies of a proxy, or the reason why it doesn't answer.
fn policies(values: &Value) -> Span<'static> {
    let names = each(&values["policies"]).filter_map(Value::as_str);
    let names = || names.collect::<Vec<_>>().join(", ").into();
    silence(values).map_or_else(names, |problem| Span::styled(problem, BAD))
}

/// Returns the reason why a proxy doesn't answer, and the time since its first failure.
pub(crate) fn silence(values: &Value) -> Option<String> {
    let since = elapsed(values["silentSeconds"].as_f64()?);
    Some(format!("{} (for {since})", field(values, "problem")))
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
        assert_eq!(cell(&[("p50", 0.5, None)]).content, "");
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
        assert_eq!(rate(&Value::Null).content, "");
        for (ms, text) in [
            (0.0, "0.0ms"),
            (9.94, "9.9ms"),
            (37.4, "37ms"),
            (1_240.0, "1.24s"),
            (12_000.0, "12s"),
        ] {
            assert_eq!(time(&json!(ms)).content, text);
        }
        assert_eq!(elapsed(119.9), "119s");
        assert_eq!(elapsed(u64::MAX as f64), "213503982334601d");
        let percent = |part, whole| {
            refused_percent(&json!({"refusedRate": part, "arrivalRate": whole})).content
        };
        assert_eq!(percent(1.0, 3.0), "33%");
        assert_eq!(percent(0.001, 3.0), "<1%");
        assert_eq!(percent(1.0, 0.0), "");
        assert_eq!(share(&json!(0.9995)), "99.95%");
        assert_eq!(share(&json!(0.9)), "90%");
    }
}
