//! The response to a refused request: status, headers, details and a readable line.

use std::borrow::Cow;

use headgate_strategies::reason::Reason;
use headgate_strategies::rng::Rng;

use crate::decision::Refusal;
use crate::engine::Words;

/// The header with the policy that refused a request, the request's type, and the reason, which is
/// last.
pub const REFUSED: &str = "x-headgate-refused";
/// The member of [`REFUSED`] in refusals with reason `deadline`, if the request would have had to
/// wait for the rate of its workflow.
pub const BY_RATE: &str = "; by=rate; ";

/// A response that the proxy sends itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalReply {
    /// The HTTP status.
    pub status: u32,
    /// `grpc-status`, for a gRPC request.
    pub grpc_status: i32,
    /// The response code details (`%RESPONSE_CODE_DETAILS%`).
    pub details: String,
    /// The names and values of the response's headers.
    pub headers: Vec<(&'static str, Cow<'static, str>)>,
    /// The body or, for a gRPC request, the status message.
    pub body: String,
}

impl LocalReply {
    /// Returns the response for `refusal`, with the `extra` headers.
    pub(super) fn new(
        words: Words<'_>,
        refusal: &Refusal,
        extra: impl Iterator<Item = (&'static str, String)>,
        rng: &mut Rng,
    ) -> Self {
        let retry_after = refusal.retry_after_secs(rng);
        let Words { policy, kind } = words;
        let reason = refusal.reason;
        let answer = reason.answer();
        let by = match reason {
            Reason::Deadline if refusal.by_rate => BY_RATE,
            _ => "; ",
        };
        let described = format!("policy={policy}; type={kind}{by}reason={reason}");
        let mut headers = Vec::with_capacity(6);
        headers.extend([
            ("retry-after", retry_after.to_string().into()),
            (
                "grpc-retry-pushback-ms",
                refusal.pushback_ms().to_string().into(),
            ),
            // This header prevents the client's own proxy from a retry during the overload.
            ("x-envoy-ratelimited", "true".into()),
            (REFUSED, described.into()),
        ]);
        headers.extend(extra.map(|(name, value)| (name, value.into())));
        Self {
            status: answer.http,
            grpc_status: answer.grpc,
            details: format!("headgate_refused{{{reason}}}"),
            headers,
            body: format!(
                "headgate refused this {kind:?} request: {} ({reason}). \
                 Retry after {retry_after} s.\n",
                answer.text
            ),
        }
    }
}
