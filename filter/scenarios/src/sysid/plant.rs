//! The identified system, in which the delay is a function of past delays and backlogs (Chronos Eq.
//! 4 and 6).

use std::fmt;

use num_complex::Complex64;

use super::polynomial::{Polynomial, significant};

/// The model s(k) = Σᵢ aᵢ s(k−i) + bᵢ d(k−i), i = 1..n (Eq. 4). s is the delay in seconds, and d
/// the backlog in its unit. Both are relative to the operating point.
#[derive(Debug, Clone, PartialEq)]
pub struct Plant {
    a: Vec<f64>,
    b: Vec<f64>,
}

impl Plant {
    /// Returns the plant with these coefficients, a₁ and b₁ first. Returns `None` unless both lists
    /// have the same length of at least one, and all coefficients are finite.
    pub fn new(a: Vec<f64>, b: Vec<f64>) -> Option<Self> {
        let finite = a.iter().chain(&b).all(|c| c.is_finite());
        (finite && !a.is_empty() && a.len() == b.len()).then_some(Self { a, b })
    }

    /// Returns n, the order of the model.
    pub fn order(&self) -> usize {
        self.a.len()
    }

    /// Returns the coefficients aᵢ, a₁ first.
    pub fn a(&self) -> &[f64] {
        &self.a
    }

    /// Returns the coefficients bᵢ, s per unit of backlog, b₁ first.
    pub fn b(&self) -> &[f64] {
        &self.b
    }

    /// Returns the numerator of Eq. 6, Σᵢ bᵢ zⁿ⁻ⁱ.
    pub fn numerator(&self) -> Polynomial {
        Polynomial::new(self.b.clone())
    }

    /// Returns the denominator of Eq. 6, zⁿ − Σᵢ aᵢ zⁿ⁻ⁱ.
    pub fn denominator(&self) -> Polynomial {
        let rest = self.a.iter().map(|a| -a);
        Polynomial::new(std::iter::once(1.0).chain(rest).collect::<Vec<_>>())
    }

    /// Returns the poles of the open loop.
    pub fn poles(&self) -> Vec<Complex64> {
        self.denominator().roots()
    }

    /// Returns the final change of the delay, s, after a permanent change of the backlog by 1. It
    /// is Eq. 6 at z = 1.
    pub fn gain(&self) -> f64 {
        self.b.iter().sum::<f64>() / (1.0 - self.a.iter().sum::<f64>())
    }

    /// Returns the delay s(k), s, from the last delays and backlogs, the latest first.
    pub fn next(&self, delays: &[f64], backlogs: &[f64]) -> f64 {
        let sum = |c: &[f64], x: &[f64]| c.iter().zip(x).map(|(c, x)| c * x).sum::<f64>();
        sum(&self.a, delays) + sum(&self.b, backlogs)
    }
}

impl fmt::Display for Plant {
    /// Writes Eq. 4 with its coefficients.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = |c: &[f64], name: &'static str| -> Vec<(f64, String)> {
            (1..)
                .zip(c)
                .map(|(i, c)| (*c, format!("{name}(k-{i})")))
                .collect()
        };
        write!(f, "s(k) =")?;
        for (at, (c, of)) in terms(&self.a, "s")
            .into_iter()
            .chain(terms(&self.b, "d"))
            .enumerate()
        {
            match (at, c < 0.0) {
                (0, true) => write!(f, " -{} {of}", significant(-c, 3))?,
                (0, false) => write!(f, " {} {of}", significant(c, 3))?,
                (_, true) => write!(f, " - {} {of}", significant(-c, 3))?,
                (_, false) => write!(f, " + {} {of}", significant(c, 3))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equations_5_and_6_of_the_paper() {
        let plant = Plant::new(vec![-0.003, -0.104], vec![0.015, 0.006]).unwrap();
        assert_eq!(plant.numerator().coefficients(), [0.015, 0.006]);
        assert_eq!(plant.denominator().coefficients(), [1.0, 0.003, 0.104]);
        assert!((plant.gain() - 0.021 / 1.107).abs() < 1e-12);
        assert_eq!(
            plant.to_string(),
            "s(k) = -0.00300 s(k-1) - 0.104 s(k-2) + 0.0150 d(k-1) + 0.00600 d(k-2)"
        );
        assert_eq!(Plant::new(vec![1.0], vec![]), None);
        assert_eq!(Plant::new(vec![], vec![]), None);
    }
}
