//! Polynomials in z with real coefficients, and their roots.

use std::f64::consts::TAU;
use std::fmt;

use num_complex::Complex64;
use serde_json::{Value, json};

/// The maximum number of steps of Aberth's method. Simple roots take about ten steps, and double
/// roots about fifty.
const MAX_STEPS: usize = 500;
/// The relative step below which a root has converged.
const SMALL_STEP: f64 = 1e-15;

/// A polynomial, represented by its coefficients, the highest power first.
#[derive(Debug, Clone, PartialEq)]
pub struct Polynomial(Vec<f64>);

impl Polynomial {
    /// Returns the polynomial with these coefficients, the highest power first. Leading zeros are
    /// dropped.
    pub fn new(coefficients: impl Into<Vec<f64>>) -> Self {
        let mut all: Vec<f64> = coefficients.into();
        let zeros = all.iter().take_while(|c| **c == 0.0).count();
        all.drain(..zeros);
        Self(all)
    }

    /// Returns the coefficients, the highest power first. The zero polynomial has no coefficients.
    pub fn coefficients(&self) -> &[f64] {
        &self.0
    }

    /// Returns the degree, which is 0 for constants.
    pub fn degree(&self) -> usize {
        self.0.len().saturating_sub(1)
    }

    /// Returns the value at `z`.
    pub fn at(&self, z: Complex64) -> Complex64 {
        let zero = Complex64::new(0.0, 0.0);
        self.0.iter().fold(zero, |sum, c| sum * z + c)
    }

    /// Returns the product of both polynomials.
    pub fn times(&self, other: &Self) -> Self {
        if self.0.is_empty() || other.0.is_empty() {
            return Self(Vec::new());
        }
        let mut product = vec![0.0; self.0.len() + other.0.len() - 1];
        for (i, a) in self.0.iter().enumerate() {
            for (j, b) in other.0.iter().enumerate() {
                product[i + j] += a * b;
            }
        }
        Self::new(product)
    }

    /// Returns the sum of both polynomials.
    pub fn plus(&self, other: &Self) -> Self {
        let (long, short) = match self.0.len() >= other.0.len() {
            true => (self, other),
            false => (other, self),
        };
        let mut sum = long.0.clone();
        let offset = long.0.len() - short.0.len();
        for (to, from) in sum[offset..].iter_mut().zip(&short.0) {
            *to += from;
        }
        Self::new(sum)
    }

    /// Returns all roots, the largest first, by Aberth's method. Constants have no roots.
    pub fn roots(&self) -> Vec<Complex64> {
        let n = self.degree();
        let Some(lead) = self.0.first().filter(|_| n > 0) else {
            return Vec::new();
        };
        // `bound` is Cauchy's bound on the magnitude of all roots.
        let bound = 1.0 + self.0.iter().map(|c| (c / lead).abs()).fold(0.0, f64::max);
        let derivative: Vec<f64> = self.0[..n]
            .iter()
            .zip((1..=n).rev())
            .map(|(c, power)| c * power as f64)
            .collect();
        let derivative = Self(derivative);
        // The start is neither real nor symmetric. Otherwise pairs would move in the same way
        // forever.
        let mut roots: Vec<Complex64> = (0..n)
            .map(|k| Complex64::from_polar(bound / 2.0, TAU * (k as f64 + 0.3) / n as f64))
            .collect();
        for _ in 0..MAX_STEPS {
            let mut moved = 0.0_f64;
            for k in 0..n {
                let z = roots[k];
                let value = self.at(z);
                if value.norm() == 0.0 {
                    continue;
                }
                let newton = value / derivative.at(z);
                let others: Complex64 = (0..n)
                    .filter(|j| *j != k && roots[*j] != z)
                    .map(|j| (z - roots[j]).inv())
                    .sum();
                let step = newton / (1.0 - newton * others);
                if step.is_finite() {
                    roots[k] -= step;
                    moved = moved.max(step.norm() / z.norm().max(1e-300));
                }
            }
            if moved < SMALL_STEP {
                break;
            }
        }
        for root in &mut roots {
            // With real coefficients, a tiny imaginary part is a rounding error.
            if root.im.abs() < 1e-9 * root.norm().max(1e-9) {
                root.im = 0.0;
            }
        }
        roots.sort_by(|a, b| {
            let by_size = (b.norm_sqr() - a.norm_sqr()).abs() > 1e-9 * a.norm_sqr().max(1e-300);
            match by_size {
                true => b.norm_sqr().total_cmp(&a.norm_sqr()),
                false => b.im.total_cmp(&a.im).then(b.re.total_cmp(&a.re)),
            }
        });
        roots
    }
}

impl fmt::Display for Polynomial {
    /// Writes text such as `z² + 0.003 z + 0.104`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (power, c) in (0..=self.degree()).rev().zip(&self.0) {
            let sign = match (power == self.degree(), *c < 0.0) {
                (true, true) => "-",
                (true, false) => "",
                (false, true) => " - ",
                (false, false) => " + ",
            };
            let z = match power {
                0 => String::new(),
                1 => "z".to_owned(),
                2 => "z²".to_owned(),
                3 => "z³".to_owned(),
                _ => format!("z^{power}"),
            };
            let number = match c.abs() {
                1.0 if power > 0 => String::new(),
                number if power > 0 => significant(number, 4) + " ",
                number => significant(number, 4),
            };
            write!(f, "{sign}{number}{z}")?;
        }
        Ok(())
    }
}

/// Formats a number with this many significant digits, at most 12 of them after the point, without
/// an exponent.
pub fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = (digits - 1 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    format!("{value:.digits$}")
}

/// Returns the roots as JSON, each with its parts and its magnitude.
pub fn roots_json(roots: &[Complex64]) -> Value {
    roots
        .iter()
        .map(|z| json!({"re": z.re, "im": z.im, "abs": z.norm()}))
        .collect()
}

/// Returns text such as `0.735, 0.0004 ± 0.405i`.
pub fn roots_text(roots: &[Complex64]) -> String {
    // The addition of 0 removes the sign of a number that is rounded to 0.
    let real = |re: f64| (1e3 * re).round() / 1e3 + 0.0;
    let shown = roots.iter().filter(|p| p.im >= 0.0).map(|p| match p.im {
        0.0 => format!("{:.3}", real(p.re)),
        im => format!("{:.3} ± {im:.3}i", real(p.re)),
    });
    match shown.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "none".to_owned(),
        some => some,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn c(re: f64, im: f64) -> Complex64 {
        Complex64::new(re, im)
    }

    #[test]
    fn roots_and_coefficients_are_two_sides_of_one_thing() {
        let roots = [c(0.9, 0.0), c(0.5, 0.2), c(0.5, -0.2), c(-0.3, 0.0)];
        let pair = Polynomial::new([1.0, -1.0, 0.29]);
        let product = Polynomial::new([1.0, -0.9]).times(&pair);
        let found = product.times(&Polynomial::new([1.0, 0.3])).roots();
        assert_eq!(found.len(), roots.len());
        for (found, root) in found.iter().zip(&roots) {
            assert!((found - root).norm() < 1e-10, "{found} {root}");
        }
    }

    #[test]
    fn double_roots_and_roots_at_zero_are_found() {
        let found = Polynomial::new([1.0, -1.0, 0.25, 0.0]).roots();
        assert!((found[0] - 0.5).norm() < 1e-6 && (found[1] - 0.5).norm() < 1e-6);
        assert!(found[2].norm() < 1e-12, "{found:?}");
        assert!(Polynomial::new([3.0]).roots().is_empty());
        assert!(Polynomial::new(Vec::new()).roots().is_empty());
    }

    #[test]
    fn products_and_sums() {
        let a = Polynomial::new([1.0, 2.0]);
        let b = Polynomial::new([1.0, 0.0, -1.0]);
        assert_eq!(a.times(&b).coefficients(), [1.0, 2.0, -1.0, -2.0]);
        assert_eq!(a.plus(&b).coefficients(), [1.0, 1.0, 1.0]);
        let cancel = b.plus(&Polynomial::new([-1.0, 0.0, 0.0]));
        assert_eq!(cancel.coefficients(), [-1.0]);
    }
}
