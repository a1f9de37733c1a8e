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
//!
//! The paper has one A for all types. Here each type may have its own, because some types must not
//! starve, and others only take slots from them.

use crate::request::TypeId;
use crate::window::Window;

/// Starvation avoidance that keeps each type's acceptance ratio at its allowance or above.
#[derive(Debug, Clone)]
pub struct AcceptanceAllowance {
    allowances: Vec<f64>,
}

impl AcceptanceAllowance {
    /// Creates the strategy. `allowances` is A by type, ratios 0..=1.
    pub const fn new(allowances: Vec<f64>) -> Self {
        Self { allowances }
    }

    /// Returns the probability with which a refusal of a type with AR ≥ A is overridden.
    pub(super) fn floor(&self, kind: TypeId) -> f64 {
        let allowance = self.allowances.get(usize::from(kind.0));
        allowance.copied().unwrap_or(0.0)
    }

    /// Whether all requests of type `kind` are accepted, because the type is starving.
    pub(super) fn starves(&self, kind: TypeId, window: &Window) -> bool {
        let ratio = window.acceptance_ratio(kind);
        ratio.is_some_and(|ar| ar < self.floor(kind))
    }
}
