//! The gRPC service: ECDS with state of the world. Requests of other protocols are refused.

use std::net::IpAddr;
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

use super::addresses::{Full, Quota, Slot, group};
use super::peer::Peer;
use super::stream::{Context, drive};
use crate::kubernetes::review::bearer;
use crate::kubernetes::tokens::{ProxyTokens, Refusal};

/// The implementation of the service.
#[derive(Debug, Clone)]
pub(super) struct Service {
    context: Context,
    tokens: Option<ProxyTokens>,
    /// One slot of the quota for each stream, by its owner.
    streams: Arc<Quota<Owner>>,
}

/// The owner by which streams are counted, so that one can't take all of them: the namespace of a
/// certificate or token, or the address of a peer without either.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Owner {
    Namespace(String),
    Address(IpAddr),
}

impl Owner {
    fn of(peer: &Peer) -> Self {
        match peer.proven.as_deref() {
            Some(Ok(spiffe)) => Self::Namespace(spiffe.namespace.clone()),
            _ => Self::Address(group(peer.address.ip())),
        }
    }
}

/// The answer to a bootstrap that `headgate bootstrap --delta` or `--ads` of 0.1 wrote.
const OTHER_PROTOCOL: &str = "the bootstrap asks for delta or ADS, which Headgate does not serve: \
                              write it anew by headgate bootstrap, without --delta and --ads, or \
                              set api_type: GRPC in the slot's api_config_source";

type Responses<T> = ReceiverStream<Result<T, Status>>;

impl Service {
    pub(super) fn new(context: Context, tokens: Option<ProxyTokens>) -> Self {
        let limits = &context.limits;
        let streams = Quota::new(limits.streams, limits.streams_per_namespace);
        Self {
            context,
            tokens,
            streams,
        }
    }

    /// Returns a slot of the quota for one stream of the peer.
    fn slot(&self, peer: &Peer) -> Result<Slot<Owner>, Status> {
        self.streams.take(Owner::of(peer)).map_err(|full| {
            self.context.registry.metrics.xds.streams_refused.inc();
            let limits = &self.context.limits;
            Status::resource_exhausted(match full {
                Full::All => format!("{} streams are open", limits.streams),
                Full::Each => {
                    let most = limits.streams_per_namespace;
                    format!("{most} streams of this namespace are open")
                }
            })
        })
    }

    /// Returns the peer with the identity that its token proves.
    async fn prove(&self, peer: Peer, token: Option<String>) -> Result<Peer, Status> {
        // The stream is counted while the API server is asked.
        let _slot = self.slot(&peer)?;
        let address = peer.address;
        let proven = peer.with_token(token, self.tokens.as_ref()).await;
        proven.map_err(|refusal| {
            self.context.registry.metrics.xds.streams_refused.inc();
            warn!(peer = %address, "proxy turned away: {refusal}");
            match refusal {
                Refusal::Invalid(_) => Status::unauthenticated(refusal.to_string()),
                Refusal::Unavailable(_) => Status::unavailable(refusal.to_string()),
            }
        })
    }

    /// Refuses a request of another protocol.
    pub(super) fn other_protocol(&self, peer: &Peer) -> Status {
        self.context.registry.metrics.xds.streams_refused.inc();
        warn!(peer = %peer.address, "proxy turned away: {OTHER_PROTOCOL}");
        Status::unimplemented(OTHER_PROTOCOL)
    }

    async fn open(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Responses<DiscoveryResponse>>, Status> {
        let peer = peer(&request)?;
        let open = peer.open_stream();
        let header = request.metadata().get(AUTHORIZATION.as_str());
        let token = header.and_then(|value| bearer(value.to_str().ok()?));
        let token = token.map(str::to_owned);
        let peer = self.prove(peer, token).await?;
        let slot = self.slot(&peer)?;
        let requests = request.into_inner();
        // The queue holds one response: the next one is made after the proxy has taken it.
        let (responses, stream) = mpsc::channel(1);
        let context = self.context.clone();
        tokio::spawn(async move {
            drive(context, peer, requests, responses).await;
            drop((slot, open));
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Returns the other end of the request's connection.
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
        self.open(request).await
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
