//! A proxy's side of xDS streams.
#![allow(dead_code, unreachable_pub, missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_client::ExtensionConfigDiscoveryServiceClient as EcdsClient;
use envoy_types::pb::google::rpc::Status as RpcStatus;
use headgate_xds::ECDS_TYPE_URL;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::common::{World, configuration, node};

pub const CDS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// A stream, as the sender of its requests and the receiver of its responses.
pub struct Wire {
    pub requests: mpsc::Sender<DiscoveryRequest>,
    pub responses: Streaming<DiscoveryResponse>,
}

impl Wire {
    pub async fn send(&self, request: DiscoveryRequest) {
        assert!(
            self.requests.send(request).await.is_ok(),
            "the server has ended the stream"
        );
    }

    pub async fn next(&mut self) -> DiscoveryResponse {
        self.responses
            .message()
            .await
            .unwrap()
            .expect("the server has ended the stream")
    }

    /// Acknowledges the next response and returns its text.
    pub async fn text(&mut self) -> Result<String, Status> {
        let response = self.responses.message().await?;
        let response = response.ok_or_else(|| Status::cancelled("the stream ended"))?;
        // The server may have ended the stream.
        let _ = self.requests.send(ack(&response)).await;
        let bytes: Vec<u8> = response
            .resources
            .iter()
            .flat_map(|any| any.value.clone())
            .collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub async fn failure(&mut self) -> Status {
        loop {
            match self.responses.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without an error"),
                Err(status) => return status,
            }
        }
    }
}

/// Opens a stream and sends `first`.
pub async fn open(channel: Channel, first: DiscoveryRequest) -> Result<Wire, Status> {
    let (requests, rx) = mpsc::channel(16);
    requests.send(first).await.unwrap();
    let mut client = EcdsClient::new(channel);
    let responses = client.stream_extension_configs(ReceiverStream::new(rx));
    Ok(Wire {
        requests,
        responses: responses.await?.into_inner(),
    })
}

pub async fn sotw(world: &World, first: DiscoveryRequest) -> Wire {
    open(world.channel().await, first).await.unwrap()
}

pub fn hello(target: Option<&str>) -> DiscoveryRequest {
    subscribe(node("edge-1", target))
}

/// Returns the first request of a stream.
pub fn subscribe(node: Option<Node>) -> DiscoveryRequest {
    DiscoveryRequest {
        node,
        resource_names: vec!["headgate".into()],
        type_url: ECDS_TYPE_URL.into(),
        ..DiscoveryRequest::default()
    }
}

pub fn ack(response: &DiscoveryResponse) -> DiscoveryRequest {
    DiscoveryRequest {
        version_info: response.version_info.clone(),
        resource_names: vec!["headgate".into()],
        type_url: ECDS_TYPE_URL.into(),
        response_nonce: response.nonce.clone(),
        ..DiscoveryRequest::default()
    }
}

pub fn nack(response: &DiscoveryResponse, running: &str) -> DiscoveryRequest {
    let message = "Unable to create Wasm plugin headgate".to_owned();
    DiscoveryRequest {
        version_info: running.to_owned(),
        error_detail: Some(RpcStatus {
            code: 13,
            message,
            ..RpcStatus::default()
        }),
        ..ack(response)
    }
}

pub fn revision(response: &DiscoveryResponse) -> String {
    assert_eq!(response.type_url, ECDS_TYPE_URL);
    let [resource] = response.resources.as_slice() else {
        panic!("{response:?}")
    };
    configuration(resource).revision
}
