//! Detection of retries ([`headgate_strategies::retries`]).
//!
//! Envoy numbers attempts from 1 in `x-envoy-attempt-count` (on routes with
//! `include_request_attempt_count`, such as Istio's). gRPC clients count the previous attempts in
//! `grpc-previous-rpc-attempts` (gRFC A6). Other clients and gateways use other headers, of which a
//! policy may name one (`retries.header`). A client that marks a first attempt as a retry harms
//! only itself.

use super::RequestView;
use crate::config::{ATTEMPT_HEADERS, RetriesConfig};

/// Whether the request is a retry according to one of [`ATTEMPT_HEADERS`].
pub(crate) fn is_retry(request: &(impl RequestView + ?Sized)) -> bool {
    let mut headers = ATTEMPT_HEADERS.into_iter();
    headers.any(|(name, first)| repeats(request, name, first))
}

/// Whether the request is a retry according to the header that the policy names.
pub(crate) fn is_retry_by(own: &RetriesConfig, request: &impl RequestView) -> bool {
    repeats(request, &own.header, own.first_attempt)
}

fn repeats(request: &(impl RequestView + ?Sized), header: &str, first: u32) -> bool {
    let attempt = request.header(header).and_then(number);
    attempt.is_some_and(|attempt| attempt > first)
}

/// Parses the number of an attempt, which is either a plain number or, as in AWS SDKs, in the form
/// `attempt=2; max=3`.
fn number(value: &[u8]) -> Option<u32> {
    let mut parts = std::str::from_utf8(value).ok()?.split(';');
    parts.find_map(|part| {
        let part = part.trim_start();
        let number = part.strip_prefix("attempt=").unwrap_or(part);
        number.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryRequest;

    #[test]
    fn attempts_are_numbered_as_envoy_and_grpc_do() {
        let is_retry = |name, value| is_retry(&MemoryRequest::of(&[(name, value)]));
        assert!(!is_retry("x-envoy-attempt-count", "1"));
        assert!(is_retry("x-envoy-attempt-count", "2"));
        assert!(!is_retry("grpc-previous-rpc-attempts", "0"));
        assert!(is_retry("grpc-previous-rpc-attempts", "1"));
        for odd in ["", "-1", "two", "2 ", "99999999999"] {
            assert!(!is_retry("x-envoy-attempt-count", odd), "{odd:?}");
        }
    }

    #[test]
    fn a_policy_names_a_header_and_the_number_of_a_first_attempt() {
        let is_retry = |first_attempt, header: &str, value| {
            let own = RetriesConfig {
                header: header.to_owned(),
                first_attempt,
            };
            is_retry_by(&own, &MemoryRequest::of(&[("x-retry", value)]))
        };
        assert!(!is_retry(0, "x-retry", "0"));
        assert!(is_retry(0, "x-retry", "1"));
        assert!(!is_retry(1, "x-retry", "1"));
        assert!(is_retry(1, "x-retry", "2"));
        assert!(!is_retry(0, "x-other", "1"));
        for (first, retry) in [
            ("attempt=1; max=3", "attempt=2; max=3"),
            ("attempt=1", "attempt=2"),
            (
                "ttl=20261125T173300Z; attempt=1; max=3",
                "ttl=20261125T173300Z;attempt=2;max=3",
            ),
        ] {
            assert!(!is_retry(1, "x-retry", first), "{first}");
            assert!(is_retry(1, "x-retry", retry), "{retry}");
        }
        for odd in ["", ";", "max=3", "attempt=", "attempt=two; max=3", "true"] {
            assert!(!is_retry(0, "x-retry", odd), "{odd:?}");
        }
    }
}
