//! Tests of requests that Envoy, or a filter behind this one, answers itself.

use super::broken::by_value;
use super::*;
use crate::config::Mode;

/// For `secs`, sends 40 requests a second that are answered after 20 ms, which is 0.8 slots. Beside
/// them, sends `local` × 100 requests a second of the same type that end at once without the
/// backend.
fn serve(process: &mut Process, secs: u64, local: usize) {
    let mut running = None;
    for n in 0..secs * 100 {
        if n % 5 == 2 || n % 5 == 4 {
            running
                .into_iter()
                .for_each(|stream| process.finish(stream, Outcome::Completed));
        }
        if n % 5 == 0 || n % 5 == 2 {
            running = Some(process.arrive(0, "/"));
        }
        for _ in 0..local {
            let stream = process.arrive(0, "/");
            process.finish(stream, Outcome::Unmeasured);
        }
        process.run_for(Duration::from_millis(10));
    }
}

#[test]
fn requests_that_are_answered_at_once_ask_for_no_slots() {
    for mode in [Mode::Enforce, Mode::DryRun] {
        let mut config = by_value(2);
        config.stages[0].mode = mode;
        let mut process = Process::new(1, &config);
        serve(&mut process, 3, 0);
        serve(&mut process, 1, 3);
        // In the first second, a dry run's model includes the first of these requests.
        let count = |process: &Process| process.gauge("type.default.rq_rejected");
        let before = (count(&process), process.gauge("offered_work_us"));
        serve(&mut process, 8, 3);
        assert_eq!(count(&process) - before.0, 0, "{mode:?}");
        assert_eq!(process.refused, [], "{mode:?}");
        let work = process.gauge("offered_work_us") - before.1;
        let expected = 8 * 40 * 20_000;
        let range = expected * 3 / 4..expected * 5 / 4;
        assert!(range.contains(&work), "{mode:?}: {work} µs");
        process.assert_nothing_booked();
    }
}

#[test]
fn requests_that_are_answered_at_once_are_no_utilization() {
    let config = config(2, |stage| {
        stage.strategy = StrategyConfig::AcceptFraction(AcceptFractionConfig {
            max_utilization: 0.8,
            units: None,
            window_us: 10_000_000,
            step_us: 1_000_000,
        });
    });
    let mut process = Process::new(1, &config);
    for local in [0, 3, 0] {
        serve(&mut process, 8, local);
        assert_eq!(process.refused, [], "{local}");
    }
    process.assert_nothing_booked();
}

/// A rate limit behind the filter lets 20 of 600 requests/s of the more valuable type through. They
/// need 0.2 of two slots, and 60 requests/s of the other type need 1.2.
#[test]
fn a_type_that_exceeds_a_rate_limit_cuts_off_no_other_type() {
    let mut process = Process::new(1, &by_value(2));
    // The streams of the valuable type, and whether each passes the rate limit.
    let mut passes: BTreeMap<u32, bool> = BTreeMap::new();
    let mut running: Vec<(u64, u32)> = Vec::new();
    for n in 0..1_000_u64 {
        for (_, stream) in running.extract_if(.., |(end, _)| *end <= n) {
            process.finish(stream, Outcome::Completed);
        }
        if matches!(n % 5, 0 | 2 | 4) {
            process.arrive(0, "/slow");
        }
        // The flood begins after three seconds.
        for at in 0..if n < 300 { 1 } else { 6 } {
            let passed = n % 5 == 0 && at == 0;
            if passed || n >= 300 {
                passes.insert(process.arrive(0, "/"), passed);
            }
        }
        // A request that ends at once may start another one.
        while let Some(stream) = process.started.pop() {
            match passes.get(&stream) {
                Some(false) => process.finish(stream, Outcome::Unmeasured),
                Some(true) => running.push((n + 1, stream)),
                None => running.push((n + 2, stream)),
            }
        }
        process.run_for(Duration::from_millis(10));
    }
    let of_value = |(_, reason): &&(u32, Reason)| *reason == Reason::Value;
    assert_eq!(process.refused.iter().filter(of_value).count(), 0);
}
