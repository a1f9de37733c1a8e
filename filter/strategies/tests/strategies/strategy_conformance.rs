//! The common behaviour of all strategies: one suite that runs for each.

// Clippy doesn't treat helpers outside of `#[test]` functions as tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use crate::memory::MemoryHost;
use headgate_config::{
    AcceptFractionConfig, BacklogSignal, Logic, StageConfig, StarvationAvoidance, StrategyConfig,
};
use headgate_strategies::reason::Reason;
use headgate_strategies::request::{Attributes, ClassId, Served, TypeId};
use headgate_strategies::rng::Rng;
use headgate_strategies::service_times::{ServiceTimes, Settings};
use headgate_strategies::strategy::{Strategy, View};
use headgate_strategies::time::Instant;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::json;

use crate::common::{
    BOUNCER, DEGRADATION, MAX_QUEUE, PARALLELISM, VALUE_CUT, backlog_control, classes,
    response_time_controller, stage, starvation_avoidances,
};

const FAST: TypeId = TypeId(0);
const SLOW: TypeId = TypeId(1);
const DEFAULT: TypeId = TypeId(2);
const KINDS: [TypeId; 3] = [FAST, SLOW, DEFAULT];

fn of(kind: TypeId) -> Attributes {
    Attributes::of(kind)
}

fn served(kind: TypeId, queue_wait: Duration, processing: Duration) -> Served {
    Served {
        kind,
        class: ClassId(0),
        age: Duration::ZERO,
        queue_wait,
        processing,
        slot: processing,
        weight: 1,
        work: 1_000,
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn at(n: u64) -> Instant {
    Instant::default() + ms(n)
}

/// T = 10 ms, and 4 ms for slow.
fn max_queue_wait() -> StrategyConfig {
    StrategyConfig::MaxQueueWait {
        limit_us: 10_000,
        type_limits_us: [("slow".to_owned(), 4_000)].into(),
        window_us: 60_000_000,
        step_us: 1_000_000,
    }
}

/// MaxUtil = 0.5.
fn accept_fraction() -> StrategyConfig {
    StrategyConfig::AcceptFraction(AcceptFractionConfig {
        max_utilization: 0.5,
        units: None,
        window_us: 60_000_000,
        step_us: 1_000_000,
    })
}

/// Bouncer, with a bound of 0.5 on the utilization by requests that it admits.
fn bouncer_and_accept_fraction() -> StrategyConfig {
    let mut strategy = BOUNCER;
    if let StrategyConfig::Bouncer { capacity, .. } = &mut strategy {
        *capacity = accept_fraction().accept_fraction().cloned();
    }
    strategy
}

/// Returns every strategy, with and without starvation avoidance.
fn all() -> Vec<(String, StageConfig)> {
    let mut all = Vec::new();
    let max_queue_length = StrategyConfig::MaxQueueLength;
    for strategy in [
        BOUNCER,
        max_queue_length,
        max_queue_wait(),
        accept_fraction(),
        backlog_control(BacklogSignal::Backlog),
        backlog_control(BacklogSignal::QueueLength),
        backlog_control(BacklogSignal::Proportional),
        response_time_controller(3, 1, None),
        response_time_controller(3, 1, Some(DEGRADATION)),
    ] {
        for decorator in starvation_avoidances() {
            let name = format!("{strategy:?} {decorator:?}");
            all.push((
                name,
                stage(["fast", "slow", "default"], strategy.clone(), decorator),
            ));
        }
    }
    for decorator in starvation_avoidances() {
        let mut config = stage(["fast", "slow", "default"], VALUE_CUT, decorator.clone());
        config.classes = classes();
        config.classes[1].value = 0.2;
        all.push((format!("ValueCut {decorator:?}"), config));
        let both = bouncer_and_accept_fraction();
        let config = stage(["fast", "slow", "default"], both, decorator.clone());
        all.push((
            format!("AcceptFraction beside Bouncer {decorator:?}"),
            config,
        ));
    }
    let by_class = response_time_controller(3, 2, None);
    let mut config = stage(["fast", "slow", "default"], by_class, None);
    config.classes = classes();
    all.push(("ResponseTimeController, two classes".to_owned(), config));
    all
}

#[test]
fn every_strategy_is_in_the_suite() {
    let error = serde_json::from_str::<StrategyConfig>(r#"{"type":""}"#).unwrap_err();
    let error = error.to_string();
    let all = all();
    // unknown variant ``, expected one of `Bouncer`, …
    for kind in error.split('`').skip(3).step_by(2) {
        let is_here = |stage: &StageConfig| json!(stage.strategy)["type"] == kind;
        let is_in = all.iter().any(|(_, stage)| is_here(stage));
        assert!(is_in, "`all` in {} lacks {kind}", file!());
    }
}

/// Ticks the only worker, including the record of a feedback-controlled strategy.
fn tick(strategy: &mut Strategy, times: &ServiceTimes, record: &mut Vec<u8>, now: Instant) {
    strategy.learn(now, PARALLELISM, false, times, |_| 0.0);
    if let Some(controlled) = strategy.base.controlled_mut()
        && controlled.due(now)
        && controlled.sync(now, record)
    {
        controlled.stored();
    }
    strategy.tick(now);
}

fn cold(config: &StageConfig) -> ServiceTimes {
    ServiceTimes::new(Settings::from_config(config))
}

/// Returns service times with samples of fast (1 ms) and slow (10 ms), and none of default.
fn warm(config: &StageConfig) -> ServiceTimes {
    let mut times = cold(config);
    for _ in 0..100 {
        times.record(FAST, ms(1), 1);
        times.record(SLOW, ms(10), 1);
    }
    times.sync(at(0), &MemoryHost::new(), "test").unwrap();
    times
}

fn view(times: &ServiceTimes, now: Instant, slots: u32, queue: u32, wait: Duration) -> View<'_> {
    View {
        now,
        parallelism: PARALLELISM,
        slots_in_use: slots,
        queue_length: queue,
        queue_work: u64::from(queue) * 1_000,
        work: 1_000,
        queue_wait: wait,
        rival_wait: Duration::ZERO,
        service_times: times,
    }
}

#[test]
fn admits_everything_when_idle_cold_or_warm() {
    for (name, config) in all() {
        for times in [cold(&config), warm(&config)] {
            let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(1));
            for i in 0..3_000 {
                let view = view(&times, at(i), 0, 0, Duration::ZERO);
                let verdict = strategy.decide(&of(KINDS[i as usize % 3]), &view, &mut rng);
                assert_eq!(verdict, Ok(()), "{name}");
            }
        }
    }
}

#[test]
fn refuses_nothing_as_long_as_estimates_meet_the_objectives() {
    for (name, config) in all() {
        let times = warm(&config);
        let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(2));
        for i in 0..3_000 {
            // At p50, slow takes 10 ms plus the wait, with an objective of 18 ms.
            let view = view(&times, at(i), PARALLELISM, MAX_QUEUE - 1, ms(i % 8));
            let verdict = strategy.decide(&of(KINDS[i as usize % 3]), &view, &mut rng);
            assert_eq!(verdict, Ok(()), "{name}");
        }
    }
}

#[test]
fn cold_types_are_not_refused_before_anything_was_measured() {
    for (name, config) in all() {
        let times = cold(&config);
        let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(3));
        let view = view(&times, at(0), PARALLELISM, 50, ms(5_000));
        assert_eq!(
            strategy.decide(&of(SLOW), &view, &mut rng),
            Ok(()),
            "{name}"
        );
    }
}

#[test]
fn the_same_seed_makes_the_same_decisions() {
    for (name, config) in all() {
        let decide = |seed| {
            let times = warm(&config);
            let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(seed));
            (0..2_000)
                .map(|i| {
                    let wait = ms(i * 7 % 60);
                    let view = view(&times, at(i), PARALLELISM, i as u32 % 120, wait);
                    strategy.decide(&of(KINDS[i as usize % 3]), &view, &mut rng)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(decide(7), decide(7), "{name}");
    }
}

#[test]
fn bouncer_names_the_first_objective_that_is_missed() {
    let bouncer: Vec<_> = all()
        .into_iter()
        .filter(|(name, _)| name.starts_with("Bouncer"))
        .collect();
    assert_eq!(bouncer.len(), 3);
    let (_, config) = &bouncer[0];
    let times = warm(config);
    let (mut strategy, mut rng) = (Strategy::from_config(config), Rng::new(4));
    let mut decide = |kind, wait| {
        strategy.decide(
            &of(kind),
            &view(&times, at(0), PARALLELISM, 1, Duration::from_micros(wait)),
            &mut rng,
        )
    };
    let missed = |percentile| Err(Reason::Objective(percentile));
    // p50 of slow is 10 ms within 1%, its objective 18 ms.
    assert_eq!(decide(SLOW, 7_850), Ok(()));
    assert_eq!(decide(SLOW, 8_150), missed(50.0));
    assert_eq!(decide(SLOW, 45_000), missed(50.0));
    assert_eq!(decide(FAST, 16_950), Ok(()));
    assert_eq!(decide(FAST, 17_050), missed(50.0));
    // Default is cold: over all types p90 is 10 ms, and p50 1 ms.
    assert_eq!(decide(DEFAULT, 16_950), Ok(()));
    assert_eq!(decide(DEFAULT, 17_150), missed(50.0));

    // Only the second objective is missed.
    let mut config = config.clone();
    config.types[1].slo[0].objective_us = 1_000_000;
    let times = warm(&config);
    let view = view(&times, at(0), PARALLELISM, 1, ms(45));
    let verdict = Strategy::from_config(&config).decide(&of(SLOW), &view, &mut rng);
    assert_eq!(verdict, missed(90.0));
}

#[test]
fn each_objective_is_judged_by_the_times_at_its_percentile() {
    let mut config = stage(["fast", "slow", "default"], BOUNCER, None);
    let decide = |config: &StageConfig, wait| {
        let mut times = cold(config);
        // p50 is 10 ms, and p90 30 ms.
        for n in 0..100 {
            times.record(SLOW, ms(if n % 5 == 0 { 30 } else { 10 }), 1);
        }
        times.sync(at(0), &MemoryHost::new(), "test").unwrap();
        let view = view(&times, at(0), PARALLELISM, 1, ms(wait));
        Strategy::from_config(config).decide(&of(SLOW), &view, &mut Rng::new(4))
    };
    config.types[1].slo[0].objective_us = 25_000;
    assert_eq!(decide(&config, 14), Ok(()));
    assert_eq!(decide(&config, 16), Err(Reason::Objective(50.0)));
    config.types[1].slo[0].objective_us = 1_000_000;
    assert_eq!(decide(&config, 19), Ok(()));
    assert_eq!(decide(&config, 21), Err(Reason::Objective(90.0)));
}

#[test]
fn with_logic_all_only_a_request_that_misses_all_objectives_is_refused() {
    let mut config = stage(["fast", "slow", "default"], BOUNCER, None);
    let times = warm(&config);
    if let StrategyConfig::Bouncer { logic, .. } = &mut config.strategy {
        *logic = Logic::All;
    }
    let decide = |wait| {
        let view = view(&times, at(0), PARALLELISM, 1, ms(wait));
        Strategy::from_config(&config).decide(&of(SLOW), &view, &mut Rng::new(4))
    };
    // A wait of 30 ms misses the p50 of 18 ms only, one of 45 ms the p90 of 50 ms as well.
    assert_eq!(decide(30), Ok(()));
    assert_eq!(decide(45), Err(Reason::Objective(50.0)));
}

#[test]
fn a_type_whose_histogram_misses_its_objective_is_admitted_when_no_request_waits() {
    for (name, mut config) in all() {
        config.types[1].slo[1].objective_us = 5_000;
        let times = warm(&config);
        assert!(times.estimate(SLOW).condemned);
        let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(5));
        for i in 0..100 {
            let idle = view(&times, at(i), PARALLELISM - 1, 0, Duration::ZERO);
            assert_eq!(
                strategy.decide(&of(SLOW), &idle, &mut rng),
                Ok(()),
                "{name}"
            );
        }
    }
}

#[test]
fn max_queue_length_refuses_when_full_and_no_decorator_overrides_that() {
    for (name, config) in all()
        .into_iter()
        .filter(|(name, _)| name.starts_with("MaxQueueLength"))
    {
        let times = warm(&config);
        let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(6));
        for i in 0..2_000 {
            let full = view(&times, at(i), PARALLELISM, MAX_QUEUE, ms(1));
            let verdict = strategy.decide(&of(SLOW), &full, &mut rng);
            assert_eq!(verdict, Err(Reason::QueueFull), "{name}");
        }
        let room = view(&times, at(2_000), PARALLELISM, MAX_QUEUE - 1, ms(10_000));
        assert_eq!(
            strategy.decide(&of(SLOW), &room, &mut rng),
            Ok(()),
            "{name}"
        );
    }
    let (_, mut config) = all().swap_remove(3);
    config.queue.max_length = 0;
    let times = warm(&config);
    let mut strategy = Strategy::from_config(&config);
    let mut decide = |slots| {
        strategy.decide(
            &of(FAST),
            &view(&times, at(0), slots, 0, Duration::ZERO),
            &mut Rng::new(0),
        )
    };
    assert_eq!(
        decide(PARALLELISM - 1),
        Ok(()),
        "a free slot needs no queue"
    );
    assert_eq!(decide(PARALLELISM), Err(Reason::QueueFull));
}

#[test]
fn max_queue_wait_refuses_beyond_the_limit_of_the_type() {
    let config = stage(["fast", "slow", "default"], max_queue_wait(), None);
    let times = cold(&config);
    let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(10));
    // Two thirds of 1 ms, one of 10 ms: 4 ms on average, so eight in the queue of P = 8 wait 4 ms.
    for _ in 0..100 {
        strategy.completed(&served(FAST, ms(0), ms(1)), at(0));
        strategy.completed(&served(FAST, ms(0), ms(1)), at(0));
        strategy.completed(&served(SLOW, ms(0), ms(10)), at(0));
    }
    let mut decide = |kind, queue| {
        // The stage's own estimate doesn't count.
        let view = view(&times, at(1), PARALLELISM, queue, ms(500));
        strategy.decide(&of(kind), &view, &mut rng)
    };
    let refused = Err(Reason::QueueWait);
    assert_eq!(decide(SLOW, 8), Ok(()), "a wait equal to the limit");
    assert_eq!(decide(SLOW, 9), refused);
    for kind in [FAST, DEFAULT] {
        assert_eq!(decide(kind, 20), Ok(()));
        assert_eq!(decide(kind, 21), refused);
    }
}

#[test]
fn accept_fraction_accepts_what_there_is_capacity_for() {
    // 1,000 requests a second of 2 to 16 ms demand 2 to 16 slots. Half of eight, or of |PU|, may
    // be used.
    for (processing, given, fraction) in [
        (2, None, 1.0),
        (4, None, 1.0),
        (8, None, 0.5),
        (16, None, 0.25),
        (4, Some(2.0), 0.25),
        (16, Some(24.0), 0.75),
    ] {
        let mut fraction_of = accept_fraction();
        fraction_of.accept_fraction_mut().unwrap().units = given;
        let config = stage(["fast", "slow", "default"], fraction_of, None);
        let times = cold(&config);
        let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(11));
        let mut accepted = 0_u32;
        for i in 0..22_000 {
            strategy.tick(at(i));
            let idle = view(&times, at(i), 0, 0, Duration::ZERO);
            let verdict = strategy.decide(&of(KINDS[i as usize % 3]), &idle, &mut rng);
            if verdict == Ok(()) {
                strategy.completed(&served(FAST, ms(0), ms(processing)), at(i));
                accepted += u32::from(i >= 2_000);
            } else {
                assert_eq!(verdict, Err(Reason::Utilization));
            }
        }
        let share = f64::from(accepted) / 20_000.0;
        assert!(
            (share - fraction).abs() < 0.02,
            "{processing} ms, {given:?} units: {share}"
        );
    }
}

/// Bouncer §2: objectives that are far above processing times don't bound the utilization.
#[test]
fn beside_bouncer_accept_fraction_judges_what_bouncer_admits() {
    // Each second 500 fast requests find no queue, and 500 slow ones a wait that Bouncer refuses.
    // Four slots may be in use.
    let always = Some(StarvationAvoidance::AcceptanceAllowance {
        allowance: 1.0,
        type_allowances: Default::default(),
        window_us: 1_000_000,
        step_us: 10_000,
    });
    for (processing, allowance, admitted_fast, refused_slow) in [
        (8, None, 1.0, Reason::Objective(50.0)),
        (16, None, 0.5, Reason::Objective(50.0)),
        // The allowance overrides Bouncer's refusals, not those of AcceptFraction.
        (8, always.clone(), 0.5, Reason::Utilization),
        (16, always, 0.25, Reason::Utilization),
    ] {
        let strategy = bouncer_and_accept_fraction();
        let config = stage(["fast", "slow", "default"], strategy, allowance);
        let times = warm(&config);
        let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(11));
        let mut admitted = [0_u32; 2];
        for i in 0..22_000 {
            strategy.tick(at(i));
            let (kind, wait) = [(FAST, ms(0)), (SLOW, ms(500))][i as usize % 2];
            let view = view(&times, at(i), 0, 0, wait);
            match strategy.decide(&of(kind), &view, &mut rng) {
                Ok(()) => {
                    strategy.completed(&served(kind, ms(0), ms(processing)), at(i));
                    admitted[i as usize % 2] += u32::from(i >= 2_000);
                }
                Err(reason) if kind == SLOW => assert_eq!(reason, refused_slow),
                Err(reason) => assert_eq!(reason, Reason::Utilization),
            }
        }
        let shares = admitted.map(|n| f64::from(n) / 10_000.0);
        let slow = if refused_slow == Reason::Utilization {
            admitted_fast
        } else {
            0.0
        };
        for (share, expected) in shares.into_iter().zip([admitted_fast, slow]) {
            assert!(
                (share - expected).abs() < 0.02,
                "{processing} ms: {shares:?}"
            );
        }
    }
}

/// The value cut decides within the bound of utilization, and refuses the requests of the least
/// value per slot time.
#[test]
fn beside_a_value_cut_accept_fraction_refuses_hardly_any_itself() {
    // Each second 500 fast requests (1 ms) and 500 slow ones (10 ms) demand 5.5 slots, and the cut
    // alone refuses none. With 2 units, slow requests have 1.5 slots.
    for (units, admitted_slow) in [(2.0, 0.3), (5.0, 0.9), (100.0, 1.0)] {
        let mut strategy = VALUE_CUT;
        if let StrategyConfig::Bouncer { capacity, .. } = &mut strategy {
            let limit = capacity.insert(accept_fraction().accept_fraction().unwrap().clone());
            limit.max_utilization = 1.0;
            limit.units = Some(units);
        }
        let config = stage(["fast", "slow", "default"], strategy, None);
        let times = warm(&config);
        let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(11));
        let (mut record, mut admitted, mut at_random) = (Vec::new(), [0_u32; 2], 0);
        for i in 0..80_000_u64 {
            if i.is_multiple_of(10) {
                tick(&mut strategy, &times, &mut record, at(i));
            }
            let kind = [FAST, SLOW][i as usize % 2];
            // Slots are free, but hardly any of the usable ones.
            let used = (units as u32).min(6);
            let counted = u32::from(i >= 20_000);
            match strategy.decide(&of(kind), &view(&times, at(i), used, 0, ms(0)), &mut rng) {
                Ok(()) => {
                    strategy.completed(&served(kind, ms(0), times.mean(kind).unwrap()), at(i));
                    admitted[i as usize % 2] += counted;
                }
                Err(Reason::Utilization) => at_random += counted,
                Err(reason) => assert_eq!(reason, Reason::Value),
            }
        }
        let [fast, slow] = admitted.map(|n| f64::from(n) / 30_000.0);
        let at_random = f64::from(at_random) / 60_000.0;
        let seen = format!("{units} units: fast {fast}, slow {slow}, at random {at_random}");
        assert!(at_random < 0.02 && fast > 0.97, "{seen}");
        assert!((slow - admitted_slow).abs() < 0.02, "{seen}");
    }
}

/// The budget of an objective is for requests that are answered. Refusals by the second limit, by a
/// full queue or by a deadline don't spend it.
#[test]
fn requests_that_are_refused_later_spend_no_error_budget() {
    // Each waits 12 ms, so that the p50 of slow, 22 ms, exceeds the objective of 18 ms.
    let wait = ms(12);
    let mut bounded = VALUE_CUT;
    if let StrategyConfig::Bouncer { capacity, .. } = &mut bounded {
        let limit = capacity.insert(accept_fraction().accept_fraction().unwrap().clone());
        limit.units = Some(0.001);
    }
    let config = stage(["fast", "slow", "default"], bounded, None);
    let times = warm(&config);
    let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(11));
    for i in 0..2_000 {
        strategy.tick(at(i));
        let view = view(&times, at(i), 0, 0, ms(0));
        let _admitted_at_first = strategy.decide(&of(SLOW), &view, &mut rng);
        strategy.completed(&served(SLOW, ms(0), ms(10)), at(i));
    }
    for i in 2_000..2_200 {
        let verdict = strategy.decide(&of(SLOW), &view(&times, at(i), 0, 0, wait), &mut rng);
        assert_eq!(verdict, Err(Reason::Utilization));
    }

    let config = stage(["fast", "slow", "default"], VALUE_CUT, None);
    let mut strategy = Strategy::from_config(&config);
    let mut decide = |is_kept: bool, wait: Duration| {
        let verdict = strategy.decide(&of(SLOW), &view(&times, at(0), 8, 50, wait), &mut rng);
        if !is_kept {
            strategy.withdrawn(&of(SLOW));
        }
        verdict
    };
    for _ in 0..200 {
        assert_eq!(decide(false, wait), Ok(()));
    }
    // A sixth of the last hundred may exceed the p50 objective: 1 − 0.99^19 > 1/6.
    for _ in 0..19 {
        assert_eq!(decide(true, wait), Ok(()));
    }
    assert_eq!(decide(true, wait), Err(Reason::Objective(50.0)));
    // The withdrawal of a refused request changes nothing.
    assert_eq!(decide(false, wait), Err(Reason::Objective(50.0)));
    assert_eq!(decide(true, wait), Err(Reason::Objective(50.0)));
}

/// Bouncer App. A: a type is judged by the histogram of all types until it has its own. If that
/// misses the objectives of `default`, it is admitted while no request waits, and by its allowance.
#[test]
fn a_cold_type_is_let_in_with_leniency_until_it_is_measured() {
    let allowance = StarvationAvoidance::AcceptanceAllowance {
        allowance: 0.2,
        type_allowances: Default::default(),
        window_us: 1_000_000,
        step_us: 10_000,
    };
    for (allowance, while_cold) in [(None, 0.0), (Some(allowance), 0.2)] {
        let config = stage(["fast", "slow", "default"], BOUNCER, allowance);
        let (host, mut times) = (MemoryHost::new(), cold(&config));
        (0..100).for_each(|_| times.record(SLOW, ms(60), 1));
        times.sync(at(0), &host, "test").unwrap();
        let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(13));
        let mut admitted = |times: &ServiceTimes, from: u64, wait: Duration| {
            let ok = (from..from + 1_000).filter(|&i| {
                let view = view(times, at(i), PARALLELISM, 0, wait);
                strategy.decide(&of(FAST), &view, &mut rng).is_ok()
            });
            ok.count() as f64 / 1_000.0
        };
        let share = admitted(&times, 0, ms(5));
        assert!((share - while_cold).abs() < 0.05, "{share}");
        assert_eq!(admitted(&times, 1_000, Duration::ZERO), 1.0);
        (0..50).for_each(|_| times.record(FAST, ms(1), 1));
        times.sync(at(2_000), &host, "test").unwrap();
        assert_eq!(admitted(&times, 2_000, ms(5)), 1.0);
    }
}

/// Sends 100 requests a second of each type for `seconds`, and serves the admitted ones with a
/// response time of `response_ms`. Returns the admitted shares.
fn serve(
    strategy: &mut Strategy,
    config: &StageConfig,
    seconds: u64,
    response_ms: u64,
) -> [f64; 3] {
    let times = warm(config);
    let (mut rng, mut record, mut admitted) = (Rng::new(12), Vec::new(), [0_u32; 3]);
    for i in 0..seconds * 100 {
        let now = at(i * 10);
        tick(strategy, &times, &mut record, now);
        for kind in KINDS {
            let view = view(&times, now, 0, 0, Duration::ZERO);
            if strategy.decide(&of(kind), &view, &mut rng) == Ok(()) {
                strategy.completed(&served(kind, ms(0), ms(response_ms)), now);
                admitted[usize::from(kind.0)] += 1;
            }
        }
    }
    admitted.map(|n| f64::from(n) / (seconds * 100) as f64)
}

#[test]
fn response_time_controller_admits_by_response_times_alone() {
    let controllers = all().into_iter();
    let controllers = controllers.filter(|(name, _)| name.starts_with("ResponseTime"));
    for (name, config) in controllers {
        let mut strategy = Strategy::from_config(&config);
        assert_eq!(serve(&mut strategy, &config, 60, 49), [1.0; 3], "{name}");
        let mut strategy = Strategy::from_config(&config);
        let late = serve(&mut strategy, &config, 120, 51);
        // Starvation avoidance admits its part. Without it, almost nothing is admitted in the end.
        let (least, most) = match &config.starvation_avoidance {
            None => (0.0, 0.6),
            Some(StarvationAvoidance::AcceptanceAllowance { .. }) => (0.1, 0.65),
            Some(StarvationAvoidance::HelpingTheUnderserved { .. }) => (0.0, 0.9),
        };
        assert!(
            late.iter().all(|share| (least..most).contains(share)),
            "{name}: {late:?}"
        );
    }
}

#[test]
fn a_worker_reports_each_measurement_to_the_others_once() {
    for (name, config) in all() {
        let mut strategy = Strategy::from_config(&config);
        serve(&mut strategy, &config, 2, 60);
        let Some(controlled) = strategy.base.controlled_mut() else {
            continue;
        };
        let now = at(10_000);
        let mut record = Vec::new();
        controlled.sync(now, &mut record);
        controlled.stored();
        assert!(!controlled.sync(now, &mut record), "{name}");
    }
}

/// Returns the admitted share of slow while Bouncer refuses all of slow and none of fast.
fn share_of_slow(config: &StageConfig, every: u64, requests: u64) -> f64 {
    let times = warm(config);
    let (mut strategy, mut rng) = (Strategy::from_config(config), Rng::new(8));
    let mut admitted = 0;
    for i in 0..requests {
        let view = view(&times, at(i * every), PARALLELISM, 50, ms(12));
        assert_eq!(strategy.decide(&of(FAST), &view, &mut rng), Ok(()));
        admitted += u32::from(strategy.decide(&of(SLOW), &view, &mut rng) == Ok(()));
    }
    f64::from(admitted) / requests as f64
}

#[test]
fn the_allowance_is_kept_and_not_much_exceeded() {
    let (_, mut config) = all().swap_remove(1);
    for a in [0.0, 0.01, 0.1, 0.5, 1.0] {
        let Some(StarvationAvoidance::AcceptanceAllowance { allowance, .. }) =
            &mut config.starvation_avoidance
        else {
            panic!("the second of all() is Bouncer with acceptance allowance");
        };
        *allowance = a;
        let share = share_of_slow(&config, 1, 50_000);
        assert!(
            share >= a && share <= a * 1.2 + 0.003,
            "{share} admitted, allowance {a}"
        );
    }
}

#[test]
fn a_type_with_an_allowance_of_its_own_has_that_one() {
    let (_, mut config) = all().swap_remove(1);
    for (general, own, name) in [(0.0, 0.2, "slow"), (0.5, 0.2, "slow"), (0.2, 0.7, "fast")] {
        let Some(StarvationAvoidance::AcceptanceAllowance {
            allowance,
            type_allowances,
            ..
        }) = &mut config.starvation_avoidance
        else {
            panic!("the second of all() is Bouncer with acceptance allowance");
        };
        *allowance = general;
        *type_allowances = [(name.to_owned(), own)].into();
        let share = share_of_slow(&config, 1, 50_000);
        assert!(
            (0.2..=0.243).contains(&share),
            "{share} admitted, {name} {own}"
        );
    }
}

#[test]
fn a_rare_type_gets_its_allowance_on_average() {
    let (_, config) = all().swap_remove(1);
    // One request in two seconds, so the window is empty each time.
    let share = share_of_slow(&config, 2_000, 20_000);
    assert!((0.09..0.11).contains(&share), "{share}");
}

#[test]
fn help_converges_to_the_value_of_algorithm_3() {
    let (_, config) = all().swap_remove(2);
    // `fast` has AR 1. With the AR of `slow`, AAR = (1 + AR) / 2 and x = AAR − AR = (1 − AR) / 2.
    // The AR of `slow` is its p = x / (1 + x), so AR² − 4 AR + 1 = 0.
    let share = share_of_slow(&config, 1, 50_000);
    assert!((share - (2.0 - 3.0_f64.sqrt())).abs() < 0.015, "{share}");
    // Bouncer alone admits none of them.
    assert_eq!(share_of_slow(&all()[0].1, 1, 5_000), 0.0);
}

#[test]
fn a_withdrawn_request_counts_as_rejected() {
    let (_, config) = all().swap_remove(1);
    let times = warm(&config);
    let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(9));
    let view = view(&times, at(0), PARALLELISM, 50, Duration::ZERO);
    for _ in 0..100 {
        assert_eq!(strategy.decide(&of(SLOW), &view, &mut rng), Ok(()));
        strategy.withdrawn(&of(SLOW));
    }
    // All hundred were withdrawn, so the type is below its allowance, and the first eleven are
    // admitted.
    let late = View {
        queue_wait: ms(12),
        ..view
    };
    for _ in 0..11 {
        assert_eq!(strategy.decide(&of(SLOW), &late, &mut rng), Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    /// In any state of the stage there is no panic, and no refusal with free slots and no queue.
    #[test]
    fn never_refuses_what_finds_a_free_slot_and_no_queue(
        steps in prop::collection::vec(
            (0_u64..2_000, 0_u16..5, 0_u32..=PARALLELISM, 0_u32..150, 0_u64..200),
            1..200,
        ),
        samples in prop::collection::vec((0_u16..3, 0_u64..15), 0..300),
    ) {
        // These strategies keep a rate, even if slots are free.
        let keeps_a_rate = |name: &str| {
            ["AcceptFraction", "ResponseTime", "ValueCut"].iter().any(|rate| name.starts_with(rate))
        };
        for (name, config) in all().into_iter().filter(|(name, _)| !keeps_a_rate(name)) {
            let mut times = cold(&config);
            samples
                .iter()
                .for_each(|&(kind, processing)| times.record(TypeId(kind), ms(processing), 1));
            times.sync(at(0), &MemoryHost::new(), "test").unwrap();
            let (mut strategy, mut rng) = (Strategy::from_config(&config), Rng::new(1));
            let (mut now, mut record) = (0, Vec::new());
            for &(gap, kind, slots, queue, wait) in &steps {
                now += gap;
                let wait = if queue == 0 { 0 } else { wait };
                let view = view(&times, at(now), slots, queue, ms(wait));
                let verdict = strategy.decide(&of(TypeId(kind.min(2))), &view, &mut rng);
                let idle = slots < PARALLELISM && queue == 0;
                prop_assert!(!idle || verdict == Ok(()), "{name}: {view:?}");
                strategy.completed(&served(TypeId(kind.min(2)), ms(wait), ms(1)), at(now));
                tick(&mut strategy, &times, &mut record, at(now));
            }
        }
    }
}
