//! The workflow that a request names in its headers. Every request of a call tree carries the id of
//! the workflow (Wisp §3).
//!
//! Applications that propagate trace context can carry the workflow in W3C Baggage. Other
//! applications may send a header:
//!
//! ```text
//! baggage: workflow=checkout;ttl=3,user=4711
//! x-headgate-workflow: checkout
//! ```
//!
//! The header has precedence, since a proxy can set it without parsing the baggage. Its value is
//! percent-encoded, as sidecars write it ([`put_name`](crate::workflows::wire::put_name)). The
//! baggage follows the recommendation's grammar (§3.2.1). It is a list of members
//! `key=value;properties`, with optional white space around every delimiter, and percent-encoded
//! values. Its limits (§3.3.2) are 8,192 bytes and 64 members. A longer baggage names no workflow,
//! and members beyond the 64th are ignored. A member without `=` hides the members after it. A
//! request may have several `baggage` headers (RFC 9110 §5.3). These rules hold for each of them.
//!
//! Names are trusted. An edge proxy must remove the names that unknown clients send. The engine's
//! directory of names assigns each name its flow of a fair queue (`engine::flows`).

use headgate_core::classify::RequestView;

/// The header with the workflow's name.
pub const HEADER: &str = "x-headgate-workflow";
/// The header of W3C Baggage.
pub const BAGGAGE: &str = "baggage";
/// The workflow's key in the baggage.
const KEY: &[u8] = b"workflow";
/// The maximum length of a baggage (W3C Baggage §3.3.2).
pub(crate) const MAX_BYTES: usize = 8192;
/// The maximum number of members of a baggage (W3C Baggage §3.3.2).
pub(crate) const MAX_MEMBERS: usize = 64;

/// Writes the name of the workflow of `request` to `out`. Returns false if `request` names no
/// workflow.
pub(crate) fn name(request: &impl RequestView, out: &mut Vec<u8>) -> bool {
    out.clear();
    if let Some(name) = request.header(HEADER) {
        out.extend(Decoded(name.trim_ascii()));
    } else if let Some(value) = request.values(BAGGAGE).find_map(|b| member(b, KEY)) {
        out.extend(Decoded(value));
    }
    !out.is_empty()
}

/// Returns the value of the first member `key` of a `baggage` header, still percent-encoded.
/// Returns `None` if the header is invalid or has no such member.
pub fn member<'a>(baggage: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    if baggage.len() > MAX_BYTES {
        return None;
    }
    for member in baggage.split(|&b| b == b',').take(MAX_MEMBERS) {
        let (found, value) = pair(member)?;
        if found == key {
            let valid = value.iter().all(|&b| is_baggage_octet(b));
            return valid.then_some(value);
        }
    }
    None
}

/// Returns the key and the value of a member, or `None` if it has no `=`. The properties of the
/// member are ignored.
pub(crate) fn pair(member: &[u8]) -> Option<(&[u8], &[u8])> {
    let pair = member.split(|&b| b == b';').next()?;
    let at = pair.iter().position(|&b| b == b'=')?;
    Some((pair[..at].trim_ascii(), pair[at + 1..].trim_ascii()))
}

/// Whether `b` is visible ASCII other than `"`, `,`, `;` and `\`.
fn is_baggage_octet(b: u8) -> bool {
    b.is_ascii_graphic() && !matches!(b, b'"' | b',' | b';' | b'\\')
}

/// An iterator over the decoded bytes of a percent-encoded value. A `%` without two hexadecimal
/// digits after it stays unchanged.
pub(crate) struct Decoded<'a>(pub(crate) &'a [u8]);

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        let hex = |b: &u8| char::from(*b).to_digit(16);
        if let (b'%', [high, low, after @ ..]) = (first, rest)
            && let (Some(high), Some(low)) = (hex(high), hex(low))
        {
            self.0 = after;
            return u8::try_from(high << 4 | low).ok();
        }
        self.0 = rest;
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::MemoryRequest;

    fn of(headers: &[(&str, &str)]) -> Option<Vec<u8>> {
        let mut found = b"of the request before".to_vec();
        name(&MemoryRequest::of(headers), &mut found).then_some(found)
    }

    fn some(name: &str) -> Option<Vec<u8>> {
        Some(name.as_bytes().to_vec())
    }

    #[test]
    fn the_baggage_names_it_however_it_is_written() {
        for baggage in [
            "workflow=checkout",
            " workflow\t= checkout ",
            "user=4711,workflow=checkout",
            "user=4711;a=b;c , workflow=checkout;ttl=3",
            "workflow=check%6Fut",
            "workflow=check%6fut;x",
            "workflow=checkout,workflow=second",
            "a==,workflow=checkout",
        ] {
            assert_eq!(of(&[("baggage", baggage)]), some("checkout"), "{baggage:?}");
        }
        for (value, expected) in [("caf%C3%A9", "café"), ("50%", "50%"), ("50%2", "50%2")] {
            let baggage = format!("workflow={value}");
            assert_eq!(of(&[("baggage", &baggage)]), some(expected));
        }
    }

    #[test]
    fn the_header_precedes_the_baggage() {
        let headers = [
            ("baggage", "workflow=a"),
            ("x-headgate-workflow", " checkout "),
        ];
        assert_eq!(of(&headers), some("checkout"));
    }

    #[test]
    fn any_of_several_baggage_headers_names_it() {
        let headers = ["user=4711", "nonsense", "workflow=a", "workflow=b"];
        assert_eq!(of(&headers.map(|value| ("baggage", value))), some("a"));
    }

    #[test]
    fn invalid_baggage_names_no_workflow() {
        let far = format!("{}workflow=a", "k=v,".repeat(64));
        let large = format!("workflow=a;{}", "p".repeat(8192));
        for baggage in [
            "",
            "workflow",
            "workflow=",
            "workflow;a=b",
            "Workflow=a",
            "workflows=a",
            "nonsense,workflow=a",
            "workflow=a b",
            "workflow=\"a\"",
            "workflow=a\\b",
            "workflow=é",
            &far,
            &large,
        ] {
            assert_eq!(of(&[("baggage", baggage)]), None, "{baggage:?}");
        }
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("x-headgate-workflow", "")]), None);
    }

    proptest! {
        /// A name of any bytes is read unchanged after percent-encoding in a baggage, and from the
        /// header that a sidecar sets.
        #[test]
        fn a_name_survives_its_encoding(
            id in prop::collection::vec(any::<u8>(), 1..80),
            plain in any::<bool>(),
        ) {
            let encode = |byte: &u8| match byte {
                b'a'..=b'z' | b'0'..=b'9' if plain => char::from(*byte).to_string(),
                byte => format!("%{byte:02X}"),
            };
            let encoded: String = id.iter().map(encode).collect();
            let baggage = format!("k=v, workflow = {encoded} ;p");
            let mut header = String::new();
            crate::workflows::wire::put_name(&mut header, &id);
            prop_assert_eq!(of(&[(HEADER, &header)]), Some(id.clone()));
            prop_assert_eq!(of(&[("baggage", &baggage)]), Some(id));
        }

        #[test]
        fn any_baggage_causes_no_panic(header in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = member(&header, KEY).map(|value| Decoded(value).count());
        }
    }
}
