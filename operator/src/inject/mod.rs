//! Adds an Envoy with a Headgate slot to the Pods of a workload, so that nobody writes it by hand.
//!
//! Objects are plain JSON values: whatever else they say stays. What is added has names of its own
//! ([`sidecar`]) and replaces what an earlier injection added, so that a second one upgrades the first.
//!
//! Envoy takes the name of the application's port over: Services that point at the port by name reach Envoy without a
//! change. Those that point at it by number are changed if they stand beside the workload ([`redirect`]).

use serde_json::{Map, Value, json};

use crate::endpoint::Endpoint;
use crate::xds::module::Kind;

/// Port of the application behind Envoy, an annotation of the Pod.
pub const APP_PORT_ANNOTATION: &str = "headgate.dev/app-port";
/// An annotation of the Pod: `disabled` leaves it as it is.
pub const INJECT_ANNOTATION: &str = "headgate.dev/inject";
/// By which the chart's PodMonitor finds Envoys.
const PROXY_LABEL: &str = "headgate.dev/proxy";
/// Name of Envoy's port where the application's has none.
const PORT_NAME: &str = "headgate-http";
const CONTAINERS: [&str; 2] = ["headgate", "envoy"];
const VOLUMES: [&str; 3] = ["headgate", "headgate-tls", "headgate-podinfo"];

/// What an injected proxy runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Image with the `headgate` program and the filter modules.
    pub image: String,
    /// Envoy's image.
    pub envoy_image: String,
    /// The operator.
    pub xds: Endpoint,
    /// Secret with the namespace's certificate for the operator.
    pub tls_secret: String,
    /// Where Envoy listens.
    pub listen_port: u16,
    /// Where the application listens, if its Pods don't say.
    pub app_port: Option<u16>,
    /// The application speaks HTTP/2, as gRPC servers do.
    pub upstream_http2: bool,
    /// Worker threads of Envoy.
    pub concurrency: u32,
    /// The kind of filter.
    pub filter: Kind,
}

/// A workload that has an Envoy now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injected {
    /// Kind, namespace and name.
    pub workload: String,
    namespace: Option<String>,
    labels: Map<String, Value>,
    /// Where the application listens.
    pub app_port: u16,
    /// Name of Envoy's port.
    pub port_name: String,
    /// The name was the application's before, so Services that know it reach Envoy.
    pub took_name: bool,
}

/// What became of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Its Pods have an Envoy.
    Injected(Injected),
    /// It has no Pods that serve requests.
    NoWorkload,
    /// It was left alone, and why.
    Skipped(String),
}

/// Adds Envoy to a workload.
///
/// # Errors
/// What the object lacks, and what would be right.
pub fn inject(object: &mut Value, settings: &Settings) -> Result<Outcome, String> {
    let workload = name_of(object);
    let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
    let pointer = match object["kind"].as_str() {
        Some("Pod") => "",
        Some("Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => "/spec/template",
        _ => return Ok(Outcome::NoWorkload),
    };
    let at = |problem: &str| format!("{workload}: {problem}");
    let template = object
        .pointer_mut(pointer)
        .filter(|template| template["spec"]["containers"].is_array())
        .ok_or_else(|| at("its Pods have no spec.containers"))?;
    for field in ["/metadata", "/metadata/labels", "/metadata/annotations"] {
        let value = template.pointer(field).unwrap_or(&Value::Null);
        if !(value.is_null() || value.is_object()) {
            return Err(at(&format!(
                "{} of its Pods is no mapping",
                &field[1..].replace('/', ".")
            )));
        }
    }
    if template["metadata"]["annotations"][INJECT_ANNOTATION] == "disabled" {
        return Ok(Outcome::Skipped(at(&format!(
            "not injected, as its annotation {INJECT_ANNOTATION} says"
        ))));
    }
    if template["spec"]["hostNetwork"] == true {
        return Ok(Outcome::Skipped(at(
            "not injected: with hostNetwork, Envoys of two Pods would share a node's ports",
        )));
    }
    let app_port = app_port(template, settings).map_err(|problem| at(&problem))?;
    let earlier = port_name_of_envoy(&template["spec"]);
    let taken = take_port_name(&mut template["spec"], app_port);
    let took_name = taken.is_some() || earlier.as_ref().is_some_and(|name| name != PORT_NAME);
    let port_name = taken.or(earlier).unwrap_or_else(|| PORT_NAME.to_owned());
    add(
        &mut template["spec"],
        &sidecar(settings, app_port, &port_name),
    );
    let metadata = &mut template["metadata"];
    metadata["labels"][PROXY_LABEL] = json!("true");
    metadata["annotations"][APP_PORT_ANNOTATION] = json!(app_port.to_string());
    Ok(Outcome::Injected(Injected {
        workload,
        namespace,
        labels: metadata["labels"].as_object().cloned().unwrap_or_default(),
        app_port,
        port_name,
        took_name,
    }))
}

/// Points a Service that selects these Pods at Envoy, where it points at the application's port by number. Returns
/// whether it selects them and reaches Envoy now.
pub fn redirect(service: &mut Value, injected: &Injected) -> bool {
    let namespace = service["metadata"]["namespace"].as_str();
    let selector = service["spec"]["selector"].as_object();
    let selects = selector.is_some_and(|selector| {
        !selector.is_empty()
            && (selector.iter()).all(|(key, value)| injected.labels.get(key) == Some(value))
    });
    if service["kind"] != "Service" || namespace != injected.namespace.as_deref() || !selects {
        return false;
    }
    let mut reaches = false;
    let ports = service["spec"]["ports"].as_array_mut();
    for port in ports.into_iter().flatten() {
        let target = match &port["targetPort"] {
            Value::Null => port["port"].as_u64(),
            target => target.as_u64(),
        };
        if target == Some(u64::from(injected.app_port)) {
            port["targetPort"] = json!(injected.port_name);
        }
        reaches |= port["targetPort"] == injected.port_name.as_str();
    }
    reaches
}

/// `Deployment shop/search`.
fn name_of(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or("object");
    let name = object["metadata"]["name"].as_str().unwrap_or("?");
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

/// Where the application listens: by the annotation, else by the settings, else its only port.
fn app_port(template: &Value, settings: &Settings) -> Result<u16, String> {
    let annotation = &template["metadata"]["annotations"][APP_PORT_ANNOTATION];
    let port = if let Some(text) = annotation.as_str() {
        let wrong =
            || format!("annotation {APP_PORT_ANNOTATION}: {text:?} is no port; such as \"8080\"");
        text.parse::<u16>()
            .ok()
            .filter(|&port| port > 0)
            .ok_or_else(wrong)?
    } else if let Some(port) = settings.app_port {
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
                    "its containers have {found}: say which one Envoy stands in front of, by the annotation \
                     {APP_PORT_ANNOTATION} of its Pods or by --app-port"
                ));
            }
        }
    };
    if port == settings.listen_port {
        return Err(format!(
            "the application listens on {port}, where Envoy is to listen: choose another --listen-port"
        ));
    }
    Ok(port)
}

/// TCP ports of the containers.
fn application_ports(spec: &Value) -> Vec<u16> {
    let containers = spec["containers"].as_array().into_iter().flatten();
    let ports =
        containers.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    let tcp = ports.filter(|port| matches!(port["protocol"].as_str(), None | Some("TCP")));
    tcp.filter_map(|port| u16::try_from(port["containerPort"].as_u64()?).ok())
        .collect()
}

/// The name that an earlier injection gave to Envoy's port.
fn port_name_of_envoy(spec: &Value) -> Option<String> {
    let containers = spec["initContainers"].as_array()?;
    let envoy = containers
        .iter()
        .find(|container| container["name"] == "envoy")?;
    envoy["ports"][0]["name"].as_str().map(str::to_owned)
}

/// Takes the name off the application's port; probes and hooks that used the name get the number.
fn take_port_name(spec: &mut Value, app_port: u16) -> Option<String> {
    let containers = spec["containers"].as_array_mut()?;
    for container in containers {
        let ports = container["ports"].as_array_mut();
        let mut ports = ports.into_iter().flatten();
        let Some(port) = ports.find(|port| port["containerPort"] == app_port) else {
            continue;
        };
        let Some(Value::String(name)) = port.as_object_mut().and_then(|port| port.remove("name"))
        else {
            return None;
        };
        for user in [
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
            "lifecycle",
        ] {
            if let Some(user) = container.get_mut(user) {
                rename(user, &name, app_port);
            }
        }
        return Some(name);
    }
    None
}

/// Replaces `port: name` at any depth.
fn rename(value: &mut Value, name: &str, number: u16) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if key == "port" && value == name {
                    *value = json!(number);
                } else {
                    rename(value, name, number);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, name, number)),
        _ => {}
    }
}

/// Init containers and volumes for a Pod.
fn sidecar(settings: &Settings, app_port: u16, port_name: &str) -> Value {
    let restricted = json!({
        "runAsNonRoot": true,
        "runAsUser": 65_532,
        "runAsGroup": 65_532,
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    let mut args = vec![
        "bootstrap".to_owned(),
        format!("--listen=0.0.0.0:{}", settings.listen_port),
        format!("--upstream=127.0.0.1:{app_port}"),
        "--admin=0.0.0.0:9901".to_owned(),
        format!("--xds={}", settings.xds),
        "--xds-tls-cert=/etc/headgate/tls/tls.crt".to_owned(),
        "--xds-tls-key=/etc/headgate/tls/tls.key".to_owned(),
        "--xds-tls-ca=/etc/headgate/tls/ca.crt".to_owned(),
        "--labels-file=/etc/headgate/podinfo/labels".to_owned(),
        "--install-module=/headgate".to_owned(),
        "--output=/headgate/envoy.yaml".to_owned(),
    ];
    if settings.upstream_http2 {
        args.push("--upstream-http2".to_owned());
    }
    if settings.filter == Kind::Native {
        args.push("--filter=native".to_owned());
    }
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    // Copies the filter module and writes Envoy's bootstrap with this Pod's namespace and labels: by them the operator
    // knows which policies are for it.
    let headgate = json!({
        "name": "headgate",
        "image": settings.image,
        "args": args,
        "env": [
            {"name": "POD_NAME", "valueFrom": field("metadata.name")},
            {"name": "POD_NAMESPACE", "valueFrom": field("metadata.namespace")},
        ],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": restricted,
        "volumeMounts": [
            {"name": "headgate", "mountPath": "/headgate"},
            {"name": "headgate-tls", "mountPath": "/etc/headgate/tls", "readOnly": true},
            {"name": "headgate-podinfo", "mountPath": "/etc/headgate/podinfo", "readOnly": true},
        ],
    });
    let concurrency = settings.concurrency.to_string();
    // A sidecar (restartPolicy Always): runs before the application and ends after it.
    let envoy = json!({
        "name": "envoy",
        "image": settings.envoy_image,
        "restartPolicy": "Always",
        "command": ["envoy"],
        "args": ["--config-path", "/headgate/envoy.yaml", "--concurrency", concurrency, "--disable-hot-restart"],
        "ports": [
            {"name": port_name, "containerPort": settings.listen_port},
            {"name": "envoy-admin", "containerPort": 9901},
        ],
        "startupProbe": {
            "httpGet": {"path": "/ready", "port": "envoy-admin"},
            "periodSeconds": 1,
            "failureThreshold": 60,
        },
        "resources": {"requests": {"cpu": "100m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": restricted,
        "volumeMounts": [
            {"name": "headgate", "mountPath": "/headgate", "readOnly": true},
            {"name": "headgate-tls", "mountPath": "/etc/headgate/tls", "readOnly": true},
        ],
    });
    json!({
        "initContainers": [headgate, envoy],
        "volumes": [
            {"name": "headgate", "emptyDir": {"sizeLimit": "64Mi"}},
            // Readable by Envoy's user without an fsGroup, which would be the application's, too.
            {"name": "headgate-tls", "secret": {"secretName": settings.tls_secret, "defaultMode": 0o444}},
            {"name": "headgate-podinfo", "downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            ]}},
        ],
    })
}

/// Adds to a Pod's spec; what an earlier injection added goes.
fn add(spec: &mut Value, sidecar: &Value) {
    for (field, names) in [
        ("initContainers", &CONTAINERS[..]),
        ("volumes", &VOLUMES[..]),
    ] {
        let added = sidecar[field].as_array().cloned().unwrap_or_default();
        let kept = match spec[field].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        };
        let kept = kept.into_iter().filter(|item| {
            let name = item["name"].as_str();
            !name.is_some_and(|name| names.contains(&name))
        });
        // First: containers that start after Envoy can call through it.
        spec[field] = Value::Array(added.into_iter().chain(kept).collect());
    }
}

#[cfg(test)]
mod tests;
