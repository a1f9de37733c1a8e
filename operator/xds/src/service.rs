//! The gRPC service, which is ECDS with state of the world. Requests of other protocols are
//! refused.

use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_server::ExtensionConfigDiscoveryService;
use http::header::AUTHORIZATION;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::warn;

use crate::peer::Peer;
use crate::quota::Slot;
use crate::review::tokens::{ProxyTokens, Refusal};
use crate::stream::{Context, drive};
use crate::tenants::{Refused, Tenants};

/// The implementation of the service.
#[derive(Clone)]
pub(crate) struct DiscoveryService {
    context: Context,
    tenants: Arc<Tenants>,
}

/// The error for a bootstrap written by `headgate bootstrap --delta` or `--ads` of version 0.1.
const OTHER_PROTOCOL: &str = "the bootstrap requests delta or ADS, which Headgate does not serve: \
                              create it again with headgate bootstrap, without --delta and --ads, \
                              or set api_type: GRPC in the slot's api_config_source";

type Responses<T> = ReceiverStream<Result<T, Status>>;

impl DiscoveryService {
    pub(crate) fn new(context: Context, tokens: Option<ProxyTokens>) -> Self {
        let limits = &context.limits;
        let tenants = Tenants::new(tokens, limits, "streams", limits.of_streams());
        Self { context, tenants }
    }

    /// Returns the peer with the identity that its token proves, and the quota slot of its stream.
    async fn admit(
        &self,
        peer: Peer,
        authorization: Option<String>,
    ) -> Result<(Peer, Slot), Status> {
        let address = peer.address;
        let admitted = self.tenants.admit(peer, authorization, 1).await;
        admitted.map_err(|refused| {
            self.context.registry.metrics.streams_refused.inc();
            let why = refused.to_string();
            let status = match refused {
                Refused::Full { .. } => return Status::resource_exhausted(why),
                Refused::Unproven(_) => Status::permission_denied(why),
                Refused::Token(Refusal::Invalid(_)) => Status::unauthenticated(why),
                Refused::Token(Refusal::Unavailable(_)) => Status::unavailable(why),
            };
            warn!(peer = %address, "stream refused: {}", status.message());
            status
        })
    }

    /// Refuses a request of another protocol.
    pub(crate) fn other_protocol(&self, peer: &Peer) -> Status {
        self.context.registry.metrics.streams_refused.inc();
        warn!(peer = %peer.address, "stream refused: {OTHER_PROTOCOL}");
        Status::unimplemented(OTHER_PROTOCOL)
    }
}

/// Returns the remote end of the request's connection.
fn peer<T>(request: &Request<T>) -> Result<Peer, Status> {
    request
        .extensions()
        .get::<Peer>()
        .cloned()
        .ok_or_else(|| Status::internal("the connection's peer is unknown"))
}

#[tonic::async_trait]
impl ExtensionConfigDiscoveryService for DiscoveryService {
    type StreamExtensionConfigsStream = Responses<DiscoveryResponse>;
    type DeltaExtensionConfigsStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_extension_configs(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamExtensionConfigsStream>, Status> {
        let peer = peer(&request)?;
        let open = peer.open_stream();
        let header = request.metadata().get(AUTHORIZATION.as_str());
        let header = header.and_then(|value| value.to_str().ok());
        let (peer, slot) = self.admit(peer, header.map(str::to_owned)).await?;
        let requests = request.into_inner();
        // The queue holds one response. The next response is made after that one has been sent.
        let (responses, stream) = mpsc::channel(1);
        let context = self.context.clone();
        tokio::spawn(async move {
            drive(context, peer, requests, responses).await;
            drop((slot, open));
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn delta_extension_configs(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaExtensionConfigsStream>, Status> {
        Err(self.other_protocol(&peer(&request)?))
    }

    async fn fetch_extension_configs(
        &self,
        request: Request<DiscoveryRequest>,
    ) -> Result<Response<DiscoveryResponse>, Status> {
        Err(self.other_protocol(&peer(&request)?))
    }
}
