//! A simulated process of several workers in deterministic time, with its clients and its backend.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use headgate_core::classify::RequestView;
use headgate_core::config::{Discipline, FilterConfig, Flow};
use headgate_core::decision::{Action, Decision, Ticket};

use crate::memory::MemoryHost;
use headgate_core::stage::Outcome;
use headgate_mesh::Engine;
use headgate_strategies::reason::Reason;
use headgate_strategies::time::Instant;

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns all disciplines. Fair queues appear once for each kind of flow.
pub(crate) fn all() -> Vec<Discipline> {
    let drr = |by| Discipline::Drr {
        by,
        quantum_us: 10_000,
        weights: BTreeMap::new(),
    };
    let wfq = |by, weights: &[(&str, f64)]| Discipline::Wfq {
        by,
        weights: weights.iter().map(|(n, w)| ((*n).to_owned(), *w)).collect(),
        tokens: None,
    };
    vec![
        Discipline::Fifo,
        Discipline::Edf,
        Discipline::Lstf,
        Discipline::Sjf,
        Discipline::Srtf,
        Discipline::Lasf,
        Discipline::Slack,
        Discipline::Priority,
        drr(Flow::Type),
        drr(Flow::Class),
        drr(Flow::Workflow),
        wfq(Flow::Type, &[("a", 0.04)]),
        wfq(Flow::Class, &[]),
        wfq(Flow::Workflow, &[]),
    ]
}

/// A request as its client sends it. The service time is 1 ms for type `a`, and 10 ms for type `b`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) path: &'static str,
    pub(crate) class: &'static str,
    pub(crate) baggage: &'static str,
    pub(crate) progress: Option<&'static str>,
    pub(crate) deadline: Option<Duration>,
}

impl Sent {
    /// Returns the service time of the request.
    pub(crate) fn takes(&self) -> Duration {
        ms(if self.path == "/a" { 1 } else { 10 })
    }
}

pub(crate) const A: Sent = Sent {
    path: "/a",
    class: "low",
    baggage: "",
    progress: None,
    deadline: None,
};
pub(crate) const B: Sent = Sent { path: "/b", ..A };

impl RequestView for Sent {
    fn path(&self) -> Option<&[u8]> {
        Some(self.path.as_bytes())
    }
    fn method(&self) -> Option<&[u8]> {
        Some(b"GET")
    }
    fn header(&self, name: &str) -> Option<&[u8]> {
        let value = match name {
            "x-class" => Some(self.class),
            "baggage" => Some(self.baggage),
            "x-headgate-progress" => self.progress,
            "x-size" => Some(if self.path == "/a" { "4" } else { "1" }),
            _ => None,
        };
        value.map(str::as_bytes)
    }
    fn route_name(&self) -> Option<&[u8]> {
        None
    }
}

/// Returns a configuration with `parallelism` slots. By its objectives, type `a` has a slack of 19
/// ms and a deadline after 200 ms. Type `b` has a slack of 2 ms and a deadline after 100 ms.
pub(crate) fn config(parallelism: u32, discipline: &Discipline) -> FilterConfig {
    let discipline = serde_json::to_string(discipline).unwrap();
    let json = format!(
        r#"{{"revision":"r","stages":[{{"policy":"ns/p","parallelism":{parallelism},
        "queue":{{"discipline":{discipline},"max_length":1000,"timeout_us":60000000}},
        "strategy":{{"type":"MaxQueueLength"}},
        "service_times":{{"interval_us":1000000,"min_samples":10}},
        "types":[
          {{"name":"a","matches":[{{"path":{{"type":"Exact","value":"/a"}}}}],
            "slo":[{{"percentile":50,"objective_us":20000}},
                   {{"percentile":90,"objective_us":200000}}]}},
          {{"name":"b","matches":[{{"path":{{"type":"Exact","value":"/b"}}}}],
            "slo":[{{"percentile":50,"objective_us":12000}},
                   {{"percentile":90,"objective_us":100000}}]}},
          {{"name":"default"}}],
        "classes":[{{"name":"high",
                     "matches":[{{"headers":[{{"name":"x-class","value":"high"}}]}}]}},
                   {{"name":"low"}}]}}]}}"#
    );
    FilterConfig::from_json(json.as_bytes()).unwrap()
}

/// The position of a request in the process.
#[derive(Debug, Clone, Copy)]
enum At {
    Queue(Ticket),
    Backend(Ticket),
}

#[derive(Debug)]
struct Held {
    worker: usize,
    takes: Duration,
    deadline: Option<Instant>,
    at: At,
}

pub(crate) struct Process {
    pub(crate) host: MemoryHost,
    pub(crate) now: Instant,
    workers: Vec<Engine>,
    requests: BTreeMap<u32, Held>,
    /// The streams of all requests that got a slot, in order.
    pub(crate) started: Vec<u32>,
    ever_started: BTreeSet<u32>,
    pub(crate) refused: Vec<(u32, Reason)>,
    next_stream: u32,
    actions: Vec<Action>,
}

impl Process {
    /// Creates a process whose workers have announced themselves to each other, and have measured
    /// the service times of `a` and `b`.
    pub(crate) fn new(workers: usize, config: &FilterConfig) -> Self {
        let mut this = Self {
            host: MemoryHost::new(),
            now: Instant::from_nanos(1_000_000_000_000),
            workers: (1..=workers).map(|n| Engine::new(n as u64)).collect(),
            requests: BTreeMap::new(),
            started: Vec::new(),
            ever_started: BTreeSet::new(),
            refused: Vec::new(),
            next_stream: 1,
            actions: Vec::new(),
        };
        for worker in 0..workers {
            this.configure(worker, config);
        }
        for n in 0..60 {
            let sent = if n % 2 == 0 { A } else { B };
            let stream = this.arrive(n / 2 % workers, sent);
            this.pass(sent.takes());
            this.finish(stream, Outcome::Completed);
        }
        this.run_for(ms(3_000));
        this.started.clear();
        this
    }

    pub(crate) fn configure(&mut self, worker: usize, config: &FilterConfig) {
        let engine = &mut self.workers[worker];
        engine
            .configure(&self.host, self.now, config, &mut self.actions)
            .unwrap();
        self.act();
    }

    /// Sends a request to `worker`. Returns the stream of the request.
    pub(crate) fn arrive(&mut self, worker: usize, sent: Sent) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 1;
        let engine = &mut self.workers[worker];
        let (host, now) = (&self.host, self.now);
        let actions = &mut self.actions;
        let admission = engine
            .arrive(host, now, stream, &sent, sent.deadline, actions)
            .unwrap();
        let mut hold = |at| {
            let deadline = sent.deadline.map(|within| now + within);
            let held = Held {
                worker,
                takes: sent.takes(),
                deadline,
                at,
            };
            self.requests.insert(stream, held);
        };
        match admission {
            Decision::PassBy => panic!("the stage is for every request"),
            Decision::Forward(pass) => {
                hold(At::Backend(pass));
                self.start(stream);
            }
            Decision::Hold(pass) => hold(At::Queue(pass)),
            Decision::Refuse(refusal) => self.refused.push((stream, refusal.reason)),
        }
        self.act();
        stream
    }

    fn start(&mut self, stream: u32) {
        assert!(self.ever_started.insert(stream), "{stream} started twice");
        self.started.push(stream);
    }

    fn act(&mut self) {
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Resume { stream, .. } => {
                    let held = self.requests.get_mut(&stream).expect("known to its client");
                    let At::Queue(pass) = held.at else {
                        panic!("{stream} resumed in the backend")
                    };
                    let late = held.deadline.is_some_and(|deadline| deadline <= self.now);
                    assert!(!late, "{stream} got a slot too late");
                    held.at = At::Backend(pass);
                    self.start(stream);
                }
                Action::Refuse { stream, refusal } => {
                    let held = self.requests.remove(&stream).expect("refused once");
                    assert!(matches!(held.at, At::Queue(_)), "{stream} was served");
                    self.refused.push((stream, refusal.reason));
                }
                Action::Send { .. } => panic!("no call was delayed"),
            }
        }
    }

    /// Ends a request in the backend, or removes a request from the queue whose client leaves.
    pub(crate) fn finish(&mut self, stream: u32, outcome: Outcome) {
        let Some(held) = self.requests.remove(&stream) else {
            return;
        };
        let (At::Queue(pass) | At::Backend(pass)) = held.at;
        let engine = &mut self.workers[held.worker];
        engine
            .finish(&self.host, self.now, pass, outcome, &mut self.actions)
            .unwrap();
        self.act();
    }

    /// Delivers wake-ups until no wake-up is left.
    pub(crate) fn settle(&mut self) {
        while (0..self.workers.len()).any(|worker| self.wake(worker)) {}
    }

    fn wake(&mut self, worker: usize) -> bool {
        let engine = &mut self.workers[worker];
        let woken = engine.worker().map_or(0, |id| self.host.take_wakes(id));
        if woken > 0 {
            engine
                .woken(&self.host, self.now, &mut self.actions)
                .unwrap();
            self.act();
        }
        woken > 0
    }

    pub(crate) fn pass(&mut self, span: Duration) {
        self.now = self.now + span;
    }

    pub(crate) fn tick(&mut self) {
        for engine in &mut self.workers {
            engine
                .tick(&self.host, self.now, &mut self.actions)
                .unwrap();
        }
        self.act();
    }

    /// Advances the time in ticks of 10 ms.
    pub(crate) fn run_for(&mut self, span: Duration) {
        for _ in 0..span.as_millis() / 10 {
            self.pass(ms(10));
            self.tick();
            self.settle();
        }
    }

    pub(crate) fn in_backend(&self) -> Vec<u32> {
        let there = |held: &Held| matches!(held.at, At::Backend(_));
        let streams = self.requests.iter().filter(|(_, held)| there(held));
        streams.map(|(stream, _)| *stream).collect()
    }

    pub(crate) fn queued(&self) -> Vec<u32> {
        let there = |held: &Held| matches!(held.at, At::Queue(_));
        let streams = self.requests.iter().filter(|(_, held)| there(held));
        streams.map(|(stream, _)| *stream).collect()
    }

    /// Returns the worker that has the request `stream`.
    pub(crate) fn worker_of(&self, stream: u32) -> Option<usize> {
        self.requests.get(&stream).map(|held| held.worker)
    }

    /// Returns the announced rank of each worker's first waiter.
    pub(crate) fn heads(&self) -> Vec<Option<u64>> {
        let head = |engine: &Engine| {
            let id = engine.worker()?;
            self.gauge(&format!("worker.{id}.head_rank")).checked_sub(1)
        };
        self.workers.iter().map(head).collect()
    }

    pub(crate) fn gauge(&self, name: &str) -> u64 {
        let name = format!("headgate.policy.ns/p.{name}");
        self.host.value(&name).unwrap_or(0)
    }

    /// Returns the booked number of requests in the queue and their work, µs. Decisions are based
    /// on these numbers.
    pub(crate) fn booked_queue(&self) -> (u64, u64) {
        let packed = self.gauge("queue_packed");
        (packed >> 44, packed & ((1 << 44) - 1))
    }

    pub(crate) fn assert_nothing_booked(&self) {
        assert_eq!(self.gauge("slots_in_use"), 0);
        assert_eq!(self.booked_queue(), (0, 0));
        assert!(self.workers.iter().all(|engine| engine.pending() == 0));
    }

    /// Serves all requests one after the other, each for its service time. Returns the requests
    /// that started meanwhile, in order.
    pub(crate) fn drain(&mut self) -> Vec<u32> {
        let before = self.started.len();
        while let Some(stream) = self.in_backend().first().copied() {
            self.pass(self.requests[&stream].takes);
            self.finish(stream, Outcome::Unmeasured);
            self.settle();
        }
        self.started[before..].to_vec()
    }
}
