//! The experiments of centralized Aequitas at a small size: what the paper says about them in words.

// Of helpers outside of `#[test]` functions, clippy can't tell that they are tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use headgate_simulator::Report;
use headgate_simulator::scenario::{Silent, Size, by_name};

/// Runs it for `part` of the paper's `requests`, and judges its claims: all hold but the first words of these.
fn judged(name: &str, requests: f64, part: f64, not_reproduced: &[&str]) -> Report {
    let size = Size {
        requests: Some((requests * part) as u64),
        ..Size::default()
    };
    let report = by_name(name).unwrap().run(&size, &Silent).unwrap();
    for claim in &report.claims {
        let reproduced = !not_reproduced
            .iter()
            .any(|words| claim.text.starts_with(words));
        assert_eq!(
            claim.holds,
            reproduced.then_some(true),
            "{}",
            claim.describe()
        );
        assert_eq!(claim.ours.contains("; not reproduced: "), !reproduced);
    }
    assert!(report.claims.len() > not_reproduced.len());
    report
}

#[test]
fn method_1_settles_sooner_and_lower() {
    let report = judged("aequitas-fig4", 10e6, 0.15, &[]);
    let first = &report.rows[0];
    let value = |name| first.get(name).map(|value| format!("{value:?}"));
    assert_eq!(value("figure").as_deref(), Some("Count(4)"));
    assert_eq!(value("method").as_deref(), Some("Text(\"baseline\")"));
}

#[test]
fn method_1_takes_from_the_host_that_asks_for_little() {
    let exclusive = "method 1: the throughput of host 1 does not suffer";
    judged("aequitas-fig5", 5e6, 0.1, &[exclusive]);
}

#[test]
fn method_2_settles_as_the_baseline() {
    judged("aequitas-fig6", 10e6, 0.3, &["with w = 0.5"]);
}

#[test]
fn method_2_is_as_fair_as_the_baseline() {
    judged("aequitas-fig7", 5e6, 0.3, &[]);
}

#[test]
fn latencies_by_class_follow_the_targets() {
    let balance = "baseline: the high class keeps its target";
    judged("aequitas-fig8", 10e6, 0.4, &[balance]);
}
