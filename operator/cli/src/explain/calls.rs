//! The treatment of the backend's calls, in words.

use std::time::Duration as Span;

use headgate_core::config::SmoothingConfig;
use headgate_mesh::smoothing::Smoothing;

use super::{Part, duration};
use headgate_api::Duration;

/// Times between requests, and rejection rates, for which Eq. 3 is evaluated.
const BETWEEN: [Span; 3] = [
    Span::from_millis(100),
    Span::from_millis(300),
    Span::from_secs(1),
];
const RATES: [f64; 3] = [0.25, 0.5, 1.0];

/// Describes the delays of calls, and the resulting reduction of their rate.
pub(super) fn calls(smoothing: &SmoothingConfig) -> Part {
    let law = Smoothing {
        least: Span::from_micros(smoothing.least_us),
        most: Span::from_micros(smoothing.most_us),
    };
    let probability = "the probability is the rejection rate that the called service announces \
                       (backlogControl.hint); without it, no call is delayed";
    let less = BETWEEN.map(|between| {
        let less = RATES.map(|rate| {
            let percent = (law.reduction(rate, between) * 1e3).round() / 10.0;
            format!("{percent}% at {rate}")
        });
        format!(
            "clients that would send every {} send less: {} (Eq. 3 of Chronos)",
            Duration::from(between),
            less.join(", ")
        )
    });
    let verb = match smoothing.enforced {
        true => "delayed",
        false => "counted as if delayed",
    };
    Part {
        name: format!(
            "{verb} by {} to {}, each with a probability",
            duration(smoothing.least_us),
            duration(smoothing.most_us)
        ),
        does: std::iter::once(probability.to_owned())
            .chain(less)
            .collect(),
    }
}
