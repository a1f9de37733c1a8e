//! The precedence of policies at one proxy.

use std::collections::HashMap;

use headgate_core::config::StageConfig;

/// A policy that competes for requests at a proxy, through one of its targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bid<'a> {
    /// `namespace/name`.
    pub policy: &'a str,
    /// The requests for which the policy competes, as [`StageConfig::routes`]. Empty means all
    /// requests.
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

/// Returns the outcome of each bid. Bids are in order of precedence. Of several bids for the same
/// requests, the first is in force.
///
/// `Ok` is a bid in force. `Err` is a bid all of whose requests other policies have taken before,
/// with the index of the bid that overrides it. A policy never overrides itself.
pub fn outcomes<'a>(bids: impl IntoIterator<Item = Bid<'a>>) -> Vec<Result<(), usize>> {
    // All requests are represented by the empty name, which no route has.
    const ALL: &[String] = &[String::new()];
    let mut first: HashMap<&str, (usize, &str)> = HashMap::new();
    let outcome = |(at, bid): (usize, Bid<'a>)| {
        let routes = if bid.routes.is_empty() {
            ALL
        } else {
            bid.routes
        };
        let mut winner = Some(usize::MAX);
        for route in routes {
            let (by, policy) = *first.entry(route).or_insert((at, bid.policy));
            winner = winner.filter(|_| policy != bid.policy).map(|w| w.min(by));
        }
        winner.map_or(Ok(()), Err)
    };
    bids.into_iter().enumerate().map(outcome).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_those_for_the_same_requests_is_in_force() {
        let routes = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
        let [all, a, b, c] = [&[][..], &["a"], &["b"], &["c"]].map(routes);
        let (b_and_a, b_and_c) = (routes(&["b", "a"]), routes(&["b", "c"]));
        let bids = [
            ("x", &a),
            ("y", &b),
            ("z", &a),
            ("x", &a),
            ("y", &all),
            ("x", &all),
            ("w", &b_and_a),
            ("y", &b_and_a),
            ("w", &b_and_c),
            ("z", &c),
        ];
        let bids = bids.map(|(policy, routes)| Bid { policy, routes });
        assert_eq!(
            outcomes(bids),
            [
                Ok(()),
                Ok(()),
                Err(0),
                Ok(()),
                Ok(()),
                Err(4),
                Err(0),
                Ok(()),
                Ok(()),
                Err(8)
            ],
            "by place"
        );
    }
}
