//! Every admission strategy as Envoy enforces it with two workers, each in a test that fails if any other ran in its
//! place: by the reason that refused requests are told, and by the state of queue and slots in which it refuses the
//! first time. Requests that don't end hold the slots meanwhile, so nothing here depends on how fast the machine is.

use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::{BackendConfig, ServiceType};
use headgate_tests::http::Pending;
use headgate_tests::load::{self, LoadSpec, RequestType};
use headgate_tests::policy;
use headgate_tests::rig::{Rig, Waiter};
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
    rig.learn(1, &["/probe", "/filler"])?;
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
        &[0, 3],
        &[(5, "slo_p50"), (11, "slo_p50")],
    )
}

#[test]
fn bouncer_with_logic_all_refuses_what_would_miss_all_objectives() -> Result<()> {
    check_bouncer(
        &json!({"minSamples": 4, "logic": "All"}),
        &[0, 3, 5, 8],
        &[(11, "slo_p50")],
    )
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

#[test]
fn max_queue_wait_refuses_by_the_mean_of_all_types() -> Result<()> {
    // Eq. 5: l · 100 ms / 1 > 450 ms for l = 5. What really waits is a tenth of it.
    let strategy = json!({"type": "MaxQueueWait", "maxQueueWait": {"limit": "450ms"}});
    let (rig, held, mut waiting) = behind_short_ones(&strategy, 4)?;
    assert_eq!(refused(&rig, "/short")?, None);
    assert_eq!(refused(&rig, "/long")?, None);
    fill(&rig, &mut waiting, "/short", 5)?;
    for kind in ["/short", "/long"] {
        assert_eq!(refused(&rig, kind)?, some("queue_wait"));
    }
    leave(&rig, &mut waiting)?;
    assert_eq!(refused(&rig, "/long")?, None);
    finish(&rig, held, waiting)
}

#[test]
fn max_queue_wait_has_limits_for_types() -> Result<()> {
    let strategy = json!({
        "type": "MaxQueueWait",
        "maxQueueWait": {"limit": "450ms", "limits": {"long": "250ms"}},
    });
    let (rig, held, mut waiting) = behind_short_ones(&strategy, 2)?;
    for kind in ["/short", "/long"] {
        assert_eq!(refused(&rig, kind)?, None);
    }
    fill(&rig, &mut waiting, "/short", 3)?;
    assert_eq!(refused(&rig, "/long")?, some("queue_wait"));
    assert_eq!(refused(&rig, "/short")?, None);
    fill(&rig, &mut waiting, "/short", 5)?;
    assert_eq!(refused(&rig, "/short")?, some("queue_wait"));
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
