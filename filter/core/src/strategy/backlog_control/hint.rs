//! The hint: clients are told which part of the requests is refused, and come less often (Chronos §3.2).
//!
//! The paper's database piggybacks the rejection rate on its answers and its busy messages; here it is a
//! header on responses and refusals. A client that is told the rejection rate p draws a uniform x from
//! \[0, 1\] before its next request and, if x < p, sends it later by a time drawn uniformly from
//! \[t_a, t_b\]. With a time between requests uniform in \[t_1, t_2\], m such clients then send less by
//!
//! ```text
//! E[γ] = 2 m p (t_a + t_b) / ((t_1 + t_2) (t_1 + t_2 + p (t_a + t_b)))        requests/s   (Eq. 3)
//! ```
//!
//! Headgate tells p; clients decide what they do with it.

/// Name of the header.
pub const HEADER: &str = "x-headgate-rejection-rate";

/// The header's value for a rejection rate: a ratio 0..=1 with at most three digits behind the point, and
/// not 0 where anybody was refused.
#[must_use]
pub fn value(rate: f64) -> String {
    let thousandths = (rate.clamp(0.0, 1.0) * 1e3).ceil();
    (thousandths / 1e3).to_string()
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
}
