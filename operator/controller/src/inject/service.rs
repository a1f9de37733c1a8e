//! Redirects Services that refer to the application's port by number to Envoy.

use serde_json::{Map, Value, json};

use super::mark::{INJECTED_ANNOTATION, read, set, unset};
use super::{Injected, is_tcp, selects};

/// The content of a Service's annotation. It has the original `targetPort`s by the number of the
/// Service's port.
type TargetPorts = Map<String, Value>;

/// Redirects a Service's ports to Envoy if they refer to the application's port by number and the
/// Service selects these Pods. Returns whether the Service selects the Pods and now reaches Envoy.
///
/// # Errors
/// The Service's annotation isn't in the form that an injection writes.
pub fn redirect(service: &mut Value, injected: &Injected) -> Result<bool, String> {
    if !is_for(service, injected) {
        return Ok(false);
    }
    let mut originals = read::<TargetPorts>(service)?.unwrap_or_default();
    let before = originals.len();
    let mut reaches = false;
    for port in tcp_ports(service) {
        let key = port["port"].to_string();
        let original = originals.get(&key).unwrap_or(&port["targetPort"]).clone();
        let number = match &original {
            Value::Null => port["port"].as_u64(),
            target => target.as_u64(),
        };
        if number == Some(u64::from(injected.app_port)) {
            port["targetPort"] = json!(injected.port_name);
            originals.insert(key, original);
        }
        reaches |= port["targetPort"] == injected.port_name.as_str();
    }
    if originals.len() > before {
        let mark = Value::Object(originals).to_string();
        set(service, "annotations", INJECTED_ANNOTATION, &mark);
    }
    Ok(reaches)
}

/// Returns a warning if `service`, which reaches these Pods, is headless. Its clients find the
/// Pods' addresses in DNS, and choose the port themselves.
pub fn bypassed(service: &Value, injected: &Injected) -> Option<String> {
    (service["spec"]["clusterIP"] == "None").then(|| {
        format!(
            "{} is headless: clients that connect to port {} of its Pods bypass Envoy, which \
             listens on port {}",
            super::name_of(service),
            injected.app_port,
            injected.listen_port,
        )
    })
}

/// Restores a Service's target ports that were redirected to one of these workloads. Called before
/// [`redirect`], because Envoy may now be in front of another port. The Service may also select the
/// Pods of other workloads, whose ports stay redirected.
///
/// # Errors
/// The Service's annotation isn't in the form that an injection writes.
pub fn reset(service: &mut Value, injected: &[Injected]) -> Result<(), String> {
    let own = injected.iter().filter(|one| is_for(service, one));
    let own: Vec<u64> = own.map(|one| one.earlier_port.into()).collect();
    if !own.is_empty() {
        restore(service, |port| own.contains(&port))?;
    }
    Ok(())
}

/// Whether `object` is a Service that selects the workload's Pods.
fn is_for(object: &Value, injected: &Injected) -> bool {
    let selector = &object["spec"]["selector"];
    let is_empty = selector.as_object().is_none_or(Map::is_empty);
    object["kind"] == "Service"
        && !is_empty
        && injected.is_beside(object)
        && selects(&json!({"matchLabels": selector}), &injected.labels)
}

/// Restores the original target ports of a Service where these are for an application's port for
/// which `is_due` is true. Returns whether the Service was redirected to Envoy.
pub(super) fn restore(service: &mut Value, is_due: impl Fn(u64) -> bool) -> Result<bool, String> {
    let Some(originals) = read::<TargetPorts>(service)? else {
        return Ok(false);
    };
    let (due, kept): (TargetPorts, TargetPorts) = originals.into_iter().partition(|(port, of)| {
        let number = of.as_u64().or_else(|| port.parse().ok());
        number.is_none_or(&is_due)
    });
    for port in tcp_ports(service) {
        match due.get(&port["port"].to_string()) {
            Some(Value::Null) => drop(
                port.as_object_mut()
                    .and_then(|port| port.remove("targetPort")),
            ),
            Some(original) => port["targetPort"] = original.clone(),
            None => {}
        }
    }
    unset(service, "annotations", INJECTED_ANNOTATION);
    if !kept.is_empty() {
        let mark = Value::Object(kept).to_string();
        set(service, "annotations", INJECTED_ANNOTATION, &mark);
    }
    Ok(true)
}

fn tcp_ports(service: &mut Value) -> impl Iterator<Item = &mut Value> {
    let ports = service.pointer_mut("/spec/ports");
    let ports = ports.and_then(Value::as_array_mut).into_iter().flatten();
    ports.filter(|port| port.is_object() && is_tcp(port))
}
