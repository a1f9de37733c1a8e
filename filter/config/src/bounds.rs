//! Checks of single values, with messages for invalid ones.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::ConfigError;

/// Checks that `number` is within `bounds`.
pub(super) fn within<T: Copy + PartialOrd + Display>(
    field: impl Display,
    number: T,
    bounds: RangeInclusive<T>,
) -> Result<(), ConfigError> {
    let (least, most) = (bounds.start(), bounds.end());
    let problem = || format!("{number}; {least} to {most}");
    ensure(bounds.contains(&number), field, problem)
}

/// Checks that `number` is above 0 and at most `most`.
pub(super) fn positive(field: impl Display, number: f64, most: f64) -> Result<(), ConfigError> {
    // NaN isn't above 0.
    let is_right = number > 0.0 && number <= most;
    ensure(is_right, field, || {
        format!("{number}; above 0, at most {most}")
    })
}

/// Checks that `count` is at most `most`.
pub(super) fn at_most(field: impl Display, count: usize, most: usize) -> Result<(), ConfigError> {
    ensure(count <= most, field, || format!("{count}; at most {most}"))
}

/// Checks that `name` is the lower case name of a header.
pub(super) fn header_name(field: impl Display, name: &str) -> Result<(), ConfigError> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_right = !name.is_empty() && name.bytes().all(plain);
    ensure(is_right, field, || {
        format!("{name:?}; a lower case header name")
    })
}

/// Checks that the window of the settings at `at` holds 2 to 10000 steps.
pub(super) fn window(at: impl Display, window_us: u64, step_us: u64) -> Result<(), ConfigError> {
    let steps = window_us.checked_div(step_us).unwrap_or(0);
    let field = format_args!("{at}.window_us");
    ensure((2..=10_000).contains(&steps), field, || {
        format!("{window_us} in steps of {step_us}; 2 to 10000 steps")
    })
}

/// Returns an error at `field` unless `is_right`.
pub(super) fn ensure(
    is_right: bool,
    field: impl Display,
    problem: impl FnOnce() -> String,
) -> Result<(), ConfigError> {
    match is_right {
        true => Ok(()),
        false => Err(ConfigError::new(field.to_string(), problem())),
    }
}
