//! `headgate status`: what became of the policies: in a cluster, or of a running `headgate run`.
//!
//! A cluster's answer has two sources. The API server has what became of each policy; the operators know the
//! proxies. Without an operator that answers, the first half is shown all the same.

pub mod text;
pub mod view;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::{Request, StatusCode, header};
use http_body_util::Empty;
use tokio::net::TcpStream;

use super::Output;
use super::cluster::{ClusterArgs, OperatorService};
use super::table::{Table, one_line};
use crate::endpoint::Endpoint;
use crate::http_client::exchange;
use crate::kubernetes::authorize::AUDIENCE;
use crate::xds::DEFAULT_SLOT;
use crate::xds::status::{self, PolicyReport, ProxyReport, Report};

/// Time for the whole exchange.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer, in bytes: 10,000 proxies take about 10 MB.
const MAX_ANSWER: usize = 64 << 20;
/// Where a `headgate run` of this machine answers unless told otherwise.
const LOCAL: &str = "127.0.0.1:18001";

/// Shows policies and proxies: of the cluster that the kubeconfig names, or of a running `headgate run`.
///
/// Ends with exit code 1 when a policy isn't accepted or isn't programmed.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Admin address of a `headgate run` to ask in place of a cluster [default, where there is no kubeconfig:
    /// 127.0.0.1:18001]
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["namespace", "all_namespaces", "kubeconfig", "context"])]
    pub admin: Option<Endpoint>,
    /// File with a token for --admin, where an operator in a cluster asks for one
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub token_file: Option<PathBuf>,
    /// Namespace [default: that of the kubeconfig's context]
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// All namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// How the answer looks
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// How the answer looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people.
    Table,
    /// All of it.
    Json,
}

/// Asks and formats the answer.
///
/// # Errors
/// Nothing answers at the address, or something else does.
pub fn run(args: &StatusArgs) -> anyhow::Result<Output> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime failed")?;
    let in_cluster = args.namespace.is_some() || args.all_namespaces || args.cluster.is_there();
    match &args.admin {
        None if in_cluster => runtime.block_on(of_cluster(args)),
        None => runtime.block_on(of_process(&LOCAL.parse()?, None, args.output)),
        Some(admin) => {
            let token = args.token_file.as_deref();
            runtime.block_on(of_process(admin, token, args.output))
        }
    }
}

async fn of_cluster(args: &StatusArgs) -> anyhow::Result<Output> {
    let cluster = args.cluster.connect().await?;
    let namespace = match (&args.namespace, args.all_namespaces) {
        (_, true) => None,
        (Some(namespace), false) => Some(namespace.as_str()),
        (None, false) => Some(cluster.namespace.as_str()),
    };
    let (policies, operators) = tokio::join!(cluster.policies(namespace), cluster.operators());
    let policies =
        policies.context("for a headgate run of this machine, say --admin 127.0.0.1:18001")?;
    let mut notes = String::new();
    let operators = operators.unwrap_or_else(|why| {
        notes = format!("warning: proxies are not shown: {why:#}\n");
        Vec::new()
    });
    if notes.is_empty() && !operators.iter().any(|o| o.report.is_ok()) {
        notes = format!(
            "warning: proxies are not shown: no operator answers at Service {}; name another with --operator\n",
            args.cluster.operator
        );
    }
    let view = view::View::new(&policies, &operators, namespace);
    let text = match args.output {
        OutputFormat::Table => text::render(&view, SystemTime::now()),
        OutputFormat::Json => serde_json::to_string_pretty(&view)? + "\n",
    };
    let ok = view.ok();
    Ok(Output { text, notes, ok })
}

async fn of_process(
    admin: &Endpoint,
    token: Option<&Path>,
    output: OutputFormat,
) -> anyhow::Result<Output> {
    let asked = tokio::time::timeout(TIMEOUT, fetch(admin, token)).await;
    let json =
        asked.map_err(|_| anyhow!("{admin} did not answer within {} s", TIMEOUT.as_secs()))??;
    let report: Report = serde_json::from_slice(&json)
        .with_context(|| format!("{admin} answered something else than a Headgate status"))?;
    Ok(Output {
        text: match output {
            OutputFormat::Json => String::from_utf8_lossy(&json).into_owned(),
            OutputFormat::Table => render(&report),
        },
        notes: String::new(),
        ok: ok(&report),
    })
}

/// Whether every policy is accepted and programmed. That no proxy asks for one is no mistake of the policy's.
fn ok(report: &Report) -> bool {
    let programmed = |p: &PolicyReport| p.programmed.status || p.programmed.reason == "NoProxies";
    report.problems.is_empty()
        && report
            .policies
            .iter()
            .all(|p| p.accepted.status && programmed(p))
}

async fn fetch(admin: &Endpoint, token: Option<&Path>) -> anyhow::Result<Bytes> {
    let stream = TcpStream::connect((admin.host.as_str(), admin.port)).await.map_err(|e| match e.kind() {
        ErrorKind::ConnectionRefused => anyhow!(
            "nothing listens on {admin}; start headgate run, or give its admin address with --admin HOST:PORT"
        ),
        _ => anyhow!("{admin}: {e}"),
    })?;
    let mut request = Request::get("/status").header(header::HOST, admin.to_string());
    if let Some(path) = token {
        let token = tokio::fs::read_to_string(path).await;
        let token = token.with_context(|| format!("--token-file {}", path.display()))?;
        request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
    }
    let not_ours =
        || format!("{admin} is no Headgate admin address; headgate run prints it when it starts");
    let response = exchange(stream, request.body(Empty::new())?, MAX_ANSWER);
    let response = response.await.with_context(not_ours)?;
    if let StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN = response.status() {
        let why = String::from_utf8_lossy(response.body());
        bail!(
            "{admin}: {}; --token-file FILE gives it one that kubectl makes: kubectl create token {} --namespace {} --audience {AUDIENCE}",
            one_line(why.trim()),
            OperatorService::default().name,
            OperatorService::default().namespace,
        );
    }
    if response.status() != StatusCode::OK {
        bail!("{} (it answered {})", not_ours(), response.status());
    }
    Ok(response.into_body())
}

/// The report as tables, and a line for everything that is not as it should be.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut policies = Table::new([
        "POLICY",
        "TARGET",
        "MODE",
        "ACCEPTED",
        "PROGRAMMED",
        "PROXIES",
        "REVISION",
    ]);
    for p in &report.policies {
        policies.row([
            p.name.clone(),
            shortened(p.targets.iter().map(ToString::to_string)),
            format!("{:?}", p.mode),
            condition(p.accepted.status, &p.accepted.reason, "Accepted"),
            condition(p.programmed.status, &p.programmed.reason, "Programmed"),
            share(p, report),
            dash(&p.revision),
        ]);
    }
    let targets = report
        .proxies
        .iter()
        .map(|p| (p, p.target.as_deref().unwrap_or_default()));
    let mut out = String::new();
    out += &policies.or("No policies.\n");
    out += "\n";
    out += &proxies("TARGET", targets);
    let remarks = remarks(report);
    if !remarks.is_empty() {
        out += "\n";
        out += &remarks.join("\n");
        out += "\n";
    }
    out
}

/// Proxies, each with what its place is known by, which has the head `place`.
fn proxies<'a>(place: &str, proxies: impl Iterator<Item = (&'a ProxyReport, &'a str)>) -> String {
    let mut table = Table::new([
        "PROXY", place, "PROTOCOL", "FILTER", "STATE", "POLICIES", "REVISION", "SINCE",
    ]);
    for (p, place) in proxies {
        table.row([
            stream(p),
            dash(place),
            format!("{} {}", p.transport.as_str(), p.variant.as_str()),
            dash(&p.filter),
            p.state.clone(),
            dash(&shortened(p.policies.iter().cloned())),
            dash(p.acked.as_ref().map_or("", |a| &a.revision)),
            p.disconnected
                .clone()
                .unwrap_or_else(|| p.connected.clone()),
        ]);
    }
    table.or("No proxies. headgate bootstrap writes a configuration for one.\n")
}

/// The proxy, and of a stream for other slots than the usual one these.
fn stream(p: &ProxyReport) -> String {
    match p.slots.as_slice() {
        [] => p.node.clone(),
        [only] if only == DEFAULT_SLOT => p.node.clone(),
        slots => format!("{} ({})", p.node, slots.join(", ")),
    }
}

fn share(policy: &PolicyReport, report: &Report) -> String {
    let (running, total) = status::share(&policy.name, &report.proxies);
    format!("{running}/{total}")
}

fn condition(status: bool, reason: &str, expected: &str) -> String {
    match (status, reason == expected) {
        (true, true) => "True".to_owned(),
        (true, false) => format!("True ({reason})"),
        (false, _) => format!("False ({reason})"),
    }
}

/// The first, and how many more there are.
fn shortened(mut names: impl Iterator<Item = String>) -> String {
    let first = names.next().unwrap_or_default();
    match names.count() {
        0 => first,
        more => format!("{first} +{more}"),
    }
}

fn dash(text: &str) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        text.to_owned()
    }
}

fn remarks(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    for p in &report.policies {
        if !p.accepted.status || p.accepted.message != "valid" {
            lines.push(format!(
                "{}: {}: {}",
                p.name, p.accepted.reason, p.accepted.message
            ));
        }
        if !p.programmed.status && p.programmed.reason != p.accepted.reason {
            lines.push(format!(
                "{}: {}: {}",
                p.name, p.programmed.reason, p.programmed.message
            ));
        }
    }
    lines.extend(report.proxies.iter().flat_map(proxy_remarks));
    lines.extend(
        report
            .problems
            .iter()
            .map(|p| format!("{}: {}", p.source, p.message)),
    );
    lines.iter().map(|line| one_line(line)).collect()
}

/// What is not as it should be with a proxy.
fn proxy_remarks(p: &ProxyReport) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(problem) = &p.problem {
        lines.push(format!("{}: {problem}", p.node));
    }
    if let Some(why) = &p.fallback {
        lines.push(format!(
            "{}: has the Wasm filter, not the native one: {why}",
            p.node
        ));
    }
    if let Some(nack) = &p.nack {
        let (time, revision) = (&nack.push.time, dash(&nack.push.revision));
        lines.push(format!(
            "{}: refused revision {revision} at {time}: {}",
            p.node, nack.message
        ));
    }
    lines
}
