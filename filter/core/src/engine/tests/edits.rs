//! Tests of the state that must survive an edit of a policy, and of the state that must not.

use super::*;
use crate::config::{AcceptFractionConfig, Logic, Mode, StrategyConfig};

/// Returns a configuration with SEDA's controller, which has a target of 50 ms for the 90th
/// percentile and runs every five requests.
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

/// Serves requests of 100 ms each on an otherwise idle process, on all workers in turn.
fn serve_slowly(process: &mut Process, requests: usize) {
    for n in 0..requests {
        let stream = process.arrive(n % process.workers.len(), "/");
        process.run_for(Duration::from_millis(100));
        process.finish(stream, Outcome::Completed);
    }
    process.run_for(Duration::from_millis(50));
}

/// In a dry run the rate has no effect, so it falls as long as the target is missed. If that rate
/// were then enforced, it would refuse all but three requests a minute.
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

    // The rate learned under enforcement survives another dry run.
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

/// While requests run and none is answered, the controller has no new information, so the rate
/// stays. That also holds after an edit has replaced the controller.
#[test]
fn requests_under_way_are_known_to_the_strategy_that_an_edit_makes() {
    const RATE: &str = "type.default.admission_rate_mhz";
    let mut process = Process::new(2, &controlled(Mode::Enforce));
    serve_slowly(&mut process, 100);
    process.arrive(0, "/");
    let mut edited = controlled(Mode::Enforce);
    if let StrategyConfig::ResponseTimeController(settings) = &mut edited.stages[0].strategy {
        settings.max_rate = 1_999.0;
    }
    process.configure(&edited);
    process.run_for(Duration::from_millis(50));
    let before = process.gauge(RATE);
    assert!((51..1_000_000).contains(&before), "{before}");
    process.run_for(Duration::from_secs(10));
    assert_eq!(process.gauge(RATE), before);
}

/// A proxy's part of the processing units changes with the endpoints. The measured demand and
/// Bouncer's state stay.
#[test]
fn the_state_of_a_strategy_survives_a_change_of_endpoints() {
    let limit = |units| AcceptFractionConfig {
        max_utilization: 1.0,
        units: Some(units),
        window_us: 10_000_000,
        step_us: 100_000,
    };
    let beside_bouncer = |units| StrategyConfig::Bouncer {
        logic: Logic::Any,
        shed_by_value: true,
        capacity: Some(limit(units)),
    };
    let alone = |units| StrategyConfig::AcceptFraction(limit(units));
    for strategy in [&beside_bouncer as &dyn Fn(f64) -> StrategyConfig, &alone] {
        let with = |units| {
            config(4, |stage| {
                stage.strategy = strategy(units);
                for kind in &mut stage.types {
                    kind.slo = vec![Objective {
                        percentile: 50.0,
                        objective_us: 5_000_000,
                    }];
                }
            })
        };
        let mut process = Process::new(1, &with(100.0));
        serve_slowly(&mut process, 100);
        // One unit is busy. If the edit restarted the measurement of the demand, the demand would
        // be zero and no request would be refused.
        let mut refused = |units| {
            process.refused.clear();
            process.configure(&with(units));
            let streams: Vec<u32> = (0..50).map(|_| process.arrive(0, "/")).collect();
            let is_limit = |(_, reason): &&(u32, Reason)| *reason == Reason::Utilization;
            let refused = process.refused.iter().filter(is_limit).count();
            for stream in streams {
                if process.requests.contains_key(&stream) {
                    process.finish(stream, Outcome::Unmeasured);
                }
            }
            refused
        };
        assert!(refused(0.01) > 40, "{:?}", strategy(1.0));
        assert_eq!(refused(100.0), 0);
    }
}

fn by_class(stage: &mut StageConfig) {
    let class = |name: &str, matches: &str| {
        let json = format!(r#"{{"name":"{name}","matches":[{matches}]}}"#);
        serde_json::from_str(&json).unwrap()
    };
    let gold = class("gold", r#"{"path":{"type":"Exact","value":"/gold"}}"#);
    stage.classes = vec![gold, class("rest", "")];
    stage.queue.discipline =
        serde_json::from_str(r#"{"type":"DRR","by":"Class","quantum_us":10000,"weights":{}}"#)
            .unwrap();
}

/// A request that arrived before the classes were added doesn't become `gold`.
#[test]
fn a_request_that_waits_while_classes_are_added_gets_the_lowest_class() {
    let mut process = Process::new(1, &config(1, |_| {}));
    process.arrive(0, "/");
    process.arrive(0, "/");
    process.configure(&config(1, by_class));
    let finish = |class: &str| {
        let name = format!("headgate.policy.ns/p.class.{class}.drr_finish");
        process.host.value(&name)
    };
    // A flow's gauge is defined when its first request waits.
    assert!(finish("rest").is_some() && finish("gold").is_none());
}

/// A dry run's order is a FIFO with types as groups, regardless of the groups of the configured
/// discipline.
#[test]
fn wait_estimates_follow_the_groups_of_an_order_that_is_enforced_from_now_on() {
    let only_default = |mode: Mode| {
        config(1, |stage| {
            by_class(stage);
            stage.mode = mode;
            stage.types.remove(0);
            stage.queue.timeout_us = 10_000_000;
        })
    };
    let mut process = Process::new(1, &only_default(Mode::DryRun));
    serve_slowly(&mut process, 40);
    process.configure(&only_default(Mode::Enforce));
    process.arrive(0, "/");
    // A FIFO's estimate is 100 ms for each waiting request.
    let waiting: Vec<u32> = (0..5).map(|_| process.arrive(0, "/")).collect();
    process.run_for(Duration::from_secs(3));
    for stream in &waiting[..4] {
        process.finish(*stream, Outcome::Unmeasured);
    }
    let (now, rest) = (process.now, headgate_strategies::request::ClassId(1));
    let request = headgate_strategies::request::Attributes {
        class: rest,
        ..headgate_strategies::request::Attributes::of(headgate_strategies::request::TypeId(0))
    };
    let stage = &process.workers[0].as_ref().unwrap().policies[0].stage;
    let wait = stage.expected_wait(&process.host, now, &request).unwrap();
    assert!(wait > Duration::from_millis(500), "{wait:?}");
}

/// Work in µs can't be added to work in rows. So the work of requests that wait or run when the
/// unit changes is counted again.
#[test]
fn work_is_counted_anew_when_its_unit_changes() {
    let by = |cost: &str| {
        config(1, |stage| {
            let strategy = format!(
                r#"{{"type":"BacklogControl","target_us":1000000,"control":"Backlog",
                "cost":{cost},"period_us":1000000,"hint":true}}"#
            );
            stage.strategy = serde_json::from_str::<StrategyConfig>(&strategy).unwrap();
            stage.queue.timeout_us = 60_000_000;
        })
    };
    let mut process = Process::new(2, &by(r#"{"type":"Measured"}"#));
    serve_slowly(&mut process, 40);
    let streams: Vec<u32> = (0..5).map(|n| process.arrive(n % 2, "/")).collect();
    let micros = process.gauge("queued_work_us");
    assert!(micros.abs_diff(400_000) < 20_000, "{micros}");
    // The costs are those of `slow` and `default`, in this order.
    process.configure(&by(r#"{"type":"Type","costs":[9,7]}"#));
    assert_eq!(process.gauge("queued_work_us"), 4 * 7);
    // The running request has cost 7 and takes 200 ms.
    process.run_for(Duration::from_millis(200));
    process.finish(streams[0], Outcome::Completed);
    process.run_for(Duration::from_secs(2));
    let stage = &process.workers[0].as_ref().unwrap().policies[0].stage;
    let request =
        headgate_strategies::request::Attributes::of(headgate_strategies::request::TypeId(1));
    let wait = stage.expected_wait(&process.host, process.now, &request);
    assert!(wait.unwrap().abs_diff(Duration::from_millis(600)) < Duration::from_millis(20));
    process.configure(&by(r#"{"type":"Measured"}"#));
    let micros = process.gauge("queued_work_us");
    assert!(micros.abs_diff(300_000) < 60_000, "{micros}");
    for stream in streams {
        process.finish(stream, Outcome::Unmeasured);
        process.settle();
    }
    process.run_for(Duration::from_millis(50));
    process.assert_nothing_booked();
}

/// Returns edit number `n`. The edits differ in order, mode, classes, types and strategy.
fn edited(n: usize) -> FilterConfig {
    let discipline = |json: &str| serde_json::from_str(json).unwrap();
    config(2, |stage| match n {
        0 => {}
        1 => stage.queue.discipline = discipline(r#"{"type":"SJF"}"#),
        2 => by_class(stage),
        3 => {
            by_class(stage);
            stage.classes.swap_remove(0);
            stage.queue.discipline =
                discipline(r#"{"type":"DRR","by":"Type","quantum_us":100,"weights":{"slow":9}}"#);
        }
        4 => {
            stage.types.remove(0);
            stage.queue.discipline =
                discipline(r#"{"type":"DRR","by":"Workflow","quantum_us":5000,"weights":{}}"#);
        }
        5 => {
            stage.mode = Mode::DryRun;
            by_class(stage);
        }
        6 => stage.queue.mode = crate::config::QueueMode::Observe,
        7 => *stage = controlled(Mode::Enforce).stages.remove(0),
        8 => *stage = controlled(Mode::DryRun).stages.remove(0),
        9 => {
            let tokens = r#"{"budget":50,"output":{"otherwise":30}}"#;
            stage.tokens = Some(serde_json::from_str(tokens).unwrap());
        }
        _ => {
            let strategy = r#"{"type":"BacklogControl","target_us":1000000,"control":"Backlog",
                "cost":{"type":"Header","header":"x-cost"},"period_us":100000,"hint":true}"#;
            stage.strategy = serde_json::from_str(strategy).unwrap();
            stage.queue.discipline = discipline(r#"{"type":"EDF"}"#);
            stage.parallelism = 2;
        }
    })
}

#[derive(Debug, Clone, Copy)]
enum Move {
    Arrive(usize, bool),
    End(usize, bool),
    Edit(usize, usize),
    Pass(u64),
    Run,
}

fn moves() -> impl proptest::strategy::Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => (0_usize..3, any::<bool>()).prop_map(|(worker, slow)| Move::Arrive(worker, slow)),
        4 => (any::<usize>(), any::<bool>()).prop_map(|(n, completed)| Move::End(n, completed)),
        2 => (0_usize..3, 0_usize..11).prop_map(|(worker, n)| Move::Edit(worker, n)),
        3 => (1_u64..30_000).prop_map(Move::Pass),
        2 => Just(Move::Run),
    ];
    prop::collection::vec(one, 1..120)
}

proptest! {
    /// Edits of all kinds reach workers at different times, in any order. Once all workers have the
    /// same configuration, slots are as they would be without edits.
    #[test]
    fn edits_that_reach_workers_one_by_one_lose_no_request(moves in moves(), last in 0_usize..4) {
        let mut process = Process::new(3, &edited(0));
        for step in moves {
            match step {
                Move::Arrive(worker, slow) => {
                    process.arrive(worker, if slow { "/slow" } else { "/gold" });
                }
                Move::End(n, completed) => {
                    let all: Vec<u32> = process.requests.keys().copied().collect();
                    if !all.is_empty() {
                        let outcome = if completed {
                            Outcome::Completed
                        } else {
                            Outcome::Unmeasured
                        };
                        process.finish(all[n % all.len()], outcome);
                    }
                }
                Move::Edit(worker, n) => {
                    process.with(worker, |engine, host, now, actions| {
                        engine.configure(host, now, &edited(n), actions).unwrap();
                    });
                }
                Move::Pass(micros) => process.pass_time(Duration::from_micros(micros)),
                Move::Run => process.run_for(Duration::from_millis(20)),
            }
            process.settle();
        }
        process.configure(&edited(last));
        process.run_for(Duration::from_millis(50));
        let running = process.in_backend();
        prop_assert!(running >= 2 || process.queued().is_empty(),
            "{:?} wait while {running} run", process.queued());
        prop_assert_eq!(process.gauge("slots_in_use"), running as u64);
        prop_assert_eq!(process.gauge("queue_length"), process.queued().len() as u64);
        while let Some(&stream) = process.requests.iter()
            .find(|(_, (_, _, at))| matches!(at, At::Backend(_))).map(|(stream, _)| stream)
        {
            process.finish(stream, Outcome::Completed);
            process.settle();
        }
        prop_assert_eq!(process.queued(), Vec::<u32>::new());
        process.assert_nothing_booked();
    }
}

/// Dashboards draw the objectives from these gauges, and alerts compare measurements with the
/// gauges.
#[test]
fn objectives_are_published_and_those_of_before_an_edit_taken_back() {
    let with = |percentiles: &[(f64, u64)]| {
        config(1, |stage| {
            let slo = percentiles.iter().map(|&(percentile, objective_us)| {
                let json =
                    format!(r#"{{"percentile":{percentile},"objective_us":{objective_us}}}"#);
                serde_json::from_str(&json).unwrap()
            });
            stage.types[1].slo = slo.collect();
        })
    };
    let published = |process: &Process| {
        ["p50", "p99_9", "p99_99"].map(|name| {
            let value = |what: &str| {
                let gauge = format!("headgate.policy.ns/p.type.default.{what}.objective.{name}");
                process.host.value(&gauge)
            };
            value("slo_response_time_us").zip(value("slo_quantile_ppm"))
        })
    };
    let mut process = Process::new(2, &with(&[(50.0, 10_000), (99.9, 20_000)]));
    assert_eq!(
        published(&process),
        [Some((10_000, 500_000)), Some((20_000, 999_000)), None]
    );
    process.configure(&with(&[(50.0, 12_000), (99.99, 30_000)]));
    assert_eq!(
        published(&process),
        [
            Some((12_000, 500_000)),
            Some((0, 0)),
            Some((30_000, 999_900))
        ]
    );
    process.configure(&FilterConfig::default());
    assert_eq!(published(&process), [Some((0, 0)); 3]);
}
