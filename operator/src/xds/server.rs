//! The server: combines plan and module into snapshots, and listens.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_server::ExtensionConfigDiscoveryServiceServer;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::server::TcpIncoming;

use super::module::Module;
use super::registry::Registry;
use super::service::Service;
use super::snapshot::Snapshot;
use super::stream::{Context, stopped};
use crate::plan::Plan;

/// What keeps the server's memory bounded whatever proxies do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Streams open at once.
    pub streams: usize,
    /// Proxies remembered, connected or not.
    pub proxies: usize,
    /// How long a proxy is remembered after it left.
    pub keep: Duration,
    /// Time for a stream's first request.
    pub first_message: Duration,
    /// Largest request, in bytes. A node lists every extension that its Envoy has.
    pub request_bytes: usize,
    /// HTTP/2 streams on one connection.
    pub streams_per_connection: u32,
    /// A connection that is silent this long is asked whether it lives.
    pub keepalive_interval: Duration,
    /// And closed if it doesn't answer in this time.
    pub keepalive_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 8_192,
            proxies: 10_000,
            keep: Duration::from_secs(15 * 60),
            first_message: Duration::from_secs(10),
            request_bytes: 1 << 20,
            streams_per_connection: 128,
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
        }
    }
}

/// An xDS server that isn't listening yet.
#[derive(Debug)]
pub struct Server {
    snapshots: watch::Sender<Arc<Snapshot>>,
    plans: watch::Receiver<Arc<Plan>>,
    modules: watch::Receiver<Arc<Module>>,
    registry: Arc<Registry>,
    limits: Limits,
}

impl Server {
    /// A server of what `plans` and `modules` hold, now and later.
    ///
    /// The plan that is there now is served at once. Pass one that has been loaded: an empty one would
    /// switch off enforcement on every proxy that reconnects.
    #[must_use]
    pub fn new(
        mut plans: watch::Receiver<Arc<Plan>>,
        mut modules: watch::Receiver<Arc<Module>>,
        limits: Limits,
    ) -> Self {
        let snapshot = current(&mut plans, &mut modules);
        Self {
            snapshots: watch::Sender::new(snapshot),
            plans,
            modules,
            registry: Arc::new(Registry::new(limits.proxies, limits.keep)),
            limits,
        }
    }

    /// The proxies' records.
    #[must_use]
    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry)
    }

    /// What is served.
    #[must_use]
    pub fn snapshots(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }

    /// Serves until `shutdown` holds `true` or its sender is gone.
    ///
    /// # Errors
    /// The listener failed.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: watch::Receiver<bool>,
    ) -> Result<(), tonic::transport::Error> {
        let limits = self.limits;
        let service = Service::new(Context {
            snapshots: self.snapshots.subscribe(),
            registry: Arc::clone(&self.registry),
            shutdown: shutdown.clone(),
            limits,
        });
        let ecds = ExtensionConfigDiscoveryServiceServer::new(service.clone())
            .max_decoding_message_size(limits.request_bytes);
        let ads = AggregatedDiscoveryServiceServer::new(service)
            .max_decoding_message_size(limits.request_bytes);
        let mut stop = shutdown;
        let server = tonic::transport::Server::builder()
            .max_concurrent_streams(limits.streams_per_connection)
            .http2_keepalive_interval(Some(limits.keepalive_interval))
            .http2_keepalive_timeout(Some(limits.keepalive_timeout))
            .add_service(ecds)
            .add_service(ads)
            .serve_with_incoming_shutdown(
                TcpIncoming::from(listener).with_nodelay(Some(true)),
                async move { stopped(&mut stop).await },
            );
        tokio::select! {
            served = server => served,
            never = combine(self.plans, self.modules, self.snapshots) => match never {},
        }
    }
}

fn current(
    plans: &mut watch::Receiver<Arc<Plan>>,
    modules: &mut watch::Receiver<Arc<Module>>,
) -> Arc<Snapshot> {
    let plan = Arc::clone(&plans.borrow_and_update());
    let module = Arc::clone(&modules.borrow_and_update());
    Arc::new(Snapshot::new(plan, module))
}

/// Publishes a snapshot for each change of plan or module. A source that ended leaves its last value.
async fn combine(
    mut plans: watch::Receiver<Arc<Plan>>,
    mut modules: watch::Receiver<Arc<Module>>,
    snapshots: watch::Sender<Arc<Snapshot>>,
) -> Infallible {
    loop {
        tokio::select! {
            Ok(()) = plans.changed() => {}
            Ok(()) = modules.changed() => {}
            else => std::future::pending().await,
        }
        snapshots.send_replace(current(&mut plans, &mut modules));
    }
}
