//! Regressions of an adversarial review: failing host calls, edits at bad moments, leases lost and
//! judged in races.

use super::*;
use crate::config::*;
use crate::host::memory::MemoryHost;
use crate::host::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

struct Req(&'static str);
impl RequestView for Req {
    fn path(&self) -> Option<&[u8]> {
        Some(self.0.as_bytes())
    }
    fn method(&self) -> Option<&[u8]> {
        Some(b"GET")
    }
    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
    fn route_name(&self) -> Option<&[u8]> {
        None
    }
}

/// Envoy's rules: counters refuse 0 and below. Fails one chosen metric call; runs a hook after a store.
#[derive(Default)]
struct H<'a> {
    m: Option<&'a MemoryHost>,
    strict: bool,
    calls: Cell<u64>,
    fail_at: Cell<u64>,
    after_store: RefCell<Option<Box<dyn FnOnce() + 'a>>>,
    kinds: RefCell<BTreeMap<u32, MetricKind>>,
}
impl<'a> H<'a> {
    fn new(m: &'a MemoryHost) -> Self {
        Self {
            m: Some(m),
            ..Self::default()
        }
    }
    fn m(&self) -> &'a MemoryHost {
        self.m.unwrap()
    }
    fn tick(&self) -> Result<(), HostError> {
        self.calls.set(self.calls.get() + 1);
        if self.calls.get() == self.fail_at.get() {
            return Err(HostError::Call {
                call: "injected",
                status: 10,
            });
        }
        Ok(())
    }
}
impl Host for H<'_> {
    fn define(&self, kind: MetricKind, name: &str) -> Result<MetricId, HostError> {
        let id = self.m().define(kind, name)?;
        self.kinds.borrow_mut().insert(id.0, kind);
        Ok(id)
    }
    fn add(&self, metric: MetricId, delta: i64) -> Result<(), HostError> {
        self.tick()?;
        if self.strict
            && delta <= 0
            && self.kinds.borrow().get(&metric.0) == Some(&MetricKind::Counter)
        {
            return Err(HostError::Call {
                call: "proxy_increment_metric",
                status: 2,
            });
        }
        self.m().add(metric, delta)
    }
    fn record(&self, metric: MetricId, value: u64) -> Result<(), HostError> {
        self.tick()?;
        self.m().record(metric, value)
    }
    fn read(&self, metric: MetricId) -> Result<u64, HostError> {
        self.tick()?;
        self.m().read(metric)
    }
    fn load(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>, HostError> {
        self.m().load(key)
    }
    fn store(&self, key: &str, value: &[u8], e: Expected) -> Result<(), HostError> {
        let r = self.m().store(key, value, e);
        if r.is_ok() && key.starts_with("headgate/workers") {
            let hook = self.after_store.borrow_mut().take();
            if let Some(h) = hook {
                h();
            }
        }
        r
    }
    fn wake(&self, worker: u32) -> Result<(), HostError> {
        self.m().wake(worker)
    }
}

fn config(p: u32, change: impl FnOnce(&mut StageConfig)) -> FilterConfig {
    let json = format!(
        r#"{{"revision":"r","stages":[{{"policy":"ns/p","parallelism":{p},
        "queue":{{"max_length":100,"timeout_us":1000000}},
        "strategy":{{"type":"MaxQueueLength"}},"service_times":{{"interval_us":1000000,"min_samples":10}},
        "types":[{{"name":"slow","matches":[{{"path":{{"type":"Exact","value":"/slow"}}}}]}},{{"name":"default"}}]}}]}}"#
    );
    let mut c = FilterConfig::from_json(json.as_bytes()).unwrap();
    change(&mut c.stages[0]);
    c
}
fn t(ms: u64) -> Instant {
    Instant::from_nanos(1_000_000_000_000 + ms * 1_000_000)
}
fn gauge(m: &MemoryHost, n: &str) -> u64 {
    m.value(&format!("headgate.policy.ns/p.{n}")).unwrap()
}
fn slots(m: &MemoryHost) -> i64 {
    gauge(m, "slots_in_use").cast_signed()
}
fn queued(m: &MemoryHost) -> u64 {
    gauge(m, "queue_packed") >> 44
}
fn pass(a: &Admission) -> Pass {
    match a {
        Admission::Forward(p) | Admission::Hold(p) => *p,
        other => panic!("{other:?}"),
    }
}

#[test]
fn avoidance_with_envoys_counters() {
    let m = MemoryHost::new();
    let mut h = H::new(&m);
    h.strict = true;
    let c = config(1, |s| {
        s.queue.max_length = 0;
        s.strategy = StrategyConfig::MaxQueueLength;
        s.starvation_avoidance = Some(StarvationAvoidance::AcceptanceAllowance {
            allowance: 0.1,
            window_us: 1_000_000,
            step_us: 10_000,
        });
    });
    let mut e = Engine::new(1);
    let mut a = Vec::new();
    e.configure(&h, t(0), &c, &mut a).unwrap();
    let first = e.arrive(&h, t(1), 1, &Req("/"), None, &mut a).unwrap();
    e.tick(&h, t(10), &mut a).unwrap();
    let r = e.arrive(&h, t(11), 2, &Req("/"), None, &mut a).unwrap();
    assert!(matches!(r, Admission::Refuse(..)));
    let mut failed = 0;
    for n in 2..100 {
        failed += u32::from(e.tick(&h, t(n * 10), &mut a).is_err());
    }
    let _ = first;
    assert_eq!(failed, 0);
}

/// Fails metric call number `fail_at` of a busy life; what is left booked afterwards.
fn scenario(fail_at: u64, discipline: &Discipline) -> (u64, Option<String>) {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let h2 = H::new(&m);
    let c = config(1, |s| s.queue.discipline = discipline.clone());
    let (mut e, mut o) = (Engine::new(1), Engine::new(2));
    let mut a = Vec::new();
    for (e, s) in [(&mut o, 900), (&mut e, 901)] {
        e.configure(&h, t(0), &c, &mut a).unwrap();
        let x = e.arrive(&h, t(0), s, &Req("/"), None, &mut a).unwrap();
        e.finish(&h, t(0), pass(&x), Outcome::Unmeasured, &mut a)
            .unwrap();
    }
    for n in 1..30 {
        o.tick(&h, t(n * 10), &mut a).unwrap();
        e.tick(&h, t(n * 10), &mut a).unwrap();
    }
    assert!(a.is_empty());
    h.calls.set(0);
    h.fail_at.set(fail_at);
    // stream -> (pass, in backend)
    let mut streams: BTreeMap<u32, (Pass, bool)> = BTreeMap::new();
    let act = |a: &mut Vec<Action>, streams: &mut BTreeMap<u32, (Pass, bool)>| {
        for x in a.drain(..) {
            match x {
                Action::Resume(s) => {
                    if let Some(x) = streams.get_mut(&s) {
                        x.1 = true;
                    }
                }
                Action::Refuse(s, ..) => {
                    streams.remove(&s);
                }
            }
        }
    };
    let mut now = 300;
    for s in 1..=4 {
        now += 1;
        let r = e.arrive(&h, t(now), s, &Req("/"), None, &mut a);
        match r {
            Ok(Admission::Forward(p)) => {
                streams.insert(s, (p, true));
            }
            Ok(Admission::Hold(p)) => {
                streams.insert(s, (p, false));
            }
            _ => {}
        }
        act(&mut a, &mut streams);
    }
    // a client leaves the queue, one completes, one tick that may expire
    for s in [3u32, 1] {
        now += 1;
        if let Some((p, _)) = streams.remove(&s) {
            let _ = e.finish(&h, t(now), p, Outcome::Completed, &mut a);
        }
        act(&mut a, &mut streams);
    }
    now += 10;
    let _ = e.tick(&h, t(now), &mut a);
    act(&mut a, &mut streams);
    for _ in 0..120 {
        now += 10;
        let _ = o.tick(&h2, t(now), &mut a);
        let _ = e.tick(&h, t(now), &mut a);
        act(&mut a, &mut streams);
    }
    let calls = h.calls.get();
    // healthy again for long: nobody may still be held (queue.timeout is 1 s), and after the end nothing is booked
    for _ in 0..300 {
        now += 10;
        let _ = o.tick(&h2, t(now), &mut a);
        let _ = e.tick(&h, t(now), &mut a);
        act(&mut a, &mut streams);
    }
    let held: Vec<u32> = streams
        .iter()
        .filter(|(_, x)| !x.1)
        .map(|(s, _)| *s)
        .collect();
    for (_, (p, _)) in std::mem::take(&mut streams) {
        now += 1;
        let _ = e.finish(&h, t(now), p, Outcome::Completed, &mut a);
        act(&mut a, &mut streams);
    }
    for _ in 0..600 {
        now += 10;
        let _ = o.tick(&h2, t(now), &mut a);
        let _ = e.tick(&h, t(now), &mut a);
    }
    let mut bad = String::new();
    if !held.is_empty() {
        bad += &format!("streams {held:?} held for ever; ");
    }
    if slots(&m) != 0 {
        bad += &format!("slots_in_use {} ; ", slots(&m));
    }
    if queued(&m) != 0 {
        bad += &format!("queue_length {} ; ", queued(&m));
    }
    if e.pending() != 0 {
        bad += &format!("pending {} ; ", e.pending());
    }
    (calls, (!bad.is_empty()).then_some(bad))
}
#[test]
fn one_failing_call_anywhere_leaks_nothing() {
    let drr = Discipline::Drr {
        by: Flow::Workflow,
        quantum_us: 1_000,
        weights: BTreeMap::new(),
    };
    for discipline in [Discipline::Fifo, drr] {
        let (calls, ok) = scenario(0, &discipline);
        assert_eq!(ok, None);
        let mut bad = Vec::new();
        for n in 1..=calls.min(200) {
            if let (_, Some(why)) = scenario(n, &discipline) {
                bad.push((n, why));
            }
        }
        assert!(
            bad.is_empty(),
            "{discipline:?}, by number of the failing call: {bad:?}"
        );
    }
}

#[test]
fn raising_max_length_takes_effect() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let mut e = Engine::new(1);
    let mut a = Vec::new();
    e.configure(&h, t(0), &config(1, |s| s.queue.max_length = 1), &mut a)
        .unwrap();
    e.arrive(&h, t(1), 1, &Req("/"), None, &mut a).unwrap();
    e.arrive(&h, t(2), 2, &Req("/"), None, &mut a).unwrap();
    e.configure(&h, t(3), &config(1, |s| s.queue.max_length = 50), &mut a)
        .unwrap();
    let r = e.arrive(&h, t(4), 3, &Req("/"), None, &mut a).unwrap();
    assert!(matches!(r, Admission::Hold(_)), "{r:?}");
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
            e.arrive(&h, t(s as u64), s, &Req("/"), None, &mut a)
                .unwrap(),
            Admission::Forward(_)
        ));
    }
    e.configure(&h, t(500), &config(1, |_| {}), &mut a).unwrap();
    e.arrive(&h, t(600), 9, &Req("/"), None, &mut a).unwrap();
    for n in 61..180 {
        e.tick(&h, t(n * 10), &mut a).unwrap();
    }
    let of_forwarded: Vec<_> = a
        .iter()
        .filter(|x| matches!(x, Action::Resume(s) | Action::Refuse(s, ..) if *s < 9))
        .collect();
    assert!(of_forwarded.is_empty(), "{of_forwarded:?}");
}

#[test]
fn an_edit_while_observing_changes_no_measurement_and_resumes_nobody() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let mut e = Engine::new(1);
    let mut a = Vec::new();
    let observe = |p| config(p, |s| s.queue.mode = QueueMode::Observe);
    e.configure(&h, t(0), &observe(1), &mut a).unwrap();
    let passes: Vec<Pass> = (1..=4)
        .map(|s| {
            pass(
                &e.arrive(&h, t(s as u64), s, &Req("/slow"), None, &mut a)
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
        e.arrive(&h, t(s as u64), s, &Req("/"), None, &mut a)
            .unwrap();
    }
    e.tick(&h, t(20), &mut a).unwrap();
    let g = |n: &str| gauge(&m, &format!("type.default.{n}"));
    assert_eq!(g("rq_total"), g("rq_accepted") + g("rq_rejected"));
}

#[test]
fn a_dead_workers_share_of_a_stage_that_the_survivor_lacks() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let other = |p: &str| {
        let p = p.to_owned();
        config(3, move |s| s.policy = p)
    };
    let both = {
        let mut c = other("ns/p");
        c.stages.push(other("ns/q").stages.remove(0));
        c.stages[0].routes = vec!["x".into()];
        c.stages.swap(0, 1);
        c
    };
    let _ = both;
    let mut a = Vec::new();
    // Old VM with policy q only; new VM (upgrade + edit) with policy p.
    let mut old = Engine::new(1);
    old.configure(&h, t(0), &other("ns/q"), &mut a).unwrap();
    let keep = old.arrive(&h, t(0), 1, &Req("/"), None, &mut a).unwrap();
    let mut new = Engine::new(2);
    new.configure(&h, t(0), &other("ns/p"), &mut a).unwrap();
    for s in 2..=4 {
        new.arrive(&h, t(1), s, &Req("/"), None, &mut a).unwrap();
    }
    assert_eq!(slots(&m), 3);
    drop(new); // traps
    for n in 1..1000 {
        old.tick(&h, t(n * 10), &mut a).unwrap();
    }
    // its successor on the same thread
    let mut next = Engine::new(3);
    next.configure(&h, t(10_000), &other("ns/p"), &mut a)
        .unwrap();
    let r = next
        .arrive(&h, t(10_001), 5, &Req("/"), None, &mut a)
        .unwrap();
    for n in 1001..2000 {
        old.tick(&h, t(n * 10), &mut a).unwrap();
        next.tick(&h, t(n * 10), &mut a).unwrap();
    }
    let _ = keep;
    assert!(matches!(r, Admission::Forward(_)) && slots(&m) == 1);
}

#[test]
fn a_worker_is_not_buried_while_it_joins() {
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
        .arrive(&host, t(0), 1, &Req("/"), None, &mut a)
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
    let passes: Vec<Pass> = (10..14)
        .map(|s| {
            pass(
                &e.arrive(&joining, t(4_100), s, &Req("/"), None, &mut a)
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
fn the_dead_are_buried_once_even_when_two_judge_at_the_same_moment() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let mut a = Vec::new();
    let c = config(5, |_| {});
    let mk = |seed, s| {
        let mut a = Vec::new();
        let mut e = Engine::new(seed);
        e.configure(&h, t(0), &c, &mut a).unwrap();
        let x = e.arrive(&h, t(0), s, &Req("/"), None, &mut a).unwrap();
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
fn woken_after_a_lost_lease() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let c = config(1, |s| s.queue.timeout_us = 60_000_000);
    let (mut x, mut y, mut z) = (Engine::new(1), Engine::new(2), Engine::new(3));
    let mut a = Vec::new();
    for (e, s) in [(&mut x, 1), (&mut y, 2)] {
        e.configure(&h, t(0), &c, &mut a).unwrap();
        let p = pass(&e.arrive(&h, t(0), s, &Req("/"), None, &mut a).unwrap());
        e.finish(&h, t(0), p, Outcome::Unmeasured, &mut a).unwrap();
    }
    for n in 1..30 {
        x.tick(&h, t(n * 10), &mut a).unwrap();
        y.tick(&h, t(n * 10), &mut a).unwrap();
    }
    let run = pass(&x.arrive(&h, t(300), 10, &Req("/"), None, &mut a).unwrap());
    let wait = pass(&y.arrive(&h, t(301), 11, &Req("/"), None, &mut a).unwrap());
    // y's thread stands still for 4 s
    for n in 31..450 {
        x.tick(&h, t(n * 10), &mut a).unwrap();
    }
    z.configure(&h, t(4_500), &c, &mut a).unwrap();
    let zr = z.arrive(&h, t(4_500), 20, &Req("/"), None, &mut a);
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
    let _run = e.arrive(&h, t(0), 1, &Req("/"), None, &mut a).unwrap();
    let held = pass(&e.arrive(&h, t(1), 2, &Req("/"), None, &mut a).unwrap());
    e.tick(&h, t(200), &mut a).unwrap();
    a.clear();
    e.finish(&h, t(2_500), held, Outcome::Unmeasured, &mut a)
        .unwrap();
    assert!(
        !a.iter()
            .any(|x| matches!(x, Action::Resume(2) | Action::Refuse(2, ..))),
        "{a:?}"
    );
}

#[test]
fn bouncer_without_objectives_is_refused() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let c = config(1, |s| {
        s.strategy = StrategyConfig::Bouncer {
            logic: Default::default(),
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
    let _run = e.arrive(&h, t(0), 1, &Req("/"), None, &mut a).unwrap();
    e.arrive(&h, t(1), 2, &Req("/"), None, &mut a).unwrap();
    h.calls.set(0);
    h.fail_at.set(1);
    let configured = e.configure(&h, t(2), &config(2, |_| {}), &mut a);
    assert!(configured.is_err());
    assert_eq!(e.pending(), 2);
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
        let p = pass(&e.arrive(&h, t(0), s, &Req("/"), None, &mut a).unwrap());
        e.finish(&h, t(0), p, Outcome::Unmeasured, &mut a).unwrap();
    }
    for n in 1..30 {
        x.tick(&h, t(n * 10), &mut a).unwrap();
        y.tick(&h, t(n * 10), &mut a).unwrap();
    }
    let ps: Vec<Pass> = (10..13)
        .map(|s| pass(&y.arrive(&h, t(300), s, &Req("/"), None, &mut a).unwrap()))
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

#[test]
fn policies_whose_names_differ_in_a_dot() {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let mut c = config(1, |s| {
        s.policy = "ns/a.b".into();
        s.routes = vec!["never".into()];
    });
    let mut q = c.stages[0].clone();
    q.policy = "ns/a_b".into();
    q.routes.clear();
    c.stages.push(q);
    let mut e = Engine::new(1);
    let mut a = Vec::new();
    let r = e.configure(&h, t(0), &c, &mut a);
    assert_eq!(r.unwrap_err().field, "stages[1].policy");
}

/// Whatever call fails during an edit, types are those of the stage that classifies: the old ones or the
/// new ones, and never the old stage's numbers in the new stage's tables.
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
            let passes: Vec<Pass> = (1..=3)
                .map(|s| pass(&e.arrive(&h, t(1), s, &Req("/slow"), None, &mut a).unwrap()))
                .collect();
            h.calls.set(0);
            h.fail_at.set(fail_at);
            let edited = e.configure(&h, t(2), &types(after, Discipline::Sjf), &mut a);
            h.fail_at.set(0);
            let running = &e.running[0];
            assert_eq!(&running.compiled.config, running.entrance.stage.config());
            let applied = running.compiled.config.types.len() == after;
            assert!(applied || edited.is_err(), "{fail_at}");
            (made, not_made) = (made + u32::from(applied), not_made + u32::from(!applied));
            let last = e.arrive(&h, t(3), 4, &Req("/slow"), None, &mut a).unwrap();
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

/// Who is let go above P when nobody is held any more gives back what it has, and no more.
#[test]
fn who_is_let_go_by_a_failing_edit_gives_no_slot_back_that_it_has_not() {
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
            let passes: Vec<Pass> = (1..=3)
                .map(|s| pass(&e.arrive(&h, t(1), s, &Req("/"), None, &mut a).unwrap()))
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
