//! Tests of Bouncer, which refuses requests that it estimates to miss an objective.

use anyhow::{Result, bail};
use headgate_tests::rig::Waiter;
use serde_json::{Value, json};

use super::{Kind, PROBE_AND_FILLER, fill, finish, policy, refused, some, start};

/// Checks that `probe` is admitted behind each of these numbers of `filler`s in the queue, and
/// refused behind each of the others with the given reason. A `filler` is always admitted.
fn check_bouncer(settings: &Value, admitted: &[usize], refused_at: &[(usize, &str)]) -> Result<()> {
    let mut settings = settings.clone();
    // Test Algorithm 1 alone.
    settings["shedByValue"] = json!(false);
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
    // The estimate at both percentiles is 200 ms for each filler in the queue, and 100 ms for the
    // probe itself.
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

/// The service time of a request is proportional to its size. Behind a large request, another large
/// request would miss the objective, and a small request would not.
#[test]
fn bouncer_judges_a_request_by_its_size() -> Result<()> {
    const ROUNDS: usize = 20;
    const WORK: [Kind; 1] = [Kind("/work", 0, &[("p90", 300)])];
    let sized = |size: u64| Waiter::at("/work").header("x-size", &size.to_string());
    let strategy = json!({"type": "Bouncer", "bouncer": {"minSamples": 4, "shedByValue": false}});
    let mut policy = policy(1, &WORK, &strategy);
    policy["spec"]["types"][0]["cost"] = json!({"size": {"header": "X-Size"}});
    let rig = start(&WORK, policy)?;
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        for size in [1_u64, 100].repeat(10) {
            let (time, size) = ((2_000 * size).to_string(), size.to_string());
            let headers = [("x-size", &*size), ("x-backend-service-us", &*time)];
            rig.request("/work", &headers)?.answer()?;
        }
        let held = rig.occupy("/held", 1)?;
        let waiting = vec![rig.admit(&sized(100))?];
        rig.wait_for_stat("queue_length", 1)?;
        let [small, large] = [1, 100].map(|size| rig.try_queue_on_both(&sized(size)));
        let found = [small?, large?];
        finish(&rig, held, waiting)?;
        if found == [None, some("slo_p90")] {
            return Ok(());
        }
        seen.push(found);
    }
    bail!("after each of {ROUNDS} rounds, small and large requests were refused for {seen:?}")
}
