//! What of a strategy's state outlives an edit of its policy, and what must not.

use super::*;
use crate::config::{Mode, StrategyConfig};

/// SEDA's controller: p90 of 50 ms, run on five requests.
fn controlled(mode: Mode) -> FilterConfig {
    config(1, |stage| {
        stage.mode = mode;
        let strategy = r#"{"type":"ResponseTimeController","percentile":90,
            "targets_us":[[50000],[50000]],"scope":"Type","smoothing":0.7,"requests":5,
            "timeout_us":1000000,"increase_below":-0.5,"decrease_above":0,"increase":2,
            "decrease":1.2,"increase_offset":-0.1,"min_rate":0.05,"max_rate":2000,
            "lower_class_decrease":10,"lower_class_patience":20}"#;
        stage.strategy = serde_json::from_str::<StrategyConfig>(strategy).unwrap();
    })
}

/// Requests that take 100 ms each on an otherwise idle process, by turns on all workers.
fn serve_slowly(process: &mut Process, requests: usize) {
    for n in 0..requests {
        let stream = process.arrive(n % process.workers.len(), "/");
        process.run_for(Duration::from_millis(100));
        process.finish(stream, Outcome::Completed);
    }
    process.run_for(Duration::from_millis(50));
}

/// In a dry run no rate has an effect, so it falls as long as the target is missed. Enforced, that rate
/// would refuse all but three requests a minute.
#[test]
fn enforcement_does_not_begin_where_a_dry_run_ended() {
    const RATE: &str = "type.default.admission_rate_mhz";
    let mut process = Process::new(2, &controlled(Mode::DryRun));
    serve_slowly(&mut process, 600);
    let dry = process.gauge(RATE);
    assert!(dry < 500, "{dry}: the dry run is near the least rate");

    process.configure(&controlled(Mode::Enforce));
    process.refused.clear();
    let streams: Vec<u32> = (0..10).map(|n| process.arrive(n % 2, "/")).collect();
    assert_eq!(process.refused, []);
    for stream in streams {
        process.finish(stream, Outcome::Unmeasured);
    }
    process.run_for(Duration::from_millis(50));
    assert_eq!(process.gauge(RATE), 2_000_000);

    // What enforcement has learned is still known after another dry run.
    serve_slowly(&mut process, 100);
    let learned = process.gauge(RATE);
    assert!((51..1_000_000).contains(&learned), "{learned}");
    process.configure(&controlled(Mode::DryRun));
    process.run_for(Duration::from_millis(50));
    assert!(process.gauge(RATE) < 10_000);
    process.configure(&controlled(Mode::Enforce));
    process.run_for(Duration::from_millis(50));
    let known = process.gauge(RATE);
    assert!(known.abs_diff(learned) <= 4_000, "{known} of {learned}");
}
