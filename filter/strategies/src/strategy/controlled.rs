//! Feedback control that all workers of a process share.
//!
//! A control law reads the measurements since its last run and sets a rate or a bound. Every worker
//! measures its own part, but the process has one backend and one bound. So the state of the law is
//! a *record* that the workers share ([`crate::shared`]). At its tick, every worker adds its
//! measurements to the record, runs the law if that is due, and adopts the result. The first worker
//! after the due time runs the law, without a leader and without waiting. If a worker dies, its
//! measurements of one tick are lost.

use crate::config::StageConfig;
use crate::rng;
use crate::time::Instant;

/// A strategy whose parameters are the output of a control law.
pub trait Controlled {
    /// Returns the id of the record's layout, [`crate::shared::Record::SCHEMA`].
    fn schema(&self) -> u32;

    /// Whether [`Controlled::sync`] is due at `now`. Until then the record is not read.
    fn due(&self, _now: Instant) -> bool {
        true
    }

    /// Adds this worker's measurements since the last [`Controlled::stored`], runs the law if it is
    /// due, and adopts the record. A record of another strategy, or an empty one, starts over.
    /// Returns whether the record changed and must be stored. If storing fails, because another
    /// worker was faster, the caller calls this function again with the newer record.
    fn sync(&mut self, now: Instant, record: &mut Vec<u8>) -> bool;

    /// Resets this worker's measurements after the record was stored.
    fn stored(&mut self);
}

/// Returns a hash of the names of types and of classes, as far as a record has a row for each. Two
/// configurations share it only if their rows have the same meaning.
pub(super) fn fingerprint(config: &StageConfig, by_type: bool, by_class: bool) -> u64 {
    let kinds = config.types.iter().filter(|_| by_type);
    let classes = config.classes.iter().filter(|_| by_class);
    let kinds = kinds.map(|kind| kind.name.as_str());
    let classes = classes.map(|class| class.name.as_str());
    // The slash separates types from classes, because no name contains a slash.
    let names = kinds.chain(["/"]).chain(classes);
    rng::hash(names.flat_map(|name| name.bytes().chain([b' '])))
}
