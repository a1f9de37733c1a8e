//! Helping the underserved: second chances for types that are accepted less than the others
//! (Bouncer §4.2, Alg. 3).
//!
//! With AR the type's acceptance ratio over the sliding window, and AAR the average of that ratio over
//! all types that received anything, a rejection is overridden with probability p where AR < AAR:
//!
//! ```text
//! x = AAR − AR        p = α · x / (1 + |x|)        so p ≤ α / 2
//! ```
//!
//! The listing of Alg. 3 is a figure that the paper's text lacks. The prose gives the sigmoid, says that
//! it is there to give less help than (AAR − AR) / AAR would, and p_max = α / 2 (Table 5), so x ≤ 1. It
//! leaves open whether x is the difference or relative to AAR, and how AAR averages. Tables 3 and 5
//! decide: rejections of slow / medium slow in percent, 1.5× load with α = 0.1, 0.5, 1.0 and 1.3× load
//! with α = 1.0, simulated as in §5.3:
//!
//! ```text
//!                                       α = 0.1        α = 0.5        α = 1.0        1.3×, α = 1.0
//! the paper                          94.74 /  7.07  82.38 / 14.19  71.15 / 20.41  67.08 / 4.06
//! AAR − AR                           94.72 /  8.37  81.70 / 15.51  68.52 / 23.05  65.34 / 6.12
//! AAR − AR, AAR with default as 0    95.38 /  7.98  84.37 / 14.09  73.95 / 19.88  69.64 / 3.66
//! AAR − AR, AAR = all acc. / all rec. 94.32 / 8.55  79.87 / 16.60  65.75 / 24.41  62.88 / 7.37
//! (AAR − AR) / AAR                   94.18 /  8.67  78.98 / 16.99  64.72 / 25.10  62.78 / 7.46
//! ```
//!
//! Counting the `default` type, which receives nothing there, as one with ratio 0 comes closest, but
//! would end all help in a policy where most of many types are idle. So: the difference, over the types
//! that received something.
//!
//! The window is over all workers' decisions (`stage::acceptance`): own ones count at once, those of the
//! others a tick later.

use super::{Admission, Verdict, View};
use crate::request::{Attributes, ClassId, Served, TypeId};
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
        Self {
            inner,
            alpha,
            window,
        }
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
        let x = aar - ar;
        self.alpha * x / (1.0 + x.abs())
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

impl<S: Admission> Admission for HelpingTheUnderserved<S> {
    fn decide(&mut self, request: &Attributes, view: &View<'_>, rng: &mut Rng) -> Verdict {
        self.window.advance(view.now);
        let verdict = match self.inner.decide(request, view, rng) {
            Verdict::Refuse(reason)
                if reason.is_about_objectives() && rng.chance(self.help(request.kind)) =>
            {
                Verdict::Admit
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
