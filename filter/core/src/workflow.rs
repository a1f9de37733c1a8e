//! The workflow that a request belongs to, as its headers tell (Wisp §3: an id that travels with every
//! request of the tree).
//!
//! Applications that propagate trace context carry it already, in W3C Baggage; others may send a header:
//!
//! ```text
//! baggage: workflow=checkout;ttl=3,user=4711
//! x-headgate-workflow: checkout
//! ```
//!
//! The header wins: a proxy can set it without taking a baggage apart. Of the baggage this reads what the
//! recommendation's grammar (§3.2.1) says of a list of members `key=value;properties`, with optional white
//! space around every delimiter, values percent-encoded, and nothing beyond its limits (§3.3.2): 8,192
//! bytes and 64 members. What is no baggage names no workflow.
//!
//! Ids are unbounded and come from outside, so they are hashed into a fixed number of flows, as in
//! stochastic fairness queueing (P. McKenney, INFOCOM '90): two workflows share a flow with a chance of
//! one in [`IDS`], and then share one turn. Requests without an id are flow 0, `_other`. Ids are believed as
//! they come: an edge strips those of strangers.

use crate::classify::RequestView;
use crate::config::MAX_WORKFLOW_NAME;

/// Header that names the workflow by itself.
pub const HEADER: &str = "x-headgate-workflow";
/// W3C Baggage.
pub const BAGGAGE: &str = "baggage";
/// Key of the workflow in the baggage.
const KEY: &[u8] = b"workflow";
/// Flows that ids are hashed into.
pub const IDS: u16 = 1024;
/// All flows: those of ids, and 0 for requests without.
pub const FLOWS: u16 = IDS + 1;
/// Limits of W3C Baggage §3.3.2.
const MAX_BYTES: usize = 8192;
const MAX_MEMBERS: usize = 64;

/// The flow of `request`.
#[must_use]
pub fn workflow(request: &impl RequestView) -> u16 {
    if let Some(id) = request.header(HEADER) {
        return flow(id.trim_ascii());
    }
    request.header(BAGGAGE).and_then(of_baggage).unwrap_or(0)
}

/// The flow of the workflow `id`; 0 for one that is empty or longer than [`MAX_WORKFLOW_NAME`].
#[must_use]
pub fn flow(id: &[u8]) -> u16 {
    flow_of(id.iter().copied())
}

/// FNV-1a: the same in all workers and versions, and no allocation for a percent-encoded id.
fn flow_of(id: impl Iterator<Item = u8>) -> u16 {
    let (mut hash, mut length) = (0xcbf2_9ce4_8422_2325_u64, 0);
    for byte in id {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        length += 1;
    }
    if length == 0 || length > MAX_WORKFLOW_NAME {
        return 0;
    }
    // The lower bits of FNV-1a alone depend on the lower bits of the bytes alone.
    let folded = hash ^ hash >> 32;
    1 + (folded % u64::from(IDS)) as u16
}

/// The flow that the first `workflow` member of `baggage` names.
fn of_baggage(baggage: &[u8]) -> Option<u16> {
    member(baggage, KEY).map(|value| flow_of(Decoded(value)))
}

/// The value of the first member `key` of `baggage`, still percent-encoded.
pub(crate) fn member<'a>(baggage: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    if baggage.len() > MAX_BYTES {
        return None;
    }
    for member in baggage.split(|&b| b == b',').take(MAX_MEMBERS) {
        // Properties of the member are none of ours.
        let pair = member.split(|&b| b == b';').next()?;
        let at = pair.iter().position(|&b| b == b'=')?;
        let (found, value) = (pair[..at].trim_ascii(), pair[at + 1..].trim_ascii());
        if found == key {
            let valid = value.iter().all(|&b| is_baggage_octet(b));
            return valid.then_some(value);
        }
    }
    None
}

/// Visible ASCII but for `"`, `,`, `;` and `\`.
fn is_baggage_octet(b: u8) -> bool {
    b.is_ascii_graphic() && !matches!(b, b'"' | b',' | b';' | b'\\')
}

/// Bytes of a percent-encoded value. A `%` that introduces no two digits stands for itself.
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

    struct Request<'a>(&'a [(&'a str, &'a str)]);

    impl RequestView for Request<'_> {
        fn path(&self) -> Option<&[u8]> {
            None
        }
        fn method(&self) -> Option<&[u8]> {
            None
        }
        fn header(&self, name: &str) -> Option<&[u8]> {
            let found = self.0.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| value.as_bytes())
        }
        fn route_name(&self) -> Option<&[u8]> {
            None
        }
    }

    fn of(headers: &[(&str, &str)]) -> u16 {
        workflow(&Request(headers))
    }

    #[test]
    fn the_baggage_names_it_however_it_is_written() {
        let checkout = flow(b"checkout");
        assert_ne!(checkout, 0);
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
            assert_eq!(of(&[("baggage", baggage)]), checkout, "{baggage:?}");
        }
        assert_eq!(
            of(&[("baggage", "workflow=caf%C3%A9")]),
            flow("café".as_bytes())
        );
        assert_eq!(of(&[("baggage", "workflow=50%")]), flow(b"50%"));
        assert_eq!(of(&[("baggage", "workflow=50%2")]), flow(b"50%2"));
    }

    #[test]
    fn the_header_wins() {
        let headers = [
            ("baggage", "workflow=a"),
            ("x-headgate-workflow", " checkout "),
        ];
        assert_eq!(of(&headers), flow(b"checkout"));
    }

    #[test]
    fn what_is_no_baggage_names_no_workflow() {
        let far = format!("{}workflow=a", "k=v,".repeat(64));
        let long = format!("workflow={}", "a".repeat(MAX_WORKFLOW_NAME + 1));
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
            &long,
            &large,
        ] {
            assert_eq!(of(&[("baggage", baggage)]), 0, "{baggage:?}");
        }
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[("x-headgate-workflow", "")]), 0);
    }

    #[test]
    fn ids_spread_over_the_flows() {
        let mut seen = vec![0_u32; usize::from(FLOWS)];
        for n in 0..100_000 {
            seen[usize::from(flow(format!("tenant-{n}").as_bytes()))] += 1;
        }
        assert_eq!(seen[0], 0, "flow 0 is for requests without an id");
        // 98 each on average, with a standard deviation of 10.
        assert!(
            seen[1..].iter().all(|&n| (45..160).contains(&n)),
            "{seen:?}"
        );
    }

    proptest! {
        /// Whatever bytes an id has, percent-encoded in a baggage it names the same flow.
        #[test]
        fn an_id_survives_its_encoding(id in prop::collection::vec(any::<u8>(), 1..80), plain in any::<bool>()) {
            let encode = |byte: &u8| match byte {
                b'a'..=b'z' | b'0'..=b'9' if plain => char::from(*byte).to_string(),
                byte => format!("%{byte:02X}"),
            };
            let encoded: String = id.iter().map(encode).collect();
            let baggage = format!("k=v, workflow = {encoded} ;p");
            prop_assert_eq!(of(&[("baggage", &baggage)]), flow(&id));
        }

        #[test]
        fn any_header_names_some_flow(header in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(of_baggage(&header).unwrap_or(0) < FLOWS);
            prop_assert!(flow(&header) < FLOWS);
        }
    }
}
