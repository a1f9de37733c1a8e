//! `headgate status`: what became of the policies, from a running `headgate run`.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::table::Table;
use crate::endpoint::Endpoint;
use crate::xds::status::{PolicyReport, ProxyReport, Report};

/// Time for the whole exchange.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer, in bytes: 10,000 proxies take about 10 MB.
const MAX_ANSWER: usize = 64 << 20;

/// Shows the policies and proxies of a running `headgate run`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Admin address of `headgate run`
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:18001")]
    pub admin: Endpoint,
    /// How the answer looks
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,
}

/// How the answer looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people.
    Table,
    /// The whole report.
    Json,
}

/// Asks for the report and formats it.
///
/// # Errors
/// Nothing answers at the address, or something else does.
pub fn run(args: &StatusArgs) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime failed")?;
    let asked = runtime.block_on(async { tokio::time::timeout(TIMEOUT, fetch(&args.admin)).await });
    let json = asked.map_err(|_| {
        anyhow!(
            "{} did not answer within {} s",
            args.admin,
            TIMEOUT.as_secs()
        )
    })??;
    if args.output == OutputFormat::Json {
        return Ok(String::from_utf8_lossy(&json).into_owned());
    }
    let report: Report = serde_json::from_slice(&json).with_context(|| {
        format!(
            "{} answered something else than a Headgate status",
            args.admin
        )
    })?;
    Ok(render(&report))
}

async fn fetch(admin: &Endpoint) -> anyhow::Result<Bytes> {
    let stream = TcpStream::connect((admin.host.as_str(), admin.port)).await.map_err(|e| match e.kind() {
        ErrorKind::ConnectionRefused => anyhow!(
            "nothing listens on {admin}; start headgate run, or give its admin address with --admin HOST:PORT"
        ),
        _ => anyhow!("{admin}: {e}"),
    })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get("/status")
        .header(header::HOST, admin.to_string())
        .body(Empty::<Bytes>::new())?;
    let not_ours =
        || format!("{admin} is no Headgate admin address; headgate run prints it when it starts");
    let response = sender.send_request(request).await.with_context(not_ours)?;
    if response.status() != StatusCode::OK {
        bail!("{} (it answered {})", not_ours(), response.status());
    }
    let body = Limited::new(response.into_body(), MAX_ANSWER)
        .collect()
        .await;
    Ok(body
        .map_err(|e| anyhow!("reading the status from {admin} failed: {e}"))?
        .to_bytes())
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
    let mut proxies = Table::new([
        "PROXY", "TARGET", "PROTOCOL", "STATE", "POLICIES", "REVISION", "SINCE",
    ]);
    for p in &report.proxies {
        proxies.row([
            p.node.clone(),
            p.target.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{} {}", p.transport.as_str(), p.variant.as_str()),
            p.state.clone(),
            dash(&shortened(p.policies.iter().cloned())),
            dash(p.acked.as_ref().map_or("", |a| &a.revision)),
            p.disconnected
                .clone()
                .unwrap_or_else(|| p.connected.clone()),
        ]);
    }
    let mut out = String::new();
    out += &policies.or("No policies.\n");
    out += "\n";
    out += &proxies.or("No proxies. headgate bootstrap writes a configuration for one.\n");
    let remarks = remarks(report);
    if !remarks.is_empty() {
        out += "\n";
        out += &remarks.join("\n");
        out += "\n";
    }
    out
}

fn share(policy: &PolicyReport, report: &Report) -> String {
    let to_run = |p: &&ProxyReport| p.policies.contains(&policy.name);
    let total = report.proxies.iter().filter(to_run).count();
    let running = report
        .proxies
        .iter()
        .filter(to_run)
        .filter(|p| p.state == "Running")
        .count();
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
    for p in &report.proxies {
        if let Some(problem) = &p.problem {
            lines.push(format!("{}: {problem}", p.node));
        }
        if let Some(nack) = &p.nack {
            let (time, revision) = (&nack.push.time, dash(&nack.push.revision));
            lines.push(format!(
                "{}: refused revision {revision} at {time}: {}",
                p.node, nack.message
            ));
        }
    }
    lines.extend(
        report
            .problems
            .iter()
            .map(|p| format!("{}: {}", p.source, p.message)),
    );
    lines
}
