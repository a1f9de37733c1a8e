//! The rule for retries: no retry is admitted while first attempts are refused.
//!
//! **The problem.** A refused request costs the backend nothing, but its client may retry. A client
//! that gave up on a late answer may retry, too. While the backend has less capacity than usual,
//! each request then arrives several times, and a retry takes the slot of a first attempt. The load
//! is then a multiple of the users' demand, and remains so after the cause is gone.
//!
//! **The rule.** A retry of a type is refused if a first attempt of that type was refused within
//! the last second. So slots go to first attempts while there are too few slots for them, and the
//! rule has no effect while all are admitted. Two refusals don't count, because slots may be free:
//! that of a workflow beyond its rate, and that of a deadline that a free slot wouldn't meet.
//! Otherwise one client could have the retries of all others refused. Refused retries don't count
//! as demand. The value cut and the search for P use first attempts only.
//!
//! **Detection.** Envoy numbers attempts from 1 in `x-envoy-attempt-count` (on routes with
//! `include_request_attempt_count`, such as Istio's). gRPC clients count the previous attempts in
//! `grpc-previous-rpc-attempts` (gRFC A6). Other clients and gateways use other headers, of which a
//! policy may name one (`retries.header`). A client that marks a first attempt as a retry harms
//! only itself.
//!
//! Each worker uses only its own refusals, because in an overload all workers refuse.

use std::time::Duration;

use crate::classify::RequestView;
use crate::config::{ATTEMPT_HEADERS, RetriesConfig};
use crate::request::Attributes;
use crate::time::Instant;

/// The time after a refused first attempt within which retries are refused.
pub(crate) const MEMORY: Duration = Duration::from_secs(1);

/// Whether the request is a retry according to one of [`ATTEMPT_HEADERS`].
#[must_use]
pub(crate) fn is_retry(request: &(impl RequestView + ?Sized)) -> bool {
    let mut headers = ATTEMPT_HEADERS.into_iter();
    headers.any(|(name, first)| repeats(request, name, first))
}

/// Whether the request is a retry according to the header that the policy names.
#[must_use]
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

/// The times at which first attempts were last refused, by type.
#[derive(Debug)]
pub(crate) struct FirstAttempts {
    refused: Vec<Option<Instant>>,
}

impl FirstAttempts {
    pub(crate) fn new(types: usize) -> Self {
        Self {
            refused: vec![None; types],
        }
    }

    /// Records that `request` was refused, unless it is a retry.
    pub(crate) fn refused(&mut self, request: &Attributes, now: Instant) {
        if let Some(at) = self.refused.get_mut(usize::from(request.kind.0))
            && !request.is_retry
        {
            *at = Some(now);
        }
    }

    /// Whether `request` is a retry, and a first attempt of its type was refused recently.
    pub(crate) fn precede(&self, request: &Attributes, now: Instant) -> bool {
        let refused = self.refused.get(usize::from(request.kind.0));
        request.is_retry && refused.is_some_and(|at| at.is_some_and(|at| now.since(at) < MEMORY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryRequest;
    use crate::request::TypeId;

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

    #[test]
    fn a_refused_first_attempt_holds_retries_of_its_type_back_for_a_second() {
        let mut firsts = FirstAttempts::new(2);
        let first = |kind| Attributes::of(TypeId(kind));
        let retry = |kind| Attributes {
            is_retry: true,
            ..first(kind)
        };
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        assert!(!firsts.precede(&retry(0), at(0)));
        firsts.refused(&retry(0), at(10));
        assert!(!firsts.precede(&retry(0), at(20)));
        firsts.refused(&first(0), at(30));
        assert!(firsts.precede(&retry(0), at(40)));
        assert!(!firsts.precede(&first(0), at(40)));
        assert!(!firsts.precede(&retry(1), at(40)));
        assert!(firsts.precede(&retry(0), at(1_029)));
        assert!(!firsts.precede(&retry(0), at(1_030)));
    }
}
