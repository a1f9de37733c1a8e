//! Proxies other than Envoy that protect a service from overload: HAProxy, and Go's reverse proxy
//! with failsafe-go.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tempfile::TempDir;

use crate::bench::lab::{Lab, Protection};
use crate::kube::programs;
use crate::mesh::ports::free_port;
use crate::mix::QueryType;
use crate::process::{self, Child};
use crate::wait::{self, MachineLock};

/// A proxy with its settings.
#[derive(Debug, Clone)]
pub(super) enum Rival {
    /// HAProxy, with bounds on the connections to the service and on the time in its queue.
    Haproxy {
        /// Lines of the frontend that set priorities.
        rules: Vec<String>,
        /// The largest number of concurrent requests in the service.
        maxconn: usize,
        /// The longest wait in the queue.
        queue: Duration,
    },
    /// Go's reverse proxy with failsafe-go's adaptive limiter and these arguments.
    Failsafe(Vec<String>),
}

/// Returns candidates of HAProxy with the settings that its documentation suggests: bounded
/// connections to the server, a short queue, and cheap requests first, either strictly or by their
/// deadlines.
pub(super) fn haproxy_candidates(mix: &[QueryType]) -> Vec<(String, Rival)> {
    let rule = |(place, query): (usize, &QueryType), by_deadline: bool| {
        let path = query.path;
        if by_deadline {
            let ms = query.p90.as_millis();
            format!("http-request set-priority-offset int({ms}) if {{ path_beg {path} }}")
        } else {
            format!("http-request set-priority-class int({place}) if {{ path_beg {path} }}")
        }
    };
    // Half of an objective is for the queue, and the other half is for the service.
    let waits = mix.iter().map(|query| query.p90 / 2);
    let mut candidates = Vec::new();
    for maxconn in [1, 2, 3, 4, 6, 8, 12] {
        for queue in [waits.clone().min(), waits.clone().max()]
            .into_iter()
            .flatten()
        {
            for (order, by_deadline) in [("class", false), ("offset", true)] {
                let rules = mix.iter().enumerate().map(|kind| rule(kind, by_deadline));
                candidates.push((
                    format!("haproxy-{maxconn}-queue{}-{order}", queue.as_millis()),
                    Rival::Haproxy {
                        rules: rules.collect(),
                        maxconn,
                        queue,
                    },
                ));
            }
        }
    }
    candidates
}

/// Returns the limiter with its defaults, and with other values of the two settings that its
/// documentation recommends to fit: the range of the limit, and the queue.
pub(super) fn failsafe_candidates(mix: &[QueryType]) -> Vec<(String, Rival)> {
    let paths = || mix.iter().map(|query| query.path.to_owned());
    let shortest = mix.iter().map(|query| query.p90).min().unwrap_or_default();
    let candidate = |name: String, flags: Vec<String>| {
        (
            name,
            Rival::Failsafe(flags.into_iter().chain(paths()).collect()),
        )
    };
    let mut candidates = vec![candidate("failsafe-default".to_owned(), Vec::new())];
    for most in [4, 8, 16] {
        for queue in [1, 3] {
            let flags = vec![
                format!("-max={most}"),
                format!("-initial={most}"),
                format!("-queue={queue}"),
                format!("-wait={}ms", shortest.as_millis()),
            ];
            candidates.push(candidate(format!("failsafe-{most}-queue{queue}"), flags));
        }
    }
    candidates
}

/// A proxy in front of a service.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, never moved about"
)]
pub(super) enum Proxy {
    /// Envoy.
    Envoy(Lab),
    /// A proxy other than Envoy.
    Rival {
        /// The process of the proxy.
        child: Child,
        /// The address on which the proxy listens.
        addr: SocketAddr,
        /// The folder of the proxy's files.
        _dir: TempDir,
        /// Prevents other tests and benchmarks from running at the same time.
        _lock: MachineLock,
    },
}

impl Proxy {
    /// Starts Envoy with a protection and one worker.
    ///
    /// # Errors
    /// If Envoy doesn't start.
    pub(super) fn envoy(protection: &Protection, upstream: SocketAddr) -> Result<Self> {
        Lab::start_before(protection, upstream, 1).map(Self::Envoy)
    }

    /// Returns the address that accepts requests.
    pub(super) fn addr(&self) -> SocketAddr {
        match self {
            Self::Envoy(lab) => lab.addr(),
            Self::Rival { addr, .. } => *addr,
        }
    }

    /// Returns the CPU time of the proxy since its start.
    ///
    /// # Errors
    /// If the proxy has ended.
    pub(super) fn cpu_time(&self) -> Result<Duration> {
        match self {
            Self::Envoy(lab) => lab.envoy().cpu_time(),
            Self::Rival { child, .. } => child.cpu_time(),
        }
    }

    /// Returns the slot time that all arrivals since the proxy's start have demanded, or `None`
    /// without Headgate.
    ///
    /// # Errors
    /// If Envoy's stats can't be read.
    pub(super) fn offered_work(&self) -> Result<Option<Duration>> {
        let Self::Envoy(Lab::Headgate(rig)) = self else {
            return Ok(None);
        };
        let stats = rig.policy_stats()?;
        Ok(stats
            .get("offered_work_us")
            .copied()
            .map(Duration::from_micros))
    }
}

impl Rival {
    /// Returns the path of the proxy's program.
    ///
    /// # Errors
    /// If the program isn't available.
    pub(super) fn program(&self) -> Result<&'static Path> {
        match self {
            Self::Haproxy { .. } => programs::haproxy(),
            Self::Failsafe(_) => failsafe(),
        }
    }

    /// Starts the proxy and waits until it listens.
    ///
    /// # Errors
    /// If the proxy doesn't start or listen. The error contains its last lines of output.
    pub(super) fn start(&self, upstream: SocketAddr) -> Result<Proxy> {
        let lock = wait::lock_machine()?;
        let dir = tempfile::Builder::new()
            .prefix("headgate-rival-")
            .tempdir()?;
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let mut command = Command::new(self.program()?);
        let mut child = match self {
            Self::Haproxy {
                rules,
                maxconn,
                queue,
            } => {
                let settings = dir.path().join("haproxy.cfg");
                let (rules, queue) = (rules.join("\n  "), queue.as_millis());
                std::fs::write(
                    &settings,
                    format!(
                        "global\n  nbthread 1\n  maxconn 8000\n\
                         defaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  \
                         timeout server 60s\n  timeout queue {queue}ms\n\
                         frontend clients\n  bind {addr}\n  {rules}\n  default_backend service\n\
                         backend service\n  server one {upstream} maxconn {maxconn}\n"
                    ),
                )?;
                Child::spawn("haproxy", command.arg("-db").arg("-f").arg(settings))?
            }
            Self::Failsafe(arguments) => {
                let (listen, upstream) = (addr.to_string(), upstream.to_string());
                command.args(["-listen", &listen, "-upstream", &upstream]);
                // The proxy gets as many threads as the other proxies have.
                command.args(arguments).env("GOMAXPROCS", "1");
                Child::spawn("failsafe", &mut command)?
            }
        };
        let listening = wait::until("the proxy to listen", || {
            if !child.is_running() {
                return Ok(false);
            }
            let connected = TcpStream::connect(addr).map_err(|error| error.to_string());
            connected.map(|_| true)
        });
        match listening {
            Ok(true) => {}
            Ok(false) => bail!("the proxy ended at once\n{}", child.tail()),
            Err(error) => bail!("{error}\n{}", child.tail()),
        }
        Ok(Proxy::Rival {
            child,
            addr,
            _dir: dir,
            _lock: lock,
        })
    }
}

/// Returns the program of `tests/wild/failsafe`, built once.
fn failsafe() -> Result<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = PROGRAM.get_or_init(|| build_failsafe().map_err(|error| format!("{error:#}")));
    built.as_deref().map_err(|error| anyhow!("{error}"))
}

fn build_failsafe() -> Result<PathBuf> {
    let program = programs::repository().join("target/failsafe-proxy");
    let mut go = Command::new(programs::go()?);
    go.args(["build", "-o"])
        .arg(std::path::absolute(&program)?)
        .arg(".")
        .current_dir(programs::repository().join("tests/wild/failsafe"))
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off");
    process::run(&mut go, None).context("building tests/wild/failsafe")?;
    Ok(program)
}
