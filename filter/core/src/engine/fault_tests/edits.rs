//! Edits at bad moments: while requests wait, while a dry run only observes, and when a host call
//! fails during an edit.

use super::*;

#[test]
fn raising_max_length_takes_effect() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let mut e = Engine::new(1);
    let mut a = Vec::new();
    e.configure(&h, t(0), &config(1, |s| s.queue.max_length = 1), &mut a)
        .unwrap();
    e.arrive(&h, t(1), 1, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    e.arrive(&h, t(2), 2, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    e.configure(&h, t(3), &config(1, |s| s.queue.max_length = 50), &mut a)
        .unwrap();
    let r = e
        .arrive(&h, t(4), 3, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    assert!(matches!(r, Decision::Hold(_)), "{r:?}");
}

#[test]
fn dry_run_to_enforce_refuses_nothing_that_is_in_the_backend() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let mut e = Engine::new(1);
    let mut a = Vec::new();
    e.configure(&h, t(0), &config(1, |s| s.mode = Mode::DryRun), &mut a)
        .unwrap();
    for s in 1..=3 {
        assert!(matches!(
            e.arrive(&h, t(s as u64), s, &MemoryRequest::get("/"), None, &mut a)
                .unwrap(),
            Decision::Forward(_)
        ));
    }
    e.configure(&h, t(500), &config(1, |_| {}), &mut a).unwrap();
    e.arrive(&h, t(600), 9, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    for n in 61..180 {
        e.tick(&h, t(n * 10), &mut a).unwrap();
    }
    let of_forwarded: Vec<_> = a
        .iter()
        .filter(|x| {
            matches!(
                x,
                Action::Resume { stream: s, .. } | Action::Refuse { stream: s, .. } if *s < 9
            )
        })
        .collect();
    assert!(of_forwarded.is_empty(), "{of_forwarded:?}");
}

#[test]
fn an_edit_while_observing_changes_no_measurement_and_resumes_no_request() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let mut e = Engine::new(1);
    let mut a = Vec::new();
    let observe = |p| config(p, |s| s.queue.mode = QueueMode::Observe);
    e.configure(&h, t(0), &observe(1), &mut a).unwrap();
    let passes: Vec<Ticket> = (1..=4)
        .map(|s| {
            pass(
                &e.arrive(
                    &h,
                    t(s as u64),
                    s,
                    &MemoryRequest::get("/slow"),
                    None,
                    &mut a,
                )
                .unwrap(),
            )
        })
        .collect();
    let mut c = observe(1);
    c.stages[0].generation = 7;
    e.configure(&h, t(5), &c, &mut a).unwrap();
    for (n, p) in passes.into_iter().enumerate() {
        e.finish(&h, t(11 + 10 * n as u64), p, Outcome::Completed, &mut a)
            .unwrap();
    }
    assert!(a.is_empty(), "{a:?}");
}

#[test]
fn dry_run_counts_each_decision_once() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let mut e = Engine::new(1);
    let mut a = Vec::new();
    e.configure(
        &h,
        t(0),
        &config(1, |s| {
            s.mode = Mode::DryRun;
            s.queue.max_length = 1;
        }),
        &mut a,
    )
    .unwrap();
    for s in 1..=10 {
        e.arrive(&h, t(s as u64), s, &MemoryRequest::get("/"), None, &mut a)
            .unwrap();
    }
    e.tick(&h, t(20), &mut a).unwrap();
    let g = |n: &str| gauge(&m, &format!("type.default.{n}"));
    assert_eq!(g("rq_total"), g("rq_accepted") + g("rq_rejected"));
}

#[test]
fn bouncer_without_objectives_is_refused() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let c = config(1, |s| {
        s.strategy = StrategyConfig::Bouncer {
            logic: Default::default(),
            shed_by_value: true,
            capacity: None,
        }
    });
    let error = Engine::new(1)
        .configure(&h, t(0), &c, &mut Vec::new())
        .unwrap_err();
    assert_eq!(error.field, "stages[0].types[0].slo");
}

#[test]
fn a_failed_rebuild_keeps_the_last_good_one() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let mut e = Engine::new(1);
    let mut a = Vec::new();
    e.configure(&h, t(0), &config(1, |_| {}), &mut a).unwrap();
    let _run = e
        .arrive(&h, t(0), 1, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    e.arrive(&h, t(1), 2, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    h.calls.set(0);
    h.fail_at.set(1);
    let configured = e.configure(&h, t(2), &config(2, |_| {}), &mut a);
    assert!(configured.is_err());
    assert_eq!(e.pending(), 2);
}

/// Whichever call fails during an edit, requests have the types of the stage in force, either the
/// old types or the new ones. The old stage's numbers are never used in the new stage's tables.
#[test]
fn an_edit_that_fails_is_made_or_not_made() {
    let (mut made, mut not_made) = (0, 0);
    for (before, after) in [(1, 3), (3, 1)] {
        let types = |n: usize, discipline: Discipline| {
            config(1, |s| {
                let (slow, default) = (s.types[0].clone(), s.types[1].clone());
                let named = |i: usize| TypeConfig {
                    name: format!("slow-{i}"),
                    ..slow.clone()
                };
                s.types = (1..n).map(named).chain([default]).collect();
                s.queue.discipline = discipline;
                s.starvation_avoidance = Some(StarvationAvoidance::AcceptanceAllowance {
                    allowance: 0.1 * n as f64,
                    type_allowances: Default::default(),
                    window_us: 1_000_000,
                    step_us: 10_000,
                });
            })
        };
        for fail_at in 1..60 {
            let m = MemoryHost::new();
            let h = H::new(&m);
            let (mut e, mut a) = (Engine::new(1), Vec::new());
            e.configure(&h, t(0), &types(before, Discipline::Fifo), &mut a)
                .unwrap();
            let passes: Vec<Ticket> = (1..=3)
                .map(|s| {
                    pass(
                        &e.arrive(&h, t(1), s, &MemoryRequest::get("/slow"), None, &mut a)
                            .unwrap(),
                    )
                })
                .collect();
            h.calls.set(0);
            h.fail_at.set(fail_at);
            let edited = e.configure(&h, t(2), &types(after, Discipline::Sjf), &mut a);
            h.fail_at.set(0);
            let running = &e.policies[0];
            assert_eq!(&running.compiled.config, running.stage.config());
            let applied = running.compiled.config.types.len() == after;
            assert!(applied || edited.is_err(), "{fail_at}");
            (made, not_made) = (made + u32::from(applied), not_made + u32::from(!applied));
            let last = e
                .arrive(&h, t(3), 4, &MemoryRequest::get("/slow"), None, &mut a)
                .unwrap();
            for pass in passes.into_iter().chain([pass(&last)]) {
                e.finish(&h, t(4), pass, Outcome::Completed, &mut a)
                    .unwrap();
            }
            for n in 1..300 {
                e.tick(&h, t(n * 10), &mut a).unwrap();
            }
            assert_eq!((slots(&m), queued(&m)), (0, 0), "{fail_at}");
        }
    }
    assert!(made > 0 && not_made > 0, "{made} {not_made}");
}

/// Whichever call fails during an edit, the next tick finishes it.
#[test]
fn an_edit_during_which_the_host_fails_is_finished_by_a_tick() {
    let two = || {
        let mut config = config(2, |stage| stage.routes = vec!["r".to_owned()]);
        let mut other = config.stages[0].clone();
        other.policy = "ns/other".to_owned();
        other.routes.clear();
        config.stages.push(other);
        config
    };
    let mut failed = 0;
    for fail_at in 1..40 {
        let m = MemoryHost::new();
        let h = H::new(&m);
        let (mut e, mut a) = (Engine::new(1), Vec::new());
        e.configure(&h, t(0), &config(1, |_| {}), &mut a).unwrap();
        let first = e.arrive(&h, t(1), 1, &MemoryRequest::get("/"), None, &mut a);
        h.calls.set(0);
        h.fail_at.set(fail_at);
        failed += u32::from(e.configure(&h, t(2), &two(), &mut a).is_err());
        h.fail_at.set(0);
        e.tick(&h, t(10), &mut a).unwrap();
        let new = e.arrive(&h, t(11), 2, &MemoryRequest::get("/"), None, &mut a);
        let new = pass(&new.unwrap());
        assert_eq!(e.stage(new.policy).unwrap().config().policy, "ns/other");
        let old = pass(&first.unwrap());
        let stage = e.stage(old.policy).unwrap();
        assert_eq!(stage.config(), &two().stages[0], "{fail_at}");
    }
    assert!(failed > 0);
}

/// A request that an edit sends to the backend above P releases its slot only if it has one.
#[test]
fn a_request_that_a_failing_edit_releases_frees_only_a_slot_that_it_has() {
    let observe = |s: &mut StageConfig| s.queue.mode = QueueMode::Observe;
    for (before, after) in [(false, true), (true, false)] {
        for fail_at in 1..40 {
            let m = MemoryHost::new();
            let h = H::new(&m);
            let of = |watched: bool| {
                config(1, |s| {
                    if watched {
                        observe(s);
                    }
                })
            };
            let (mut e, mut a) = (Engine::new(1), Vec::new());
            e.configure(&h, t(0), &of(before), &mut a).unwrap();
            let passes: Vec<Ticket> = (1..=3)
                .map(|s| {
                    pass(
                        &e.arrive(&h, t(1), s, &MemoryRequest::get("/"), None, &mut a)
                            .unwrap(),
                    )
                })
                .collect();
            h.calls.set(0);
            h.fail_at.set(fail_at);
            let _ = e.configure(&h, t(2), &of(after), &mut a);
            h.fail_at.set(0);
            for pass in passes {
                e.finish(&h, t(3), pass, Outcome::Completed, &mut a)
                    .unwrap();
            }
            for n in 1..300 {
                e.tick(&h, t(n * 10), &mut a).unwrap();
            }
            assert_eq!((slots(&m), queued(&m), e.pending()), (0, 0, 0), "{fail_at}");
        }
    }
}

/// Policies change at each scale event, on the threads that serve requests, so an edit must be
/// cheap.
#[test]
fn an_edit_of_parallelism_does_not_load_each_types_histogram() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let many = |p| {
        config(p, |stage| {
            let named = |n| TypeConfig {
                name: format!("t{n}"),
                ..stage.types[0].clone()
            };
            let more: Vec<TypeConfig> = (0..50).map(named).collect();
            stage.types.splice(0..1, more);
        })
    };
    let mut e = Engine::new(1);
    let mut a = Vec::new();
    e.configure(&h, t(0), &many(1), &mut a).unwrap();
    e.arrive(&h, t(1), 1, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    let held = e
        .arrive(&h, t(1), 2, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    assert!(matches!(held, Decision::Hold(_)));
    h.loads.set(0);
    e.configure(&h, t(2), &many(2), &mut a).unwrap();
    assert!(
        a.iter()
            .any(|x| matches!(x, Action::Resume { stream: 2, .. })),
        "the edit is in force: {a:?}"
    );
    assert!(h.loads.get() < 10, "{} loads for 51 types", h.loads.get());
}

/// A host error at any call of the edit must not leave the gauges as the removal reset them.
#[test]
fn a_policy_that_comes_back_has_its_gauges_despite_a_host_error() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let mut e = Engine::new(1);
    let mut a = Vec::new();
    let c = config(3, |_| {});
    e.configure(&h, t(0), &c, &mut a).unwrap();
    e.arrive(&h, t(1), 1, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    for n in 1..20 {
        e.configure(&h, t(n * 100), &FilterConfig::default(), &mut a)
            .unwrap();
        assert_eq!(gauge(&m, "slots"), 0);
        h.calls.set(0);
        h.fail_at.set(n);
        let changed = e.configure(&h, t(n * 100 + 1), &c, &mut a);
        h.fail_at.set(0);
        e.tick(&h, t(n * 100 + 10), &mut a).unwrap();
        assert_eq!(gauge(&m, "slots"), 3, "{n} {changed:?}");
    }
}
