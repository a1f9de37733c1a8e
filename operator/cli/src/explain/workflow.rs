//! A request's workflow in words: its name, its source, and its settings.

use headgate_core::config::{
    ResourceReport, SharingConfig, WorkflowConfig, WorkflowSource, WorkflowsConfig,
};
use headgate_mesh::engine::named;
use serde::Serialize;

use super::{ExplainArgs, Subject, duration};

/// Workflows without a rate of their own.
const OTHER: &str = "_other";

/// The workflow of a request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Workflow {
    pub(super) name: String,
    /// The source that named it, or that none did.
    found_by: String,
    /// The settings in words.
    does: Vec<String>,
}

impl Workflow {
    /// Returns all sentences about it.
    pub(super) fn sentences(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.found_by).chain(&self.does)
    }
}

/// Parses `NAMESPACE/KEY/KEY=VALUE`.
pub(super) fn metadata(text: &str) -> Result<(Vec<String>, String), String> {
    let right = "NAMESPACE/KEY=VALUE, such as envoy.filters.http.jwt_authn/claims/tenant=acme";
    let (path, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} has no =; {right}"))?;
    let path: Vec<String> = path.split('/').map(str::to_owned).collect();
    if path.len() < 2 || path.iter().any(String::is_empty) {
        return Err(format!("{text:?}; {right}"));
    }
    Ok((path, value.to_owned()))
}

/// Returns the workflow of this request, if the policy has workflows and the request doesn't bypass
/// admission.
pub(super) fn workflow(subject: &Subject<'_>, request: &ExplainArgs) -> Option<Workflow> {
    let config = subject.stage.workflows.as_ref()?;
    let kind = subject.type_config()?;
    let found = named(config, request, &kind.name);
    let (name, found_by) = match &found {
        Some((at, name)) => {
            let source = config.identify.get(*at).map(source).unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            (name, format!("found by {source}"))
        }
        None => {
            let sources: Vec<String> = config.identify.iter().map(source).collect();
            let unnamed = format!("named by none of: {}", sources.join(", "));
            (OTHER.to_owned(), unnamed)
        }
    };
    let own = config.workflows.get(&name);
    let mut does = Vec::new();
    if found.is_some() && own.is_none() {
        does.push(format!(
            "has a rate of its own if it is among the first {} workflows here; else it shares that \
             of {OTHER}",
            config.max_workflows
        ));
    }
    does.extend(rate(config, own));
    does.push(held(config, own));
    does.extend(trust(config));
    Some(Workflow {
        name,
        found_by,
        does,
    })
}

fn source(source: &WorkflowSource) -> String {
    match source {
        WorkflowSource::Baggage { key } => format!("baggage member {key}"),
        WorkflowSource::Header { name } => format!("header {name}"),
        WorkflowSource::Metadata { path } => format!("metadata {}", path.join("/")),
        WorkflowSource::Type => "its type".to_owned(),
    }
}

/// Describes how its rate is computed.
fn rate(config: &WorkflowsConfig, own: Option<&WorkflowConfig>) -> Vec<String> {
    let interval = duration(config.interval_us);
    let adaptive = |probe: &f64, max_utilization: &f64, fair: &str| {
        format!(
            "its rate rises by up to {probe} requests/s in {interval} while slots are in use less \
             than {} of the time; above that, {fair}",
            percent(*max_utilization)
        )
    };
    let local = match &config.sharing {
        SharingConfig::StaticGuarantees => {
            "its rate is its guarantee, or a part of what guarantees leave, by its weight"
                .to_owned()
        }
        SharingConfig::BottleneckFairness {
            probe,
            max_utilization,
        } => adaptive(
            probe,
            max_utilization,
            "slots are shared max-min fair (BottleneckFairness)",
        ),
        SharingConfig::DominantResource {
            probe,
            max_utilization,
            resource,
        } => {
            let (metric, by) = match &resource.report {
                ResourceReport::Orca { metric } => (metric, "ORCA load reports"),
                ResourceReport::ServerTiming { metric } => (metric, "server-timing"),
            };
            let fair = format!(
                "slots and {metric} ({} a second, reported by {by}) are shared so that the \
                 dominant shares are fair (DominantResource)",
                resource.capacity
            );
            adaptive(probe, max_utilization, &fair)
        }
    };
    let q = own.and_then(|w| w.quantile).unwrap_or(config.quantile);
    let which = match q {
        0.0 => "that of its slowest process".to_owned(),
        1.0 => "that of its fastest process".to_owned(),
        q => format!("the {q} quantile of those of its processes"),
    };
    let mut all = vec![
        local,
        format!(
            "it is no higher than services that are called for it can take: of each, {which}, \
             forgotten {} after it was announced",
            duration(config.rate_ttl_us)
        ),
    ];
    if !config.service_quantiles.is_empty() {
        let services: Vec<String> = (config.service_quantiles.iter())
            .map(|(name, q)| format!("{name} {q}"))
            .collect();
        all.push(format!(
            "quantiles of services go before: {}",
            services.join(", ")
        ));
    }
    if let Some(own) = own {
        let guarantee = own.guarantee.map(|rate| {
            format!("{rate} requests/s are let in whatever the fair share is (one proxy's part)")
        });
        all.extend(guarantee);
        if own.weight != 1.0 {
            all.push(format!("its weight in fair shares is {}", own.weight));
        }
    }
    all
}

/// Describes the treatment of requests above its rate.
fn held(config: &WorkflowsConfig, own: Option<&WorkflowConfig>) -> String {
    let deadline = match own.and_then(|w| w.deadline_us) {
        Some(us) => format!(
            "the request's own deadline, or {} from where it entered",
            duration(us)
        ),
        None => "the request's own deadline".to_owned(),
    };
    match config.max_queue_length {
        0 => "what exceeds its rate is refused at once (429, rate_limit)".to_owned(),
        length => format!(
            "what exceeds its rate waits, up to {length} requests and where {deadline} can still \
             be met; else it is refused (429, rate_limit)"
        ),
    }
}

/// Describes the trusted peers.
fn trust(config: &WorkflowsConfig) -> Option<String> {
    if config.edge {
        let edge = "rates, deadlines and progress in Headgate's headers are not believed: requests \
                    come from outside";
        return Some(edge.to_owned());
    }
    (!config.peers.is_empty()).then(|| format!("only {} are believed", config.peers.join(", ")))
}

/// Returns a ratio as a percentage, without the noise of binary fractions.
fn percent(ratio: f64) -> String {
    format!("{}%", (ratio * 1e6).round() / 1e4)
}
