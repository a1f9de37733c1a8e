use std::time::Duration;

use super::*;
use crate::config::{DegradationConfig, FilterConfig};

mod workers;

/// Returns the parameters of SEDA's Figure 4, with a target of 1 s at p90.
fn settings() -> ResponseTimeControllerConfig {
    ResponseTimeControllerConfig::figure_4(ControlScope::Policy, vec![vec![1_000_000]])
}

fn degradation(admission: bool) -> Option<DegradationConfig> {
    Some(DegradationConfig {
        min_quality: 0.5,
        decrease: 1.25,
        increase: 0.1,
        admission,
    })
}

fn stage(settings: &ResponseTimeControllerConfig) -> StageConfig {
    let json = serde_json::json!({
        "policy": "default/mail",
        "parallelism": 4,
        "queue": {"max_length": 1000, "timeout_us": 30_000_000},
        "strategy": {"type": "MaxQueueLength"},
        "types": [
            {"name": "list", "matches": [{"path": {"type": "Exact", "value": "/list"}}]},
            {"name": "default"},
        ],
        "classes": [
            {"name": "gold", "matches": [{"method": "GET"}]},
            {"name": "silver", "matches": [{"method": "PUT"}]},
            {"name": "rest"},
        ],
    });
    let mut stage: StageConfig = serde_json::from_value(json).unwrap();
    if settings.targets_us[0].len() == 1 {
        stage.classes.clear();
    }
    stage.strategy = crate::config::StrategyConfig::ResponseTimeController(settings.clone());
    let config = FilterConfig {
        stages: vec![stage.clone()],
        ..FilterConfig::default()
    };
    config.check().unwrap();
    stage
}

fn controller(settings: &ResponseTimeControllerConfig) -> ResponseTimeController {
    ResponseTimeController::new(settings, &stage(settings))
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(5_000_000_000 + ms * 1_000_000)
}

fn request(class: u8) -> Attributes {
    Attributes {
        class: ClassId(class),
        ..Attributes::of(TypeId(0))
    }
}

fn decide(worker: &mut ResponseTimeController, now: Instant, class: u8) -> bool {
    worker.admits(TypeId(0), ClassId(class), now)
}

fn complete(worker: &mut ResponseTimeController, now: Instant, class: u8, millis: u64) {
    complete_of(worker, now, (TypeId(0), ClassId(class)), millis);
}

fn complete_of(
    worker: &mut ResponseTimeController,
    now: Instant,
    (kind, class): (TypeId, ClassId),
    millis: u64,
) {
    let served = Served {
        kind,
        class,
        age: Duration::ZERO,
        queue_wait: Duration::from_millis(millis / 2),
        processing: Duration::from_millis(millis - millis / 2),
        slot: Duration::from_millis(millis - millis / 2),
        weight: 1,
        work: 1,
    };
    worker.completed(&served, now);
}

/// The record that workers share, as the stage would store it.
#[derive(Default)]
struct Record(Vec<u8>);

impl Record {
    /// Runs a worker's tick. Returns whether it stored the record.
    fn tick(&mut self, worker: &mut ResponseTimeController, now: Instant) -> bool {
        // Another worker was faster, so the worker syncs again.
        let (mut lost, mut record) = (self.0.clone(), self.0.clone());
        worker.sync(now, &mut lost);
        let after_lost = worker.controllers.clone();
        let changed = worker.sync(now, &mut record);
        let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9 * (1.0 + b.abs());
        for (a, b) in after_lost.iter().zip(&worker.controllers) {
            let flags = |c: &Controller| (c.current.is_some(), c.aged, c.missing, c.at_the_door);
            assert_eq!(flags(a), flags(b));
            let (one, two) = (numbers(a), numbers(b));
            assert!(one.iter().zip(&two).all(close), "{a:?} {b:?}");
            assert!(two.iter().all(|number| number.is_finite()), "{b:?}");
        }
        if changed {
            self.0 = record;
            worker.stored();
        }
        changed
    }
}

fn numbers(of: &Controller) -> [f64; 15] {
    [
        of.rate,
        of.current.unwrap_or(0.0),
        of.runs_in_vain,
        of.quality,
        of.raised,
        of.refused,
        of.ran,
        of.busy,
        of.level,
        of.arrivals,
        of.accounted,
        of.answers,
        of.late,
        of.span,
        of.best,
    ]
}

fn rates(worker: &ResponseTimeController) -> Vec<f64> {
    worker.controllers.iter().map(|c| c.rate).collect()
}

/// Adds a batch of a class in which all responses take `millis`, then ticks.
fn batch(
    worker: &mut ResponseTimeController,
    record: &mut Record,
    now: u64,
    class: u8,
    millis: u64,
) {
    for _ in 0..100 {
        complete(worker, at(now), class, millis);
    }
    record.tick(worker, at(now));
}

#[test]
fn the_rate_follows_section_3_2() {
    let mut worker = controller(&settings());
    let mut record = Record::default();
    record.tick(&mut worker, at(0));
    assert_eq!(rates(&worker), [2_000.0]);
    // The percentile makes cur = 2 and err = 1.
    batch(&mut worker, &mut record, 10, 0, 2_000);
    assert_eq!(rates(&worker), [2_000.0 / 1.2]);
    // The percentile makes cur = 0.7·2 + 0.3·0.1 = 1.43.
    batch(&mut worker, &mut record, 20, 0, 100);
    let decreased = 2_000.0 / 1.2 / 1.2;
    assert_eq!(rates(&worker), [decreased]);
    // cur is 1.031, which is still above the target. Then it is 0.7517, within the band.
    batch(&mut worker, &mut record, 30, 0, 100);
    let decreased = decreased / 1.2;
    batch(&mut worker, &mut record, 40, 0, 100);
    assert_eq!(rates(&worker), [decreased]);
    // cur is 0.55619, then 0.419333. With err = −0.580667, the rate rises by (0.580667 − 0.1)·2.
    batch(&mut worker, &mut record, 50, 0, 100);
    assert_eq!(rates(&worker), [decreased]);
    batch(&mut worker, &mut record, 60, 0, 100);
    let more = rates(&worker)[0] - decreased;
    assert!((more - 0.961_333).abs() < 1e-5, "{more}");
}

/// Returns the parameters of the law in units of the throughput, with a target of 1 s at p90.
fn adaptive() -> ResponseTimeControllerConfig {
    ResponseTimeControllerConfig::adaptive(ControlScope::Policy, vec![vec![1_000_000]])
}

/// Adds `count` answers of `millis` each, then ticks.
fn answers(
    worker: &mut ResponseTimeController,
    record: &mut Record,
    now: u64,
    (count, millis): (u64, u64),
) {
    (0..count).for_each(|_| complete(worker, at(now), 0, millis));
    record.tick(worker, at(now));
}

#[test]
fn without_an_increase_steps_are_for_a_target_time_and_in_parts_of_the_throughput() {
    let mut worker = controller(&adaptive());
    let mut record = Record::default();
    record.tick(&mut worker, at(0));
    let close = |found: &ResponseTimeController, expected: f64| {
        let found = rates(found)[0];
        assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
    };
    // There are 20 answers in half of the target time. That is 40 requests/s, and half of a
    // decrease.
    answers(&mut worker, &mut record, 500, (20, 2_000));
    let decreased = 40.0 / 1.2_f64.sqrt();
    close(&worker, decreased);
    // A further batch at the same moment has no effect, because the last run already reacted to its
    // delay.
    answers(&mut worker, &mut record, 500, (20, 2_000));
    close(&worker, decreased);
    // The batches come once a target time, with all answers at once. Each is a whole step, and none
    // leaves the rate below two decreases of the throughput.
    for i in 1..20 {
        answers(&mut worker, &mut record, 500 + i * 1_000, (20, 2_000));
    }
    close(&worker, 20.0 / 1.2 / 1.2);
    // cur = 0.3·2 + 0.7·0.1 = 0.67, then 0.27, then 0.15. A quarter of the target time after the
    // last run, the law adds a quarter of 5% of the highest throughput. While nothing is refused,
    // it adds a quarter of 5% of the rate.
    for (i, refused) in [(0, 1.0), (1, 1.0), (2, 0.0)] {
        let before = worker.controllers[0];
        worker.controllers[0].refused = refused;
        shared::encode(
            &(worker.fingerprint, worker.controllers.clone()),
            &mut record.0,
        );
        answers(&mut worker, &mut record, 19_750 + i * 250, (20, 100));
        let own = &worker.controllers[0];
        let whole = if refused > 0.0 {
            own.best
        } else {
            own.best.max(before.rate)
        };
        let error = own.current.unwrap() - 1.0;
        close(&worker, before.rate - (error + 0.1) / 4.0 * 0.05 * whole);
        assert!(rates(&worker)[0] > before.rate);
    }
}

#[test]
fn a_few_slow_answers_are_no_overload() {
    let mut worker = controller(&adaptive());
    let mut record = Record::default();
    record.tick(&mut worker, at(0));
    let mut least = f64::INFINITY;
    for second in 1..=200_u64 {
        // There are 5 requests/s, of which one in 25 takes far longer than the target.
        for i in 0..5 {
            let slow = second % 5 == 0 && i == 3;
            complete(
                &mut worker,
                at(second * 1_000 + i * 200),
                0,
                if slow { 30_000 } else { 100 },
            );
            record.tick(&mut worker, at(second * 1_000 + i * 200));
        }
        least = least.min(rates(&worker)[0]);
    }
    assert!(least > 1_000.0, "{least}");
    // One slow answer alone is no overload either, so the rate decreases from the maximum, not from
    // the throughput.
    let mut worker = controller(&adaptive());
    let mut record = Record::default();
    record.tick(&mut worker, at(0));
    complete(&mut worker, at(30_000), 0, 30_000);
    for now in (30_000..32_000).step_by(50) {
        record.tick(&mut worker, at(now));
    }
    assert_eq!(rates(&worker), [100_000.0 / 1.2]);
}

#[test]
fn a_rate_that_limits_no_request_recovers_in_proportion_to_itself() {
    let mut worker = controller(&adaptive());
    let mut record = Record::default();
    record.tick(&mut worker, at(0));
    for i in 1..20 {
        answers(&mut worker, &mut record, i * 1_000, (20, 5_000));
    }
    assert!(rates(&worker)[0] < 20.0);
    // The law runs every 2 s, of which one target time counts, so each run adds 4%. In steps of the
    // throughput, which is at most 20 requests/s, the recovery would take hours.
    let mut seconds = 0;
    while rates(&worker)[0] < 100_000.0 {
        seconds += 1;
        answers(&mut worker, &mut record, 20_000 + seconds * 1_000, (1, 100));
        assert!(seconds < 500, "{:?}", rates(&worker));
    }
}

#[test]
fn the_rate_stays_within_its_bounds() {
    let mut worker = controller(&settings());
    let mut record = Record::default();
    for i in 0..100 {
        batch(&mut worker, &mut record, i, 0, 10_000);
    }
    assert_eq!(rates(&worker), [0.05]);
    let mut fast = controller(&ResponseTimeControllerConfig {
        min_rate: 1_990.0,
        ..settings()
    });
    let mut record = Record::default();
    batch(&mut fast, &mut record, 0, 0, 10_000);
    assert_eq!(rates(&fast), [1_990.0]);
    for i in 1..100 {
        batch(&mut fast, &mut record, i, 0, 1);
    }
    assert_eq!(rates(&fast), [2_000.0]);
}

#[test]
fn a_few_responses_count_when_the_timeout_has_passed() {
    let mut worker = controller(&settings());
    let mut record = Record::default();
    record.tick(&mut worker, at(0));
    complete(&mut worker, at(300), 0, 5_000);
    for now in (310..1_300).step_by(10) {
        record.tick(&mut worker, at(now));
        assert_eq!(rates(&worker), [2_000.0], "at {now}");
    }
    record.tick(&mut worker, at(1_300));
    assert_eq!(rates(&worker), [2_000.0 / 1.2]);
    // Idle time counts only once.
    for now in (1_310..2_200).step_by(10) {
        record.tick(&mut worker, at(now));
    }
    assert_eq!(rates(&worker), [2_000.0 / 1.2]);
}

#[test]
fn idle_time_brings_the_rate_back_and_waiting_for_answers_does_not() {
    let mut worker = controller(&settings());
    let mut record = Record::default();
    for i in 0..100 {
        batch(&mut worker, &mut record, i, 0, 10_000);
    }
    worker.entered(TypeId(0), ClassId(0));
    for now in (100..30_000).step_by(50) {
        record.tick(&mut worker, at(now));
    }
    assert_eq!(rates(&worker), [0.05], "somebody is under way");
    worker.left(TypeId(0), ClassId(0));
    // The value of cur = 10 decays below 0.5 after nine timeouts.
    for now in (30_000..38_000).step_by(50) {
        record.tick(&mut worker, at(now));
    }
    assert_eq!(rates(&worker), [0.05]);
    for now in (38_000..60_000).step_by(50) {
        record.tick(&mut worker, at(now));
    }
    assert!(
        (20.0..40.0).contains(&rates(&worker)[0]),
        "{:?}",
        rates(&worker)
    );
    // A bad sample replaces the decayed value at once.
    batch(&mut worker, &mut record, 60_000, 0, 3_000);
    assert_eq!(worker.controllers[0].current, Some(3.0));
    // After the recovery no worker writes the record any more.
    for now in (61_000..3_000_000).step_by(1_000) {
        record.tick(&mut worker, at(now));
    }
    assert_eq!(rates(&worker), [2_000.0]);
    assert!(!record.tick(&mut worker, at(4_000_000)));
}

#[test]
fn a_higher_class_without_traffic_holds_no_lower_class_for_ever() {
    let mut worker = controller(&classes());
    let mut record = Record::default();
    record.tick(&mut worker, at(0));
    worker.entered(TypeId(0), ClassId(0));
    batch(&mut worker, &mut record, 10, 0, 1_500);
    for i in 0..5 {
        batch(&mut worker, &mut record, 1_000 * i, 2, 100);
    }
    assert_eq!(rates(&worker)[2], 200.0);
    batch(&mut worker, &mut record, 61_000, 2, 100);
    assert!(
        (rates(&worker)[2] - 201.75).abs() < 1e-9,
        "{:?}",
        rates(&worker)
    );
}

fn classes() -> ResponseTimeControllerConfig {
    ResponseTimeControllerConfig {
        targets_us: vec![vec![1_000_000, 2_000_000, 4_000_000]],
        ..settings()
    }
}

#[test]
fn lower_classes_give_way_first() {
    let mut worker = controller(&classes());
    let mut record = Record::default();
    record.tick(&mut worker, at(0));
    // `gold` misses its target of 1 s. No other class misses its own target.
    batch(&mut worker, &mut record, 10, 0, 1_500);
    assert_eq!(rates(&worker), [2_000.0, 200.0, 200.0]);
    for i in 0..4 {
        batch(&mut worker, &mut record, 20 + i, 0, 1_500);
    }
    assert_eq!(rates(&worker), [2_000.0, 0.05, 0.05]);
    // The first 20 runs (lc_thresh) have no effect on `gold`. The 21st decreases its rate.
    for i in 0..20 {
        batch(&mut worker, &mut record, 30 + i, 0, 1_500);
        assert_eq!(rates(&worker)[0], 2_000.0);
    }
    batch(&mut worker, &mut record, 60, 0, 1_500);
    assert_eq!(rates(&worker), [2_000.0 / 1.2, 0.05, 0.05]);
}

#[test]
fn each_type_and_class_has_a_target_and_a_controller_of_its_own() {
    let targets = vec![
        vec![1_000_000, 2_000_000, 4_000_000],
        vec![10_000_000, 20_000_000, 40_000_000],
    ];
    let settings = ResponseTimeControllerConfig::figure_4(ControlScope::Type, targets.clone());
    for (kind, class) in (0..2).flat_map(|kind| (0..3).map(move |class| (kind, class))) {
        for (part, missing) in [(90, false), (110, true)] {
            let mut worker = controller(&settings);
            let mut record = Record::default();
            record.tick(&mut worker, at(0));
            let millis = targets[kind][class] / 1_000 * part / 100;
            for _ in 0..100 {
                let kind = TypeId(kind as u16);
                complete_of(&mut worker, at(10), (kind, ClassId(class as u8)), millis);
            }
            record.tick(&mut worker, at(10));
            for (n, known) in worker.controllers.iter().enumerate() {
                let own = n == kind * 3 + class;
                assert_eq!(known.current.is_some(), own, "{kind} {class} {n}");
                assert_eq!(known.missing, own && missing, "{kind} {class} {n}");
            }
        }
    }
}

#[test]
fn the_middle_class_spares_the_higher_and_the_lowest_causes_no_decrease() {
    let mut worker = controller(&classes());
    let mut record = Record::default();
    record.tick(&mut worker, at(0));
    batch(&mut worker, &mut record, 10, 1, 3_000);
    assert_eq!(rates(&worker), [2_000.0, 2_000.0, 200.0]);
    batch(&mut worker, &mut record, 20, 2, 5_000);
    assert_eq!(rates(&worker), [2_000.0, 2_000.0, 200.0 / 1.2]);
}

#[test]
fn lower_classes_are_not_increased_while_a_higher_one_misses() {
    let mut worker = controller(&classes());
    let mut record = Record::default();
    record.tick(&mut worker, at(0));
    batch(&mut worker, &mut record, 10, 0, 1_500);
    for i in 0..5 {
        batch(&mut worker, &mut record, 20 + i, 2, 100);
    }
    assert_eq!(rates(&worker), [2_000.0, 200.0, 200.0]);
    // `gold` meets its target again, with cur = 0.7·1.5 + 0.3·0.1.
    batch(&mut worker, &mut record, 30, 0, 100);
    batch(&mut worker, &mut record, 40, 0, 100);
    assert!(worker.controllers[0].current < Some(1.0));
    let before = rates(&worker);
    batch(&mut worker, &mut record, 50, 2, 100);
    let after = rates(&worker);
    assert_eq!(after[..2], before[..2]);
    assert!((after[2] - before[2] - 1.75).abs() < 1e-9, "{after:?}");
}

#[test]
fn quality_is_lowered_before_any_request_is_refused() {
    let mut worker = controller(&ResponseTimeControllerConfig {
        degradation: degradation(true),
        ..settings()
    });
    let mut record = Record::default();
    let quality = |worker: &ResponseTimeController| worker.quality(TypeId(1), ClassId(0)).unwrap();
    assert_eq!(quality(&worker), 1.0);
    for (i, expected) in [0.8, 0.64, 0.512, 0.5].into_iter().enumerate() {
        batch(&mut worker, &mut record, i as u64, 0, 2_000);
        assert!((quality(&worker) - expected).abs() < 1e-9);
        assert_eq!(worker.rate(TypeId(0), ClassId(0)), None);
        // The load is far above any rate, and no request is refused.
        assert!((0..5_000).all(|_| decide(&mut worker, at(i as u64), 0)));
    }
    // The lowest quality doesn't suffice.
    for i in 10..60 {
        batch(&mut worker, &mut record, i, 0, 2_000);
    }
    let rate = worker.rate(TypeId(0), ClassId(0)).unwrap();
    assert!((0.1..0.5).contains(&rate), "{rate}");
    assert!(!(0..10).all(|_| decide(&mut worker, at(60), 0)));
    // While requests are refused the rate rises, but quality doesn't.
    for i in 61..71 {
        batch(&mut worker, &mut record, i, 0, 10);
        decide(&mut worker, at(i), 0);
    }
    assert_eq!(quality(&worker), 0.5);
    assert!(worker.rate(TypeId(0), ClassId(0)).unwrap() > rate);
    // No request is refused, so the rate limit is lifted, and quality rises once a timeout.
    for i in 0..50 {
        batch(&mut worker, &mut record, 5_000 + i * 10, 0, 10);
    }
    assert_eq!(worker.rate(TypeId(0), ClassId(0)), None);
    assert!((quality(&worker) - 0.6).abs() < 1e-9);
    for i in 0..3 {
        batch(&mut worker, &mut record, 6_100 + i * 1_000, 0, 10);
    }
    assert!((quality(&worker) - 0.9).abs() < 1e-9);
    assert!(rates(&worker)[0] < 50.0, "still what it had come to be");
    // The sum of tenths is a rounding error below 1.
    batch(&mut worker, &mut record, 9_100, 0, 10);
    batch(&mut worker, &mut record, 10_100, 0, 10);
    assert_eq!(quality(&worker), 1.0);
    assert_eq!(rates(&worker), [2_000.0]);
}

#[test]
fn degradation_alone_refuses_no_request() {
    let mut worker = controller(&ResponseTimeControllerConfig {
        degradation: degradation(false),
        ..settings()
    });
    let mut record = Record::default();
    for i in 0..100 {
        batch(&mut worker, &mut record, i, 0, 9_000);
        assert!((0..1_000).all(|_| decide(&mut worker, at(i), 0)));
    }
    assert_eq!(worker.quality(TypeId(0), ClassId(0)), Some(0.5));
    assert_eq!(controller(&settings()).quality(TypeId(0), ClassId(0)), None);
}

#[test]
fn a_token_that_was_not_needed_is_given_back() {
    let mut worker = controller(&settings());
    let mut record = Record::default();
    for i in 0..200 {
        batch(&mut worker, &mut record, i, 0, 9_000);
    }
    // At a rate of one token in 20 s, the bucket holds slightly more than one token.
    for now in 1_000..2_000 {
        if decide(&mut worker, at(now), 0) {
            worker.withdrawn(&request(0));
        } else {
            panic!("the token came back every time");
        }
    }
    assert!(decide(&mut worker, at(2_000), 0));
    assert!(!decide(&mut worker, at(2_001), 0));
    let next = worker.parts[0].bucket.next_token().as_secs_f64();
    assert!((15.0..=20.0).contains(&next), "{next}");
    // A request that starvation avoidance admitted has no token to give back.
    worker.withdrawn(&request(0));
    assert!(!decide(&mut worker, at(2_002), 0));
}

#[test]
fn other_types_in_the_record_are_not_taken_for_ours() {
    let mut worker = controller(&settings());
    let mut record = Record::default();
    for i in 0..10 {
        batch(&mut worker, &mut record, i, 0, 9_000);
    }
    let learned = rates(&worker);
    assert!(learned[0] < 2_000.0);
    // The same controllers continue with another target. Controllers of types don't adopt the
    // controllers of the policy.
    let mut again = controller(&ResponseTimeControllerConfig {
        targets_us: vec![vec![500_000]],
        ..settings()
    });
    record.tick(&mut again, at(20));
    assert_eq!(rates(&again), learned);
    let by_type = ResponseTimeControllerConfig {
        scope: ControlScope::Type,
        targets_us: vec![vec![1_000_000]; 2],
        ..settings()
    };
    let mut other = controller(&by_type);
    record.tick(&mut other, at(30));
    assert_eq!(rates(&other), [2_000.0; 2]);
    let mut renamed = stage(&by_type);
    renamed.types[0].name = "search".into();
    let mut renamed = ResponseTimeController::new(&by_type, &renamed);
    batch(&mut other, &mut record, 40, 0, 9_000);
    assert_ne!(rates(&other), [2_000.0; 2]);
    record.tick(&mut renamed, at(50));
    assert_eq!(rates(&renamed), [2_000.0; 2]);
}
