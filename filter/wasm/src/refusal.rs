//! A refusal as a response: status, headers, details and a line for people.

use headgate_core::engine::Words;
use headgate_core::host::HostError;
use headgate_core::refusal::Refusal;
use headgate_core::rng::Rng;

use crate::{ffi, headers};

/// Answers the effective stream with `refusal`, and with what clients are `told` beside it.
pub(crate) fn send(
    words: Words<'_>,
    refusal: &Refusal,
    told: impl Iterator<Item = (&'static str, String)>,
    rng: &mut Rng,
) -> Result<(), HostError> {
    let retry_after = refusal.retry_after_secs(rng).to_string();
    let pushback = refusal.pushback_ms().to_string();
    let Words { policy, kind } = words;
    let reason = refusal.reason;
    let answer = reason.answer();
    let described = format!("policy={policy}; type={kind}; reason={reason}");
    let mut serialized = Vec::with_capacity(256);
    let told: Vec<(&str, String)> = told.collect();
    let told = told.iter().map(|(name, value)| (*name, value.as_str()));
    let always = [
        ("retry-after", retry_after.as_str()),
        ("grpc-retry-pushback-ms", pushback.as_str()),
        // Tells the client's own proxy not to retry into the storm.
        ("x-envoy-ratelimited", "true"),
        ("x-headgate-refused", described.as_str()),
    ];
    headers::serialize(always.into_iter().chain(told), &mut serialized);
    let body = format!(
        "headgate refused this {kind:?} request: {} ({reason}). Retry after {retry_after} s.\n",
        answer.text
    );
    ffi::send_local_response(
        answer.http,
        &format!("headgate_refused{{{reason}}}"),
        &body,
        &serialized,
        answer.grpc,
    )
}
