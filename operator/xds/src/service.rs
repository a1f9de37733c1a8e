//! The gRPC service, which is ECDS with state of the world. Requests of other protocols are
//! refused.

use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_server::ExtensionConfigDiscoveryService;
use http::HeaderMap;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

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
    async fn admit(&self, peer: Peer, headers: &HeaderMap) -> Result<(Peer, Slot), Status> {
        let address = peer.address;
        let admitted = self.tenants.admit(peer, headers, 1).await;
        admitted.map_err(|refused| {
            let why = refused.to_string();
            let status = match refused {
                Refused::Full { .. } => Status::resource_exhausted(why),
                Refused::Unproven(_) => Status::permission_denied(why),
                Refused::Token(Refusal::Invalid(_)) => Status::unauthenticated(why),
                Refused::Token(Refusal::Unavailable(_)) => Status::unavailable(why),
            };
            self.context.registry.refuse(None, address, status)
        })
    }

    /// Refuses a request of another protocol.
    pub(crate) fn other_protocol(&self, peer: &Peer) -> Status {
        let status = Status::unimplemented(OTHER_PROTOCOL);
        self.context.registry.refuse(None, peer.address, status)
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
        let (peer, slot) = self.admit(peer, request.metadata().as_ref()).await?;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::limits::Limits;
    use crate::metrics::XdsMetrics;
    use crate::registry::Registry;
    use crate::snapshot::Snapshot;

    /// A subscriber that counts log lines.
    struct Lines(Arc<AtomicUsize>);

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// Envoy retries forever, about 3,000 times a day.
    #[tokio::test]
    async fn a_stream_that_is_refused_again_and_again_does_not_fill_the_log() {
        let registry = Registry::new(1, Duration::ZERO, XdsMetrics::default());
        let registry = Arc::new(registry);
        let snapshot = Arc::new(Snapshot::new(Arc::default(), Arc::default()));
        let context = Context::new(
            tokio::sync::watch::channel(snapshot).1,
            Arc::clone(&registry),
            tokio::sync::watch::channel(false).1,
            Limits::default(),
        );
        let service = DiscoveryService::new(context, None);
        // The peer proves no identity.
        let peer = Peer::new(([127, 0, 0, 1], 1).into(), Some(&[]));
        let lines = Arc::default();
        let _lines = tracing::subscriber::set_default(Lines(Arc::clone(&lines)));
        for _ in 0..3 {
            assert!(
                service
                    .admit(peer.clone(), &HeaderMap::new())
                    .await
                    .is_err()
            );
            service.other_protocol(&peer);
        }
        assert_eq!(registry.metrics.streams_refused.get(), 6);
        assert_eq!(lines.load(Ordering::Relaxed), 2, "one for each reason");
    }
}
