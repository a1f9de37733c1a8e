//! Dynamic metadata as text.

/// Returns a value from proxy-wasm as text, or `None` if it is neither a string nor a whole number.
/// The host passes the bytes of a string, or the eight bytes of a number. Values of other kinds
/// contain control characters.
pub fn text(value: Vec<u8>) -> Option<Vec<u8>> {
    let is_text = std::str::from_utf8(&value).is_ok_and(|t| !t.chars().any(char::is_control));
    if is_text {
        return (!value.is_empty()).then_some(value);
    }
    whole(f64::from_le_bytes(value.try_into().ok()?))
}

/// Returns a whole number as text, or `None` for any other number.
pub fn whole(number: f64) -> Option<Vec<u8>> {
    // 2^53, up to which all whole numbers are exact as f64.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let whole = number.fract() == 0.0 && number.abs() <= EXACT;
    whole.then(|| format!("{number:.0}").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_text_or_a_whole_number() {
        let of = |bytes: &[u8]| text(bytes.to_vec()).map(|t| String::from_utf8(t).unwrap());
        let number = |n: f64| of(&n.to_le_bytes());
        assert_eq!(of("tenänt a".as_bytes()).as_deref(), Some("tenänt a"));
        assert_eq!(of(b"12345678").as_deref(), Some("12345678"));
        assert_eq!(number(4711.0).as_deref(), Some("4711"));
        assert_eq!(number(-1.0).as_deref(), Some("-1"));
        assert_eq!(number(0.5), None);
        assert_eq!(number(f64::NAN), None);
        assert_eq!(of(b""), None);
        // These values are a boolean and a message.
        assert_eq!(of(b"\x01"), None);
        assert_eq!(of(b"\x0a\x03abc"), None);
    }
}
