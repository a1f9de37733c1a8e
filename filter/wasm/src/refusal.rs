//! A refusal as a response: status, headers, details and a line for people.

use headgate_core::engine::Words;
use headgate_core::host::HostError;
use headgate_core::refusal::{Cause, Refusal};
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
    let Words {
        policy,
        kind,
        reason,
    } = words;
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
    let why = match refusal.cause {
        Cause::Objective(_) => "its response time objective would be missed",
        Cause::QueueFull => "the queue is full",
        Cause::QueueWait => "it would wait too long in the queue",
        Cause::Backlog => "with it, more would wait than the target of response times allows",
        Cause::Utilization => "the backend has more to do than it should have",
        Cause::ResponseTime => "response times allow for no more requests at the moment",
        Cause::QueueTimeout => "it would wait, or waited, longer than the queue's timeout",
        Cause::Deadline => "its own deadline would pass, or passed, in the queue",
        Cause::RateLimited => "its workflow sends more than it may at the moment",
    };
    let body = format!(
        "headgate refused this {kind:?} request: {why} ({reason}). Retry after {retry_after} s.\n"
    );
    ffi::send_local_response(
        refusal.cause.http_status(),
        &format!("headgate_refused{{{reason}}}"),
        &body,
        &serialized,
        refusal.cause.grpc_status(),
    )
}
