//! The xDS server, which combines plans and modules into snapshots and serves the snapshots.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Extension;
use axum::routing::any;
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_server::ExtensionConfigDiscoveryServiceServer;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::service::Routes;

use crate::limits::Limits;
use crate::listen::Connections;
use crate::metrics::XdsMetrics;
use crate::module::Modules;
use crate::peer::Peer;
use crate::registry::Registry;
use crate::review::tokens::ProxyTokens;
use crate::service::DiscoveryService;
use crate::snapshot::Snapshot;
use crate::stream::Context;
use crate::tls::Tls;
use headgate_api::plan::Plan;

/// The path of the methods of ADS, which the server refuses.
const AGGREGATED: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/{method}";

/// An xDS server that isn't listening yet.
pub struct Server {
    snapshots: watch::Sender<Arc<Snapshot>>,
    plans: watch::Receiver<Arc<Plan>>,
    modules: watch::Receiver<Arc<Modules>>,
    registry: Arc<Registry>,
    /// The certificates, which are reloaded when their files change. With them the server serves
    /// only over TLS, and only proxies with a certificate signed by the files' CA or with a token.
    pub tls: Option<Tls>,
    /// The reviewer of the proxies' tokens.
    pub tokens: Option<ProxyTokens>,
    limits: Limits,
}

impl Server {
    /// Returns a server for the current and later values of `plans` and `modules`. Its proxies are
    /// recorded in `registry`.
    ///
    /// The current plan is served immediately. It must be a loaded plan, because an empty plan
    /// would disable enforcement on every proxy that reconnects.
    pub fn new(
        mut plans: watch::Receiver<Arc<Plan>>,
        mut modules: watch::Receiver<Arc<Modules>>,
        limits: Limits,
        registry: Arc<Registry>,
    ) -> Self {
        let snapshot = current(&mut plans, &mut modules);
        Self {
            snapshots: watch::Sender::new(snapshot),
            plans,
            modules,
            registry,
            tls: None,
            tokens: None,
            limits,
        }
    }

    /// Returns the served snapshots.
    pub fn snapshots(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }

    /// Serves until `shutdown` holds `true` or its sender is dropped, and all connections have
    /// ended.
    pub async fn serve(self, listener: TcpListener, shutdown: watch::Receiver<bool>) {
        let limits = self.limits;
        let context = Context::new(
            self.snapshots.subscribe(),
            Arc::clone(&self.registry),
            shutdown.clone(),
            limits,
        );
        let service = DiscoveryService::new(context, self.tokens);
        let ecds = ExtensionConfigDiscoveryServiceServer::new(service.clone())
            .max_decoding_message_size(limits.request_bytes);
        let other = move |Extension(peer): Extension<Peer>| {
            let refused = service.other_protocol(&peer).into_http::<Body>();
            async { refused }
        };
        let app = Routes::new(ecds).into_axum_router();
        let connections = Connections {
            limits,
            trust: self.tls.as_ref().map(Tls::subscribe),
            registry: Arc::clone(&self.registry),
            app: app.route(AGGREGATED, any(other)),
            shutdown,
        };
        tokio::select! {
            () = connections.serve(listener) => {}
            never = combine(self.plans, self.modules, self.snapshots) => match never {},
            never = follow(self.tls, &self.registry.metrics) => match never {},
        }
    }
}

fn current(
    plans: &mut watch::Receiver<Arc<Plan>>,
    modules: &mut watch::Receiver<Arc<Modules>>,
) -> Arc<Snapshot> {
    let plan = Arc::clone(&plans.borrow_and_update());
    let modules = Arc::clone(&modules.borrow_and_update());
    Arc::new(Snapshot::new(plan, modules))
}

async fn follow(tls: Option<Tls>, metrics: &XdsMetrics) -> Infallible {
    if let Some(tls) = tls {
        tls.follow(metrics).await;
    }
    std::future::pending().await
}

/// Publishes a snapshot after each change of the plan or the modules. If a sender is dropped, its
/// last value stays in use.
async fn combine(
    mut plans: watch::Receiver<Arc<Plan>>,
    mut modules: watch::Receiver<Arc<Modules>>,
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
