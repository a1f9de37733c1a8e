//! What clients make of the hint: the load that they take off by waiting now and then (Chronos §3.2).
//!
//! A client that is told the rejection rate p draws a uniform x from \[0, 1\] before its next request and,
//! if x < p, sends it later by a time drawn uniformly from \[t_a, t_b\]. With a time between requests
//! uniform in \[t_1, t_2\], m such clients then send less by
//!
//! ```text
//! E[γ] = 2 m p (t_a + t_b) / ((t_1 + t_2) (t_1 + t_2 + p (t_a + t_b)))        requests/s   (Eq. 3)
//! ```
//!
//! Headgate tells p; this is here so that operators and the simulator can say what to expect of it.

/// E\[γ\] of Eq. 3, requests/s, of `clients` (m) clients that are told the rejection rate `p`, ratio 0..=1.
/// `between` is \[t_1, t_2\] and `delay` \[t_a, t_b\], in s.
#[must_use]
pub fn load_reduction(clients: f64, p: f64, between: [f64; 2], delay: [f64; 2]) -> f64 {
    let between = between[0] + between[1];
    let delay = delay[0] + delay[1];
    2.0 * clients * p * delay / (between * (between + p * delay))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_example() {
        for clients in [1.0, 1_200.0] {
            let (between, delay) = ([0.1, 0.5], [0.1, 0.3]);
            let rate = clients * 2.0 / (between[0] + between[1]);
            let part = |p| load_reduction(clients, p, between, delay) / rate;
            assert!((part(1.0) - 0.40).abs() < 1e-9);
            assert!((part(0.5) - 0.25).abs() < 1e-9);
            assert_eq!(part(0.0), 0.0);
        }
    }
}
