//! The PI controller (Chronos §4, Eq. 7 and 8; Hellerstein et al., Feedback Control of Computing
//! Systems, the paper's [6]). This module computes the closed-loop poles of given gains, and gains
//! for the poles that overshoot and settling time require.
//!
//! With x = K_P (K_I + 1) and y = K_P, Eq. 8 is ψ(z) = (x z − y)/(z − 1). The closed loop's poles
//! are the roots of D(z)(z − 1) + N(z)(x z − y), where N/D is the plant. This polynomial is linear
//! in x and y, so two gains place two poles exactly, for a plant of any order. The other poles are
//! not under control and have to be checked. Overshoot M and settling time k (in periods) require
//! the pair r e^{±iθ} with r = e^{−4/k}, θ = π ln r / ln M.
//!
//! **The output of the gains.** Eq. 7 gives δd(k), and Eq. 1 adds δd(k) to the bound: d_t(k) =
//! d_t(k−1) + δd(k). Taken literally, the loop integrates twice, which Eq. 8 does not show.
//! [`ControlLaw`] has both readings.

use std::f64::consts::PI;

use num_complex::Complex64;

use super::plant::Plant;
use super::polynomial::Polynomial;

/// The distance from the target within which a response counts as settled, as a ratio of the step.
const WITHIN: f64 = 0.02;

/// The meaning of the output of Eq. 7.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ControlLaw {
    /// The bound on the backlog itself. This meaning gives the loop of Figure 2 and Eq. 8, to which
    /// the paper's poles belong.
    #[default]
    Bound,
    /// The adjustment of the bound, which Eq. 1 integrates once more.
    Adjustment,
}

/// The gains of the PI controller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gains {
    /// K_P, the proportional gain, in units of backlog per second of error.
    pub proportional: f64,
    /// K_I, the integral gain.
    pub integral: f64,
}

impl Gains {
    fn from_xy(x: f64, y: f64) -> Self {
        Self {
            proportional: y,
            integral: x / y - 1.0,
        }
    }

    /// Returns x = K_P (K_I + 1).
    fn x(self) -> f64 {
        self.proportional * (self.integral + 1.0)
    }

    fn are_usable(self) -> bool {
        let positive = |gain: f64| gain > 0.0 && gain.is_finite();
        positive(self.proportional) && positive(self.integral)
    }
}

/// The goal of the closed loop (Chronos Table 1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    /// M, the overshoot as a ratio of the step, 0 < M < 1. In Table 1, M is (2.5 s − 2 s) / 2 s.
    pub overshoot: f64,
    /// The settling time to within 2%, sampling periods. In Table 1, it is 10.
    pub settling: f64,
}

impl Goal {
    /// Returns one pole of the conjugate pair that a second-order system needs for this goal. It is
    /// the pole with the positive imaginary part.
    pub fn pole(&self) -> Complex64 {
        let ln_r = -4.0 / self.settling;
        Complex64::from_polar(ln_r.exp(), (PI * ln_r / self.overshoot.ln()).min(PI))
    }
}

/// The closed loop's response to a step of the target by 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Response {
    /// The overshoot, as a ratio of the step.
    pub overshoot: f64,
    /// The number of periods until the response stays within 2% of the target, or `None` if that
    /// takes more than a thousand periods.
    pub settling: Option<usize>,
}

/// Gains and their effect.
#[derive(Debug, Clone, PartialEq)]
pub struct Design {
    /// The gains.
    pub gains: Gains,
    /// The poles of the closed loop, the slowest first.
    pub poles: Vec<Complex64>,
    /// The response of the closed loop to a step.
    pub response: Response,
}

impl Design {
    /// Returns the closed loop of `plant` with `gains`.
    pub fn of(plant: &Plant, law: ControlLaw, gains: Gains) -> Self {
        Self {
            gains,
            poles: closed_loop(plant, law, gains).roots(),
            response: step(plant, law, gains),
        }
    }

    /// Whether all poles lie inside of the unit circle.
    pub fn is_stable(&self) -> bool {
        self.poles.iter().all(|pole| pole.norm() < 1.0)
    }

    /// Whether both the response to a step of the target and every single pole meet the goal. A
    /// zero of the controller may hide a slow pole from the response to the target. The slow pole
    /// still responds to disturbances, and a load is a disturbance.
    pub fn meets(&self, goal: &Goal) -> bool {
        let Response {
            overshoot,
            settling,
        } = self.response;
        let settles = settling.is_some_and(|k| k as f64 <= goal.settling);
        let slowest = self.poles.iter().map(|p| p.norm()).fold(0.0, f64::max);
        let decays = slowest <= WITHIN.powf(1.0 / goal.settling);
        settles && decays && overshoot <= goal.overshoot
    }
}

/// The reason why no gains were found.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum DesignError {
    /// The goal is invalid.
    #[error(
        "overshoot {overshoot} and settling time of {settling} periods; 0 < overshoot < 1 and at \
         least 1 period"
    )]
    Goal {
        /// The given overshoot.
        overshoot: f64,
        /// The given settling time, periods.
        settling: f64,
    },
    /// The model's gain isn't positive, but more backlog must mean more delay.
    #[error(
        "in this model more backlog means less delay ({0:.3e} s per unit), so no controller is \
         possible; record a trace in which requests queue"
    )]
    NegativeGain(f64),
    /// No gains meet the goal.
    #[error(
        "no gains above 0 settle within {settling} periods with an overshoot of at most \
         {overshoot}; allow a longer settling time or more overshoot"
    )]
    Unreachable {
        /// The given overshoot.
        overshoot: f64,
        /// The given settling time, periods.
        settling: f64,
    },
}

/// Returns the polynomial whose roots are the closed loop's poles. It is the denominator of η(z).
pub fn closed_loop(plant: &Plant, law: ControlLaw, gains: Gains) -> Polynomial {
    let controller = Polynomial::new([gains.x(), -gains.proportional]);
    let (integrator, zero) = parts(law);
    let open = plant.denominator().times(&integrator);
    open.plus(&plant.numerator().times(&zero).times(&controller))
}

/// Returns the controller's denominator, and the factor of its numerator other than x z − y.
fn parts(law: ControlLaw) -> (Polynomial, Polynomial) {
    let once = Polynomial::new([1.0, -1.0]);
    match law {
        ControlLaw::Bound => (once, Polynomial::new([1.0])),
        ControlLaw::Adjustment => (once.times(&once), Polynomial::new([1.0, 0.0])),
    }
}

/// Returns the gains that place `poles` in the closed loop, or `None` if no gains do so. The poles
/// must be two real poles, or a complex pole and its conjugate. The gains may be negative, and
/// other poles may be unstable.
pub fn place(plant: &Plant, law: ControlLaw, poles: [Complex64; 2]) -> Option<Gains> {
    let (integrator, zero) = parts(law);
    // Each pole p gives the equation x p − y = q.
    let q = |p: Complex64| {
        -plant.denominator().at(p) * integrator.at(p) / (plant.numerator().at(p) * zero.at(p))
    };
    let (p, other) = (poles[0], poles[1]);
    let (x, y) = if p.im != 0.0 {
        if (p.conj() - other).norm() > 1e-9 * p.norm() {
            return None;
        }
        let x = q(p).im / p.im;
        (x, x * p.re - q(p).re)
    } else {
        if other.im != 0.0 || p.re == other.re {
            return None;
        }
        let x = (q(p).re - q(other).re) / (p.re - other.re);
        (x, x * p.re - q(p).re)
    };
    let gains = Gains::from_xy(x, y);
    (gains.proportional.is_finite() && gains.integral.is_finite()).then_some(gains)
}

/// Returns gains for a goal. They place the pair of poles that the goal requires, if the closed
/// loop then meets the goal. Otherwise they place the fastest pair with which the closed loop meets
/// the goal. Zeros and the other poles affect the response, too, so the response is simulated.
///
/// # Errors
/// [`DesignError`].
pub fn design(plant: &Plant, law: ControlLaw, goal: Goal) -> Result<Design, DesignError> {
    let Goal {
        overshoot,
        settling,
    } = goal;
    if !(overshoot > 0.0 && overshoot < 1.0 && settling >= 1.0 && settling.is_finite()) {
        return Err(DesignError::Goal {
            overshoot,
            settling,
        });
    }
    let gain = plant.gain();
    if gain <= 0.0 || !gain.is_finite() {
        return Err(DesignError::NegativeGain(gain));
    }
    let wanted = goal.pole();
    let pairs = std::iter::once([wanted, wanted.conj()]).chain(pairs());
    pairs
        .filter_map(|pair| place(plant, law, pair))
        .filter(|gains| gains.are_usable())
        .map(|gains| Design::of(plant, law, gains))
        .find(|design| design.meets(&goal))
        .ok_or(DesignError::Unreachable {
            overshoot,
            settling,
        })
}

/// Yields complex pairs of poles, and pairs of two different real poles, the fastest pairs first.
fn pairs() -> impl Iterator<Item = [Complex64; 2]> {
    const RADII: u32 = 97;
    const SHAPES: u32 = 12;
    (1..=RADII).flat_map(|r| {
        let r = f64::from(r) / f64::from(RADII + 1);
        let complex = (1..=SHAPES).map(move |k| {
            let pole = Complex64::from_polar(r, f64::from(k) * PI / 2.0 / f64::from(SHAPES));
            [pole, pole.conj()]
        });
        let real = (0..SHAPES).map(move |k| {
            let faster = r * f64::from(k) / f64::from(SHAPES);
            [Complex64::new(r, 0.0), Complex64::new(faster, 0.0)]
        });
        complex.chain(real)
    })
}

/// The length of a simulated response, periods.
const LONGEST: usize = 1_000;

/// Simulates Eq. 4 and 7 from rest, with a target of 1, and returns the response.
fn step(plant: &Plant, law: ControlLaw, gains: Gains) -> Response {
    let n = plant.order();
    // In both arrays, the latest value is first.
    let (mut delays, mut bounds) = (vec![0.0; n], vec![0.0; n]);
    let (mut output, mut error_before) = (0.0, 0.0);
    let (mut highest, mut outside) = (0.0_f64, 0);
    for k in 0..LONGEST {
        let delay = plant.next(&delays, &bounds);
        highest = highest.max(delay);
        if (delay - 1.0).abs() > WITHIN || !delay.is_finite() {
            outside = k + 1;
        }
        let error = 1.0 - delay;
        output += gains.x() * error - gains.proportional * error_before;
        error_before = error;
        let bound = match law {
            ControlLaw::Bound => output,
            ControlLaw::Adjustment => bounds[0] + output,
        };
        delays.rotate_right(1);
        delays[0] = delay;
        bounds.rotate_right(1);
        bounds[0] = bound;
    }
    Response {
        overshoot: highest - 1.0,
        settling: (outside < LONGEST).then_some(outside),
    }
}

#[cfg(test)]
mod tests;
