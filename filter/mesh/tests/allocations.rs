//! Checks that decisions, places in the queue and measurements don't allocate once all buffers have
//! been filled.
//!
//! The data path runs inside a proxy's worker thread, where an allocation costs more than the
//! decision. There is only one test, because the counter is global.

// Clippy doesn't recognize helpers outside of `#[test]` functions as test code.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../strategies/tests/common/mod.rs"]
mod common;
mod counting;
#[path = "../../core/tests/memory/mod.rs"]
mod memory;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{
    BOUNCER, DEGRADATION, VALUE_CUT, backlog_control, classes, response_time_controller, stage,
    starvation_avoidances,
};
use counting::ALLOCATIONS;
use headgate_core::classify::RequestView;
use headgate_core::config::{BacklogSignal, FilterConfig, StageConfig};
use headgate_core::decision::{Decision, Ticket};

use crate::memory::MemoryHost;
use headgate_core::http::{Inbound, Level, Map, Property, Proxy, Stream};
use headgate_core::stage::Outcome;
use headgate_mesh::{Engine, Filter, engine};
use headgate_strategies::host::HostError;
use headgate_strategies::request::{Attributes, ClassId, Served, TypeId};
use headgate_strategies::rng::Rng;
use headgate_strategies::service_times::{ServiceTimes, Settings};
use headgate_strategies::strategy::{Strategy, View};
use headgate_strategies::time::Instant;

const TYPES: u16 = 20;

/// Decides about requests of all types from `begin` to `end` (ms), and measures the requests.
/// Returns the number of allocations.
fn run(
    strategy: &mut Strategy,
    times: &mut ServiceTimes,
    rng: &mut Rng,
    host: &MemoryHost,
    record: &mut Vec<u8>,
    (begin, end): (u64, u64),
) -> u64 {
    let mut counted = 0;
    for ms in begin..end {
        let now = Instant::default() + Duration::from_millis(ms);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for kind in (0..TYPES).map(TypeId) {
            let view = View {
                now,
                parallelism: 8,
                slots_in_use: 8,
                queue_length: ms as u32 % 50,
                queue_work: ms % 50 * 1_000,
                work: 1_000,
                queue_wait: Duration::from_millis(ms % 40),
                rival_wait: Duration::ZERO,
                service_times: times,
            };
            let request = Attributes {
                class: ClassId(ms as u8 % 2),
                ..Attributes::of(kind)
            };
            let _ = std::hint::black_box(strategy.decide(&request, &view, rng));
            let processing = Duration::from_micros(500 + 700 * u64::from(kind.0) + ms);
            times.record(kind, processing, 1);
            let served = Served {
                kind,
                class: request.class,
                age: Duration::ZERO,
                queue_wait: Duration::from_millis(1),
                processing,
                slot: processing,
                weight: 1,
                work: 1_000,
            };
            strategy.completed(&served, now);
        }
        strategy.tick(now);
        counted += ALLOCATIONS.load(Ordering::Relaxed) - before;
        // The exchange of measurements may allocate, since ticks exchange them only once in a tenth
        // of an interval.
        times.sync(now, host, "test").unwrap();
        strategy.learn(now, 8, false, times, |_| 0.0);
        if let Some(controlled) = strategy.base.controlled_mut()
            && controlled.sync(now, record)
        {
            controlled.stored();
        }
    }
    counted
}

/// A request that sets the attribute of every discipline.
struct Request(u64);

impl RequestView for Request {
    fn path(&self) -> Option<&[u8]> {
        Some(if self.0.is_multiple_of(3) {
            b"/a"
        } else {
            b"/"
        })
    }
    fn method(&self) -> Option<&[u8]> {
        Some(b"GET")
    }
    fn header(&self, name: &str) -> Option<&[u8]> {
        match name {
            "baggage" => Some([&b"workflow=%78"[..], b"user=1,workflow=y"][self.0 as usize % 2]),
            "x-headgate-progress" => Some(b"elapsed=1, total=20, work=3, total-work=30"),
            "amz-sdk-request" => Some(b"attempt=1; max=3"),
            _ => None,
        }
    }
    fn route_name(&self) -> Option<&[u8]> {
        Some(b"httproute/ns/search/rule/0")
    }
}

/// Queues, serves and loses requests of two workers under `discipline`. Returns the number of
/// allocations.
fn run_queue(discipline: &str) -> u64 {
    let json = format!(
        r#"{{"stages":[{{"policy":"ns/p","parallelism":4,"routes":["ads","httproute/ns/search/*"],
        "queue":{{"discipline":{discipline},"max_length":100,"timeout_us":60000000}},
        "strategy":{{"type":"MaxQueueLength"}},
        "retries":{{"header":"amz-sdk-request","first_attempt":1}},
        "tokens":{{"budget":100,"prompt":{{"header":"content-length","otherwise":11}},
            "output":{{"otherwise":20}}}},
        "types":[{{"name":"a","matches":[{{"path":{{"type":"Exact","value":"/a"}}}}]}},
                 {{"name":"default"}}],
        "classes":[{{"name":"high","matches":[{{"method":"PUT"}}]}},{{"name":"low"}}]}}]}}"#
    );
    let config = FilterConfig::from_json(json.as_bytes()).unwrap();
    let host = MemoryHost::new();
    let mut actions = Vec::with_capacity(64);
    let mut engines = [Engine::new(1), Engine::new(2)];
    let mut passes: VecDeque<(usize, Ticket)> = VecDeque::with_capacity(256);
    let at = |n: u64| Instant::default() + Duration::from_millis(1_000 + n);
    for engine in &mut engines {
        engine
            .configure(&host, at(0), &config, &mut actions)
            .unwrap();
    }
    let mut counted = 0;
    for n in 0..8_000 {
        let worker = n as usize % 2;
        let now = at(n);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let admission =
            engines[worker].arrive(&host, now, n as u32, &Request(n), None, &mut actions);
        if let Ok(Decision::Forward(pass) | Decision::Hold(pass)) = admission {
            passes.push_back((worker, pass));
        }
        if passes.len() > 40 {
            // Two requests leave the queue or the backend.
            for at in [0, passes.len() / 2] {
                let (worker, pass) = passes.remove(at).unwrap();
                let engine = &mut engines[worker];
                let done = engine.finish(&host, now, pass, Outcome::Completed, &mut actions);
                done.unwrap();
            }
        }
        for (worker, engine) in engines.iter_mut().enumerate() {
            if host.take_wakes(worker as u32) > 0 {
                engine.woken(&host, now, &mut actions).unwrap();
            }
        }
        actions.clear();
        if n >= 4_000 {
            counted += ALLOCATIONS.load(Ordering::Relaxed) - before;
        }
        if n.is_multiple_of(10) {
            for engine in &mut engines {
                engine.tick(&host, now, &mut actions).unwrap();
            }
        }
    }
    counted
}

/// Identifies, limits, holds, serves and refuses requests of three workflows on two workers. One
/// workflow is over its rate. Returns the number of allocations, without the exchange at ticks,
/// which may allocate.
fn run_workflows() -> u64 {
    let json = r#"{"stages":[{"policy":"ns/p","parallelism":64,
        "queue":{"max_length":100,"timeout_us":1000000},"strategy":{"type":"MaxQueueLength"},
        "types":[{"name":"default"}],
        "workflows":{"identify":[{"type":"Baggage","key":"workflow"}],"quantile":0.5,
            "interval_us":100000,"rate_ttl_us":1000000,"sharing":{"type":"StaticGuarantees"},
            "max_workflows":10,"max_queue_length":10,
            "workflows":{"x":{"guarantee":100.0},"y":{"guarantee":5000.0}}}}]}"#;
    let config = FilterConfig::from_json(json.as_bytes()).unwrap();
    let host = MemoryHost::new();
    let mut actions = Vec::with_capacity(64);
    let mut engines = [Engine::new(1), Engine::new(2)];
    let mut passes: VecDeque<(usize, Ticket)> = VecDeque::with_capacity(256);
    let at = |n: u64| Instant::default() + Duration::from_millis(1_000 + n);
    for engine in &mut engines {
        let done = engine.configure(&host, at(0), &config, &mut actions);
        done.unwrap();
    }
    let (mut counted, mut refused) = (0, 0);
    for n in 0..8_000 {
        let (worker, now) = ((n / 3) as usize % 2, at(n));
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let admission =
            engines[worker].arrive(&host, now, n as u32, &Request(n), None, &mut actions);
        match admission {
            Ok(Decision::Forward(pass) | Decision::Hold(pass)) => {
                std::hint::black_box(engine::token(&engines[worker], pass));
                passes.push_back((worker, pass));
            }
            Ok(Decision::Refuse(_)) => refused += 1,
            other => panic!("{other:?}"),
        }
        if passes.len() > 20 {
            let (worker, pass) = passes.pop_front().unwrap();
            let engine = &mut engines[worker];
            if let Some(answer) = engine::answer(engine, &host, now, pass) {
                engine
                    .beside_mut()
                    .write_answer(Some(&answer), None, |_, _| {});
            }
            let done = engine.finish(&host, now, pass, Outcome::Completed, &mut actions);
            done.unwrap();
        }
        if n >= 4_000 {
            counted += ALLOCATIONS.load(Ordering::Relaxed) - before;
        }
        if n.is_multiple_of(10) {
            for engine in &mut engines {
                engine.tick(&host, now, &mut actions).unwrap();
            }
        }
        actions.clear();
    }
    assert!(refused > 300, "{refused}");
    counted
}

/// A stream that allocates like a proxy, because it returns owned values.
struct Bare(Instant);

impl Proxy for Bare {
    fn now(&self) -> Result<Instant, HostError> {
        Ok(self.0)
    }
    fn log(&self, _level: Level, message: &str) {
        panic!("{message}");
    }
}

impl Stream for Bare {
    fn id(&self) -> u32 {
        1
    }
    fn headers(&self, map: Map) -> Result<Vec<u8>, HostError> {
        // The request has one header, `:path: /`.
        Ok(match map {
            Map::Request => b"\x01\0\0\0\x05\0\0\0\x01\0\0\0:path\0/\0".to_vec(),
            _ => Vec::new(),
        })
    }
    fn header(&self, map: Map, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        Ok((map == Map::Response && name == ":status").then(|| b"200".to_vec()))
    }
    fn response_body(&self, _each: &mut dyn FnMut(&[u8])) -> Result<(), HostError> {
        Ok(())
    }
    fn clear_route_cache(&self) -> Result<(), HostError> {
        Ok(())
    }

    fn set_header(&self, _map: Map, _name: &str, _value: &[u8]) -> Result<(), HostError> {
        Ok(())
    }
    fn remove_header(&self, _map: Map, _name: &[u8]) -> Result<(), HostError> {
        Ok(())
    }
    fn property(&self, _property: Property<'_>) -> Result<Option<Vec<u8>>, HostError> {
        Ok(Some(b"via_upstream".to_vec()))
    }
}

/// Runs requests from their headers to their end, as a host reports them. Returns the number of
/// allocations without the allocations of [`Bare`].
fn run_requests() -> u64 {
    let config = br#"{"stages":[{"policy":"ns/p","parallelism":4,
        "queue":{"max_length":100,"timeout_us":60000000},"strategy":{"type":"MaxQueueLength"},
        "types":[{"name":"a","matches":[{"path":{"type":"Exact","value":"/"}}]},
                 {"name":"default"}]}]}"#;
    let at = |n: u64| Bare(Instant::default() + Duration::from_millis(1_000 + n));
    let mut filter = Filter::new(MemoryHost::new(), 1);
    filter.configure(&Quiet, at(0).0, (1, ""), config).unwrap();
    let (mut counted, mut measured) = (0, 0);
    for n in 0..4_000 {
        let stream = at(10 * n);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let mut inbound = Inbound::default();
        let decision = inbound.request_headers(&mut filter, &stream);
        assert!(matches!(decision, Decision::Forward(_)));
        inbound.response_headers(&mut filter, &stream, false);
        inbound.response_end(&mut filter, &stream);
        inbound.done(&mut filter, &stream);
        if n >= 2_000 {
            counted += ALLOCATIONS.load(Ordering::Relaxed) - before;
            // [`Bare`] allocates the header map, the details of the response code, and the status.
            measured += 3;
        }
        filter.tick(&stream);
    }
    counted - measured
}

/// The proxy that is passed when the filter is configured. It logs nothing.
struct Quiet;

impl Proxy for Quiet {
    fn now(&self) -> Result<Instant, HostError> {
        Ok(Instant::default())
    }
    fn log(&self, _level: Level, _message: &str) {}
}

#[test]
fn deciding_queueing_and_measuring_allocate_nothing() {
    assert_eq!(run_workflows(), 0);
    assert_eq!(run_requests(), 0);

    for name in [
        "FIFO", "EDF", "LSTF", "SJF", "SRTF", "LASF", "Slack", "Priority",
    ] {
        assert_eq!(run_queue(&format!(r#"{{"type":{name:?}}}"#)), 0, "{name}");
    }
    for by in ["Type", "Class", "Workflow"] {
        let drr = format!(r#"{{"type":"DRR","by":{by:?},"quantum_us":1000}}"#);
        assert_eq!(run_queue(&drr), 0, "{drr}");
        let wfq = format!(r#"{{"type":"WFQ","by":{by:?}}}"#);
        assert_eq!(run_queue(&wfq), 0, "{wfq}");
    }

    let names: Vec<String> = (0..TYPES).map(|i| format!("t{i}")).collect();
    let names = || names.iter().map(String::as_str);
    let mut configs = Vec::new();
    for decorator in starvation_avoidances() {
        for strategy in [
            BOUNCER,
            VALUE_CUT,
            response_time_controller(TYPES.into(), 1, None),
            response_time_controller(TYPES.into(), 1, Some(DEGRADATION)),
        ] {
            configs.push(stage(names(), strategy, decorator.clone()));
        }
    }
    for signal in [
        BacklogSignal::Backlog,
        BacklogSignal::QueueLength,
        BacklogSignal::Proportional,
    ] {
        configs.push(stage(names(), backlog_control(signal), None));
    }
    let by_class = response_time_controller(TYPES.into(), 2, None);
    configs.push(StageConfig {
        classes: classes(),
        ..stage(names(), by_class, None)
    });
    for config in configs {
        let mut strategy = Strategy::from_config(&config);
        let mut times = ServiceTimes::new(Settings::from_config(&config));
        let (mut rng, host, mut record) = (Rng::new(1), MemoryHost::new(), Vec::new());
        // The allocations are counted from the time at which the window has been filled once.
        let mut run = |span| {
            run(
                &mut strategy,
                &mut times,
                &mut rng,
                &host,
                &mut record,
                span,
            )
        };
        run((0, 2_000));
        assert_eq!(run((2_000, 6_000)), 0, "{config:?}");
        assert!(times.estimate(TypeId(0)).is_own());
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    std::hint::black_box(vec![1_u8; 64]);
    assert!(
        ALLOCATIONS.load(Ordering::Relaxed) > before,
        "the counter counts"
    );
}
