//! A policy that leaves `parallelism` out: Headgate finds how many requests the backend works on at
//! once, and follows.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::BackendConfig;
use headgate_tests::load::{self, LoadSpec};
use headgate_tests::rig::Rig;
use headgate_tests::wait::until_within;
use headgate_tests::{mix, policy};

const WORKERS: usize = 12;
const SCALE: f64 = 4.0;
/// The longest time of each part: many times what is needed, as a slow machine is no mistake.
const PATIENCE: Duration = Duration::from_secs(90);

/// Waits until the slots are in this range.
fn wait_for_slots(rig: &Rig, expected: RangeInclusive<u64>) -> Result<()> {
    until_within(PATIENCE, &format!("slots in {expected:?}"), || {
        let slots = rig.policy_stat("slots").map_err(|e| e.to_string())?;
        match expected.contains(&slots) {
            true => Ok(()),
            false => Err(format!("{slots}")),
        }
    })
}

#[test]
fn slots_follow_the_workers_of_the_backend() -> Result<()> {
    let mix = mix::bouncer(SCALE);
    let policy = policy::without_parallelism(policy::for_mix(WORKERS, &mix));
    let rig = Rig::builder(BackendConfig::for_mix(WORKERS, &mix), policy).start()?;
    let rate = 1.5 * mix::capacity_rps(&mix, WORKERS);
    let load = load::start(LoadSpec::for_mix(rig.addr(), &mix, rate, 5 * PATIENCE))?;
    let (all, half) = (WORKERS as u64, WORKERS as u64 / 2);
    wait_for_slots(&rig, all - 2..=all + 3)?;
    rig.backend.set_workers(WORKERS / 2);
    wait_for_slots(&rig, half - 1..=half + 2)?;
    rig.backend.set_workers(WORKERS);
    wait_for_slots(&rig, all - 2..=all + 3)?;
    load.stop();
    Ok(())
}
