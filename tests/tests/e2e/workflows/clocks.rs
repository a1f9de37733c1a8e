//! Tests of two proxies on hosts whose clocks differ by years. The tests check the values that a
//! call carries about its request, and the rates that responses announce.
//!
//! The filter reads only the monotonic clock, which counts from the start of a host, and proxies
//! send each other only durations. The tests would fail if a proxy used a time of the other proxy's
//! clock as its own.

use std::time::Duration;

use anyhow::Result;
use headgate_tests::envoy::{EnvoyProcess, can_shift_clocks};
use headgate_tests::wait::lock_machine;

use super::sidecar::workflows;
use super::{Pair, check_announced_rates, check_what_a_call_says, guarantees};

/// The difference between the clocks, ten years.
const AHEAD: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Starts `a` on the host whose clock is ahead. `b` reads the headers of `a`, and `a` reads the
/// headers of `b`. If clocks can't be shifted, both clocks are the same, and the test prints a
/// note.
fn apart(back: &serde_json::Value) -> Result<Pair> {
    Pair::start_by(&workflows(), back, |bootstrap| {
        if can_shift_clocks() {
            EnvoyProcess::start_ahead(bootstrap, 2, AHEAD)
        } else {
            EnvoyProcess::start(bootstrap, 2)
        }
    })
}

#[test]
fn a_call_is_known_as_part_of_its_request() -> Result<()> {
    let _lock = lock_machine()?;
    let pair = apart(&workflows())?;
    check_what_a_call_says(&pair)?;
    pair.check()
}

#[test]
fn a_rate_announced_downstream_limits_upstream() -> Result<()> {
    let _lock = lock_machine()?;
    let pair = apart(&guarantees())?;
    check_announced_rates(&pair)?;
    pair.check()
}
