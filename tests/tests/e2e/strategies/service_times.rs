//! Bouncer's estimates of service times: windows that slide, and dual buffers.

use anyhow::Result;
use headgate_tests::rig::{Rig, Waiter};
use headgate_tests::wait::until;
use serde_json::{Value, json};

use super::{PROBE_AND_FILLER, policy, start};

/// Slots, and requests in a batch, of the tests of windows.
const BATCH: usize = 20;

/// A system whose workers know of batches of `/probe`s that took 20 ms each, and their number. A
/// batch that the machine holds up is followed by others, until the mean is that of quick ones.
fn knows_quick_probes(settings: &Value) -> Result<(Rig, usize)> {
    let mut settings = settings.clone();
    // Alg. 1 alone.
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
    let settings = json!({"interval": "100s", "minSamples": 4, "window": window});
    let (rig, batches) = knows_quick_probes(&settings)?;
    for _ in 0..batches {
        serve_probes(&rig, BATCH, "600000")?;
    }
    // A pause of the machine of half a second while all of the slow ones are served adds 250 ms.
    // The mean of the quick ones only is below this range, that of the slow ones only is above.
    until("a mean of quick and slow batches, 310 ms", || {
        mean_of_probes(&rig, |ms| (200.0..580.0).contains(&ms))
    })
}

#[test]
fn dual_buffers_forget_what_was_an_interval_ago() -> Result<()> {
    let (rig, _) = knows_quick_probes(&json!({"interval": "1s", "minSamples": 4}))?;
    // So few that the mean of all would stay below this for longer than is waited.
    until("a mean of later batches only, 100 ms", || {
        serve_probes(&rig, BATCH / 4, "100000").map_err(|e| e.to_string())?;
        mean_of_probes(&rig, |ms| ms > 95.0)
    })
}
