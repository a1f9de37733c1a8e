//! Slots above the knee, which let short requests overtake long ones.
//!
//! A single core has the same throughput with one request as with five (e = 1 throughout). With one
//! slot, a short request waits until a long one has ended. With three slots, both share the core.
//! So a slot or two above the knee are worthwhile if requests *share* the backend. They are not
//! worthwhile if the backend has a queue. There, another slot adds the same wait to short and long
//! requests, so short types have a far higher elasticity than long ones. Sharing stretches all
//! service times by the same factor. So with up to [`SHARED`] slots
//!
//! ```text
//! (e_short − e_long) + z σ < 0.5    one more slot, if e_up − z σ < 1.25
//! (e_short − e_long) − z σ < 0.3    not fewer, if e_down − z σ < 1.1
//! ```
//!
//! Here e_short and e_long are the elasticities of the types that are shorter and longer than the
//! mean. The rule applies only while service times leave room in the objectives.

use super::{CONFIDENCE, Law, View};
use crate::parallelism::elasticity::Estimate;

/// The number of slots that a shared backend should have even if its throughput needs fewer. If
/// long requests take half of the slot time, they hold all of five slots 3% of the time.
pub(super) const SHARED: u32 = 3;
/// The number of blocks before a decision on sharing.
const FEWEST_TO_SHARE: f64 = 10.0;

impl Law {
    /// Returns whether another slot would let short requests overtake long ones, and whether the
    /// current slots do.
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
