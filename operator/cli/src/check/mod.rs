//! `headgate check`: checks whether an installation in a cluster is complete, and prints one line
//! for each finding.
//!
//! This module reads the data, and [`judge`] evaluates it. If the user lacks the permission for a
//! request, only the check that needs the request is skipped.

mod finding;
mod installation;
mod judge;
mod rights;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime};

use clap::Args;
use futures::future::{join_all, try_join_all};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use http::header;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::{Timestamp, fmt::rfc2822};
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use kube::core::PartialObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::status::view::View;
use finding::{Checked, Finding, Verdict};
use headgate_command::cluster::{Cluster, ClusterArgs, Operator, refused, timely};
use headgate_command::output::{Output, OutputFormat, block_on};
use headgate_controller::inject::INJECTED_ANNOTATION;
use headgate_controller::kubernetes::crd;
use headgate_controller::kubernetes::publish::CA_KEY;
use headgate_deliver::istio::VERSION_LABEL;
use headgate_deliver::readable::{Readable, list};
use headgate_deliver::settings::{ENVOY_GATEWAY_NAMESPACE, ISTIO_NAMESPACE};
use headgate_deliver::watch::api;
use installation::Installation;
use judge::{Served, Versions};

/// The suffix of the name of the operators' Service. The rest is the name of their Deployment.
const SERVICE_SUFFIX: &str = "-metrics";
/// The largest number of concurrent reviews of rights.
const REVIEWS: usize = 32;

/// The API of the metadata of objects of kind `K`.
type MetadataApi<K> = Api<Readable<PartialObjectMeta<K>>>;

/// Checks an installation in the kubeconfig's cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct CheckArgs {
    /// Namespace of the policies and Pods to check [default: all]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// All namespaces, as without --namespace
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputFormat,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// Runs the checks and formats their findings. Fails if one is an error.
///
/// # Errors
/// Returns an error if no cluster is configured.
pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<Output> {
    let findings = block_on(check(args))?;
    let is_error = |f: &Checked| f.finding.verdict == Verdict::Error;
    let text = args.output.text(&findings, || finding::table(&findings))?;
    Ok(Output::new(text, !findings.iter().any(is_error)))
}

async fn check(args: &CheckArgs) -> anyhow::Result<Vec<Checked>> {
    let cluster = args.cluster.connect().await?;
    let mut checks = Checks {
        cluster: &cluster,
        namespace: args.namespace.as_deref().filter(|_| !args.all_namespaces),
        version: None,
        time: (SystemTime::now(), Instant::now()),
        findings: Vec::new(),
    };
    if let Err(why) = checks.server().await {
        let fix = "see --kubeconfig and --context, and the network between here and the cluster";
        checks.add("api-server", Finding::error(format!("{why:#}"), fix));
        return Ok(checks.findings);
    }
    checks.definition().await?;
    let of_service = &args.cluster.operator;
    let name = of_service.name.strip_suffix(SERVICE_SUFFIX);
    let name = name.unwrap_or(&of_service.name);
    let found = checks.deployment(&of_service.namespace, name).await;
    match &found {
        Some(Some(operator)) => checks.installation(operator).await,
        // The operator isn't installed.
        Some(None) => {}
        None => {
            let unseen = Installation {
                name: name.to_owned(),
                namespace: of_service.namespace.clone(),
                ..Installation::default()
            };
            checks.lease(&unseen).await;
        }
    }
    let found = found.flatten();
    let operators = checks.operators(found.as_ref()).await;
    if let Some(operator) = &found {
        checks.module(operator, &operators).await;
    }
    checks.pods(&operators).await;
    checks.policies(&operators).await;
    Ok(checks.findings)
}

/// The state of the checks.
struct Checks<'a> {
    cluster: &'a Cluster,
    /// The only namespace to check.
    namespace: Option<&'a str>,
    /// The API server's version.
    version: Option<String>,
    /// A time on the API server's clock, and the moment at which it was received.
    time: (SystemTime, Instant),
    findings: Vec<Checked>,
}

impl Checks<'_> {
    /// Returns the current time on the API server's clock.
    fn now(&self) -> SystemTime {
        self.time.0 + self.time.1.elapsed()
    }

    fn add(&mut self, check: &'static str, finding: Finding) {
        self.findings.push(Checked { check, finding });
    }

    /// Returns the API server's answer. If the request fails, adds a finding and returns `None`.
    async fn read<T>(
        &mut self,
        check: &'static str,
        answer: impl Future<Output = kube::Result<T>>,
    ) -> Option<T> {
        let why = match timely(answer).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                self.add(check, Finding::skipped(status.message));
                return None;
            }
            Ok(Err(error)) => refused(&error),
            Err(late) => late,
        };
        self.add(
            check,
            Finding::error(format!("{why:#}"), "see the API server's log"),
        );
        None
    }

    fn all<K>(&self) -> Api<Readable<K>>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        api(&self.cluster.client(), self.namespace.unwrap_or_default())
    }

    async fn server(&mut self) -> anyhow::Result<()> {
        let response = self.cluster.get("/version", None).await?;
        let here = SystemTime::now();
        let date = response.headers().get(header::DATE);
        let date = date.and_then(|d| rfc2822::parse(d.to_str().ok()?).ok());
        let version: Value = serde_json::from_slice(response.body()).unwrap_or_default();
        self.version = version["gitVersion"].as_str().map(str::to_owned);
        self.add("api-server", judge::server(self.version.as_deref()));
        if let Some(date) = date {
            let date = date.timestamp().into();
            self.time = (date, Instant::now());
            self.add("clock", judge::clock("this machine's clock", here, date));
        }
        Ok(())
    }

    async fn definition(&mut self) -> anyhow::Result<()> {
        let api: Api<CustomResourceDefinition> = Api::all(self.cluster.client());
        if let Some(found) = self.read("crd", api.get_opt(crd::NAME)).await {
            self.add(
                "crd",
                judge::definition(found.as_ref(), &crd::definition()?),
            );
        }
        Ok(())
    }

    /// Returns `Some(None)` if the Deployment doesn't exist, and `None` if it can't be read.
    async fn deployment(&mut self, namespace: &str, name: &str) -> Option<Option<Installation>> {
        let api: Api<Deployment> = Api::namespaced(self.cluster.client(), namespace);
        let found = self.read("operator", api.get_opt(name)).await?;
        let found = found.map(Installation::of);
        let name = format!("{namespace}/{name}");
        self.add("operator", judge::deployment(&name, found.as_ref()));
        Some(found)
    }

    async fn installation(&mut self, operator: &Installation) {
        self.lease(operator).await;
        self.rights(operator).await;
        self.certificates(operator).await;
        let istio = ("istio", "istio-native");
        let namespace = operator.argument("istio-namespace");
        let namespace = namespace.unwrap_or(ISTIO_NAMESPACE);
        let istiods: MetadataApi<Pod> = api(&self.cluster.client(), namespace);
        // Pods that have ended are left out.
        let is_running = "status.phase!=Failed,status.phase!=Succeeded";
        let running = ListParams::default()
            .labels("app=istiod")
            .fields(is_running);
        let running = (istiods, running);
        self.control_plane(operator, istio, running, &judge::ISTIO, judge::istio)
            .await;
        let gateway = ("envoy-gateway", "envoy-gateway-native");
        let namespace = operator.argument("envoy-gateway-namespace");
        let namespace = namespace.unwrap_or(ENVOY_GATEWAY_NAMESPACE);
        // Envoy Gateway's chart sets the version label on the Deployment, not on its Pods.
        let gateways: MetadataApi<Deployment> = api(&self.cluster.client(), namespace);
        let running = ListParams::default().labels("control-plane=envoy-gateway");
        let running = (gateways, running);
        let names = [judge::EXTENSION_POLICY];
        self.control_plane(operator, gateway, running, &names, judge::envoy_gateway)
            .await;
    }

    async fn lease(&mut self, operator: &Installation) {
        if !operator.elects() {
            let alone = "without an election, the only operator leads";
            return self.add("leader", Finding::ok(alone));
        }
        let (namespace, name) = (&operator.namespace, operator.lease());
        let api: Api<Lease> = Api::namespaced(self.cluster.client(), namespace);
        if let Some(lease) = self.read("leader", api.get_opt(name)).await {
            let spec = lease.and_then(|lease| lease.spec);
            let name = format!("{namespace}/{name}");
            self.add("leader", judge::lease(&name, spec.as_ref(), self.now()));
        }
    }

    async fn rights(&mut self, operator: &Installation) {
        let api: Api<SubjectAccessReview> = Api::all(self.cluster.client());
        let api = &api;
        let needed = rights::needed(operator);
        let asked = needed.iter().map(|right| async move {
            let parameters = PostParams::default();
            let review = api.create(&parameters, &right.review(operator)).await?;
            let is_allowed = review.status.is_some_and(|s| s.allowed);
            kube::Result::Ok((!is_allowed).then(|| right.clone()))
        });
        let asked = stream::iter(asked)
            .buffered(REVIEWS)
            .try_collect::<Vec<_>>();
        if let Some(asked) = self.read("rights", asked).await {
            let lacking: Vec<_> = asked.into_iter().flatten().collect();
            let account = format!(
                "ServiceAccount {}/{}",
                operator.namespace, operator.service_account
            );
            self.add("rights", judge::rights(&account, needed.len(), &lacking));
        }
    }

    /// Checks the Secret with the operator's certificate or CA, and the published CA in each
    /// namespace.
    async fn certificates(&mut self, operator: &Installation) {
        if operator.argument("tls-cert").is_none() {
            let message = "the operator serves proxies without TLS: they prove no namespace";
            let fix = "set tls.mode in the chart's values";
            self.add("certificate", Finding::warning(message.to_owned(), fix));
            return;
        }
        let generated = operator.argument("tls-authority");
        let secret = generated.or(operator.secrets.first().map(String::as_str));
        let mut authority = None;
        if let Some(name) = secret {
            let namespace = &operator.namespace;
            let api: Api<Secret> = Api::namespaced(self.cluster.client(), namespace);
            if let Some(found) = self.read("certificate", api.get_opt(name)).await {
                let mut data = found.and_then(|s| s.data).unwrap_or_default();
                let certificate = data.remove("tls.crt").map(|pem| pem.0);
                let name = format!("Secret {namespace}/{name}");
                self.add(
                    "certificate",
                    judge::certificate(&name, certificate.as_deref(), self.now()),
                );
                let ca = match generated {
                    Some(_) => certificate,
                    None => data.remove("ca.crt").map(|pem| pem.0),
                };
                authority = ca.and_then(|pem| String::from_utf8(pem).ok());
            }
        }
        if let Some(name) = operator.argument("publish-ca") {
            self.published(name, operator, authority.as_deref()).await;
        }
    }

    async fn published(&mut self, name: &str, operator: &Installation, authority: Option<&str>) {
        let api = self.all::<ConfigMap>();
        let only = ListParams::default().fields(&format!("metadata.name={name}"));
        let Some(found) = self.read("published-ca", list(&api, &only)).await else {
            return;
        };
        let watched = operator.watched();
        let mut namespaces: Vec<String> = if watched.is_empty() {
            let api: MetadataApi<Namespace> = Api::all(self.cluster.client());
            let mut active = ListParams::default().fields("status.phase=Active");
            if let Some(selector) = operator.argument("namespace-selector") {
                active = active.labels(selector);
            }
            match self.read("published-ca", list(&api, &active)).await {
                Some(all) => all.iter().map(ResourceExt::name_any).collect(),
                None => return,
            }
        } else {
            watched.into_iter().map(str::to_owned).collect()
        };
        if let Some(only) = self.namespace {
            namespaces.retain(|namespace| namespace == only);
            if namespaces.is_empty() {
                return;
            }
        }
        let text = |map: ConfigMap| {
            let namespace = map.namespace().unwrap_or_default();
            Some((namespace, map.data?.remove(CA_KEY)?))
        };
        let found: BTreeMap<String, String> = found.items.into_iter().filter_map(text).collect();
        self.add(
            "published-ca",
            judge::published(name, &namespaces, &found, authority),
        );
    }

    /// Checks the CRDs of a control plane for which the operator may write objects, and the
    /// versions of its running programs. The versions are in the labels of the programs' objects.
    async fn control_plane<K>(
        &mut self,
        operator: &Installation,
        (plane, native): (&'static str, &'static str),
        (running, labelled): (MetadataApi<K>, ListParams),
        names: &[&'static str],
        judge: impl Fn(&Served, bool, &Versions) -> Finding,
    ) where
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        if !operator.adapters().contains(&plane) {
            self.add(plane, Finding::ok("delivery for it is off"));
            return;
        }
        let api: Api<CustomResourceDefinition> = Api::all(self.cluster.client());
        let all = try_join_all(names.iter().map(|name| api.get_opt(name)));
        let Some(all) = self.read(plane, all).await else {
            return;
        };
        let served = |definition: CustomResourceDefinition| {
            let versions = definition.spec.versions.into_iter().filter(|v| v.served);
            let versions: Vec<_> = versions.collect();
            let schema = serde_json::to_string(&versions).unwrap_or_default();
            (versions.into_iter().map(|v| v.name).collect(), schema)
        };
        let found = names.iter().zip(all);
        let served = found.filter_map(|(name, found)| Some((*name, served(found?))));
        let running = self.read(plane, list(&running, &labelled)).await;
        let running = running.into_iter().flat_map(|list| list.items);
        let labels = running.map(|object| object.metadata.labels.unwrap_or_default());
        let versions = labels.map(|mut labels| labels.remove(VERSION_LABEL));
        let is_native = operator.argument(native).is_some();
        self.add(
            plane,
            judge(&served.collect(), is_native, &versions.collect()),
        );
    }

    /// Checks the operators' reports and returns them.
    async fn operators(&mut self, found: Option<&Installation>) -> Vec<Operator> {
        let operators = self.cluster.operators().await.unwrap_or_else(|why| {
            self.add("reports", Finding::skipped(format!("{why:#}")));
            Vec::new()
        });
        for operator in &operators {
            match &operator.report {
                Ok(report) => {
                    if let Ok(time) = report.time.parse::<Timestamp>() {
                        let whose = format!("the clock of {}", operator.pod);
                        self.add("clock", judge::clock(&whose, time.into(), self.now()));
                    }
                }
                Err(why) => {
                    self.add(
                        "reports",
                        Finding::skipped(format!("{}: {why}", operator.pod)),
                    );
                }
            }
        }
        let reports: Vec<_> = operators.iter().flat_map(|o| &o.report).collect();
        let mut versions: BTreeSet<&str> = reports.iter().map(|r| r.version.as_str()).collect();
        if versions.is_empty() {
            versions.extend(found.and_then(|f| f.version.as_deref()));
        }
        self.add("version", judge::versions(&versions));
        if reports.is_empty() {
            self.add(
                "proxies",
                Finding::skipped("no operator's report can be read"),
            );
        } else {
            let proxies = reports.iter().flat_map(|r| &r.proxies);
            self.add("proxies", judge::proxies(proxies, self.now()));
        }
        operators
    }

    /// Checks that each operator serves the module that it reports, for control planes whose
    /// proxies download it.
    async fn module(&mut self, operator: &Installation, operators: &[Operator]) {
        let reporting: Vec<_> = { operators.iter() }
            .filter_map(|o| Some((o.pod.as_str(), o.report.as_ref().ok()?)))
            .collect();
        if operator.adapters().is_empty() || reporting.is_empty() {
            return;
        }
        let cluster = self.cluster;
        let asked = reporting.into_iter().map(|(pod, report)| async move {
            let (_, name) = pod.split_once('/').unwrap_or_default();
            let served = cluster.modules(name, operator.modules_port).await;
            (
                pod,
                report.module.hash.as_str(),
                served.map_err(|why| format!("{why:#}")),
            )
        });
        self.add("module", judge::module(&join_all(asked).await));
    }

    async fn pods(&mut self, operators: &[Operator]) {
        if !operators.iter().any(|o| o.report.is_ok()) {
            self.add("pods", Finding::skipped("no operator's report can be read"));
            return;
        }
        let api = self.all::<PartialObjectMeta<Pod>>();
        let running = ListParams::default().fields("status.phase=Running");
        let Some(pods) = self.read("pods", list(&api, &running)).await else {
            return;
        };
        let is_injected = |metadata: &kube::core::ObjectMeta| {
            let mut annotations = metadata.annotations.iter().flatten();
            annotations.any(|(key, _)| key == INJECTED_ANNOTATION)
                && metadata.deletion_timestamp.is_none()
        };
        let pods = pods.items.into_iter().map(|p| p.metadata);
        let pods: Vec<_> = pods.filter(is_injected).collect();
        let names: Vec<_> = { pods.iter() }
            .map(|p| {
                let name = |name: &Option<String>| name.clone().unwrap_or_default();
                (name(&p.namespace), name(&p.name))
            })
            .collect();
        self.add("pods", judge::pods(&names, operators));
        if pods.is_empty() {
            return;
        }
        let api = self.all::<Service>();
        if let Some(services) = self
            .read("services", list(&api, &ListParams::default()))
            .await
        {
            let version = self.version.as_deref();
            let judged = judge::services(&services.items, &pods, version);
            self.add("services", judged);
        }
    }

    /// Checks the policies' conditions.
    async fn policies(&mut self, operators: &[Operator]) {
        let api = self.cluster.policies_api(self.namespace);
        let listed = async {
            match list(&api, &ListParams::default()).await {
                // The check of the definition reports a missing CRD.
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
                listed => listed.map(Some),
            }
        };
        if let Some(Some(policies)) = self.read("policies", listed).await {
            let view = View::new(&policies.items, operators, Vec::new(), self.namespace);
            self.add("policies", judge::policies(&view));
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: CheckArgs,
    }

    #[test]
    fn all_namespaces_are_named_or_not() {
        let args = |line: &[&str]| Ok::<_, clap::Error>(Line::try_parse_from(line)?.args);
        assert_eq!(args(&["check", "-A"]).unwrap().namespace, None);
        args(&["check", "-A", "-n", "shop"]).unwrap_err();
    }
}
