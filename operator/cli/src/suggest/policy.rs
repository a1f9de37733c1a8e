//! The output of `headgate suggest`, which is a policy in YAML with comments on the source of each
//! number.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use headgate_core::config::DEFAULT_TYPE;
use headgate_deliver::cluster::ObjectKey;

use crate::draft::{free_name, head, kind};

/// The placeholder for variable elements in a path.
pub(super) const FOLDED: &str = "{id}";
/// The least suggested objective, ms. Access logs and timers are too imprecise for shorter ones.
const LEAST_MS: f64 = 10.0;

/// Measured times of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measured {
    pub(super) requests: u64,
    pub(super) p50_ms: f64,
    pub(super) p90_ms: f64,
}

/// A route that gets a type of its own.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Route {
    /// The method, if the same path has several.
    pub(super) method: Option<String>,
    /// Elements of the path.
    pub(super) path: Vec<String>,
    pub(super) measured: Measured,
    /// The route's share of all service time, ratio 0..=1.
    pub(super) of_time: f64,
}

/// The times and routes that were measured.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    /// Times of all requests.
    pub(super) all: Measured,
    /// Routes by their total time, the largest first.
    pub(super) routes: Vec<Route>,
    /// Remarks for the reader, a sentence each.
    pub(super) notes: Vec<String>,
}

/// Returns objectives for p50 and p90, ms. Each is twice the requests' own percentile, plus an
/// allowance for slow requests before them. The allowance is the 90th percentile of all requests
/// for p50, and twice this percentile for p90.
fn objectives(own: &Measured, all: &Measured) -> (f64, f64) {
    let p50 = round_up(2.0 * own.p50_ms + all.p90_ms);
    let p90 = round_up(2.0 * own.p90_ms + 2.0 * all.p90_ms);
    (p50, p90.max(p50))
}

/// Rounds up to 1, 1.5, 2, 3, 5 or 7 times a power of ten, at least [`LEAST_MS`].
pub(super) fn round_up(ms: f64) -> f64 {
    let ms = ms.max(LEAST_MS);
    let power = 10_f64.powf(ms.log10().floor());
    let step = [1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0].into_iter();
    // The comparison tolerates a rounding error of the logarithm, which must not select the next
    // step.
    let mut enough = step
        .map(|step| step * power)
        .filter(|to| *to >= ms * (1.0 - 1e-9));
    enough.next().unwrap_or(10.0 * power)
}

/// Returns the policy as YAML. `target` is the group and the kind of its target.
pub(super) fn text(found: &Found, of: &ObjectKey, target: &str) -> String {
    let all = &found.all;
    let mut text = format!(
        "# Suggested by headgate suggest from {} responses. Review it, then try it:
#   headgate validate policy.yaml
#   headgate simulate --policy policy.yaml --workload access.log
",
        all.requests
    );
    for note in &found.notes {
        text += &format!("# {note}\n");
    }
    text += &head(&of.namespace, &of.name, target);
    text += &format!(
        "  # No parallelism: the filter finds how many requests the service can process at once.
  # Objectives are twice the measured times of a type, plus the time of slow requests before it: \
         one at the median,
  # two at the 90th percentile, of {} each (the 90th percentile of all). Rounded up to 1, 1.5, 2, \
         3, 5 or 7.
  types:
",
        shown(all.p90_ms)
    );
    let mut names = BTreeSet::from([DEFAULT_TYPE.to_owned()]);
    for route in in_order(&found.routes) {
        let (took, share) = (took(&route.measured), route.of_time * 100.0);
        text += &format!("  # {took}, {share:.0}% of all service time\n");
        let (name, slo) = (name(route, &mut names), slo(&route.measured, all));
        text += &kind(&name, "", Some(&matching(route)), &[("slo", slo)]);
    }
    let which = match found.routes.is_empty() {
        true => "All requests",
        false => "All other requests, with objectives from the response times of all requests",
    };
    text += &format!("  # {which}: {}\n", took(all));
    text + &kind(DEFAULT_TYPE, "", None, &[("slo", slo(all, all))])
}

fn took(measured: &Measured) -> String {
    format!(
        "{} responses took {} (p50) and {} (p90)",
        measured.requests,
        shown(measured.p50_ms),
        shown(measured.p90_ms)
    )
}

fn shown(ms: f64) -> String {
    let text = match ms {
        ms if ms < 10.0 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    };
    format!("{} ms", text.strip_suffix(".0").unwrap_or(&text))
}

fn slo(own: &Measured, all: &Measured) -> String {
    let (p50, p90) = objectives(own, all);
    format!("{{p50: {p50:.0}ms, p90: {p90:.0}ms}}")
}

/// Returns the routes in the order of their types. The most specific routes come first, because the
/// first match wins. Fixed paths come before paths with ids, and longer paths before shorter ones.
fn in_order(routes: &[Route]) -> Vec<&Route> {
    let mut routes: Vec<&Route> = routes.iter().collect();
    routes.sort_by_key(|route| {
        let folded = route
            .path
            .iter()
            .filter(|element| *element == FOLDED)
            .count();
        (folded, std::cmp::Reverse(route.path.len()))
    });
    routes
}

/// Returns the name of a route's type, such as `users-id-orders` for `GET /users/{id}/orders`. The
/// name begins with the method if the path has several methods.
fn name(route: &Route, taken: &mut BTreeSet<String>) -> String {
    free_name(route.method.iter().chain(&route.path), taken)
}

fn matching(route: &Route) -> String {
    let folded = route.path.iter().any(|element| element == FOLDED);
    let mut value = String::new();
    for element in &route.path {
        value.push('/');
        match folded {
            true if element == FOLDED => value.push_str("[^/]+"),
            true => escape(element, &mut value),
            false => value.push_str(element),
        }
    }
    let kind = if folded { "RegularExpression" } else { "Exact" };
    let mut text = format!("{{path: {{type: {kind}, value: {}}}", quoted(&value));
    if let Some(method) = &route.method {
        // Writing to a String does not fail.
        let _ = write!(text, ", method: {}", quoted(method));
    }
    text.push('}');
    text
}

/// Escapes `text` for a regular expression.
fn escape(text: &str, to: &mut String) {
    for c in text.chars() {
        if c.is_ascii_punctuation() && !matches!(c, '-' | '_' | '~' | '%') {
            to.push('\\');
        }
        to.push(c);
    }
}

/// Quotes `text` for YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
