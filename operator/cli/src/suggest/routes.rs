//! Routes of an access log: methods and paths, with their variable elements folded.
//!
//! Two rules apply. Users can check both without tools:
//!
//! 1. An element of a path is an id if it is a number or a UUID. It is also an id if it has a digit
//!    and at least 20 characters, or at least 8 if all are hexadecimal.
//! 2. If more than [`NAMES`] different elements follow the same elements, they are names of things,
//!    and they are folded as ids are.
//!
//! The memory is bounded by [`PATHS`] different paths, counted after rule 1, plus 4 bytes per
//! request. Requests of later paths count as `default`.

use std::collections::{BTreeMap, BTreeSet};

use headgate_api::validate::{MAX_PATH, METHODS};
use headgate_simulator::workload::recorded::Logged;

use super::ENOUGH;
use super::policy::{FOLDED, Found, Measured, Route};
use crate::path::normalized;

/// The number of different elements at one position above which they count as names of things.
const NAMES: usize = 20;
/// The largest number of different paths. Requests of later paths count as `default`.
const PATHS: usize = 20_000;

/// A method and the elements of a path.
type Key = (String, Vec<String>);

/// The requests read so far.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// Service times by route, ms.
    times: BTreeMap<Key, Vec<f32>>,
    /// Service times of requests beyond the limit of paths, without a path, or with a method or a
    /// path that no policy can match.
    other: Vec<f32>,
}

impl Routes {
    /// Adds a request that the backend answered.
    pub(super) fn add(&mut self, request: &Logged<'_>) {
        let Some(ns) = request.service_ns else {
            return;
        };
        let ms = ns as f64 / 1e6;
        let ms = ms as f32;
        let Some(path) = request.path else {
            return self.other.push(ms);
        };
        let method = request.method.unwrap_or("GET");
        let elements = elements(path);
        let bytes: usize = elements.iter().map(|element| 1 + element.len()).sum();
        let odd = |c: char| c.is_whitespace() || c.is_control();
        let is_odd = elements.iter().any(|element| element.contains(odd));
        if !METHODS.contains(&method) || bytes > MAX_PATH || is_odd {
            return self.other.push(ms);
        }
        let key = (method.to_owned(), elements);
        let known = self.times.len();
        match self.times.get_mut(&key) {
            Some(times) => times.push(ms),
            None if known < PATHS => {
                self.times.insert(key, vec![ms]);
            }
            None => self.other.push(ms),
        }
    }

    /// Returns at most `most` routes, which have enough responses and the most service time.
    /// Returns `None` if the log has too few responses.
    pub(super) fn found(self, most: usize, notes: Vec<String>) -> Option<Found> {
        let routes = fold_names(self.times);
        let mut everything: Vec<f32> = routes
            .values()
            .flatten()
            .chain(&self.other)
            .copied()
            .collect();
        let all = Measured::of(&mut everything)?;
        let total = everything
            .iter()
            .map(|ms| f64::from(*ms))
            .sum::<f64>()
            .max(f64::MIN_POSITIVE);
        let mut methods: BTreeMap<Vec<String>, usize> = BTreeMap::new();
        for (_, path) in routes.keys() {
            *methods.entry(path.clone()).or_default() += 1;
        }
        let mut routes: Vec<Route> = routes
            .into_iter()
            .filter_map(|((method, path), mut times)| {
                let measured = Measured::of(&mut times)?;
                let time: f64 = times.iter().map(|ms| f64::from(*ms)).sum();
                Some(Route {
                    // The method is needed only if the path has several.
                    method: methods.get(&path).is_some_and(|n| *n > 1).then_some(method),
                    path,
                    measured,
                    of_time: time / total,
                })
            })
            .collect();
        routes.sort_by(|a, b| b.of_time.total_cmp(&a.of_time));
        routes.truncate(most);
        Some(Found { all, routes, notes })
    }
}

impl Measured {
    /// Sorts `times` and returns their percentiles, or `None` if the times are too few.
    fn of(times: &mut [f32]) -> Option<Self> {
        if times.len() < ENOUGH {
            return None;
        }
        times.sort_unstable_by(f32::total_cmp);
        let quantile = |q: f64| {
            let rank = (times.len() as f64 * q).ceil() as usize;
            f64::from(times[rank.clamp(1, times.len()) - 1])
        };
        Some(Self {
            requests: times.len() as u64,
            p50_ms: quantile(0.5),
            p90_ms: quantile(0.9),
        })
    }
}

/// Returns the elements of a path without its query, with ids folded (rule 1). The path is
/// normalized, because a policy matches only such paths. The log may be of an Envoy that doesn't
/// normalize paths.
fn elements(path: &str) -> Vec<String> {
    let fold = |element: String| match is_id(&element) {
        true => FOLDED.to_owned(),
        false => element,
    };
    normalized(path).into_iter().map(fold).collect()
}

fn is_id(element: &str) -> bool {
    let digits = element.bytes().filter(u8::is_ascii_digit).count();
    if digits == 0 {
        return false;
    }
    let hex = element.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    digits == element.len() || (hex && element.len() >= 8) || element.len() >= 20
}

/// Folds names of things (rule 2), from the first element of the paths to the last.
fn fold_names(mut times: BTreeMap<Key, Vec<f32>>) -> BTreeMap<Key, Vec<f32>> {
    let depth = times.keys().map(|(_, path)| path.len()).max().unwrap_or(0);
    for at in 0..depth {
        let mut names: BTreeMap<Vec<String>, BTreeSet<String>> = BTreeMap::new();
        for (_, path) in times.keys() {
            if let Some(element) = path.get(at) {
                let here = names.entry(path[..at].to_vec()).or_default();
                here.insert(element.clone());
            }
        }
        let mut folded: BTreeMap<Key, Vec<f32>> = BTreeMap::new();
        for ((method, mut path), mut of_path) in times {
            if path.len() > at && names.get(&path[..at]).is_some_and(|n| n.len() > NAMES) {
                FOLDED.clone_into(&mut path[at]);
            }
            folded
                .entry((method, path))
                .or_default()
                .append(&mut of_path);
        }
        times = folded;
    }
    times
}
