//! Acceptance allowance: free passes for a small part of every type (Bouncer §4.1, Alg. 2).
//!
//! With AR = aqc / rqc the type's acceptance ratio over the sliding window and A the allowance:
//!
//! ```text
//! AR < A                         → accept: the type is starving
//! else the strategy accepts      → accept
//! else                           → accept with probability A
//! ```
//!
//! AR doesn't include the request at hand: `rqc` counts the accepted and the rejected (§4.1, footnote 5).
//! The listing of Alg. 2 is a figure that the paper's text lacks; the prose fixes it: a first part that
//! decides on historical counts, the strategy's own decision, and a second part that overrides
//! rejections "on the spot uniformly at random with probability equal to A". A type without requests in
//! the window has no ratio and goes to the strategy: a rare type then gets its allowance on average,
//! instead of always passing.
//!
//! The strategy is asked first, which changes no acceptance, so that a refusal for lack of room can
//! stand: leave to break an objective is no leave to break a limit.
//!
//! The window is over all workers' decisions (`stage::acceptance`): own ones count at once, those of the
//! others a tick later.

use super::{Admission, Verdict, View};
use crate::request::{Attributes, ClassId, Served, TypeId};
use crate::rng::Rng;
use crate::time::Instant;
use crate::window::Window;

/// Wraps a strategy so that no type is accepted below `allowance`.
#[derive(Debug)]
pub struct AcceptanceAllowance<S> {
    inner: S,
    allowance: f64,
    window: Window,
}

impl<S> AcceptanceAllowance<S> {
    /// `allowance` is A, ratio 0..=1.
    #[must_use]
    pub fn new(inner: S, allowance: f64, window: Window) -> Self {
        Self {
            inner,
            allowance,
            window,
        }
    }

    /// The strategy that is wrapped.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The strategy that is wrapped, for what other workers measured.
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The window, for what other workers decided.
    pub fn window_mut(&mut self) -> &mut Window {
        &mut self.window
    }
}

impl<S: Admission> Admission for AcceptanceAllowance<S> {
    fn decide(&mut self, request: &Attributes, view: &View<'_>, rng: &mut Rng) -> Verdict {
        self.window.advance(view.now);
        let verdict = match self.inner.decide(request, view, rng) {
            Verdict::Refuse(reason) if reason.is_about_objectives() => {
                let ratio = self.window.acceptance_ratio(request.kind);
                let starving = ratio.is_some_and(|ar| ar < self.allowance);
                if starving || rng.chance(self.allowance) {
                    Verdict::Admit
                } else {
                    Verdict::Refuse(reason)
                }
            }
            verdict => verdict,
        };
        self.window
            .count(view.now, request.kind, verdict == Verdict::Admit);
        verdict
    }

    fn withdrawn(&mut self, request: &Attributes) {
        self.window.withdraw(request.kind);
        self.inner.withdrawn(request);
    }

    fn entered(&mut self, kind: TypeId, class: ClassId) {
        self.inner.entered(kind, class);
    }

    fn left(&mut self, kind: TypeId, class: ClassId) {
        self.inner.left(kind, class);
    }

    fn completed(&mut self, served: &Served, now: Instant) {
        self.inner.completed(served, now);
    }

    fn tick(&mut self, now: Instant) {
        self.inner.tick(now);
    }
}
