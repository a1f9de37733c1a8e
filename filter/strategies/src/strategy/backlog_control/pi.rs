//! The control law, which moves the bound at the end of a period (Chronos §4, Eq. 1, 7 and 8).
//!
//! ```text
//! e(k)   = S_t − s(k)                                              s
//! δd(k)  = δd(k−1) + K_P [(K_I + 1) e(k) − e(k−1)]      (Eq. 7)     cost
//! d_t(k) = d_t(k−1) + δd(k),  0 ≤ d_t(k) ≤ max-data     (Eq. 1)     cost
//! ```
//!
//! **Two integrators and the paper's gains.** The paper places the poles of η = τψ / (1 + τψ), with
//! ψ from Eq. 8 as the controller. But ψ integrates already, its output is δd, and Eq. 1 sums δd
//! once more. So the actual loop has (z − 1)² in its denominator. The published poles, −0.308 and
//! 0.52 ± 0.106i, are those of one integrator (and of Eq. 5 with +0.104 s(k−2), because the printed
//! sign gives other poles). With Eq. 1 counted, K_P = 2.77 and K_I = 5.28 put a pair of poles at
//! |z| = 1.04 with +0.104, which is unstable, as a test below shows. With the printed sign they are
//! at |z| = 0.991, which is stable and rings for hundreds of periods. So the equations are
//! implemented as printed, and the gains are not the paper's.
//!
//! The gains follow from the plant. Let c̄ be the time that a unit of cost takes in a slot. In a
//! FIFO of P slots that are always busy, a request that is admitted behind a backlog d is served c̄
//! d / P later. A request that is served in a period was admitted one service delay earlier, and
//! the loop keeps that delay at S_t. So with g = c̄ / P and periods of T
//!
//! ```text
//! s(k) = g d_t(k − m)        m = 1 + S_t / T
//! (z − 1)² z^(m−1) + a (z − β) = 0        a = g K_P (K_I + 1),   β = 1 / (K_I + 1)
//! ```
//!
//! For m = 1 this is z² + (a − 2) z + 1 − aβ, which is stable exactly for 0 < β < 1 and 0 < a < 4 /
//! (1 + β) (Jury). Without the zero at β, a loop with two integrators can't be stable. With dead
//! time the loop must be slower in proportion. a = 2q and β = 1 − 3q/4 with q = 0.7 / (2m − 1) keep
//! the loop stable for any m and any plant gain from 0 to 1.9 times the assumed gain. Nine tenths
//! of a step of the error are gone within 6 m periods, and the target is overshot by a hundredth (a
//! tenth for m = 1). Hence
//!
//! ```text
//! K_I = 0.75 q / (1 − 0.75 q)        K_P = 2 q (1 − 0.75 q) P / c̄        cost / s
//! ```
//!
//! **Anti-windup** is back-calculation. If d_t can't move by δd, δd(k) becomes the actual step, so
//! that neither integrator keeps a step without effect. Two rules limit the move of d_t:
//!
//! - The paper clamps d_t to \[0, max-data\].
//! - Beyond the paper, while s(k) ≤ S_t, the bound moves only if it has been refusing requests for
//!   m periods. Before that, served requests were admitted under another limit than the bound, so
//!   the error has no information about the bound. While nothing is refused, raising the bound has
//!   no effect until the load returns, and then admits a queue of max-data. The paper, which clamps
//!   at max-data only, reports overshoots up to 4.13 s for S_t = 2 s (§5.3).

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The gains of the control law.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gains {
    /// K_P, the proportional gain, cost per second of error.
    pub proportional: f64,
    /// K_I, the integral gain, ratio.
    pub integral: f64,
}

/// Returns m, the number of periods until a bound has an effect on the delay.
pub(super) fn dead_time(target: Duration, period: Duration) -> f64 {
    1.0 + target.as_secs_f64() / period.as_secs_f64().max(1e-3)
}

impl Gains {
    /// Returns the gains for a plant in which all slots together serve a unit of the bound in
    /// `drain` seconds (g = c̄ / P), with the delay's `target` and the sampling `period`.
    pub fn derived(drain: f64, target: Duration, period: Duration) -> Self {
        let q = 0.7 / (2.0 * dead_time(target, period) - 1.0);
        let beta = 1.0 - 0.75 * q;
        Self {
            proportional: 2.0 * q * beta / drain.max(1e-15),
            integral: 1.0 / beta - 1.0,
        }
    }
}

/// The state of the law at the end of a period.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Control {
    /// d_t, the bound.
    pub(super) bound: f64,
    /// δd, the step that the bound made.
    pub(super) step: f64,
    /// e, the error of the last period, s. It is `None` if the next error has no earlier error to
    /// compare with.
    pub(super) error: Option<f64>,
    /// The number of recent periods in which the bound refused a request, less the number of those
    /// in which it refused none. It is at most m.
    pub(super) limiting: f64,
}

impl Control {
    /// Returns the state with d_t(k) and δd(k). `error` is e(k). `refused` is true if the bound
    /// refused a request in the period. `dead_time` is m.
    pub(super) fn next(
        self,
        error: f64,
        gains: Gains,
        max: f64,
        refused: bool,
        dead_time: f64,
    ) -> Self {
        let dead_time = dead_time.ceil();
        let limiting = if refused {
            (self.limiting + 1.0).min(dead_time)
        } else {
            (self.limiting - 1.0).max(0.0)
        };
        if error >= 0.0 && limiting < dead_time {
            return Self {
                bound: self.bound,
                step: 0.0,
                error: None,
                limiting,
            };
        }
        // Without e(k−1), the error before is assumed to be the same.
        let previous = self.error.unwrap_or(error);
        let change = (gains.integral + 1.0) * error - previous;
        let wanted = self.bound + self.step + gains.proportional * change;
        let bound = if wanted.is_finite() {
            wanted.clamp(0.0, max.max(0.0))
        } else {
            self.bound
        };
        Self {
            bound,
            step: bound - self.bound,
            error: Some(error),
            limiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: f64 = 2.0;

    /// Returns the delays in a loop of s(k) = g d_t(k − m), with the true gain `gain`. The bound
    /// starts where the delay is `start`.
    fn close(gains: Gains, gain: f64, dead_time: usize, start: f64, periods: usize) -> Vec<f64> {
        let mut control = Control {
            bound: start / gain,
            limiting: 1e9,
            ..Control::default()
        };
        let mut bounds = vec![control.bound; dead_time];
        let mut delays = Vec::new();
        for _ in 0..periods {
            let delay = gain * bounds[bounds.len() - dead_time];
            control = control.next(TARGET - delay, gains, 1e9, true, 1.0);
            bounds.push(control.bound);
            delays.push(delay);
        }
        delays
    }

    fn derived(gain: f64, dead_time: usize) -> Gains {
        let target = Duration::from_secs_f64(TARGET);
        // With a dead time of one period, the target is far below the period.
        let period = match dead_time {
            1 => Duration::from_secs(3_600),
            m => target.div_f64(m as f64 - 1.0),
        };
        Gains::derived(gain, target, period)
    }

    #[test]
    fn derived_gains_hold_any_plant_up_to_1_9_times_the_gain_assumed() {
        for dead_time in [1, 2, 3, 5, 11, 21] {
            for gain in [1e-4, 0.02, 30.0] {
                let gains = derived(gain, dead_time);
                for factor in [0.1, 0.3, 1.0, 1.5, 1.9] {
                    let periods = 1_500 * dead_time;
                    let delays = close(gains, gain * factor, dead_time, 0.3, periods);
                    let last = &delays[periods - 10..];
                    assert!(
                        last.iter().all(|s| (s - TARGET).abs() < 0.02),
                        "m = {dead_time}, {factor} of {gain}: {last:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_step_is_gone_within_six_dead_times_and_hardly_overshoots() {
        for dead_time in [1, 2, 3, 5, 11, 21] {
            let delays = close(derived(0.01, dead_time), 0.01, dead_time, 1.0, 500);
            let off = |s: &f64| (s - TARGET).abs() > 0.1;
            let settled = delays.iter().rposition(off).unwrap() + 1;
            assert!(settled <= 6 * dead_time, "m = {dead_time}: {settled}");
            let highest = delays.iter().fold(0.0, |h: f64, s| h.max(*s));
            let allowed = if dead_time == 1 { 0.12 } else { 0.03 };
            assert!(
                highest < TARGET * (1.0 + allowed),
                "m = {dead_time}: {highest}"
            );
        }
    }

    /// Returns the delays of Eq. 5, with the sign of its second term to which the published poles
    /// belong.
    fn chronos(mut next: impl FnMut(f64) -> f64, periods: usize) -> Vec<f64> {
        let (mut s, mut d) = ([0.5, 0.5], [22.0, 22.0]);
        let mut delays = Vec::new();
        for _ in 0..periods {
            let delay = -0.003 * s[0] + 0.104 * s[1] + 0.015 * d[0] + 0.006 * d[1];
            (s, d) = ([delay, s[0]], [next(TARGET - delay), d[0]]);
            delays.push(delay);
        }
        delays
    }

    #[test]
    fn the_papers_gains_suit_one_integrator_and_not_the_two_of_its_equations() {
        const PAPER: Gains = Gains {
            proportional: 2.77,
            integral: 5.28,
        };
        // The loop has Eq. 7 alone, with its output as the bound itself.
        let (mut bound, mut previous) = (22.0, 1.5);
        let one = |error: f64| {
            bound += PAPER.proportional * ((PAPER.integral + 1.0) * error - previous);
            previous = error;
            bound
        };
        let delays = chronos(one, 40);
        assert!((delays[39] - TARGET).abs() < 1e-6, "{delays:?}");
        // The loop has Eq. 7 and Eq. 1, without the clamp.
        let (mut bound, mut step, mut previous) = (22.0, 0.0, 1.5);
        let two = |error: f64| {
            step += PAPER.proportional * ((PAPER.integral + 1.0) * error - previous);
            bound += step;
            previous = error;
            bound
        };
        let delays = chronos(two, 400);
        let swing = |of: &[f64]| of.iter().fold(0.0, |s: f64, d| s.max((d - TARGET).abs()));
        assert!(swing(&delays[360..]) > 1_000.0 * swing(&delays[..40]));
    }

    const GAINS: Gains = Gains {
        proportional: 10.0,
        integral: 0.5,
    };

    #[test]
    fn the_law_is_that_of_the_paper() {
        let control = Control {
            bound: 100.0,
            step: 3.0,
            error: Some(0.4),
            limiting: 3.0,
        };
        // The step is δd = 3 + 10 (1.5 · 0.2 − 0.4) = 2.
        let next = control.next(0.2, GAINS, 1e6, true, 3.0);
        assert!((next.step - 2.0).abs() < 1e-9 && (next.bound - 102.0).abs() < 1e-9);
        assert_eq!(next.error, Some(0.2));
    }

    #[test]
    fn neither_integrator_winds_up_at_a_clamp() {
        let mut control = Control {
            bound: 50.0,
            limiting: 3.0,
            ..Control::default()
        };
        for _ in 0..1_000 {
            control = control.next(-5.0, GAINS, 1e6, true, 3.0);
        }
        assert_eq!((control.bound, control.step), (0.0, 0.0));
        // The first period with an error of the other sign moves the bound.
        control = control.next(0.5, GAINS, 1e6, true, 3.0);
        assert!(control.bound > 0.0);
        for _ in 0..1_000 {
            control = control.next(5.0, GAINS, 400.0, true, 3.0);
        }
        assert_eq!((control.bound, control.step), (400.0, 0.0));
        control = control.next(-0.5, GAINS, 400.0, true, 3.0);
        assert!(control.bound < 400.0);
    }

    #[test]
    fn a_bound_that_limits_no_request_is_lowered() {
        let start = Control {
            bound: 100.0,
            step: 7.0,
            error: Some(1.0),
            limiting: 3.0,
        };
        let mut control = start;
        for _ in 0..100 {
            control = control.next(1.9, GAINS, 1e6, false, 3.0);
        }
        assert_eq!((control.bound, control.step), (100.0, 0.0));
        // The load returns. It takes m periods until the bound determines the delay.
        for _ in 0..2 {
            control = control.next(1.5, GAINS, 1e6, true, 3.0);
            assert_eq!(control.bound, 100.0);
        }
        assert!(control.next(1.5, GAINS, 1e6, true, 3.0).bound > 100.0);
        assert!(control.next(-0.1, GAINS, 1e6, false, 3.0).bound < 100.0);
    }

    #[test]
    fn absurd_gains_break_nothing() {
        let absurd = Gains {
            proportional: 1e300,
            integral: 1e300,
        };
        let mut control = Control {
            bound: 1.0,
            limiting: 3.0,
            ..Control::default()
        };
        for error in [1.0, -1.0, 1e9, -1e9] {
            control = control.next(error, absurd, 100.0, true, 3.0);
            assert!((0.0..=100.0).contains(&control.bound) && control.step.is_finite());
        }
    }
}
