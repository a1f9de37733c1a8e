//! `headgate top`: live statistics of the requests at Envoys.
//!
//! Dashboards need Prometheus, and their values are up to a minute old. This command needs only the
//! proxies' admin interfaces. It is for trying out a policy, or for finding the cause of a current
//! problem.
//!
//! The code is in layers, of which only the outer ones wait or draw. `client` sends requests,
//! `sample` and `histogram` parse responses, `fleet` keeps the last responses, `view` computes the
//! values to show, `table` and `cells` turn them into tables, and `screen` shows these in a
//! terminal.

mod cells;
pub mod client;
mod fleet;
mod histogram;
mod pods;
pub mod sample;
mod screen;
mod table;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use headgate_command::cluster::ClusterArgs;
use headgate_command::output::{Output, OutputFormat, block_on, document, print};
use serde_json::json;
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

use client::AdminAddress;
use fleet::Fleet;
use pods::Selection;
use table::Choice;
use view::ANSWERS;

/// The default admin address of `headgate bootstrap`.
const LOCAL: &str = "127.0.0.1:9901";
/// The shortest time between two responses.
const SHORTEST: Duration = Duration::from_millis(100);
/// The default time between two responses.
const INTERVAL: &str = "2s";
/// The default time over which rates are computed. It is two of the periods after which Envoy adds
/// to its histograms.
const WINDOW: &str = "10s";
/// The arguments that select proxies of a cluster.
const OF_CLUSTERS: [&str; 5] = [
    "namespace",
    "all_namespaces",
    "selector",
    "kubeconfig",
    "context",
];

/// Shows live requests by policy and type, workflows, and refusals with their reasons.
///
/// Rates and percentiles are over the last 10 seconds (--window). With --once, exits with code 1 if
/// a proxy can't be reached.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// Admin address of an Envoy, HOST:PORT or unix:/PATH; may be repeated [default without a
    /// kubeconfig: 127.0.0.1:9901]
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = OF_CLUSTERS)]
    pub proxy: Vec<AdminAddress>,
    /// Namespace of the proxies in a cluster [default: that of the kubeconfig's context]
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Proxies of all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Label selector of the proxies' Pods, such as app=search, for Istio and Envoy Gateway. Pods
    /// that terminate are left out. By default the proxies are those that the operators know
    #[arg(long, short = 'l', value_name = "LABELS")]
    pub selector: Option<String>,
    /// Port of Envoy's admin interface in Pods; 15000 with Istio, 19000 with Envoy Gateway
    #[arg(long, value_name = "PORT", default_value_t = 9901)]
    pub admin_port: u16,
    /// Interval between two queries of a proxy
    #[arg(long, value_name = "DURATION", default_value = INTERVAL, value_parser = span)]
    pub interval: Duration,
    /// Window over which rates and percentiles are computed
    #[arg(long, value_name = "DURATION", default_value = WINDOW, value_parser = span)]
    pub window: Duration,
    /// The rows to show
    #[command(flatten)]
    pub choice: Choice,
    /// Print the view once, after the window has passed, and exit
    #[arg(long)]
    pub once: bool,
    /// Output format; without --once, json prints one line per interval
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,
    /// The cluster to ask
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

fn span(text: &str) -> Result<Duration, String> {
    match headgate_api::Duration::above_zero(text)? {
        span if span < SHORTEST => Err("at least 100ms".to_owned()),
        span => Ok(span),
    }
}

/// Shows or prints the view.
///
/// # Errors
/// Returns an error if the proxies can't be listed, or if there is no terminal.
pub fn run(args: &TopArgs) -> anyhow::Result<Output> {
    let live = !args.once && args.output == OutputFormat::Table;
    if live && !io::stdout().is_terminal() {
        bail!(
            "standard output is no terminal; add --once, or --output json for a line at every \
             interval"
        );
    }
    block_on(top(args))
}

async fn top(args: &TopArgs) -> anyhow::Result<Output> {
    let selection = selection(args).await?;
    let (places, remark) = match &selection {
        Some(pods) => { pods.find().await }
            .context("for an Envoy on this machine, use --proxy 127.0.0.1:9901")?,
        None if args.proxy.is_empty() => (vec![AdminAddress::Tcp(LOCAL.parse()?)], None),
        None => (args.proxy.clone(), None),
    };
    let interval = if args.once {
        args.window
    } else {
        args.interval
    };
    if args.once && !places.is_empty() && io::stderr().is_terminal() {
        let window = headgate_api::Duration::from(args.window);
        eprintln!("Counting requests for {window} (--window)");
    }
    let fleet = fleet::follow(places, selection, interval, args.window.max(interval));
    let mut output = Output::ok(String::new());
    match args.output {
        _ if args.once => output = once(args, fleet).await?,
        OutputFormat::Table => screen::run(fleet, args.choice.clone()).await?,
        OutputFormat::Json | OutputFormat::Yaml => lines(args, fleet).await?,
    }
    if let Some(remark) = remark {
        output.notes.insert_str(0, &format!("warning: {remark}\n"));
    }
    Ok(output)
}

/// Returns the selection of Pods to watch, or `None` for proxies outside of a cluster.
async fn selection(args: &TopArgs) -> anyhow::Result<Option<Selection>> {
    let in_cluster = args.namespace.is_some()
        || args.all_namespaces
        || args.selector.is_some()
        || args.cluster.is_configured();
    if !args.proxy.is_empty() || !in_cluster {
        return Ok(None);
    }
    let cluster = args.cluster.connect().await?;
    let own = args.namespace.as_ref().unwrap_or(&cluster.namespace);
    Ok(Some(Selection {
        namespace: (!args.all_namespaces).then(|| own.clone()),
        labels: args.selector.clone(),
        port: args.admin_port,
        cluster,
    }))
}

/// Waits for two responses of each proxy, a window apart, and prints the view.
async fn once(args: &TopArgs, mut fleet: Receiver<Fleet>) -> anyhow::Result<Output> {
    let longest = args.window + 2 * client::TIMEOUT;
    // After the timeout, the view has the responses so far.
    let _ = timeout(longest, fleet.wait_for(Fleet::is_settled)).await;
    let view = view::current(&fleet.borrow(), None);
    let text = args
        .output
        .text(&view, || table::printed(&view, &args.choice))?;
    let silent = view::each(&view["proxies"]).filter(|p| p["state"] != ANSWERS);
    let notes = silent.map(|p| {
        let why = p["problem"].as_str().unwrap_or("no second answer in time");
        format!("warning: {}: {why}\n", view::field(p, "proxy"))
    });
    let notes: String = notes.collect();
    let ok = notes.is_empty() && view["proxies"] != json!([]);
    Ok(Output { text, notes, ok })
}

/// Prints a line of JSON, or a document of YAML, at every interval, until the output is closed.
async fn lines(args: &TopArgs, fleet: Receiver<Fleet>) -> anyhow::Result<()> {
    loop {
        sleep(args.interval).await;
        let view = view::current(&fleet.borrow(), None);
        let text = match args.output {
            OutputFormat::Yaml => document(&view)?,
            _ => format!("{view}\n"),
        };
        if !print(&text)? {
            return Ok(());
        }
    }
}
