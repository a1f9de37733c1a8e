//! Tests of workflows and their rates over several workers of a process, and between processes.
//! Workers also die, pause and are reconfigured.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::memory::MemoryRequest as Request;
use crate::memory::{Fault, MemoryHost};
use headgate_core::beside::Beside;
use headgate_core::config::{
    AutoParallelism, FilterConfig, Mode, ResourceConfig, ResourceReport, SharingConfig,
};
use headgate_core::decision::{Decision, Refusal};
use headgate_core::stage::Outcome;
use headgate_strategies::reason::Reason;

use super::*;
use crate::engine;
use crate::workflows::wire;

mod between;
mod faults;

fn of(workflow: &str) -> Request {
    Request::get("/").with("x-tenant", workflow)
}

/// Returns a configuration with which `a` may send 50 requests/s, and `b` 1000.
fn config(change: impl FnOnce(&mut StageConfig)) -> FilterConfig {
    let json = r#"{"revision":"r","stages":[{"policy":"ns/p","parallelism":50,
        "queue":{"max_length":100,"timeout_us":1000000},
        "strategy":{"type":"MaxQueueLength"},
        "types":[{"name":"default"}],
        "workflows":{"identify":[{"type":"Header","name":"x-tenant"},
                                 {"type":"Header","name":"x-headgate-workflow"}],
            "quantile":0.5,"interval_us":100000,"rate_ttl_us":1000000,
            "sharing":{"type":"StaticGuarantees"},"max_workflows":10,"max_queue_length":20,
            "workflows":{"a":{"guarantee":50.0},"b":{"guarantee":1000.0}}}}]}"#;
    let mut config = FilterConfig::from_json(json.as_bytes()).unwrap();
    change(&mut config.stages[0]);
    config
}

struct Proxy {
    host: MemoryHost,
    workers: Vec<Option<Engine>>,
    ms: u64,
    next: u32,
    /// The worker and the ticket of each request in the limiter or the queue, by stream.
    held: BTreeMap<u32, (usize, Ticket)>,
    running: BTreeMap<u32, (usize, Ticket, u64)>,
    refused: Vec<Refusal>,
    /// The times at which requests went to the backend, ms.
    passed: Vec<u64>,
    /// The service time of the backend, ms.
    service: u64,
    /// The outcome in the backend, by stream.
    outcome: fn(u32) -> Outcome,
    /// The use of the second resource that the backend reports with each answer.
    uses: Option<f64>,
}

impl Proxy {
    fn new(workers: usize, config: &FilterConfig) -> Self {
        let mut this = Self {
            host: MemoryHost::new(),
            workers: (1..=workers as u64)
                .map(|seed| Some(Engine::new(seed)))
                .collect(),
            ms: 10_000,
            next: 0,
            held: BTreeMap::new(),
            running: BTreeMap::new(),
            refused: Vec::new(),
            passed: Vec::new(),
            service: 5,
            outcome: |_| Outcome::Completed,
            uses: None,
        };
        this.configure(config);
        this
    }

    fn now(&self) -> Instant {
        Instant::default() + Duration::from_millis(self.ms)
    }

    fn with<T>(
        &mut self,
        worker: usize,
        f: impl FnOnce(&mut Engine, &MemoryHost, Instant, &mut Vec<Action>) -> T,
    ) -> Option<T> {
        let now = self.now();
        let mut actions = Vec::new();
        let engine = self.workers[worker].as_mut()?;
        let result = f(engine, &self.host, now, &mut actions);
        for action in actions {
            match action {
                Action::Resume { stream, .. } => {
                    let (worker, pass) = self.held.remove(&stream).unwrap();
                    self.running.insert(stream, (worker, pass, self.ms));
                    self.passed.push(self.ms);
                }
                Action::Refuse { stream, refusal } => {
                    self.held.remove(&stream).unwrap();
                    self.refused.push(refusal);
                }
                Action::Send { .. } => panic!("no call was delayed"),
            }
        }
        Some(result)
    }

    fn configure(&mut self, config: &FilterConfig) {
        for worker in 0..self.workers.len() {
            let done = self.with(worker, |e, h, now, a| e.configure(h, now, config, a));
            done.unwrap_or(Ok(())).unwrap();
        }
    }

    fn arrive(&mut self, worker: usize, request: &Request, deadline: Option<Duration>) -> u32 {
        self.next += 1;
        let stream = self.next;
        let admission = self.with(worker, |e, h, now, a| {
            e.arrive(h, now, stream, request, deadline, a)
        });
        match admission.unwrap() {
            Ok(Decision::Forward(pass)) => {
                self.running.insert(stream, (worker, pass, self.ms));
                self.passed.push(self.ms);
            }
            Ok(Decision::Hold(pass)) => {
                self.held.insert(stream, (worker, pass));
            }
            Ok(Decision::Refuse(refusal)) => self.refused.push(refusal),
            // Without a policy for the request, or after an injected fault, the request bypasses
            // the limiter.
            Ok(Decision::PassBy) | Err(_) => self.passed.push(self.ms),
        }
        stream
    }

    fn finish(&mut self, stream: u32, outcome: Outcome) {
        let held = self.held.remove(&stream);
        let running = self.running.remove(&stream).map(|(w, pass, _)| (w, pass));
        if let Some((worker, pass)) = held.or(running) {
            let used = self.uses.filter(|_| outcome == Outcome::Completed);
            let done = self.with(worker, |e, h, now, a| {
                if let Some(used) = used {
                    engine::resource_used(e, pass, used);
                }
                e.finish(h, now, pass, outcome, a)
            });
            // An error is an injected fault, whose effects the next tick repairs.
            let _ = done;
        }
    }

    /// Advances the time by a millisecond.
    fn step(&mut self) {
        self.ms += 1;
        let done = |(&stream, &(_, _, began)): (&u32, &(usize, Ticket, u64))| {
            (began + self.service <= self.ms).then_some(stream)
        };
        let done: Vec<u32> = self.running.iter().filter_map(done).collect();
        for stream in done {
            self.finish(stream, (self.outcome)(stream));
        }
        for worker in 0..self.workers.len() {
            let period = match &self.workers[worker] {
                Some(engine) if engine.is_busy() => 10,
                _ => 50,
            };
            // The workers tick at different times.
            if (self.ms + worker as u64).is_multiple_of(period) {
                let _ = self.with(worker, |e, h, now, a| e.tick(h, now, a));
            }
        }
    }

    /// Sends `rate` requests/s of `workflow` for `ms`, to varying workers.
    fn load(&mut self, workflow: &str, rate: u64, ms: u64) {
        for _ in 0..ms {
            self.step();
            if self.ms * rate / 1_000 != (self.ms - 1) * rate / 1_000 {
                let alive: Vec<usize> = (0..self.workers.len())
                    .filter(|&w| self.workers[w].is_some())
                    .collect();
                // A hash selects the worker. Otherwise the workers would alternate in step with the
                // rate.
                let worker =
                    alive[(self.next.wrapping_mul(2_654_435_761) >> 16) as usize % alive.len()];
                self.arrive(worker, &of(workflow), None);
            }
        }
    }

    fn idle(&mut self, ms: u64) {
        for _ in 0..ms {
            self.step();
        }
    }

    /// Returns the number of requests that went to the backend in the last `ms`.
    fn passed_in(&self, ms: u64) -> usize {
        let since = self.ms - ms;
        self.passed.iter().filter(|&&at| at > since).count()
    }

    fn stat(&self, name: &str) -> u64 {
        let name = format!("headgate.policy.ns/p.{name}");
        self.host.value(&name).unwrap_or_else(|| panic!("{name}"))
    }

    fn assert_nothing_is_left(&mut self) {
        self.idle(3_000);
        assert!(self.held.is_empty(), "held for ever: {:?}", self.held);
        assert_eq!(
            (self.stat("slots_in_use"), self.stat("queue_packed")),
            (0, 0)
        );
        for engine in self.workers.iter().flatten() {
            assert_eq!(engine.pending(), 0);
        }
    }
}

#[test]
fn a_rate_holds_over_all_workers() {
    let mut proxy = Proxy::new(3, &config(|_| {}));
    proxy.load("a", 300, 2_000);
    proxy.load("a", 300, 4_000);
    let passed = proxy.passed_in(4_000);
    assert!((196..=205).contains(&passed), "{passed} of 200");
    assert_eq!(proxy.stat("workflow.a.rate_mhz"), 50_000);
    assert_eq!(proxy.stat("workflow.a.limited"), 1);
    // 20 requests wait. Refusals of all others announce the time until a request would pass.
    let refusal = proxy.refused.last().unwrap();
    assert_eq!(refusal.reason, Reason::RateLimited);
    assert_eq!(
        (refusal.reason.answer().http, refusal.reason.answer().grpc),
        (429, 8)
    );
    let wait = refusal.retry_after;
    assert!(
        wait >= Duration::from_millis(380) && wait <= Duration::from_millis(880),
        "{wait:?}"
    );
    let words = proxy.workers[0].as_ref().unwrap().words(refusal);
    assert_eq!((words.policy, words.kind), ("ns/p", "default"));
    assert_eq!(refusal.reason.to_string(), "rate_limit");
    let (offered, admitted) = (
        proxy.stat("workflow.a.rq_offered"),
        proxy.stat("workflow.a.rq_admitted"),
    );
    let refused = proxy.stat("workflow.a.rq_rate_limited");
    assert!(offered >= 1_790 && refused >= 1_400 && admitted + refused <= offered);
    assert_eq!(proxy.stat("workflow.a.rq_rejected_enforced"), refused);
    assert!((15..=25).contains(&proxy.stat("workflow.a.queue_length")));
    let demand = proxy.stat("workflow.a.demand_mhz");
    assert!((285_000..=315_000).contains(&demand), "{demand}");
    let rejected = "type.default.rq_rejected.reason.rate_limit";
    assert_eq!(
        proxy.stat(rejected),
        proxy.stat("workflow.a.rq_rate_limited")
    );
    proxy.assert_nothing_is_left();
}

/// A request costs its slot time, whatever its answer. Otherwise a workflow whose requests fail
/// late, or whose clients give up, would have no rate.
#[test]
fn requests_that_end_without_an_answer_cost_their_slot_time() {
    let outcomes: [fn(u32) -> Outcome; 3] = [
        |_| Outcome::Completed,
        |stream| match stream % 5 {
            0 => Outcome::Completed,
            _ => Outcome::Failed,
        },
        |_| Outcome::Abandoned,
    ];
    let config = config(|stage| {
        let workflows = stage.workflows.as_mut().unwrap();
        workflows.sharing = SharingConfig::BottleneckFairness {
            probe: 10.0,
            max_utilization: 0.9,
        };
    });
    for outcome in outcomes {
        let mut proxy = Proxy::new(2, &config);
        (proxy.service, proxy.outcome) = (500, outcome);
        proxy.load("a", 200, 10_000);
        // Of 50 slots, 90% are shared, and a request has one for 500 ms.
        let rate = proxy.stat("workflow.a.local_rate_mhz");
        assert!((85_000..=95_000).contains(&rate), "{rate}");
        proxy.service = 5;
        proxy.assert_nothing_is_left();
    }
}

/// Returns a configuration with a second resource of 100 units/s.
fn two_resources() -> FilterConfig {
    config(|stage| {
        let workflows = stage.workflows.as_mut().unwrap();
        workflows.sharing = SharingConfig::DominantResource {
            probe: 10.0,
            max_utilization: 0.9,
            resource: ResourceConfig {
                capacity: 100.0,
                report: ResourceReport::Orca {
                    metric: "db".to_owned(),
                },
            },
        };
    })
}

/// Only answers report the use of the second resource. If requests without an answer counted as
/// free, the rate would rise as soon as an overloaded resource makes requests time out.
#[test]
fn requests_that_end_without_an_answer_make_no_resource_cheaper() {
    let mut proxy = Proxy::new(2, &two_resources());
    proxy.uses = Some(1.0);
    let outcomes: [fn(u32) -> Outcome; 3] = [
        |_| Outcome::Completed,
        |stream| match stream % 5 {
            0 => Outcome::Completed,
            _ => Outcome::Abandoned,
        },
        |_| Outcome::Failed,
    ];
    for outcome in outcomes {
        proxy.outcome = outcome;
        proxy.load("a", 200, 10_000);
        // Of 100 units, 90% are shared, and a request uses one.
        let rate = proxy.stat("workflow.a.local_rate_mhz");
        assert!((85_000..=95_000).contains(&rate), "{rate}");
    }
    // An answer without a report says that the request used nothing.
    (proxy.outcome, proxy.uses) = (|_| Outcome::Completed, None);
    proxy.load("a", 200, 10_000);
    let rate = proxy.stat("workflow.a.local_rate_mhz");
    assert!(rate > 200_000, "{rate}");
    proxy.assert_nothing_is_left();
}

/// The backend's count of its use falls below 0, and wraps.
#[test]
fn a_use_that_no_request_can_have_limits_no_workflow() {
    let mut proxy = Proxy::new(2, &two_resources());
    for uses in [0.1, u64::MAX as f64, 0.1] {
        proxy.uses = Some(uses);
        proxy.load("x", 200, 2_000);
    }
    let rate = proxy.stat("workflow.x.local_rate_mhz");
    assert!(rate > 200_000, "{rate}");
    proxy.assert_nothing_is_left();
}

#[test]
fn below_its_rate_no_request_waits_long() {
    let mut proxy = Proxy::new(2, &config(|_| {}));
    proxy.load("b", 400, 1_000);
    let before = proxy.passed.len();
    proxy.load("b", 400, 2_000);
    assert!(proxy.passed.len() - before >= 798);
    assert!(proxy.refused.is_empty());
    assert_eq!(
        proxy
            .host
            .recorded("headgate.policy.ns/p.workflow.b.limiter_wait_us"),
        Some((0, 0))
    );
    proxy.assert_nothing_is_left();
}

#[test]
fn the_rate_of_one_workflow_keeps_no_retry_of_another_out() {
    let mut proxy = Proxy::new(1, &config(|_| {}));
    proxy.load("a", 300, 2_000);
    let reason = proxy.refused.last().map(|refusal| refusal.reason);
    assert_eq!(reason, Some(Reason::RateLimited));
    let retry = of("b").with("x-envoy-attempt-count", "2");
    let retry = proxy.arrive(0, &retry, None);
    assert!(proxy.running.contains_key(&retry), "slots are free");
}

#[test]
fn names_beyond_the_cap_share_one_workflow() {
    let mut proxy = Proxy::new(2, &config(|_| {}));
    for n in 0..10_000 {
        let name = format!("tenant-{n}");
        proxy.arrive(n % 2, &of(&name), None);
        proxy.step();
    }
    proxy.idle(200);
    assert_eq!(proxy.stat("workflows"), 10);
    assert!(proxy.stat("workflows_folded") > 9_900);
    assert_eq!(
        proxy.stat("workflow._other.rq_offered"),
        proxy.stat("workflows_folded")
    );
    let metrics = proxy.host.all_metrics();
    let offered = metrics
        .iter()
        .filter(|(_, name, _)| name.ends_with(".rq_offered"));
    assert_eq!(offered.count(), 11);
    proxy.assert_nothing_is_left();
}

#[test]
fn a_request_waits_only_if_its_deadline_can_be_met() {
    let mut proxy = Proxy::new(1, &config(|_| {}));
    proxy.load("a", 45, 2_000);
    let burst = |proxy: &mut Proxy, deadline: u64| {
        let before = (proxy.held.len(), proxy.refused.len());
        for _ in 0..15 {
            let deadline = Some(Duration::from_millis(deadline));
            proxy.arrive(0, &of("a"), deadline);
        }
        (proxy.held.len() - before.0, proxy.refused.len() - before.1)
    };
    // With 20 ms between two requests and 5 ms in the backend, 4 requests meet the deadline of 100
    // ms.
    let (held, refused) = burst(&mut proxy, 100);
    assert!(
        (3..=5).contains(&held) && held + refused >= 14,
        "{held} {refused}"
    );
    let by_rate = |r: &Refusal| r.reason == Reason::Deadline && r.by_rate;
    assert!(proxy.refused.iter().all(by_rate));
    assert_eq!(proxy.stat("workflow.a.rq_rate_limited"), 0);
    proxy.idle(100);
    assert_eq!(proxy.stat("workflow.a.rq_deadline") as usize, refused);
    assert_eq!(proxy.refused.len(), refused, "who was let in made it");
    proxy.assert_nothing_is_left();
}

/// A deadline of 24 ms leaves time for one wait, and never for two. The time between two requests
/// is 20 ms, and the time in the backend 5 ms.
#[test]
fn the_time_that_a_request_takes_is_left_to_it_of_its_deadline() {
    let mut proxy = Proxy::new(1, &config(|_| {}));
    proxy.load("a", 45, 2_000);
    let mut held = 0;
    for phase in 0..20 {
        proxy.idle(60 + phase);
        for _ in 0..3 {
            proxy.arrive(0, &of("a"), Some(Duration::from_millis(24)));
        }
        assert!(proxy.held.len() <= 1, "{phase} {}", proxy.held.len());
        held += proxy.held.len();
    }
    assert!(held >= 15, "{held}");
}

/// A request that hangs until it times out says nothing about the time until the next answer.
#[test]
fn timeouts_take_no_time_from_the_deadlines_of_others() {
    let mut proxy = Proxy::new(1, &config(|_| {}));
    proxy.load("a", 45, 2_000);
    (proxy.service, proxy.outcome) = (1_000, |_| Outcome::Failed);
    proxy.load("a", 45, 1_000);
    proxy.idle(1_500);
    (proxy.service, proxy.outcome) = (5, |_| Outcome::Completed);
    assert_eq!(proxy.stat("workflow.a.completion_us"), 5_000);
    for _ in 0..15 {
        proxy.arrive(0, &of("a"), Some(Duration::from_millis(100)));
    }
    assert!((3..=5).contains(&proxy.held.len()), "{}", proxy.held.len());
    proxy.assert_nothing_is_left();
}

/// The rate falls while requests are held. So the held requests would wait for longer than the
/// queue's timeout, but their deadlines are later than the timeout.
#[test]
fn a_held_request_that_the_queues_timeout_refuses_has_not_missed_its_deadline() {
    let mut proxy = Proxy::new(1, &config(|_| {}));
    proxy.load("a", 45, 2_000);
    for _ in 0..18 {
        proxy.arrive(0, &of("a"), Some(Duration::from_secs(60)));
    }
    let held = proxy.held.len();
    assert!(held >= 15, "{held}");
    proxy.configure(&config(|stage| {
        let workflows = stage.workflows.as_mut().unwrap();
        workflows.workflows.get_mut("a").unwrap().guarantee = Some(1.0);
    }));
    proxy.idle(2_000);
    assert!(proxy.refused.len() >= 5, "{}", proxy.refused.len());
    let limited = |r: &Refusal| r.reason == Reason::RateLimited;
    assert!(proxy.refused.iter().all(limited));
    assert_eq!(proxy.stat("workflow.a.rq_deadline"), 0);
    let refused = proxy.stat("workflow.a.rq_rate_limited") as usize;
    assert_eq!(refused, proxy.refused.len());
    proxy.assert_nothing_is_left();
}

#[test]
fn a_request_that_cannot_meet_its_deadline_takes_no_number_of_its_workflow() {
    let mut proxy = Proxy::new(1, &config(|_| {}));
    proxy.load("a", 40, 4_000);
    proxy.idle(100);
    let refused = proxy.refused.len();
    for _ in 0..3 {
        // A request takes 5 ms, longer than the deadline.
        proxy.arrive(0, &of("a"), Some(Duration::from_millis(3)));
    }
    assert_eq!(proxy.refused.len(), refused + 3);
    let refusal = proxy.refused.last().unwrap();
    assert_eq!((refusal.reason, refusal.by_rate), (Reason::Deadline, false));
    // At 50 requests/s, one request at a time passes the limiter without a wait.
    let stream = proxy.arrive(0, &of("a"), None);
    assert!(proxy.running.contains_key(&stream), "it need not wait");
    proxy.idle(100);
    assert_eq!(proxy.stat("workflow.a.rq_deadline"), 3);
    proxy.assert_nothing_is_left();
}

/// Returns a configuration with a P that is found automatically. The workflow `a` is guaranteed 100
/// requests/s.
fn unlimited(sharing: SharingConfig) -> FilterConfig {
    config(|stage| {
        stage.auto_parallelism = Some(AutoParallelism { min: 2, max: 1_000 });
        let workflows = stage.workflows.as_mut().unwrap();
        workflows.workflows.get_mut("a").unwrap().guarantee = Some(100.0);
        workflows.sharing = sharing;
    })
}

#[test]
fn a_load_that_rises_fifty_times_is_not_limited_while_p_is_unlimited() {
    let sharing = SharingConfig::BottleneckFairness {
        probe: 10.0,
        max_utilization: 0.9,
    };
    let mut proxy = Proxy::new(1, &unlimited(sharing));
    proxy.service = 50;
    proxy.load("c", 20, 10_000);
    proxy.load("c", 1_000, 1_000);
    proxy.idle(100);
    assert!(proxy.refused.is_empty(), "{}", proxy.refused.len());
    proxy.assert_nothing_is_left();
}

/// The guarantee of a silent workflow demands more slots than were in use lately.
#[test]
fn a_guarantee_limits_no_other_workflow_while_p_is_unlimited() {
    let mut proxy = Proxy::new(1, &unlimited(SharingConfig::StaticGuarantees));
    proxy.service = 50;
    proxy.load("a", 20, 1_000);
    proxy.load("c", 1, 60_000);
    proxy.load("c", 50, 5_000);
    proxy.idle(100);
    assert!(proxy.refused.is_empty(), "{}", proxy.refused.len());
    proxy.assert_nothing_is_left();
}

/// A request without a deadline waits for at most the time to live of a rate. Without this limit,
/// requests could wait for so long that no call reaches the processes that announce rates, and the
/// rates would expire.
#[test]
fn without_a_deadline_no_request_waits_longer_than_a_rate_is_valid() {
    let mut proxy = Proxy::new(
        1,
        &config(|stage| {
            stage.queue.timeout_us = 10_000_000;
            let workflows = stage.workflows.as_mut().unwrap();
            workflows.workflows.get_mut("a").unwrap().guarantee = Some(5.0);
        }),
    );
    proxy.load("a", 4, 3_000);
    for _ in 0..20 {
        proxy.arrive(0, &of("a"), None);
    }
    // The time between two requests is 200 ms, and a rate's time to live is 1 s.
    assert!((4..=6).contains(&proxy.held.len()), "{}", proxy.held.len());
    let limited = |r: &Refusal| r.reason == Reason::RateLimited;
    assert!(proxy.refused.len() >= 13 && proxy.refused.iter().all(limited));
    // A request's own deadline is trusted.
    for _ in 0..10 {
        let deadline = Some(Duration::from_millis(2_500));
        proxy.arrive(0, &of("a"), deadline);
    }
    assert!(
        (10..=13).contains(&proxy.held.len()),
        "{}",
        proxy.held.len()
    );
    proxy.idle(3_000);
    proxy.assert_nothing_is_left();
}

#[test]
fn a_workflow_gives_its_deadline_to_requests_that_enter_here() {
    let mut proxy = Proxy::new(
        1,
        &config(|stage| {
            let workflows = stage.workflows.as_mut().unwrap();
            workflows.workflows.get_mut("a").unwrap().deadline_us = Some(100_000);
        }),
    );
    proxy.load("a", 45, 2_000);
    for _ in 0..15 {
        proxy.arrive(0, &of("a"), None);
    }
    assert!((3..=5).contains(&proxy.held.len()), "{}", proxy.held.len());
    // A request of another process keeps the deadline with which it arrived, or has none.
    let inner = of("a").with(wire::PROCESS, "0000000000000007");
    let before = proxy.held.len();
    for _ in 0..10 {
        proxy.arrive(0, &inner, None);
    }
    assert_eq!(proxy.held.len(), before + 10);
    proxy.assert_nothing_is_left();
}

#[test]
fn an_edit_takes_effect_although_the_host_failed_meanwhile() {
    let mut proxy = Proxy::new(1, &config(|_| {}));
    proxy.load("a", 45, 2_000);
    let mut edited = config(|_| {}).stages.remove(0);
    let workflows = &mut edited.workflows.as_mut().unwrap().workflows;
    workflows.get_mut("a").unwrap().deadline_us = Some(100_000);
    proxy.with(0, |engine, host, now, _| {
        host.inject(Fault::MetricFails, 1);
        let mut edit = || {
            let (mesh, requests) = engine.with_requests(PolicyId(0)).unwrap();
            let workflows = mesh.workflows_mut(PolicyId(0)).unwrap();
            workflows.reconfigure(&edited, now, host, requests, &mut Vec::new())
        };
        assert!(edit().is_err());
        assert_eq!(edit(), Ok(()));
    });
    proxy.idle(60);
    for _ in 0..15 {
        proxy.arrive(0, &of("a"), None);
    }
    assert!((3..=5).contains(&proxy.held.len()), "{}", proxy.held.len());
    proxy.assert_nothing_is_left();
}

#[test]
fn a_dry_run_counts_and_holds_no_request() {
    let mut proxy = Proxy::new(2, &config(|stage| stage.mode = Mode::DryRun));
    proxy.load("a", 300, 3_000);
    assert!(proxy.held.is_empty() && proxy.refused.is_empty());
    assert_eq!(proxy.passed.len(), 900);
    proxy.idle(100);
    let limited = proxy.stat("workflow.a.rq_rate_limited");
    let admitted = proxy.stat("workflow.a.rq_admitted");
    assert_eq!(limited + admitted, 900);
    assert_eq!(proxy.stat("workflow.a.rq_rejected_enforced"), 0);
    // As in enforcement, the admitted requests are those before the first rate, then 50 requests/s,
    // and a queue that fills once.
    assert!((150..=225).contains(&admitted), "{admitted}");
    proxy.assert_nothing_is_left();
}

#[test]
fn an_edge_ignores_headgates_headers_of_clients() {
    let edge = config(|stage| stage.workflows.as_mut().unwrap().edge = true);
    let mut proxy = Proxy::new(1, &edge);
    let request = Request::default()
        .with(wire::WORKFLOW, "b")
        .with(wire::PROCESS, "0000000000000007");
    proxy.arrive(0, &request, None);
    assert_eq!(
        trusts(proxy.workers[0].as_ref().unwrap(), &request),
        Some(false)
    );
    proxy.idle(200);
    assert_eq!(proxy.stat("workflow.b.rq_offered"), 0);
    assert_eq!(proxy.stat("workflow._other.rq_offered"), 1);
    proxy.assert_nothing_is_left();
}

/// Returns the numbers of host calls for the arrival and the end of the second request.
fn host_calls(config: &FilterConfig) -> (u64, u64) {
    let host = MemoryHost::new();
    let (mut engine, mut actions) = (Engine::new(1), Vec::new());
    let at = |ms| Instant::default() + Duration::from_millis(ms);
    engine
        .configure(&host, at(1), config, &mut actions)
        .unwrap();
    let mut cost = |stream, ms| {
        let before = host.calls();
        let admission = engine.arrive(&host, at(ms), stream, &of("a"), None, &mut actions);
        let Ok(Decision::Forward(pass)) = admission else {
            panic!("{admission:?}")
        };
        let arrived = host.calls() - before;
        engine
            .finish(&host, at(ms), pass, Outcome::Completed, &mut actions)
            .unwrap();
        (arrived, host.calls() - before - arrived)
    };
    cost(1, 2);
    cost(2, 3)
}

#[test]
fn without_workflows_there_is_no_more_host_call() {
    // The arrival reads and books queue and slots. The end returns the slot and writes three
    // records.
    let plain = config(|stage| stage.workflows = None);
    assert_eq!(host_calls(&plain), (5, 6));
}

#[test]
fn without_a_rate_an_arrival_makes_no_more_host_call() {
    assert_eq!(host_calls(&config(|_| {})).0, 5);
}

/// Otherwise a client would have the settings of `_other` a second time, in the same stats.
#[test]
fn a_client_that_calls_itself_other_is_one_of_the_others() {
    let mut proxy = Proxy::new(1, &config(|_| {}));
    proxy.arrive(0, &of("_other"), None);
    proxy.idle(200);
    assert_eq!(proxy.stat("workflows"), 2);
    assert_eq!(proxy.stat("workflow._other.rq_offered"), 1);
    proxy.assert_nothing_is_left();
}

#[test]
fn names_that_are_too_long_are_counted() {
    let mut proxy = Proxy::new(1, &config(|_| {}));
    for length in [128, 129, 200] {
        proxy.arrive(0, &of(&"n".repeat(length)), None);
    }
    proxy.idle(500);
    assert_eq!(
        (proxy.stat("workflows"), proxy.stat("workflows_folded")),
        (3, 2)
    );
    assert_eq!(proxy.stat("workflow._other.rq_offered"), 2);
    proxy.assert_nothing_is_left();
}

/// The controller measures response times from the time at which a request entered the system (SEDA
/// §3.2).
#[test]
fn response_times_begin_where_a_request_entered_the_mesh() {
    let controlled = |edge| {
        config(|stage| {
            let strategy = r#"{"type":"ResponseTimeController","percentile":90,
                "targets_us":[[60000000]],"scope":"Policy","smoothing":0,"requests":20,
                "timeout_us":1000000,"increase_below":-0.5,"decrease_above":0,"increase":2,
                "decrease":1.2,"increase_offset":-0.1,"min_rate":0.05,"max_rate":2000,
                "lower_class_decrease":10,"lower_class_patience":20}"#;
            stage.strategy = serde_json::from_str(strategy).unwrap();
            stage.workflows.as_mut().unwrap().edge = edge;
        })
    };
    let aged = of("a")
        .with(wire::PROCESS, "0000000000000007")
        .with(wire::PROGRESS, "elapsed=1, age=2000");
    // The service time of the backend is 5 ms. An untrusted request enters the mesh here.
    for (edge, expected) in [(false, 2_005_000_u64), (true, 5_000)] {
        let mut proxy = Proxy::new(2, &controlled(edge));
        for n in 0..60 {
            proxy.arrive(n % 2, &aged, None);
            proxy.idle(25);
        }
        proxy.idle(1_100);
        let measured = proxy.stat("controlled_response_time_us");
        assert!(
            measured.abs_diff(expected) <= expected / 50,
            "{edge}: {measured}"
        );
        // At twice the rate, most requests wait in the limiter, and the wait is part of the
        // response time.
        proxy.load("a", 100, 3_000);
        let measured = proxy.stat("controlled_response_time_us");
        assert!(measured > 150_000, "{edge}: {measured}");
        proxy.assert_nothing_is_left();
    }
}
