//! The hint that responses carry to clients: the rejection rate, so that clients send fewer
//! requests (Chronos §3.2).
//!
//! The paper's database adds the rejection rate to its answers and its busy messages. Here the rate
//! is a header of responses and refusals. Clients may use or ignore the header. A client's sidecar
//! can act like the paper's clients.

/// The name of the header.
pub const HEADER: &str = "x-headgate-rejection-rate";

/// Returns the header's value for a rejection rate. The value is a ratio 0..=1 with at most three
/// digits after the point. It is not 0 if any request was refused.
pub fn value(rate: f64) -> String {
    let thousandths = (rate.clamp(0.0, 1.0) * 1e3).ceil();
    (thousandths / 1e3).to_string()
}

/// Returns the rejection rate in the header's `value`, or `None` if the value is not a ratio.
pub fn rate(value: &[u8]) -> Option<f64> {
    let rate: f64 = std::str::from_utf8(value).ok()?.trim().parse().ok()?;
    (0.0..=1.0).contains(&rate).then_some(rate)
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
            assert_eq!(super::rate(told.as_bytes()), told.parse().ok());
        }
        for nonsense in ["", "much", "-0.1", "1.001", "NaN", "inf", "0.5, 0.7"] {
            assert_eq!(super::rate(nonsense.as_bytes()), None, "{nonsense}");
        }
    }
}
