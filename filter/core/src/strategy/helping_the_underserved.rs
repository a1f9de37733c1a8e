//! Helping the underserved: second chances for types that are accepted less than the others
//! (Bouncer §4.2, Alg. 3).
//!
//! With AR the type's acceptance ratio over the sliding window and AAR the average over all types that
//! received anything, a rejection is overridden with probability p where AR < AAR:
//!
//! ```text
//! x = (AAR − AR) / AAR        p = α · x / (1 + |x|)        so p ≤ α / 2
//! ```
//!
//! The listing of Alg. 3 is a figure that the paper's text lacks. The prose says why p is not x itself
//! (too much help when AR is small) and gives the sigmoid; p_max = α / 2 in Table 5 fixes x ≤ 1.

use std::time::Duration;

use super::{Admission, TypeId, Verdict, View};
use crate::rng::Rng;
use crate::time::Instant;
use crate::window::Window;

/// Wraps a strategy so that types treated worse than average get some requests through.
#[derive(Debug)]
pub struct HelpingTheUnderserved<S> {
    inner: S,
    alpha: f64,
    window: Window,
}

impl<S> HelpingTheUnderserved<S> {
    /// `alpha` is α, 0 < α ≤ 1.
    #[must_use]
    pub fn new(inner: S, alpha: f64, window: Window) -> Self {
        Self { inner, alpha, window }
    }

    /// The probability to override a rejection.
    fn help(&self, kind: TypeId) -> f64 {
        let average = self.window.average_acceptance_ratio();
        let (Some(ar), Some(aar)) = (self.window.acceptance_ratio(kind), average) else {
            return 0.0;
        };
        if ar >= aar {
            return 0.0;
        }
        let x = (aar - ar) / aar;
        self.alpha * x / (1.0 + x.abs())
    }

    /// The window, for what other workers decided.
    pub fn window_mut(&mut self) -> &mut Window {
        &mut self.window
    }
}

impl<S: Admission> Admission for HelpingTheUnderserved<S> {
    fn decide(&mut self, kind: TypeId, view: &View<'_>, rng: &mut Rng) -> Verdict {
        self.window.advance(view.now);
        let verdict = match self.inner.decide(kind, view, rng) {
            Verdict::Refuse(reason)
                if reason.is_about_objectives() && rng.chance(self.help(kind)) =>
            {
                Verdict::Admit
            }
            verdict => verdict,
        };
        self.window.count(view.now, kind, verdict == Verdict::Admit);
        verdict
    }

    fn withdrawn(&mut self, kind: TypeId) {
        self.window.withdraw(kind);
        self.inner.withdrawn(kind);
    }

    fn completed(&mut self, kind: TypeId, wait: Duration, processing: Duration, now: Instant) {
        self.inner.completed(kind, wait, processing, now);
    }

    fn tick(&mut self, now: Instant) {
        self.inner.tick(now);
    }
}
