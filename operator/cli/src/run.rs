//! `headgate run`: serves the policies of a folder or of a cluster to proxies.

mod admission;
mod injection;
mod listen;
mod source;
mod tls;

use std::io::{self, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, info, warn};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::module::{install, module_file};
use headgate_api::plan::Plan;
use headgate_controller::admin::{Admin, View};
use headgate_controller::kubernetes::operate::{Operator, Shared};
use headgate_controller::metrics::Metrics;
use headgate_controller::modules;
use headgate_xds::module::{self, Kind, Module, Modules};
use headgate_xds::registry::Registry;
use headgate_xds::tls::Tls;
use headgate_xds::{AdmissionServer, Limits, Server};

use injection::InjectionArgs;
use listen::listen;
use source::{Source, SourceArgs};
use tls::TlsArgs;

/// The number of open files besides the proxies' connections. These files are watches, listeners,
/// and clients of the other addresses.
const OTHER_FILES: u64 = 512;
/// The time that streams have to end after a signal.
const GRACE: Duration = Duration::from_secs(5);
/// The interval between log lines while waiting for the first plan.
const REMINDER: Duration = Duration::from_secs(10);

/// Serves policies to proxies over xDS, and follows their changes.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Address of the xDS server for proxies; port 0 selects a free port
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:18000")]
    pub(crate) xds: SocketAddr,
    /// Maximum number of proxies' connections, of which one namespace may have at most half
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 4_096,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(crate) max_connections: u32,
    /// Address for `headgate status`, /healthz, /readyz and /metrics. With --kubernetes, /status
    /// and /metrics require a bearer token whose user may `get` them as nonResourceURLs, unless the
    /// address is a loopback address
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:18001")]
    pub(crate) admin: SocketAddr,
    /// Address for /healthz and /readyz only, so that clients of --admin can't block probes
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) probes: Option<SocketAddr>,
    /// Address that serves the modules over HTTP as /modules/SHA256.wasm and .so, for Istio and
    /// Envoy Gateway
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) modules: Option<SocketAddr>,
    /// Address of the class admission server, for policies with `classAdmission.method:
    /// Centralized`. It uses TLS if --xds does. With --kubernetes, only the leader serves it
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) admission: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) injection: InjectionArgs,
    /// File of the Wasm module; replacing the file upgrades proxies [default: dist/headgate.wasm,
    /// else headgate.wasm beside this program]
    #[arg(long, value_name = "PATH", env = "HEADGATE_WASM")]
    pub(crate) wasm: Option<PathBuf>,
    /// File of the native module, for proxies with `headgate bootstrap --filter native` that can
    /// load it; replacing the file upgrades them. Other proxies get --wasm
    #[arg(long, value_name = "PATH", env = "HEADGATE_NATIVE")]
    pub(crate) native: Option<PathBuf>,
    /// Folder from which proxies load modules; they must see it under the same path [default:
    /// $XDG_STATE_HOME/headgate/modules, usually ~/.local/state/headgate/modules]
    #[arg(long, value_name = "DIR")]
    pub(crate) module_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// Format of log lines. The variable RUST_LOG sets the level
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text for terminals.
    Text,
    /// One JSON object per line.
    Json,
}

/// Raises the limit on open files to its maximum. Each connection is an open file, and containers
/// often start with a limit of 1,024.
fn raise_open_files(connections: u32) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!("the limit on open files stays as it is: {error}");
    }
    let files = getrlimit(Resource::Nofile).current;
    if let Some(files) = files.filter(|files| *files < u64::from(connections) + OTHER_FILES) {
        warn!(
            "the limit on open files is {files}, too low for --max-connections {connections}; \
             raise it (ulimit -n)"
        );
    }
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// Returns one line that names the argument at fault and the remedy.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    init_logging(args.log_format);
    raise_open_files(args.max_connections);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime failed")?;
    let result = runtime.block_on(serve(args));
    // Streams that ignored the shutdown must not keep the process alive.
    runtime.shutdown_background();
    result
}

fn init_logging(format: LogFormat) {
    let levels = std::env::var("RUST_LOG").ok();
    let levels = levels.and_then(|filter| filter.parse().ok());
    let levels = levels.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    let subscriber = tracing_subscriber::registry().with(levels);
    // The call fails only if a test has already installed a subscriber, which suffices.
    let _ = match format {
        LogFormat::Text => subscriber.with(lines.with_target(false)).try_init(),
        LogFormat::Json => subscriber.with(lines.json().flatten_event(true)).try_init(),
    };
}

async fn serve(args: &RunArgs) -> anyhow::Result<()> {
    args.source.check()?;
    let wasm = module_file(Kind::Wasm, args.wasm.as_deref());
    let folder = args
        .module_dir
        .clone()
        .unwrap_or_else(module::default_folder);
    let native = args.native.as_ref();
    let modules = watch::Sender::new(Arc::new(Modules {
        wasm: install(Kind::Wasm, &wasm, &folder)?,
        native: native
            .map(|file| install(Kind::Native, file, &folder))
            .transpose()?,
    }));
    let metrics = Metrics::new();
    let operator = &args.source.operator;
    let (access, namespace) = (operator.access(), operator.namespace());
    let optional = |argument, address: Option<SocketAddr>| {
        let listening = address.map(|address| listen(argument, address));
        listening.transpose()
    };
    let mut stop = StopSignals::new()?;
    let shutdown = watch::Sender::new(false);
    let (views, view) = watch::channel(None);
    // The set aborts its tasks when it is dropped at the end of this function.
    let mut tasks = JoinSet::new();
    // The kubelet would restart a container without probes while it waits for the API server.
    let waiting = watch::Sender::new("the Secret of the CA".to_owned());
    if let Some(probes) = optional("--probes", args.probes)? {
        let missing = waiting.subscribe();
        let status = Admin::starting(view.clone(), missing, "", shutdown.subscribe());
        tasks.spawn(status.serve_probes(probes));
    }
    let renewing = tokio::select! {
        made = args.tls.make(&access, namespace, &metrics) => made?,
        name = stop.next() => {
            info!("{}: stopping before anything was served", name);
            return Ok(());
        }
    };
    let tls = args.tls.load(args.source.kubernetes).await?;
    let xds = listen("--xds", args.xds)?;
    let admin = listen("--admin", args.admin)?;
    let modules_listener = optional("--modules", args.modules)?;
    let admission_listener = optional("--admission", args.admission)?;
    let bound = |listener: Option<&TcpListener>| listener.map(TcpListener::local_addr).transpose();
    let admission_address = bound(admission_listener.as_ref())?;
    let trust = tls.as_ref().map(Tls::subscribe);
    let webhook = args.injection.webhook(trust.clone())?;
    let injection_address = bound(webhook.as_ref().map(|webhook| &webhook.listener))?;
    let (xds_address, admin_address) = (xds.local_addr()?, admin.local_addr()?);

    let (plans, mut plan) = watch::channel(Arc::new(Plan::default()));
    let limits = Limits::of_connections(args.max_connections);
    let registry = Registry::new(limits.proxies, limits.keep, metrics.xds.clone());
    let registry = Arc::new(registry);
    let mut source = args
        .source
        .start(
            args.tls.publish_ca.clone().zip(trust.clone()),
            args.injection.ca_bundle(trust.clone()),
            Shared {
                plans,
                registry: Arc::clone(&registry),
                modules: modules.subscribe(),
                metrics: metrics.clone(),
            },
            shutdown.subscribe(),
        )
        .await?;
    tasks.spawn(forward(source.missing(), waiting));
    let operator = source.operator.as_ref();
    let instance = operator.map_or("", |operator| &operator.identity);
    let status = Admin::starting(view, source.missing(), instance, shutdown.subscribe());
    let others_ask = !admin_address.ip().is_loopback();
    let authorizer = operator.filter(|_| others_ask).map(Operator::authorizer);
    let tokens = operator.map(Operator::proxy_tokens);
    let statuses = operator.map(|operator| Arc::clone(&operator.observations));
    let leadership = operator.map(|operator| operator.leadership.clone());
    tasks.spawn(status.serve(admin, authorizer));
    // Proxies that reconnect must not get an empty plan, which would disable their policies.
    if !first_plan(&mut plan, &mut source, &mut stop, admin_address).await? {
        return Ok(());
    }
    let counts = Arc::clone(&registry);
    let mut server = Server::new(plan.clone(), modules.subscribe(), limits, counts);
    (server.tls, server.tokens) = (tls, tokens.clone());
    let admission = AdmissionServer {
        plans: plan.clone(),
        registry: Arc::clone(&registry),
        trust,
        tokens,
        limits,
    };
    views.send_replace(Some(View {
        registry,
        snapshots: server.snapshots(),
        statuses,
        metrics: metrics.clone(),
    }));
    if let Some(listener) = admission_listener {
        let stop = shutdown.subscribe();
        tasks.spawn(admission::serve(listener, admission, leadership, stop));
    }
    if let Some(listener) = modules_listener {
        if let Ok(address) = listener.local_addr() {
            for module in modules.borrow().iter() {
                let path = modules::path(module);
                info!("a filter module is at http://{address}{path}");
            }
        }
        tasks.spawn(modules::serve(
            listener,
            modules.subscribe(),
            metrics.clone(),
            modules::LIMITS,
            shutdown.subscribe(),
        ));
    }
    if let Some(webhook) = webhook {
        tasks.spawn(webhook.run(shutdown.subscribe()));
    }
    if let Some(renewing) = renewing {
        tasks.spawn(renewing);
    }
    tasks.spawn(module::keep(modules.subscribe()));
    let native = native.map(|file| (Kind::Native, file.clone()));
    for (kind, file) in [(Kind::Wasm, wasm)].into_iter().chain(native) {
        tasks.spawn(module::watch(kind, file, folder.clone(), modules.clone()));
    }
    let mut server = tokio::spawn(server.serve(xds, shutdown.subscribe()));

    announce(
        (xds_address, admin_address),
        [
            ("admission", admission_address),
            ("injection", injection_address),
        ],
        &args.source.name(),
        &modules.borrow().wasm,
        &plan.borrow(),
    )?;
    tokio::select! {
        served = &mut server => {
            served.context("the xDS server failed")?;
            bail!("the xDS server ended");
        }
        error = source.failed() => return Err(error),
        name = stop.next() => info!("{}: stopping; proxies keep their last configuration", name),
    }
    shutdown.send_replace(true);
    let ending = async {
        if tokio::time::timeout(GRACE, server).await.is_err() {
            info!(
                "some proxies did not end their streams within {} s",
                GRACE.as_secs()
            );
        }
        source.ended().await;
    };
    tokio::select! {
        () = ending => {}
        name = stop.next() => error!("{}: stopping at once", name),
    }
    Ok(())
}

/// Sends each value of `from` to `to`, until `from` has no sender left.
async fn forward(mut from: watch::Receiver<String>, to: watch::Sender<String>) {
    loop {
        let value = from.borrow_and_update().clone();
        to.send_replace(value);
        if from.changed().await.is_err() {
            return;
        }
    }
}

/// Waits for the first plan. Returns `false` if a stop signal arrives first.
async fn first_plan(
    plan: &mut watch::Receiver<Arc<Plan>>,
    source: &mut Source,
    stop: &mut StopSignals,
    admin: SocketAddr,
) -> anyhow::Result<bool> {
    let mut reminder = tokio::time::interval(REMINDER);
    reminder.tick().await;
    loop {
        tokio::select! {
            Ok(()) = plan.changed() => return Ok(true),
            error = source.failed() => return Err(error),
            name = stop.next() => {
                info!("{}: stopping before anything was served", name);
                return Ok(false);
            }
            _ = reminder.tick() => {
                let missing = source.missing().borrow().clone();
                info!(%admin, "not ready: waiting for {missing}");
            }
        }
    }
}

/// Logs the addresses and the next steps for users. The first line goes to stdout, for programs.
fn announce(
    (xds, admin): (SocketAddr, SocketAddr),
    others: [(&str, Option<SocketAddr>); 2],
    source: &str,
    module: &Module,
    plan: &Plan,
) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let others = others.into_iter();
    let others = others.filter_map(|(name, address)| Some(format!(" {name}={}", address?)));
    let others: String = others.collect();
    writeln!(out, "headgate: xds={xds} admin={admin}{others}")
        .context("writing to stdout failed")?;
    out.flush().context("writing to stdout failed")?;
    let accepted = plan.policies.iter().filter(|p| p.accepted.is_ok()).count();
    info!(
        module = %module.path.display(),
        "serving {accepted} of {} policies from {source}",
        plan.policies.len(),
    );
    info!(
        "next, start an Envoy: headgate bootstrap --listen 127.0.0.1:10000 --upstream \
         127.0.0.1:8080 --xds {xds} > envoy.yaml && envoy -c envoy.yaml"
    );
    info!("and see its state: headgate status --admin {admin}");
    Ok(())
}

/// The signals that request a stop.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("handling SIGTERM failed")?,
            interrupt: signal(SignalKind::interrupt()).context("handling SIGINT failed")?,
        })
    }

    /// Waits for the next signal and returns its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
