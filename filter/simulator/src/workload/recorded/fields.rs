//! What a line of an access log says that a simulation needs.

use crate::workload::request::SampleRequest;

/// What Envoy writes where there is nothing to write.
const ABSENT: &str = "-";

/// What a line says.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields {
    /// Begin of the request, ns since the Unix epoch.
    pub(super) start_ns: Option<u64>,
    /// `DURATION`, ms.
    pub(super) duration_ms: Option<f64>,
    /// `x-envoy-upstream-service-time`, ms.
    pub(super) upstream_ms: Option<f64>,
    /// Whether the request came to the backend, where the line tells.
    pub(super) reached_upstream: Option<bool>,
    /// The request.
    pub(super) request: SampleRequest,
}

impl Fields {
    /// How long the backend worked on it, ns.
    pub(super) fn service_ns(&self) -> Option<u64> {
        let ms = self.upstream_ms.or(self.duration_ms)?;
        // Envoy cuts what is below a millisecond.
        let ms = if ms.fract() == 0.0 { ms + 0.5 } else { ms };
        Some((ms * 1e6) as u64)
    }
}

/// The text, unless it says that there is none.
pub(super) fn present(text: &str) -> Option<&str> {
    let text = text.trim();
    (!text.is_empty() && text != ABSENT).then_some(text)
}

/// A number of milliseconds that is none of the past.
pub(super) fn millis(text: &str) -> Option<f64> {
    let text = present(text)?;
    let ms: f64 = text.strip_suffix("ms").unwrap_or(text).parse().ok()?;
    (0.0..1e9).contains(&ms).then_some(ms)
}
