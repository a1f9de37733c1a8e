//! The fields of an access log's line that a simulation needs.

use crate::workload::request::SampleRequest;

/// Envoy's placeholder for a missing value.
const ABSENT: &str = "-";

/// The fields of a line.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields {
    /// The start of the request, ns since the Unix epoch.
    pub(super) start_ns: Option<i128>,
    /// `DURATION`, ms.
    pub(super) duration_ms: Option<f64>,
    /// `x-envoy-upstream-service-time`, ms.
    pub(super) upstream_ms: Option<f64>,
    /// Whether the request reached the backend; `None` if the line has no such field.
    pub(super) reached_upstream: Option<bool>,
    pub(super) request: SampleRequest,
}

impl Fields {
    /// Returns the service time of the request, ns.
    pub(super) fn service_ns(&self) -> Option<u64> {
        self.upstream_ms.or(self.duration_ms).map(nanos)
    }

    /// Returns the time from the start of the request to its answer, ns.
    pub(super) fn duration_ns(&self) -> Option<u64> {
        self.duration_ms.map(nanos)
    }
}

/// Returns a number of milliseconds in nanoseconds. Envoy truncates to whole milliseconds, so half
/// a millisecond is added to a whole number.
fn nanos(ms: f64) -> u64 {
    let ms = if ms.fract() == 0.0 { ms + 0.5 } else { ms };
    (ms * 1e6) as u64
}

/// Returns the text, unless it is empty or the placeholder.
pub(super) fn present(text: &str) -> Option<&str> {
    let text = text.trim();
    (!text.is_empty() && text != ABSENT).then_some(text)
}

/// Parses a number of milliseconds, with or without a unit; `None` if the number is negative or is
/// at least 1e9.
pub(super) fn millis(text: &str) -> Option<f64> {
    let text = present(text)?;
    let ms: f64 = text.strip_suffix("ms").unwrap_or(text).parse().ok()?;
    (0.0..1e9).contains(&ms).then_some(ms)
}
