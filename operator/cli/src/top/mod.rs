//! `headgate top`: requests at Envoys, live.
//!
//! Dashboards need a Prometheus and show a minute later. This asks the admin interfaces of proxies,
//! and needs nothing else: to try out a policy, or to find the cause of a current problem.
//!
//! In layers, of which only the outer ones wait or draw: [`client`] asks, [`sample`] and
//! [`histogram`] read a response, [`fleet`] and [`history`] keep the last ones, [`view`] computes
//! the values to show, [`grid`] makes rows of them, and [`text`] prints them or [`live`],
//! [`screen`] and [`render`] show them in a terminal.

pub mod client;
pub mod fleet;
mod format;
pub mod grid;
pub mod histogram;
pub mod history;
pub mod live;
pub mod place;
pub mod pods;
pub mod render;
pub mod sample;
pub mod screen;
pub mod text;
pub mod view;
pub mod watch;

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use clap::Args;
use tokio::sync::watch::{Receiver, channel};
use tokio::time::{sleep, timeout};

use self::fleet::Fleet;
use self::grid::{Choice, Order, Tab};
use self::place::Place;
use self::pods::Selection;
use self::view::{State, View};
use self::watch::Source;
use super::cluster::ClusterArgs;
use super::status::OutputFormat;
use super::{Output, print};

/// The default admin address of `headgate bootstrap`.
const LOCAL: &str = "127.0.0.1:9901";
/// Shortest time between two responses.
const SHORTEST: Duration = Duration::from_millis(100);
/// Default time between two responses.
const INTERVAL: &str = "2s";
/// Default time that rates are over: two of the periods in which Envoy adds to its histograms.
const WINDOW: &str = "10s";

/// Shows live requests by policy and type, workflows, and refusals with their reasons.
///
/// Rates and percentiles are over the last 10 seconds (--window). With --once, exits with code 1 if
/// a proxy can't be reached.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// Admin address of an Envoy, HOST:PORT or unix:/PATH; may be repeated [default without a
    /// kubeconfig: 127.0.0.1:9901]
    #[arg(
        long,
        value_name = "ADDRESS",
        conflicts_with_all = [
            "namespace",
            "all_namespaces",
            "selector",
            "kubeconfig",
            "context",
        ]
    )]
    pub proxy: Vec<Place>,
    /// Proxies of this namespace of a cluster [default: that of the kubeconfig's context]
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Proxies of all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Pods with these labels, such as app=search, instead of the proxies that the operators know:
    /// for Istio and Envoy Gateway
    #[arg(long, short = 'l', value_name = "LABELS")]
    pub selector: Option<String>,
    /// Port of Envoy's admin interface in Pods; 15000 with Istio, 19000 with Envoy Gateway
    #[arg(long, value_name = "PORT", default_value_t = 9901)]
    pub admin_port: u16,
    /// Time between two responses of a proxy
    #[arg(long, value_name = "DURATION", default_value = INTERVAL, value_parser = span)]
    pub interval: Duration,
    /// Time over which rates and percentiles are computed
    #[arg(long, value_name = "DURATION", default_value = WINDOW, value_parser = span)]
    pub window: Duration,
    /// View to show first, or with --once to print [default: types, and workflows if some exist]
    #[arg(long, value_name = "VIEW")]
    pub view: Option<Tab>,
    /// Order of rows
    #[arg(long, value_name = "ORDER", default_value = "hurt")]
    pub sort: Order,
    /// Part of the names of policies, types and workflows to show
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,
    /// Print the view once and exit, after the window has passed
    #[arg(long)]
    pub once: bool,
    /// Output format; json without --once is a line at every interval
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,
    /// The cluster to ask
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

fn span(text: &str) -> Result<Duration, String> {
    let span = headgate_api::Duration(text.to_owned()).parse();
    let span = span.map_err(|error| error.to_string())?;
    if span < SHORTEST {
        return Err("at least 100ms".to_owned());
    }
    Ok(span)
}

/// Shows or prints the view.
///
/// # Errors
/// Returns an error if the proxies can't be listed, or without a terminal to show them in.
pub fn run(args: &TopArgs) -> anyhow::Result<Output> {
    let live = !args.once && args.output == OutputFormat::Table;
    if live && !io::stdout().is_terminal() {
        bail!(
            "standard output is no terminal; add --once, or --output json for a line at every \
             interval"
        );
    }
    // A thread of its own, as the main one waits for keys.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("starting the runtime failed")?;
    let (source, remark) = runtime.block_on(source(args))?;
    let notes = remark.map_or_else(String::new, |r| format!("warning: {r}\n"));
    let interval = if args.once {
        args.window
    } else {
        args.interval
    };
    let (sender, fleet) = channel(Fleet::new(args.window.max(interval)));
    runtime.spawn(watch::follow(source, interval, sender));
    let mut output = match (args.once, args.output) {
        (true, _) => runtime.block_on(once(args, fleet))?,
        (false, OutputFormat::Json | OutputFormat::Yaml) => runtime.block_on(lines(args, fleet))?,
        (false, OutputFormat::Table) => {
            live::run(fleet, runtime.handle(), &choice(args), args.interval)?;
            Output::ok(String::new())
        }
    };
    output.notes.insert_str(0, &notes);
    // Without waiting for a DNS query that may be under way.
    runtime.shutdown_background();
    Ok(output)
}

fn choice(args: &TopArgs) -> Choice {
    Choice {
        tab: args.view.unwrap_or_default(),
        order: args.sort,
        reversed: false,
        filter: args.filter.clone(),
    }
}

async fn source(args: &TopArgs) -> anyhow::Result<(Source, Option<String>)> {
    let in_cluster = args.namespace.is_some()
        || args.all_namespaces
        || args.selector.is_some()
        || args.cluster.is_there();
    if !args.proxy.is_empty() {
        return Ok((Source::Places(args.proxy.clone()), None));
    }
    if !in_cluster {
        return Ok((Source::Places(vec![LOCAL.parse()?]), None));
    }
    let cluster = args.cluster.connect().await?;
    let namespace = match args.all_namespaces {
        true => None,
        false => Some(
            args.namespace
                .clone()
                .unwrap_or_else(|| cluster.namespace.clone()),
        ),
    };
    let selection = Selection {
        namespace,
        labels: args.selector.clone(),
        port: args.admin_port,
    };
    let found = pods::find(&cluster, &selection).await;
    let (first, mut remark) =
        found.context("for an Envoy of this machine, say --proxy 127.0.0.1:9901")?;
    if first.is_empty() && remark.is_none() {
        remark = Some(match &selection.namespace {
            Some(namespace) => format!("there are no proxies in namespace {namespace}"),
            None => "there are no proxies".to_owned(),
        });
    }
    let source = Source::Cluster {
        cluster: Box::new(cluster),
        selection,
        first,
    };
    Ok((source, remark))
}

/// Waits for two responses of each proxy, a window apart.
async fn once(args: &TopArgs, mut fleet: Receiver<Fleet>) -> anyhow::Result<Output> {
    let longest = args.window + 2 * client::TIMEOUT;
    let settled = |fleet: &Fleet| !fleet.proxies.is_empty() && fleet.is_settled();
    // After the timeout, the responses so far are shown.
    let _ = timeout(longest, fleet.wait_for(settled)).await;
    let view = View::new(&fleet.borrow(), None, Instant::now(), SystemTime::now());
    let table = || text::render(&view, &choice(args), args.view);
    let text = args.output.text(&view, table)?;
    let silent = view.proxies.iter().filter(|p| p.state != State::Answers);
    let notes: String = silent
        .map(|p| {
            let why = p.problem.as_deref().unwrap_or("no second answer in time");
            format!("warning: {}: {why}\n", p.proxy)
        })
        .collect();
    Ok(Output {
        text,
        ok: notes.is_empty() && !view.proxies.is_empty(),
        notes,
    })
}

/// Prints a line of JSON, or a document of YAML, at every interval, until the output is closed.
async fn lines(args: &TopArgs, fleet: Receiver<Fleet>) -> anyhow::Result<Output> {
    loop {
        sleep(args.interval).await;
        let view = View::new(&fleet.borrow(), None, Instant::now(), SystemTime::now());
        let text = match args.output {
            OutputFormat::Yaml => format!("---\n{}", serde_saphyr::to_string(&view)?),
            _ => serde_json::to_string(&view)? + "\n",
        };
        if !print(&text)? {
            return Ok(Output::ok(String::new()));
        }
    }
}
