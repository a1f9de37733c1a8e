//! `headgate run`: serve the policies of a folder to proxies.

use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, ValueEnum};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

use crate::admin::Admin;
use crate::plan::Plan;
use crate::source;
use crate::xds::module::{self, Module};
use crate::xds::{Limits, Server};

/// How long streams have to end after a signal.
const GRACE: Duration = Duration::from_secs(5);

/// Serves the policies of a folder to proxies over xDS, and follows the folder's changes.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Folder with AdmissionPolicy files (*.yaml, *.yml)
    #[arg(long, value_name = "DIR")]
    pub config_dir: PathBuf,
    /// Address for proxies; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:18000")]
    pub xds: SocketAddr,
    /// Address for `headgate status`, /healthz, /readyz and /metrics
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:18001")]
    pub admin: SocketAddr,
    /// The filter module; replacing the file upgrades proxies [default: dist/headgate.wasm, else headgate.wasm
    /// beside this program]
    #[arg(long, value_name = "PATH", env = "HEADGATE_WASM")]
    pub wasm: Option<PathBuf>,
    /// Folder that proxies load the module from; it must have the same path for them [default:
    /// $XDG_STATE_HOME/headgate/modules, usually ~/.local/state/headgate/modules]
    #[arg(long, value_name = "DIR")]
    pub module_dir: Option<PathBuf>,
    /// How log lines look. RUST_LOG sets the level
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// One line that names the argument at fault and what to do.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    init_logging(args.log_format);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime failed")?;
    let result = runtime.block_on(serve(args));
    // Streams that ignored the shutdown must not keep the process.
    runtime.shutdown_background();
    result
}

fn init_logging(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colour = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(colour);
    // Fails only where a test has installed a subscriber before; that one is fine too.
    let _ = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

async fn serve(args: &RunArgs) -> anyhow::Result<()> {
    let dir = &args.config_dir;
    if !dir.is_dir() {
        bail!(
            "--config-dir {}: no such folder; create it and put AdmissionPolicy files in",
            dir.display()
        );
    }
    let wasm = module_file(args.wasm.as_deref());
    let folder = args
        .module_dir
        .clone()
        .unwrap_or_else(module::default_folder);
    let module = Arc::new(Module::install(&wasm, &folder)?);
    let xds = bind("--xds", args.xds).await?;
    let admin = bind("--admin", args.admin).await?;
    let (xds_address, admin_address) = (xds.local_addr()?, admin.local_addr()?);

    let shutdown = watch::Sender::new(false);
    let (plans, mut plan) = watch::channel(Arc::new(Plan::default()));
    let watching = tokio::spawn(source::dir::watch(dir.clone(), plans, shutdown.subscribe()));
    // Proxies that come back must not find an empty plan, which would switch their policies off.
    if plan.changed().await.is_err() {
        return match watching.await {
            Ok(Err(error)) => Err(error),
            Ok(Ok(())) | Err(_) => bail!("--config-dir {}: watching it ended", dir.display()),
        };
    }
    let modules = watch::Sender::new(Arc::clone(&module));
    let server = Server::new(plan.clone(), modules.subscribe(), Limits::default());
    let status = Admin::new(server.registry(), server.snapshots(), shutdown.subscribe());
    let module_watch = tokio::spawn(module::watch(wasm, folder, modules));
    let admin_task = tokio::spawn(status.serve(admin));
    let mut server = tokio::spawn(server.serve(xds, shutdown.subscribe()));

    announce(xds_address, admin_address, dir, &module, &plan.borrow())?;
    tokio::select! {
        served = &mut server => {
            served.context("the xDS server ended")?.context("the xDS server failed")?;
            bail!("the xDS server ended");
        }
        name = stop_signal() => info!("{}: stopping; proxies keep their last configuration", name?),
    }
    shutdown.send_replace(true);
    tokio::select! {
        ended = tokio::time::timeout(GRACE, server) => {
            if ended.is_err() {
                info!("some proxies did not end their streams within {} s", GRACE.as_secs());
            }
        }
        name = stop_signal() => error!("{}: stopping at once", name?),
    }
    admin_task.abort();
    module_watch.abort();
    watching.abort();
    Ok(())
}

/// The module to serve: the one named, or the first of the usual places that exists.
fn module_file(named: Option<&Path>) -> PathBuf {
    let built = PathBuf::from("dist/headgate.wasm");
    if let Some(named) = named {
        return named.to_owned();
    }
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join("headgate.wasm")));
    match beside {
        Some(beside) if !built.exists() && beside.exists() => beside,
        _ => built,
    }
}

async fn bind(argument: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::AddrInUse => {
                "; another headgate may be running (headgate status tells), or choose a free port with :0"
            }
            ErrorKind::PermissionDenied => "; ports below 1024 need privileges",
            ErrorKind::AddrNotAvailable => "; this host has no such address",
            _ => "",
        };
        anyhow!("{argument} {address}: {error}{advice}")
    })
}

/// Says what is served and what to do next. The first line, on stdout, is for programs.
fn announce(
    xds: SocketAddr,
    admin: SocketAddr,
    dir: &Path,
    module: &Module,
    plan: &Plan,
) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "headgate: xds={xds} admin={admin}").context("writing to stdout failed")?;
    out.flush().context("writing to stdout failed")?;
    let accepted = plan.policies.iter().filter(|p| p.accepted.is_ok()).count();
    info!(
        module = %module.path.display(),
        "serving {accepted} of {} policies from {}",
        plan.policies.len(),
        dir.display()
    );
    info!(
        "next, an Envoy: headgate bootstrap --listen 127.0.0.1:10000 --upstream 127.0.0.1:8080 --xds {xds} > envoy.yaml && envoy -c envoy.yaml"
    );
    info!("and what became of it: headgate status --admin {admin}");
    Ok(())
}

async fn stop_signal() -> anyhow::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate()).context("handling SIGTERM failed")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("handling SIGINT failed")?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}
