//! NetworkPolicies that admit traffic to the application but not to the Envoy in front of it.

use serde_json::Value;

use super::{Injected, is_tcp, selects};

/// Returns a warning if `policy` selects these Pods and admits traffic to the application's port,
/// but not to Envoy's.
pub fn cut_off(policy: &Value, injected: &Injected) -> Option<String> {
    let spec = &policy["spec"];
    let types = spec["policyTypes"].as_array();
    if policy["kind"] != "NetworkPolicy"
        || !injected.is_beside(policy)
        || types.is_some_and(|types| !types.iter().any(|name| name == "Ingress"))
        || !selects(&spec["podSelector"], &injected.labels)
        || !admits(spec, injected.app_port, None)
        || admits(spec, injected.listen_port, Some(&injected.port_name))
    {
        return None;
    }
    Some(format!(
        "{} admits port {} and not port {}, where Envoy listens: requests to {} are blocked until \
         the policy admits port {}",
        super::name_of(policy),
        injected.app_port,
        injected.listen_port,
        injected.workload,
        injected.port_name,
    ))
}

/// Whether any ingress rule covers the port `number`, called `name`. The rules' sources are
/// ignored.
fn admits(spec: &Value, number: u16, name: Option<&str>) -> bool {
    let number = u64::from(number);
    let has = |port: &Value| {
        let is_in = match (&port["port"], port["endPort"].as_u64()) {
            (Value::Null, _) => true,
            (Value::String(of), _) => name == Some(of),
            (first, last) => first
                .as_u64()
                .is_some_and(|first| (first..=last.unwrap_or(first)).contains(&number)),
        };
        is_tcp(port) && is_in
    };
    let rules = spec["ingress"].as_array().into_iter().flatten();
    rules
        .map(|rule| rule["ports"].as_array())
        .any(|ports| ports.is_none_or(|ports| ports.is_empty() || ports.iter().any(has)))
}
