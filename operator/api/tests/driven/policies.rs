//! Configurations of the filter, compiled from random policies.

use headgate_api::compile::{compile, of_stages};
use headgate_api::validate::{ValidPolicy, check_file};
use headgate_core::config::FilterConfig;
use headgate_strategies::rng::Rng;
use serde_json::{Value, json};

use crate::any_policy::{Dice, STRATEGIES, policy};

/// The numbers from which a policy is made.
const THROWS: usize = 160;

/// Returns a number below `n`.
pub(crate) fn below(rng: &mut Rng, n: u64) -> u64 {
    rng.next_u64() % n
}

/// The configurations of a listener for requests, and of one for calls.
pub(crate) struct Configurations {
    pub(crate) inbound: FilterConfig,
    pub(crate) outbound: Option<FilterConfig>,
}

/// Returns the policy of `document`, or its mistakes.
fn valid(document: &Value) -> Result<ValidPolicy, Vec<String>> {
    let report = check_file("any.json", document.to_string().as_bytes());
    match report.policies().next() {
        Some(policy) => Ok(policy.clone()),
        None => Err(report.all_problems().map(ToString::to_string).collect()),
    }
}

/// Makes limits so small that the few requests of a test reach them. Each change is kept only if
/// the policy stays valid.
fn squeeze(document: &mut Value, rng: &mut Rng) {
    let slots = below(rng, 5) + 1;
    let times = ["10ms", "50ms", "200ms", "1s", "5s"];
    let changes = [
        ("/spec/parallelism/total", json!(slots)),
        ("/spec/parallelism/perEndpoint", json!(slots)),
        ("/spec/parallelism/auto/min", json!(1)),
        ("/spec/parallelism/auto/max", json!(slots + below(rng, 30))),
        (
            "/spec/parallelism/tokens/budget",
            json!(below(rng, 2_000) + 1),
        ),
        (
            "/spec/parallelism/tokens/prompt/otherwise",
            json!(below(rng, 300)),
        ),
        (
            "/spec/parallelism/tokens/output/otherwise",
            json!(below(rng, 300)),
        ),
        (
            "/spec/parallelism/tokens/perRequest",
            json!(below(rng, 1_000) + 1),
        ),
        ("/spec/queue/maxLength", json!(below(rng, 20))),
        ("/spec/queue/timeout", json!(times[below(rng, 5) as usize])),
        ("/spec/mode", json!("Enforce")),
        (
            "/spec/strategy/bouncer/minSamples",
            json!(below(rng, 20) + 1),
        ),
        (
            "/spec/strategy/maxQueueWait/limit",
            json!(times[below(rng, 5) as usize]),
        ),
        (
            "/spec/strategy/backlogControl/target",
            json!(times[below(rng, 5) as usize]),
        ),
        (
            "/spec/strategy/responseTimeController/requests",
            json!(below(rng, 20) + 1),
        ),
    ];
    for (at, value) in changes {
        if let Some(field) = document.pointer_mut(at)
            && rng.chance(0.8)
        {
            let before = std::mem::replace(field, value);
            if valid(document).is_err() {
                *document.pointer_mut(at).unwrap() = before;
            }
        }
    }
}

/// Returns a valid policy of this name.
fn any_valid(name: &str, rng: &mut Rng) -> ValidPolicy {
    let throws = (0..THROWS).map(|_| (rng.next_u64() >> 32) as u32).collect();
    let strategy = STRATEGIES[below(rng, STRATEGIES.len() as u64) as usize];
    let mut document = policy(strategy, &mut Dice::new(throws));
    document["metadata"]["name"] = json!(name);
    if rng.chance(0.9) {
        squeeze(&mut document, rng);
    }
    if env_shows() {
        eprintln!("policy {document}");
    }
    valid(&document).unwrap_or_else(|problems| panic!("{problems:?}\n{document}"))
}

/// Whether the test prints policies and events.
pub(crate) fn env_shows() -> bool {
    std::env::var_os("HEADGATE_DRIVEN_SHOW").is_some()
}

/// Returns the configurations of a listener: usually of one policy, else of several that match its
/// requests in sequence. Often its policies have been there before, with other settings.
pub(crate) fn any_configurations(listener: &str, rng: &mut Rng) -> Configurations {
    let several = if rng.chance(0.3) { 3 } else { 1 };
    let first = below(rng, 3);
    let names = (first..first + several).map(|n| format!("{listener}p{}", n % 3));
    let policies: Vec<ValidPolicy> = names.map(|name| any_valid(&name, rng)).collect();
    let (endpoints, proxies) = (below(rng, 4), below(rng, 3) as u32 + 1);
    let mut stages = Vec::new();
    let mut outbound = None;
    for policy in &policies {
        let compiled = compile(&[policy], endpoints, proxies);
        for config in compiled.workloads.into_values() {
            stages.extend(config.stages.iter().cloned());
        }
        outbound = outbound.or(compiled.outbound.into_values().next());
    }
    // All policies of a compilation have the same target, so the oldest applies there.
    let both: Vec<&ValidPolicy> = policies.iter().collect();
    assert_eq!(compile(&both, endpoints, proxies).workloads.len(), 1);
    Configurations {
        inbound: of_stages(stages),
        outbound: outbound.map(|config| (*config).clone()),
    }
}
