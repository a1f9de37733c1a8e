//! Feedback control that all workers of a process run as one.
//!
//! A control law looks at what was measured since its last run and sets a rate or a bound. Every
//! worker measures its own part, but there is one backend and one bound. So the state of the law is
//! a *record* that the workers share ([`crate::shared`]), and every worker does the same at its
//! tick: it adds what it measured, runs the law if that is due, and adopts the result. Who comes
//! first runs it; nobody leads, nobody waits, and a worker that dies takes along what it measured
//! in one tick.

use crate::time::Instant;

/// A strategy whose parameters are the output of a control law.
pub trait Controlled {
    /// The id of the record's layout: [`crate::shared::Record::SCHEMA`].
    fn schema(&self) -> u32;

    /// Whether [`Controlled::sync`] has something to do at `now`. Until then the record is not
    /// read.
    fn due(&self, _now: Instant) -> bool {
        true
    }

    /// Adds what was measured here since the last [`Controlled::stored`], runs the law if it is
    /// due, and adopts what the record says. A record that is not this strategy's, or empty, starts
    /// over. Returns whether the record changed and is to be stored. If storing fails, because
    /// another worker was faster, this runs again on the newer record.
    fn sync(&mut self, now: Instant, record: &mut Vec<u8>) -> bool;

    /// The record was stored: what was added to it is to be forgotten here.
    fn stored(&mut self);
}
