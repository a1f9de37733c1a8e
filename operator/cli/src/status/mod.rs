//! `headgate status`: shows the state of the policies of a cluster, or of a running `headgate run`.
//!
//! The status of a cluster has two sources. The API server has the state of each policy, and the
//! objects that carry policies to the proxies of other control planes. The operators report the
//! proxies that they program. The part from the API server is shown even if no operator answers.

mod follow;
mod text;
pub(crate) mod view;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use clap::Args;
use http::{Request, StatusCode, header};
use http_body_util::Empty;
use tokio::net::TcpStream;

use headgate_api::Duration as Text;
use headgate_command::cluster::{Cluster, ClusterArgs, MAX_ANSWER, OPERATOR, TIMEOUT};
use headgate_command::output::{Output, OutputFormat, block_on};
use headgate_command::table::one_line;
use headgate_controller::endpoint::Endpoint;
use headgate_controller::kubernetes::resource::PolicyResource;
use headgate_controller::report::Report;
use headgate_deliver::http_client::exchange;
use headgate_xds::review::authorize::AUDIENCE;

/// The default admin address of a `headgate run` on this machine.
const LOCAL: &str = "127.0.0.1:18001";

/// Shows the policies and proxies of the kubeconfig's cluster, or of a running `headgate run`.
#[derive(Debug, Clone, Args)]
pub(crate) struct StatusArgs {
    /// Name of a policy [default: all]
    pub(crate) policy: Option<String>,
    /// Admin address of a `headgate run` to query instead of a cluster [default without a
    /// kubeconfig: 127.0.0.1:18001]
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = OF_CLUSTERS)]
    pub(crate) admin: Option<Endpoint>,
    /// File with a token for --admin, if an operator in a cluster requires one
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub(crate) token_file: Option<PathBuf>,
    /// Namespace [default: that of the kubeconfig's context]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// All namespaces
    #[arg(long, short = 'A', conflicts_with_all = ["namespace", "policy"])]
    pub(crate) all_namespaces: bool,
    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputFormat,
    /// Print the state again whenever a policy or its status changes
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// Wait until policies exist and all of them are programmed; without --watch, print only the
    /// final state
    #[arg(long)]
    pub(crate) wait: bool,
    /// Time limit of --wait
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = Text::above_zero,
        requires = "wait"
    )]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// Arguments that apply only to clusters, not to a `headgate run`.
const OF_CLUSTERS: [&str; 7] = [
    "policy",
    "namespace",
    "all_namespaces",
    "watch",
    "wait",
    "kubeconfig",
    "context",
];

/// Fetches and formats the status.
///
/// # Errors
/// Returns an error if the API server or the address doesn't respond, or if another program does.
pub(crate) fn run(args: &StatusArgs) -> anyhow::Result<Output> {
    let in_cluster = args.policy.is_some()
        || args.watch
        || args.wait
        || args.namespace.is_some()
        || args.all_namespaces
        || args.cluster.is_configured();
    if args.admin.is_none() && in_cluster {
        return block_on(of_cluster(args));
    }
    let local = LOCAL.parse()?;
    let admin = args.admin.as_ref().unwrap_or(&local);
    block_on(of_process(admin, args.token_file.as_deref(), args.output))
}

async fn of_cluster(args: &StatusArgs) -> anyhow::Result<Output> {
    let cluster = args.cluster.connect().await?;
    let own = args.namespace.as_ref().unwrap_or(&cluster.namespace);
    let namespace = (!args.all_namespaces).then_some(own.as_str());
    if args.watch || args.wait {
        return follow::follow(&cluster, args, namespace).await;
    }
    let policies = cluster.policies(namespace, args.policy.as_deref()).await;
    let policies =
        policies.context("for a headgate run on this machine, use --admin 127.0.0.1:18001")?;
    if let (Some(name), []) = (&args.policy, policies.as_slice()) {
        bail!(
            "AdmissionPolicy {}/{name} doesn't exist",
            namespace.unwrap_or_default()
        );
    }
    answer(&cluster, args, namespace, &policies).await
}

/// Returns the output about these policies, which are those of `namespace` or of all namespaces.
async fn answer(
    cluster: &Cluster,
    args: &StatusArgs,
    namespace: Option<&str>,
    policies: &[PolicyResource],
) -> anyhow::Result<Output> {
    let (operators, objects) = tokio::join!(cluster.operators(), cluster.objects(namespace));
    let mut notes = String::new();
    let operators = operators.unwrap_or_else(|why| {
        notes = format!("warning: proxies are not shown: {why:#}\n");
        Vec::new()
    });
    if notes.is_empty() && !operators.iter().any(|o| o.report.is_ok()) {
        notes = format!(
            "warning: proxies are not shown: no operator answers at Service {}; name another with \
             --operator\n",
            args.cluster.operator
        );
    }
    if let (Some(namespace), []) = (namespace, policies) {
        notes += &format!(
            "warning: namespace {namespace} has no policies; --all-namespaces shows all\n"
        );
    }
    let view = view::View::new(policies, &operators, objects, namespace);
    for (kind, why) in &view.hidden {
        notes += &format!("warning: {kind} objects are not shown: {why}\n");
    }
    let table = || text::render(&view, SystemTime::now());
    Ok(Output {
        text: args.output.text(&view, table)?,
        notes,
        ok: view.ok(),
    })
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
        .with_context(|| format!("the answer of {admin} is not a Headgate status"))?;
    let view = view::View::of_process(&report);
    let text = output.text(&report, || text::render(&view, SystemTime::now()))?;
    Ok(Output::new(text, view.ok()))
}

async fn fetch(admin: &Endpoint, token: Option<&Path>) -> anyhow::Result<Bytes> {
    let stream = TcpStream::connect((admin.host.as_str(), admin.port))
        .await
        .map_err(|e| match e.kind() {
            ErrorKind::ConnectionRefused => anyhow!(
                "nothing listens on {admin}; start headgate run, or give its admin address with \
             --admin HOST:PORT"
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
        let (namespace, name) = OPERATOR.split_once('/').unwrap_or_default();
        bail!(
            "{admin}: {}; give one with --token-file FILE: kubectl create token {} --namespace {} \
             --audience {AUDIENCE}",
            one_line(why.trim()),
            name,
            namespace,
        );
    }
    if response.status() == StatusCode::SERVICE_UNAVAILABLE {
        // An operator that isn't ready says what it waits for.
        let why = String::from_utf8_lossy(response.body());
        bail!(
            "{admin} answered {}: {}",
            response.status(),
            one_line(why.trim())
        );
    }
    if response.status() != StatusCode::OK {
        bail!("{} (it answered {})", not_ours(), response.status());
    }
    Ok(response.into_body())
}
