//! Acceptance allowance: admission of at least a small part of every type (Bouncer §4.1, Alg. 2).
//!
//! Let AR = aqc / rqc be the type's acceptance ratio over the sliding window, and A the allowance:
//!
//! ```text
//! AR < A                         → accept: the type is starving
//! else the strategy accepts      → accept
//! else                           → accept with probability A
//! ```
//!
//! AR doesn't include the request at hand, because `rqc` counts accepted and rejected requests
//! (§4.1, footnote 5). The listing of Alg. 2 is a figure that the paper's text lacks, but the prose
//! determines the algorithm. It has a first part that decides by historical counts, the strategy's
//! own decision, and a second part that overrides rejections "on the spot uniformly at random with
//! probability equal to A". A type without requests in the window has no ratio, so the strategy
//! decides. A rare type then gets its allowance on average, instead of always passing.

use crate::request::TypeId;
use crate::rng::Rng;
use crate::window::Window;

/// Starvation avoidance that keeps each type's acceptance ratio at `allowance` or above.
#[derive(Debug, Clone, Copy)]
pub struct AcceptanceAllowance {
    allowance: f64,
}

impl AcceptanceAllowance {
    /// Creates the strategy. `allowance` is A, ratio 0..=1.
    #[must_use]
    pub const fn new(allowance: f64) -> Self {
        Self { allowance }
    }

    /// Returns the probability with which a refusal of a type with AR ≥ A is overridden.
    pub(super) const fn floor(&self) -> f64 {
        self.allowance
    }

    /// Whether a request of type `kind` is accepted although the strategy refused it.
    pub(super) fn overrides(&self, kind: TypeId, window: &Window, rng: &mut Rng) -> bool {
        let ratio = window.acceptance_ratio(kind);
        let starving = ratio.is_some_and(|ar| ar < self.allowance);
        starving || rng.chance(self.allowance)
    }
}
