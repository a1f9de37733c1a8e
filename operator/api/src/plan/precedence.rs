//! The precedence of policies at one proxy.

use std::collections::HashMap;

use headgate_core::config::StageConfig;

/// A policy at one proxy, by one of its targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bid<'a> {
    /// `namespace/name`.
    pub policy: &'a str,
    /// Its requests, as [`StageConfig::routes`]; empty: all.
    pub routes: &'a [String],
}

impl<'a> Bid<'a> {
    /// Returns the bid of `stage`.
    pub fn of(stage: &'a StageConfig) -> Self {
        Self {
            policy: &stage.policy,
            routes: &stage.routes,
        }
    }
}

/// Returns for each bid `None` if it is in force, else the index of the bid that overrides it. Bids
/// are in order of precedence. Of several for the same requests the first is in force; a policy
/// never overrides itself.
pub fn winners<'a>(bids: impl IntoIterator<Item = Bid<'a>>) -> Vec<Option<usize>> {
    let mut first: HashMap<&[String], (usize, &str)> = HashMap::new();
    bids.into_iter()
        .enumerate()
        .map(|(at, bid)| {
            let (winner, policy) = *first.entry(bid.routes).or_insert((at, bid.policy));
            (policy != bid.policy).then_some(winner)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_those_for_the_same_requests_is_in_force() {
        let (all, a, b) = (vec![], vec!["a".to_owned()], vec!["b".to_owned()]);
        let bids = [
            ("x", &a),
            ("y", &b),
            ("z", &a),
            ("x", &a),
            ("y", &all),
            ("x", &all),
        ];
        let bids = bids.map(|(policy, routes)| Bid { policy, routes });
        assert_eq!(
            winners(bids),
            [None, None, Some(0), None, None, Some(4)],
            "by place"
        );
    }
}
