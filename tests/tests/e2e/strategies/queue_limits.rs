//! Tests of MaxQueueLength and MaxQueueWait, whose decisions depend only on the queue.

use anyhow::Result;
use headgate_tests::http::Pending;
use headgate_tests::rig::{Offered, Rig, Waiter};
use serde_json::{Value, json};

use super::{Kind, fill, finish, leave, policy, refused, some, start};

#[test]
fn max_queue_length_refuses_whatever_finds_a_full_queue() -> Result<()> {
    // No request can meet these objectives.
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

/// Service times whose mean is 100 ms. The queue holds only short requests in the tests.
const SHORT_AND_LONG: [Kind; 2] = [
    Kind("/short", 10, &[("p50", 1), ("p90", 1)]),
    Kind("/long", 190, &[("p50", 1), ("p90", 1)]),
];

/// Serves equal numbers of short and long requests, and then fills the queue behind one slot with
/// `length` short requests.
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

/// Queues requests for `path` until both workers refuse them, and returns the reason.
fn fill_until_refused(
    rig: &Rig,
    waiting: &mut Vec<Pending>,
    path: &'static str,
) -> Result<Option<String>> {
    loop {
        match rig.offer_to_either(&Waiter::at(path))? {
            Offered::Admitted(pending) => waiting.push(pending),
            Offered::Refused(answer) => return Ok(answer.refusal_reason().map(str::to_owned)),
        }
        rig.wait_for_stat("queue_length", waiting.len() as u64)?;
    }
}

#[test]
fn max_queue_wait_refuses_by_the_mean_of_all_types() -> Result<()> {
    // By Eq. 5, l · 100 ms / 1 > 450 ms for l = 5. The actual wait is a tenth of this estimate. The
    // bounds below hold for means from 42 to 225 ms, whatever the mix of the two types and the
    // speed of the machine.
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
    // The bounds below hold for means from 42 to 250 ms.
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
