//! The effect of the number of slots on service times. It is estimated by a regression within
//! blocks of the schedule.
//!
//! ```text
//! y = ln(pt) − mean of ln(pt) of the type   one request's service time, normalised by type
//! u, d                                      parts of its life above and below the base (Exposure)
//! y = a_block + β_u u + β_d d + ε           within a block all but the slots is the same
//! e_up   =  β_u / ln((base + up) / base)    elasticity of the service time, from base to above
//! e_down = −β_d / ln(base / (base − down))  the same, from below to base
//! ```
//!
//! With an elasticity of 0, another slot does not slow down the other requests, so it adds
//! throughput. With an elasticity of 1, service times grow in proportion to the slots, so another
//! slot only adds waiting (Little's law: throughput = slots / service time). A queue in the backend
//! adds the same wait to short and long requests, so the mean of the logarithms gives an elasticity
//! above 1. A shared processor stretches all service times by the same factor, so its elasticity is
//! exactly 1. Because of the logarithm, one slow answer doesn't outweigh a thousand.
//!
//! The regression uses no rate and no absolute time, so neither the load nor the mix of types
//! affects it. Each type is normalised by itself. A drift of a type's own mean is the same above
//! and below the base.
//!
//! **Errors.** Requests that ran at the same time waited behind the same others, so their times are
//! not independent samples. The usual formula understates the error by a factor of up to four. The
//! factor is estimated from the deviation of each block's own slope (the cluster-robust "sandwich"
//! estimate, Liang and Zeger 1986).

use serde::{Deserialize, Serialize};

/// Sums over the requests of one block, or over those that one worker saw.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Sums {
    /// The sums n, Σu, Σd, Σu², Σd², Σud, Σy, Σuy, Σdy, Σy².
    pub of: [f64; 10],
}

impl Sums {
    /// Adds a request.
    pub fn add(&mut self, u: f64, d: f64, y: f64) {
        let terms = [1.0, u, d, u * u, d * d, u * d, y, u * y, d * y, y * y];
        add(&mut self.of, terms);
    }

    /// Adds the requests of `other`.
    pub fn merge(&mut self, other: &Self) {
        add(&mut self.of, other.of);
    }
}

/// Adds `terms` to `sums`.
pub(super) fn add<const N: usize>(sums: &mut [f64; N], terms: [f64; N]) {
    for (sum, term) in sums.iter_mut().zip(terms) {
        *sum += term;
    }
}

/// The mean and the standard deviation of the prior of elasticities.
const PRIOR: (f64, f64) = (0.7, 0.5);

/// An estimate and its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The elasticity.
    pub value: f64,
    /// The standard error of the elasticity.
    pub error: f64,
}

impl Estimate {
    /// The estimate without any information.
    pub const UNKNOWN: Self = Self {
        value: 0.0,
        error: 1e6,
    };

    /// Combines the estimate with the prior for any backend: N(0.7, 0.5²).
    #[must_use]
    pub fn with_prior(self) -> Self {
        let (own, prior) = (self.error.max(1e-3).powi(-2), PRIOR.1.powi(-2));
        Self {
            value: (own * self.value + prior * PRIOR.0) / (own + prior),
            error: (own + prior).powf(-0.5),
        }
    }

    /// Converts a slope over a step of this size to an elasticity.
    fn per(self, step: f64) -> Self {
        Self {
            value: self.value / step,
            error: (self.error / step).abs(),
        }
    }
}

/// The second moments within blocks, over the recent blocks.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Moments {
    /// The degrees of freedom, S_uu, S_dd, S_ud, S_uy, S_dy and S_yy come first. With x = u − d,
    /// the sums over blocks Σ S_xy², Σ S_xy S_xx and Σ S_xx² follow, and then the number of blocks.
    pub of: [f64; 11],
}

impl Moments {
    /// Adds a block.
    pub fn close(&mut self, block: &Sums) {
        let [n, u, d, uu, dd, ud, y, uy, dy, yy] = block.of;
        if n < 2.0 {
            return;
        }
        let (uu, dd, ud) = (uu - u * u / n, dd - d * d / n, ud - u * d / n);
        let (uy, dy, yy) = (uy - u * y / n, dy - d * y / n, yy - y * y / n);
        let (xy, xx) = (uy - dy, uu + dd - 2.0 * ud);
        let terms = [
            n - 1.0,
            uu,
            dd,
            ud,
            uy,
            dy,
            yy,
            xy * xy,
            xy * xx,
            xx * xx,
            1.0,
        ];
        add(&mut self.of, terms);
    }

    /// Returns the number of blocks that count.
    pub fn blocks(&self) -> f64 {
        self.of[10]
    }

    /// Reduces the weight of old blocks, so that no more than `blocks` count.
    pub fn keep(&mut self, blocks: f64) {
        let fade = (blocks / self.blocks()).min(1.0);
        if fade < 1.0 {
            self.of.iter_mut().for_each(|sum| *sum *= fade);
        }
    }

    /// Returns `(e_up, e_down)`, given the logarithms of the two steps. Returns `None` while there
    /// are too few requests at a level. A step of 0 means that the level doesn't exist.
    pub fn elasticities(&self, ln_up: f64, ln_down: f64) -> Option<(Estimate, Estimate)> {
        let [n, uu, dd, ud, uy, dy, yy, .., blocks] = self.of;
        if n < 10.0 || blocks < 2.0 || uu < 0.03 * n {
            return None;
        }
        let (xx, xy) = (uu + dd - 2.0 * ud, uy - dy);
        let (slope, clustered) = self.slope();
        let independent = ((yy - slope * xy) / n).max(1e-4) / xx;
        let inflation = (clustered / independent).clamp(1.0, 16.0);
        let (up, down) = if ln_down > 0.0 {
            let det = uu * dd - ud * ud;
            if det < 1e-4 * n * n || dd < 0.01 * n {
                return None;
            }
            let (bu, bd) = ((uy * dd - dy * ud) / det, (dy * uu - uy * ud) / det);
            let rest = ((yy - bu * uy - bd * dy) / n).max(1e-4) * inflation;
            let estimate = |value: f64, own: f64| Estimate {
                value,
                error: (rest * own / det).sqrt(),
            };
            (estimate(bu, dd), estimate(-bd, uu).per(ln_down))
        } else {
            let value = uy / uu;
            let rest = ((yy - value * uy) / n).max(1e-4) * inflation;
            let error = (rest / uu).sqrt();
            (Estimate { value, error }, Estimate::UNKNOWN)
        };
        let up = if ln_up > 0.0 {
            up.per(ln_up)
        } else {
            // P is at its upper bound, so more slots count as useless.
            Estimate {
                value: 1.0,
                error: 0.0,
            }
        };
        Some((up, down))
    }

    /// Returns the slope of y on x = u − d, and its variance by the deviations of the blocks' own
    /// slopes.
    fn slope(&self) -> (f64, f64) {
        let [_, uu, dd, ud, uy, dy, _, xy2, cross, xx2, blocks] = self.of;
        let (xx, xy) = (uu + dd - 2.0 * ud, uy - dy);
        let slope = xy / xx;
        let spread = ((xy2 - 2.0 * slope * cross + slope * slope * xx2) / (xx * xx)).max(0.0);
        (slope, spread * blocks / (blocks - 1.0))
    }

    /// Returns the elasticity over both steps together. In these moments, u is the logarithm of the
    /// level relative to the base, and d is 0.
    pub fn elasticity(&self) -> Estimate {
        let [_, xx, ..] = self.of;
        if self.blocks() < 3.0 || xx <= 1e-9 {
            return Estimate::UNKNOWN;
        }
        let (value, variance) = self.slope();
        Estimate {
            value,
            error: variance.sqrt() + 0.02,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Returns the moments of requests whose normalised time is `up` u − `down` d plus noise. One
    /// part of the noise is the same for all requests of a slot of the schedule. This part has the
    /// range `shared`.
    fn moments(up: f64, down: f64, blocks: u32, shared: f64, rng: &mut Rng) -> Moments {
        let mut moments = Moments::default();
        for _ in 0..blocks {
            let mut sums = Sums::default();
            for _ in 0..5 {
                let side = rng.next_u64() % 3;
                // All requests of one slot of the schedule have this noise in common.
                let common = shared * (rng.next_f64() - 0.5);
                let (u, d) = (f64::from(side == 1), f64::from(side == 2));
                for _ in 0..20 {
                    let noise = rng.next_f64() - 0.5 + common;
                    sums.add(u, d, up * u - down * d + noise);
                }
            }
            moments.close(&sums);
        }
        moments
    }

    #[test]
    fn both_slopes_are_found_within_their_errors() {
        let mut rng = Rng::new(1);
        let (ln_up, ln_down) = (0.3, 0.4);
        let mut outside = 0;
        for _ in 0..200 {
            let found = moments(0.9 * ln_up, 0.1 * ln_down, 40, 0.8, &mut rng);
            let (up, down) = found.elasticities(ln_up, ln_down).unwrap();
            outside += u32::from((up.value - 0.9).abs() > 2.0 * up.error);
            outside += u32::from((down.value - 0.1).abs() > 2.0 * down.error);
        }
        // For a normal distribution, 5% of 400 would be outside.
        assert!(
            outside < 40,
            "{outside} of 400 are further off than two standard errors"
        );
    }

    #[test]
    fn differences_between_blocks_do_not_count() {
        let mut rng = Rng::new(2);
        let mut moments = Moments::default();
        for block in 0..40 {
            let mut sums = Sums::default();
            // The backend becomes slower, and the share of time above the base grows meanwhile.
            for n in 0..100 {
                let u = f64::from(n < 20 + block);
                sums.add(u, 0.0, f64::from(block) + 0.1 * (rng.next_f64() - 0.5));
            }
            moments.close(&sums);
        }
        let (up, _) = moments.elasticities(0.5, 0.0).unwrap();
        assert!(up.value.abs() < 0.05, "{up:?}");
    }

    #[test]
    fn levels_that_were_not_visited_have_no_estimate() {
        let mut sums = Sums::default();
        (0..100).for_each(|_| sums.add(0.0, 0.0, 1.0));
        let mut moments = Moments::default();
        (0..10).for_each(|_| moments.close(&sums));
        assert_eq!(moments.elasticities(0.2, 0.2), None);
    }
}
