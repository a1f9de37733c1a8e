//! The annotation that records the changes of an injection. A later injection upgrades exactly
//! these changes, and `headgate uninject` reverts them.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{PORT_NAME, port_of};

/// The annotation that records an injection, on Pods and on Services.
pub const INJECTED_ANNOTATION: &str = "headgate.dev/injected";

/// The additions and changes of an injection to a Pod.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Mark {
    /// The names of the added init containers.
    pub(super) init_containers: Vec<String>,
    /// The names of the added volumes.
    pub(super) volumes: Vec<String>,
    /// The keys of the added labels.
    pub(super) labels: Vec<String>,
    /// The application's port.
    pub(super) app_port: u16,
    /// The original name of the application's port, which Envoy's port has since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) port_name: Option<String>,
    /// JSON pointers, into the spec, to the ports of probes and hooks that referred to the port by
    /// name.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) renamed: Vec<String>,
}

/// Returns the record in the annotation of `object`. `None` without the annotation.
///
/// # Errors
/// The annotation isn't in the form that an injection writes.
pub(super) fn read<T: DeserializeOwned>(object: &Value) -> Result<Option<T>, String> {
    let annotation = &object["metadata"]["annotations"][INJECTED_ANNOTATION];
    let Some(text) = annotation.as_str() else {
        return Ok(None);
    };
    serde_json::from_str(text).map(Some).map_err(|error| {
        format!("annotation {INJECTED_ANNOTATION} is not as headgate inject writes it: {error}")
    })
}

/// Returns the application's port and the name of Envoy's port, as an injected Pod's annotation
/// records them.
pub fn injected_ports(annotation: &str) -> Option<(u16, String)> {
    let mark = serde_json::from_str::<Mark>(annotation).ok()?;
    let name = mark.port_name.unwrap_or_else(|| PORT_NAME.to_owned());
    Some((mark.app_port, name))
}

/// Sets a label or an annotation. Returns false if the object's metadata isn't a mapping.
pub(super) fn set(object: &mut Value, field: &str, key: &str, value: &str) -> bool {
    let mut at = object;
    for field in ["metadata", field] {
        if at[field].is_null() {
            at[field] = json!({});
        }
        at = &mut at[field];
        if !at.is_object() {
            return false;
        }
    }
    at[key] = json!(value);
    true
}

/// Removes a label or an annotation, and the mapping too if it becomes empty.
pub(super) fn unset(object: &mut Value, field: &str, key: &str) {
    let Some(metadata) = object["metadata"].as_object_mut() else {
        return;
    };
    if let Some(all) = metadata.get_mut(field).and_then(Value::as_object_mut) {
        all.remove(key);
        if all.is_empty() {
            metadata.remove(field);
        }
    }
}

/// Reverts an injection into a Pod, and returns its record.
///
/// # Errors
/// Returns the errors of [`read`].
pub(super) fn remove(template: &mut Value) -> Result<Option<Mark>, String> {
    let Some(mark) = read::<Mark>(template)? else {
        return Ok(None);
    };
    for label in &mark.labels {
        unset(template, "labels", label);
    }
    unset(template, "annotations", INJECTED_ANNOTATION);
    let spec = &mut template["spec"];
    drop_named(spec, "initContainers", &mark.init_containers);
    drop_named(spec, "volumes", &mark.volumes);
    if let Some(name) = &mark.port_name {
        if let Some(port) = port_of(spec, mark.app_port) {
            port["name"] = json!(name);
        }
        for pointer in &mark.renamed {
            if let Some(port) = spec.pointer_mut(pointer)
                && *port == mark.app_port
            {
                *port = json!(name);
            }
        }
    }
    Ok(Some(mark))
}

fn drop_named(spec: &mut Value, field: &str, gone: &[String]) {
    let Some(spec) = spec.as_object_mut() else {
        return;
    };
    if let Some(items) = spec.get_mut(field).and_then(Value::as_array_mut) {
        let is_gone = |item: &Value| gone.iter().any(|name| item["name"] == name.as_str());
        items.retain(|item| !is_gone(item));
        if items.is_empty() {
            spec.remove(field);
        }
    }
}
