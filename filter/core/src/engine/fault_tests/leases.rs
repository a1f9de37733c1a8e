//! Tests of lost leases, with workers that die, stall, or resume, and of races between the workers
//! that judge them.

use super::*;
use crate::memory::Group;

#[test]
fn a_dead_workers_share_of_a_stage_that_the_survivor_lacks() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let other = |p: &str| {
        let p = p.to_owned();
        config(3, move |s| s.policy = p)
    };
    let mut a = Vec::new();
    // The old VM has only policy q, and the new one (after an upgrade and an edit) policy p.
    let mut old = Engine::new(1);
    old.configure(&h, t(0), &other("ns/q"), &mut a).unwrap();
    let keep = old
        .arrive(&h, t(0), 1, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    let mut new = Engine::new(2);
    new.configure(&h, t(0), &other("ns/p"), &mut a).unwrap();
    for s in 2..=4 {
        new.arrive(&h, t(1), s, &MemoryRequest::get("/"), None, &mut a)
            .unwrap();
    }
    assert_eq!(slots(&m), 3);
    drop(new); // The VM traps.
    for n in 1..1000 {
        old.tick(&h, t(n * 10), &mut a).unwrap();
    }
    // This VM succeeds the dropped one on the same thread.
    let mut next = Engine::new(3);
    next.configure(&h, t(10_000), &other("ns/p"), &mut a)
        .unwrap();
    let r = next
        .arrive(&h, t(10_001), 5, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    for n in 1001..2000 {
        old.tick(&h, t(n * 10), &mut a).unwrap();
        next.tick(&h, t(n * 10), &mut a).unwrap();
    }
    let _ = keep;
    assert!(matches!(r, Decision::Forward(_)) && slots(&m) == 1);
}

#[test]
fn a_worker_is_not_declared_dead_while_it_joins() {
    let m = MemoryHost::new();
    let host = H::new(&m);
    let mut a = Vec::new();
    let c = config(5, |_| {});
    let first = RefCell::new(Engine::new(1));
    first
        .borrow_mut()
        .configure(&host, t(0), &c, &mut a)
        .unwrap();
    let x = first
        .borrow_mut()
        .arrive(&host, t(0), 1, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    first
        .borrow_mut()
        .finish(&host, t(0), pass(&x), Outcome::Unmeasured, &mut a)
        .unwrap();
    for n in 1..400 {
        first.borrow_mut().tick(&host, t(n * 10), &mut a).unwrap();
    }
    let h2 = H::new(&m);
    let joining = H::new(&m);
    *joining.after_store.borrow_mut() = Some(Box::new(|| {
        let mut a = Vec::new();
        first.borrow_mut().tick(&h2, t(4_100), &mut a).unwrap();
    }));
    let mut e = Engine::new(2);
    e.configure(&joining, t(4_100), &c, &mut a).unwrap();
    let passes: Vec<Ticket> = (10..14)
        .map(|s| {
            pass(
                &e.arrive(
                    &joining,
                    t(4_100),
                    s,
                    &MemoryRequest::get("/"),
                    None,
                    &mut a,
                )
                .unwrap(),
            )
        })
        .collect();
    for n in 411..800 {
        e.tick(&host, t(n * 10), &mut a).unwrap();
        first.borrow_mut().tick(&host, t(n * 10), &mut a).unwrap();
    }
    for p in passes {
        e.finish(&host, t(8_000), p, Outcome::Completed, &mut a)
            .unwrap();
    }
    for n in 801..1600 {
        e.tick(&host, t(n * 10), &mut a).unwrap();
        first.borrow_mut().tick(&host, t(n * 10), &mut a).unwrap();
    }
    assert_eq!(slots(&m), 0);
}

#[test]
fn dead_workers_are_cleaned_up_once_even_by_two_workers_at_once() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let mut a = Vec::new();
    let c = config(5, |_| {});
    let mk = |seed, s| {
        let mut a = Vec::new();
        let mut e = Engine::new(seed);
        e.configure(&h, t(0), &c, &mut a).unwrap();
        let x = e
            .arrive(&h, t(0), s, &MemoryRequest::get("/"), None, &mut a)
            .unwrap();
        (e, pass(&x))
    };
    let (mut y, py) = mk(1, 1);
    let (z, pz) = mk(2, 2);
    let (dead, _) = mk(3, 3);
    let z = RefCell::new(z);
    y.finish(&h, t(0), py, Outcome::Unmeasured, &mut a).unwrap();
    z.borrow_mut()
        .finish(&h, t(0), pz, Outcome::Unmeasured, &mut a)
        .unwrap();
    assert_eq!(slots(&m), 1);
    drop(dead);
    for n in 1..=300 {
        y.tick(&h, t(n * 10), &mut a).unwrap();
        z.borrow_mut().tick(&h, t(n * 10), &mut a).unwrap();
    }
    let h2 = H::new(&m);
    let hy = H::new(&m);
    *hy.after_store.borrow_mut() = Some(Box::new(|| {
        z.borrow_mut().tick(&h2, t(3_110), &mut Vec::new()).unwrap();
    }));
    y.tick(&hy, t(3_110), &mut a).unwrap();
    assert_eq!(slots(&m), 0);
}

#[test]
fn a_worker_that_wakes_after_its_lease_was_lost() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let c = config(1, |s| s.queue.timeout_us = 60_000_000);
    let (mut x, mut y, mut z) = (Engine::new(1), Engine::new(2), Engine::new(3));
    let mut a = Vec::new();
    for (e, s) in [(&mut x, 1), (&mut y, 2)] {
        e.configure(&h, t(0), &c, &mut a).unwrap();
        let p = pass(
            &e.arrive(&h, t(0), s, &MemoryRequest::get("/"), None, &mut a)
                .unwrap(),
        );
        e.finish(&h, t(0), p, Outcome::Unmeasured, &mut a).unwrap();
    }
    for n in 1..30 {
        x.tick(&h, t(n * 10), &mut a).unwrap();
        y.tick(&h, t(n * 10), &mut a).unwrap();
    }
    let run = pass(
        &x.arrive(&h, t(300), 10, &MemoryRequest::get("/"), None, &mut a)
            .unwrap(),
    );
    let wait = pass(
        &y.arrive(&h, t(301), 11, &MemoryRequest::get("/"), None, &mut a)
            .unwrap(),
    );
    // The thread of y is suspended for 4 s.
    for n in 31..450 {
        x.tick(&h, t(n * 10), &mut a).unwrap();
    }
    z.configure(&h, t(4_500), &c, &mut a).unwrap();
    let zr = z.arrive(&h, t(4_500), 20, &MemoryRequest::get("/"), None, &mut a);
    x.finish(&h, t(4_501), run, Outcome::Completed, &mut a)
        .unwrap();
    a.clear();
    y.woken(&h, t(4_502), &mut a).unwrap();
    let q = queued(&m);
    for n in 451..1000 {
        for e in [&mut x, &mut y, &mut z] {
            let _ = e.tick(&h, t(n * 10), &mut a);
        }
    }
    y.finish(&h, t(10_000), wait, Outcome::Completed, &mut a)
        .unwrap();
    if let Ok(zr) = &zr {
        z.finish(&h, t(10_000), pass(zr), Outcome::Completed, &mut a)
            .unwrap();
    }
    for n in 1001..1500 {
        for e in [&mut x, &mut y, &mut z] {
            let _ = e.tick(&h, t(n * 10), &mut a);
        }
    }
    assert!(q < 100 && queued(&m) == 0 && slots(&m) == 0);
}

#[test]
fn a_client_that_left_during_a_stall_is_not_answered_from_its_own_on_done() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let mut e = Engine::new(1);
    let mut a = Vec::new();
    e.configure(&h, t(0), &config(1, |_| {}), &mut a).unwrap();
    let _run = e
        .arrive(&h, t(0), 1, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    let held = pass(
        &e.arrive(&h, t(1), 2, &MemoryRequest::get("/"), None, &mut a)
            .unwrap(),
    );
    e.tick(&h, t(200), &mut a).unwrap();
    a.clear();
    e.finish(&h, t(2_500), held, Outcome::Unmeasured, &mut a)
        .unwrap();
    assert!(
        !a.iter().any(|x| matches!(
            x,
            Action::Resume { stream: 2, .. } | Action::Refuse { stream: 2, .. }
        )),
        "{a:?}"
    );
}

fn rejoin_with_failure(fail_at: u64) -> (u64, i64, u64) {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let two = {
        let mut c = config(5, |s| s.queue.timeout_us = 60_000_000);
        let mut q = c.stages[0].clone();
        q.policy = "ns/q".into();
        c.stages.push(q);
        c
    };
    let (mut x, mut y) = (Engine::new(1), Engine::new(2));
    let mut a = Vec::new();
    for (e, s) in [(&mut x, 1), (&mut y, 2)] {
        e.configure(&h, t(0), &two, &mut a).unwrap();
        let p = pass(
            &e.arrive(&h, t(0), s, &MemoryRequest::get("/"), None, &mut a)
                .unwrap(),
        );
        e.finish(&h, t(0), p, Outcome::Unmeasured, &mut a).unwrap();
    }
    for n in 1..30 {
        x.tick(&h, t(n * 10), &mut a).unwrap();
        y.tick(&h, t(n * 10), &mut a).unwrap();
    }
    let ps: Vec<Ticket> = (10..13)
        .map(|s| {
            pass(
                &y.arrive(&h, t(300), s, &MemoryRequest::get("/"), None, &mut a)
                    .unwrap(),
            )
        })
        .collect();
    for n in 31..450 {
        x.tick(&h, t(n * 10), &mut a).unwrap();
    }
    assert_eq!(slots(&m), 0);
    let hy = H::new(&m);
    hy.fail_at.set(fail_at);
    let _ = y.tick(&hy, t(4_500), &mut a);
    let calls = hy.calls.get();
    for n in 451..1000 {
        for e in [&mut x, &mut y] {
            let _ = e.tick(&h, t(n * 10), &mut a);
        }
    }
    let during = slots(&m);
    for p in ps {
        y.finish(&h, t(10_000), p, Outcome::Completed, &mut a)
            .unwrap();
    }
    for n in 1001..1500 {
        for e in [&mut x, &mut y] {
            let _ = e.tick(&h, t(n * 10), &mut a);
        }
    }
    (calls, during, slots(&m).unsigned_abs())
}
#[test]
fn a_call_that_fails_while_rejoining() {
    let (calls, during, end) = rejoin_with_failure(0);
    assert_eq!((during, end), (3, 0));
    let bad: Vec<_> = (1..=calls)
        .map(|n| (n, rejoin_with_failure(n)))
        .filter(|(_, r)| r.1 != 3 || r.2 != 0)
        .collect();
    assert!(bad.is_empty(), "by number of the failing call: {bad:?}");
}

/// Returns an engine that has joined, with a request that is in the backend, and its ticket.
fn joined(h: &H<'_>, seed: u64, config: &FilterConfig) -> (Engine, Ticket) {
    let (mut engine, mut actions) = (Engine::new(seed), Vec::new());
    engine.configure(h, t(0), config, &mut actions).unwrap();
    let arrived = engine.arrive(
        h,
        t(0),
        seed as u32,
        &MemoryRequest::get("/"),
        None,
        &mut actions,
    );
    (engine, pass(&arrived.unwrap()))
}

#[test]
fn a_share_for_which_the_survivor_had_no_stage_is_released_once() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let policy = |name: &'static str| config(5, move |s| s.policy = name.into());
    let (mut stays, _running) = joined(&h, 1, &policy("ns/p"));
    let (mut burier, _elsewhere) = joined(&h, 2, &policy("ns/q"));
    let (mut dies, _lost) = joined(&h, 3, &policy("ns/p"));
    let mut a = Vec::new();
    for stream in 10..12 {
        dies.arrive(&h, t(0), stream, &MemoryRequest::get("/"), None, &mut a)
            .unwrap();
    }
    assert_eq!(slots(&m), 4);
    drop(dies);
    // `stays` ticks later than `burier`, so `burier` is the first to judge the dead worker.
    for n in 1..=400 {
        burier.tick(&h, t(n * 10), &mut a).unwrap();
        if n % 10 == 5 {
            stays.tick(&h, t(n * 10), &mut a).unwrap();
        }
    }
    for n in 401..2_000 {
        burier.tick(&h, t(n * 10), &mut a).unwrap();
        stays.tick(&h, t(n * 10), &mut a).unwrap();
    }
    assert_eq!(
        slots(&m),
        1,
        "its slots are free before its number is given out again"
    );
    let mut next = Engine::new(4);
    next.configure(&h, t(20_000), &policy("ns/p"), &mut a)
        .unwrap();
    next.arrive(&h, t(20_000), 20, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    assert_eq!(slots(&m), 2, "and not given back again afterwards");
}

#[test]
fn a_worker_that_returns_during_its_clean_up_keeps_its_bookings() {
    for before_the_mark in [true, false] {
        let m = MemoryHost::new();
        let h = H::new(&m);
        let c = config(20, |_| {});
        let (mut judge, of_judge) = joined(&h, 1, &c);
        let (late, _running) = joined(&h, 2, &c);
        let mut a = Vec::new();
        judge
            .finish(&h, t(0), of_judge, Outcome::Unmeasured, &mut a)
            .unwrap();
        let late = RefCell::new(late);
        for stream in 10..13 {
            late.borrow_mut()
                .arrive(&h, t(0), stream, &MemoryRequest::get("/"), None, &mut a)
                .unwrap();
        }
        assert_eq!(slots(&m), 4);
        for n in 1..=300 {
            judge.tick(&h, t(n * 10), &mut a).unwrap();
        }
        let (h2, burying) = (H::new(&m), H::new(&m));
        let back = || {
            let mut a = Vec::new();
            late.borrow_mut()
                .arrive(&h2, t(3_110), 20, &MemoryRequest::get("/"), None, &mut a)
                .unwrap();
        };
        let hook = if before_the_mark {
            &burying.before_store
        } else {
            &burying.after_store
        };
        *hook.borrow_mut() = Some(Box::new(back));
        judge.tick(&burying, t(3_110), &mut a).unwrap();
        late.borrow_mut()
            .arrive(&h, t(3_111), 21, &MemoryRequest::get("/"), None, &mut a)
            .unwrap();
        assert!(
            slots(&m) >= 6,
            "{} booked, before the mark: {before_the_mark}",
            slots(&m)
        );
        // This time is shorter than the time after which an audit corrects the totals.
        for n in 312..470 {
            judge.tick(&h, t(n * 10), &mut a).unwrap();
            late.borrow_mut().tick(&h, t(n * 10), &mut a).unwrap();
        }
        assert!(
            slots(&m) >= 6,
            "{} booked, before the mark: {before_the_mark}",
            slots(&m)
        );
        for n in 470..1_500 {
            judge.tick(&h, t(n * 10), &mut a).unwrap();
            late.borrow_mut().tick(&h, t(n * 10), &mut a).unwrap();
        }
        assert_eq!(slots(&m), 6, "before the mark: {before_the_mark}");
    }
}

/// Two VMs of different `vm_id`s, each with a running request, run for longer than audits take to
/// agree.
#[test]
fn two_lists_of_workers_share_the_slots_and_correct_nothing() {
    let m = MemoryHost::new();
    let [one, two] = ["a", "b"].map(|id| Group::new(&m, id));
    let c = config(3, |_| {});
    let start = |host: &Group<'_>, seed: u64| {
        let (mut engine, mut a) = (Engine::new(seed), Vec::new());
        engine.configure(host, t(0), &c, &mut a).unwrap();
        engine
            .arrive(host, t(0), 1, &MemoryRequest::get("/"), None, &mut a)
            .unwrap();
        engine
    };
    let mut engines = [(start(&one, 1), one), (start(&two, 2), two)];
    let mut a = Vec::new();
    for n in 1..2_000 {
        for (engine, host) in &mut engines {
            engine.tick(host, t(n * 10), &mut a).unwrap();
        }
        assert_eq!(slots(&m), 2, "after {} ms", n * 10);
    }
    // The second VM dies, and its list with it. The first VM releases the dead VM's slot.
    let [(mut engine, host), dead] = engines;
    drop(dead);
    for n in 2_000..4_000 {
        engine.tick(&host, t(n * 10), &mut a).unwrap();
    }
    assert_eq!(slots(&m), 1);
}

/// The workers with the lowest numbers of both lists find the same difference.
#[test]
fn two_lists_of_workers_correct_a_drift_once() {
    let m = MemoryHost::new();
    let hosts = ["a", "b"].map(|id| Group::new(&m, id));
    let c = config(3, |_| {});
    let mut engines = [Engine::new(1), Engine::new(2)];
    let mut a = Vec::new();
    for (engine, host) in engines.iter_mut().zip(&hosts) {
        engine.configure(host, t(0), &c, &mut a).unwrap();
        engine
            .arrive(host, t(0), 1, &MemoryRequest::get("/"), None, &mut a)
            .unwrap();
    }
    let in_use = m.number("headgate.policy.ns/p.slots_in_use").unwrap();
    m.add_to(in_use, 1).unwrap();
    for n in 1..2_000 {
        for (engine, host) in engines.iter_mut().zip(&hosts) {
            engine.tick(host, t(n * 10), &mut a).unwrap();
        }
        assert!(n < 500 || slots(&m) == 2, "{} after {n} ticks", slots(&m));
    }
    assert_eq!(gauge(&m, "ledger_corrected"), 1);
}
