use std::sync::Arc;

use super::log::CAPACITY;
use super::*;
use crate::host::Shared;
use crate::memory::{Fault, MemoryHost};

const PREFIX: &str = "headgate/times/default/search";
const FAST: TypeId = TypeId(0);
const SLOW: TypeId = TypeId(1);
const DEFAULT: TypeId = TypeId(2);

fn blob(name: &str) -> String {
    crate::shared::key(name, <Record as crate::shared::Record>::SCHEMA)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn at(n: u64) -> Instant {
    Instant::from_nanos(0) + ms(n)
}

fn kind(name: &str, objectives: &[(f64, u64)]) -> TypeSettings {
    let objective = |&(percentile, limit): &(f64, u64)| Objective {
        percentile,
        response_time: ms(limit),
    };
    TypeSettings {
        name: name.into(),
        objectives: objectives.iter().map(objective).collect(),
    }
}

fn settings() -> Settings {
    Settings {
        interval: ms(1000),
        steps: 1,
        min_samples: 50,
        types: vec![
            kind("fast", &[(50.0, 10), (90.0, 90)]),
            kind("slow", &[(50.0, 60), (90.0, 270)]),
            kind("default", &[(50.0, 30), (90.0, 400)]),
        ],
    }
}

fn window(steps: u32, min_samples: u32) -> Window {
    Window {
        step: ms(1000) / steps,
        steps,
        min_samples,
    }
}

fn assert_close(found: Duration, expected: Duration) {
    let error = found.abs_diff(expected);
    assert!(error * 100 <= expected, "{found:?}, expected {expected:?}");
}

/// Records processing times of 1, 2, …, `n` ms.
fn record_ramp(times: &mut ServiceTimes, kind: TypeId, n: u64) {
    (1..=n).for_each(|i| times.record(kind, ms(i), 1));
}

#[test]
fn no_measurements_give_no_estimate() {
    let mut times = ServiceTimes::new(settings());
    assert!(!times.sync(at(0), &MemoryHost::new(), PREFIX).unwrap());
    let estimate = times.estimate(FAST);
    assert_eq!(estimate.source, Source::None);
    assert!(estimate.quantiles.is_empty());
    assert_eq!((times.mean(FAST), times.mean_of_all()), (None, None));
    assert_eq!(times.mean_residual(), Duration::ZERO);
}

#[test]
fn a_cold_type_is_read_as_soon_as_it_has_enough_samples() {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(settings());
    times.sync(at(100), &host, PREFIX).unwrap();
    record_ramp(&mut times, FAST, 49);
    assert!(!times.sync(at(110), &host, PREFIX).unwrap());
    assert_eq!(times.estimate(FAST).source, Source::None);
    times.record(FAST, ms(50), 1);
    assert!(
        times.sync(at(120), &host, PREFIX).unwrap(),
        "in the middle of an interval"
    );
    let estimate = times.estimate(FAST);
    assert!(estimate.is_own());
    assert_close(estimate.quantiles[0], ms(25));
    assert_close(estimate.quantiles[1], ms(45));
    assert_eq!(times.mean(FAST), Some(Duration::from_micros(25_500)));
}

#[test]
fn a_cold_type_uses_the_general_histogram_and_the_objectives_of_default() {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(settings());
    record_ramp(&mut times, FAST, 100);
    times.sync(at(0), &host, PREFIX).unwrap();
    let cold = times.estimate(SLOW);
    assert_eq!(cold.source, Source::General);
    assert_eq!(cold.objectives[0].response_time, ms(30));
    assert_close(cold.quantiles[1], ms(90));
    assert_eq!(times.mean(SLOW), times.mean(FAST));
    assert_eq!(times.mean_of_all(), times.mean(FAST));
    assert_eq!(
        times.estimate(TypeId(999)),
        times.estimate(DEFAULT),
        "unknown counts as default"
    );
}

#[test]
fn histograms_swap_at_the_end_of_an_interval_only() {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(settings());
    (0..100).for_each(|_| times.record(SLOW, ms(10), 1));
    times.sync(at(0), &host, PREFIX).unwrap();
    (0..100).for_each(|_| times.record(SLOW, ms(20), 1));
    times.sync(at(500), &host, PREFIX).unwrap();
    times.sync(at(999), &host, PREFIX).unwrap();
    assert_eq!(times.mean(SLOW), Some(ms(10)));
    // No sample arrives after the interval's end. The visit that is due at that time swaps the
    // histograms.
    assert!(times.sync(at(1000), &host, PREFIX).unwrap());
    assert_eq!(times.mean(SLOW), Some(ms(20)));
}

#[test]
fn a_lull_retains_the_histogram_and_goes_on_accumulating() {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(settings());
    (0..100).for_each(|_| times.record(SLOW, ms(10), 1));
    times.sync(at(0), &host, PREFIX).unwrap();
    for second in 1..=4 {
        (0..10).for_each(|_| times.record(SLOW, ms(20), 1));
        times.sync(at(second * 1000), &host, PREFIX).unwrap();
        assert_eq!(
            times.mean(SLOW),
            Some(ms(10)),
            "10 samples a second are too few"
        );
        let mut late = ServiceTimes::new(settings());
        late.sync(at(second * 1000), &host, PREFIX).unwrap();
        assert_eq!(late.mean(SLOW), Some(ms(10)), "it is in the record, too");
    }
    (0..10).for_each(|_| times.record(SLOW, ms(20), 1));
    times.sync(at(5000), &host, PREFIX).unwrap();
    assert_eq!(
        times.mean(SLOW),
        Some(ms(20)),
        "50 over five seconds are enough"
    );
}

#[test]
fn the_least_time_of_a_type_is_that_of_its_newest_samples_if_they_are_faster() {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(settings());
    let slow = Attributes::of(SLOW);
    (0..100).for_each(|_| times.record(SLOW, ms(20), 1));
    times.sync(at(0), &host, PREFIX).unwrap();
    assert_close(times.at_least(&slow), ms(20));
    times.record(SLOW, ms(2), 1);
    times.sync(at(500), &host, PREFIX).unwrap();
    assert_eq!(times.mean(SLOW), Some(ms(20)), "the interval isn't over");
    assert_close(times.at_least(&slow), ms(2));
}

#[test]
fn workers_learn_from_each_other() {
    let host = MemoryHost::new();
    let mut a = ServiceTimes::new(settings());
    let mut b = ServiceTimes::new(settings());
    a.sync(at(0), &host, PREFIX).unwrap();
    b.sync(at(0), &host, PREFIX).unwrap();
    (0..30).for_each(|_| a.record(SLOW, ms(10), 1));
    (0..30).for_each(|_| b.record(SLOW, ms(30), 1));
    assert!(!a.sync(at(10), &host, PREFIX).unwrap());
    assert!(b.sync(at(10), &host, PREFIX).unwrap());
    assert!(a.sync(at(20), &host, PREFIX).unwrap());
    for worker in [&a, &b] {
        assert_eq!(worker.mean(SLOW), Some(ms(20)));
        assert_eq!(worker.mean_of_all(), Some(ms(20)));
    }
}

#[test]
fn threads_that_share_at_the_same_time_lose_nothing() {
    let host = Arc::new(MemoryHost::new());
    let settings = Settings {
        min_samples: 1,
        ..settings()
    };
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (host, settings) = (Arc::clone(&host), settings.clone());
            std::thread::spawn(move || {
                let mut times = ServiceTimes::new(settings);
                for tick in 0..200 {
                    (0..5).for_each(|_| times.record(SLOW, ms(4), 1));
                    times.sync(at(tick), &*host, PREFIX).unwrap();
                }
                while !times.log.is_empty() {
                    times.flush(at(200), &*host, PREFIX).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    for key in ["type/slow", "general"] {
        let (name, window) = (format!("{PREFIX}/{key}"), window(1, 1));
        let visited = Record::visit(&*host, &name, at(200), &window, None, None);
        let (record, _) = visited.unwrap();
        assert_eq!(
            record.readable().count() + record.populating.count(),
            4 * 200 * 5,
            "{key}"
        );
    }
}

#[test]
fn an_edited_policy_finds_what_was_learned_under_the_types_names() {
    let host = MemoryHost::new();
    let mut before = ServiceTimes::new(settings());
    record_ramp(&mut before, FAST, 100);
    (0..100).for_each(|_| before.record(SLOW, ms(200), 1));
    before.flush(at(0), &host, PREFIX).unwrap();

    // The edit puts a type in front, swaps two types, and changes percentiles.
    let edited = Settings {
        types: vec![
            kind("new", &[(50.0, 5)]),
            kind("slow", &[(75.0, 60)]),
            kind("fast", &[(25.0, 10), (50.0, 20), (99.0, 90)]),
            kind("default", &[(95.0, 30)]),
        ],
        interval: ms(100),
        steps: 1,
        min_samples: 500,
    };
    let mut after = ServiceTimes::new(edited);
    assert!(after.sync(at(10), &host, PREFIX).unwrap());
    assert_eq!(after.estimate(TypeId(0)).source, Source::General);
    assert_close(after.estimate(TypeId(1)).quantiles[0], ms(200));
    let fast = after.estimate(TypeId(2));
    assert!(fast.is_own());
    let expected = [25, 50, 99].map(ms);
    fast.quantiles
        .iter()
        .zip(expected)
        .for_each(|(&q, e)| assert_close(q, e));
}

#[test]
fn a_stage_of_another_prefix_shares_nothing() {
    let host = MemoryHost::new();
    let mut one = ServiceTimes::new(settings());
    record_ramp(&mut one, FAST, 100);
    one.flush(at(0), &host, PREFIX).unwrap();
    let mut other = ServiceTimes::new(settings());
    other
        .sync(at(0), &host, "headgate/times/default/other")
        .unwrap();
    assert_eq!(other.estimate(FAST).source, Source::None);
}

#[test]
fn foreign_and_corrupt_blobs_restart_learning() {
    let garbage: [&[u8]; 5] = [b"", b"H", b"HT\x02\x01\x01", b"HT\x01\xff\xff", &[0xff; 64]];
    for bytes in garbage {
        let host = MemoryHost::new();
        for key in [
            "type/fast",
            "type/slow",
            "type/default",
            "general",
            "change",
        ] {
            host.store(&blob(&format!("{PREFIX}/{key}")), bytes, None)
                .unwrap();
        }
        let mut times = ServiceTimes::new(settings());
        times.sync(at(0), &host, PREFIX).unwrap();
        assert_eq!(times.estimate(FAST).source, Source::None);
        record_ramp(&mut times, FAST, 100);
        times.sync(at(10), &host, PREFIX).unwrap();
        assert!(times.estimate(FAST).is_own());
        let mut other = ServiceTimes::new(settings());
        other.sync(at(10), &host, PREFIX).unwrap();
        assert!(other.estimate(FAST).is_own());
    }
}

#[test]
fn a_truncated_or_corrupt_record_causes_no_panic() {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(settings());
    record_ramp(&mut times, FAST, 60);
    times.flush(at(0), &host, PREFIX).unwrap();
    let key = format!("{PREFIX}/type/fast");
    let (good, _) = host.load(&blob(&key)).unwrap().unwrap();
    let cuts = (0..good.len()).map(|n| good[..n].to_vec());
    let flips = (0..good.len()).map(|n| {
        let mut bad = good.clone();
        bad[n] ^= 0xff;
        bad
    });
    for bad in cuts.chain(flips) {
        let version = host.load(&blob(&key)).unwrap().map(|(_, version)| version);
        host.store(&blob(&key), &bad, version).unwrap();
        let mut reader = ServiceTimes::new(settings());
        record_ramp(&mut reader, FAST, 60);
        reader.flush(at(2000), &host, PREFIX).unwrap();
        assert!(reader.estimate(FAST).is_own());
    }
}

#[test]
fn a_host_that_fails_loses_no_sample() {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(settings());
    times.sync(at(0), &host, PREFIX).unwrap();
    record_ramp(&mut times, FAST, 30);
    record_ramp(&mut times, SLOW, 30);
    for n in 0..6 {
        host.inject(Fault::StoreFails, 1);
        assert!(times.sync(at(10 + n), &host, PREFIX).is_err());
        host.inject(Fault::StoreFails, 0);
        host.inject(Fault::LoadFails, 1);
        assert!(times.sync(at(20 + n), &host, PREFIX).is_err());
    }
    host.inject(Fault::StoreConflicts, 20);
    times.sync(at(30), &host, PREFIX).unwrap();
    while !times.log.is_empty() {
        times.sync(at(40), &host, PREFIX).unwrap();
    }
    times.sync(at(50), &host, PREFIX).unwrap();
    for (key, expected) in [("general", 60), ("type/fast", 30), ("type/slow", 30)] {
        let (name, window) = (format!("{PREFIX}/{key}"), window(1, 50));
        let visited = Record::visit(&host, &name, at(50), &window, None, None);
        let (record, _) = visited.unwrap();
        assert_eq!(
            record.readable().count() + record.populating.count(),
            expected,
            "{key}"
        );
    }
}

#[test]
fn the_log_is_bounded_and_counts_what_it_leaves_out() {
    let mut times = ServiceTimes::new(settings());
    (0..CAPACITY as u64 + 7).for_each(|_| times.record(FAST, ms(1), 1));
    let samples = &times.log.samples;
    assert_eq!((samples.len(), samples.capacity()), (CAPACITY, CAPACITY));
    let host = MemoryHost::new();
    times.flush(at(0), &host, PREFIX).unwrap();
    let (name, window) = (format!("{PREFIX}/general"), window(1, 50));
    let (record, _) = Record::visit(&host, &name, at(0), &window, None, None).unwrap();
    let counted = record.readable().count() + record.populating.count();
    assert_eq!(counted, CAPACITY as u64 + 7);
    assert_eq!(times.mean(FAST), Some(ms(1)));
}

#[test]
fn an_idle_sync_is_one_host_call() {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(settings());
    record_ramp(&mut times, FAST, 100);
    for tick in 0..10 {
        times.sync(at(5000 + tick), &host, PREFIX).unwrap();
    }
    let before = host.calls();
    for tick in 0..100 {
        times.sync(at(5010 + tick), &host, PREFIX).unwrap();
    }
    assert_eq!(host.calls() - before, 100);
}

#[test]
fn a_thousand_types_are_shared_in_turns_and_none_is_forgotten() {
    let host = MemoryHost::new();
    let many = |i: u16| kind(&format!("t{i}"), &[(50.0, 10)]);
    let types = (0..1_000)
        .map(many)
        .chain([kind("default", &[(50.0, 10)])])
        .collect();
    let settings = Settings {
        interval: ms(1000),
        steps: 1,
        min_samples: 1,
        types,
    };
    let mut writer = ServiceTimes::new(settings.clone());
    let mut reader = ServiceTimes::new(settings);
    writer.sync(at(0), &host, PREFIX).unwrap();
    reader.sync(at(0), &host, PREFIX).unwrap();
    // At every tick all types get another sample, so the types with low numbers always have some.
    for tick in 1..=40 {
        (0..1_000).for_each(|i| writer.record(TypeId(i), ms(3), 1));
        for times in [&mut writer, &mut reader] {
            let before = host.calls();
            times.sync(at(tick * 10), &host, PREFIX).unwrap();
            let most = 2 * (2 * VISITS as u64 + 3);
            assert!(
                host.calls() - before <= most,
                "{} calls in one sync",
                host.calls() - before
            );
        }
        if tick < 8 {
            writer.log.samples.truncate(2_000);
            writer.log.in_general = writer.log.in_general.min(2_000);
        }
    }
    for i in 0..1_000 {
        assert!(writer.estimate(TypeId(i)).is_own(), "type {i}");
        assert!(reader.estimate(TypeId(i)).is_own(), "type {i}");
    }
}

#[test]
fn a_clock_that_steps_back_stops_nothing() {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(settings());
    (0..100).for_each(|_| times.record(SLOW, ms(10), 1));
    times.sync(at(3_600_000), &host, PREFIX).unwrap();
    (0..100).for_each(|_| times.record(SLOW, ms(20), 1));
    times.sync(at(1_000), &host, PREFIX).unwrap();
    assert_eq!(times.mean(SLOW), Some(ms(20)));
}

#[test]
fn a_histogram_that_condemns_its_type_is_replaced_without_delay() {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(settings());
    (0..100).for_each(|_| times.record(FAST, ms(5), 1));
    // The objective of `slow` is 60 ms at p50.
    (0..100).for_each(|_| times.record(SLOW, ms(100), 1));
    times.sync(at(0), &host, PREFIX).unwrap();
    assert!(times.estimate(SLOW).condemned && times.estimate(SLOW).is_own());
    assert!(!times.estimate(FAST).condemned);
    for kind in [FAST, SLOW] {
        (0..50).for_each(|_| times.record(kind, ms(7), 1));
    }
    assert!(times.sync(at(10), &host, PREFIX).unwrap());
    assert!(!times.estimate(SLOW).condemned);
    assert_eq!(times.mean(SLOW), Some(ms(7)));
    assert_eq!(
        times.mean(FAST),
        Some(ms(5)),
        "waits for the interval's end"
    );
}

#[test]
fn a_worker_that_is_late_swaps_nothing_out_early() {
    let host = MemoryHost::new();
    let mut early = ServiceTimes::new(settings());
    let mut late = ServiceTimes::new(settings());
    for times in [&mut early, &mut late] {
        times.sync(at(0), &host, PREFIX).unwrap();
    }
    (0..60).for_each(|_| early.record(SLOW, ms(10), 1));
    (0..60).for_each(|_| late.record(SLOW, ms(30), 1));
    early.sync(at(10), &host, PREFIX).unwrap();
    late.sync(at(20), &host, PREFIX).unwrap();
    assert_eq!(
        late.mean(SLOW),
        Some(ms(10)),
        "it didn't know of the first swap"
    );
}

#[test]
fn the_general_histogram_weighs_types_by_their_traffic_and_not_by_their_samples() {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(settings());
    // Of 10,000 requests/s of 1 ms, 800 are measured. All of 200 requests/s of 20 ms are measured.
    let mut sampling = 0;
    for n in 0..10_000 {
        sampling += 1;
        if n % 100 < 8 {
            times.record(FAST, ms(1), sampling);
            sampling = 0;
        }
        if n % 50 == 0 {
            times.record(SLOW, ms(20), 1);
        }
        if n % 100 == 99 {
            times.sync(at(n / 10), &host, PREFIX).unwrap();
        }
    }
    times.record(FAST, ms(1), 1 + sampling);
    times.sync(at(1_000), &host, PREFIX).unwrap();
    let mean = times.mean_of_all().unwrap();
    let expected = Duration::from_nanos((10_000 * 1_000_000 + 200 * 20_000_000) / 10_200);
    assert_close(mean, expected);
    // A type without samples is judged by all requests, half of which take 1 ms.
    let cold = times.estimate(DEFAULT);
    assert_eq!(cold.source, Source::General);
    assert_close(cold.quantiles[0], ms(1));
    // The mean residual time is E[x²] / (2 E[x]), with x in ms.
    let residual = (10_000.0 + 200.0 * 400.0) / (2.0 * (10_000.0 + 200.0 * 20.0));
    assert_close(
        times.mean_residual(),
        Duration::from_secs_f64(residual / 1e3),
    );
    // The histogram of `fast` itself is unaffected.
    assert_eq!(times.mean(FAST), Some(ms(1)));
}

#[test]
fn answers_that_found_no_room_in_the_log_still_count_as_traffic() {
    let host = MemoryHost::new();
    let mut times = ServiceTimes::new(settings());
    (0..CAPACITY).for_each(|_| times.record(FAST, ms(1), 1));
    (0..CAPACITY).for_each(|_| times.record(SLOW, ms(11), 1));
    times.flush(at(0), &host, PREFIX).unwrap();
    assert_eq!(times.mean_of_all(), Some(ms(1)), "nothing measured of slow");
    times.record(SLOW, ms(11), 1);
    times.flush(at(1_000), &host, PREFIX).unwrap();
    times.flush(at(2_000), &host, PREFIX).unwrap();
    let key = format!("{PREFIX}/general");
    let record: Record = crate::shared::load(&host, &key).unwrap();
    assert_eq!(record.readable().count(), CAPACITY as u64 + 1);
    assert_eq!(record.readable().mean(), Some(ms(11)));
}
