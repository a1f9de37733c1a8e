//! The two text formats that a scraper can ask for.
//!
//! The crate writes OpenMetrics, where a counter's family has no `_total` and an info's no `_info`. Plain
//! tools (`curl | promtool check metrics`, old scrapers) read Prometheus' older text format, where a family
//! has the name of its samples. Serving one under the other's content type loses types and help texts
//! without a word, so both are made properly.

use std::fmt::Write as _;

/// A format of `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Text,
}

impl Format {
    /// The format for a request with this `Accept` header: OpenMetrics for who names it and doesn't
    /// prefer plain text.
    #[must_use]
    pub fn negotiate(accept: Option<&str>) -> Self {
        let accept = accept.unwrap_or_default();
        let weight = |wanted: &str| accept.split(',').filter_map(|r| weight(r, wanted)).max();
        match (
            weight("application/openmetrics-text"),
            weight("text/plain").unwrap_or(0),
        ) {
            (Some(open), text) if open > 0 && open >= text => Self::OpenMetrics,
            _ => Self::Text,
        }
    }

    /// The `Content-Type` of the format.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Weight in thousandths of the media range `range`, such as `text/plain;version=0.0.4;q=0.5`, if it is
/// `wanted` in a version that is spoken here.
fn weight(range: &str, wanted: &str) -> Option<u32> {
    let mut parts = range.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case(wanted) {
        return None;
    }
    let mut weight = 1_000;
    for (name, value) in parts.filter_map(|p| p.split_once('=')) {
        match name.trim().to_ascii_lowercase().as_str() {
            "q" => {
                let q: f64 = value.trim().parse().unwrap_or(0.0);
                weight = (q.clamp(0.0, 1.0) * 1e3) as u32;
            }
            "version" if !matches!(value.trim(), "1.0.0" | "0.0.1" | "0.0.4") => return None,
            _ => {}
        }
    }
    Some(weight)
}

/// OpenMetrics as Prometheus' text format: families get the names of their samples.
pub(super) fn to_text_format(open: &str) -> String {
    let mut out = String::with_capacity(open.len());
    // The help line comes before the type, which decides about the name.
    let mut help = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            // Writing to a String can't fail.
            if let Some((_, help)) = help.take() {
                let _ = writeln!(out, "# HELP {name}{suffix} {help}");
            }
            let _ = writeln!(out, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}
