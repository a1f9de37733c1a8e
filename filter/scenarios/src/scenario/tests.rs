use std::num::NonZeroUsize;

use headgate_core::config::{HistogramWindow, ServiceTimesConfig, StageConfig};
use headgate_simulator::Silent;
use serde_json::json;

use super::*;

fn scenarios() -> Vec<Scenario> {
    all().unwrap()
}

fn run(name: &str, requests: u64, seed: u64, threads: usize) -> Report {
    let size = Size {
        requests: Some(requests),
        seeds: Some(2),
        seed: Some(seed),
        threads: NonZeroUsize::new(threads),
    };
    by_name(name).unwrap().unwrap().run(&size, &Silent).unwrap()
}

#[test]
fn every_scenario_is_read_and_has_a_name_of_its_own() {
    let all = scenarios();
    let mut names: Vec<&str> = all.iter().map(Scenario::name).collect();
    assert_eq!((names[0], names.len()), ("bouncer-table3", 42));
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len());
    for scenario in &all {
        assert!(!scenario.cases().unwrap().is_empty(), "{}", scenario.name());
        let papers = scenario.tables.iter().any(TableEntry::is_judged);
        assert!(
            papers || !scenario.claims.is_empty(),
            "{} judges nothing",
            scenario.name()
        );
    }
    assert!(by_name("bouncer-tabel3").unwrap().is_none());
}

/// Every report says which parameters were fitted or chosen, because a result of a fitted model is
/// no evidence.
#[test]
fn every_report_names_what_was_fitted_or_chosen() {
    for scenario in scenarios() {
        let says = |word: &str| scenario.notes.iter().any(|note| note.contains(word));
        let told = [
            "fitted",
            "chosen",
            "is not in the paper",
            "are not given",
            "Not in the paper",
        ];
        assert!(told.into_iter().any(says), "{}", scenario.name());
    }
}

/// Table 3 holds with the default histograms, which a policy without histogram settings uses.
#[test]
fn table_3_holds_with_the_histograms_that_are_shipped() {
    let mut scenario = by_name("bouncer-table3").unwrap().unwrap();
    let stage: StageConfig = serde_json::from_value(scenario.model["stage"].clone()).unwrap();
    assert_eq!(stage.service_times, ServiceTimesConfig::default());
    assert_eq!(stage.service_times.window, HistogramWindow::DualBuffer);
    scenario.series.truncate(1);
    let size = Size {
        requests: Some(200_000),
        seeds: Some(1),
        ..Size::default()
    };
    let verdict = scenario.run(&size, &Silent).unwrap().verdict();
    assert_eq!((verdict.cells, verdict.failures), (4 * 13, Vec::new()));
    // Histograms with a long interval fail Table 3, because they have no data until the first swap,
    // and every request is then admitted.
    scenario.model["stage"]["service_times"]["interval_us"] = json!(600_000_000);
    assert!(!scenario.run(&size, &Silent).unwrap().verdict().holds());
}

/// Claims and columns name only series and points that are run. Otherwise a claim could never hold,
/// or a column would be empty.
#[test]
fn claims_and_columns_name_series_and_places_that_are_run() {
    for scenario in scenarios() {
        let cases = scenario.cases().unwrap();
        let series: Vec<&str> = cases.iter().map(|case| case.series.as_str()).collect();
        let places: Vec<f64> = cases.iter().filter_map(|case| case.x).collect();
        for claim in &scenario.claims {
            assert_eq!(claim.wrong(&series, &places), None, "{}", scenario.name());
        }
        for table in &scenario.tables {
            assert_eq!(table.wrong(&series), None, "{}", scenario.name());
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_report_whatever_the_threads() {
    for (name, requests) in [
        ("bouncer-table4", 2_000),
        ("seda-fig10", 10_000),
        ("chronos-fig4", 25_000),
        ("wisp-example", 1),
    ] {
        let once = run(name, requests, 7, 1);
        assert_eq!(once, run(name, requests, 7, 3), "{name}");
        let other = run(name, requests, 8, 3);
        assert!(once.rows != other.rows || name == "wisp-example", "{name}");
    }
}

#[test]
fn fields_move_with_the_one_that_is_swept() {
    let scenario = by_name("chronos-fig3").unwrap().unwrap();
    let cases = scenario.cases().unwrap();
    let Model::Threads(last) = &cases[cases.len() - 1].model else {
        panic!("threads");
    };
    assert!(format!("{last:?}").contains("[3500, 4000]"), "{last:?}");
}

#[test]
fn rows_tell_where_they_belong() {
    let report = run("bouncer-table5", 2_000, 1, 2);
    assert_eq!(report.rows.len(), 10 * 5);
    let last = serde_json::to_value(&report.rows[49]).unwrap();
    assert_eq!(last["strategy"], "Bouncer+HelpingTheUnderserved");
    assert_eq!(
        (&last["parameter"], &last["type"]),
        (&json!(1.0), &json!("ALL"))
    );
    let slack = run("slack-order", 500, 1, 2);
    let first = serde_json::to_value(&slack.rows[0]).unwrap();
    assert_eq!(
        (&first["strategy"], &first["discipline"]),
        (&json!("Bouncer"), &json!("FIFO"))
    );
    let traced = run("chronos-sysid", 1, 1, 2);
    let is_trace = |row: &headgate_simulator::report::ReportRow| {
        ["time_s", "delay_s", "backlog"]
            .into_iter()
            .all(|name| row.get(name).is_some())
    };
    assert!(traced.rows.iter().any(is_trace));
}

#[test]
fn a_patch_changes_fields_and_replaces_choices_of_another_type() {
    let mut target =
        json!({"a": {"b": 1, "c": 2}, "strategy": {"type": "Bouncer", "logic": "All"}, "old": 1});
    merge(
        &mut target,
        &json!({"a": {"c": 3}, "strategy": {"type": "MaxQueueLength"}, "old": null, "new": [1]}),
    );
    let expected =
        json!({"a": {"b": 1, "c": 3}, "strategy": {"type": "MaxQueueLength"}, "new": [1]});
    assert_eq!(target, expected);
    merge(&mut target, &Value::Null);
    assert_eq!(target, expected);
}
