//! The hint: clients are told which part of the requests is refused, and come less often (Chronos §3.2).
//!
//! The paper's database piggybacks the rejection rate on its answers and its busy messages; here it is a
//! header on responses and refusals. A client that is told the rejection rate p draws a uniform x from \[0, 1\] before its next request and,
//! if x < p, sends it later by a time drawn uniformly from \[t_a, t_b\]. With a time between requests
//! uniform in \[t_1, t_2\], m such clients then send less by
//!
//! ```text
//! E[γ] = 2 m p (t_a + t_b) / ((t_1 + t_2) (t_1 + t_2 + p (t_a + t_b)))        requests/s   (Eq. 3)
//! ```
//!
//! Headgate tells p; what clients make of it is theirs. Eq. 3 is here to say what to expect of it.

/// Name of the header.
pub const HEADER: &str = "x-headgate-rejection-rate";

/// The header's value for a rejection rate: a ratio 0..=1 with at most three digits behind the point, and
/// not 0 where anybody was refused.
#[must_use]
pub fn value(rate: f64) -> String {
    let thousandths = (rate.clamp(0.0, 1.0) * 1e3).ceil();
    (thousandths / 1e3).to_string()
}

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
    fn the_header_is_a_short_ratio() {
        for (rate, told) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (1.0 / 3.0, "0.334"),
            (1e-9, "0.001"),
            (0.999_9, "1"),
            (1.0, "1"),
            (7.0, "1"),
        ] {
            assert_eq!(value(rate), told);
        }
    }

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
