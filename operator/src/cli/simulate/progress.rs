//! How far a simulation has come, on standard error where somebody looks at a terminal.

use headgate_simulator::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const TEMPLATE: &str =
    "{bar:30.cyan/dim} {human_pos} of {human_len} requests, {per_sec} in real time, {eta} left";

/// A bar; invisible where standard error is no terminal.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(quiet: bool) -> Self {
        let target = match quiet {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr_with_hz(5),
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Takes it off the screen.
    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Bar {
    fn expect(&self, requests: u64) {
        self.0.inc_length(requests);
    }

    fn done(&self, requests: u64) {
        self.0.inc(requests);
    }
}
