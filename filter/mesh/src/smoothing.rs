//! Smoothing: a client whose requests are refused delays its next requests (Chronos §3.2).
//!
//! Before its next request, a client that received the rejection rate p draws x from \[0, 1). If x
//! < p, the client delays the request by a time drawn uniformly from \[t_a, t_b\]. If the time
//! between requests is uniform in \[t_1, t_2\], m such clients reduce their rate by
//!
//! ```text
//! E[γ] = 2 m p (t_a + t_b) / ((t_1 + t_2) (t_1 + t_2 + p (t_a + t_b)))        requests/s   (Eq. 3)
//! ```
//!
//! Without smoothing, these clients send 2 m / (t_1 + t_2) requests/s. So the relative reduction
//! depends only on means. It is p D / (T + p D), with D = (t_a + t_b) / 2 and T = (t_1 + t_2) / 2.
//!
//! The clients are the simulator's clients, and sidecars on behalf of applications that don't use
//! smoothing ([`crate::engine::delay`]).

use std::time::Duration;

use headgate_strategies::rng::Rng;

/// The range of delays that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Smoothing {
    /// t_a, the shortest delay.
    pub least: Duration,
    /// t_b, the longest delay, at least t_a.
    pub most: Duration,
}

impl Smoothing {
    /// Returns the delay of a client's next request after this `rejection_rate` (ratio), or `None`
    /// if the request isn't delayed.
    pub fn delay(&self, rejection_rate: f64, rng: &mut Rng) -> Option<Duration> {
        if !rng.chance(rejection_rate) {
            return None;
        }
        let range = self.most.saturating_sub(self.least);
        Some(self.least + range.mul_f64(rng.next_f64()))
    }

    /// Returns the relative reduction of the rate of clients' requests at this `rejection_rate`
    /// (Eq. 3). Without smoothing, the mean time between two requests of a client is `between`.
    pub fn reduction(&self, rejection_rate: f64, between: Duration) -> f64 {
        let mean = (self.least + self.most).as_secs_f64() / 2.0;
        let later = rejection_rate.clamp(0.0, 1.0) * mean;
        match later > 0.0 {
            true => later / (between.as_secs_f64() + later),
            false => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: Smoothing = Smoothing {
        least: Duration::from_millis(100),
        most: Duration::from_millis(300),
    };

    #[test]
    fn equation_3_by_hand() {
        // m = 1200 clients send a request every 0.1 to 0.5 s.
        let (m, t, d) = (1_200.0, 0.6, 0.4);
        for p in [0.0, 0.25, 0.5, 1.0] {
            let gamma = 2.0 * m * p * d / (t * (t + p * d));
            let rate = 2.0 * m / t;
            let reduction = PAPER.reduction(p, Duration::from_millis(300));
            assert!((reduction - gamma / rate).abs() < 1e-12, "{p}");
        }
        let reduction = |p| PAPER.reduction(p, Duration::from_millis(300));
        assert!((reduction(0.5) - 0.25).abs() < 1e-12);
        assert!((reduction(1.0) - 0.4).abs() < 1e-12);
        assert_eq!(PAPER.reduction(0.0, Duration::ZERO), 0.0);
    }

    #[test]
    fn delays_have_the_given_probability_and_are_uniform() {
        let mut rng = Rng::new(1);
        assert!((0..1_000).all(|_| PAPER.delay(0.0, &mut rng).is_none()));
        assert!((0..1_000).all(|_| PAPER.delay(1.0, &mut rng).is_some()));
        let drawn = 100_000;
        let delays: Vec<f64> = (0..drawn)
            .filter_map(|_| PAPER.delay(0.3, &mut rng))
            .map(|delay| delay.as_secs_f64())
            .collect();
        assert!((delays.len() as f64 / f64::from(drawn) - 0.3).abs() < 0.005);
        assert!(delays.iter().all(|delay| (0.1..=0.3).contains(delay)));
        let mean = delays.iter().sum::<f64>() / delays.len() as f64;
        let of_first_half = delays.iter().filter(|delay| **delay < 0.2).count();
        assert!((mean - 0.2).abs() < 0.001, "{mean}");
        assert!((of_first_half as f64 / delays.len() as f64 - 0.5).abs() < 0.01);
    }
}
