//! Tests that this machine can't run.

use std::io::Write as _;

/// Says that the running test is skipped, and why. `scripts/test` counts these lines, so this writes past the test
/// harness, which hides what a passing test prints.
pub fn skip(why: &str) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let _ = writeln!(std::io::stderr(), "note: {name} skipped: {why}");
}
