//! AdmissionPolicies as values that tests build and change. JSON is valid YAML, so they are written
//! as JSON.

use serde_json::{Value, json};

use crate::mix::QueryType;

/// Namespace and name of the policies of this module.
pub const NAME: &str = "default/search";

/// Returns a policy `default/search` for `Service/default/search` with P = `parallelism` and the
/// default strategy, which is Bouncer with shedding by value. One of `types` must be named
/// `default`.
pub fn policy(parallelism: usize, types: &[Value]) -> Value {
    json!({
        "apiVersion": "headgate.dev/v1alpha1",
        "kind": "AdmissionPolicy",
        "metadata": {"name": "search", "namespace": "default"},
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": "search"}],
            "parallelism": {"total": parallelism},
            "types": types,
        },
    })
}

/// Removes P from a policy, so that the filter finds P automatically.
pub fn without_parallelism(mut policy: Value) -> Value {
    if let Some(spec) = policy["spec"].as_object_mut() {
        spec.remove("parallelism");
    }
    policy
}

/// Returns a policy for a mix. It has every query type, which is recognized by its path prefix, and
/// the type `default` with the objectives of the last query type.
pub fn for_mix(parallelism: usize, mix: &[QueryType]) -> Value {
    let slo = |q: &QueryType| json!({"p50": duration(q.p50), "p90": duration(q.p90)});
    let mut types: Vec<Value> = mix
        .iter()
        .map(|q| {
            json!({
                "name": q.name,
                "matches": [{"path": {"type": "PathPrefix", "value": q.path}}],
                "slo": slo(q),
            })
        })
        .collect();
    types.extend(
        mix.last()
            .map(|q| json!({"name": "default", "slo": slo(q)})),
    );
    policy(parallelism, &types)
}

/// Returns a policy that refuses only when its queue is full. Every request is of type `default`
/// under MaxQueueLength.
pub fn queue_only(parallelism: usize, max_length: usize) -> Value {
    let mut policy = policy(
        parallelism,
        &[json!({"name": "default", "slo": {"p50": "10s", "p90": "20s"}})],
    );
    policy["spec"]["strategy"] = json!({"type": "MaxQueueLength"});
    policy["spec"]["queue"] = json!({"maxLength": max_length, "timeout": "60s"});
    policy
}

/// Changes the discipline of a policy's queue.
pub fn with_discipline(mut policy: Value, discipline: &str) -> Value {
    policy["spec"]["queue"]["discipline"] = json!(discipline);
    policy
}

/// Adds acceptance-allowance to a policy.
pub fn with_allowance(mut policy: Value, allowance: f64) -> Value {
    policy["spec"]["strategy"]["type"] = json!("Bouncer");
    policy["spec"]["strategy"]["starvationAvoidance"] = json!({
        "type": "AcceptanceAllowance",
        "acceptanceAllowance": {"allowance": allowance},
    });
    policy
}

/// Adds helping-the-underserved to a policy.
pub fn with_helping(mut policy: Value, alpha: f64) -> Value {
    policy["spec"]["strategy"]["type"] = json!("Bouncer");
    policy["spec"]["strategy"]["starvationAvoidance"] = json!({
        "type": "HelpingTheUnderserved",
        "helpingTheUnderserved": {"alpha": alpha},
    });
    policy
}

/// Makes a policy bound the mean delay by backlog control in place of Bouncer.
pub fn with_backlog_control(mut policy: Value, target: std::time::Duration) -> Value {
    policy["spec"]["strategy"] =
        json!({"type": "BacklogControl", "backlogControl": {"target": duration(target)}});
    policy
}

/// Makes a policy control the 90th percentiles of the types by the response time controller in
/// place of Bouncer.
pub fn with_response_time_controller(mut policy: Value) -> Value {
    policy["spec"]["strategy"] = json!({"type": "ResponseTimeController"});
    policy
}

/// Formats a duration as in GEP-2257, to the millisecond.
pub fn duration(duration: std::time::Duration) -> String {
    // GEP-2257 allows five digits for each unit.
    match duration.as_millis() {
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    }
}
