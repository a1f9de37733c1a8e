use std::collections::BTreeMap;

use headgate_core::config::Mode;
use k8s_openapi::jiff::Timestamp;

use super::*;
use crate::plan::Conflict;

const TARGETS: [&str; 2] = ["Service/a/s", "Gateway/a/g"];

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

fn target(text: &str) -> TargetRef {
    text.parse().unwrap()
}

fn state(generation: i64) -> PolicyState {
    PolicyState {
        name: "a/p".into(),
        source: String::new(),
        generation,
        targets: TARGETS.iter().map(|t| target(t)).collect(),
        accepted: Ok(()),
        conflicts: Vec::new(),
        overridden: Vec::new(),
        without_workflows: Vec::new(),
        warnings: Vec::new(),
        beyond_limit: BTreeMap::new(),
        not_found: Vec::new(),
        mode: Mode::Enforce,
        revision: "r".into(),
    }
}

fn tallies(generation: i64, running: u64, total: u64) -> Tallies {
    let entry = |target: &str| {
        serde_json::json!({
            "generation": generation, "target": target, "running": running, "total": total,
        })
    };
    let entries: Vec<_> = TARGETS.iter().map(|t| entry(t)).collect();
    serde_json::from_value(serde_json::json!({
        "a/p": {"running": running, "total": total, "by_target": entries},
    }))
    .unwrap()
}

/// `(Accepted's reason, Programmed's reason)` of each entry.
fn reasons(status: &AdmissionPolicyStatus) -> Vec<(&str, &str)> {
    status
        .ancestors
        .iter()
        .map(|e| {
            (
                e.conditions[0].reason.as_str(),
                e.conditions[1].reason.as_str(),
            )
        })
        .collect()
}

#[test]
fn nothing_is_written_when_nothing_changed() {
    let (state, tallies) = (state(1), tallies(1, 2, 2));
    let first = wanted(&state, &tallies, None, None, &at(10)).unwrap();
    assert_eq!(reasons(&first), [("Accepted", "Programmed"); 2]);
    assert_eq!(wanted(&state, &tallies, None, Some(&first), &at(20)), None);
}

#[test]
fn a_transition_is_a_change_of_status_and_of_nothing_else() {
    let first = wanted(&state(1), &tallies(1, 0, 2), None, None, &at(10)).unwrap();
    let partly = wanted(&state(1), &tallies(1, 1, 2), None, Some(&first), &at(20)).unwrap();
    assert_eq!(reasons(&partly)[0].1, "PartiallyProgrammed");
    assert_eq!(
        partly.ancestors[0].conditions[1].last_transition_time,
        at(10),
        "still False"
    );
    let all = wanted(&state(1), &tallies(1, 2, 2), None, Some(&partly), &at(30)).unwrap();
    let [accepted, programmed] = &all.ancestors[0].conditions[..] else {
        panic!("{all:?}");
    };
    assert_eq!(accepted.last_transition_time, at(10));
    assert_eq!(programmed.last_transition_time, at(30));
    let edited = wanted(&state(2), &tallies(2, 2, 2), None, Some(&all), &at(40)).unwrap();
    let programmed = &edited.ancestors[0].conditions[1];
    assert_eq!(programmed.observed_generation, Some(2));
    assert_eq!(programmed.last_transition_time, at(30));
}

#[test]
fn proxies_of_an_older_generation_are_pending() {
    let status = wanted(&state(2), &tallies(1, 2, 2), None, None, &at(1)).unwrap();
    assert_eq!(reasons(&status), [("Accepted", "Pending"); 2]);
    assert!(is_pending(&status));
}

#[test]
fn each_target_has_its_own_fate() {
    let lost = |target_of: &str| Conflict {
        target: target(target_of),
        winner: "a/older".into(),
    };
    let mut s = state(1);
    s.conflicts = vec![lost(TARGETS[1])];
    let status = wanted(&s, &tallies(1, 1, 1), None, None, &at(1)).unwrap();
    assert_eq!(
        reasons(&status),
        [("Accepted", "Programmed"), ("Conflicted", "Conflicted")]
    );
    let mut s = state(1);
    s.overridden = vec![lost(TARGETS[0])];
    s.not_found = vec![(target(TARGETS[1]), "no such Gateway".into())];
    let status = wanted(&s, &Tallies::default(), None, None, &at(1)).unwrap();
    assert_eq!(
        reasons(&status),
        [
            ("Overridden", "Overridden"),
            ("TargetNotFound", "TargetNotFound")
        ]
    );
    assert_eq!(status.ancestors[1].conditions[0].message, "no such Gateway");
}

#[test]
fn a_mistake_is_told_with_what_stays_in_force() {
    let mut s = state(2);
    s.accepted = Err("spec.x: 1; at least 2\nspec.y: 3; at most 2".into());
    let status = wanted(&s, &tallies(1, 2, 2), None, None, &at(1)).unwrap();
    let [accepted, programmed] = &status.ancestors[0].conditions[..] else {
        panic!("{status:?}");
    };
    assert_eq!(
        accepted.message,
        "spec.x: 1; at least 2; spec.y: 3; at most 2"
    );
    assert_eq!(
        (programmed.status.as_str(), programmed.message.as_str()),
        (
            "False",
            "the last good version stays in force: 2 of 2 proxies run it"
        )
    );
    s.targets.clear();
    s.revision.clear();
    let status = wanted(&s, &Tallies::default(), None, None, &at(1)).unwrap();
    assert_eq!(status.ancestors[0].ancestor_ref.kind, "AdmissionPolicy");
    assert_eq!(reasons(&status), [("Invalid", "Invalid")]);
}

#[test]
fn entries_of_others_stay_and_count_towards_the_limit() {
    let foreign = |n: usize| PolicyAncestorStatus {
        ancestor_ref: AncestorReference {
            group: String::new(),
            kind: "Service".into(),
            namespace: None,
            name: format!("s{n}"),
            section_name: None,
        },
        controller_name: "example.com/other".into(),
        conditions: Vec::new(),
    };
    let old = AdmissionPolicyStatus {
        ancestors: (0..15).map(foreign).collect(),
    };
    let new = wanted(&state(1), &Tallies::default(), None, Some(&old), &at(1)).unwrap();
    assert_eq!(new.ancestors.len(), MAX_ANCESTORS);
    assert_eq!(new.ancestors[..15], old.ancestors[..]);
    // Whatever the order in which the other one writes, ours are right.
    let mut turned = new;
    turned.ancestors.rotate_right(1);
    assert_eq!(
        wanted(&state(1), &Tallies::default(), None, Some(&turned), &at(2)),
        None
    );
}

#[test]
fn a_delivered_object_speaks_for_proxies_that_nobody_sees() {
    let delivered = conditions::Condition::new(true, "Programmed", "delivered as WasmPlugin a/x");
    let status = wanted(
        &state(1),
        &Tallies::default(),
        Some(&delivered),
        None,
        &at(1),
    )
    .unwrap();
    assert_eq!(status.ancestors[0].conditions[1].message, delivered.message);
    let status = wanted(&state(1), &tallies(1, 0, 1), Some(&delivered), None, &at(1)).unwrap();
    assert_eq!(reasons(&status)[0].1, "Pending", "the worse of the two");
}

#[test]
fn what_was_written_reads_back_as_the_worst_of_all_targets() {
    let of = |state: &PolicyState, status: Option<&AdmissionPolicyStatus>| {
        written(state, status).map(|c| (c.status, c.reason, c.message))
    };
    let is = |status, reason: &str, message: &str| (status, reason.to_owned(), message.to_owned());
    let status = wanted(&state(1), &tallies(1, 2, 2), None, None, &at(1));
    assert_eq!(
        of(&state(1), status.as_ref()),
        [
            is(true, "Accepted", "valid"),
            is(true, "Programmed", "2 of 2 proxies run it")
        ]
    );
    let pending = of(&state(2), status.as_ref());
    assert_eq!(
        pending[0],
        is(
            false,
            "Pending",
            "no replica has written what becomes of generation 2"
        )
    );
    assert_eq!(of(&state(2), None), pending);

    let mut s = state(1);
    s.not_found = vec![(target(TARGETS[1]), "no such Gateway".into())];
    let status = wanted(&s, &tallies(1, 2, 2), None, None, &at(1));
    assert_eq!(
        of(&s, status.as_ref()),
        [
            is(false, "TargetNotFound", "Gateway/a/g: no such Gateway"),
            is(true, "Programmed", "2 of 2 proxies run it")
        ],
        "enforced wherever it applies"
    );
    s.not_found
        .insert(0, (target(TARGETS[0]), "no such Service".into()));
    let status = wanted(&s, &Tallies::default(), None, None, &at(1));
    assert_eq!(of(&s, status.as_ref())[1].1, "TargetNotFound");
}

#[test]
fn only_missing_proxies_of_the_same_generation_may_be_on_their_way() {
    let status = |generation, running, total| {
        let tallies = tallies(generation, running, total);
        wanted(&state(generation), &tallies, None, None, &at(1)).unwrap()
    };
    let programmed = status(1, 2, 2);
    for (running, total) in [(0, 0), (0, 1), (1, 2)] {
        assert!(loses_proxies(
            Some(&programmed),
            &status(1, running, total),
            false
        ));
        assert!(!loses_proxies(None, &status(1, running, total), false));
        assert!(!loses_proxies(
            Some(&status(1, 0, 0)),
            &status(1, running, total),
            false
        ));
    }
    assert!(!loses_proxies(Some(&programmed), &status(1, 1, 1), false));
    assert!(
        !loses_proxies(Some(&programmed), &status(1, 0, 0), true),
        "they left"
    );
    assert!(loses_proxies(Some(&programmed), &status(1, 0, 1), true));
    assert!(
        !loses_proxies(Some(&programmed), &status(2, 0, 2), false),
        "an edit"
    );
    let mut gone = state(1);
    gone.not_found = vec![(target(TARGETS[0]), "no such Service".into())];
    let gone = wanted(&gone, &tallies(1, 2, 2), None, None, &at(1)).unwrap();
    assert!(!loses_proxies(Some(&programmed), &gone, false));
}
