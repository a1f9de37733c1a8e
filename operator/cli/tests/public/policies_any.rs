//! Generated policies: the filter accepts every policy that `validate` accepts, and `validate`
//! accepts every policy within the documented bounds.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use headgate_api::compile::configuration;
use headgate_api::validate::check_file;
use headgate_core::config::FilterConfig;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::any_policy::{Dice, STRATEGIES, policy, with_one_slip};

fn throws() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(any::<u32>(), 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(1000)
    })]

    #[test]
    fn policies_within_the_bounds_are_accepted(
        strategy in proptest::sample::select(&STRATEGIES[..]),
        throws in throws(),
    ) {
        let mut dice = Dice::new(throws);
        let text = policy(strategy, &mut dice).to_string();
        let report = check_file("any.json", text.as_bytes());
        let problems: Vec<String> = report.all_problems().map(ToString::to_string).collect();
        prop_assert!(problems.is_empty(), "{:?}\n{}", problems, text);
        let config = configuration(report.policies().next().unwrap(), 3);
        let read = FilterConfig::from_json(&serde_json::to_vec(&config).unwrap());
        prop_assert!(read.is_ok(), "{:?}\n{}", read, text);
    }
}

/// Each value in turn is wrong, in several ways. `check_file` calls the filter's check last, so a
/// policy that the filter refuses reveals a missing rule.
#[test]
fn nothing_that_is_accepted_is_refused_by_the_filter() {
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    for strategy in STRATEGIES.iter().flat_map(|s| [s; 3]) {
        let throws: Vec<u32> = (0..120).map(|_| random.next_u32()).collect();
        let mut refused = 0;
        for (policy, slipped) in with_one_slip(strategy, &throws) {
            let text = policy.to_string();
            let report = check_file("any.json", text.as_bytes());
            let problems: Vec<String> = report.all_problems().map(ToString::to_string).collect();
            assert!(slipped || problems.is_empty(), "{problems:?}\n{text}");
            for line in &problems {
                assert!(!line.contains("refused by the filter"), "{line}\n{text}");
                assert!(!line.contains('\n'), "{line}");
            }
            refused += usize::from(!problems.is_empty());
        }
        // Not every slip is a mistake, but many are.
        assert!(refused > 20, "{strategy}: {refused}");
    }
}
