//! Recovery from a panic. It determines the pause in which all requests pass, and keeps the panic's
//! message for the log.
//!
//! A panic in a Wasm VM loses the requests of its worker, and Envoy creates another VM after a
//! pause. In the native filter a panic loses no request. The engine is also replaced after a pause.
//! The pause doubles while panics recur, so that requests that always cause a panic don't keep the
//! process busy with restarts.

use std::panic::{self, PanicHookInfo};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headgate_strategies::time::Instant;

/// The shortest pause. It follows the first panic.
const SHORTEST: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(10);
/// The time without a panic after which the next pause is the shortest again.
const FORGET: Duration = Duration::from_secs(60);

/// The failures of engines.
#[derive(Debug, Default)]
struct Failures {
    /// The time of the last failure, and the pause after it.
    last: Option<(Instant, Duration)>,
    /// Whether the pause was ended early.
    hurried: bool,
    message: String,
}

impl Failures {
    const NONE: Self = Self {
        last: None,
        hurried: false,
        message: String::new(),
    };

    fn failed(&mut self, now: Instant) -> Duration {
        let pause = match self.last {
            Some((at, pause)) if now.since(at) < FORGET => (2 * pause).min(LONGEST),
            _ => SHORTEST,
        };
        self.last = Some((now, pause));
        self.hurried = false;
        pause
    }

    fn is_due(&self, now: Instant) -> bool {
        self.hurried || self.last.is_none_or(|(at, pause)| now.since(at) >= pause)
    }
}

static FAILURES: Mutex<Failures> = Mutex::new(Failures::NONE);

fn failures() -> MutexGuard<'static, Failures> {
    FAILURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a panic of the engine at `now`. Returns the pause before the next engine.
pub(crate) fn failed(now: Instant) -> Duration {
    failures().failed(now)
}

/// Whether the pause after the last panic is over.
pub(crate) fn is_due(now: Instant) -> bool {
    failures().is_due(now)
}

/// Ends the pause early, because a new configuration may avoid the panic.
pub(crate) fn hurry() {
    failures().hurried = true;
}

/// Returns the message of the last panic.
pub(crate) fn last_panic() -> String {
    failures().message.clone()
}

/// Installs a panic hook for this library. The hook stores the message for the log instead of
/// writing it to standard error. It calls `panicked` at once, before the stack unwinds.
pub(crate) fn report_panics(panicked: fn()) {
    panic::set_hook(Box::new(move |info| {
        let message = describe(info);
        failures().message = message;
        panicked();
    }));
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let text = info.payload_as_str().unwrap_or("no message");
    match info.location() {
        Some(at) => format!("{text} ({}:{})", at.file(), at.line()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_while_panics_recur() {
        let mut failures = Failures::default();
        let mut now = Instant::default() + Duration::from_secs(1_000);
        assert!(failures.is_due(now));
        for ms in [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000] {
            let pause = Duration::from_millis(ms);
            assert_eq!(failures.failed(now), pause);
            assert!(!failures.is_due(now + pause - Duration::from_millis(1)));
            now = now + pause;
            assert!(failures.is_due(now));
        }
        now = now + FORGET;
        assert_eq!(failures.failed(now), SHORTEST);
    }

    #[test]
    fn another_configuration_ends_the_pause() {
        let mut failures = Failures::default();
        let now = Instant::default() + Duration::from_secs(1_000);
        failures.failed(now);
        failures.hurried = true;
        assert!(failures.is_due(now));
        failures.failed(now);
        assert!(!failures.is_due(now));
    }
}
