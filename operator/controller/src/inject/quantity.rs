//! Quantities of Kubernetes, such as `100m` or `96Mi`.

/// Parses an argument that is a quantity.
///
/// # Errors
/// The text isn't a quantity.
pub(super) fn quantity(text: &str) -> Result<String, String> {
    match amount(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("a quantity such as 500m or 256Mi".to_owned()),
    }
}

/// Returns a quantity as a number, or `None` if the text isn't a quantity.
pub(super) fn amount(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let number: f64 = number.parse().ok()?;
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024_f64.powi(2),
        "Gi" => 1024_f64.powi(3),
        "Ti" => 1024_f64.powi(4),
        "Pi" => 1024_f64.powi(5),
        "Ei" => 1024_f64.powi(6),
        exponent => 10_f64.powi(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_by_kubernetes() {
        for (text, expected) in [
            ("0", 0.0),
            ("1.5", 1.5),
            ("250m", 0.25),
            ("1k", 1e3),
            ("1E", 1e18),
            ("1e3", 1e3),
            ("12E-1", 1.2),
            ("1Ki", 1024.0),
            ("1.5Gi", 1_610_612_736.0),
        ] {
            let read = amount(text).unwrap();
            assert!((read - expected).abs() <= 1e-9 * expected, "{text}: {read}");
        }
        for text in [
            "", ".", "m", "-1", "1 Mi", "1MB", "1mi", "1Mib", "1e", "1.2.3", "500 m",
        ] {
            assert!(quantity(text).is_err(), "{text}");
        }
    }
}
