//! Slots above the knee that let short requests pass long ones.
//!
//! A single core gives its throughput to one request as well as to five (e = 1 throughout). But
//! with one slot a long request keeps the short ones waiting for all of its time, while with three
//! they share the core. That is worth a slot or two above the knee if the backend *shares* itself.
//! In front of a queue inside the backend it would not help: there, a slot more adds the same wait
//! to short and long requests, so that the elasticity of short types exceeds that of long ones by
//! far, while sharing stretches all alike. So with up to [`SHARED`] slots
//!
//! ```text
//! (e_short − e_long) + z σ < 0.5    one more slot
//! (e_short − e_long) − z σ < 0.3    not fewer, for any e_down
//! ```
//!
//! for types shorter and longer than the mean, and only while service times leave room in the
//! objectives.

use super::{CONFIDENCE, Law, View};
use crate::parallelism::elasticity::Estimate;

/// Slots that are worth having on a backend that shares itself, even if its throughput needs fewer.
/// If long requests take half of slot time, all of five slots are held by long ones 3% of the time.
pub(super) const SHARED: u32 = 3;
/// Blocks before sharing is decided.
const FEWEST_TO_SHARE: f64 = 10.0;

impl Law {
    /// Whether a slot more lets short requests pass long ones, and whether the slots that there are
    /// do.
    pub(super) fn sharing(&self, up: Estimate, down: Estimate, view: &View) -> (bool, bool) {
        let [short, long] = [self.slopes[0].elasticity(), self.slopes[1].elasticity()];
        let (apart, error) = (short.value - long.value, short.error.hypot(long.error));
        let z = CONFIDENCE;
        let open =
            view.room && view.mixed && error < 100.0 && self.moments.blocks() >= FEWEST_TO_SHARE;
        (
            open && self.slots() < SHARED
                && apart + z * error < 0.5
                && up.value - z * up.error < 1.25,
            open && self.slots() <= SHARED
                && apart - z * error < 0.3
                && down.value - z * down.error < 1.1,
        )
    }
}
