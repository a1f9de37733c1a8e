//! A decision and a measurement allocate nothing.
//!
//! The data path runs inside a proxy's worker thread, where an allocation costs more than the decision.
//! One test only: the counter is the process's.

// A global allocator can't be written without `unsafe`; this one forwards to the system's.
#![allow(unsafe_code)]
// Of helpers outside of `#[test]` functions, clippy can't tell that they are tests.
#![allow(clippy::unwrap_used)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{
    BOUNCER, DEGRADATION, classes, response_time_controller, stage, starvation_avoidances,
};
use headgate_core::host::memory::MemoryHost;
use headgate_core::request::{Attributes, ClassId, Served, TypeId};
use headgate_core::rng::Rng;
use headgate_core::service_times::{ServiceTimes, Settings};
use headgate_core::strategy::{Admission, Strategy, View};
use headgate_core::time::Instant;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every method passes its arguments on to `System`, whose contract is the same.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's guarantees about `layout` are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` or `realloc` above, hence from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `ptr` came from `System`; the rest is the caller's guarantee.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

const TYPES: u16 = 20;

/// Decides about and measures requests of all types from `begin` to `end` (ms); the allocations of it.
fn run(
    strategy: &mut Strategy,
    times: &mut ServiceTimes,
    rng: &mut Rng,
    host: &MemoryHost,
    record: &mut Vec<f64>,
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
                service_times: times,
            };
            let request = Attributes {
                class: ClassId(ms as u8 % 2),
                ..Attributes::of(kind)
            };
            std::hint::black_box(strategy.decide(&request, &view, rng));
            let processing = Duration::from_micros(500 + 700 * u64::from(kind.0) + ms);
            times.record(kind, processing);
            let served = Served {
                kind,
                class: request.class,
                queue_wait: Duration::from_millis(1),
                processing,
                weight: 1,
                work: 1_000,
            };
            strategy.completed(&served, now);
        }
        strategy.tick(now);
        counted += ALLOCATIONS.load(Ordering::Relaxed) - before;
        // Sharing what was measured may allocate: it is the tick's, once in a tenth of an interval.
        times.sync(now, host, "test").unwrap();
        if let Some(controlled) = strategy.controlled_mut() {
            record.resize(controlled.record_len(), 0.0);
            if ms == 0 {
                controlled.initial(now, record);
            }
            if controlled.sync(now, record) {
                controlled.stored();
            }
        }
    }
    counted
}

#[test]
fn deciding_and_measuring_allocate_nothing() {
    let names: Vec<String> = (0..TYPES).map(|i| format!("t{i}")).collect();
    let names = || names.iter().map(String::as_str);
    let mut configs = Vec::new();
    for decorator in starvation_avoidances() {
        for strategy in [
            BOUNCER,
            response_time_controller(TYPES.into(), 1, None),
            response_time_controller(TYPES.into(), 1, Some(DEGRADATION)),
        ] {
            configs.push(stage(names(), strategy, decorator.clone()));
        }
    }
    let by_class = response_time_controller(TYPES.into(), 2, None);
    configs.push(stage(names(), by_class, None));
    configs[9].classes = classes();
    for config in configs {
        let mut strategy = Strategy::from_config(&config);
        let mut times = ServiceTimes::new(Settings::from_config(&config));
        let (mut rng, host, mut record) = (Rng::new(1), MemoryHost::new(), Vec::new());
        // Warm: the window has filled once.
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
