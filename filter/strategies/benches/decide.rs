//! Native cost of a decision, of a controller's tick, and of a measurement with its part of an
//! exchange. All types are active: 1 to 1,000 types, or 1 to 100 for controllers.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/memory/mod.rs"]
mod memory;

use std::hint::black_box;
use std::time::Duration;

use crate::memory::MemoryHost;
use common::{
    BOUNCER, DEGRADATION, PARALLELISM, backlog_control, classes, response_time_controller, stage,
    starvation_avoidances,
};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use headgate_config::{BacklogSignal, StageConfig, StarvationAvoidance, StrategyConfig};
use headgate_strategies::request::{Attributes, ClassId, Served, TypeId};
use headgate_strategies::rng::Rng;
use headgate_strategies::service_times::{ServiceTimes, Settings};
use headgate_strategies::strategy::{Strategy, View};
use headgate_strategies::time::Instant;

const SIZES: [u16; 4] = [1, 10, 100, 1_000];

fn config(types: u16, starvation_avoidance: Option<StarvationAvoidance>) -> StageConfig {
    let names: Vec<String> = (0..types).map(|i| format!("t{i}")).collect();
    stage(
        names.iter().map(String::as_str),
        BOUNCER,
        starvation_avoidance,
    )
}

fn warm(config: &StageConfig) -> ServiceTimes {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(Settings::from_config(config));
    for i in 0..60_u64 {
        for kind in 0..config.types.len() as u16 {
            times.record(
                TypeId(kind),
                Duration::from_micros(900 + 20 * i + u64::from(kind) * 7),
                1,
            );
        }
        times
            .flush(Instant::default(), &host, "bench")
            .unwrap_or_default();
    }
    times
}

/// A decision under overload: one request in two misses its objective, 20,000 requests/s.
fn decide(c: &mut Criterion) {
    let names = [
        "bouncer",
        "bouncer+acceptance_allowance",
        "bouncer+helping_the_underserved",
    ];
    for (name, decorator) in names.into_iter().zip(starvation_avoidances()) {
        let mut group = c.benchmark_group(format!("decide/{name}"));
        for types in SIZES {
            let config = config(types, decorator.clone());
            let times = warm(&config);
            let mut strategy = Strategy::from_config(&config);
            let mut rng = Rng::new(1);
            let mut n = 0_u64;
            group.bench_function(BenchmarkId::from_parameter(types), |b| {
                b.iter(|| {
                    n += 1;
                    let view = View {
                        now: Instant::from_nanos(n * 50_000),
                        parallelism: PARALLELISM,
                        slots_in_use: PARALLELISM,
                        queue_length: 40,
                        queue_work: 40_000,
                        work: 1_000,
                        queue_wait: Duration::from_millis(if n.is_multiple_of(2) { 5 } else { 30 }),
                        rival_wait: Duration::ZERO,
                        service_times: &times,
                    };
                    let kind = TypeId((rng.next_u64() % u64::from(types)) as u16);
                    black_box(strategy.decide(&Attributes::of(kind), black_box(&view), &mut rng))
                });
            });
        }
        group.finish();
    }
}

/// A feedback controller, two classes.
fn controlled(controller: StrategyConfig, types: u16) -> (StageConfig, Strategy) {
    let names: Vec<String> = (0..types).map(|i| format!("t{i}")).collect();
    let mut config = stage(names.iter().map(String::as_str), controller, None);
    config.classes = classes();
    let strategy = Strategy::from_config(&config);
    (config, strategy)
}

/// Decisions of both feedback controllers while they refuse. The response time controller is at its
/// lowest quality; backlog control measures the cost of requests.
fn controllers(c: &mut Criterion) {
    let seda = |types: u16| response_time_controller(types.into(), 2, Some(DEGRADATION));
    control(c, "response_time_controller", [30, 30], seda);
    let chronos = |_| backlog_control(BacklogSignal::Backlog);
    control(c, "backlog_control", [5, 25], chronos);
}

/// A decision of a controller, and its tick with as many measurements as it adopts. Requests wait
/// for the times in `waits`, ms, in turn.
fn control(
    c: &mut Criterion,
    name: &str,
    waits: [u64; 2],
    controller: impl Fn(u16) -> StrategyConfig,
) {
    for types in [1, 10, 100] {
        let (config, mut strategy) = controlled(controller(types), types);
        let times = warm(&config);
        let (mut rng, mut n, mut record) = (Rng::new(1), 0_u64, Vec::new());
        let mut step = |strategy: &mut Strategy, ticks: bool| {
            n += 1;
            let now = Instant::from_nanos(n * 50_000);
            let queue_wait = Duration::from_millis(waits[usize::from(n.is_multiple_of(2))]);
            let view = View {
                now,
                parallelism: PARALLELISM,
                slots_in_use: PARALLELISM,
                queue_length: 40,
                queue_work: 40_000,
                work: 1_000,
                queue_wait,
                rival_wait: Duration::ZERO,
                service_times: &times,
            };
            let kind = TypeId((rng.next_u64() % u64::from(types)) as u16);
            let request = Attributes {
                class: ClassId((rng.next_u64() % 2) as u8),
                ..Attributes::of(kind)
            };
            let verdict = black_box(strategy.decide(&request, black_box(&view), &mut rng));
            if verdict == Ok(()) {
                let served = Served {
                    kind,
                    class: request.class,
                    age: Duration::ZERO,
                    queue_wait,
                    processing: queue_wait,
                    slot: queue_wait,
                    weight: 1,
                    work: 1_000,
                };
                strategy.completed(&served, now);
            }
            // One tick every 10 ms.
            if !(ticks || n.is_multiple_of(200)) {
                return;
            }
            if let Some(controlled) = strategy.base.controlled_mut()
                && controlled.sync(now, &mut record)
            {
                controlled.stored();
            }
        };
        // Run until requests are refused.
        (0..2_000_000).for_each(|_| step(&mut strategy, false));
        let mut group = c.benchmark_group(name);
        group.bench_function(BenchmarkId::new("decide", types), |b| {
            b.iter(|| step(&mut strategy, false));
        });
        group.bench_function(BenchmarkId::new("decide+tick", types), |b| {
            b.iter(|| step(&mut strategy, true));
        });
        group.finish();
    }
}

/// A measurement, with its share of a tick's exchange of 1,000 of them.
fn record(c: &mut Criterion) {
    let mut group = c.benchmark_group("record+share");
    for types in SIZES {
        let config = config(types, None);
        let (mut times, host) = (warm(&config), MemoryHost::new());
        let (mut rng, mut n) = (Rng::new(1), 0_u64);
        group.bench_function(BenchmarkId::from_parameter(types), |b| {
            b.iter(|| {
                n += 1;
                let kind = TypeId((rng.next_u64() % u64::from(types)) as u16);
                times.record(
                    kind,
                    Duration::from_nanos(1_000_000 + (rng.next_u64() & 0x0fff_ffff)),
                    1,
                );
                if n.is_multiple_of(1_000) {
                    let now = Instant::from_nanos(n * 100_000);
                    black_box(times.sync(now, &host, "bench")).unwrap_or_default();
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decide, controllers, record);
criterion_main!(benches);
