//! The gRPC services: ECDS alone, and ADS for proxies that want one stream for everything.

use std::pin::Pin;
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::AggregatedDiscoveryService;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_server::ExtensionConfigDiscoveryService;
use futures::Stream;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::delta::Delta;
use super::dialect::Dialect;
use super::node::Identity;
use super::peer::Peer;
use super::proxy::Transport;
use super::sotw::Sotw;
use super::stream::{Context, allow, drive};

/// Both services.
#[derive(Debug, Clone)]
pub(super) struct Service {
    context: Context,
    /// One permit a stream.
    streams: Arc<Semaphore>,
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    pub(super) fn new(context: Context) -> Self {
        let streams = Arc::new(Semaphore::new(context.limits.streams));
        Self { context, streams }
    }

    fn open<D: Dialect>(
        &self,
        transport: Transport,
        request: Request<Streaming<D::Request>>,
    ) -> Result<Response<Responses<D::Response>>, Status> {
        let peer = peer(&request)?;
        let open = peer.activity.open();
        let permit = Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            self.context.registry.metrics.xds.streams_refused.inc();
            Status::resource_exhausted(format!("{} streams are open", self.context.limits.streams))
        })?;
        let requests = request.into_inner();
        // One response: the next is made when a proxy has taken this one.
        let (responses, stream) = mpsc::channel(1);
        let context = self.context.clone();
        tokio::spawn(async move {
            drive::<D, _>(context, transport, peer, requests, responses).await;
            drop((permit, open));
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

/// The other end of the request's connection.
fn peer<T>(request: &Request<T>) -> Result<Peer, Status> {
    request
        .extensions()
        .get::<Peer>()
        .cloned()
        .ok_or_else(|| Status::internal("the connection's peer is unknown"))
}

#[tonic::async_trait]
impl ExtensionConfigDiscoveryService for Service {
    type StreamExtensionConfigsStream = Responses<DiscoveryResponse>;
    type DeltaExtensionConfigsStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_extension_configs(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamExtensionConfigsStream>, Status> {
        self.open::<Sotw>(Transport::Ecds, request)
    }

    async fn delta_extension_configs(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaExtensionConfigsStream>, Status> {
        self.open::<Delta>(Transport::Ecds, request)
    }

    async fn fetch_extension_configs(
        &self,
        request: Request<DiscoveryRequest>,
    ) -> Result<Response<DiscoveryResponse>, Status> {
        let peer = peer(&request)?;
        let request = request.into_inner();
        let mut identity = Identity::new(request.node.as_ref());
        allow(&peer, &mut identity, &self.context.registry)?;
        let mut dialect = Sotw::default();
        let asked = DiscoveryRequest {
            version_info: String::new(),
            ..request
        };
        dialect
            .receive(asked)
            .map_err(|e| Status::invalid_argument(e.to_string()))?;
        let snapshot = Arc::clone(&self.context.snapshots.borrow());
        let assignment = snapshot.assign(&identity);
        let offer = snapshot.offer(&assignment, dialect.names(), &identity);
        let response = dialect.respond(&offer, 1);
        response.map(Response::new).ok_or_else(|| {
            Status::not_found(
                "no such resource; Headgate's slots have names that start with \"headgate\"",
            )
        })
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream = Responses<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        self.open::<Sotw>(Transport::Ads, request)
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        self.open::<Delta>(Transport::Ads, request)
    }
}
