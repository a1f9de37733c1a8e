//! The backend of the end-to-end tests: a service that does exactly `workers` requests at a time behind an unbounded
//! FIFO, and that can say afterwards how many requests were in it at once.
//!
//! It is the query engine of Bouncer's Figure 1 with the work replaced by sleeping, so that twenty "busy" workers
//! fit two cores. Service times are drawn from lognormal distributions per path prefix. Everything that a test claims
//! about a proxy in front of it (never more than P in flight, slots kept busy, nothing left behind by an aborting client)
//! is read here, from the far end, not from the proxy.

mod control;
mod data;
mod fault;
mod service;
mod station;
mod stats;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;

use crate::mix::QueryType;

pub use fault::{Fault, FaultKind};
pub use station::{Served, Station, Ticket};
pub use stats::{Arrival, BackendStats, TypeStats};

/// What one kind of request costs.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceType {
    /// Requests whose path starts with this; the longest matching prefix counts.
    pub prefix: String,
    /// Mean service time.
    pub mean: Duration,
    /// Median service time. Equal to the mean: every request takes exactly that.
    pub median: Duration,
}

impl ServiceType {
    /// A type whose every request takes `time`.
    pub fn constant(prefix: &str, time: Duration) -> Self {
        Self {
            prefix: prefix.to_owned(),
            mean: time,
            median: time,
        }
    }
}

impl From<&QueryType> for ServiceType {
    fn from(query: &QueryType) -> Self {
        Self {
            prefix: query.path.to_owned(),
            mean: query.mean,
            median: query.median,
        }
    }
}

/// What becomes of a request in service when its client leaves. One that still waits is removed in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDisconnect {
    /// The worker is free at once.
    #[default]
    Cancel,
    /// The worker finishes its work for nobody, as most real services do.
    Finish,
}

/// How to build a [`Backend`].
#[derive(Debug, Clone)]
pub struct BackendConfig {
    /// Requests served at once; at least 1.
    pub workers: usize,
    /// Service times by path. A path that matches none gets 404 at once.
    pub types: Vec<ServiceType>,
    /// Seed of the service times. They are drawn in the order of arrival.
    pub seed: u64,
    /// Multiplies all service times.
    pub scale: f64,
    /// Whether all workers share one processor: with n requests in service, each takes n times as long.
    pub one_processor: bool,
    /// What becomes of work whose client left.
    pub on_disconnect: OnDisconnect,
    /// Adds `x-backend-service-us` and `x-backend-wait-us` to responses.
    pub report_service: bool,
    /// Where requests are served; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Where `/__headgate/…` is served; port 0 picks a free one. A port of its own, so that control requests never wait
    /// behind others.
    pub control: SocketAddr,
}

impl BackendConfig {
    /// `workers` servers for `types`, on free ports of the loopback interface.
    pub fn new(workers: usize, types: Vec<ServiceType>) -> Self {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            workers,
            types,
            seed: 1,
            scale: 1.0,
            one_processor: false,
            on_disconnect: OnDisconnect::default(),
            report_service: false,
            listen: loopback,
            control: loopback,
        }
    }

    /// A backend for a mix of query types.
    pub fn for_mix(workers: usize, mix: &[QueryType]) -> Self {
        Self::new(workers, mix.iter().map(ServiceType::from).collect())
    }
}

/// A running backend. Stops when dropped.
#[derive(Debug)]
pub struct Backend {
    addr: SocketAddr,
    control: SocketAddr,
    station: Arc<Station>,
    shutdown: Option<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Backend {
    /// Binds both ports and starts serving, on two threads: one for the network, one that keeps time.
    ///
    /// # Errors
    /// If the configuration has no workers or types, a median above its mean, or an address that can't be bound.
    pub fn start(config: &BackendConfig) -> Result<Self> {
        let station = Arc::new(Station::new(config)?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let data = runtime.block_on(async { listen(config.listen) })?;
        let control = runtime.block_on(async { listen(config.control) })?;
        let (addr, control_addr) = (data.local_addr()?, control.local_addr()?);
        let (shutdown, stop) = oneshot::channel();

        let keeper = Arc::clone(&station);
        let timekeeper = std::thread::Builder::new()
            .name("backend-time".into())
            .spawn(move || keeper.keep_time())?;
        let server = Arc::clone(&station);
        let report_service = config.report_service;
        let network = std::thread::Builder::new()
            .name("backend-net".into())
            .spawn(move || {
                runtime.block_on(async move {
                    tokio::select! {
                        () = data::serve(data, Arc::clone(&server), report_service) => {}
                        () = control::serve(control, Arc::clone(&server)) => {}
                        _ = stop => {}
                    }
                });
                // Dropping the runtime drops every connection's task, which closes the connections.
            })?;
        Ok(Self {
            addr,
            control: control_addr,
            station,
            shutdown: Some(shutdown),
            threads: vec![timekeeper, network],
        })
    }

    /// Where requests are served.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where `/__headgate/…` is served.
    pub fn control_addr(&self) -> SocketAddr {
        self.control
    }

    /// Its numbers since the start or the last [`reset`](Self::reset).
    pub fn stats(&self) -> BackendStats {
        self.station.stats()
    }

    /// Starts all counts and maxima again; requests that are there stay.
    pub fn reset(&self) {
        self.station.reset();
    }

    /// Makes the next `fault.count` requests under `fault.path` go wrong.
    pub fn inject(&self, fault: Fault) {
        self.station.inject(fault);
    }

    /// Withdraws all faults that haven't struck yet.
    pub fn clear_faults(&self) {
        self.station.clear_faults();
    }

    /// Ends the service of all requests that [`FaultKind::Hang`] holds; they are answered as if their time were over.
    /// Returns how many.
    pub fn release(&self) -> usize {
        self.station.release()
    }

    /// Loses workers, or gets new ones; at least 1.
    pub fn set_workers(&self, workers: usize) {
        self.station.set_workers(workers.max(1));
    }

    /// The requests that carried an `x-seq` header, in the order in which they arrived, since the last reset.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.station.arrivals()
    }

    /// Closes its ports and all connections.
    pub fn stop(mut self) {
        self.halt();
    }

    /// Closes its ports and all connections; its numbers can still be read.
    pub fn halt(&mut self) {
        if let Some(shutdown) = self.shutdown.take() {
            let _ = shutdown.send(());
        }
        self.station.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.halt();
    }
}

/// Binds with a backlog that a thousand clients at once don't overflow: a dropped SYN would show as a latency of 1 s.
///
/// # Errors
/// If the address can't be bound.
pub fn listen(addr: SocketAddr) -> Result<TcpListener> {
    let socket = if addr.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    socket
        .bind(addr)
        .with_context(|| format!("cannot listen on {addr}"))?;
    Ok(socket.listen(8_192)?)
}

/// A configuration's mistakes, before anything starts.
fn check(config: &BackendConfig) -> Result<()> {
    if config.workers == 0 {
        bail!("workers: 0; a backend needs at least 1");
    }
    if config.types.is_empty() {
        bail!("types: none; a backend needs at least 1");
    }
    if !(config.scale.is_finite() && config.scale > 0.0) {
        bail!("scale: {}; give a number above 0", config.scale);
    }
    Ok(())
}
