//! Regression tests from an adversarial review. Failing host calls are tested here, and edits at
//! bad moments and leases in submodules.

mod edits;
mod leases;

use super::tests::config;
use super::*;
use crate::config::*;
use crate::host::*;
use crate::memory::{MemoryHost, MemoryRequest};
use headgate_strategies::host::*;
use headgate_strategies::request::TypeId;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// An engine with stages only.
type Engine = super::Engine;

/// A host whose counters refuse 0 and below, as Envoy's do. The host fails one chosen metric call,
/// and runs a hook before or after a store.
#[derive(Default)]
struct H<'a> {
    m: Option<&'a MemoryHost>,
    strict: bool,
    calls: Cell<u64>,
    loads: Cell<u64>,
    fail_at: Cell<u64>,
    before_store: RefCell<Option<Box<dyn FnOnce() + 'a>>>,
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
impl Metrics for H<'_> {
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
}
impl Shared for H<'_> {
    fn wall_clock_offset(&self) -> Duration {
        self.m().wall_clock_offset()
    }
    fn number(&self, name: &str) -> Result<Number, HostError> {
        self.m().number(name)
    }
    fn add_to(&self, number: Number, delta: i64) -> Result<(), HostError> {
        self.tick()?;
        self.m().add_to(number, delta)
    }
    fn set(&self, number: Number, value: u64) -> Result<(), HostError> {
        self.tick()?;
        self.m().set(number, value)
    }
    fn get(&self, number: Number) -> Result<u64, HostError> {
        self.tick()?;
        self.m().get(number)
    }
    fn load(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>, HostError> {
        self.loads.set(self.loads.get() + 1);
        self.m().load(key)
    }
    fn store(&self, key: &str, value: &[u8], e: Option<Version>) -> Result<(), HostError> {
        if key.starts_with("headgate/workers") {
            let hook = self.before_store.borrow_mut().take();
            if let Some(h) = hook {
                h();
            }
        }
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
fn pass(a: &Decision) -> Ticket {
    match a {
        Decision::Forward(p) | Decision::Hold(p) => *p,
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
            type_allowances: Default::default(),
            window_us: 1_000_000,
            step_us: 10_000,
        });
    });
    let mut e = Engine::new(1);
    let mut a = Vec::new();
    e.configure(&h, t(0), &c, &mut a).unwrap();
    let first = e
        .arrive(&h, t(1), 1, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    e.tick(&h, t(10), &mut a).unwrap();
    let r = e
        .arrive(&h, t(11), 2, &MemoryRequest::get("/"), None, &mut a)
        .unwrap();
    assert!(matches!(r, Decision::Refuse(_)));
    let mut failed = 0;
    for n in 2..100 {
        failed += u32::from(e.tick(&h, t(n * 10), &mut a).is_err());
    }
    let _ = first;
    assert_eq!(failed, 0);
}

/// Fails metric call number `fail_at` of a busy run. Returns the number of metric calls, and the
/// bookings that remain at the end, if any.
fn scenario(fail_at: u64, discipline: &Discipline) -> (u64, Option<String>) {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let h2 = H::new(&m);
    let c = config(1, |s| s.queue.discipline = discipline.clone());
    let (mut e, mut o) = (Engine::new(1), Engine::new(2));
    let mut a = Vec::new();
    for (e, s) in [(&mut o, 900), (&mut e, 901)] {
        e.configure(&h, t(0), &c, &mut a).unwrap();
        let x = e
            .arrive(&h, t(0), s, &MemoryRequest::get("/"), None, &mut a)
            .unwrap();
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
    // By stream: the ticket of the request, and whether the request is in the backend.
    let mut streams: BTreeMap<u32, (Ticket, bool)> = BTreeMap::new();
    let act = |a: &mut Vec<Action>, streams: &mut BTreeMap<u32, (Ticket, bool)>| {
        for x in a.drain(..) {
            match x {
                Action::Resume { stream: s, .. } => {
                    if let Some(x) = streams.get_mut(&s) {
                        x.1 = true;
                    }
                }
                Action::Refuse { stream: s, .. } => {
                    streams.remove(&s);
                }
                Action::Send { .. } => panic!("no call was delayed"),
            }
        }
    };
    let mut now = 300;
    for s in 1..=4 {
        now += 1;
        let r = e.arrive(&h, t(now), s, &MemoryRequest::get("/"), None, &mut a);
        match r {
            Ok(Decision::Forward(p)) => {
                streams.insert(s, (p, true));
            }
            Ok(Decision::Hold(p)) => {
                streams.insert(s, (p, false));
            }
            _ => {}
        }
        act(&mut a, &mut streams);
    }
    // A client leaves the queue, a request completes, and a tick may expire requests.
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
    // The host works again for so long that no request may still be held (queue.timeout is 1 s).
    // After all requests have ended, no booking remains.
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
    let wfq = Discipline::Wfq {
        by: Flow::Workflow,
        weights: BTreeMap::new(),
        tokens: None,
    };
    for discipline in [Discipline::Fifo, drr, wfq] {
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

/// A request gets a slot although another worker has a waiter, and then host call number `fail_at`
/// of its arrival fails. Returns whether it failed.
fn is_let_through(fail_at: u64) -> bool {
    let m = MemoryHost::new();
    let h = H::new(&m);
    let c = config(1, |_| {});
    let (mut e, mut o) = (Engine::new(1), Engine::new(2));
    let mut a = Vec::new();
    for (e, s) in [(&mut o, 900), (&mut e, 901)] {
        e.configure(&h, t(0), &c, &mut a).unwrap();
        let x = e.arrive(&h, t(0), s, &MemoryRequest::get("/"), None, &mut a);
        e.finish(&h, t(0), pass(&x.unwrap()), Outcome::Unmeasured, &mut a)
            .unwrap();
    }
    for n in 1..30 {
        o.tick(&h, t(n * 10), &mut a).unwrap();
        e.tick(&h, t(n * 10), &mut a).unwrap();
    }
    let first = e.arrive(&h, t(300), 1, &MemoryRequest::get("/"), None, &mut a);
    let waiting = o.arrive(&h, t(300), 2, &MemoryRequest::get("/"), None, &mut a);
    assert!(matches!(waiting, Ok(Decision::Hold(_))));
    let first = pass(&first.unwrap());
    e.finish(&h, t(300), first, Outcome::Completed, &mut a)
        .unwrap();
    assert!(a.is_empty(), "the other worker has not reacted yet");
    h.calls.set(0);
    h.fail_at.set(fail_at);
    let next = e.arrive(&h, t(303), 3, &MemoryRequest::get("/"), None, &mut a);
    let unanswered = e.policies[0].stage.unanswered(TypeId(1));
    let is_sent = matches!(next, Ok(Decision::Forward(_)));
    assert_eq!(unanswered, u32::from(is_sent), "call {fail_at}: {next:?}");
    next.is_err()
}

#[test]
fn a_request_that_a_failing_call_lets_through_does_not_count_as_unanswered() {
    assert!(!is_let_through(0));
    let failed = (1..100).filter(|call| is_let_through(*call)).count();
    assert!(failed > 5, "{failed}");
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
