//! A proxy's side of xDS streams.
#![allow(dead_code, unreachable_pub, missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_client::ExtensionConfigDiscoveryServiceClient as EcdsClient;
use envoy_types::pb::google::rpc::Status as RpcStatus;
use headgate_controller::xds::ECDS_TYPE_URL;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::common::{World, configuration, node};

pub const CDS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// One side of a stream: what is sent, and what comes back.
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

    pub async fn failure(&mut self) -> tonic::Status {
        loop {
            match self.responses.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without an error"),
                Err(status) => return status,
            }
        }
    }
}

pub async fn sotw(world: &World, first: DiscoveryRequest) -> Wire {
    let (requests, rx) = mpsc::channel(16);
    requests.send(first).await.unwrap();
    let mut client = EcdsClient::new(world.channel().await);
    let responses = client
        .stream_extension_configs(ReceiverStream::new(rx))
        .await
        .unwrap();
    Wire {
        requests,
        responses: responses.into_inner(),
    }
}

pub fn hello(target: Option<&str>) -> DiscoveryRequest {
    DiscoveryRequest {
        node: node("edge-1", target),
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
