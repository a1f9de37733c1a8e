//! Native cost of what the engine does per request: one decision, one measurement; and of what it does
//! per tick: sharing measurements. At 1 to 1,000 types, of which all are active.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use headgate_core::config::{
    Measure, Mode, Objective, QueueConfig, StageConfig, StarvationAvoidance, StrategyConfig,
    TypeConfig,
};
use headgate_core::host::memory::MemoryHost;
use headgate_core::rng::Rng;
use headgate_core::service_times::{ServiceTimes, Settings};
use headgate_core::strategy::{Admission, Strategy, TypeId, View};
use headgate_core::time::Instant;

const SIZES: [u16; 4] = [1, 10, 100, 1_000];
const WINDOW_US: u64 = 1_000_000;
const STEP_US: u64 = 10_000;

fn config(types: u16, starvation_avoidance: Option<StarvationAvoidance>) -> StageConfig {
    let slo = [(50.0, 18_000), (90.0, 50_000)]
        .map(|(percentile, objective_us)| Objective { percentile, objective_us });
    let kind = |name: String| TypeConfig { name, matches: Vec::new(), slo: slo.to_vec() };
    let names = (1..types).map(|i| format!("t{i}")).chain(["default".to_owned()]);
    StageConfig {
        policy: "default/search".into(),
        generation: 1,
        routes: Vec::new(),
        mode: Mode::Enforce,
        parallelism: 100,
        queue: QueueConfig {
            mode: Default::default(),
            discipline: Default::default(),
            max_length: 800,
            timeout_us: 1_000_000,
        },
        measure: Measure::LastByte,
        strategy: StrategyConfig::Bouncer { interval_us: 1_000_000, min_samples: 50 },
        starvation_avoidance,
        types: names.map(kind).collect(),
        excluded: Vec::new(),
    }
}

fn warm(config: &StageConfig) -> ServiceTimes {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(Settings::from_config(config));
    for i in 0..60_u64 {
        for kind in 0..config.types.len() as u16 {
            times.record(TypeId(kind), Duration::from_micros(900 + 20 * i + u64::from(kind) * 7));
        }
        times.flush(Instant::default(), &host, "bench").unwrap_or_default();
    }
    times
}

/// A decision under overload: one request in two misses its objective, 20,000 requests/s.
fn decide(c: &mut Criterion) {
    let (window_us, step_us) = (WINDOW_US, STEP_US);
    let decorators = [
        ("bouncer", None),
        (
            "bouncer+acceptance_allowance",
            Some(StarvationAvoidance::AcceptanceAllowance { allowance: 0.1, window_us, step_us }),
        ),
        (
            "bouncer+helping_the_underserved",
            Some(StarvationAvoidance::HelpingTheUnderserved { alpha: 1.0, window_us, step_us }),
        ),
    ];
    for (name, decorator) in decorators {
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
                        parallelism: 100,
                        slots_in_use: 100,
                        queue_length: 40,
                        queue_wait: Duration::from_millis(if n % 2 == 0 { 5 } else { 30 }),
                        service_times: &times,
                    };
                    let kind = TypeId((rng.next_u64() % u64::from(types)) as u16);
                    black_box(strategy.decide(kind, black_box(&view), &mut rng))
                });
            });
        }
        group.finish();
    }
}

/// A measurement, with its share of the exchange that a tick makes for 1,000 of them.
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
                times.record(kind, Duration::from_nanos(1_000_000 + (rng.next_u64() & 0x0fff_ffff)));
                if n % 1_000 == 0 {
                    let now = Instant::from_nanos(n * 100_000);
                    black_box(times.sync(now, &host, "bench")).unwrap_or_default();
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decide, record);
criterion_main!(benches);
