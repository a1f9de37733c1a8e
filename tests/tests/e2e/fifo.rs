//! Tests the queue that all worker threads share: requests reach the backend in the order of their
//! arrival, on whichever worker's connection they arrive.

use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::{BackendConfig, Fault, FaultKind};
use headgate_tests::policy;
use headgate_tests::rig::Rig;
use headgate_tests::wait::until;

const WAITING: usize = 300;

/// The tolerated difference between the places of a request in the orders of arrival and of
/// service. Requests on different workers that arrive within a millisecond of each other may be
/// served in the reverse order. So may requests for slots that become free at the same time.
const TOLERATED: usize = 8;
/// The tolerated number of requests with a larger difference. Slots pass over a worker whose thread
/// doesn't react within 2 ms, so the requests of this worker are late while other programs use the
/// processors.
const PASSED_OVER: usize = WAITING / 20;

#[test]
fn requests_leave_the_queue_in_the_order_of_their_arrival() -> Result<()> {
    for slots in [1, 4] {
        let order = order_of_service(slots)?;
        assert_eq!(order.len(), WAITING);
        let off = order
            .iter()
            .enumerate()
            .map(|(place, &seq)| place.abs_diff(seq));
        let by_more_than = |places| off.clone().filter(|&n| n > places).count();
        println!(
            "{slots} slots: {} of {WAITING} out of place, {} by more than {TOLERATED}, at most by \
             {}",
            by_more_than(0),
            by_more_than(TOLERATED),
            off.clone().max().unwrap_or(0)
        );
        assert!(
            by_more_than(TOLERATED) <= PASSED_OVER,
            "{slots} slots: {order:?}"
        );
    }
    Ok(())
}

/// Returns the numbers of requests in the order in which the backend received them. They are sent
/// one after the other while all slots are taken. All slots become free together, and only once
/// each slot has its next request. So the result doesn't depend on the speed of the machine.
fn order_of_service(slots: usize) -> Result<Vec<usize>> {
    let rig = Rig::builder(
        BackendConfig::constant(100, Duration::from_millis(1)),
        policy::queue_only(slots, 1_000),
    )
    .concurrency(4)
    .start()?;
    let held = rig.occupy("/held", slots)?;
    let mut waiting = Vec::new();
    rig.backend
        .inject(Fault::new(FaultKind::Hang, "/", WAITING as u64));
    for seq in 0..WAITING {
        let number = seq.to_string();
        waiting.push(rig.request("/", &[("x-seq", &number)])?);
        // The next request is sent only when this request is in the queue.
        rig.wait_for_stat("queue_length", seq as u64 + 1)?;
    }
    for expected in (slots..=WAITING).step_by(slots) {
        rig.backend.release();
        until("the next requests in the backend", || {
            match rig.backend.arrivals().len() {
                seen if seen == expected => Ok(()),
                seen => Err(format!("{seen} of {expected}")),
            }
        })?;
    }
    rig.backend.release();
    for request in held.into_iter().chain(waiting) {
        assert_eq!(request.answer()?.status, 200);
    }
    assert!(
        used_workers(&rig)? > 1,
        "one worker only: the test shows nothing"
    );
    rig.wait_until_idle()?;
    let seen = rig.backend.arrivals();
    seen.iter().map(|a| Ok(usize::try_from(a.seq)?)).collect()
}

/// Returns the number of worker threads that had connections.
fn used_workers(rig: &Rig) -> Result<usize> {
    let listeners = rig.envoy.stats()?;
    let counters = listeners
        .iter()
        .filter(|(name, _)| name.contains(".worker_") && name.ends_with(".downstream_cx_total"));
    Ok(counters
        .filter(|(name, count)| {
            name.starts_with("listener.") && !name.contains("admin") && **count > 0
        })
        .count())
}
