//! Rules for unreachable matches, whose requests are all covered by earlier matches.
//!
//! A match A covers a match B if each condition of A follows from the conditions of B. On the path,
//! A has no condition, the same condition as B, or a prefix of B's path. A's method, headers, gRPC
//! method and route, if given, are those of B. A regular expression is covered only by the same
//! regular expression, because the intersection of two is not computed. So a reachable match is
//! never reported as unreachable.

use std::collections::HashMap;

use headgate_core::config::{
    DEFAULT_TYPE, GrpcMatch, HeaderMatch, Match, PathMatch, PathMatchKind,
};

use super::At;
use crate::AdmissionPolicySpec;

/// Earlier matches by their condition on the path. The index avoids comparing every match with
/// every other.
type Earlier<'a> = HashMap<Option<(PathMatchKind, &'a str)>, Vec<(String, &'a Match)>>;

/// Adds a problem for every match of a type or a class that is covered by an exclusion, by an
/// earlier type (or class) or by an earlier match of the same type or class.
pub(super) fn check(spec: &AdmissionPolicySpec, at: &At<'_>) {
    let mut earlier = Earlier::new();
    check_list(&spec.exclude, &at.field("exclude"), &mut earlier);
    let mut earlier_classes = earlier.clone();
    for (i, kind) in spec.types.iter().enumerate() {
        if kind.name != DEFAULT_TYPE {
            let at = at.field("types").item(i).field("matches");
            check_list(&kind.matches, &at, &mut earlier);
        }
    }
    for (i, class) in spec.classes.iter().enumerate() {
        let at = at.field("classes").item(i).field("matches");
        check_list(&class.matches, &at, &mut earlier_classes);
    }
}

/// Adds a problem for each of `rules` that a match in `earlier` covers, and adds the other rules to
/// `earlier`.
fn check_list<'a>(rules: &'a [Match], at: &At<'_>, earlier: &mut Earlier<'a>) {
    for (i, rule) in rules.iter().enumerate() {
        if *rule == Match::default() {
            continue; // Another rule reports an empty match, which would cover all later matches.
        }
        let at = at.item(i);
        if let Some((by, covering)) = covering(rule, earlier) {
            let how = if *covering == *rule {
                "is the same"
            } else {
                "takes all that it matches"
            };
            at.add(format!(
                "never reached; {by} {how}, so drop one or change their order"
            ));
            continue;
        }
        let place = at.path().to_string();
        let place = place.strip_prefix("spec.").unwrap_or(&place).to_owned();
        let same_path = earlier.entry(path_key(rule.path.as_ref())).or_default();
        same_path.push((place, rule));
    }
}

fn path_key(path: Option<&PathMatch>) -> Option<(PathMatchKind, &str)> {
    path.map(|p| match p.kind {
        PathMatchKind::PathPrefix => (p.kind, p.value.trim_end_matches('/')),
        _ => (p.kind, p.value.as_str()),
    })
}

/// Returns an earlier match that covers `rule`.
fn covering<'e, 'a>(rule: &'e Match, earlier: &'e Earlier<'a>) -> Option<(&'e str, &'a Match)> {
    let key = path_key(rule.path.as_ref());
    let mut keys = vec![None];
    if let Some((kind, value)) = key {
        keys.push(key);
        if kind != PathMatchKind::RegularExpression {
            let slashes = value.match_indices('/').map(|(end, _)| &value[..end]);
            keys.extend(slashes.map(|prefix| Some((PathMatchKind::PathPrefix, prefix))));
            keys.push(Some((PathMatchKind::PathPrefix, value)));
        }
    }
    let mut candidates = keys.iter().filter_map(|key| earlier.get(key)).flatten();
    let (place, covering) = candidates.find(|(_, a)| covers_beyond_path(a, rule))?;
    Some((place.as_str(), *covering))
}

/// Whether all conditions of `a` but the condition on the path follow from the conditions of `b`.
fn covers_beyond_path(a: &Match, b: &Match) -> bool {
    let same_or_any = |a: &Option<String>, b: &Option<String>| a.is_none() || a == b;
    same_or_any(&a.method, &b.method)
        && same_or_any(&a.route, &b.route)
        && a.headers
            .iter()
            .all(|ha| b.headers.iter().any(|hb| same_header(ha, hb)))
        && match (&a.grpc, &b.grpc) {
            (None, _) => true,
            (Some(a), Some(b)) => covers_grpc(a, b),
            (Some(_), None) => false,
        }
}

fn same_header(a: &HeaderMatch, b: &HeaderMatch) -> bool {
    a.kind == b.kind && a.name.eq_ignore_ascii_case(&b.name) && a.value == b.value
}

fn covers_grpc(a: &GrpcMatch, b: &GrpcMatch) -> bool {
    let part = |a: &Option<String>, b: &Option<String>| a.is_none() || a == b;
    // With different kinds, even equal texts are different conditions.
    (a.kind == b.kind || (a.service.is_none() && a.method.is_none()))
        && part(&a.service, &b.service)
        && part(&a.method, &b.method)
}
