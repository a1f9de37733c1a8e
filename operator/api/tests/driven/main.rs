//! Random policies, as the operator compiles them, drive the filter's engine through random events
//! in simulated time. Each policy that the operator accepts must be accepted by the filter. No
//! sequence of events may panic, exceed a given limit, lose a request or leave anything booked.
//!
//! The policies have every field of the API (`generated_policies_have_every_field`).
//!
//! `HEADGATE_DRIVEN_SEED` sets the seed, `HEADGATE_DRIVEN_CASES` the number of cases.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code)] // other tests need the rest
#[path = "../../../cli/tests/public/any_policy/mod.rs"]
mod any_policy;
#[path = "../../../../filter/core/tests/memory/mod.rs"]
mod memory;
mod policies;
mod process;

use std::env;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use memory::MemoryHost;
use process::Process;

/// The cases of a run in CI.
const CASES: u32 = 150;
/// The most events of a case.
const EVENTS: usize = 300;

fn variable(name: &str, default: u32) -> u32 {
    env::var(name).map_or(default, |text| text.parse().expect(name))
}

/// An event: its kind, and the seed of its random numbers.
type Event = (u8, u32);

fn run(seed: u32, workers: usize, events: &[Event]) {
    let host = MemoryHost::new();
    let mut process = Process::new(&host, workers, seed);
    process.configure(u64::from(seed));
    for &(kind, seed) in events {
        process.happens(kind, u64::from(seed));
    }
    process.drain();
}

#[test]
fn no_policy_and_no_event_breaks_the_engine() {
    let seed = variable("HEADGATE_DRIVEN_SEED", 1);
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: 3_000,
        ..Config::with_cases(variable("HEADGATE_DRIVEN_CASES", CASES))
    };
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let events = prop::collection::vec(any::<Event>(), 0..EVENTS);
    let cases = (any::<u32>(), 1_usize..4, events);
    let done = TestRunner::new_with_rng(config, rng).run(&cases, |(seed, workers, events)| {
        run(seed, workers, &events);
        Ok(())
    });
    if let Err(error) = done {
        panic!("HEADGATE_DRIVEN_SEED={seed}: {error}");
    }
}
