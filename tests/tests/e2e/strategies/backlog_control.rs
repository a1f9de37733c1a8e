//! Tests of Chronos' backlog control: its bound, the costs that count against the bound, and the
//! rejection rate that it announces.

use std::fs;
use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::{BackendConfig, ServiceType};
use headgate_tests::headgate::run_full;
use headgate_tests::http::{Answer, Pending};
use headgate_tests::rig::{Rig, Waiter};
use headgate_tests::wait::until;
use serde_json::{Value, json};

use super::{
    ALONE, Kind, QUICK, SLOW, at_once, changed, fill, finish, leave, policy, refused, some, start,
};

/// Returns the settings of Chronos' controller. Tests use targets that are either never reached or
/// missed by far.
fn backlog(target: &str, changes: &Value) -> Value {
    let settings = json!({"target": target, "period": "100ms"});
    json!({"type": "BacklogControl", "backlogControl": changed(settings, changes)})
}

const LIGHT_AND_HEAVY: [Kind; 2] = [
    Kind("/light", 10, &[("p50", 1), ("p90", 1)]),
    Kind("/heavy", 100, &[("p50", 1), ("p90", 1)]),
];

/// Starts a system, serves enough requests that the controller has this bound, and then occupies
/// the only slot.
fn bounded(strategy: &Value, bound: u64) -> Result<(Rig, Vec<Pending>)> {
    let rig = start(&LIGHT_AND_HEAVY, policy(1, &LIGHT_AND_HEAVY, strategy))?;
    for _ in 0..25 {
        assert_eq!(rig.get("/light")?.status, 200);
    }
    rig.wait_for_stat("backlog_bound", bound)?;
    let held = rig.occupy("/held", 1)?;
    Ok((rig, held))
}

/// Returns a request that states its cost.
fn costs(cost: u32) -> Waiter {
    Waiter::at("/light").header("x-headgate-cost", &cost.to_string())
}

#[test]
fn backlog_control_bounds_the_cost_that_headers_tell() -> Result<()> {
    let settings = json!({"cost": {"type": "Header"}, "maxBacklog": 10});
    let (rig, held) = bounded(&backlog("1000s", &settings), 10)?;
    let mut waiting = vec![rig.admit(&costs(4))?];
    rig.wait_for_stat("queue_length", 1)?;
    waiting.push(rig.admit(&costs(4))?);
    rig.wait_for_stat("queue_length", 2)?;
    assert_eq!(rig.try_queue_on_both(&costs(3))?, some("backlog"));
    assert_eq!(rig.try_queue_on_both(&costs(2))?, None);
    waiting.push(rig.admit(&costs(2))?);
    rig.wait_for_stat("queue_length", 3)?;
    // A request without a stated cost has a cost of 1.
    assert_eq!(refused(&rig, "/light")?, some("backlog"));
    leave(&rig, &mut waiting)?;
    assert_eq!(refused(&rig, "/light")?, None);
    finish(&rig, held, waiting)
}

/// Six bursts arrive in front of one slot, and each request has a cost of 200. On average 7.3
/// requests wait, however long each takes.
#[test]
fn a_log_of_envoy_is_a_trace_in_the_unit_of_costs() -> Result<()> {
    const BURSTS: [usize; 6] = [5, 20, 10, 15, 20, 8];
    let kinds = [Kind("/work", 20, &[("p50", 1)])];
    let service = ServiceType::constant("/work", Duration::from_millis(20));
    let queue = policy(1, &kinds, &json!({"type": "MaxQueueLength"}));
    let rig = Rig::builder(BackendConfig::new(1_000, vec![service]), queue)
        .change(|bootstrap| {
            let fields = [
                ("start_time", "START_TIME"),
                ("duration", "RESPONSE_DURATION"),
                (
                    "upstream_service_time",
                    "RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)",
                ),
                ("upstream_host", "UPSTREAM_HOST"),
                ("x-headgate-cost", "REQ(X-HEADGATE-COST)"),
            ];
            let fields = fields.map(|(name, value)| format!(r#""{name}":"%{value}%""#));
            bootstrap.log_access(&format!("{{{}}}", fields.join(",")))
        })
        .start()?;
    for burst in BURSTS {
        let burst = (0..burst).map(|_| rig.request("/work", &[("x-headgate-cost", "200")]));
        for pending in burst.collect::<Result<Vec<_>>>()? {
            assert_eq!(pending.answer()?.status, 200);
        }
    }
    let log = until("the access log", || {
        let output = rig.envoy.output();
        let lines = output
            .lines()
            .filter_map(|line| line.strip_prefix("ACCESS "));
        let lines: Vec<&str> = lines
            .filter(|line| line.contains(r#"cost":"200""#))
            .collect();
        match lines.len() == BURSTS.iter().sum::<usize>() {
            true => Ok(lines.join("\n")),
            false => Err(format!("{} lines", lines.len())),
        }
    })?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("access.log");
    fs::write(&file, log)?;
    let file = file.display().to_string();
    let found = run_full(&["sysid", &file, "--period=50ms", "--gains=1,0.1", "--json"])?;
    let found: Value = serde_json::from_str(&found)?;
    let backlog = found["mean_backlog"].as_f64();
    assert!(
        backlog.is_some_and(|cost| (700.0..2_000.0).contains(&cost)),
        "{found}"
    );
    assert!(found["mean_delay_s"].as_f64() > Some(0.05), "{found}");
    Ok(())
}

#[test]
fn backlog_control_bounds_the_cost_of_types() -> Result<()> {
    let settings = json!({"cost": {"type": "Type", "costs": {"heavy": 5}}, "maxBacklog": 10});
    let (rig, held) = bounded(&backlog("1000s", &settings), 10)?;
    let mut waiting = Vec::new();
    fill(&rig, &mut waiting, "/heavy", 1)?;
    assert_eq!(refused(&rig, "/heavy")?, None);
    fill(&rig, &mut waiting, "/light", 2)?;
    assert_eq!(refused(&rig, "/heavy")?, some("backlog"));
    assert_eq!(refused(&rig, "/light")?, None);
    fill(&rig, &mut waiting, "/light", 6)?;
    assert_eq!(refused(&rig, "/light")?, some("backlog"));
    finish(&rig, held, waiting)
}

#[test]
fn backlog_control_bounds_the_measured_work() -> Result<()> {
    const SLOTS: usize = 50;
    let kinds = [
        Kind("/light", 10, &[("p50", 1), ("p90", 1)]),
        Kind("/heavy", 300, &[("p50", 1), ("p90", 1)]),
    ];
    // One heavy request fits into the bound beside light ones, and two don't. The same holds on a
    // machine that takes up to 1.5 times as long.
    let settings = json!({"cost": {"type": "Measured"}, "maxBacklog": 590});
    let with = |settings: &Value| policy(SLOTS, &kinds, &backlog("1000s", settings));
    // While the controller learns, more requests must be able to wait than the later bound admits.
    let rig = start(&kinds, with(&json!({"cost": {"type": "Measured"}})))?;
    rig.learn(SLOTS, &["/light", "/heavy"], 60)?;
    rig.edit_policy(&with(&settings))?;
    // A bound requires requests whose costs were known at their arrival.
    for _ in 0..25 {
        assert_eq!(rig.get("/light")?.status, 200);
    }
    rig.wait_for_stat("backlog_bound", 590_000)?;
    let held = rig.occupy("/held", SLOTS)?;
    let mut waiting = Vec::new();
    assert_eq!(refused(&rig, "/heavy")?, None);
    fill(&rig, &mut waiting, "/heavy", 1)?;
    assert_eq!(refused(&rig, "/heavy")?, some("backlog"));
    assert_eq!(refused(&rig, "/light")?, None);
    finish(&rig, held, waiting)
}

#[test]
fn backlog_control_of_the_queue_length_counts_requests() -> Result<()> {
    let settings = json!({"control": "QueueLength", "cost": {"type": "Header"}, "maxBacklog": 3});
    let (rig, held) = bounded(&backlog("1000s", &settings), 3)?;
    let mut waiting = Vec::new();
    for length in 1..=3 {
        assert_eq!(rig.try_queue_on_both(&costs(100))?, None);
        waiting.push(rig.admit(&costs(100))?);
        rig.wait_for_stat("queue_length", length)?;
    }
    assert_eq!(refused(&rig, "/light")?, some("backlog"));
    leave(&rig, &mut waiting)?;
    assert_eq!(refused(&rig, "/light")?, None);
    finish(&rig, held, waiting)
}

#[test]
fn backlog_control_lowers_the_bound_when_the_delay_is_above_its_target() -> Result<()> {
    // The control law moves the bound once for each period in which requests are served. A burst is
    // served in one period, or in two if two engines report it before and after the end of a
    // period. The gains fall with target ÷ period, so with a period as long as the target a few
    // bursts are enough.
    let settings = json!({"cost": {"type": "Header"}, "maxBacklog": 10, "period": "500ms"});
    let rig = start(&ALONE, policy(10, &ALONE, &backlog("500ms", &settings)))?;
    for answer in at_once(&rig, "any", QUICK, 25)? {
        assert_eq!(answer.status, 200);
    }
    rig.wait_for_stat("backlog_bound", 10)?;
    until("a bound of 0", || {
        at_once(&rig, "any", SLOW, 10).map_err(|e| e.to_string())?;
        match rig.policy_stat("backlog_bound") {
            Ok(0) => Ok(()),
            Ok(bound) => Err(format!("{bound}")),
            Err(error) => Err(error.to_string()),
        }
    })?;
    // The slots are held, because a request that finds a free slot and an empty queue is always
    // admitted.
    rig.wait_until_idle()?;
    let held = rig.occupy("/held", 10)?;
    assert_eq!(refused(&rig, "/work")?, some("backlog"));
    finish(&rig, held, Vec::new())
}

#[test]
fn backlog_control_in_proportion_refuses_by_chance() -> Result<()> {
    const TRIES: usize = 40;
    let settings = json!({"control": "Proportional"});
    let rig = start(&ALONE, policy(10, &ALONE, &backlog("500ms", &settings)))?;
    // The delay is 1.5 times the target, which gives a rejection probability of one half.
    let millionths = until("a probability between 0 and 1", || {
        at_once(&rig, "any", "750000", 10).map_err(|e| e.to_string())?;
        match rig.policy_stat("backlog_bound") {
            Ok(bound @ 400_000..900_000) => Ok(bound),
            Ok(bound) => Err(format!("{bound} millionths")),
            Err(error) => Err(error.to_string()),
        }
    })?;
    rig.wait_until_idle()?;
    let held = rig.occupy("/held", 10)?;
    let mut refused = 0;
    for _ in 0..TRIES {
        match rig.try_queue(&Waiter::at("/work"))?.as_deref() {
            None => {}
            Some(reason) => {
                assert_eq!(reason, "backlog");
                refused += 1;
            }
        }
    }
    println!("{refused} of {TRIES} refused with a probability of {millionths} millionths");
    // The state of the queue and of the slots is the same for all requests. In the same state,
    // every other strategy always makes the same decision.
    assert!((1..TRIES).contains(&refused), "{refused} of {TRIES}");
    finish(&rig, held, Vec::new())
}

fn rate(answer: &Answer) -> Option<f64> {
    answer.header("x-headgate-rejection-rate")?.parse().ok()
}

#[test]
fn backlog_control_announces_the_rejection_rate() -> Result<()> {
    let settings = json!({"cost": {"type": "Header"}, "maxBacklog": 1});
    let (rig, held) = bounded(&backlog("1000s", &settings), 1)?;
    let mut waiting = Vec::new();
    fill(&rig, &mut waiting, "/light", 1)?;
    // Both workers refuse a request, so none of the next requests waits.
    assert_eq!(refused(&rig, "/light")?, some("backlog"));
    // The announced rate is of an earlier period in which requests were refused.
    until("a rejection rate above 0", || {
        let answer = rig.get("/light").map_err(|e| e.to_string())?;
        assert_eq!(answer.refusal_reason(), Some("backlog"));
        match rate(&answer) {
            Some(rate) if rate > 0.0 && rate <= 1.0 => Ok(()),
            _ => Err(format!("{answer:?}")),
        }
    })?;
    rig.backend.release();
    for pending in held.into_iter().chain(waiting) {
        let answer = pending.answer()?;
        let told = rate(&answer);
        assert!(
            answer.status == 200 && told.is_some_and(|rate| (0.0..=1.0).contains(&rate)),
            "{answer:?}"
        );
    }
    rig.wait_until_idle()
}

#[test]
fn backlog_control_announces_requests_that_expire_in_the_queue() -> Result<()> {
    let settings = json!({"cost": {"type": "Header"}, "maxBacklog": 10});
    let (rig, held) = bounded(&backlog("1000s", &settings), 10)?;
    until("a rejection rate above 0", || {
        let sent = rig.request("/light", &[("x-headgate-timeout-ms", "50")]);
        let answer = sent.and_then(Pending::answer).map_err(|e| e.to_string())?;
        assert_eq!(answer.refusal_reason(), Some("deadline"));
        match rate(&answer) {
            Some(rate) if rate > 0.0 && rate <= 1.0 => Ok(()),
            _ => Err(format!("{answer:?}")),
        }
    })?;
    finish(&rig, held, Vec::new())
}

#[test]
fn backlog_control_announces_no_rejection_rate_without_hint() -> Result<()> {
    let settings = json!({"cost": {"type": "Header"}, "maxBacklog": 1, "hint": false});
    let (rig, held) = bounded(&backlog("1000s", &settings), 1)?;
    let mut waiting = Vec::new();
    fill(&rig, &mut waiting, "/light", 1)?;
    assert_eq!(refused(&rig, "/light")?, some("backlog"));
    let answer = rig.get("/light")?;
    assert_eq!(answer.refusal_reason(), Some("backlog"));
    assert_eq!(answer.header("x-headgate-rejection-rate"), None);
    finish(&rig, held, waiting)
}
