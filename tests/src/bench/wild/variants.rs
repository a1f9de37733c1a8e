//! Protections in front of a service: none, Envoy's own protections, other proxies, and Headgate. A
//! protection that needs fitting to a service is a family of candidates, of which a search chooses
//! the best for each service.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::rivals::{self, Proxy, Rival};
use crate::bench::lab::Protection;
use crate::bench::native_filters::{self, NativeFilter};
use crate::mix::QueryType;
use crate::policy;

/// One configuration of one protection.
#[derive(Debug, Clone)]
pub(super) struct Variant {
    /// Name for `--only` and JSON.
    pub(super) name: String,
    /// The protection.
    pub(super) front: Front,
}

/// A proxy with its protection.
#[derive(Debug, Clone)]
pub(super) enum Front {
    /// Envoy.
    Envoy(Protection),
    /// A proxy other than Envoy.
    Rival(Rival),
}

/// A row of the tables.
#[derive(Debug, Clone)]
pub(super) struct Family {
    /// Name for `--only` and JSON.
    pub(super) name: &'static str,
    /// A short description.
    pub(super) title: &'static str,
    /// One candidate, or several candidates to search.
    pub(super) candidates: Vec<Variant>,
}

/// Returns all protections to compare, for a service with this mix. `parallelism` has the values of
/// P to search for Headgate.
pub(super) fn families(mix: &[QueryType], parallelism: &[usize]) -> Vec<Family> {
    let headgate = |p: Option<usize>, shed: Option<bool>| Variant {
        name: headgate_name(p, shed),
        front: Front::Envoy(Protection::headgate(
            "headgate",
            "Headgate",
            headgate_policy(mix, p, shed),
        )),
    };
    let sweep = |shed| {
        parallelism
            .iter()
            .map(|&p| headgate(Some(p), Some(shed)))
            .collect()
    };
    let family = |name, title, candidates| Family {
        name,
        title,
        candidates,
    };
    vec![
        family(
            "none",
            "no filter",
            vec![native("none".into(), native_filters::plain())],
        ),
        family(
            "adaptive_concurrency",
            "adaptive_concurrency, as documented",
            vec![native(
                "adaptive_concurrency".into(),
                native_filters::adaptive_concurrency(),
            )],
        ),
        family(
            "adaptive-tuned",
            "adaptive_concurrency, tuned",
            adaptive_candidates(),
        ),
        family(
            "adaptive-floor",
            "adaptive_concurrency with min_concurrency_limit, tuned",
            floor_candidates(),
        ),
        family(
            "admission_control",
            "admission_control",
            vec![native(
                "admission_control".into(),
                native_filters::admission_control(),
            )],
        ),
        family(
            "admission-tuned",
            "admission_control, tuned",
            admission_candidates(mix),
        ),
        family(
            "breaker-tuned",
            "circuit breaker, tuned",
            breaker_candidates(),
        ),
        family(
            "haproxy-tuned",
            "HAProxy: maxconn, timeout queue and priorities, tuned",
            rivals(rivals::haproxy_candidates(mix)),
        ),
        family(
            "failsafe-tuned",
            "failsafe-go: adaptive limiter with prioritizer, tuned",
            rivals(rivals::failsafe_candidates(mix)),
        ),
        family(
            "headgate",
            "Headgate, types and objectives only",
            vec![headgate(None, None)],
        ),
        family(
            "headgate-best-p",
            "Headgate, best P, shedByValue off",
            sweep(false),
        ),
        family(
            "headgate-best-p-shed",
            "Headgate, best P, shedByValue on",
            sweep(true),
        ),
        family(
            "headgate-native",
            "Headgate's native filter, types and objectives only",
            vec![Variant {
                name: "headgate-native".into(),
                front: Front::Envoy(Protection::native_headgate(
                    "headgate-native",
                    "Headgate, native",
                    headgate_policy(mix, None, None),
                )),
            }],
        ),
    ]
}

fn native(name: String, filter: NativeFilter) -> Variant {
    Variant {
        name,
        front: Front::Envoy(Protection::Native(filter)),
    }
}

fn rivals(candidates: Vec<(String, Rival)>) -> Vec<Variant> {
    let variant = |(name, rival)| Variant {
        name,
        front: Front::Rival(rival),
    };
    candidates.into_iter().map(variant).collect()
}

/// Returns candidates for the settings that Envoy's documentation recommends to tune: the
/// percentile that counts as the round trip, the queue allowed above the minimum, the limit while
/// the minimum is measured, and the ceiling.
fn adaptive_candidates() -> Vec<Variant> {
    let mut candidates = Vec::new();
    for percentile in [50, 90] {
        for buffer in [25, 100] {
            for (floor, ceiling) in [(3, 1_000), (3, 6), (6, 12), (12, 24), (24, 48)] {
                let filter = native_filters::adaptive(json!({
                    "sample_aggregate_percentile": {"value": percentile},
                    "concurrency_limit_params": {
                        "concurrency_update_interval": "0.1s",
                        "max_concurrency_limit": ceiling,
                    },
                    "min_rtt_calc_params": {
                        "jitter": {"value": 10},
                        "interval": "60s",
                        "request_count": 50,
                        "min_concurrency": floor,
                        "buffer": {"value": buffer},
                    },
                }));
                candidates.push(native(
                    format!("adaptive-p{percentile}-buffer{buffer}-{floor}-{ceiling}"),
                    NativeFilter {
                        http_filters: vec![filter],
                        ..native_filters::plain()
                    },
                ));
            }
        }
    }
    candidates
}

/// Returns candidates of Envoy's adaptive concurrency filter with a lower bound of the concurrency
/// limit. The bound holds at all times, not only while the minimum round-trip time is measured.
fn floor_candidates() -> Vec<Variant> {
    let mut candidates = Vec::new();
    for percentile in [50, 90] {
        for floor in [2, 3, 4, 6, 8, 12] {
            let filter = native_filters::adaptive(json!({
                "sample_aggregate_percentile": {"value": percentile},
                "concurrency_limit_params": {
                    "concurrency_update_interval": "0.1s",
                    "min_concurrency_limit": floor,
                },
                "min_rtt_calc_params": {
                    "jitter": {"value": 10},
                    "interval": "60s",
                    "request_count": 50,
                    "min_concurrency": floor,
                },
            }));
            candidates.push(native(
                format!("adaptive-floor{floor}-p{percentile}"),
                NativeFilter {
                    http_filters: vec![filter],
                    ..native_filters::plain()
                },
            ));
        }
    }
    candidates
}

/// Returns candidates of admission control. The filter only observes failures, so a timeout turns
/// slow answers into failures. The settings define how many failures the filter tolerates.
fn admission_candidates(mix: &[QueryType]) -> Vec<Variant> {
    let p90s = mix.iter().map(|query| query.p90);
    let timeouts = [p90s.clone().min(), p90s.max()];
    let mut candidates = Vec::new();
    for timeout in timeouts.into_iter().flatten() {
        for threshold in [95, 70] {
            let mut filter = native_filters::admission_control();
            filter.route_timeout = Some(timeout);
            if let Some(config) = filter.http_filters.first_mut() {
                config["typed_config"]["sr_threshold"] =
                    json!({"default_value": {"value": threshold}});
            }
            let ms = timeout.as_millis();
            candidates.push(native(
                format!("admission-timeout{ms}-success{threshold}"),
                filter,
            ));
        }
    }
    candidates
}

/// Returns candidates of circuit breakers. They limit the connections, each of which has one
/// request, and the requests that wait for a connection.
fn breaker_candidates() -> Vec<Variant> {
    let mut candidates = Vec::new();
    for connections in [1, 2, 3, 4, 6, 8, 12, 16, 24] {
        for pending in [1, 4, 12] {
            candidates.push(native(
                format!("breaker-{connections}-{pending}"),
                NativeFilter {
                    circuit_breakers: Some(json!({"thresholds": [{
                        "max_connections": connections,
                        "max_pending_requests": pending,
                        "max_requests": 1_000,
                    }]})),
                    ..native_filters::plain()
                },
            ));
        }
    }
    candidates
}

fn headgate_name(p: Option<usize>, shed: Option<bool>) -> String {
    let p = p.map(|p| format!("-p{p}")).unwrap_or_default();
    let shed = match shed {
        None => "",
        Some(true) => "-shed",
        Some(false) => "-noshed",
    };
    format!("headgate{p}{shed}")
}

/// Returns a policy with types and objectives, and the given settings.
fn headgate_policy(mix: &[QueryType], p: Option<usize>, shed: Option<bool>) -> Value {
    let mut policy = policy::for_mix(p.unwrap_or(1), mix);
    if p.is_none() {
        policy = policy::without_parallelism(policy);
    }
    if let Some(shed) = shed {
        policy["spec"]["strategy"] = json!({"type": "Bouncer", "bouncer": {"shedByValue": shed}});
    }
    policy
}

impl Variant {
    /// Starts the proxy with one worker thread.
    ///
    /// # Errors
    /// If the proxy doesn't start.
    pub(super) fn start(&self, upstream: SocketAddr) -> Result<Proxy> {
        match &self.front {
            Front::Envoy(protection) => Proxy::envoy(protection, upstream),
            Front::Rival(rival) => rival.start(upstream),
        }
    }

    /// Returns Headgate's P, or `None` if P is found and for other protections.
    pub(super) fn slots(&self) -> Option<u64> {
        match &self.front {
            Front::Envoy(protection) => {
                let policy = protection.policy()?;
                policy.pointer("/spec/parallelism/total")?.as_u64()
            }
            Front::Rival(_) => None,
        }
    }

    /// Returns the reason, if any, why the protection can't run here: its program isn't available,
    /// or the present version of Headgate refuses its policy.
    ///
    /// # Errors
    /// If Headgate can't be run.
    pub(super) fn refusal(&self) -> Result<Option<String>> {
        let protection = match &self.front {
            Front::Rival(rival) => return Ok(rival.program().err().map(|e| format!("{e:#}"))),
            Front::Envoy(protection) => protection,
        };
        let Some(policy) = protection.policy() else {
            return Ok(None);
        };
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("policy.yaml");
        std::fs::write(&file, serde_json::to_string_pretty(policy)?)?;
        let mut validate = Command::new(crate::headgate::binary_path());
        let output = validate.arg("validate").arg(&file).output()?;
        if output.status.success() {
            return Ok(None);
        }
        // The message is the first problem, without its position in a file that users don't see.
        let problems = String::from_utf8_lossy(&output.stdout);
        let first = problems.lines().next().unwrap_or_default();
        Ok(Some(
            first
                .find("spec")
                .map_or(first, |at| &first[at..])
                .to_owned(),
        ))
    }
}

/// Whether an answer with this latency is within the p90 objective.
pub(super) fn in_time(query: &QueryType, latency: Duration) -> bool {
    latency <= query.p90
}
