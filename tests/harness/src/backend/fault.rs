//! Failures that a test orders in advance.

use serde::{Deserialize, Serialize};

/// How a request goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultKind {
    /// Its connection (HTTP/2: its stream) is closed without an answer when its service ends.
    Reset,
    /// It keeps its worker until its client leaves or [`release`](super::Backend::release) is called.
    Hang,
    /// It is answered with `status` when its service ends.
    Status,
    /// Its service takes `delay_ms` longer.
    Slow,
}

/// The next `count` requests under `path` go wrong in one way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// How.
    pub kind: FaultKind,
    /// Prefix of the paths it is for.
    #[serde(default = "any_path")]
    pub path: String,
    /// How many requests it strikes.
    #[serde(default = "once")]
    pub count: u64,
    /// Status for [`FaultKind::Status`].
    #[serde(default = "internal_error")]
    pub status: u16,
    /// Extra service time for [`FaultKind::Slow`], ms.
    #[serde(default)]
    pub delay_ms: u64,
}

impl Fault {
    /// `kind` for the next `count` requests under `path`.
    pub fn new(kind: FaultKind, path: &str, count: u64) -> Self {
        Self {
            kind,
            path: path.to_owned(),
            count,
            status: internal_error(),
            delay_ms: 0,
        }
    }
}

fn any_path() -> String {
    "/".to_owned()
}

fn once() -> u64 {
    1
}

fn internal_error() -> u16 {
    500
}
