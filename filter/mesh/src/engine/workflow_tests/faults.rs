//! Tests of workers that die, stop or fail, and of edits at unfavourable times.

use super::*;

#[test]
fn a_worker_dies_with_its_held_requests() {
    let mut proxy = Proxy::new(3, &config(|_| {}));
    proxy.load("a", 300, 3_000);
    let dead = 1;
    assert!(proxy.held.values().any(|(worker, _)| *worker == dead));
    proxy.workers[dead] = None;
    proxy.held.retain(|_, (worker, _)| *worker != dead);
    proxy.running.retain(|_, (worker, ..)| *worker != dead);
    proxy.load("a", 300, 1_000);
    let passed = proxy.passed_in(1_000);
    // Only the turns of the dead worker's held requests are lost, about a third of the queue.
    assert!((34..=52).contains(&passed), "{passed}");
    proxy.load("a", 300, 5_000);
    let passed = proxy.passed_in(3_000);
    assert!((146..=154).contains(&passed), "{passed}");
    assert_eq!(proxy.stat("workers_lost"), 1);
    proxy.assert_nothing_is_left();
}

#[test]
fn another_worker_runs_algorithm_1_when_the_first_dies() {
    let mut proxy = Proxy::new(3, &config(|_| {}));
    proxy.load("a", 300, 3_000);
    let changes = proxy.stat("rates_changes");
    proxy.workers[0] = None;
    proxy.held.retain(|_, (worker, _)| *worker != 0);
    proxy.running.retain(|_, (worker, ..)| *worker != 0);
    // The rate is enforced without a gap.
    for _ in 0..8 {
        proxy.load("a", 300, 1_000);
        let passed = proxy.passed_in(1_000);
        assert!((40..=52).contains(&passed), "{passed}");
    }
    assert!(
        proxy.stat("rates_changes") > changes + 20,
        "another worker runs it"
    );
    let demand = proxy.stat("workflow.a.demand_mhz");
    assert!((280_000..=320_000).contains(&demand), "{demand}");
    // Only the requests that the dead worker counted since its last tick are missing.
    let counted = proxy.stat("workflow.a.rq_offered");
    assert!(
        counted + 20 >= u64::from(proxy.next),
        "{counted} of {}",
        proxy.next
    );
    proxy.assert_nothing_is_left();
}

#[test]
fn a_worker_continues_after_a_pause() {
    let mut proxy = Proxy::new(2, &config(|_| {}));
    proxy.load("a", 300, 3_000);
    let still = proxy.workers[0].take();
    proxy.load("a", 300, 4_500);
    proxy.workers[0] = still;
    proxy.load("a", 300, 3_000);
    let passed = proxy.passed_in(2_000);
    assert!((97..=104).contains(&passed), "{passed}");
    let ids: Vec<_> = proxy.workers.iter().flatten().map(|e| e.worker()).collect();
    assert!(ids.iter().all(Option::is_some) && ids[0] != ids[1]);
    proxy.assert_nothing_is_left();
}

#[test]
fn an_edit_keeps_rates_and_waiting_requests() {
    let mut proxy = Proxy::new(2, &config(|_| {}));
    proxy.load("a", 300, 3_000);
    let held = proxy.held.len();
    assert!(held >= 15);
    proxy.configure(&config(|stage| {
        stage.parallelism = 40;
        stage.workflows.as_mut().unwrap().quantile = 0.9;
    }));
    assert_eq!(proxy.held.len(), held);
    proxy.load("a", 300, 2_000);
    let passed = proxy.passed_in(2_000);
    assert!((96..=104).contains(&passed), "{passed}");
    // The new rate applies to waiting requests, too.
    proxy.configure(&config(|stage| {
        let workflows = &mut stage.workflows.as_mut().unwrap().workflows;
        workflows.get_mut("a").unwrap().guarantee = Some(100.0);
    }));
    proxy.load("a", 300, 500);
    proxy.load("a", 300, 2_000);
    let passed = proxy.passed_in(2_000);
    assert!((196..=206).contains(&passed), "{passed}");
    proxy.assert_nothing_is_left();
}

/// The policy names another workflow while invented names have filled the directory. The host may
/// fail during the edit.
#[test]
fn a_workflow_that_is_named_during_a_flood_gets_its_rate() {
    for fails in [0, 16] {
        let mut proxy = Proxy::new(2, &config(|_| {}));
        for n in 0..100 {
            proxy.arrive(n % 2, &of(&format!("tenant-{n}")), None);
            proxy.step();
        }
        proxy.idle(200);
        assert_eq!(proxy.stat("workflows"), 10);
        let named = config(|stage| {
            let workflows = &mut stage.workflows.as_mut().unwrap().workflows;
            let gold = workflows.get_mut("a").unwrap().clone();
            workflows.insert("gold".into(), gold);
        });
        proxy.host.inject(Fault::StoreConflicts, fails);
        proxy.configure(&named);
        proxy.host.inject(Fault::StoreConflicts, 0);
        proxy.idle(100);
        proxy.load("gold", 300, 3_000);
        assert_eq!(proxy.stat("workflow.gold.rate_mhz"), 50_000, "{fails}");
        let passed = proxy.passed_in(2_000);
        assert!((96..=104).contains(&passed), "{passed}");
        // The workflow that lost its place counts with the others.
        assert_eq!(proxy.stat("workflows"), 10);
        let other = proxy.stat("workflow._other.rq_offered");
        proxy.arrive(0, &of("tenant-7"), None);
        proxy.idle(200);
        assert_eq!(proxy.stat("workflow._other.rq_offered"), other + 1);
        proxy.assert_nothing_is_left();
    }
}

/// A stream may last for days, without other requests of its workflow.
#[test]
fn a_workflow_keeps_its_id_while_it_has_a_request() {
    let full = config(|stage| stage.workflows.as_mut().unwrap().max_workflows = 3);
    let mut proxy = Proxy::new(2, &full);
    let minutes = |proxy: &mut Proxy| {
        for _ in 0..700 {
            proxy.ms += 900;
            proxy.idle(100);
        }
    };
    proxy.load("b", 100, 200);
    proxy.idle(100);
    proxy.service = 10_000_000;
    let stream = proxy.arrive(1, &of("streams"), None);
    minutes(&mut proxy);
    assert_eq!(proxy.stat("workflows"), 3);
    proxy.finish(stream, Outcome::Completed);
    minutes(&mut proxy);
    assert_eq!(proxy.stat("workflows"), 2);
    proxy.assert_nothing_is_left();
}

/// The former id of a workflow, which keeps its measurements, isn't shown in place of the new one.
#[test]
fn a_workflow_that_moves_below_a_lower_cap_shows_its_rate() {
    let capped = |cap: u16, named: &[&str]| {
        config(|stage| {
            let workflows = stage.workflows.as_mut().unwrap();
            let settings = workflows.workflows["a"].clone();
            workflows.max_workflows = cap;
            let named = named
                .iter()
                .map(|name| ((*name).to_owned(), settings.clone()));
            workflows.workflows = named.collect();
        })
    };
    let mut proxy = Proxy::new(2, &capped(3, &[]));
    for name in ["x", "y", "gold"] {
        proxy.load(name, 200, 500);
    }
    assert!(proxy.stat("workflow.y.demand_mhz") > 0);
    proxy.configure(&capped(2, &["gold"]));
    proxy.load("gold", 300, 2_000);
    assert_eq!(proxy.stat("workflow.gold.limited"), 1);
    assert_eq!(proxy.stat("workflow.gold.rate_mhz"), 50_000);
    let demand = proxy.stat("workflow.gold.demand_mhz");
    assert!((250_000..=350_000).contains(&demand), "{demand}");
    // The workflow that lost its place is one of the others.
    assert_eq!(proxy.stat("workflow.y.demand_mhz"), 0);
    proxy.assert_nothing_is_left();
}

#[test]
fn workflows_that_are_no_longer_configured_hold_no_request() {
    let mut proxy = Proxy::new(2, &config(|_| {}));
    proxy.load("a", 300, 3_000);
    let held = proxy.held.len();
    let passed = proxy.passed.len();
    let plain = config(|stage| stage.workflows = None);
    proxy.configure(&plain);
    assert!(proxy.held.is_empty());
    assert_eq!(proxy.passed.len(), passed + held);
    proxy.load("a", 300, 1_000);
    assert!((299..=301).contains(&(proxy.passed_in(1_000))));
    assert_eq!(proxy.stat("workflow.a.limited"), 0);
    proxy.assert_nothing_is_left();
    proxy.configure(&config(|_| {}));
    proxy.load("a", 300, 1_000);
    proxy.load("a", 300, 2_000);
    let passed = proxy.passed_in(2_000);
    assert!((96..=104).contains(&passed), "{passed}");
    // The policy itself is removed while some requests wait.
    proxy.configure(&FilterConfig::default());
    assert!(proxy.held.is_empty());
    proxy.idle(3_000);
    assert_eq!(proxy.stat("slots_in_use"), 0);
}

#[test]
fn a_policy_that_is_removed_refuses_no_request_that_waits_for_its_rate() {
    let mut proxy = Proxy::new(
        1,
        &config(|stage| {
            stage.parallelism = 1;
            stage.queue.max_length = 0;
        }),
    );
    proxy.load("a", 300, 3_000);
    let (held, passed) = (proxy.held.len(), proxy.passed.len());
    assert!(held > 2, "{held}");
    let refused = proxy.refused.len();
    proxy.configure(&FilterConfig::default());
    assert!(proxy.held.is_empty());
    assert_eq!(proxy.passed.len(), passed + held);
    assert_eq!(proxy.refused.len(), refused);
    proxy.idle(3_000);
    assert_eq!(proxy.stat("slots_in_use"), 0);
}

#[test]
fn a_dry_run_releases_waiting_requests() {
    let mut proxy = Proxy::new(2, &config(|_| {}));
    proxy.load("a", 300, 3_000);
    proxy.configure(&config(|stage| stage.mode = Mode::DryRun));
    assert!(proxy.held.is_empty());
    proxy.assert_nothing_is_left();
}

#[test]
fn types_are_renamed_for_waiting_requests() {
    let named = |names: &[&str]| {
        config(|stage| {
            let default = stage.types.remove(0);
            let kind = |name: &&str| headgate_core::config::TypeConfig {
                name: (*name).into(),
                matches: vec![headgate_core::config::Match {
                    method: Some("GET".into()),
                    ..Default::default()
                }],
                ..default.clone()
            };
            stage.types = names.iter().map(kind).chain([default.clone()]).collect();
        })
    };
    let mut proxy = Proxy::new(1, &named(&["x", "y", "z"]));
    proxy.load("a", 300, 2_000);
    assert!(!proxy.held.is_empty());
    proxy.configure(&named(&[]));
    proxy.assert_nothing_is_left();
}

#[test]
fn a_client_that_leaves_the_limiter_leaves_its_turn() {
    let mut proxy = Proxy::new(2, &config(|_| {}));
    proxy.load("a", 300, 2_000);
    for _ in 0..20 {
        let some: Vec<u32> = proxy.held.keys().copied().step_by(3).collect();
        for stream in some {
            proxy.finish(stream, Outcome::Unmeasured);
        }
        proxy.load("a", 300, 100);
    }
    let passed = proxy.passed_in(2_000);
    assert!((93..=104).contains(&passed), "{passed}");
    proxy.assert_nothing_is_left();
}

/// For any failing host call, requests pass or bypass the limiter, and no state is left.
#[test]
fn a_failing_host_blocks_no_request() {
    for fault in [
        Fault::StoreConflicts,
        Fault::StoreFails,
        Fault::LoadFails,
        Fault::MetricFails,
    ] {
        for n in [1, 3, 10, 100] {
            let mut proxy = Proxy::new(2, &config(|_| {}));
            proxy.load("a", 100, 500);
            for _ in 0..20 {
                proxy.host.inject(fault, n);
                proxy.load("a", 100, 50);
            }
            proxy.host.inject(fault, 0);
            proxy.load("a", 100, 1_000);
            let passed = proxy.passed_in(500);
            assert!((20..=30).contains(&passed), "{fault:?} {n}: {passed}");
            proxy.idle(4_000);
            assert!(proxy.held.is_empty(), "{fault:?} {n}");
        }
    }
}
