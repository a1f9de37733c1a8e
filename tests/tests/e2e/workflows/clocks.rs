//! Hosts whose clocks are years apart. The filter reads the monotonic clock only, which counts from the start of a host,
//! and what proxies tell each other is spans of time; a time that one of them took for its own would show here.

use std::time::Duration;

use anyhow::Result;
use headgate_tests::envoy::{EnvoyProcess, can_shift_clocks};
use headgate_tests::wait::lock_machine;

use super::sidecar::workflows;
use super::{Pair, check_announced_rates, check_what_a_call_says, guarantees};

/// Ten years.
const AHEAD: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// `a` on the host whose clock is ahead: what it says is read by `b`, and what `b` says by it.
fn apart(back: &serde_json::Value) -> Result<Pair> {
    Pair::start_by(&workflows(), back, |bootstrap| {
        EnvoyProcess::start_ahead(bootstrap, 2, AHEAD)
    })
}

#[test]
fn a_call_says_the_same_to_a_host_with_another_clock() -> Result<()> {
    if !can_shift_clocks() {
        return Ok(());
    }
    let _lock = lock_machine()?;
    let pair = apart(&workflows())?;
    check_what_a_call_says(&pair)?;
    pair.check()
}

#[test]
fn a_rate_is_the_same_on_hosts_with_clocks_that_are_years_apart() -> Result<()> {
    if !can_shift_clocks() {
        return Ok(());
    }
    let _lock = lock_machine()?;
    let pair = apart(&guarantees())?;
    check_announced_rates(&pair)?;
    pair.check()
}
