//! Tests of the work that arrivals offer, over all workers.

use super::*;

/// Sends one request every `gap` to the workers in turn. Each is answered 20 ms after it gets its
/// slot. Returns the number of slots that the offered work keeps busy, and the number of refused
/// requests.
fn offered(gap: Duration) -> (f64, usize) {
    const SERVICE: Duration = Duration::from_millis(20);
    const LASTS: Duration = Duration::from_secs(20);
    // The capacity is 4 slots, which serve 200 requests/s.
    let config = config(4, |stage| stage.queue.max_length = 8);
    let mut process = Process::new(3, &config);
    process.learn_slow();
    let before = (process.gauge("offered_work_us"), process.refused.len());
    let start = process.now;
    let mut ends: BTreeMap<u32, Instant> = BTreeMap::new();
    let (mut next, mut seen) = (start, 0);
    while process.now.since(start) < LASTS {
        process.run_for(Duration::from_millis(10));
        for stream in ends.keys().copied().collect::<Vec<_>>() {
            if ends[&stream] <= process.now {
                ends.remove(&stream);
                process.finish(stream, Outcome::Completed);
            }
        }
        process.settle();
        while next <= process.now {
            process.arrive(process.next_stream as usize % 3, "/slow");
            next = next + gap;
        }
        for stream in process.started.split_off(seen) {
            ends.insert(stream, process.now + SERVICE);
            process.started.push(stream);
        }
        seen = process.started.len();
    }
    process.run_for(Duration::from_millis(10));
    let work = process.gauge("offered_work_us") - before.0;
    let refused = process.refused.len() - before.1;
    (work as f64 / LASTS.as_micros() as f64, refused)
}

#[test]
fn offered_work_is_arrival_rate_times_service_time_whatever_is_refused() {
    let (half, refused) = offered(Duration::from_millis(10));
    assert!((half - 2.0).abs() < 0.05, "{half}");
    assert_eq!(refused, 0);
    let (twice, refused) = offered(Duration::from_micros(2_500));
    assert!((twice - 8.0).abs() < 0.2, "{twice}");
    assert!(refused > 3_000, "{refused}");
}

/// If most requests of a type are refused, the type may have too few answers for its own histogram.
/// The mean of all types doesn't help, because most of the measured requests are cheap.
#[test]
fn a_type_with_few_answers_offers_the_time_that_these_took() {
    let config = config(4, |stage| stage.service_times.min_samples = 50);
    let mut process = Process::new(1, &config);
    for _ in 0..100 {
        let stream = process.arrive(0, "/");
        process.pass_time(Duration::from_millis(1));
        process.finish(stream, Outcome::Completed);
    }
    process.learn_slow();
    let before = process.gauge("offered_work_us");
    let stream = process.arrive(0, "/slow");
    process.run_for(Duration::from_millis(10));
    let work = process.gauge("offered_work_us") - before;
    process.finish(stream, Outcome::Completed);
    assert!((19_000..21_000).contains(&work), "{work} µs");
}

/// A proxy is often ready before its application, whose connections are refused at once.
#[test]
fn immediate_failures_of_types_without_objectives_teach_no_time() {
    for outcome in [Outcome::Failed, Outcome::Abandoned] {
        let mut process = Process::new(1, &config(2, |_| {}));
        for _ in 0..40 {
            let stream = process.arrive(0, "/");
            process.pass_time(Duration::from_millis(1));
            process.finish(stream, outcome);
        }
        process.run_for(Duration::from_secs(2));
        process.arrive(0, "/");
        process.run_for(Duration::from_millis(10));
        assert_eq!(process.gauge("offered_work_us"), 0, "{outcome:?}");
    }
}
