//! Envoy's own protections against overload, configured for the bench's backend.
//!
//! Each protection is compared at its best. It has its documented example configuration and, if
//! this configuration does badly, also one that is tuned by hand for exactly this backend and mix.
//! Headgate gets no such tuning.

use std::time::Duration;

use serde_json::{Value, json};

/// The protected backend, as far as the native filters' settings depend on it.
#[derive(Debug, Clone, Copy)]
pub struct Protected {
    /// Requests that the backend serves at once.
    pub parallelism: usize,
    /// Requests per second of the mix that the backend can complete.
    pub capacity_rps: f64,
    /// Objective for the 90th percentile.
    pub p90: Duration,
}

/// One of Envoy's own protections: the additions to a plain Envoy.
#[derive(Debug, Clone, PartialEq)]
pub struct NativeFilter {
    /// Short name for `--only` and JSON.
    pub name: &'static str,
    /// A description in a few words.
    pub title: &'static str,
    /// HTTP filters before the router, in order.
    pub http_filters: Vec<Value>,
    /// `circuit_breakers` of the upstream cluster. `None` for those of
    /// [`crate::bootstrap::Bootstrap::plain`], which never trip.
    pub circuit_breakers: Option<Value>,
    /// `timeout` of the route. `None` for no timeout.
    pub route_timeout: Option<Duration>,
}

/// Returns a filter with its configuration, as an entry of an HTTP connection manager.
#[expect(
    clippy::needless_pass_by_value,
    reason = "callers build the value in the argument"
)]
pub fn http_filter(name: &str, config: Value) -> Value {
    json!({"name": name, "typed_config": config})
}

/// Returns Envoy with only a router.
pub fn plain() -> NativeFilter {
    NativeFilter {
        name: "none",
        title: "no filter",
        http_filters: Vec::new(),
        circuit_breakers: None,
        route_timeout: None,
    }
}

/// Returns the gradient concurrency limit with the configuration of Envoy's documentation.
pub fn adaptive_concurrency() -> NativeFilter {
    NativeFilter {
        name: "adaptive_concurrency",
        title: "adaptive_concurrency, as documented",
        http_filters: vec![adaptive(json!({
            "sample_aggregate_percentile": {"value": 90},
            "concurrency_limit_params": {"concurrency_update_interval": "0.1s"},
            "min_rtt_calc_params": {
                "jitter": {"value": 10},
                "interval": "60s",
                "request_count": 50,
            },
        }))],
        ..plain()
    }
}

/// Returns the gradient concurrency limit, tuned so that this backend is busy and its queue is
/// short. The floor keeps the minimum-RTT window from starving the backend. The ceiling keeps the
/// queue inside the objectives.
pub fn adaptive_concurrency_tuned(backend: Protected) -> NativeFilter {
    NativeFilter {
        name: "adaptive_concurrency_tuned",
        title: "adaptive_concurrency, tuned by hand",
        http_filters: vec![adaptive(json!({
            "sample_aggregate_percentile": {"value": 50},
            "concurrency_limit_params": {
                "concurrency_update_interval": "0.1s",
                "max_concurrency_limit": backend.parallelism * 2,
            },
            "min_rtt_calc_params": {
                "jitter": {"value": 10},
                "interval": "3600s",
                "request_count": 50,
                "min_concurrency": backend.parallelism,
                "buffer": {"value": 100},
            },
        }))],
        ..plain()
    }
}

/// Returns the filter `adaptive_concurrency` with this `gradient_controller_config`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "callers build the value in the argument"
)]
pub fn adaptive(gradient: Value) -> Value {
    http_filter(
        "envoy.filters.http.adaptive_concurrency",
        json!({
            "@type": concat!(
                "type.googleapis.com/envoy.extensions.filters.http.adaptive_concurrency.v3.",
                "AdaptiveConcurrency",
            ),
            "gradient_controller_config": gradient,
            "enabled": {"default_value": true, "runtime_key": "adaptive_concurrency.enabled"},
        }),
    )
}

/// Returns rejection by success rate. It detects overload only once requests fail, and a slow
/// backend alone makes no request fail.
pub fn admission_control() -> NativeFilter {
    NativeFilter {
        name: "admission_control",
        title: "admission_control",
        http_filters: vec![http_filter(
            "envoy.filters.http.admission_control",
            json!({
                "@type": concat!(
                    "type.googleapis.com/envoy.extensions.filters.http.admission_control.v3.",
                    "AdmissionControl",
                ),
                "enabled": {"default_value": true, "runtime_key": "admission_control.enabled"},
                "success_criteria": {
                    "http_criteria": {"http_success_status": [{"start": 100, "end": 500}]},
                },
                // The window is shorter than the default of 30 s, so that the filter settles within
                // a benchmark of seconds.
                "sampling_window": "5s",
            }),
        )],
        // This is Envoy's default.
        route_timeout: Some(Duration::from_secs(15)),
        ..plain()
    }
}

/// Returns [`admission_control`] with a route timeout at the p90 objective, so that late requests
/// are failures. The timeout itself has much of the effect, because it takes late requests out of
/// the backend's queue.
fn admission_control_with_timeout(backend: Protected) -> NativeFilter {
    NativeFilter {
        name: "admission_control_timeout",
        title: "admission_control, timeout at p90",
        route_timeout: Some(backend.p90),
        ..admission_control()
    }
}

/// Returns a token bucket at exactly the backend's capacity, which an operator must measure and
/// keep up to date.
pub fn local_ratelimit(backend: Protected) -> NativeFilter {
    NativeFilter {
        name: "local_ratelimit",
        title: "local_ratelimit at capacity",
        http_filters: vec![token_bucket(backend.capacity_rps)],
        ..plain()
    }
}

/// Returns the filter `local_ratelimit` that admits `rps` requests per second, refilled twenty
/// times a second.
pub fn token_bucket(rps: f64) -> Value {
    const REFILLS_PER_SECOND: f64 = 20.0;
    let tokens = (rps / REFILLS_PER_SECOND).round().max(1.0);
    let always = |key: &str| {
        json!({
            "default_value": {"numerator": 100, "denominator": "HUNDRED"},
            "runtime_key": key,
        })
    };
    http_filter(
        "envoy.filters.http.local_ratelimit",
        json!({
            "@type": concat!(
                "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.",
                "LocalRateLimit",
            ),
            "stat_prefix": "bench",
            "token_bucket": {
                "max_tokens": tokens,
                "tokens_per_fill": tokens,
                "fill_interval": format!("{:.9}s", tokens / rps),
            },
            "filter_enabled": always("local_ratelimit.enabled"),
            "filter_enforced": always("local_ratelimit.enforced"),
        }),
    )
}

/// Returns a limit of P connections, each with one request, and of P waiting requests.
fn circuit_breaker(backend: Protected) -> NativeFilter {
    NativeFilter {
        name: "circuit_breaker",
        title: "circuit breaker at P",
        circuit_breakers: Some(json!({"thresholds": [{
            "max_connections": backend.parallelism,
            "max_pending_requests": backend.parallelism,
            "max_requests": backend.parallelism,
        }]})),
        ..plain()
    }
}

/// Returns all of Envoy's own protections, the unprotected Envoy first.
pub fn all(backend: Protected) -> Vec<NativeFilter> {
    vec![
        plain(),
        adaptive_concurrency(),
        adaptive_concurrency_tuned(backend),
        admission_control(),
        admission_control_with_timeout(backend),
        local_ratelimit(backend),
        circuit_breaker(backend),
    ]
}
