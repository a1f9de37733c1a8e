//! Pure functions that turn data from a cluster into findings.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::finding::Finding;
use super::installation::Installation;
use super::rights::Right;
use crate::status::view::View;
use headgate_command::cluster::Operator;
use headgate_command::table::{first, one_line};
use headgate_controller::conditions::Type;
use headgate_controller::inject::{INJECTED_ANNOTATION, injected_ports};
use headgate_controller::kubernetes::resource::VERSION;
use headgate_controller::modules::PREFIX;
use headgate_controller::report::ProxyReport;
use headgate_deliver::istio::{is_before, is_older};
use headgate_xds::certificate;
use headgate_xds::timestamp::{age, rfc3339};

/// The version of this program.
pub(crate) const OWN: &str = env!("CARGO_PKG_VERSION");
/// The oldest supported minor version of Kubernetes 1. The chart requires the same version.
const OLDEST_MINOR: u32 = 30;
/// The minor version of Kubernetes 1 since which EndpointSlices have the named ports of restartable
/// init containers (kubernetes/kubernetes#128850). The chart requires it for injection.
const SIDECAR_PORTS_SINCE: u32 = 33;
/// The greatest accepted difference between clocks.
const SKEW: Duration = Duration::from_secs(30);
const UPGRADE_CRD: &str = "upgrade Headgate's chart, or only the CRD: headgate crd | kubectl apply \
                           --server-side -f -";

/// Returns the major and minor version in a text such as `v1.34.1` or `1.34+`.
fn minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split('.');
    let minor = |text: &str| text.trim_end_matches('+').parse().ok();
    Some((parts.next()?.parse().ok()?, minor(parts.next()?)?))
}

/// Returns the first three names, and the number of the others.
fn some(names: &[String]) -> String {
    first(names, 3)
}

/// Returns the number of `names`, then `what` they have in common, and the first of them.
fn counted(names: &[String], what: &str) -> String {
    format!("{} {what}: {}", names.len(), some(names))
}

/// Judges the API server's version.
pub(crate) fn server(version: Option<&str>) -> Finding {
    match version {
        None => Finding::ok("reachable; this user may not read its version"),
        Some(version) if minor(version).is_some_and(|v| v < (1, OLDEST_MINOR)) => Finding::error(
            format!("Kubernetes {version} is older than 1.{OLDEST_MINOR}"),
            "upgrade the cluster",
        ),
        Some(version) => Finding::ok(format!("reachable, Kubernetes {version}")),
    }
}

/// Judges a clock by its difference from the API server's clock. The API server's times have whole
/// seconds.
pub(crate) fn clock(whose: &str, time: SystemTime, of_server: SystemTime) -> Finding {
    let ahead = time.duration_since(of_server);
    let (apart, way) = match ahead {
        Ok(apart) => (apart, "ahead of"),
        Err(error) => (error.duration(), "behind"),
    };
    match apart > SKEW {
        true => Finding::warning(
            format!("{whose} is {} {way} the API server's", age(apart)),
            "synchronize the clocks (NTP): certificates and tokens have a begin and an end",
        ),
        false => Finding::ok(format!("{whose} agrees with the API server's")),
    }
}

/// Adds the paths of all fields of a schema to `all`. `path` is the path of the schema itself.
fn fields(schema: &Value, path: &str, all: &mut BTreeSet<String>) {
    for (name, of) in schema["properties"].as_object().into_iter().flatten() {
        let path = match path {
            "" => name.clone(),
            path => format!("{path}.{name}"),
        };
        fields(of, &path, all);
        all.insert(path);
    }
    for (key, mark) in [("items", "[]"), ("additionalProperties", ".*")] {
        if schema[key].is_object() {
            fields(&schema[key], &format!("{path}{mark}"), all);
        }
    }
}

/// Compares the installed definition with the definition of this program.
pub(crate) fn definition(
    installed: Option<&CustomResourceDefinition>,
    own: &CustomResourceDefinition,
) -> Finding {
    let Some(installed) = installed else {
        let message = "the CRD of AdmissionPolicy isn't installed".to_owned();
        return Finding::error(message, UPGRADE_CRD.replace("upgrade", "install"));
    };
    let conditions = installed
        .status
        .iter()
        .flat_map(|s| &s.conditions)
        .flatten();
    let mut refused = conditions.filter(|c| c.type_ == "Established" && c.status != "True");
    if let Some(why) = refused.next() {
        let why = why.message.as_deref().unwrap_or("not yet");
        let message = format!("the API server doesn't serve AdmissionPolicy: {why}");
        return Finding::error(message, UPGRADE_CRD);
    }
    let schema = |of: &CustomResourceDefinition| {
        let mut versions = of.spec.versions.iter();
        let version = versions.find(|v| v.name == VERSION && v.served)?;
        let schema = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
        serde_json::to_value(schema).ok()
    };
    let (Some(theirs), Some(ours)) = (schema(installed), schema(own)) else {
        let message = format!("the API server serves no AdmissionPolicy of version {VERSION}");
        return Finding::error(message, UPGRADE_CRD);
    };
    let all = |schema: &Value| {
        let mut all = BTreeSet::new();
        fields(schema, "", &mut all);
        all
    };
    let (known, own) = (all(&theirs), all(&ours));
    let lacks: Vec<String> = own.difference(&known).cloned().collect();
    let more: Vec<String> = known.difference(&own).cloned().collect();
    if !lacks.is_empty() {
        let message = format!(
            "the CRD is older than this program: the API server drops {} from policies",
            some(&lacks)
        );
        return Finding::error(message, UPGRADE_CRD);
    }
    if !more.is_empty() {
        let message = format!(
            "the CRD is newer than headgate {OWN}: it has {}",
            some(&more)
        );
        return Finding::warning(message, "install the program of the CRD's version");
    }
    if theirs != ours {
        let message = format!("the CRD's rules aren't those of headgate {OWN}");
        return Finding::warning(message, UPGRADE_CRD);
    }
    Finding::ok(format!("AdmissionPolicy {VERSION} as of headgate {OWN}"))
}

/// Judges the operator's Deployment. `name` is the Deployment's `namespace/name`.
pub(crate) fn deployment(name: &str, found: Option<&Installation>) -> Finding {
    let Some(found) = found else {
        return Finding::error(
            format!("Deployment {name} doesn't exist"),
            "install Headgate's chart, or name the Service of another release with --operator",
        );
    };
    let message = format!(
        "Deployment {name} has {} of {} replicas ready",
        found.ready, found.replicas
    );
    let namespace = &found.namespace;
    let fix = format!(
        "see why: kubectl --namespace {namespace} describe pods; kubectl --namespace {namespace} \
         logs deployment/{}",
        found.name
    );
    match found.ready {
        0 => Finding::error(message, fix),
        ready if ready < found.replicas => Finding::warning(message, fix),
        _ => Finding::ok(message),
    }
}

/// Judges the operators' versions.
pub(crate) fn versions(versions: &BTreeSet<&str>) -> Finding {
    let all: Vec<&str> = versions.iter().copied().collect();
    let message = format!("headgate {OWN}, operator {}", all.join(" and "));
    let near = |version: &&str| match (minor(version), minor(OWN)) {
        (Some(theirs), Some(own)) => theirs.0 == own.0 && theirs.1.abs_diff(own.1) <= 1,
        _ => false,
    };
    match all.as_slice() {
        [] => Finding::skipped("no operator reports its version"),
        [_, _, ..] => Finding::warning(message, "wait for the rollout, or see why it is stuck"),
        [one] if near(one) => Finding::ok(message),
        [_] => Finding::warning(
            message,
            "use versions whose minor versions differ by at most one",
        ),
    }
}

/// Judges the leader's Lease.
pub(crate) fn lease(name: &str, lease: Option<&LeaseSpec>, now: SystemTime) -> Finding {
    const FIX: &str = "see the operator's log and headgate_leader; until then no status and no \
                       object is written";
    let holder = lease.and_then(|l| l.holder_identity.as_deref());
    let holder = holder.unwrap_or_default();
    let renewed = lease.and_then(|l| l.renew_time.as_ref());
    let (Some(lease), Some(renewed), false) = (lease, renewed, holder.is_empty()) else {
        return Finding::error(format!("no operator holds Lease {name}"), FIX);
    };
    let since = now.duration_since(renewed.0.into()).unwrap_or_default();
    let seconds = lease.lease_duration_seconds.unwrap_or_default();
    // The limit has one more second, because the API server's time has whole seconds.
    let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or_default() + 1);
    let message = format!("{holder} renewed Lease {name} {} ago", age(since));
    match since > limit {
        true => Finding::error(message, FIX),
        false => Finding::ok(message),
    }
}

/// Judges the rights that the operator's account lacks.
pub(crate) fn rights(account: &str, asked: usize, lacking: &[Right]) -> Finding {
    let lacking: Vec<String> = lacking.iter().map(ToString::to_string).collect();
    match lacking.as_slice() {
        [] => Finding::ok(format!("{account} may make its {asked} kinds of requests")),
        lacking => Finding::error(
            format!("{account} may not {}", some(lacking)),
            "upgrade the chart with rbac.create, or grant the rules of its roles",
        ),
    }
}

/// Judges a certificate in PEM.
pub(crate) fn certificate(name: &str, pem: Option<&[u8]>, now: SystemTime) -> Finding {
    let fix = "renew it; with tls.mode Generated, delete it, and the operator creates a new CA";
    let Some(validity) = pem.and_then(certificate::validity_in) else {
        return Finding::error(format!("{name} has no certificate"), fix);
    };
    let (_, end) = validity;
    let until = rfc3339(end);
    match certificate::is_old(validity, now) {
        _ if end < now => Finding::error(format!("{name} has expired at {until}"), fix),
        true => Finding::warning(format!("{name} expires at {until}"), fix),
        false => Finding::ok(format!("{name} is valid until {until}")),
    }
}

/// Judges the CA in the ConfigMap of each namespace. `authority` is the operator's CA in PEM, or
/// `None` if it can't be read. If it is a chain, only its first certificate signs and is published.
/// While a CA replaces another one, the ConfigMaps have both.
pub(crate) fn published(
    name: &str,
    namespaces: &[String],
    found: &BTreeMap<String, String>,
    authority: Option<&str>,
) -> Finding {
    const FIX: &str = "see the operator's log; check that it leads and may patch ConfigMaps";
    let missing = { namespaces.iter() }.filter(|n| !found.contains_key(*n));
    let missing: Vec<String> = missing.cloned().collect();
    let own = authority.map(certificate::first_pem);
    let is_other = |pem: &str| own.as_ref().is_some_and(|own| !pem.contains(own.trim()));
    // ConfigMaps in other namespaces, such as those no longer watched, aren't updated.
    let is_other = |name: &&String| found.get(*name).is_some_and(|pem| is_other(pem));
    let other: Vec<String> = namespaces.iter().filter(is_other).cloned().collect();
    if !missing.is_empty() {
        let message = format!(
            "no ConfigMap {name} in {}: proxies there have no CA",
            some(&missing)
        );
        return Finding::error(message, FIX);
    }
    if !other.is_empty() {
        let message = format!("ConfigMap {name} has another CA in {}", some(&other));
        return Finding::error(message, FIX);
    }
    let all = namespaces.len();
    Finding::ok(format!("ConfigMap {name} is in {all} namespaces"))
}

/// Judges policies by their conditions.
pub(crate) fn policies(view: &View) -> Finding {
    const PASSES: [&str; 4] = ["NoProxies", "Pending", "PartiallyProgrammed", "Stale"];
    let (mut waiting, mut failed) = (Vec::new(), Vec::new());
    for policy in &view.policies {
        let unsettled = policy.targets.iter().filter(|t| !t.is_settled());
        let mut reasons = unsettled.map(|t| match t.is(Type::Accepted) {
            true => t.reason(Type::Programmed),
            false => t.reason(Type::Accepted),
        });
        let failure = reasons.clone().find(|reason| !PASSES.contains(reason));
        if let Some(reason) = failure {
            failed.push(format!("{} ({reason})", policy.name));
        } else if let Some(reason) = reasons.next() {
            waiting.push(format!("{} ({reason})", policy.name));
        }
    }
    let all = view.policies.len();
    let count = waiting.len() + failed.len();
    let fix = "see the reasons: headgate status --all-namespaces";
    let names = [failed.as_slice(), &waiting].concat();
    let message = format!("{count} of {all} aren't programmed: {}", some(&names));
    match (failed.len(), count) {
        (_, 0) => Finding::ok(format!("all {all} are programmed, or overridden")),
        (0, _) => Finding::warning(message, fix),
        _ => Finding::error(message, fix),
    }
}

/// Judges the connected proxies of all operators.
pub(crate) fn proxies<'a>(
    proxies: impl Iterator<Item = &'a ProxyReport>,
    now: SystemTime,
) -> Finding {
    let connected: Vec<&ProxyReport> = proxies.filter(|p| p.disconnected.is_none()).collect();
    let why = |p: &&ProxyReport| {
        let expires = p
            .expires
            .as_deref()
            .and_then(|e| e.parse::<Timestamp>().ok());
        let has_expired = expires.is_some_and(|end| SystemTime::from(end) < now);
        match &p.problem {
            Some(problem) => Some(format!("{}: {problem}", p.node)),
            None if p.state == "Rejected" => Some(format!("{}: refused its configuration", p.node)),
            None if has_expired => Some(format!("{}: its identity has expired", p.node)),
            None if p.slots.is_empty() => Some(format!("{}: has no slot for the filter", p.node)),
            None => None,
        }
    };
    let bad: Vec<String> = connected.iter().filter_map(why).collect();
    let all = connected.len();
    match bad.as_slice() {
        [] => Finding::ok(format!("{all} connected")),
        bad => Finding::error(
            counted(bad, &format!("of {all} have a problem")),
            "see all of them: headgate status --all-namespaces",
        ),
    }
}

/// The names of the modules that an operator serves. `None` if the API server can't reach their
/// port.
type Modules = Result<Option<String>, String>;

/// Judges whether each operator's Pod serves the module that the operator reports.
pub(crate) fn module(served: &[(&str, &str, Modules)]) -> Finding {
    let (mut bad, mut unreached) = (Vec::new(), Vec::new());
    for (pod, hash, served) in served {
        match served {
            Ok(None) => unreached.push((*pod).to_owned()),
            Ok(Some(served)) if served.contains(&format!("{PREFIX}{hash}")) => {}
            Ok(Some(served)) => bad.push(format!("{pod}: {}", one_line(served.trim()))),
            Err(why) => bad.push(format!("{pod}: {why}")),
        }
    }
    let all = served.len();
    match bad.as_slice() {
        [] if unreached.is_empty() => Finding::ok(format!("served by {all} operators")),
        [] => Finding::skipped(format!(
            "the API server can't reach the modules' port of {}; a NetworkPolicy may admit only \
             proxies",
            some(&unreached)
        )),
        bad => Finding::error(
            counted(bad, &format!("of {all} operators don't serve it")),
            "see the operator's log; until then new proxies of Istio and Envoy Gateway run without \
             the filter",
        ),
    }
}

/// Judges running Pods, by namespace and name, that `headgate inject` changed.
pub(crate) fn pods(injected: &[(String, String)], operators: &[Operator]) -> Finding {
    let reports = operators.iter().flat_map(|o| &o.report);
    let connected = { reports.flat_map(|r| &r.proxies) }.filter(|p| p.disconnected.is_none());
    let connected: BTreeSet<(&str, Option<&str>)> = connected
        .map(|p| (p.node.as_str(), p.namespace.as_deref()))
        .collect();
    let is_apart = |(namespace, name): &&(String, String)| {
        let mut of = [Some(namespace.as_str()), None].into_iter();
        !of.any(|of| connected.contains(&(name.as_str(), of)))
    };
    let apart: Vec<String> = { injected.iter().filter(is_apart) }
        .map(|(namespace, name)| format!("{namespace}/{name}"))
        .collect();
    match apart.as_slice() {
        [] => Finding::ok(format!("{} with a sidecar are connected", injected.len())),
        apart => Finding::warning(
            counted(apart, "with a sidecar aren't connected"),
            "see the log of the container that headgate inject added, and NetworkPolicies between \
             it and the operator",
        ),
    }
}

/// Judges Services by the port at which they reach running Pods that `headgate inject` changed, in
/// a cluster of this version.
pub(crate) fn services(
    services: &[Service],
    injected: &[ObjectMeta],
    version: Option<&str>,
) -> Finding {
    let is_before = |v: (u32, u32)| v < (1, SIDECAR_PORTS_SINCE);
    let finds_no_name = version.and_then(minor).is_some_and(is_before);
    let (mut passing, mut unreachable) = (Vec::new(), Vec::new());
    for service in services {
        let Some(spec) = &service.spec else { continue };
        let selector = spec.selector.clone().unwrap_or_default();
        let selects = |pod: &&ObjectMeta| {
            let has = |(key, value)| {
                pod.labels
                    .as_ref()
                    .is_some_and(|l| l.get(key) == Some(value))
            };
            pod.namespace == service.metadata.namespace && selector.iter().all(has)
        };
        if selector.is_empty() {
            continue;
        }
        let annotations = injected.iter().filter(selects).flat_map(|p| &p.annotations);
        let (apps, names): (BTreeSet<i32>, BTreeSet<String>) = annotations
            .filter_map(|a| injected_ports(a.get(INJECTED_ANNOTATION)?))
            .map(|(app, name)| (i32::from(app), name))
            .unzip();
        // Its clients find the Pods' addresses in DNS, and choose the port themselves.
        let is_headless = spec.cluster_ip.as_deref() == Some("None");
        let ports = spec.ports.iter().flatten();
        for port in ports.filter(|p| matches!(p.protocol.as_deref(), None | Some("TCP"))) {
            let target = port.target_port.clone();
            let (among, target) = match target.unwrap_or(IntOrString::Int(port.port)) {
                IntOrString::Int(number) if apps.contains(&number) => {
                    (&mut passing, number.to_string())
                }
                IntOrString::String(name) if finds_no_name && names.contains(&name) => {
                    (&mut unreachable, name)
                }
                IntOrString::String(name) if is_headless && names.contains(&name) => {
                    (&mut passing, format!("{name}, headless"))
                }
                _ => continue,
            };
            let name = service.metadata.name.as_deref().unwrap_or_default();
            let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
            among.push(format!("{namespace}/{name} (targetPort {target})"));
        }
    }
    match (unreachable.as_slice(), passing.as_slice()) {
        ([], []) => Finding::ok("none bypasses Envoy"),
        ([], passing) => Finding::warning(
            counted(passing, "bypass Envoy"),
            "name the port in the workload, and set targetPort to this name; to clients of a \
             headless Service, give Envoy's port",
        ),
        (unreachable, _) => Finding::error(
            counted(
                unreachable,
                "can't resolve a sidecar's port by name, which needs Kubernetes 1.33",
            ),
            "upgrade the cluster, or remove the sidecars: headgate uninject",
        ),
    }
}

/// The versions that the API server serves of each kind, and their schema as text. A kind is
/// written as `plural.group`.
pub(crate) type Served = BTreeMap<&'static str, (Vec<String>, String)>;

/// The version labels of the running programs of a control plane, with `None` for a program without
/// the label. The set is empty if no program was found, because some control planes run outside of
/// the cluster.
pub(crate) type Versions = BTreeSet<Option<String>>;

/// Returns these versions in one line.
fn named(versions: &Versions) -> String {
    let name = |v: &Option<String>| v.clone().unwrap_or("without a version".to_owned());
    versions.iter().map(name).collect::<Vec<_>>().join(" and ")
}

/// The first version of Envoy Gateway, major and minor, that runs the native filter.
const GATEWAY_NATIVE_SINCE: (u32, u32) = (1, 9);

/// The kinds of Istio that the operator writes or wrote.
pub(crate) const ISTIO: [&str; 3] = [
    "trafficextensions.extensions.istio.io",
    "wasmplugins.extensions.istio.io",
    "envoyfilters.networking.istio.io",
];
/// The kind of Envoy Gateway that the operator writes.
pub(crate) const EXTENSION_POLICY: &str = "envoyextensionpolicies.gateway.envoyproxy.io";

/// Judges the kinds of Istio that the operator writes. CRDs are upgraded before istiod, so the
/// verdict also depends on the running versions of istiod.
pub(crate) fn istio(served: &Served, is_native: bool, running: &Versions) -> Finding {
    let has = |kind: &str, version: &str| {
        let found = served.get(kind);
        found.is_some_and(|(all, _)| all.iter().any(|v| v == version))
    };
    let extension = has(ISTIO[0], "v1alpha1");
    let plugin = has(ISTIO[1], "v1alpha1");
    let filter = has(ISTIO[2], "v1alpha3");
    let upgrade = "install or upgrade Istio, or turn delivery.istio off in the chart's values";
    let error = |why: &str| Finding::error(why.to_owned(), upgrade);
    let istiod = format!("istiod {}", named(running));
    let has_older = running.iter().any(|version| is_older(version.as_deref()));
    match (extension, plugin) {
        (false, false) => error("Istio's CRDs aren't installed, and delivery for Istio is on"),
        _ if is_native && !filter => error("Istio serves no EnvoyFilter v1alpha3"),
        (false, true) if is_native => error("the native filter needs Istio 1.30 or newer"),
        _ if is_native && has_older => error(&format!(
            "the native filter needs Istio 1.30 or newer, and {istiod} runs"
        )),
        _ if is_native && !running.is_empty() => Finding::ok(format!("EnvoyFilter for {istiod}")),
        _ if is_native => Finding::ok("its CRDs are of 1.30 or newer (EnvoyFilter)"),
        (true, _) if has_older => Finding::ok(format!("WasmPlugin for {istiod}")),
        (true, _) if !running.is_empty() => Finding::ok(format!("TrafficExtension for {istiod}")),
        (true, _) => Finding::ok("its CRDs are of 1.30 or newer (TrafficExtension)"),
        (false, true) => Finding::ok("its CRDs are older than 1.30 (WasmPlugin)"),
    }
}

/// Judges the kind of Envoy Gateway that the operator writes.
pub(crate) fn envoy_gateway(served: &Served, is_native: bool, running: &Versions) -> Finding {
    let upgrade = "install or upgrade Envoy Gateway, or turn delivery.envoyGateway off in the \
                   chart's values";
    let error = |why: &str| Finding::error(why.to_owned(), upgrade);
    let found = served.get(EXTENSION_POLICY);
    let mut versions = running.iter().flatten();
    let has_older = versions.any(|version| is_before(version, GATEWAY_NATIVE_SINCE));
    match found.filter(|(all, _)| all.iter().any(|v| v == "v1alpha1")) {
        None => error("its CRDs aren't installed, and delivery for Envoy Gateway is on"),
        Some(_) if is_native && has_older => error(&format!(
            "the native filter needs Envoy Gateway 1.9 or newer, and {} runs",
            named(running)
        )),
        Some((_, schema)) if is_native && !schema.contains("dynamicModule") => {
            error("the native filter needs Envoy Gateway 1.9 or newer")
        }
        Some(_) if running.is_empty() => Finding::ok("EnvoyExtensionPolicy v1alpha1 is served"),
        Some(_) => Finding::ok(format!(
            "EnvoyExtensionPolicy v1alpha1 for Envoy Gateway {}",
            named(running)
        )),
    }
}

#[cfg(test)]
mod tests;
