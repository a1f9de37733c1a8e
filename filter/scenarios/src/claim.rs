//! Claims of a paper about its results, and the bounds within which our results reproduce them.
//!
//! A claim is about one number, or about the ratio or the difference of two numbers. A number is
//! written `METRIC of KIND in SERIES at PLACES`, such as `rt_p50_ms of slow in MaxQueueWait at
//! 1.1..`. Without a kind, the number covers all kinds together. The kind `*` selects each kind
//! separately, and `* but slow` each kind except one. Without a series, or with `*`, each series is
//! selected. PLACES is one point of the sweep (`1.5`), all points from one on (`1.1..`), or all
//! points up to one (`..1.45`). Without PLACES, the whole sweep is selected. If several numbers are
//! selected, all have to be within the bounds.

use headgate_simulator::report::Claim;
use serde::Deserialize;

use crate::measured::ALL;
use crate::show::Results;

/// A claim as data.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ClaimEntry {
    text: String,
    /// The paper's value, with its unit.
    #[serde(default)]
    paper: String,
    of: Option<String>,
    ratio: Option<[String; 2]>,
    difference: Option<[String; 2]>,
    /// A limit. If set, the claim is about the first point of the sweep at which the numbers exceed
    /// the limit.
    crossing: Option<f64>,
    /// The value above which the claim holds.
    above: Option<f64>,
    /// The value below which the claim holds.
    below: Option<f64>,
    /// The lower and the upper bound within which the claim holds. Both bounds are included.
    within: Option<[f64; 2]>,
    #[serde(default = "two")]
    decimals: usize,
    /// Whether the model was fitted to this value. Such a claim is shown, but not judged.
    #[serde(default)]
    fitted: bool,
    /// The reason why the result isn't reproduced. A claim with a reason that holds counts as a
    /// failure, like a strict xfail.
    not_reproduced: Option<String>,
    /// The part of the setup from which the claim follows in any run. Such a claim is shown, but
    /// not judged.
    follows_from: Option<String>,
}

const fn two() -> usize {
    2
}

/// A selection of measured numbers.
#[derive(Debug, PartialEq)]
struct Numbers<'a> {
    metric: &'a str,
    kind: &'a str,
    series: &'a str,
    /// The first and the last point of the sweep.
    places: (f64, f64),
}

impl<'a> Numbers<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let (text, places) = text.rsplit_once(" at ").unwrap_or((text, ".."));
        let (text, series) = text.split_once(" in ").unwrap_or((text, "*"));
        let (metric, kind) = text.split_once(" of ").unwrap_or((text, ALL));
        let end = |text: &str, without: f64| match text {
            "" => Some(without),
            text => text.parse().ok(),
        };
        let places = match places.split_once("..") {
            Some((from, to)) => (end(from, f64::NEG_INFINITY)?, end(to, f64::INFINITY)?),
            None => (places.parse().ok()?, places.parse().ok()?),
        };
        Some(Self {
            metric,
            kind,
            series,
            places,
        })
    }

    fn is_at(&self, x: Option<f64>) -> bool {
        x.is_none_or(|x| (self.places.0 - 1e-9..=self.places.1 + 1e-9).contains(&x))
    }

    /// Returns the selected points of the sweep and values, in the order of the results. A value is
    /// `None` if nothing was measured.
    fn values(&self, results: &Results<'_>) -> Vec<(Option<f64>, Option<f64>)> {
        let mut values = Vec::new();
        for found in results.found {
            if (self.series != "*" && self.series != found.series) || !self.is_at(found.x) {
                continue;
            }
            let numbers = found
                .measured
                .numbers
                .iter()
                .filter(|n| n.metric == self.metric);
            let numbers = numbers.filter(|n| match self.kind.strip_prefix('*') {
                Some(but) => n.kind != ALL && but.strip_prefix(" but ") != Some(n.kind.as_str()),
                None => n.kind == self.kind,
            });
            values.extend(numbers.map(|n| (found.x, n.value)));
        }
        values
    }
}

impl ClaimEntry {
    fn values(&self, results: &Results<'_>) -> Vec<f64> {
        let numbers = |text: &str| -> Vec<Option<f64>> {
            let values = Numbers::read(text).map(|numbers| numbers.values(results));
            let values = values.unwrap_or_default();
            match self.crossing {
                None => values.into_iter().map(|(_, value)| value).collect(),
                Some(limit) => {
                    let over = values
                        .iter()
                        .filter(|(_, value)| value.is_some_and(|v| v > limit));
                    let first = over.filter_map(|(x, _)| *x).reduce(f64::min);
                    vec![first]
                }
            }
        };
        let pair = |[one, other]: &[String; 2], made: fn(f64, f64) -> f64| -> Vec<f64> {
            let (one, other) = (numbers(one), numbers(other));
            let pairs = one.len().max(other.len());
            let at = |values: &[Option<f64>], at: usize| match values {
                [single] => *single,
                values => values.get(at).copied().flatten(),
            };
            let made = |n| Some(made(at(&one, n)?, at(&other, n)?));
            (0..pairs).filter_map(made).collect()
        };
        match (&self.of, &self.ratio, &self.difference) {
            (Some(of), _, _) => numbers(of).into_iter().flatten().collect(),
            (_, Some(of), _) => pair(of, |a, b| a / b),
            (_, _, Some(of)) => pair(of, |a, b| a - b),
            _ => Vec::new(),
        }
    }

    fn holds(&self, value: f64) -> bool {
        self.above.is_none_or(|bound| value > bound)
            && self.below.is_none_or(|bound| value < bound)
            && self
                .within
                .is_none_or(|[least, most]| (least..=most).contains(&value))
    }

    /// Judges the claim against the results.
    pub(crate) fn judge(&self, results: &Results<'_>) -> Claim {
        let values = self.values(results);
        let holds = !values.is_empty() && values.iter().all(|value| self.holds(*value));
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let decimals = self.decimals;
        let mut ours = match values.len() {
            0 => "nothing".to_owned(),
            1 => format!("{least:.decimals$}"),
            _ => format!("{least:.decimals$} to {most:.decimals$}"),
        };
        let holds = match (&self.not_reproduced, &self.follows_from) {
            (Some(_), _) if holds => {
                ours.push_str("; holds, but is marked as not reproduced: remove notReproduced");
                Some(false)
            }
            (Some(why), _) => {
                ours.push_str(&format!("; not reproduced: {why}"));
                None
            }
            (None, Some(what)) => {
                ours.push_str(&format!("; follows from {what}"));
                None
            }
            (None, None) => (!self.fitted).then_some(holds),
        };
        Claim {
            text: self.text.clone(),
            paper: self.paper.clone(),
            ours,
            holds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::Measured;
    use crate::show::Found;

    impl ClaimEntry {
        fn operands(&self) -> Vec<&str> {
            let pair = self.ratio.iter().chain(&self.difference).flatten();
            pair.chain(&self.of).map(String::as_str).collect()
        }

        /// Returns an error, or `None` if the claim is valid. The error is the text of a number
        /// whose series or point isn't run, or says that the claim has no numbers or no bound.
        pub(crate) fn wrong(&self, series: &[&str], places: &[f64]) -> Option<String> {
            let operands = self.operands();
            let is_bounded = self.above.is_some() || self.below.is_some() || self.within.is_some();
            if operands.len() != if self.of.is_some() { 1 } else { 2 } || !is_bounded {
                return Some(format!(
                    "{}: neither of, ratio nor difference, or no bound",
                    self.text
                ));
            }
            let is_known = |text: &&&str| {
                Numbers::read(text).is_some_and(|numbers| {
                    let is_run = numbers.series == "*" || series.contains(&numbers.series);
                    is_run && (places.is_empty() || places.iter().any(|x| numbers.is_at(Some(*x))))
                })
            };
            let unknown = operands.iter().find(|text| !is_known(text));
            unknown.map(|text| (**text).to_owned())
        }
    }

    fn found(series: &str, x: f64, slow: Option<f64>, all: f64) -> Found {
        let mut measured = Measured::default();
        measured.note("fast", "p50", 1.0);
        measured.note("slow", "p50", slow);
        measured.note(ALL, "p50", all);
        Found {
            series: series.to_owned(),
            labels: Vec::new(),
            x: Some(x),
            measured,
        }
    }

    fn judge(entry: serde_json::Value) -> (Option<bool>, String) {
        let all = [
            found("Bouncer", 1.0, Some(10.0), 5.0),
            found("Bouncer", 1.5, Some(20.0), 6.0),
            found("MaxQueueWait, slack", 1.0, Some(30.0), 7.0),
            found("MaxQueueWait, slack", 1.5, None, 8.0),
        ];
        let mut entry = entry;
        entry["text"] = "claim".into();
        let entry: ClaimEntry = serde_json::from_value(entry).unwrap();
        let results = Results { found: &all };
        let claim = entry.judge(&results);
        (claim.holds, claim.ours)
    }

    #[test]
    fn all_numbers_that_are_named_have_to_be_within_the_bounds() {
        for (entry, holds, ours) in [
            (
                serde_json::json!({"of": "p50 of slow in Bouncer at 1.5", "within": [20, 21]}),
                true,
                "20.00",
            ),
            (
                serde_json::json!({"of": "p50 of slow in Bouncer at 1.5", "below": 20}),
                false,
                "20.00",
            ),
            (
                serde_json::json!({"of": "p50 of slow in Bouncer", "above": 9, "below": 21}),
                true,
                "10.00 to 20.00",
            ),
            (
                serde_json::json!({
                    "of": "p50 of slow in Bouncer at ..1.2", "decimals": 0, "below": 15,
                }),
                true,
                "10",
            ),
            (
                serde_json::json!({"of": "p50 of * in Bouncer at 1.2..", "below": 15}),
                false,
                "1.00 to 20.00",
            ),
            (
                serde_json::json!({"of": "p50 of * but slow in Bouncer at 1.2..", "below": 15}),
                true,
                "1.00",
            ),
            (
                serde_json::json!({"of": "p50 at 1.5", "below": 8}),
                false,
                "6.00 to 8.00",
            ),
            (
                serde_json::json!({
                    "ratio": ["p50 of slow in Bouncer", "p50 in Bouncer"], "above": 1.9,
                }),
                true,
                "2.00 to 3.33",
            ),
            // A pair of which one number is missing is skipped.
            (
                serde_json::json!({
                    "difference": ["p50 of slow in MaxQueueWait, slack", "p50 of slow in Bouncer"],
                    "above": 0,
                }),
                true,
                "20.00",
            ),
            (
                serde_json::json!({
                    "difference": ["p50 of slow in Bouncer", "p50 of fast in Bouncer at 1.0"],
                    "above": 0,
                }),
                true,
                "9.00 to 19.00",
            ),
            (
                serde_json::json!({
                    "of": "p50 of slow in Bouncer", "crossing": 15, "within": [1.5, 1.5],
                }),
                true,
                "1.50",
            ),
            (
                serde_json::json!({"of": "p50 of slow in Bouncer", "crossing": 25, "above": 0}),
                false,
                "nothing",
            ),
        ] {
            let words = entry.to_string();
            assert_eq!(judge(entry), (Some(holds), ours.to_owned()), "{words}");
        }
    }

    #[test]
    fn a_claim_that_was_fitted_or_follows_from_the_setup_is_not_judged() {
        let fitted = serde_json::json!({"of": "p50 in Bouncer at 1.0", "below": 1, "fitted": true});
        assert_eq!(judge(fitted), (None, "5.00".to_owned()));
        let follows = serde_json::json!({
            "of": "p50 in Bouncer at 1.0", "below": 6, "followsFrom": "the load",
        });
        assert_eq!(
            judge(follows),
            (None, "5.00; follows from the load".to_owned())
        );
    }

    #[test]
    fn a_claim_marked_as_not_reproduced_fails_once_it_holds() {
        let reason = |below: f64| {
            serde_json::json!({
                "of": "p50 in Bouncer at 1.0", "below": below, "notReproduced": "why",
            })
        };
        assert_eq!(
            judge(reason(1.0)),
            (None, "5.00; not reproduced: why".to_owned())
        );
        let holds = "5.00; holds, but is marked as not reproduced: remove notReproduced".to_owned();
        assert_eq!(judge(reason(6.0)), (Some(false), holds));
    }
}
