//! The backend of the end-to-end tests: a service that processes exactly `workers` requests at a
//! time behind an unbounded FIFO queue, and that reports the largest number of concurrent requests.
//!
//! It is the query engine of Bouncer's Figure 1 with the work replaced by sleeping, so that twenty
//! "busy" workers fit on two cores. Service times are drawn from lognormal distributions per path
//! prefix. Tests check all claims about a proxy in front of the backend here, not in the proxy.
//! Such claims are that never more than P requests are in flight, that slots are kept busy, and
//! that an aborting client leaves no work.

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

/// A request type and its service time.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceType {
    /// The prefix of the paths of this type. The longest matching prefix counts.
    pub prefix: String,
    /// Mean service time.
    pub mean: Duration,
    /// Median service time. If it equals the mean, every request takes exactly this time.
    pub median: Duration,
}

impl ServiceType {
    /// Returns a type whose requests all take `time`.
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

/// The effect of a client's departure on its request in service. A waiting request is removed in
/// either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDisconnect {
    /// The worker is freed at once.
    #[default]
    Cancel,
    /// The worker finishes the work, as most real services do.
    Finish,
}

/// The configuration of a [`Backend`].
#[derive(Debug, Clone)]
pub struct BackendConfig {
    /// The number of requests that are served at once, at least 1.
    pub workers: usize,
    /// Service times by path. A path without a match gets 404 at once.
    pub types: Vec<ServiceType>,
    /// Seed of the service times, which are drawn in the order of arrival.
    pub seed: u64,
    /// The factor of all service times.
    pub scale: f64,
    /// Whether all workers share one processor. With n requests in service, each then takes n times
    /// as long.
    pub one_processor: bool,
    /// The effect of a client's departure on its request in service.
    pub on_disconnect: OnDisconnect,
    /// Whether responses get the headers `x-backend-service-us` and `x-backend-wait-us`.
    pub report_service: bool,
    /// The address for requests. Port 0 picks a free port.
    pub listen: SocketAddr,
    /// The address for `/__headgate/…`. Port 0 picks a free port. It is a port of its own, so that
    /// control requests never wait behind others.
    pub control: SocketAddr,
}

impl BackendConfig {
    /// Returns the configuration of a backend with `workers` workers for `types`, on free ports of
    /// the loopback interface.
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

    /// Returns the configuration of a backend whose service time is constant for all requests.
    pub fn constant(workers: usize, service: Duration) -> Self {
        Self::new(workers, vec![ServiceType::constant("/", service)])
    }

    /// Returns the configuration for a mix of query types.
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
    /// Binds both ports and starts serving. One thread handles the network, and another one the
    /// ends of services.
    ///
    /// # Errors
    /// If the configuration has no workers or types, a median above its mean, or an address that
    /// can't be bound.
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

    /// Returns the address for requests.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the address for `/__headgate/…`.
    pub fn control_addr(&self) -> SocketAddr {
        self.control
    }

    /// Returns the backend's counts since its start or the last [`reset`](Self::reset).
    pub fn stats(&self) -> BackendStats {
        self.station.stats()
    }

    /// Returns the largest number of requests in the backend at once since the last call.
    pub fn take_peak_in_flight(&self) -> usize {
        self.station.take_peak_in_flight()
    }

    /// Resets all counts and maxima. Requests in the backend stay.
    pub fn reset(&self) {
        self.station.reset();
    }

    /// Makes the next `fault.count` requests under `fault.path` fail.
    pub fn inject(&self, fault: Fault) {
        self.station.inject(fault);
    }

    /// Removes all remaining faults.
    pub fn clear_faults(&self) {
        self.station.clear_faults();
    }

    /// Ends the service of all requests that [`FaultKind::Hang`] holds. They are answered as if
    /// their service time were over. Returns the number of these requests.
    pub fn release(&self) -> usize {
        self.station.release()
    }

    /// Changes the number of workers. The least number is 1.
    pub fn set_workers(&self, workers: usize) {
        self.station.set_workers(workers.max(1));
    }

    /// Returns the requests with an `x-seq` header, in the order of their arrival, since the last
    /// reset.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.station.arrivals()
    }

    /// Closes the backend's ports and all connections.
    pub fn stop(mut self) {
        self.halt();
    }

    /// Closes the backend's ports and all connections. The counts can still be read.
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

/// Binds with a backlog that a thousand simultaneous clients don't overflow. A dropped SYN packet
/// would show as a latency of 1 s.
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

/// Checks a configuration before the backend starts.
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
