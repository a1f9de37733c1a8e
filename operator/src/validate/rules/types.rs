//! Query types: names, objectives, and that there is exactly one default.

use std::time::Duration as Span;

use headgate_core::config::{DEFAULT_TYPE, MAX_TYPES, Match, Objective, TypeConfig};

use super::matches::check_matches;
use super::names::{check_name, check_unique};
use super::{HOUR, MILLISECOND, Problems};
use crate::api::{Duration, QueryType, RequestMatch};
use crate::validate::path::Path;

/// Most matches of one policy.
const MAX_MATCHES_OF_ALL: usize = 4096;
/// Most objectives of one type.
const MAX_OBJECTIVES: usize = 16;
const OBJECTIVE: (Span, Span) = (MILLISECOND, HOUR);

/// Checks the types and puts `default` last. Each needs an objective if there is a `reason` for it.
pub(super) fn types(
    types: &[QueryType],
    reason: Option<&str>,
    at: &Path,
    problems: &mut Problems,
) -> Vec<TypeConfig> {
    if types.len() > MAX_TYPES {
        problems.add(
            at.clone(),
            format!("{} types; at most {MAX_TYPES}", types.len()),
        );
    }
    let matches: usize = types.iter().map(|t| t.matches.len()).sum();
    if matches > MAX_MATCHES_OF_ALL {
        problems.add(
            at.clone(),
            format!("{matches} matches in all; at most {MAX_MATCHES_OF_ALL}"),
        );
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
        let right = "one named default takes the requests that no other type matches";
        problems.add(at.clone(), format!("{found}; {right}"));
    }
    let names: Vec<&str> = types.iter().map(|t| t.name.as_str()).collect();
    check_unique(&names, at, "types", problems);
    let mut checked = Vec::new();
    for (i, kind) in types.iter().enumerate() {
        let at = at.item(i);
        check_name(&kind.name, &at.field("name"), problems);
        let is_default = kind.name == DEFAULT_TYPE;
        if is_default && !kind.matches.is_empty() {
            let right =
                "default takes what no other type matches; rename the type or drop its matches";
            problems.add(
                at.field("matches"),
                format!("{} given; {right}", kind.matches.len()),
            );
        }
        if !is_default && kind.matches.is_empty() {
            let right = "at least one, such as {path: {type: PathPrefix, value: /search}}";
            problems.add(at.field("matches"), format!("none; {right}"));
        }
        let rules = check_matches(&kind.matches, &at.field("matches"), problems);
        let slo = slo(kind, &at.field("slo"), problems);
        if let Some(reason) = reason
            && kind.slo.is_empty()
        {
            let right = "such as {p50: 18ms, p90: 50ms}";
            problems.add(at.field("slo"), format!("none; {reason}, {right}"));
        }
        checked.push(TypeConfig {
            name: kind.name.clone(),
            matches: rules,
            slo,
        });
    }
    // Stable: the others keep their order, in which the first that matches wins.
    checked.sort_by_key(|t| t.name == DEFAULT_TYPE);
    checked
}

/// Checks the exclusions.
pub(super) fn excluded(exclude: &[RequestMatch], at: &Path, problems: &mut Problems) -> Vec<Match> {
    check_matches(exclude, at, problems)
}

fn slo(kind: &QueryType, at: &Path, problems: &mut Problems) -> Vec<Objective> {
    if kind.slo.len() > MAX_OBJECTIVES {
        problems.add(
            at.clone(),
            format!("{} objectives; at most {MAX_OBJECTIVES}", kind.slo.len()),
        );
    }
    let mut objectives: Vec<(&String, &Duration, Objective)> = Vec::new();
    for (name, time) in &kind.slo {
        let at = at.key(name);
        let percentile = match percentile(name) {
            Ok(percentile) => Some(percentile),
            Err(right) => {
                problems.add(at.clone(), format!("{name:?} is no percentile; {right}"));
                None
            }
        };
        let objective_us = problems.duration(&at, time, OBJECTIVE.0, OBJECTIVE.1);
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
            let right = "a higher percentile takes at least as long";
            problems.add(
                at.key(name),
                format!("{time} is below the {low_time} of {low_name}; {right}"),
            );
        }
    }
    objectives
        .into_iter()
        .map(|(_, _, objective)| objective)
        .collect()
}

/// The percentile that `p50` or `p99.9` names, above 0 and below 100.
fn percentile(name: &str) -> Result<f64, String> {
    const RIGHT: &str = "p followed by a number above 0 and below 100, such as p50 or p99.9";
    let digits = name.strip_prefix('p').ok_or(RIGHT)?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) || whole.len() > 3 || fraction.len() > 4 {
        return Err(RIGHT.to_owned());
    }
    let percentile: f64 = digits.parse().map_err(|_| RIGHT)?;
    if !(percentile > 0.0 && percentile < 100.0) {
        return Err(RIGHT.to_owned());
    }
    // One name for each, so that none is given twice.
    let plain = format!("p{percentile}");
    if plain != name {
        return Err(format!("write {plain}"));
    }
    Ok(percentile)
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
