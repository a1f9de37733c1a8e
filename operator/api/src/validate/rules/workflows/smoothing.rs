//! `outbound.smoothing`: the range of the delays of calls.

use std::time::Duration as Span;

use headgate_core::config::{MAX_SMOOTHING_US, SmoothingConfig};

use super::super::{At, MILLISECOND, Time, micros};
use crate::Smoothing;
use crate::validate::schema::{self as cel, Place, Rule};

const LONGEST: Span = Span::from_micros(MAX_SMOOTHING_US);
/// The delays that the SLAs of the Chronos paper allow.
const LEAST: Time = Time {
    default: Span::from_millis(100),
    bounds: (Span::ZERO, LONGEST),
};
const MOST: Time = Time {
    default: Span::from_millis(300),
    bounds: (MILLISECOND, LONGEST),
};

pub(in crate::validate::rules) fn smoothing(
    given: Option<&Smoothing>,
    enforced: bool,
    at: &At<'_>,
) -> Option<SmoothingConfig> {
    let Smoothing { least, most } = given?;
    let least_us = at.field("least").duration(least, &LEAST);
    let most_us = at.field("most").duration(most, &MOST);
    if least_us
        .zip(most_us)
        .is_some_and(|(least, most)| least > most)
    {
        let problem = format!("{least}; at most {most}, as most is");
        at.field("least").add(problem);
    }
    Some(SmoothingConfig {
        least_us: least_us.unwrap_or(micros(LEAST.default)),
        most_us: most_us.unwrap_or(micros(MOST.default)),
        enforced,
    })
}

pub(super) fn schema(smoothing: &mut Place<'_>) {
    smoothing.at("least").time_bounds(&LEAST);
    smoothing.at("most").time_bounds(&MOST);
    let right = format!(
        "{} && {}",
        cel::right_time("self.least", &LEAST),
        cel::right_time("self.most", &MOST)
    );
    smoothing.rule(
        Rule::words(
            format!("!({right}) || duration(self.least) <= duration(self.most)"),
            "%s; at most %s, as most is",
            &["self.least", "self.most"],
        )
        .on(".least"),
    );
}
