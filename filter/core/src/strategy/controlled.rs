//! Feedback control that all workers of a process share.
//!
//! A control law reads the measurements since its last run and sets a rate or a bound. Every worker
//! measures its own part, but the process has one backend and one bound. So the state of the law is
//! a *record* that the workers share ([`crate::shared`]). At its tick, every worker adds its
//! measurements to the record, runs the law if that is due, and adopts the result. The first worker
//! after the due time runs the law, without a leader and without waiting. If a worker dies, its
//! measurements of one tick are lost.

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
