//! A policy's `Programmed` condition: what the proxies that should enforce it say about it.

use serde::{Deserialize, Serialize};

use super::registry::{Proxy, RunState};

/// A condition in the sense of the Kubernetes API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Whether it holds.
    pub status: bool,
    /// One word, for programs.
    pub reason: String,
    /// One line, for people.
    pub message: String,
}

impl Condition {
    /// A condition.
    #[must_use]
    pub fn new(status: bool, reason: &str, message: impl Into<String>) -> Self {
        Self { status, reason: reason.to_owned(), message: message.into() }
    }
}

/// Whether the proxies that should enforce policy `name` do so.
///
/// Reasons: `Programmed` (all run it), `PartiallyProgrammed` (some do, the rest haven't answered),
/// `Pending` (none has answered), `EnvoyRejected` (one refused the newest version), `NoProxies`.
#[must_use]
pub fn programmed<'a>(name: &str, proxies: impl IntoIterator<Item = &'a Proxy>) -> Condition {
    let (mut running, mut total, mut rejected) = (0_usize, 0_usize, None);
    for proxy in proxies {
        if proxy.disconnected.is_some() || !proxy.is_to_run(name) {
            continue;
        }
        total += 1;
        match proxy.run_state() {
            RunState::Running => running += 1,
            RunState::Rejected(message) => rejected = Some((proxy.identity.id.clone(), message)),
            RunState::Pending => {}
        }
    }
    let share = format!("{running} of {total} proxies run it");
    if let Some((id, message)) = rejected {
        let kept = "the last good configuration stays";
        return Condition::new(false, "EnvoyRejected", format!("{share}; {id} refused it: {message}; {kept}"));
    }
    match (running, total) {
        (_, 0) => Condition::new(false, "NoProxies", "no connected proxy stands for its target"),
        (r, t) if r == t => Condition::new(true, "Programmed", share),
        (0, _) => Condition::new(false, "Pending", share),
        _ => Condition::new(false, "PartiallyProgrammed", share),
    }
}
