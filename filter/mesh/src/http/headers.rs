//! The headers of requests that sidecars exchange.

use headgate_core::classify::RequestView as _;
use headgate_core::http::{Headers, Stream};

use crate::workflows::{baggage, wire};

/// The headers between sidecars in requests, which applications don't need.
const MESH: [&str; 6] = [
    wire::WORKFLOW,
    wire::PROCESS,
    wire::TIMEOUT,
    wire::PROGRESS,
    wire::CLASS,
    wire::REQUEST,
];

/// Yields the names of the headers to remove before the application sees the request. These are the
/// headers between sidecars, or all of Headgate's headers after [`Headers::disown`].
pub(super) fn internal<'a>(
    headers: &'a Headers<'_, impl Stream>,
) -> impl Iterator<Item = &'a [u8]> {
    let all = headers.is_disowned();
    let mut present = [false; MESH.len()];
    for name in headers.ours().take_while(|_| !all) {
        if let Some(known) = MESH.iter().position(|known| known.as_bytes() == name) {
            present[known] = true;
        }
    }
    let known = MESH.iter().zip(present).filter(|(_, present)| *present);
    let known = known.map(|(known, _)| known.as_bytes());
    headers.ours().take_while(move |_| all).chain(known)
}

/// Returns the token in the baggage.
pub(super) fn token_in_baggage<'a>(headers: &'a Headers<'_, impl Stream>) -> Option<&'a [u8]> {
    baggage::token(headers.values(wire::BAGGAGE))
}

#[cfg(test)]
mod tests {
    use crate::memory::MemoryStream;

    use super::*;

    fn internal<'a>(headers: &'a Headers<'_, MemoryStream>) -> Vec<&'a str> {
        super::internal(headers)
            .map(|name| std::str::from_utf8(name).unwrap())
            .collect()
    }

    #[test]
    fn headers_of_a_stranger_are_hidden_and_removed() {
        let stream = MemoryStream::of(&[
            (":path", "/a"),
            ("x-headgate-workflow", "w"),
            ("x-headgate-process", "0"),
            ("x-headgate-process", "1"),
            ("x-headgate-cost", "7"),
            ("grpc-timeout", "1S"),
            ("x-headgat", "is another's"),
        ]);
        let mut headers = Headers::of_request(&stream).unwrap();
        assert!(headers.any_of_ours());
        assert_eq!(headers.header("x-headgate-workflow"), Some(&b"w"[..]));
        assert_eq!(
            internal(&headers),
            ["x-headgate-workflow", "x-headgate-process"]
        );
        headers.disown();
        assert_eq!(headers.header("x-headgate-workflow"), None);
        assert_eq!(headers.header("x-headgate-cost"), None);
        assert_eq!(headers.header("grpc-timeout"), Some(&b"1S"[..]));
        let all = [
            "x-headgate-workflow",
            "x-headgate-process",
            "x-headgate-process",
            "x-headgate-cost",
        ];
        assert_eq!(internal(&headers), all);
    }

    #[test]
    fn a_token_is_found_in_any_baggage() {
        let stream = MemoryStream::of(&[("baggage", "k=v"), ("baggage", "headgate=b,l=w")]);
        let headers = Headers::of_request(&stream).unwrap();
        assert_eq!(token_in_baggage(&headers), Some(&b"b"[..]));
        let mut out = Vec::new();
        baggage::without_token(headers.values(wire::BAGGAGE), &mut out);
        assert_eq!(out, b"k=v,l=w");
        let all = headers.values(wire::BAGGAGE);
        assert!(baggage::with_token(all, b"t", &mut out));
        assert_eq!(out, b"k=v,l=w,headgate=t");
        let stream = MemoryStream::of(&[("x", "headgate=b")]);
        let other = Headers::of_request(&stream).unwrap();
        assert_eq!(token_in_baggage(&other), None);
    }
}
