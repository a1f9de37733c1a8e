//! The path of a part of a configuration, and checks of the values there.

use std::collections::HashSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

use super::{ConfigError, MAX_WORKFLOW_NAME, MAX_WORKFLOW_PEERS};

/// Longest key, header name, cluster or metric, bytes.
const MAX_TEXT: usize = 256;
/// Longest SPIFFE id (the specification's bound), bytes.
const MAX_PEER: usize = 2048;
/// Longest time in most fields, µs.
pub(super) const HOUR_US: u64 = 3_600_000_000;

/// The result of a check.
pub(super) type Checked = Result<(), ConfigError>;

/// A part of a configuration, by its path. Each check names the field below the part.
#[derive(Debug)]
pub(super) struct Place(String);

impl Place {
    /// Returns the place at `path`, which may be empty.
    pub(super) fn new(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    /// Returns the place of a field.
    pub(super) fn field(&self, field: &str) -> Self {
        Self(self.path(field))
    }

    /// Returns the place of an item of a list.
    pub(super) fn item(&self, list: &str, index: usize) -> Self {
        self.field(&format!("{list}[{index}]"))
    }

    fn path(&self, field: &str) -> String {
        match (self.0.as_str(), field) {
            ("", field) => field.to_owned(),
            (place, "") => place.to_owned(),
            (place, field) => format!("{place}.{field}"),
        }
    }

    /// Returns an error at `field`, or at this place itself for an empty name, unless `is_right`.
    pub(super) fn ensure(
        &self,
        field: &str,
        is_right: bool,
        problem: impl FnOnce() -> String,
    ) -> Checked {
        match is_right {
            true => Ok(()),
            false => Err(ConfigError::new(self.path(field), problem())),
        }
    }

    /// Returns the error of a part of this place.
    pub(super) fn error(&self, error: &ConfigError) -> ConfigError {
        ConfigError::new(self.path(&error.field), error.problem.as_str())
    }

    /// Checks that `number` is within `bounds`.
    pub(super) fn within<T: Copy + PartialOrd + Display>(
        &self,
        field: &str,
        number: T,
        bounds: RangeInclusive<T>,
    ) -> Checked {
        let (least, most) = (bounds.start(), bounds.end());
        let problem = || format!("{number}; {least} to {most}");
        self.ensure(field, bounds.contains(&number), problem)
    }

    /// Checks that `number` is above 0 and at most `most`.
    pub(super) fn positive(&self, field: &str, number: f64, most: f64) -> Checked {
        // NaN isn't above 0.
        let is_right = number > 0.0 && number <= most;
        let problem = || format!("{number}; above 0, at most {most}");
        self.ensure(field, is_right, problem)
    }

    /// Checks that a list or a map has at most `most` entries.
    pub(super) fn at_most(&self, field: &str, count: usize, most: usize) -> Checked {
        let problem = || format!("{count} entries; at most {most}");
        self.ensure(field, count <= most, problem)
    }

    /// Checks that `name` is the lower case name of a header.
    pub(super) fn header_name(&self, field: &str, name: &str) -> Checked {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let is_right = !name.is_empty() && name.bytes().all(plain);
        let problem = || format!("{name:?}; a header name of a-z, 0-9 and -");
        self.ensure(field, is_right, problem)
    }

    /// Checks that the window of the settings at this place holds 2 to 10000 steps.
    pub(super) fn window(&self, window_us: u64, step_us: u64) -> Checked {
        let steps = window_us.checked_div(step_us).unwrap_or(0);
        let problem = || format!("{window_us} with step_us {step_us}; 2 to 10000 steps");
        self.ensure("window_us", (2..=10_000).contains(&steps), problem)
    }

    /// Checks a text such as a key, or the name of a header, a cluster or a metric.
    pub(super) fn text(&self, field: &str, text: &str) -> Checked {
        self.of_length(field, text, MAX_TEXT)
    }

    /// Checks the id of a workflow or the name of a service.
    pub(super) fn name(&self, field: &str, name: &str) -> Checked {
        self.of_length(field, name, MAX_WORKFLOW_NAME)
    }

    fn of_length(&self, field: &str, text: &str, most: usize) -> Checked {
        let is_right = (1..=most).contains(&text.len()) && !text.chars().any(char::is_control);
        let problem = || format!("{text:?}; 1 to {most} bytes without control characters");
        self.ensure(field, is_right, problem)
    }

    /// Checks the trusted `peers` of the settings at this place.
    pub(super) fn peers(&self, peers: &[String]) -> Checked {
        self.at_most("peers", peers.len(), MAX_WORKFLOW_PEERS)?;
        for peer in peers {
            let id = peer.strip_suffix('*').unwrap_or(peer);
            let is_id = id.starts_with("spiffe://") && !id.contains('*');
            let problem = || format!("{peer:?}; a SPIFFE id, exact or with * at its end");
            self.ensure("peers", is_id && peer.len() <= MAX_PEER, problem)?;
        }
        Ok(())
    }

    /// Checks that the names that `items` of `list` have in their field `key` are unique.
    pub(super) fn unique<T>(
        &self,
        (list, key): (&str, &str),
        items: &[T],
        name: impl Fn(&T) -> &str,
        what: &str,
    ) -> Checked {
        let mut known = HashSet::new();
        for (i, name) in items.iter().map(name).enumerate() {
            let problem = || format!("{name:?} appears twice; {what} are unique");
            self.item(list, i)
                .ensure(key, known.insert(name), problem)?;
        }
        Ok(())
    }
}
