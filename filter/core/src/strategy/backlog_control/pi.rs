//! The control law: how far the bound moves at the end of a period (Chronos §4, Eq. 1, 7 and 8).
//!
//! ```text
//! e(k)   = S_t − s(k)                                              s
//! δd(k)  = δd(k−1) + K_P [(K_I + 1) e(k) − e(k−1)]      (Eq. 7)     cost
//! d_t(k) = d_t(k−1) + δd(k),  0 ≤ d_t(k) ≤ max-data     (Eq. 1)     cost
//! ```
//!
//! **Two integrators.** The paper places the poles of η = τψ / (1 + τψ), with ψ from Eq. 8 as the
//! controller. But ψ already integrates, its output is δd, and Eq. 1 sums δd once more: the loop that runs
//! has (z − 1)² in its denominator, and poles placed for one integrator are not its poles. It can still
//! be stable, because the zero at β = 1 / (K_I + 1) gives the phase back. In a FIFO of P slots that is
//! always busy, what is admitted behind a backlog d is served c̄ d / P later, c̄ being the time that a unit
//! of cost takes, so with g = c̄ / P the plant is s(k) = g d_t(k − m), and the loop closes at
//!
//! ```text
//! (z − 1)² z^(m−1) + a (z − β) = 0        a = g K_P (K_I + 1)
//! ```
//!
//! For m = 1 this is z² + (a − 2) z + 1 − aβ, stable exactly for 0 < β < 1 and 0 < a < 4 / (1 + β) (Jury),
//! and a = 2q, β = 1 − q/2 put both poles at 1 − q. The paper's own gains, K_P = 2.77 and K_I = 5.28, have
//! β = 0.16 and with its plant, Eq. 5, an a of at most 0.37: stable, too.
//!
//! **Dead time.** m is not 1. Whoever is served in a period was admitted a service delay ago, which the
//! loop holds at S_t: m = 1 + S_t / T with a period of T. A double integrator with that much dead time is
//! stable only if it moves slowly in proportion: q = 0.7 / (2m − 1), which leaves the loop stable for
//! a plant gain from nothing to more than twice as much as measured (tests below). Hence
//!
//! ```text
//! K_I = q / (2 − q)        K_P = 2 q β / g = q (2 − q) P / c̄        cost / s
//! ```
//!
//! **Anti-windup** is back-calculation: whatever keeps d_t from moving by δd, δd(k) becomes the step that
//! was really made, so that neither integrator remembers what had no effect. Three things do: the clamp to
//! \[0, max-data\]; and, beyond the paper, an error that asks for a larger bound, or none, after a period in which
//! the bound refused nobody. There the bound is not what keeps the delay below S_t, so raising it does
//! nothing until the load comes back, and then it lets a queue of max-data build up. The paper, which
//! clamps at max-data only, reports overshoots up to 4.13 s for S_t = 2 s (§5.3).

use std::time::Duration;

/// K_P and K_I.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gains {
    /// K_P, cost per second of error.
    pub proportional: f64,
    /// K_I.
    pub integral: f64,
}

impl Gains {
    /// The gains for a plant in which a unit of the bound takes `drain` seconds to be served by all slots
    /// together (g = c̄ / P), where the delay is held at `target` and measured every `period`.
    #[must_use]
    pub fn derived(drain: f64, target: Duration, period: Duration) -> Self {
        let delay = 1.0 + target.as_secs_f64() / period.as_secs_f64().max(1e-3);
        let q = 0.7 / (2.0 * delay - 1.0);
        Self {
            proportional: q * (2.0 - q) / drain.max(1e-12),
            integral: q / (2.0 - q),
        }
    }
}

/// d_t, δd and e of one period.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Control {
    /// d_t, the bound.
    pub(super) bound: f64,
    /// δd, the step that the bound made.
    pub(super) step: f64,
    /// e, s; `None` before the first period.
    pub(super) error: Option<f64>,
}

impl Control {
    /// d_t(k) and δd(k). `binding` says whether the bound refused anybody in the period.
    pub(super) fn next(self, error: f64, gains: Gains, max: f64, binding: bool) -> Self {
        let Gains {
            proportional,
            integral,
        } = gains;
        // There is no e(k−1) at first: the error was what it is.
        let previous = self.error.unwrap_or(error);
        let step = self.step + proportional * ((integral + 1.0) * error - previous);
        let wanted = if error >= 0.0 && !binding {
            self.bound
        } else {
            self.bound + step
        };
        let bound = if wanted.is_finite() {
            wanted.clamp(0.0, max.max(0.0))
        } else {
            self.bound
        };
        Self {
            bound,
            step: bound - self.bound,
            error: Some(error),
        }
    }
}
