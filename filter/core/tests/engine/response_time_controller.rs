//! The response time controller in a closed loop: requests of a Poisson process, several workers,
//! one backend of P servers with exponential service times, and the whole engine between them.

// Clippy doesn't treat helpers outside of `#[test]` functions as tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::memory::{MemoryHost, MemoryRequest};
use headgate_core::config::{
    ControlScope, DegradationConfig, FilterConfig, ResponseTimeControllerConfig,
};
use headgate_core::decision::{Action, Decision, Ticket};
use headgate_core::engine::Engine;
use headgate_core::stage::Outcome;
use headgate_strategies::rng::Rng;
use headgate_strategies::time::Instant;

/// P.
const SERVERS: u32 = 10;
/// Mean service time at full quality, s: the backend serves 100 requests a second.
const SERVICE: f64 = 0.1;
/// Target of the 90th percentile, s.
const TARGET: f64 = 1.0;
const SECOND: u64 = 1_000_000_000;

/// Figure 4's parameters.
fn settings() -> ResponseTimeControllerConfig {
    ResponseTimeControllerConfig::figure_4(ControlScope::Type, vec![vec![(TARGET * 1e6) as u64; 2]])
}

fn config(settings: &ResponseTimeControllerConfig) -> FilterConfig {
    let mut strategy = serde_json::to_value(settings).unwrap();
    strategy["type"] = "ResponseTimeController".into();
    let json = serde_json::json!({"stages": [{
        "policy": "default/mail",
        "parallelism": SERVERS,
        "queue": {"max_length": 100_000, "timeout_us": 600_000_000},
        "strategy": strategy,
        "types": [{"name": "default"}],
        "classes": [
            {"name": "gold", "matches": [{"method": "GET"}]},
            {"name": "rest"},
        ],
    }]});
    FilterConfig::from_json(json.to_string().as_bytes()).unwrap()
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    Tick(usize),
    End(u32),
    /// An arrival of the load with this number.
    Arrival(usize),
}

struct Stream {
    worker: usize,
    gold: bool,
    arrived: u64,
    service: u64,
    quality: f64,
    ticket: Option<Ticket>,
}

/// The outcome of a request.
struct Seen {
    gold: bool,
    arrived: u64,
    /// Its quality and response time, s; `None` if it was refused.
    served: Option<(f64, f64)>,
}

/// The arrivals of one class: whether it is gold, and requests a second for ranges of seconds.
type Load = (bool, Vec<(f64, std::ops::Range<u64>)>);

struct World {
    host: MemoryHost,
    workers: Vec<Engine>,
    now: u64,
    coming: BinaryHeap<Reverse<(u64, u64, Happens)>>,
    scheduled: u64,
    streams: Vec<Stream>,
    loads: Vec<Load>,
    rng: Rng,
    actions: Vec<Action>,
    seen: Vec<Seen>,
}

impl World {
    fn run(workers: usize, config: &FilterConfig, loads: Vec<Load>, seed: u64, end: u64) -> Self {
        let mut this = Self {
            host: MemoryHost::new(),
            workers: (0..workers as u64).map(|i| Engine::new(i + 1)).collect(),
            now: SECOND,
            coming: BinaryHeap::new(),
            scheduled: 0,
            streams: Vec::new(),
            loads,
            rng: Rng::new(seed),
            actions: Vec::new(),
            seen: Vec::new(),
        };
        for i in 0..workers {
            let now = Instant::from_nanos(this.now);
            this.workers[i]
                .configure(&this.host, now, config, &mut this.actions)
                .unwrap();
            this.schedule(1_700_000 * i as u64, Happens::Tick(i));
        }
        for i in 0..this.loads.len() {
            this.next_arrival(i);
        }
        while let Some(Reverse((at, _, happens))) = this.coming.pop() {
            if at > end * SECOND {
                break;
            }
            this.now = at;
            this.happen(happens);
            this.carry_out();
        }
        this
    }

    fn schedule(&mut self, after: u64, what: Happens) {
        self.scheduled += 1;
        self.coming
            .push(Reverse((self.now + after, self.scheduled, what)));
    }

    fn exponential(&mut self, mean: f64) -> u64 {
        (-(1.0 - self.rng.next_f64()).ln() * mean * 1e9) as u64
    }

    /// Schedules the next arrival of a load. In a second without arrivals, it tries again in the
    /// next.
    fn next_arrival(&mut self, load: usize) {
        let second = self.now / SECOND;
        let phases = &self.loads[load].1;
        let rate = phases
            .iter()
            .find(|(_, when)| when.contains(&second))
            .map_or(0.0, |p| p.0);
        let after = if rate > 0.0 {
            self.exponential(1.0 / rate)
        } else {
            SECOND
        };
        self.schedule(after, Happens::Arrival(load));
    }

    fn happen(&mut self, happens: Happens) {
        let now = Instant::from_nanos(self.now);
        match happens {
            Happens::Tick(worker) => {
                let engine = &mut self.workers[worker];
                engine.tick(&self.host, now, &mut self.actions).unwrap();
                let period = if engine.is_busy() {
                    10_000_000
                } else {
                    50_000_000
                };
                self.schedule(period, Happens::Tick(worker));
            }
            Happens::Arrival(load) => {
                self.next_arrival(load);
                let gold = self.loads[load].0;
                let phases = &self.loads[load].1;
                if phases
                    .iter()
                    .any(|(_, when)| when.contains(&(self.now / SECOND)))
                {
                    self.arrive(gold);
                }
            }
            Happens::End(stream) => self.end(stream),
        }
    }

    fn arrive(&mut self, gold: bool) {
        let now = Instant::from_nanos(self.now);
        let worker = (self.rng.next_u64() % self.workers.len() as u64) as usize;
        let service = self.exponential(SERVICE);
        let stream = self.streams.len() as u32;
        let engine = &mut self.workers[worker];
        let request = MemoryRequest {
            method: Some(if gold { b"GET" } else { b"PUT" }.to_vec()),
            ..MemoryRequest::get("/")
        };
        let admission = engine.arrive(&self.host, now, stream, &request, None, &mut self.actions);
        let admission = admission.unwrap();
        let ticket = match admission {
            Decision::Forward(ticket) | Decision::Hold(ticket) => Some(ticket),
            Decision::Refuse(_) => None,
            Decision::PassBy => panic!("the stage is for all requests"),
        };
        let quality = ticket.and_then(|ticket| engine.stage(ticket.policy)?.quality(ticket));
        let quality = quality.unwrap_or(1.0);
        self.streams.push(Stream {
            worker,
            gold,
            arrived: self.now,
            service: (service as f64 * quality) as u64,
            quality,
            ticket,
        });
        match admission {
            Decision::Forward(_) => self.start(stream),
            Decision::Refuse(_) => self.seen.push(Seen {
                gold,
                arrived: self.now,
                served: None,
            }),
            _ => {}
        }
    }

    fn start(&mut self, stream: u32) {
        let Stream {
            worker,
            service,
            ticket,
            ..
        } = self.streams[stream as usize];
        let ticket = ticket.unwrap();
        let stage = self.workers[worker].stage_mut(ticket.policy).unwrap();
        stage.sample(ticket);
        self.schedule(service, Happens::End(stream));
    }

    fn end(&mut self, stream: u32) {
        let now = Instant::from_nanos(self.now);
        let Stream {
            worker,
            gold,
            arrived,
            quality,
            ticket,
            ..
        } = self.streams[stream as usize];
        let ticket = ticket.unwrap();
        let engine = &mut self.workers[worker];
        let stage = engine.stage_mut(ticket.policy).unwrap();
        let outcome = if stage.wants_answer(ticket) {
            Outcome::Completed
        } else {
            Outcome::Unsampled
        };
        engine
            .finish(&self.host, now, ticket, outcome, &mut self.actions)
            .unwrap();
        let response_time = (self.now - arrived) as f64 / 1e9;
        let served = Some((quality, response_time));
        self.seen.push(Seen {
            gold,
            arrived,
            served,
        });
    }

    fn carry_out(&mut self) {
        loop {
            for action in std::mem::take(&mut self.actions) {
                match action {
                    Action::Resume { stream, .. } => self.start(stream),
                    Action::Refuse { .. } => panic!("nobody waits that long"),
                    Action::Send { .. } => panic!("no call was delayed"),
                }
            }
            let mut woken = false;
            for i in 0..self.workers.len() {
                let Some(id) = self.workers[i].worker() else {
                    continue;
                };
                if self.host.take_wakes(id) > 0 {
                    woken = true;
                    let now = Instant::from_nanos(self.now);
                    self.workers[i]
                        .woken(&self.host, now, &mut self.actions)
                        .unwrap();
                }
            }
            if !woken && self.actions.is_empty() {
                return;
            }
        }
    }
}

/// Returns the 90th percentile of the requests that arrived within `when`, s, and the share that
/// was refused.
fn summary(seen: &[Seen], when: std::ops::Range<u64>, class: impl Fn(bool) -> bool) -> (f64, f64) {
    let within = |s: &&Seen| when.contains(&(s.arrived / SECOND)) && class(s.gold);
    let all: Vec<&Seen> = seen.iter().filter(within).collect();
    let mut times: Vec<f64> = all.iter().filter_map(|s| s.served.map(|s| s.1)).collect();
    times.sort_by(f64::total_cmp);
    let refused = 1.0 - times.len() as f64 / all.len().max(1) as f64;
    (
        times.get(times.len() * 9 / 10).copied().unwrap_or(f64::NAN),
        refused,
    )
}

/// Returns the mean quality of the requests that arrived within `when`.
fn quality(seen: &[Seen], when: std::ops::Range<u64>) -> f64 {
    let within = seen.iter().filter(|s| when.contains(&(s.arrived / SECOND)));
    let qualities: Vec<f64> = within.filter_map(|s| s.served.map(|s| s.0)).collect();
    qualities.iter().sum::<f64>() / qualities.len() as f64
}

/// Returns 30 requests a second of the lower class, and `spike` from 20 s to 320 s.
fn spike(spike: f64) -> Vec<Load> {
    vec![(
        false,
        vec![(30.0, 0..20), (spike, 20..320), (30.0, 320..420)],
    )]
}

fn degradation(admission: bool) -> Option<DegradationConfig> {
    Some(DegradationConfig {
        min_quality: 0.2,
        decrease: 1.2,
        increase: 0.05,
        admission,
    })
}

fn any(_gold: bool) -> bool {
    true
}

/// Returns the outcomes of all requests over 420 s.
fn run(workers: usize, settings: &ResponseTimeControllerConfig, loads: Vec<Load>) -> Vec<Seen> {
    World::run(workers, &config(settings), loads, 1, 420).seen
}

#[test]
fn response_times_are_held_at_the_target_and_the_spike_is_forgotten() {
    for workers in [1, 4] {
        let seen = run(workers, &settings(), spike(300.0));
        let (before, refused) = summary(&seen, 0..20, any);
        assert!(before < 0.5 && refused == 0.0, "{before} s, {refused}");
        // After the queue of the first seconds, there is a sawtooth below and slightly above the
        // target.
        let (p90, refused) = summary(&seen, 120..320, any);
        assert!((0.5..1.3).contains(&p90), "{workers} workers: {p90} s");
        // Two thirds of the load are beyond the capacity.
        assert!(
            (0.66..0.85).contains(&refused),
            "{workers} workers: {refused}"
        );
        let (after, refused) = summary(&seen, 335..420, any);
        assert!(after < 0.5 && refused < 0.005, "{after} s, {refused}");
    }
}

/// The same without the paper's `increase`: the rate starts at the throughput and stays near it.
#[test]
fn steps_in_units_of_the_throughput_hold_the_target_with_any_number_of_workers() {
    let settings =
        ResponseTimeControllerConfig::adaptive(ControlScope::Type, settings().targets_us);
    for workers in [1, 4] {
        let seen = run(workers, &settings, spike(300.0));
        let (before, refused) = summary(&seen, 0..20, any);
        assert!(before < 0.5 && refused == 0.0, "{before} s, {refused}");
        let (p90, refused) = summary(&seen, 30..320, any);
        assert!((0.85..1.15).contains(&p90), "{workers} workers: {p90} s");
        assert!(
            (0.66..0.75).contains(&refused),
            "{workers} workers: {refused}"
        );
        let (after, refused) = summary(&seen, 335..420, any);
        assert!(after < 0.5 && refused < 0.005, "{after} s, {refused}");
    }
}

#[test]
fn lower_quality_serves_all_requests() {
    let settings = ResponseTimeControllerConfig {
        degradation: degradation(false),
        ..settings()
    };
    for workers in [1, 4] {
        let seen = run(workers, &settings, spike(300.0));
        assert_eq!(summary(&seen, 0..420, any).1, 0.0, "nobody is refused");
        // A third of the quality takes a third of the work.
        let during = quality(&seen, 120..320);
        assert!((0.25..0.4).contains(&during), "{workers} workers: {during}");
        let (p90, _) = summary(&seen, 120..320, any);
        assert!((0.5..3.0).contains(&p90), "{workers} workers: {p90} s");
        let after = quality(&seen, 350..420);
        assert!(after > 0.97, "{workers} workers: {after}");
    }
}

#[test]
fn where_the_lowest_quality_does_not_do_requests_are_refused() {
    let settings = ResponseTimeControllerConfig {
        degradation: degradation(true),
        ..settings()
    };
    for workers in [1, 4] {
        // At a fifth of the quality, half of this load fits.
        let seen = run(workers, &settings, spike(1_000.0));
        let during = quality(&seen, 120..320);
        assert!(
            (0.199..0.25).contains(&during),
            "{workers} workers: {during}"
        );
        let (p90, refused) = summary(&seen, 120..320, any);
        assert!((0.3..3.0).contains(&p90), "{workers} workers: {p90} s");
        assert!(
            (0.5..0.9).contains(&refused),
            "{workers} workers: {refused}"
        );
        let (_, refused) = summary(&seen, 340..420, any);
        assert!(refused < 0.005, "{workers} workers: {refused}");
        assert!(quality(&seen, 350..420) > 0.97);
    }
}

#[test]
fn the_lower_class_pays_for_the_higher() {
    for workers in [1, 4] {
        let mut loads = spike(240.0);
        loads.push((true, vec![(60.0, 20..320)]));
        let seen = run(workers, &settings(), loads);
        let (gold, refused) = summary(&seen, 120..320, |gold| gold);
        assert!(
            gold < 1.3 && refused < 0.01,
            "{workers} workers: {gold} s, {refused}"
        );
        // The capacity is 40 of 240.
        let (rest, refused) = summary(&seen, 120..320, |gold| !gold);
        assert!(rest < 1.3, "{workers} workers: {rest} s");
        assert!(
            (0.83..0.97).contains(&refused),
            "{workers} workers: {refused}"
        );
        let (_, refused) = summary(&seen, 350..420, any);
        assert!(refused < 0.005, "{workers} workers: {refused}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let loads = || vec![(false, vec![(300.0, 0..60)])];
    let served = |seed| {
        let seen = World::run(3, &config(&settings()), loads(), seed, 90).seen;
        seen.iter()
            .map(|s| (s.arrived, s.served))
            .collect::<Vec<_>>()
    };
    assert_eq!(served(5), served(5));
    assert_ne!(served(5), served(6));
}

#[test]
fn rate_and_quality_are_gauges() {
    let settings = ResponseTimeControllerConfig {
        degradation: degradation(true),
        ..settings()
    };
    let loads = vec![(false, vec![(1_000.0, 0..60)])];
    let world = World::run(2, &config(&settings), loads, 1, 60);
    let gauge = |what: &str, class: &str| {
        let name = format!("headgate.policy.default/mail.type.default.{what}.class.{class}");
        world.host.value(&name).unwrap()
    };
    assert_eq!(gauge("quality_permille", "rest"), 200);
    let rate = gauge("admission_rate_mhz", "rest");
    assert!((50..500_000).contains(&rate), "{rate}");
    assert_eq!(gauge("quality_permille", "gold"), 1_000);
    assert_eq!(gauge("admission_rate_mhz", "gold"), 2_000_000);
    let refused = "headgate.policy.default/mail.type.default.rq_rejected.reason.response_time";
    let counted = world
        .seen
        .iter()
        .filter(|seen| seen.served.is_none())
        .count() as u64;
    assert!(counted > 1_000 && world.host.value(refused).unwrap().abs_diff(counted) < 100);
}
