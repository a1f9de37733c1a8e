use k8s_openapi::jiff::Timestamp;

use super::*;
use headgate_api::plan::Conflict;
use headgate_fakes::accepted;

const TARGETS: [&str; 2] = ["Service/a/s", "Gateway/a/g"];

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

fn target(text: &str) -> TargetRef {
    text.parse().unwrap()
}

fn state(generation: i64) -> PolicyState {
    PolicyState {
        generation,
        ..accepted("a/p", TARGETS.iter().map(|t| target(t)).collect())
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

/// Returns the status to write while no proxies are reconnecting.
fn wanted(
    state: &PolicyState,
    tallies: &Tallies,
    delivered: Option<&conditions::Condition>,
    old: Option<&AdmissionPolicyStatus>,
    now: &Time,
) -> Option<AdmissionPolicyStatus> {
    let facts = Facts {
        state,
        tallies,
        delivered,
        settling: None,
    };
    super::wanted(&facts, old, now).status
}

/// Returns `(Accepted's reason, Programmed's reason)` of each entry.
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
    let (state, tallies) = (state(2), tallies(1, 2, 2));
    let facts = Facts {
        state: &state,
        tallies: &tallies,
        delivered: None,
        settling: None,
    };
    let wanted = super::wanted(&facts, None, &at(1));
    assert_eq!(
        reasons(&wanted.status.unwrap()),
        [("Accepted", "Pending"); 2]
    );
    assert!(wanted.pending);
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
            ("Accepted", "Overridden"),
            ("TargetNotFound", "TargetNotFound")
        ]
    );
    let overridden = &status.ancestors[0].conditions[2];
    assert_eq!(
        (overridden.type_.as_str(), overridden.status.as_str()),
        ("Overridden", "True")
    );
    assert_eq!(
        overridden.message,
        "a/older, which has precedence, is in force on all proxies of this target"
    );
    assert_eq!(status.ancestors[1].conditions.len(), 2);
    assert_eq!(status.ancestors[1].conditions[0].message, "no such Gateway");
}

#[test]
fn a_status_names_the_mistake_and_the_version_in_force() {
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
    // After a restart, only the delivered object has the last good version.
    s.has_version = false;
    s.revision.clear();
    let delivered = conditions::Condition::new(true, "Programmed", "delivered as WasmPlugin a/x");
    let status = wanted(&s, &Tallies::default(), Some(&delivered), None, &at(1)).unwrap();
    let programmed = &status.ancestors[0].conditions[1];
    assert_eq!(
        (programmed.status.as_str(), programmed.message.as_str()),
        (
            "False",
            "the last good version stays in force: delivered as WasmPlugin a/x"
        )
    );
    s.targets.clear();
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
        conditions: Vec::new(),
        ancestors: (0..15).map(foreign).collect(),
    };
    let new = wanted(&state(1), &Tallies::default(), None, Some(&old), &at(1)).unwrap();
    assert_eq!(new.ancestors.len(), MAX_ANCESTORS);
    assert_eq!(new.ancestors[..15], old.ancestors[..]);
    // The order in which the other controller writes doesn't matter.
    let mut turned = new;
    turned.ancestors.rotate_right(1);
    assert_eq!(
        wanted(&state(1), &Tallies::default(), None, Some(&turned), &at(2)),
        None
    );
}

#[test]
fn a_delivered_object_counts_for_proxies_without_a_connection() {
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
fn a_written_status_reads_back_as_the_worst_of_all_targets() {
    let of = |state: &PolicyState, status: Option<&AdmissionPolicyStatus>| {
        let all = written(state, status);
        let all = all
            .values()
            .map(|c| (c.status, c.reason.clone(), c.message.clone()));
        all.collect::<Vec<_>>()
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
            "no replica has written a status for generation 2"
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
            is(
                false,
                "TargetNotFound",
                "Gateway/a/g: not enforced at this target; see condition Accepted"
            )
        ]
    );
    s.not_found
        .insert(0, (target(TARGETS[0]), "no such Service".into()));
    let status = wanted(&s, &Tallies::default(), None, None, &at(1));
    assert_eq!(of(&s, status.as_ref())[1].1, "TargetNotFound");
}

/// Returns `(type, status, reason)` of each top-level condition.
fn top(status: &AdmissionPolicyStatus) -> Vec<(&str, &str, &str)> {
    let conditions = status.conditions.iter();
    let parts = conditions.map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_str()));
    parts.collect()
}

#[test]
fn a_condition_of_all_holds_where_it_does_at_each_target() {
    let is_accepted = ("Accepted", "True", "Accepted");
    let is_programmed = ("Programmed", "True", "Programmed");
    let all = wanted(&state(1), &tallies(1, 2, 2), None, None, &at(10)).unwrap();
    assert_eq!(top(&all), [is_accepted, is_programmed]);
    let is_since = |c: &Condition| (c.observed_generation, c.last_transition_time.clone());
    assert!(
        all.conditions
            .iter()
            .all(|c| is_since(c) == (Some(1), at(10)))
    );

    // One of two targets is overridden, as its author may have intended.
    let lost = |name: &str| Conflict {
        target: target(name),
        winner: "a/route".into(),
    };
    let mut s = state(2);
    s.overridden = vec![lost(TARGETS[0])];
    let one = wanted(&s, &tallies(2, 2, 2), None, Some(&all), &at(20)).unwrap();
    assert_eq!(top(&one), [is_accepted, is_programmed]);
    assert!(
        one.conditions
            .iter()
            .all(|c| is_since(c) == (Some(2), at(10)))
    );
    s.overridden.push(lost(TARGETS[1]));
    let both = wanted(&s, &tallies(2, 2, 2), None, Some(&one), &at(30)).unwrap();
    let is_overridden = ("Overridden", "True", "Overridden");
    let is_elsewhere = ("Programmed", "False", "Overridden");
    assert_eq!(top(&both), [is_accepted, is_elsewhere, is_overridden]);
    assert_eq!(is_since(&both.conditions[0]), (Some(2), at(10)));
    assert_eq!(is_since(&both.conditions[1]), (Some(2), at(30)));
    assert_eq!(
        wanted(&s, &tallies(2, 2, 2), None, Some(&both), &at(40)),
        None
    );

    // The first old status lacks the top-level conditions. In the second old status, another writer
    // has changed one of them.
    let old = AdmissionPolicyStatus {
        conditions: Vec::new(),
        ancestors: all.ancestors.clone(),
    };
    let news = wanted(&state(1), &tallies(1, 2, 2), None, Some(&old), &at(50)).unwrap();
    assert_eq!(news.ancestors, all.ancestors);
    assert_eq!(top(&news), top(&all));
    let mut changed = all.clone();
    changed.conditions[1].status = "False".to_owned();
    let news = wanted(&state(1), &tallies(1, 2, 2), None, Some(&changed), &at(60));
    assert_eq!(top(&news.unwrap()), top(&all));
}

#[test]
fn a_listener_is_named() {
    let listener = "Gateway/a/g/web";
    let mut s = state(1);
    s.targets = vec![target("Gateway/a/g/api"), target(listener)];
    s.not_found = vec![(target(listener), "no such listener".into())];
    let status = wanted(&s, &Tallies::default(), None, None, &at(1));
    let accepted = &written(&s, status.as_ref())[&Type::Accepted];
    assert_eq!(accepted.message, "Gateway/a/g/web: no such listener");
}

/// Returns the outcome while proxies may be reconnecting.
fn settling(
    state: &PolicyState,
    tallies: &Tallies,
    old: Option<&AdmissionPolicyStatus>,
    was_seen: bool,
) -> Wanted {
    let facts = Facts {
        state,
        tallies,
        delivered: None,
        settling: Some(was_seen),
    };
    super::wanted(&facts, old, &at(9))
}

#[test]
fn only_missing_proxies_of_the_same_generation_may_be_on_their_way() {
    let programmed = wanted(&state(1), &tallies(1, 2, 2), None, None, &at(1)).unwrap();
    let none = wanted(&state(1), &tallies(1, 0, 0), None, None, &at(1)).unwrap();
    for (running, total) in [(0, 0), (0, 1), (1, 2)] {
        let tallies = tallies(1, running, total);
        let nothing = Wanted {
            status: None,
            holds: true,
            pending: false,
        };
        assert_eq!(
            settling(&state(1), &tallies, Some(&programmed), false),
            nothing
        );
        assert!(!settling(&state(1), &tallies, None, false).holds);
        assert!(!settling(&state(1), &tallies, Some(&none), false).holds);
    }
    let holds = |state: &PolicyState, tallies: &Tallies, was_seen| {
        settling(state, tallies, Some(&programmed), was_seen).holds
    };
    assert!(!holds(&state(1), &tallies(1, 1, 1), false));
    assert!(!holds(&state(1), &tallies(1, 0, 0), true), "they left");
    assert!(holds(&state(1), &tallies(1, 0, 1), true));
    assert!(!holds(&state(2), &tallies(2, 0, 2), false), "an edit");
    let mut gone = state(1);
    gone.not_found = vec![(target(TARGETS[0]), "no such Service".into())];
    assert!(!holds(&gone, &tallies(1, 2, 2), false));
}

#[test]
fn a_target_that_waits_for_its_proxies_delays_no_other() {
    let programmed = wanted(&state(1), &tallies(1, 2, 2), None, None, &at(1)).unwrap();
    let mut s = state(1);
    s.not_found = vec![(target(TARGETS[1]), "no such Gateway".into())];
    let Wanted { status, holds, .. } = settling(&s, &Tallies::default(), Some(&programmed), false);
    let status = status.unwrap();
    assert!(holds);
    assert_eq!(
        reasons(&status),
        [
            ("Accepted", "Programmed"),
            ("TargetNotFound", "TargetNotFound")
        ]
    );
    let again = settling(&s, &Tallies::default(), Some(&status), false);
    assert_eq!(again.status, None, "written once");
}
