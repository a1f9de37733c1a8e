//! The service of the test mesh: one program that acts as any service, by its configuration.
//!
//! A request's path selects a tree of steps ([`plan`]): time of a worker, and calls to other
//! services through the outbound listener of the sidecar. A worker's time is spent sleeping in the
//! queueing station of the [test backend](crate::backend), so the limits of capacity are workers
//! and threads rather than CPU.
//!
//! The service doesn't depend on Headgate. Like any application with tracing, it copies context
//! headers from a request to the calls that the request causes. The service's configuration may
//! turn this off.

mod call;
mod control;
pub mod plan;
mod process;
mod serve;
mod stats;
mod work;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Semaphore;

use crate::backend::{self, BackendConfig, OnDisconnect, ServiceType, Station};
pub use plan::{Behaviour, ServiceConfig};
pub use process::{PROGRAM_ENV, ServiceProcess};
use serve::serve;
pub use stats::{CallStats, OperationStats, ServiceStats};

/// A running service.
#[derive(Debug)]
pub(crate) struct Service {
    config: ServiceConfig,
    /// The workers. The types of the station are the operations.
    station: Arc<Station>,
    threads: Option<Arc<Semaphore>>,
    client: call::Client,
    rng: Mutex<SmallRng>,
    tally: Mutex<stats::Tally>,
}

impl Service {
    fn new(config: ServiceConfig) -> Result<Arc<Self>> {
        let behaviour = &config.behaviour;
        behaviour.check()?;
        // The service draws one service time for each step, so the station's own service times are
        // never used.
        let types = behaviour
            .operations
            .iter()
            .map(|o| ServiceType::constant(&o.path, Duration::ZERO))
            .collect();
        let mut workers = BackendConfig::new(behaviour.workers, types);
        workers.on_disconnect = OnDisconnect::Cancel;
        Ok(Arc::new(Self {
            station: Arc::new(Station::new(&workers)?),
            threads: behaviour.threads.map(|n| Arc::new(Semaphore::new(n))),
            client: call::Client::new(config.outbound),
            rng: Mutex::new(SmallRng::seed_from_u64(config.seed)),
            tally: Mutex::default(),
            config,
        }))
    }

    fn count<T>(&self, change: impl FnOnce(&mut stats::Tally) -> T) -> T {
        change(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn stats(&self) -> ServiceStats {
        let threads = self.threads.as_ref().zip(self.config.behaviour.threads);
        let busy = threads.map(|(free, all)| all.saturating_sub(free.available_permits()));
        let workers = self.station.stats();
        self.count(|tally| tally.report(&self.config, workers, busy))
    }

    fn reset(&self) {
        self.station.reset();
        self.count(|tally| tally.reset());
    }
}

/// Serves until the process ends. `ready` gets the addresses of requests and of statistics.
///
/// # Errors
/// If the configuration is invalid, or an address can't be bound.
pub fn run(config: ServiceConfig, ready: impl FnOnce(SocketAddr, SocketAddr)) -> Result<()> {
    let (listen, control) = (config.listen, config.control);
    let service = Service::new(config)?;
    let keeper = Arc::clone(&service.station);
    std::thread::Builder::new()
        .name("service-time".into())
        .spawn(move || keeper.keep_time())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let requests = backend::listen(listen)?;
        let control = backend::listen(control)?;
        ready(requests.local_addr()?, control.local_addr()?);
        tokio::select! {
            () = serve(requests, Arc::clone(&service), work::answer) => {}
            () = serve(control, Arc::clone(&service), control::answer) => {}
            signal = tokio::signal::ctrl_c() => signal?,
        }
        Ok(())
    })
}
