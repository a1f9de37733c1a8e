//! Tests of AcceptFraction, which refuses the excess of demand at random.

use std::time::Duration;

use anyhow::Result;
use headgate_tests::load::{self, Lateness, LoadSpec, RequestType};
use headgate_tests::wait::until;
use serde_json::json;

use super::{Kind, policy, start};

#[test]
fn accept_fraction_refuses_by_chance_even_while_the_backend_is_idle() -> Result<()> {
    let kinds = [Kind("/work", 100, &[("p50", 1), ("p90", 1)])];
    let strategy = json!({
        "type": "AcceptFraction",
        "acceptFraction": {"maxUtilization": 0.5, "window": "60s", "step": "100ms"},
    });
    let service = Duration::from_millis(100);
    let (rig, report) = load::undisturbed(load::tolerable(service), |_| {
        let rig = start(&kinds, policy(4, &kinds, &strategy))?;
        // 80 requests/s of 100 ms each demand 8 slots, and the policy allows 2, so one request in
        // four is accepted.
        let types = vec![RequestType::get("work", "/work")];
        let mut spec = LoadSpec::new(rig.addr(), types, 80.0, Duration::from_secs(5));
        spec.warmup = Duration::from_secs(2);
        let report = load::run(spec)?;
        let lateness = Lateness::of(&report, &rig.backend.stats());
        Ok(((rig, report), lateness))
    })?;
    let total = &report.total;
    println!("accepted {:.3}; {:?}", total.acceptance(), total.refused_by);
    assert!(
        (0.1..0.4).contains(&total.acceptance()),
        "{}",
        total.acceptance()
    );
    assert_eq!(total.refused_by.get("utilization"), Some(&total.refused));
    rig.wait_until_idle()?;
    // Demand is an average over a minute, so it is still above the allowed utilization.
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
    // If demand had fallen to half, half of the requests would be refused.
    assert!((5..LATER).contains(&refused), "{refused} of {LATER}");
    until("an idle stage", || {
        rig.wait_until_idle().map_err(|e| e.to_string())
    })
}
