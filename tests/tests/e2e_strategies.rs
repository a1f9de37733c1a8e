//! Every admission strategy as Envoy enforces it with two workers, each in a test that fails if any other ran in its
//! place: by the reason that refused requests are told, and by the state of queue and slots in which it refuses the
//! first time. Requests that don't end hold the slots meanwhile, so nothing here depends on how fast the machine is.

use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::{BackendConfig, ServiceType};
use headgate_tests::http::{Answer, Pending};
use headgate_tests::load::{self, LoadSpec, RequestType};
use headgate_tests::policy;
use headgate_tests::rig::{Offered, Rig, Waiter};
use headgate_tests::wait::until;
use serde_json::{Value, json};

/// A type: its name, which is its path, too; its service time, ms; its objectives, ms.
struct Kind(&'static str, u64, &'static [(&'static str, u64)]);

/// A policy for `kinds`, each on its own path; the objectives of `default` are those of the first.
fn policy(slots: usize, kinds: &[Kind], strategy: &Value) -> Value {
    let slo = |objectives: &[(&str, u64)]| -> Value {
        let objective = |&(name, ms): &(&str, u64)| {
            (
                name.to_owned(),
                json!(policy::duration(Duration::from_millis(ms))),
            )
        };
        objectives.iter().map(objective).collect()
    };
    let mut types: Vec<Value> = kinds
        .iter()
        .map(|Kind(path, _, objectives)| {
            let name = path.trim_start_matches('/');
            let path = json!({"type": "PathPrefix", "value": path});
            json!({"name": name, "matches": [{"path": path}], "slo": slo(objectives)})
        })
        .collect();
    types.push(json!({"name": "default", "slo": slo(kinds[0].2)}));
    let mut policy = policy::policy(slots, &types);
    policy["spec"]["strategy"] = strategy.clone();
    policy["spec"]["queue"] = json!({"maxLength": 100, "timeout": "600s"});
    policy
}

fn start(kinds: &[Kind], policy: Value) -> Result<Rig> {
    let mut services = vec![ServiceType::constant("/held", Duration::ZERO)];
    services.extend(
        kinds
            .iter()
            .map(|Kind(path, ms, _)| ServiceType::constant(path, Duration::from_millis(*ms))),
    );
    Rig::builder(BackendConfig::new(1_000, services), policy)
        .concurrency(2)
        .balanced()
        .start()
}

/// Queues requests for `path` until `length` wait.
fn fill(rig: &Rig, waiting: &mut Vec<Pending>, path: &'static str, length: usize) -> Result<()> {
    while waiting.len() < length {
        waiting.push(rig.admit(&Waiter::at(path))?);
    }
    rig.wait_for_stat("queue_length", length as u64)
}

/// Why a request for `path` isn't let into the queue now, on either worker; `None` if it is.
fn refused(rig: &Rig, path: &'static str) -> Result<Option<String>> {
    rig.try_queue_on_both(&Waiter::at(path))
}

fn some(reason: &str) -> Option<String> {
    Some(reason.to_owned())
}

/// Ends everything that waits or is held.
fn finish(rig: &Rig, held: Vec<Pending>, waiting: Vec<Pending>) -> Result<()> {
    waiting.into_iter().for_each(Pending::hang_up);
    rig.wait_for_stat("queue_length", 0)?;
    rig.backend.release();
    for pending in held {
        assert_eq!(pending.answer()?.status, 200);
    }
    rig.wait_until_idle()
}

/// `probe` takes 100 ms and may take 1 s at the median and 2 s at the 90th percentile, `filler` takes 200 ms and has all
/// the time in the world.
const PROBE_AND_FILLER: [Kind; 2] = [
    Kind("/probe", 100, &[("p50", 1_000), ("p90", 2_000)]),
    Kind("/filler", 200, &[("p50", 1_000_000), ("p90", 2_000_000)]),
];

/// Fails unless `probe` is admitted and refused at the lengths of a queue of `filler`s that are given, and `filler` always
/// admitted.
fn check_bouncer(settings: &Value, admitted: &[usize], refused_at: &[(usize, &str)]) -> Result<()> {
    let strategy = json!({"type": "Bouncer", "bouncer": settings});
    let rig = start(&PROBE_AND_FILLER, policy(1, &PROBE_AND_FILLER, &strategy))?;
    rig.learn(1, &["/probe", "/filler"], 5)?;
    let held = rig.occupy("/held", 1)?;
    let mut waiting = Vec::new();
    for length in 0..=refused_at.iter().map(|(n, _)| *n).max().unwrap_or(0) {
        fill(&rig, &mut waiting, "/filler", length)?;
        if admitted.contains(&length) {
            assert_eq!(refused(&rig, "/probe")?, None, "behind {length} fillers");
        }
        if let Some((_, reason)) = refused_at.iter().find(|(n, _)| *n == length) {
            assert_eq!(
                refused(&rig, "/probe")?,
                some(reason),
                "behind {length} fillers"
            );
        }
    }
    assert_eq!(refused(&rig, "/filler")?, None);
    finish(&rig, held, waiting)
}

#[test]
fn bouncer_refuses_what_would_miss_any_objective() -> Result<()> {
    // The estimate at both percentiles: 200 ms for each filler, and 100 ms for the probe itself.
    check_bouncer(
        &json!({"minSamples": 4}),
        &[0, 2],
        &[(5, "slo_p50"), (11, "slo_p50")],
    )
}

#[test]
fn bouncer_with_logic_all_refuses_what_would_miss_all_objectives() -> Result<()> {
    check_bouncer(
        &json!({"minSamples": 4, "logic": "All"}),
        &[0, 2, 5],
        &[(11, "slo_p50")],
    )
}

/// Slots, and requests in a batch, of the tests of windows.
const BATCH: usize = 20;

/// A system whose workers know of a batch of `/probe`s that took 20 ms each.
fn knows_quick_probes(settings: &Value) -> Result<Rig> {
    let strategy = json!({"type": "Bouncer", "bouncer": settings});
    let rig = start(
        &PROBE_AND_FILLER,
        policy(BATCH, &PROBE_AND_FILLER, &strategy),
    )?;
    serve_probes(&rig, BATCH, "20000")?;
    until("workers that know what was served", || {
        mean_of_probes(&rig, |ms| (15.0..40.0).contains(&ms))
    })?;
    Ok(rig)
}

fn serve_probes(rig: &Rig, count: usize, service_us: &str) -> Result<()> {
    let probe = Waiter::at("/probe").header("x-backend-service-us", service_us);
    let pending = (0..count).map(|_| rig.admit(&probe));
    for pending in pending.collect::<Result<Vec<_>>>()? {
        assert_eq!(pending.answer()?.status, 200);
    }
    Ok(())
}

/// Whether the mean processing time of `/probe` that both workers reckon with, ms, is `right`.
fn mean_of_probes(rig: &Rig, right: impl Fn(f64) -> bool) -> Result<(), String> {
    let costs = || -> Result<Vec<u64>> {
        let lineup = rig.line_up(BATCH, &[Waiter::at("/probe"), Waiter::at("/probe")])?;
        let costs = lineup.costs_us().to_vec();
        lineup.withdraw(rig)?;
        Ok(costs)
    };
    let costs = costs().map_err(|e| e.to_string())?;
    if costs.iter().all(|&us| right(us as f64 / 1e3)) {
        Ok(())
    } else {
        Err(format!("{costs:?} µs"))
    }
}

#[test]
fn a_sliding_window_takes_the_mean_of_all_that_it_spans() -> Result<()> {
    // Dual buffers of this length would swap once in 100 s.
    let window = json!({"type": "Sliding", "step": "1s"});
    let rig = knows_quick_probes(&json!({"interval": "100s", "minSamples": 4, "window": window}))?;
    serve_probes(&rig, BATCH, "100000")?;
    until("a mean of both batches, 60 ms", || {
        mean_of_probes(&rig, |ms| (50.0..85.0).contains(&ms))
    })
}

#[test]
fn dual_buffers_forget_what_was_an_interval_ago() -> Result<()> {
    let rig = knows_quick_probes(&json!({"interval": "1s", "minSamples": 4}))?;
    // So few that the mean of all would stay below this for longer than is waited.
    until("a mean of later batches only, 100 ms", || {
        serve_probes(&rig, BATCH / 4, "100000").map_err(|e| e.to_string())?;
        mean_of_probes(&rig, |ms| ms > 95.0)
    })
}

#[test]
fn max_queue_length_refuses_whatever_finds_a_full_queue() -> Result<()> {
    // Objectives that nobody could keep.
    let kinds = [
        Kind("/short", 5, &[("p50", 1), ("p90", 1)]),
        Kind("/long", 100, &[("p50", 1), ("p90", 1)]),
    ];
    let mut policy = policy(2, &kinds, &json!({"type": "MaxQueueLength"}));
    policy["spec"]["queue"]["maxLength"] = json!(6);
    let rig = start(&kinds, policy)?;
    for kind in ["/short", "/long"].iter().cycle().take(20) {
        assert_eq!(rig.get(kind)?.status, 200);
    }
    let held = rig.occupy("/held", 2)?;
    let mut waiting = Vec::new();
    for length in 1..=6 {
        assert_eq!(refused(&rig, "/short")?, None);
        assert_eq!(refused(&rig, "/long")?, None);
        let path = if length % 2 == 0 { "/short" } else { "/long" };
        fill(&rig, &mut waiting, path, length)?;
    }
    for kind in ["/short", "/long"] {
        assert_eq!(refused(&rig, kind)?, some("queue_full"));
    }
    finish(&rig, held, waiting)
}

/// Service times whose mean is 100 ms, while the queue holds only the short ones.
const SHORT_AND_LONG: [Kind; 2] = [
    Kind("/short", 10, &[("p50", 1), ("p90", 1)]),
    Kind("/long", 190, &[("p50", 1), ("p90", 1)]),
];

/// Serves as many short as long ones and fills the queue behind one slot with `length` short ones.
fn behind_short_ones(strategy: &Value, length: usize) -> Result<(Rig, Vec<Pending>, Vec<Pending>)> {
    let rig = start(&SHORT_AND_LONG, policy(1, &SHORT_AND_LONG, strategy))?;
    for kind in ["/short", "/long"].iter().cycle().take(20) {
        assert_eq!(rig.get(kind)?.status, 200);
    }
    let held = rig.occupy("/held", 1)?;
    let mut waiting = Vec::new();
    fill(&rig, &mut waiting, "/short", length)?;
    Ok((rig, held, waiting))
}

/// Lets the last of the queue leave.
fn leave(rig: &Rig, waiting: &mut Vec<Pending>) -> Result<()> {
    if let Some(pending) = waiting.pop() {
        pending.hang_up();
    }
    rig.wait_for_stat("queue_length", waiting.len() as u64)
}

/// Queues requests for `path` until one is refused; why it was.
fn fill_until_refused(
    rig: &Rig,
    waiting: &mut Vec<Pending>,
    path: &'static str,
) -> Result<Option<String>> {
    loop {
        match rig.offer(&Waiter::at(path))? {
            Offered::Admitted(pending) => waiting.push(pending),
            Offered::Refused(answer) => return Ok(answer.refusal_reason().map(str::to_owned)),
        }
        rig.wait_for_stat("queue_length", waiting.len() as u64)?;
    }
}

#[test]
fn max_queue_wait_refuses_by_the_mean_of_all_types() -> Result<()> {
    // Eq. 5: l · 100 ms / 1 > 450 ms for l = 5. What really waits is a tenth of it. The bounds hold for means from 42 to
    // 225 ms, of whatever mix of the two types and on however slow a machine.
    let strategy = json!({"type": "MaxQueueWait", "maxQueueWait": {"limit": "450ms"}});
    let (rig, held, mut waiting) = behind_short_ones(&strategy, 2)?;
    assert_eq!(refused(&rig, "/short")?, None);
    assert_eq!(refused(&rig, "/long")?, None);
    let reason = fill_until_refused(&rig, &mut waiting, "/short")?;
    assert_eq!(reason, some("queue_wait"));
    assert!((2..=11).contains(&waiting.len()), "{}", waiting.len());
    assert_eq!(refused(&rig, "/long")?, some("queue_wait"));
    while waiting.len() > 1 {
        leave(&rig, &mut waiting)?;
    }
    assert_eq!(refused(&rig, "/long")?, None);
    finish(&rig, held, waiting)
}

#[test]
fn max_queue_wait_has_limits_for_types() -> Result<()> {
    let strategy = json!({
        "type": "MaxQueueWait",
        "maxQueueWait": {"limit": "2500ms", "limits": {"long": "250ms"}},
    });
    // For every mean between 42 and 250 ms; see above.
    let (rig, held, mut waiting) = behind_short_ones(&strategy, 1)?;
    for kind in ["/short", "/long"] {
        assert_eq!(refused(&rig, kind)?, None);
    }
    fill(&rig, &mut waiting, "/short", 6)?;
    assert_eq!(refused(&rig, "/long")?, some("queue_wait"));
    assert_eq!(refused(&rig, "/short")?, None);
    let reason = fill_until_refused(&rig, &mut waiting, "/short")?;
    assert_eq!(reason, some("queue_wait"));
    assert!((10..=60).contains(&waiting.len()), "{}", waiting.len());
    finish(&rig, held, waiting)
}

#[test]
fn accept_fraction_refuses_by_chance_even_while_the_backend_is_idle() -> Result<()> {
    let kinds = [Kind("/work", 100, &[("p50", 1), ("p90", 1)])];
    let strategy = json!({
        "type": "AcceptFraction",
        "acceptFraction": {"maxUtilization": 0.5, "window": "60s", "step": "100ms"},
    });
    let rig = start(&kinds, policy(4, &kinds, &strategy))?;
    // 80 requests/s of 100 ms ask for 8 slots, and 2 are to be used: one in four is accepted.
    let types = vec![RequestType::get("work", "/work")];
    let mut spec = LoadSpec::new(rig.addr(), types, 80.0, Duration::from_secs(8));
    spec.warmup = Duration::from_secs(2);
    let report = load::run(spec)?;
    let total = &report.total;
    println!("accepted {:.3}; {:?}", total.acceptance(), total.refused_by);
    assert!(
        (0.1..0.4).contains(&total.acceptance()),
        "{}",
        total.acceptance()
    );
    assert_eq!(total.refused_by.get("utilization"), Some(&total.refused));
    rig.wait_until_idle()?;
    // Demand is an average over a minute, so it still is above what may be used.
    const LATER: usize = 40;
    let mut refused = 0;
    for _ in 0..LATER {
        let answer = rig.get("/work")?;
        match answer.refusal_reason() {
            None => assert_eq!(answer.status, 200),
            Some(reason) => {
                assert_eq!(reason, "utilization");
                refused += 1;
            }
        }
        assert_eq!(rig.policy_stat("queue_length")?, 0);
    }
    println!("{refused} of {LATER} refused, one at a time");
    // Half would be expected if demand had fallen to half.
    assert!((5..LATER).contains(&refused), "{refused} of {LATER}");
    until("an idle stage", || {
        rig.wait_until_idle().map_err(|e| e.to_string())
    })
}

/// Requests that wait nowhere: one at a time, and each is served at once if it is let in.
const ALONE: [Kind; 1] = [Kind("/work", 1, &[("p50", 1), ("p90", 1)])];

/// SEDA's controller for a target of 500 ms, quick to move: it runs after five requests, or without any within 50 ms.
fn controller(changes: &Value) -> Value {
    let mut settings = json!({
        "target": "500ms",
        "requests": 5,
        "timeout": "50ms",
        "smoothing": 0,
        "decrease": 4,
        "maxRate": 1000,
        "minRate": 1,
        "increase": 100,
    });
    if let (Some(settings), Some(changes)) = (settings.as_object_mut(), changes.as_object()) {
        settings.extend(changes.clone());
    }
    json!({"type": "ResponseTimeController", "responseTimeController": settings})
}

/// Far more than the target, whatever the machine adds to a quick answer; and no time at all.
const SLOW: &str = "800000";
const QUICK: &str = "0";

/// A request that is served alone and takes `service_us`. Returns the answer.
fn alone(rig: &Rig, class: &str, service_us: &str) -> Result<Answer> {
    let headers = [("x-class", class), ("x-backend-service-us", service_us)];
    let answer = rig.request("/work", &headers)?.answer()?;
    match answer.refusal_reason() {
        None => assert_eq!(answer.status, 200, "{answer:?}"),
        Some(reason) => assert_eq!(reason, "response_time"),
    }
    Ok(answer)
}

/// Sends requests of a class one after the other until one of them is such as is waited for.
fn send_until(
    rig: &Rig,
    class: &str,
    service_us: &str,
    what: &str,
    condition: impl Fn(&Answer) -> bool,
) -> Result<Answer> {
    until(what, || {
        let answer = alone(rig, class, service_us).map_err(|e| e.to_string())?;
        if condition(&answer) {
            Ok(answer)
        } else {
            Err(format!("{answer:?}"))
        }
    })
}

/// So many requests at once, served and answered.
fn at_once(rig: &Rig, class: &str, service_us: &str, count: usize) -> Result<Vec<Answer>> {
    let headers = [("x-class", class), ("x-backend-service-us", service_us)];
    let pending = (0..count)
        .map(|_| rig.request("/work", &headers))
        .collect::<Result<Vec<_>>>()?;
    pending.into_iter().map(Pending::answer).collect()
}

fn is_refused(answer: &Answer) -> bool {
    answer.refusal_reason().is_some()
}

#[test]
fn response_time_controller_refuses_after_slow_answers_and_recovers_after_quick_ones() -> Result<()>
{
    let rig = start(&ALONE, policy(100, &ALONE, &controller(&json!({}))))?;
    // Nothing is known yet: all are let in, more than once at the greatest rate.
    for answer in at_once(&rig, "any", QUICK, 30)? {
        assert!(!is_refused(&answer), "{answer:?}");
    }
    // Slow answers and no queue, with nearly all slots free: no other strategy refuses then.
    until("refusals after slow answers", || {
        let answers = at_once(&rig, "any", SLOW, 20).map_err(|e| e.to_string())?;
        match answers.iter().filter(|a| is_refused(a)).count() {
            0 => Err("none".to_owned()),
            _ => Ok(()),
        }
    })?;
    assert_eq!(
        rig.policy_stat("type.work.rq_rejected.reason.response_time")?
            .min(1),
        1
    );
    until("no refusals after quick answers", || {
        let answers = at_once(&rig, "any", QUICK, 20).map_err(|e| e.to_string())?;
        match answers.iter().filter(|a| is_refused(a)).count() {
            0 => Ok(()),
            refused => Err(format!("{refused} of {}", answers.len())),
        }
    })
}

#[test]
fn response_time_controller_takes_from_lower_classes_first() -> Result<()> {
    let strategy = controller(&json!({
        "classTargets": {"gold": "500ms", "rest": "1000s"},
        "lowerClassPatience": 1_000_000,
    }));
    let mut policy = policy(100, &ALONE, &strategy);
    let header = json!({"name": "x-class", "value": "gold"});
    policy["spec"]["classes"] =
        json!([{"name": "gold", "matches": [{"headers": [header]}]}, {"name": "rest"}]);
    let rig = start(&ALONE, policy)?;
    // Gold misses its target, the rest is far inside its own.
    until("refusals of the rest", || {
        let gold = at_once(&rig, "gold", SLOW, 10).map_err(|e| e.to_string())?;
        assert!(!gold.iter().any(is_refused), "gold has a class below it");
        let rest = at_once(&rig, "rest", QUICK, 10).map_err(|e| e.to_string())?;
        match rest.iter().filter(|a| is_refused(a)).count() {
            0 => Err("none".to_owned()),
            _ => Ok(()),
        }
    })?;
    // The rest has nothing more to give, and gold still is not refused.
    for answer in at_once(&rig, "gold", SLOW, 20)? {
        assert!(!is_refused(&answer), "{answer:?}");
    }
    Ok(())
}

/// The quality that the application was told, as the backend heard it.
fn quality(answer: &Answer) -> Option<f64> {
    answer.header("x-backend-quality")?.parse().ok()
}

#[test]
fn response_time_controller_asks_for_less_quality_before_it_refuses() -> Result<()> {
    let degradation = json!({"minQuality": 0.25, "decrease": 2, "increase": 0.25});
    let strategy = controller(&json!({"degradation": degradation}));
    let rig = start(&ALONE, policy(100, &ALONE, &strategy))?;
    assert_eq!(quality(&alone(&rig, "any", QUICK)?), Some(1.0));
    let mut told = Vec::new();
    until("the lowest quality and then refusals", || {
        let answers = at_once(&rig, "any", SLOW, 10).map_err(|e| e.to_string())?;
        told.extend(answers.iter().filter_map(quality));
        match answers.iter().filter(|a| is_refused(a)).count() {
            0 => Err(format!("no refusals; {told:?}")),
            _ => Ok(()),
        }
    })?;
    // Halved step by step, never below the least, and refused only at the least.
    told.dedup();
    assert_eq!(told.last(), Some(&0.25), "{told:?}");
    assert!(told.is_sorted_by(|a, b| a >= b), "{told:?}");
    assert!(
        told.iter().all(|q| [1.0, 0.5, 0.25].contains(q)),
        "{told:?}"
    );
    let full = send_until(&rig, "any", QUICK, "full quality again", |answer| {
        quality(answer) == Some(1.0)
    })?;
    assert!(!is_refused(&full));
    Ok(())
}

#[test]
fn response_time_controller_without_admission_degrades_and_never_refuses() -> Result<()> {
    let degradation =
        json!({"minQuality": 0.25, "decrease": 2, "increase": 0.25, "admission": false});
    let strategy = controller(&json!({"degradation": degradation}));
    let rig = start(&ALONE, policy(100, &ALONE, &strategy))?;
    let mut lowest = 0;
    until("several runs at the lowest quality", || {
        let answers = at_once(&rig, "any", SLOW, 10).map_err(|e| e.to_string())?;
        assert!(!answers.iter().any(is_refused), "{answers:?}");
        lowest += usize::from(answers.iter().all(|a| quality(a) == Some(0.25)));
        match lowest {
            3.. => Ok(()),
            _ => Err(format!("{:?}", answers.last().and_then(quality))),
        }
    })
}

/// Chronos' controller; its target is either far away or missed by far.
fn backlog(target: &str, changes: &Value) -> Value {
    let mut settings = json!({"target": target, "period": "100ms"});
    if let (Some(settings), Some(changes)) = (settings.as_object_mut(), changes.as_object()) {
        settings.extend(changes.clone());
    }
    json!({"type": "BacklogControl", "backlogControl": settings})
}

const LIGHT_AND_HEAVY: [Kind; 2] = [
    Kind("/light", 10, &[("p50", 1), ("p90", 1)]),
    Kind("/heavy", 100, &[("p50", 1), ("p90", 1)]),
];

/// A system that has served enough to have a bound, whose only slot is then held.
fn bounded(strategy: &Value, bound: u64) -> Result<(Rig, Vec<Pending>)> {
    let rig = start(&LIGHT_AND_HEAVY, policy(1, &LIGHT_AND_HEAVY, strategy))?;
    for _ in 0..25 {
        assert_eq!(rig.get("/light")?.status, 200);
    }
    rig.wait_for_stat("backlog_bound", bound)?;
    let held = rig.occupy("/held", 1)?;
    Ok((rig, held))
}

/// A request that says what it costs.
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
    // A request that says nothing costs 1.
    assert_eq!(refused(&rig, "/light")?, some("backlog"));
    leave(&rig, &mut waiting)?;
    assert_eq!(refused(&rig, "/light")?, None);
    finish(&rig, held, waiting)
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
    // One heavy request fits beside light ones, two don't, on a machine that takes up to half as long again.
    let settings = json!({"cost": {"type": "Measured"}, "maxBacklog": 590});
    let rig = start(&kinds, policy(SLOTS, &kinds, &backlog("1000s", &settings)))?;
    rig.learn(SLOTS, &["/light", "/heavy"], 60)?;
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
    let settings = json!({"cost": {"type": "Header"}, "maxBacklog": 10});
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
    // What finds a free slot and nobody waiting doesn't wait, so it is admitted all the same.
    let held = rig.occupy("/held", 10)?;
    assert_eq!(refused(&rig, "/work")?, some("backlog"));
    finish(&rig, held, Vec::new())
}

#[test]
fn backlog_control_in_proportion_refuses_by_chance() -> Result<()> {
    const TRIES: usize = 40;
    let settings = json!({"control": "Proportional"});
    let rig = start(&ALONE, policy(10, &ALONE, &backlog("500ms", &settings)))?;
    // Half as long again as the target: a probability of one half.
    let millionths = until("a probability between 0 and 1", || {
        at_once(&rig, "any", "750000", 10).map_err(|e| e.to_string())?;
        match rig.policy_stat("backlog_bound") {
            Ok(bound @ 400_000..900_000) => Ok(bound),
            Ok(bound) => Err(format!("{bound} millionths")),
            Err(error) => Err(error.to_string()),
        }
    })?;
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
    // In one and the same state of queue and slots, where every other strategy always decides the same.
    assert!((1..TRIES).contains(&refused), "{refused} of {TRIES}");
    finish(&rig, held, Vec::new())
}

#[test]
fn backlog_control_tells_the_rejection_rate() -> Result<()> {
    let settings = json!({"cost": {"type": "Header"}, "maxBacklog": 1});
    let (rig, held) = bounded(&backlog("1000s", &settings), 1)?;
    let mut waiting = Vec::new();
    fill(&rig, &mut waiting, "/light", 1)?;
    let rate = |answer: &Answer| -> Option<f64> {
        answer.header("x-headgate-rejection-rate")?.parse().ok()
    };
    // Of a period in which requests were refused.
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
fn backlog_control_tells_no_rejection_rate_without_hint() -> Result<()> {
    let settings = json!({"cost": {"type": "Header"}, "maxBacklog": 1, "hint": false});
    let (rig, held) = bounded(&backlog("1000s", &settings), 1)?;
    let mut waiting = Vec::new();
    fill(&rig, &mut waiting, "/light", 1)?;
    let answer = rig.get("/light")?;
    assert_eq!(answer.refusal_reason(), Some("backlog"));
    assert_eq!(answer.header("x-headgate-rejection-rate"), None);
    finish(&rig, held, waiting)
}
