//! Comparison of the sliding window with its specification, and with a list of samples and their
//! times.

use proptest::prelude::*;

use super::*;
use crate::host::Shared;
use crate::memory::MemoryHost;

const PREFIX: &str = "headgate/times/default/search";
const KEY: &str = "headgate/times/default/search/type/slow";

fn blob(name: &str) -> String {
    crate::shared::key(name, <Record as crate::shared::Record>::SCHEMA)
}
const SLOW: TypeId = TypeId(0);
const STEPS: u32 = 10;
const STEP_MS: u64 = 100;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn at(n: u64) -> Instant {
    Instant::default() + ms(n)
}

fn settings(steps: u32, min_samples: u32) -> Settings {
    let kind = |name: &str| TypeSettings {
        name: name.into(),
        objectives: vec![Objective {
            percentile: 50.0,
            response_time: ms(60),
        }],
    };
    Settings {
        interval: ms(1000),
        steps,
        min_samples,
        types: vec![kind("slow"), kind("default")],
    }
}

fn sliding(min_samples: u32) -> ServiceTimes {
    ServiceTimes::new(settings(STEPS, min_samples))
}

fn window(min_samples: u32) -> Window {
    Window {
        step: ms(STEP_MS),
        steps: STEPS,
        min_samples,
    }
}

/// Returns the shared record of `slow`.
fn record(host: &MemoryHost) -> Record {
    crate::shared::load(host, KEY).unwrap()
}

#[test]
fn estimates_follow_a_change_step_by_step_and_forget_after_an_interval() {
    let medians = |steps| {
        let host = MemoryHost::new();
        let mut times = ServiceTimes::new(settings(steps, 50));
        // There are 2,000 requests/s, of 10 ms until 3.05 s and of 30 ms after that.
        let mut medians = Vec::new();
        for tick in 0..600 {
            let processing = if tick * 10 < 3_050 { 10 } else { 30 };
            (0..20).for_each(|_| times.record(SLOW, ms(processing), 1));
            times.sync(at(tick * 10), &host, PREFIX).unwrap();
            medians.push((tick * 10, times.mean(SLOW)));
        }
        let first = |wanted: &dyn Fn(Duration) -> bool| {
            let found = medians.iter().find(|(_, mean)| mean.is_some_and(wanted));
            found.unwrap().0
        };
        (first(&|mean| mean > ms(11)), first(&|mean| mean >= ms(30)))
    };
    // The first time is that from which more than a tenth of the window is after the change. From
    // the second time on, all of the window is after the change.
    let (sliding, dual) = (medians(STEPS), medians(1));
    assert_eq!(dual, (4_000, 5_000));
    assert_eq!(sliding, (3_200, 4_100));
}

#[test]
fn a_rare_type_is_read_from_as_far_back_as_it_needs() {
    let host = MemoryHost::new();
    let mut times = sliding(50);
    // There are 20 requests/s, so 50 requests take 2.5 s. Requests take 10 ms, and from 10 s on 20
    // ms.
    for tick in 0..400 {
        let processing = if tick < 200 { 10 } else { 20 };
        times.record(SLOW, ms(processing), 1);
        times.sync(at(tick * 50), &host, PREFIX).unwrap();
        let readable = record(&host).readable().count();
        match tick {
            0..49 => assert!(!times.estimate(SLOW).is_own()),
            // The window has the least number of samples, plus less than a step. (The first 50
            // samples stay until there are 50 others.)
            120.. => assert!((50..=55).contains(&readable), "{readable} at {tick}"),
            _ => {}
        }
        if tick == 225 {
            let mean = times.mean(SLOW).unwrap();
            assert!((ms(13)..ms(17)).contains(&mean), "{mean:?} half way");
        }
    }
    assert_eq!(times.mean(SLOW), Some(ms(20)));
}

#[test]
fn silence_retains_what_is_needed_and_then_costs_nothing() {
    let host = MemoryHost::new();
    let mut times = sliding(50);
    for tick in 0..100 {
        (0..10).for_each(|_| times.record(SLOW, ms(10), 1));
        times.sync(at(tick * 10), &host, PREFIX).unwrap();
    }
    for tick in 100..400 {
        times.sync(at(tick * 10), &host, PREFIX).unwrap();
    }
    // A step has 100 samples, so the last step is enough.
    assert_eq!(record(&host).readable().count(), 100);
    assert_eq!(times.mean(SLOW), Some(ms(10)));
    let before = host.calls();
    for tick in 400..500 {
        times.sync(at(tick * 10), &host, PREFIX).unwrap();
    }
    assert_eq!(host.calls() - before, 100, "one call a sync");
}

#[test]
fn a_window_that_condemns_its_type_gives_way_to_enough_new_samples_at_once() {
    let host = MemoryHost::new();
    let mut times = sliding(50);
    // The objective of 60 ms at p50 is missed.
    for tick in 0..100 {
        (0..10).for_each(|_| times.record(SLOW, ms(100), 1));
        times.sync(at(tick * 10), &host, PREFIX).unwrap();
    }
    assert!(times.estimate(SLOW).condemned);
    // Few requests are admitted, over several steps. Old samples must not outweigh them.
    for tick in 0..5 {
        (0..10).for_each(|_| times.record(SLOW, ms(7), 1));
        times.sync(at(1000 + tick * 120), &host, PREFIX).unwrap();
        assert_eq!(times.estimate(SLOW).condemned, tick < 4, "{tick}");
    }
    assert_eq!(times.mean(SLOW), Some(ms(7)));
}

#[test]
fn a_worker_that_comes_late_reads_the_same() {
    let host = MemoryHost::new();
    let mut early = sliding(50);
    for tick in 0..150 {
        (0..10).for_each(|n| early.record(SLOW, ms(tick + n), 1));
        early.sync(at(tick * 10), &host, PREFIX).unwrap();
    }
    let mut late = sliding(50);
    late.sync(at(1_490), &host, PREFIX).unwrap();
    assert_eq!(late.estimate(SLOW), early.estimate(SLOW));
    assert!(late.estimate(SLOW).is_own());
    // The first worker to sync ends the next step for both.
    late.sync(at(1_500), &host, PREFIX).unwrap();
    let generation = record(&host).generation;
    early.sync(at(1_501), &host, PREFIX).unwrap();
    assert_eq!(record(&host).generation, generation);
    assert_eq!(late.estimate(SLOW), early.estimate(SLOW));
}

#[test]
fn a_window_of_another_kind_reads_on_and_takes_its_own_shape_within_an_interval() {
    for (from, to) in [(1, STEPS), (STEPS, 1), (STEPS, 2), (2, 50)] {
        let host = MemoryHost::new();
        let mut before = ServiceTimes::new(settings(from, 50));
        let mut now = 0;
        let mut run = |times: &mut ServiceTimes, processing, ticks| {
            for _ in 0..ticks {
                (0..10).for_each(|_| times.record(SLOW, ms(processing), 1));
                times.sync(at(now), &host, PREFIX).unwrap();
                now += 10;
            }
        };
        run(&mut before, 10, 250);
        before.flush(at(2_500), &host, PREFIX).unwrap();
        let learned = before.mean(SLOW);
        let mut after = ServiceTimes::new(settings(to, 50));
        run(&mut after, 20, 1);
        assert!(after.estimate(SLOW).is_own(), "{from} to {to}");
        assert_eq!(after.mean(SLOW), learned, "{from} to {to}");
        run(&mut after, 20, 260);
        assert_eq!(after.mean(SLOW), Some(ms(20)), "{from} to {to}");
        let (bytes, _) = host.load(&blob(KEY)).unwrap().unwrap();
        let histograms = 1 + to as usize;
        assert!(bytes.len() < 40 * histograms + 40, "{} bytes", bytes.len());
    }
}

#[test]
fn a_truncated_or_corrupt_window_causes_no_panic() {
    let host = MemoryHost::new();
    let mut times = sliding(50);
    for tick in 0..100 {
        (0..10).for_each(|n| times.record(SLOW, ms(n), 1));
        times.sync(at(tick * 10), &host, PREFIX).unwrap();
    }
    let (good, _) = host.load(&blob(KEY)).unwrap().unwrap();
    let cuts = (0..good.len()).map(|n| good[..n].to_vec());
    let flips = (0..good.len()).map(|n| {
        let mut bad = good.clone();
        bad[n] ^= 0xff;
        bad
    });
    for bad in cuts.chain(flips) {
        let version = host.load(&blob(KEY)).unwrap().map(|(_, version)| version);
        host.store(&blob(KEY), &bad, version).unwrap();
        let mut reader = sliding(50);
        for tick in 0..30 {
            (0..60).for_each(|_| reader.record(SLOW, ms(9), 1));
            reader.flush(at(1_000 + tick * 100), &host, PREFIX).unwrap();
        }
        assert_eq!(reader.mean(SLOW), Some(ms(9)));
    }
}

/// An event on one of two workers: the time since the event before, ms, the worker, and the number
/// of samples.
type Happening = (u64, usize, u32);

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    // Most gaps are shorter than a step. Some last several steps, or more than an interval.
    let gap = prop_oneof![8 => 0_u64..40, 2 => 40_u64..400, 1 => 400_u64..4_000];
    prop::collection::vec((gap, 0_usize..2, 0_u32..4), 1..250)
}

/// Returns a duration for each step of time. The durations differ by more than a histogram
/// resolves, and are within the objective.
fn mark(step: u64) -> Duration {
    Duration::from_secs_f64(1e-5 * 1.02_f64.powf((step % 400) as f64))
}

proptest! {
    /// If one sample is enough, the window has each sample of the last interval once, and nothing
    /// older.
    #[test]
    fn holds_the_samples_of_the_last_interval(happenings in happenings()) {
        let host = MemoryHost::new();
        let mut workers = [sliding(1), sliding(1)];
        let mut samples: Vec<u64> = Vec::new();
        let mut now = 0;
        for (gap, worker, n) in happenings {
            now += gap;
            let step = now / STEP_MS;
            (0..n).for_each(|_| workers[worker].record(SLOW, mark(step), 1));
            samples.extend((0..n).map(|_| step));
            // Every worker syncs.
            for worker in &mut workers {
                worker.flush(at(now), &host, PREFIX).unwrap();
            }
            if samples.is_empty() {
                continue;
            }
            let found = record(&host).readable();
            let of = |steps: std::ops::Range<u64>| {
                let mut histogram = Histogram::default();
                let inside = samples.iter().filter(|s| steps.contains(s));
                inside.for_each(|s| histogram.record(mark(*s)));
                histogram
            };
            let begin = step.saturating_sub(u64::from(STEPS));
            // The window has all whole steps. Of the current step, it has the samples after a
            // pause.
            let (whole, all) = (of(begin..step), of(begin..step + 1));
            prop_assert!(found.count() <= all.count() || whole.is_empty());
            if whole.is_empty() {
                prop_assert!(!found.is_empty(), "retained");
            } else {
                let early = samples.iter().filter(|s| **s == step).count() as u64;
                let early = (0..=early).find(|n| {
                    let mut expected = whole.clone();
                    (0..*n).for_each(|_| expected.record(mark(step)));
                    expected == found
                });
                prop_assert!(early.is_some(), "{found:?} and {whole:?}");
            }
        }
    }

    /// For any minimum of samples, the window is bounded, keeps enough samples once it had enough,
    /// and counts each sample once.
    #[test]
    fn is_bounded_and_never_has_too_little(
        happenings in happenings(),
        min_samples in 1_u32..40,
    ) {
        let host = MemoryHost::new();
        let mut workers = [sliding(min_samples), sliding(min_samples)];
        let (mut now, mut added, mut ready) = (0, 0, false);
        for (gap, worker, n) in happenings {
            now += gap;
            (0..n).for_each(|_| workers[worker].record(SLOW, ms(5), 1));
            for worker in &mut workers {
                worker.flush(at(now), &host, PREFIX).unwrap();
            }
            added += u64::from(n);
            if added == 0 {
                continue;
            }
            let record = record(&host);
            let readable = record.readable().count();
            prop_assert!(record.steps() <= STEPS as usize + 1);
            prop_assert!(readable + record.populating.count() <= added);
            prop_assert!(readable == 0 || readable >= u64::from(min_samples));
            prop_assert!(readable > 0 || !ready, "retained");
            ready = readable > 0;
            prop_assert_eq!(ready, added >= u64::from(min_samples));
            let mut again = record;
            prop_assert!(!again.advance(at(now), &window(min_samples), None), "once is enough");
        }
    }
}

#[test]
fn of_a_thousand_types_that_never_rest_none_is_forgotten() {
    let host = MemoryHost::new();
    let kind = |i: u16| TypeSettings {
        name: format!("t{i}"),
        objectives: Vec::new(),
    };
    let settings = Settings {
        types: (0..1_000).map(kind).collect(),
        ..settings(STEPS, 1)
    };
    let mut writer = ServiceTimes::new(settings.clone());
    let mut reader = ServiceTimes::new(settings);
    reader.sync(at(0), &host, PREFIX).unwrap();
    // Every step of every type ends, so at every tick something has changed.
    for tick in 1..=80 {
        (0..1_000).for_each(|i| writer.record(TypeId(i), ms(3), 1));
        writer.flush(at(tick * 50), &host, PREFIX).unwrap();
        let before = host.calls();
        reader.sync(at(tick * 50), &host, PREFIX).unwrap();
        assert!(host.calls() - before <= 2 * VISITS as u64 + 3);
    }
    for i in 0..1_000 {
        assert!(reader.estimate(TypeId(i)).is_own(), "type {i}");
    }
}

#[test]
fn a_policys_window_is_a_number_of_steps() {
    let mut stage: crate::config::StageConfig = serde_json::from_value(serde_json::json!({
        "policy": "default/search",
        "parallelism": 1,
        "queue": {"max_length": 10, "timeout_us": 1_000_000},
        "strategy": {"type": "MaxQueueLength"},
        "types": [{"name": "default"}],
    }))
    .unwrap();
    stage.service_times.interval_us = 1_000_000;
    assert_eq!(Settings::from_config(&stage).steps, 1, "dual buffers");
    stage.service_times.window = crate::config::HistogramWindow::Sliding { step_us: 100_000 };
    assert_eq!(Settings::from_config(&stage).steps, STEPS);
}
