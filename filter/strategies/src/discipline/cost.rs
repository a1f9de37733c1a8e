//! The ratio of a flow's actual slot times to the expected ones.
//!
//! A fair queue charges a flow before its request is served, so it needs the request's cost in
//! advance. The mean of the request's type ignores the sender: if tenants share a type, one
//! tenant's requests may take a hundred times as long as another's. A mean for each flow ignores
//! the type. So the type's mean is corrected by a ratio that is measured for each flow,
//!
//! ```text
//! ratio = (Σ taken + k x̄) / (Σ expected + k x̄)   x̄ = the flow's mean expected cost, µs
//! ```
//!
//! where k requests are assumed to have taken the expected time, so that the first few requests
//! don't dominate. Both sums decay with each request. Every end of a request counts, failures too:
//! the shared resource is slot time, regardless of the outcome.
//!
//! Each worker measures its own requests. An error of the ratio causes no error of shares:
//! [`super::fair`] corrects each charge when its request ends.

/// The part of the past that remains after a request.
const KEPT: f64 = 1.0 - 1.0 / 64.0;
/// k, the number of assumed requests that took the expected time.
const PRIOR: f64 = 2.0;

/// Decaying sums of the expected and the actual slot times of a flow, µs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    requests: f64,
    expected: f64,
    taken: f64,
}

impl Cost {
    /// Records a request of a type that takes `expected_us` and that held its slot for `taken_us`.
    /// If the expected time is unknown (0), the request is skipped. With the mean of all types in
    /// its place, the ratio would measure the flow's types rather than the flow.
    pub(super) fn learn(&mut self, expected_us: u64, taken_us: u64) {
        if expected_us == 0 {
            return;
        }
        self.requests = self.requests * KEPT + 1.0;
        self.expected = self.expected * KEPT + expected_us as f64;
        self.taken = self.taken * KEPT + taken_us as f64;
    }

    /// Returns the time that a request is likely to take, µs. The result is at least 1, unless
    /// `expected_us` is 0.
    pub(super) fn of(&self, expected_us: u64) -> u64 {
        if self.requests <= 0.0 || expected_us == 0 {
            return expected_us;
        }
        let prior = PRIOR * self.expected / self.requests;
        let ratio = (self.taken + prior) / (self.expected + prior);
        // The cast turns a float that is too large into the largest integer.
        ((expected_us as f64 * ratio) as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_flow_is_known_by_its_own_requests() {
        let mut cost = Cost::default();
        assert_eq!((cost.of(0), cost.of(700)), (0, 700));
        cost.learn(0, 50_000);
        assert_eq!(cost.of(700), 700, "nothing was expected");
        cost.learn(1_000, 100_000);
        assert!(cost.of(1_000) < 50_000, "one request alone decides nothing");
        for _ in 0..300 {
            cost.learn(1_000, 100_000);
        }
        assert!((95_000..=100_000).contains(&cost.of(1_000)));
        // A request of a type that takes three times as long has three times the cost.
        assert!((285_000..=300_000).contains(&cost.of(3_000)));
        for _ in 0..600 {
            cost.learn(1_000, 10);
        }
        assert!((10..60).contains(&cost.of(1_000)), "{}", cost.of(1_000));
    }

    proptest! {
        #[test]
        fn any_times_cause_no_panic(
            all in prop::collection::vec((any::<u64>(), any::<u64>()), 0..300),
            expected in any::<u64>(),
        ) {
            let mut cost = Cost::default();
            for (expected, taken) in all {
                cost.learn(expected, taken);
            }
            prop_assert_eq!(cost.of(expected) > 0, expected > 0);
        }
    }
}
