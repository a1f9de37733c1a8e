//! Failures that a test injects in advance.

use serde::{Deserialize, Serialize};

/// The failure of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultKind {
    /// The connection (with HTTP/2: the stream) is closed without an answer when the service ends.
    Reset,
    /// The request keeps its worker until its client leaves or [`release`](super::Backend::release)
    /// is called.
    Hang,
    /// The request is answered with `status` when its service ends.
    Status,
    /// The service of the request takes `delay_ms` longer.
    Slow,
}

/// A fault of the next `count` requests under `path`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The failure.
    pub kind: FaultKind,
    /// Prefix of the affected paths.
    #[serde(default = "any_path")]
    pub path: String,
    /// The number of affected requests.
    #[serde(default = "once")]
    pub count: u64,
    /// The status for [`FaultKind::Status`].
    #[serde(default = "internal_error")]
    pub status: u16,
    /// The additional service time for [`FaultKind::Slow`], ms.
    #[serde(default)]
    pub delay_ms: u64,
}

impl Fault {
    /// Returns a fault of this `kind` for the next `count` requests under `path`.
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
