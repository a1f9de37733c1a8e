//! Tests that this machine can't run.

use std::io::Write as _;

/// Reports the running test as skipped, with the reason. `scripts/test` counts the lines of such
/// reports.
pub fn skip(why: &str) {
    note(&format!("skipped: {why}"));
}

/// Prints a note about the running test. The output bypasses the test harness, which hides the
/// output of passing tests.
pub(crate) fn note(what: &str) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let _ = writeln!(std::io::stderr(), "note: {name} {what}");
}
