//! Adds an Envoy with a Headgate slot to the Pods of a workload.
//!
//! Objects are plain JSON values, so fields unknown to injection are preserved. An annotation
//! records the additions and changes ([`mark`]), so that a second injection upgrades the first, and
//! [`uninject`] restores the original.
//!
//! Envoy's port takes over the name of the application's port, so Services that refer to the port
//! by name reach Envoy without a change. Services that refer to it by number are changed if they
//! are in the same input as the workload ([`redirect`]). Kubernetes finds the named port of a
//! sidecar for Services since 1.33.

mod mark;
mod network;
mod quantity;
mod service;
mod settings;
mod sidecar;
pub mod webhook;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use serde::Deserialize as _;
use serde_json::{Value, json};

use mark::Mark;
pub use mark::{INJECTED_ANNOTATION, injected_ports};
pub use network::cut_off;
pub use service::{bypassed, redirect, reset};
pub use settings::Settings;

/// The Pod annotation with the application's port behind Envoy.
pub const APP_PORT_ANNOTATION: &str = "headgate.dev/app-port";
/// The Pod annotation that prevents injection by the value `disabled`.
pub const INJECT_ANNOTATION: &str = "headgate.dev/inject";
/// The label by which the chart's PodMonitor selects Envoys.
const PROXY_LABEL: &str = "headgate.dev/proxy";
/// The name of Envoy's port if the application's port has none.
const PORT_NAME: &str = "headgate-http";

/// A workload into which Envoy was injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injected {
    /// Kind, namespace and name.
    pub workload: String,
    namespace: Option<String>,
    labels: BTreeMap<String, String>,
    /// The port of the application.
    pub app_port: u16,
    /// The port of Envoy.
    pub listen_port: u16,
    /// Name of Envoy's port.
    pub port_name: String,
    /// Whether the application's port had this name before, so that Services that use the name
    /// reach Envoy.
    pub took_name: bool,
    /// The application's port at the injection before this one, or `app_port` at the first.
    earlier_port: u16,
    /// A warning if the nodes pass a port of theirs to the application's port.
    pub host_port: Option<String>,
}

impl Injected {
    /// Whether `object` is in the workload's namespace.
    fn is_beside(&self, object: &Value) -> bool {
        object["metadata"]["namespace"].as_str() == self.namespace.as_deref()
    }
}

/// The outcome for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The object's Pods have an Envoy.
    Injected(Injected),
    /// The object has no Pods that serve requests.
    NoWorkload,
    /// The object was left unchanged, for this reason.
    Skipped(String),
}

/// Adds Envoy to a workload, and replaces the additions of an earlier injection.
///
/// # Errors
/// Returns one line that names the missing or wrong field, and the remedy.
pub fn inject(object: &mut Value, settings: &Settings) -> Result<Outcome, String> {
    let workload = name_of(object);
    let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
    let at = |problem: &str| format!("{workload}: {problem}");
    let Some(template) = template_of(object).map_err(|problem| at(&problem))? else {
        return Ok(Outcome::NoWorkload);
    };
    if template["metadata"]["annotations"][INJECT_ANNOTATION] == "disabled" {
        return Ok(Outcome::Skipped(at(&format!(
            "not injected: its annotation {INJECT_ANNOTATION} disables it"
        ))));
    }
    if template["spec"]["hostNetwork"] == true {
        return Ok(Outcome::Skipped(at(
            "not injected: with hostNetwork, Envoys of two Pods would share a node's ports",
        )));
    }
    let spec = &template["spec"];
    let os = { spec["os"]["name"].as_str() }.or(spec["nodeSelector"]["kubernetes.io/os"].as_str());
    if os == Some("windows") {
        return Ok(Outcome::Skipped(at(
            "not injected: Envoy's image is for Linux",
        )));
    }
    let earlier = mark::remove(template).map_err(|problem| at(&problem))?;
    let earlier = earlier.map(|mark| mark.app_port);
    let (app_port, port_name, took_name) =
        add(template, settings, earlier).map_err(|problem| at(&problem))?;
    let labels = BTreeMap::deserialize(&template["metadata"]["labels"]);
    let host_port = port_of(&mut template["spec"], app_port).and_then(|p| p["hostPort"].as_u64());
    let host_port = host_port.map(|port| {
        at(&format!(
            "clients that connect to hostPort {port} of its nodes bypass Envoy; remove the hostPort"
        ))
    });
    Ok(Outcome::Injected(Injected {
        labels: labels.unwrap_or_default(),
        earlier_port: earlier.unwrap_or(app_port),
        host_port,
        workload,
        namespace,
        app_port,
        listen_port: settings.listen_port,
        port_name,
        took_name,
    }))
}

/// Removes the additions and changes of [`inject`] and [`redirect`] from an object. Returns whether
/// it had any.
///
/// # Errors
/// Returns one line that says what is wrong with the object or its annotation.
pub fn uninject(object: &mut Value) -> Result<bool, String> {
    let name = name_of(object);
    let removed = match object["kind"] == "Service" {
        true => service::restore(object, |_| true),
        false => template_of(object).and_then(|template| match template {
            Some(template) => mark::remove(template).map(|mark| mark.is_some()),
            None => Ok(false),
        }),
    };
    removed.map_err(|problem| format!("{name}: {problem}"))
}

/// Returns the Pod or Pod template of a workload, with containers and writable metadata. `None` for
/// other kinds.
fn template_of(object: &mut Value) -> Result<Option<&mut Value>, String> {
    let pointer = match object["kind"].as_str() {
        Some("Pod") => "",
        Some("Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => "/spec/template",
        _ => return Ok(None),
    };
    let template = object
        .pointer_mut(pointer)
        .filter(|template| template["spec"]["containers"].is_array())
        .ok_or("its Pods have no spec.containers")?;
    for field in ["/metadata", "/metadata/labels", "/metadata/annotations"] {
        let value = template.pointer(field).unwrap_or(&Value::Null);
        if !(value.is_null() || value.is_object()) {
            let field = field[1..].replace('/', ".");
            return Err(format!("{field} of its Pods is no mapping"));
        }
    }
    Ok(Some(template))
}

/// Adds Envoy to a Pod without one. Returns the application's port, the name of Envoy's port, and
/// whether the application's port had that name before.
fn add(
    template: &mut Value,
    settings: &Settings,
    earlier: Option<u16>,
) -> Result<(u16, String, bool), String> {
    let app_port = app_port(template, settings, earlier)?;
    let mut mark = Mark {
        app_port,
        ..Mark::default()
    };
    let spec = &mut template["spec"];
    keep_ports_free(spec, settings)?;
    (mark.port_name, mark.renamed) = take_port_name(spec, app_port);
    let port_name = mark.port_name.as_deref().unwrap_or(PORT_NAME).to_owned();
    if port_name == sidecar::STATS_PORT_NAME {
        return Err(format!(
            "port {app_port} is called {port_name}, like Envoy's port for its statistics; give it \
             another name"
        ));
    }
    let mut added = sidecar::render(settings, spec, app_port, &port_name)?;
    // The requests and limits of a whole Pod cover all its containers. Envoy's own requests and
    // limits would have to fit into those of the Pod, or the API server would refuse the Pod.
    if spec["resources"].is_null() {
        settings.check_resources()?;
    } else {
        let containers = added["initContainers"].as_array_mut().into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            container.remove("resources");
        }
    }
    mark.init_containers = prepend(spec, &added, "initContainers");
    mark.volumes = prepend(spec, &added, "volumes");
    if template["metadata"]["labels"][PROXY_LABEL].is_null() {
        mark::set(template, "labels", PROXY_LABEL, "true");
        mark.labels.push(PROXY_LABEL.to_owned());
    }
    let took_name = mark.port_name.is_some();
    let mark = serde_json::to_string(&mark).map_err(|error| error.to_string())?;
    mark::set(template, "annotations", INJECTED_ANNOTATION, &mark);
    Ok((app_port, port_name, took_name))
}

/// Inserts the items of `added` at the front of `field` in a Pod's spec. Containers that start
/// after Envoy can then call through it. Returns the names of the items.
fn prepend(spec: &mut Value, added: &Value, field: &str) -> Vec<String> {
    let added = &added[field];
    let own = names(added).into_iter().map(str::to_owned).collect();
    let items = [added.as_array(), spec[field].as_array()];
    spec[field] = items.into_iter().flatten().flatten().cloned().collect();
    own
}

/// Returns the names of containers or volumes.
fn names(items: &Value) -> Vec<&str> {
    let items = items.as_array().into_iter().flatten();
    items.filter_map(|item| item["name"].as_str()).collect()
}

/// Whether the label selector `selector` matches `labels`.
fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let selector = Option::<LabelSelector>::deserialize(selector);
    let selector = selector.map(|given| Selector::try_from(given.unwrap_or_default()));
    matches!(selector, Ok(Ok(selector)) if selector.matches(labels))
}

/// Returns `kind namespace/name`, such as `Deployment shop/search`.
fn name_of(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or("object");
    let metadata = &object["metadata"];
    let name = ["name", "generateName"].map(|field| metadata[field].as_str());
    let name = name.into_iter().flatten().next().unwrap_or("?");
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

/// Returns the application's port. It comes from the annotation, the settings, or an earlier
/// injection, in this order. Otherwise it is the application's only port.
fn app_port(template: &Value, settings: &Settings, earlier: Option<u16>) -> Result<u16, String> {
    let annotation = &template["metadata"]["annotations"][APP_PORT_ANNOTATION];
    let port = if let Some(text) = annotation.as_str() {
        let wrong =
            || format!("annotation {APP_PORT_ANNOTATION}: {text:?} is no port; such as \"8080\"");
        text.parse::<u16>()
            .ok()
            .filter(|&port| port > 0)
            .ok_or_else(wrong)?
    } else if let Some(port) = settings.app_port.or(earlier) {
        port
    } else {
        let mut ports = application_ports(&template["spec"]);
        ports.sort_unstable();
        ports.dedup();
        match ports[..] {
            [port] => port,
            _ => {
                let listed: Vec<String> = ports.iter().map(u16::to_string).collect();
                let found = match listed.len() {
                    0 => "no port".to_owned(),
                    _ => format!("ports {}", listed.join(", ")),
                };
                return Err(format!(
                    "its containers have {found}: select the one behind Envoy with the annotation \
                     {APP_PORT_ANNOTATION} of its Pods or with --app-port"
                ));
            }
        }
    };
    if port == settings.listen_port {
        return Err(format!(
            "the application listens on {port}, which Envoy needs: choose another --listen-port"
        ));
    }
    Ok(port)
}

/// Returns the TCP ports of the containers.
fn application_ports(spec: &Value) -> Vec<u16> {
    let containers = spec["containers"].as_array().into_iter().flatten();
    containers.flat_map(tcp_ports).collect()
}

/// Returns the TCP ports of a container.
fn tcp_ports(container: &Value) -> impl Iterator<Item = u16> {
    let ports = container["ports"].as_array().into_iter().flatten();
    let tcp = ports.filter(|port| is_tcp(port));
    tcp.filter_map(|port| u16::try_from(port["containerPort"].as_u64()?).ok())
}

fn is_tcp(port: &Value) -> bool {
    matches!(port["protocol"].as_str(), None | Some("TCP"))
}

/// Checks that no container has a port on which Envoy will listen.
///
/// # Errors
/// Returns one line that names the container and its port.
fn keep_ports_free(spec: &Value, settings: &Settings) -> Result<(), String> {
    let needed = [
        (
            settings.listen_port,
            "for requests: choose another --listen-port",
        ),
        (sidecar::ADMIN_PORT, "for its admin interface"),
        (sidecar::STATS_PORT, "for its statistics"),
    ];
    let containers = ["containers", "initContainers"].map(|field| spec[field].as_array());
    for container in containers.into_iter().flatten().flatten() {
        for port in tcp_ports(container) {
            if let Some((_, what)) = needed.iter().find(|(needed, _)| *needed == port) {
                let name = container["name"].as_str().unwrap_or("?");
                return Err(format!(
                    "container {name} has port {port}, which Envoy needs {what}"
                ));
            }
        }
    }
    Ok(())
}

/// Returns the TCP port of a container with this number.
fn port_of(spec: &mut Value, number: u16) -> Option<&mut Value> {
    let containers = spec["containers"].as_array_mut()?;
    let ports = containers
        .iter_mut()
        .filter_map(|container| container.get_mut("ports")?.as_array_mut());
    let mut tcp = ports.flatten().filter(|port| is_tcp(port));
    tcp.find(|port| port["containerPort"] == number)
}

/// Removes the name of the application's port, and replaces it by the number in probes and hooks.
/// Returns the name, and JSON pointers to these fields.
fn take_port_name(spec: &mut Value, app_port: u16) -> (Option<String>, Vec<String>) {
    let port = port_of(spec, app_port).and_then(Value::as_object_mut);
    let Some(Value::String(name)) = port.and_then(|port| port.remove("name")) else {
        return (None, Vec::new());
    };
    let mut renamed = Vec::new();
    let containers = spec["containers"].as_array_mut();
    for (at, container) in containers.into_iter().flatten().enumerate() {
        if !tcp_ports(container).any(|port| port == app_port) {
            continue;
        }
        for user in [
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
            "lifecycle",
        ] {
            if let Some(user_of) = container.get_mut(user) {
                let path = format!("/containers/{at}/{user}");
                rename(user_of, &path, &name, app_port, &mut renamed);
            }
        }
    }
    (Some(name), renamed)
}

/// Replaces `port: name` by `port: number` at any depth of `value`, and adds JSON pointers to these
/// fields to `renamed`.
fn rename(value: &mut Value, path: &str, name: &str, number: u16, renamed: &mut Vec<String>) {
    let Some(fields) = value.as_object_mut() else {
        return;
    };
    for (key, value) in fields {
        let path = format!("{path}/{key}");
        if key == "port" && value == name {
            *value = json!(number);
            renamed.push(path);
        } else {
            rename(value, &path, name, number, renamed);
        }
    }
}

#[cfg(test)]
mod tests;
