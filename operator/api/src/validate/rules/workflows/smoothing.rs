//! `outbound.smoothing` and the smoothing of single services: the range of the delays of calls.

use headgate_core::config::{MAX_SMOOTHING_US, SmoothingConfig};

use super::super::{At, MILLISECOND, Open, Table, time};
use crate::Smoothing;
use crate::validate::rules::schema::{Rule, SchemaField};

const LONGEST: f64 = MAX_SMOOTHING_US as f64 / 1000.0;
pub(in crate::validate::rules) static FIELDS: Table = fields! {
    "smoothing.least" => time(Open, 0.0, LONGEST),
    "smoothing.most" => time(Open, MILLISECOND, LONGEST),
    "services[].smoothing.least" => time(Open, 0.0, LONGEST),
    "services[].smoothing.most" => time(Open, MILLISECOND, LONGEST),
};

pub(in crate::validate::rules) fn smoothing(
    given: Option<&Smoothing>,
    enforced: bool,
    at: &At<'_>,
) -> Option<SmoothingConfig> {
    let Smoothing { least, most } = given?;
    let least_us = at.field("least").given_time();
    let most_us = at.field("most").given_time();
    if least_us
        .zip(most_us)
        .is_some_and(|(least, most)| least > most)
    {
        let problem = format!("{least}; 0 to most ({most})");
        at.field("least").add(problem);
    }
    Some(SmoothingConfig {
        least_us: least_us.unwrap_or_default(),
        most_us: most_us.unwrap_or_default(),
        enforced,
    })
}

pub(super) fn schema(smoothing: &mut SchemaField<'_>) {
    let right = format!(
        "{} && {}",
        smoothing.right("least"),
        smoothing.right("most")
    );
    smoothing.rule(
        Rule::words(
            format!("!({right}) || duration(self.least) <= duration(self.most)"),
            "%s; 0 to most (%s)",
            &["self.least", "self.most"],
        )
        .on(".least"),
    );
}
