//! The SEDA and Chronos experiments at a small size: what the papers say about them in words.

// Of helpers outside of `#[test]` functions, clippy can't tell that they are tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::num::NonZeroUsize;

use headgate_simulator::Report;
use headgate_simulator::scenario::{Silent, Size, by_name};

fn run(name: &str, requests: u64, seeds: u32) -> Report {
    run_with(name, requests, seeds, 1, None)
}

fn run_with(name: &str, requests: u64, seeds: u32, seed: u64, threads: Option<usize>) -> Report {
    let size = Size {
        requests: Some(requests),
        seeds: Some(seeds),
        seed: Some(seed),
        threads: threads.and_then(NonZeroUsize::new),
    };
    by_name(name).unwrap().run(&size, &Silent).unwrap()
}

/// Whether the claim that contains these words holds.
fn holds(report: &Report, words: &str) -> bool {
    let found = report
        .claims
        .iter()
        .find(|claim| claim.text.contains(words));
    let claim = found.unwrap_or_else(|| panic!("no claim with {words:?}"));
    claim.holds == Some(true)
}

#[test]
fn per_stage_control_refuses_what_is_expensive() {
    let report = run("seda-fig11", 50_000, 1);
    assert!(
        holds(&report, "refuses the expensive list folders"),
        "{:?}",
        report.claims
    );
    assert!(
        holds(&report, "a single controller refuses show"),
        "{:?}",
        report.claims
    );
    assert!(
        holds(&report, "search is too seldom"),
        "{:?}",
        report.claims
    );
}

#[test]
fn a_service_degrades_under_a_spike_and_admission_control_helps() {
    let report = run("seda-fig12", 50_000, 1);
    assert!(
        report.claims.iter().all(|claim| claim.holds == Some(true)),
        "{:?}",
        report.claims
    );
    let report = run("seda-fig13", 30_000, 1);
    assert!(holds(&report, "very large part"), "{:?}", report.claims);
}

#[test]
fn high_priority_is_refused_less_and_only_with_differentiation() {
    let report = run("seda-fig14", 50_000, 1);
    assert!(
        holds(&report, "both classes are rejected alike"),
        "{:?}",
        report.claims
    );
    let report = run("seda-fig15", 50_000, 1);
    assert!(
        holds(&report, "low priority is rejected far more"),
        "{:?}",
        report.claims
    );
}

#[test]
fn backlog_control_holds_the_delay_where_the_baselines_do_not() {
    let report = run("chronos-fig5", 150_000, 1);
    assert!(holds(&report, "overshoots of FC-D"), "{:?}", report.claims);
    assert!(
        holds(&report, "Open and AC stay above"),
        "{:?}",
        report.claims
    );
}

#[test]
fn the_second_order_model_fits_and_the_papers_poles_are_not_those_of_its_equations() {
    let report = run("chronos-sysid", 150_000, 1);
    assert!(
        holds(&report, "the second order is acceptable"),
        "{:?}",
        report.claims
    );
    assert!(
        holds(&report, "the third and fourth order"),
        "{:?}",
        report.claims
    );
    assert!(!holds(&report, "give the poles"), "{:?}", report.claims);
    assert!(
        holds(&report, "inside of the unit circle"),
        "{:?}",
        report.claims
    );
    let is_trace = |name: &str| report.rows[0].get(name).is_some();
    assert!(["time_s", "delay_s", "backlog"].into_iter().all(is_trace));
}

#[test]
fn the_same_seed_gives_the_same_report_whatever_the_threads() {
    for (name, requests) in [("seda-fig10", 10_000), ("chronos-fig4", 25_000)] {
        let once = run_with(name, requests, 2, 7, Some(1));
        assert_eq!(once, run_with(name, requests, 2, 7, Some(3)), "{name}");
        let other = run_with(name, requests, 2, 8, Some(3));
        assert_ne!(once.rows, other.rows, "{name}");
    }
}

#[test]
fn every_scenario_runs_at_the_smallest_size() {
    for name in [
        "seda-fig8",
        "seda-fig10",
        "seda-fig11",
        "seda-fig12",
        "seda-fig14",
        "chronos-fig6",
        "chronos-sysid",
    ] {
        let report = run(name, 1, 1);
        assert!(
            !report.claims.is_empty() && !report.tables.is_empty(),
            "{name}"
        );
        assert!(!report.rows.is_empty(), "{name}");
        assert!(
            by_name(name).unwrap().title().contains(&report.title),
            "{name}"
        );
    }
}
