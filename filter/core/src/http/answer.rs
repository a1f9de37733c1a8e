//! The outcome of a request, judged by the backend's response.

use crate::config::ErrorsConfig;
use crate::stage::Outcome;

/// The details of a request that reached the `max_stream_duration` of its cluster. Like that of the
/// stream, this time also covers slow uploads, and ends long streams.
const CLUSTER_DURATION: &[u8] = b"upstream_max_stream_duration_reached";

/// Returns the outcome for a value of `%RESPONSE_CODE_DETAILS%`, which shows whether the backend
/// answered, failed to answer, or wasn't involved.
///
/// The details of timeouts and resets between Envoy and the backend start with `upstream_`, except
/// `response_timeout`. A cache behind Headgate sends the requests that it can't answer to the
/// backend itself, instead of the router. All other details, except for a response from the
/// backend, come from Envoy (no route, no cluster), other filters, or the client.
pub fn of_details(details: Option<&[u8]>) -> Outcome {
    match details {
        Some(b"via_upstream" | b"cache.insert_via_upstream") => Outcome::Completed,
        Some(b"response_timeout") => Outcome::Failed,
        Some(details) if details.starts_with(b"upstream_") => Outcome::Failed,
        _ => Outcome::Unmeasured,
    }
}

/// Returns the outcome for the details of a response whose headers arrive. `uploads` is true if the
/// request's body hasn't ended.
///
/// If Envoy itself responds at one of the stream's own timeouts, the backend hasn't responded, so
/// it failed. Unlike the router's timeouts, these also cover slow uploads. After the response's
/// headers they end long streams, so [`of_details`] doesn't count them as failures.
pub(super) fn of_response(details: Option<&[u8]>, uploads: bool) -> Outcome {
    match details {
        Some(b"max_duration_timeout" | b"stream_idle_timeout") if !uploads => Outcome::Failed,
        Some(CLUSTER_DURATION) if uploads => Outcome::Unmeasured,
        details => of_details(details),
    }
}

/// Returns the outcome for the details of a stream that ends before its response is complete. A
/// limit on the duration of streams ends long ones, which is no failure.
pub(super) fn of_end(details: Option<&[u8]>) -> Outcome {
    match of_details(details) {
        Outcome::Failed if details != Some(CLUSTER_DURATION) => Outcome::Failed,
        _ => Outcome::Abandoned,
    }
}

/// Returns the outcome for the `:status` of the backend's response.
pub(super) fn of_status(status: Option<&[u8]>, errors: &ErrorsConfig) -> Outcome {
    of(number(status).is_some_and(|status| errors.has_http(status)))
}

/// Returns the outcome for the `grpc-status` of the backend's response, if any.
pub(super) fn of_grpc_status(status: Option<&[u8]>, errors: &ErrorsConfig) -> Outcome {
    let status = number(status).and_then(|status| u8::try_from(status).ok());
    of(status.is_some_and(|status| errors.has_grpc(status)))
}

fn of(error: bool) -> Outcome {
    if error {
        Outcome::Failed
    } else {
        Outcome::Completed
    }
}

fn number(text: Option<&[u8]>) -> Option<u16> {
    std::str::from_utf8(text?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_code_details_identify_failures_of_the_backend() {
        for (details, expected) in [
            ("via_upstream", Outcome::Completed),
            ("cache.insert_via_upstream", Outcome::Completed),
            ("cache.response_from_cache_filter", Outcome::Unmeasured),
            ("upstream_response_timeout", Outcome::Failed),
            ("response_timeout", Outcome::Failed),
            ("upstream_per_try_timeout", Outcome::Failed),
            (
                "upstream_reset_before_response_started{connection_termination}",
                Outcome::Failed,
            ),
            (
                "upstream_reset_after_response_started{remote_reset}",
                Outcome::Failed,
            ),
            ("downstream_remote_disconnect", Outcome::Unmeasured),
            ("route_not_found", Outcome::Unmeasured),
            ("no_healthy_upstream", Outcome::Unmeasured),
            ("direct_response", Outcome::Unmeasured),
            ("headgate_refused{queue_full}", Outcome::Unmeasured),
        ] {
            assert_eq!(of_details(Some(details.as_bytes())), expected, "{details}");
        }
        assert_eq!(of_details(None), Outcome::Unmeasured);
    }

    #[test]
    fn timeouts_of_streams_are_failures_unless_the_client_uploads() {
        for details in ["max_duration_timeout", "stream_idle_timeout"] {
            let details = Some(details.as_bytes());
            assert_eq!(of_response(details, false), Outcome::Failed);
            assert_eq!(of_response(details, true), Outcome::Unmeasured);
            assert_eq!(of_details(details), Outcome::Unmeasured);
        }
        assert_eq!(of_response(Some(CLUSTER_DURATION), false), Outcome::Failed);
        assert_eq!(
            of_response(Some(CLUSTER_DURATION), true),
            Outcome::Unmeasured
        );
        let details = Some(&b"request_overall_timeout"[..]);
        assert_eq!(of_response(details, false), Outcome::Unmeasured);
        let details = Some(&b"response_timeout"[..]);
        assert_eq!(of_response(details, true), Outcome::Failed);
    }

    #[test]
    fn the_end_of_a_long_stream_is_no_failure() {
        for (details, expected) in [
            ("max_duration_timeout", Outcome::Abandoned),
            ("upstream_max_stream_duration_reached", Outcome::Abandoned),
            ("downstream_remote_disconnect", Outcome::Abandoned),
            ("via_upstream", Outcome::Abandoned),
            ("response_timeout", Outcome::Failed),
            (
                "upstream_reset_after_response_started{remote_reset}",
                Outcome::Failed,
            ),
        ] {
            assert_eq!(of_end(Some(details.as_bytes())), expected, "{details}");
        }
        assert_eq!(of_end(None), Outcome::Abandoned);
    }

    #[test]
    fn statuses_are_errors_as_configured() {
        let default = ErrorsConfig::default();
        let http = |status: &str, errors| of_status(Some(status.as_bytes()), errors);
        let grpc = |status: &str, errors| of_grpc_status(Some(status.as_bytes()), errors);
        for (status, expected) in [
            ("200", Outcome::Completed),
            ("404", Outcome::Completed),
            ("429", Outcome::Completed),
            ("500", Outcome::Failed),
            ("599", Outcome::Failed),
            ("", Outcome::Completed),
            ("5xx", Outcome::Completed),
        ] {
            assert_eq!(http(status, &default), expected, "{status}");
        }
        for (status, expected) in [
            ("0", Outcome::Completed),
            ("5", Outcome::Completed),
            ("14", Outcome::Failed),
            ("270", Outcome::Completed),
            ("-1", Outcome::Completed),
        ] {
            assert_eq!(grpc(status, &default), expected, "{status}");
        }
        assert_eq!(
            of_grpc_status(None, &default),
            Outcome::Completed,
            "no gRPC"
        );
        let own = ErrorsConfig {
            http: vec![(429, 429), (503, 504)],
            grpc: vec![8],
        };
        assert_eq!(http("429", &own), Outcome::Failed);
        assert_eq!(http("500", &own), Outcome::Completed);
        assert_eq!(grpc("14", &own), Outcome::Completed);
    }
}
