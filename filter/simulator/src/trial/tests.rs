use std::fmt::Write as _;
use std::num::NonZeroUsize;

use super::value_tests::{number, row};
use super::*;
use crate::progress::Silent;
use crate::report::ReportRow;
use crate::samples;
use crate::source::Request;
use crate::workload::{Bursts, Process, ServiceTime, TypeLoad};
use serde_json::Value;

/// Returns Bouncer's basic policy and the paper's mix.
fn stage_and_workload() -> (StageConfig, Workload) {
    (samples::stage(), samples::workload())
}

fn plan(offered: Offered) -> Plan {
    Plan {
        offered,
        parallelism: None,
        requests: Some(40_000),
        seeds: Some(2),
        seed: None,
        warm_up: Some(Duration::from_secs(2)),
    }
}

fn run(plan: Plan, size: &Size) -> Report {
    let (stage, _) = stage_and_workload();
    let trial = Trial::new(stage, "default/simulated", plan, "workload.yaml");
    trial.run(size, &Silent).unwrap()
}

#[test]
fn bins_have_round_lengths_and_are_not_too_many() {
    const S: u64 = 1_000_000_000;
    assert_eq!(bins(5 * S, 35 * S).len(), 61, "60 of half a second");
    assert_eq!(bins(0, 120 * S)[..3], [0, S, 2 * S]);
    assert_eq!(bins(0, S / 20), [0, S / 20]);
    assert!(bins(0, 7 * 24 * 3600 * S).len() <= 121);
}

#[test]
fn a_seed_gives_one_report_byte_for_byte_whatever_the_threads() {
    let (_, workload) = stage_and_workload();
    let bursty = workload.clone().by(Process::Bursty(Bursts {
        ratio: 4.0,
        share: 0.2,
        length: Duration::from_millis(200),
    }));
    let phase = |rate| Phase {
        duration: Duration::from_millis(500),
        rate: Rate::Factor(rate),
    };
    for offered in [
        Offered::Loads {
            workload,
            loads: vec![Rate::Factor(0.9), Rate::PerSecond(20_000.0)],
        },
        Offered::Phases {
            workload: bursty,
            phases: vec![phase(0.8), phase(2.0)],
        },
    ] {
        let text = |threads: usize, seed| {
            let size = Size {
                requests: Some(5_000),
                seeds: Some(3),
                seed: Some(seed),
                threads: NonZeroUsize::new(threads),
            };
            let report = run(plan(offered.clone()), &size);
            let html = crate::report::html::html(&report);
            (
                serde_json::to_string(&report).unwrap(),
                crate::report::text::text(&report),
                html,
            )
        };
        let once = text(1, 7);
        assert_eq!(once, text(3, 7));
        assert_ne!(once.0, text(3, 8).0);
    }
}

/// Returns the access log that Envoy would write for `workload` at `per_second`, with exact times.
fn log(workload: &Workload, per_second: f64, seed: u64, requests: usize) -> String {
    let mut traffic = workload.steady(per_second, seed);
    let taken: Vec<Request> = (0..requests).filter_map(|_| traffic.take()).collect();
    let mut log = String::new();
    // Envoy writes lines in the order of requests' ends. Any order other than that of arrivals
    // tests the sorting.
    for request in taken.iter().rev() {
        let (us, ms) = (request.at / 1_000, request.processing as f64 / 1e6);
        let (minute, second, us) = (us / 60_000_000, us / 1_000_000 % 60, us % 1_000_000);
        let name = &workload.types()[request.kind].name;
        let _ = writeln!(
            log,
            r#"{{"start_time":"2026-01-05T10:{minute:02}:{second:02}.{us:06}Z","method":"GET","path":"/q/{name}?n=1","duration":{ms:.6},"upstream_host":"10.0.0.2:80"}}"#
        );
    }
    log
}

#[test]
fn a_recorded_poisson_process_gives_what_the_modelled_one_gives() {
    let (stage, workload) = stage_and_workload();
    let load = Rate::Factor(1.3);
    let per_second = workload.per_second(load, stage.parallelism);
    let log = log(&workload, per_second, 99, 150_000);
    let recording = Recording::read(log.as_bytes(), &stage).unwrap();
    assert_eq!((recording.count(), recording.notes().len()), (150_000, 0));
    assert!((recording.per_second() / per_second - 1.0).abs() < 0.01);

    // The requests are the same in both runs, so chance has little influence.
    let modelled = Plan {
        requests: Some(150_000),
        ..plan(Offered::Loads {
            workload,
            loads: vec![load],
        })
    };
    let cold = |plan| Plan {
        seeds: Some(1),
        seed: Some(99),
        warm_up: Some(Duration::ZERO),
        ..plan
    };
    let size = Size::default();
    let modelled = run(cold(modelled), &size);
    let recorded = run(cold(Plan::replay(recording)), &size);
    for kind in ["fast", "mediumfast", "mediumslow", "slow", "ALL"] {
        let of = |name| {
            (
                number(row(&modelled, kind), name),
                number(row(&recorded, kind), name),
            )
        };
        let (expected, found) = of("rejected_pct");
        assert!((expected - found).abs() < 1.0, "{kind}: {expected} {found}");
        for time in ["rt_p50_ms", "rt_p90_ms"] {
            let (expected, found) = of(time);
            assert!(
                (found / expected - 1.0).abs() < 0.03,
                "{kind} {time}: {expected} {found}"
            );
        }
    }
    let utilization = number(row(&recorded, "ALL"), "utilization");
    assert!(utilization > 0.98, "{utilization}");
}

#[test]
fn a_faster_replay_meets_the_load_of_its_speed() {
    let (stage, workload) = stage_and_workload();
    let per_second = workload.per_second(Rate::Factor(0.5), stage.parallelism);
    let log = log(&workload, per_second, 5, 30_000);
    let recording = Recording::read(log.as_bytes(), &stage).unwrap();
    let recorded = Plan {
        offered: Offered::Recorded {
            recording,
            speeds: vec![1.0, 3.0],
        },
        ..plan(Offered::Loads {
            workload,
            loads: Vec::new(),
        })
    };
    let report = run(recorded, &Size::default());
    let all: Vec<&ReportRow> = report
        .rows
        .iter()
        .filter(|row| row.get("type") == Some(&Value::from("ALL")))
        .collect();
    let of = |name| [number(all[0], name), number(all[1], name)];
    let (busy, rejected) = (of("utilization"), of("rejected_pct"));
    assert!((busy[0] - 0.5).abs() < 0.03 && busy[1] > 0.98, "{busy:?}");
    assert!(rejected[0] < 0.1 && rejected[1] > 8.0, "{rejected:?}");
    assert!(
        report
            .figures
            .iter()
            .any(|f| f.title.ends_with("at 3 × the recorded rate"))
    );
}

#[test]
fn phases_are_distinguished() {
    let (_, workload) = stage_and_workload();
    let phase = |rate| Phase {
        duration: Duration::from_secs(3),
        rate: Rate::Factor(rate),
    };
    let phases = vec![phase(0.6), phase(2.0), phase(0.6)];
    let report = run(plan(Offered::Phases { workload, phases }), &Size::default());
    let all: Vec<&ReportRow> = report
        .rows
        .iter()
        .filter(|row| row.get("type") == Some(&Value::from("ALL")))
        .collect();
    let of = |name| all.iter().map(|row| number(row, name)).collect::<Vec<_>>();
    assert_eq!(of("phase"), [1.0, 2.0, 3.0]);
    assert_eq!(of("from_s"), [0.0, 3.0, 6.0]);
    let (rejected, busy) = (of("rejected_pct"), of("utilization"));
    assert!(
        rejected[0] < 0.1 && rejected[1] > 10.0 && rejected[2] < 1.0,
        "{rejected:?}"
    );
    assert!((busy[0] - 0.6).abs() < 0.05 && busy[1] > 0.97, "{busy:?}");
}

#[test]
fn a_policy_that_only_counts_is_tried_as_if_it_enforced() {
    let (mut stage, workload) = stage_and_workload();
    stage.mode = Mode::DryRun;
    let offered = Offered::Loads {
        workload,
        loads: vec![Rate::Factor(1.5)],
    };
    let trial = Trial::new(stage, "default/simulated", plan(offered), "workload.yaml");
    let report = trial.run(&Size::default(), &Silent).unwrap();
    assert!(number(row(&report, "slow"), "rejected_pct") > 50.0);
    assert!(report.notes[0].starts_with("the policy has mode DryRun"));
}

#[test]
fn a_load_whose_run_would_take_years_is_refused() {
    let problem = |load| {
        let (stage, workload) = stage_and_workload();
        let offered = Offered::Loads {
            workload,
            loads: vec![Rate::Factor(0.8), load],
        };
        let trial = Trial::new(stage, "default/simulated", plan(offered), "workload.yaml");
        let size = Size {
            requests: Some(100),
            ..Size::default()
        };
        trial.run(&size, &Silent).err().map(|e| e.to_string())
    };
    // 100 requests in a year are 3.17e-6 per second.
    let least = "at least 3.171e-6, at which 100 requests take a year; or fewer requests";
    let rate = problem(Rate::PerSecond(1e-300)).unwrap();
    assert_eq!(rate, format!("rate: 1e-300; {least}"));
    let load = problem(Rate::Factor(1e-300)).unwrap();
    assert!(load.starts_with("load: 1e-300; at least "), "{load}");
    assert_eq!(problem(Rate::PerSecond(1.0)), None);
}

/// Returns a stage of 10 slots with backlog control that reports its rejection rate.
fn telling() -> StageConfig {
    let json = r#"{"stages":[{"policy":"default/p","parallelism":10,
        "queue":{"max_length":1000,"timeout_us":10000000},
        "strategy":{"type":"BacklogControl","control":"Backlog","target_us":100000,"period_us":1000000,
            "cost":{"type":"Type","costs":[1]},"hint":true},
        "types":[{"name":"default"}]}]}"#;
    let config = headgate_core::config::FilterConfig::from_json(json.as_bytes());
    config.unwrap().stages.remove(0)
}

#[test]
fn clients_with_a_rejection_rate_send_less_as_equation_3_predicts() {
    let smoothing = Smoothing {
        least: Duration::from_millis(100),
        most: Duration::from_millis(300),
    };
    let rows = |count, smoothing| {
        let kind = TypeLoad::new("default", TypeId(0), 1.0, ServiceTime::Constant(20.0));
        let offered = Offered::Clients {
            workload: Workload::new(vec![kind]).unwrap(),
            clients: Clients {
                count,
                think: Duration::from_millis(300),
                smoothing,
            },
        };
        let trial = Trial::new(telling(), "default/p", plan(offered), "clients.yaml");
        let report = trial.run(&Size::default(), &Silent).unwrap();
        let all = row(&report, "ALL");
        (
            number(all, "offered_per_s"),
            number(all, "rejected_pct") / 100.0,
        )
    };
    // Full load is 500/s. Clients that are hardly ever refused send one request per sum of think
    // time and response time.
    let (rate, refused) = rows(100, Some(smoothing));
    assert_eq!(refused, 0.0);
    assert!((rate / (100.0 / 0.32) - 1.0).abs() < 0.05, "{rate}");

    let count = 600;
    let (without, _) = rows(count, None);
    let (with, refused) = rows(count, Some(smoothing));
    let between = Duration::from_secs_f64(f64::from(count) / without);
    let expected = without * (1.0 - smoothing.reduction(refused, between));
    assert!((0.3..0.9).contains(&refused), "{refused}");
    assert!((with / expected - 1.0).abs() < 0.1, "{with} for {expected}");
    assert!(with < 0.85 * without, "{with} and {without}");
}
