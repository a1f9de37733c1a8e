//! Tests of Bouncer's estimates of service times, with sliding windows and with dual buffers.

use anyhow::Result;
use headgate_tests::rig::{Rig, Waiter};
use headgate_tests::wait::until;
use serde_json::{Value, json};

use super::{PROBE_AND_FILLER, policy, start};

/// The number of slots, and the number of requests in a batch.
const BATCH: usize = 20;

/// Starts a system whose workers have learned batches of `/probe` requests of 20 ms each. Returns
/// the system and the number of batches. If the machine delays a batch, more batches follow until
/// the mean is that of quick requests.
fn knows_quick_probes(settings: &Value) -> Result<(Rig, usize)> {
    let mut settings = settings.clone();
    // Test Algorithm 1 alone.
    settings["shedByValue"] = json!(false);
    let strategy = json!({"type": "Bouncer", "bouncer": settings});
    let rig = start(
        &PROBE_AND_FILLER,
        policy(BATCH, &PROBE_AND_FILLER, &strategy),
    )?;
    let mut batches = 0;
    until("workers that know what was served", || {
        batches += 1;
        serve_probes(&rig, BATCH, "20000").map_err(|e| e.to_string())?;
        mean_of_probes(&rig, |ms| (15.0..40.0).contains(&ms))
    })?;
    Ok((rig, batches))
}

fn serve_probes(rig: &Rig, count: usize, service_us: &str) -> Result<()> {
    let probe = Waiter::at("/probe").header("x-backend-service-us", service_us);
    let pending = (0..count).map(|_| rig.admit(&probe));
    for pending in pending.collect::<Result<Vec<_>>>()? {
        assert_eq!(pending.answer()?.status, 200);
    }
    Ok(())
}

/// Checks with `right` the mean processing time of `/probe`, ms, at both workers.
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
    // Dual buffers of this length would be swapped only once in 100 s.
    let window = json!({"type": "Sliding", "step": "1s"});
    let settings = json!({"interval": "100s", "minSamples": 4, "window": window});
    let (rig, batches) = knows_quick_probes(&settings)?;
    for _ in 0..batches {
        serve_probes(&rig, BATCH, "600000")?;
    }
    // A pause of the machine of half a second during all slow batches adds 250 ms. The mean of only
    // quick batches is below this range, and the mean of only slow batches is above it.
    until("a mean of quick and slow batches, 310 ms", || {
        mean_of_probes(&rig, |ms| (200.0..580.0).contains(&ms))
    })
}

#[test]
fn dual_buffers_forget_what_was_an_interval_ago() -> Result<()> {
    let (rig, _) = knows_quick_probes(&json!({"interval": "1s", "minSamples": 4}))?;
    // The batches are so small that the mean of all batches would stay below this value for longer
    // than the test waits.
    until("a mean of later batches only, 100 ms", || {
        serve_probes(&rig, BATCH / 4, "100000").map_err(|e| e.to_string())?;
        mean_of_probes(&rig, |ms| ms > 95.0)
    })
}
