//! The progress of a simulation, on standard error if that is a terminal.

use std::fmt::Write;

use headgate_simulator::Progress;
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

const TEMPLATE: &str =
    "{bar:30.cyan/dim} {human_pos} of {human_len} requests, {speed}/s, {eta} left";

/// A progress bar, which is invisible if standard error is no terminal.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(quiet: bool) -> Self {
        let target = match quiet {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr_with_hz(5),
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.with_key("speed", speed));
        }
        Self(bar)
    }

    /// Removes the bar from the screen.
    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// Writes the number of requests per second without decimals. The field of indicatif has decimals.
fn speed(state: &ProgressState, out: &mut dyn Write) {
    // If the write fails, the number is missing.
    let _ = write!(out, "{}", HumanCount(state.per_sec() as u64));
}

impl Progress for Bar {
    fn expect(&self, requests: u64) {
        self.0.inc_length(requests);
    }

    fn done(&self, requests: u64) {
        self.0.inc(requests);
    }
}
