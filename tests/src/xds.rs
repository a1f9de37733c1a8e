//! An xDS client that acts as a proxy, for tests that don't need an Envoy. It subscribes and
//! reconnects as Envoy does, and records the configurations that it receives.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use envoy_types::pb::envoy::config::core::v3::{Node, TypedExtensionConfig};
use envoy_types::pb::envoy::extensions::filters::http::wasm::v3::Wasm;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_client::ExtensionConfigDiscoveryServiceClient as Client;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{StringValue, Struct, Value};
use envoy_types::pb::google::rpc::Status as RpcStatus;
use headgate_core::config::FilterConfig;
use prost::Message as _;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

use crate::wait::until;

const TYPE_URL: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
const SLOT: &str = "headgate";
/// The pause between attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// The identity that a proxy claims.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    /// The node id.
    pub id: String,
    /// The namespace, under the key `headgate.dev/namespace`.
    pub namespace: Option<String>,
    /// The labels, under the key `headgate.dev/labels`.
    pub labels: BTreeMap<String, String>,
    /// The target, under the key `headgate.dev/target`.
    pub target: Option<String>,
}

impl Claims {
    /// Returns the claims of a sidecar of a Pod with these labels.
    pub fn pod(id: &str, namespace: &str, labels: &[(&str, &str)]) -> Self {
        Self {
            id: id.to_owned(),
            namespace: Some(namespace.to_owned()),
            labels: labels
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            target: None,
        }
    }

    pub(crate) fn node(&self) -> Node {
        let text = |text: &str| Value {
            kind: Some(Kind::StringValue(text.to_owned())),
        };
        let mut fields = HashMap::new();
        if let Some(namespace) = &self.namespace {
            fields.insert("headgate.dev/namespace".to_owned(), text(namespace));
        }
        if let Some(target) = &self.target {
            fields.insert("headgate.dev/target".to_owned(), text(target));
        }
        if !self.labels.is_empty() {
            let labels = self.labels.iter().map(|(k, v)| (k.clone(), text(v)));
            let labels = Struct {
                fields: labels.collect(),
            };
            let value = Value {
                kind: Some(Kind::StructValue(labels)),
            };
            fields.insert("headgate.dev/labels".to_owned(), value);
        }
        Node {
            id: self.id.clone(),
            cluster: "test".to_owned(),
            metadata: Some(Struct { fields }),
            ..Node::default()
        }
    }
}

/// The state of a proxy.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The accepted versions, the newest last, each with its configuration.
    pub history: Vec<(String, FilterConfig)>,
    /// Whether the stream is open and has been answered.
    pub connected: bool,
    /// The reason why the last stream ended.
    pub ended: Option<String>,
}

/// A proxy.
#[derive(Debug)]
pub struct XdsProxy {
    state: Arc<State>,
    task: AbortHandle,
}

#[derive(Debug)]
struct State {
    claims: Claims,
    known: Mutex<Known>,
    server: Mutex<SocketAddr>,
    /// The reason with which the proxy refuses configurations. `None` if it accepts them.
    refusal: Mutex<Option<String>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    RUNTIME
        .get_or_init(|| Runtime::new().map_err(|e| e.to_string()))
        .as_ref()
        .map_err(|e| anyhow!("{e}"))
}

impl XdsProxy {
    /// Starts a proxy that connects to `server`, and reconnects after each failure.
    ///
    /// # Errors
    /// If the proxy's threads can't be started.
    pub fn start(server: SocketAddr, claims: Claims) -> Result<Self> {
        let state = Arc::new(State {
            claims,
            known: Mutex::default(),
            server: Mutex::new(server),
            refusal: Mutex::default(),
        });
        let of_task = Arc::clone(&state);
        let task = runtime()?.spawn(async move {
            loop {
                let ended = of_task.stream().await;
                of_task.ended(ended);
                tokio::time::sleep(PAUSE).await;
            }
        });
        Ok(Self {
            state,
            task: task.abort_handle(),
        })
    }

    /// Makes the proxy refuse later configurations with this reason, or accept them if it is
    /// `None`.
    pub fn refuse(&self, reason: Option<&str>) {
        *lock(&self.state.refusal) = reason.map(str::to_owned);
    }

    /// Sets the server of the proxy's next connection.
    pub fn move_to(&self, server: SocketAddr) {
        *lock(&self.state.server) = server;
    }

    /// Returns the state of the proxy.
    pub fn known(&self) -> Known {
        lock(&self.state.known).clone()
    }

    /// Returns the configuration in force, which is that of the last version that the proxy
    /// accepted.
    pub fn config(&self) -> Option<FilterConfig> {
        lock(&self.state.known)
            .history
            .last()
            .map(|(_, config)| config.clone())
    }

    /// Waits until the proxy's configuration satisfies `is_so`.
    ///
    /// # Errors
    /// If it doesn't in time. The error contains the last configuration.
    pub fn until(&self, what: &str, is_so: impl Fn(&FilterConfig) -> bool) -> Result<FilterConfig> {
        until(what, || match self.config() {
            Some(config) if is_so(&config) => Ok(config),
            _ => Err(format!("{:?}", self.known())),
        })
    }

    /// Waits until the proxy's first policy has this many slots.
    ///
    /// # Errors
    /// If it doesn't in time. The error contains the last configuration.
    pub fn until_slots(&self, slots: u32) -> Result<FilterConfig> {
        self.until(&format!("{slots} slots"), |config| {
            let first = config.stages.first();
            first.is_some_and(|stage| stage.parallelism == slots)
        })
    }

    /// Waits until the proxy enforces exactly these policies, in any order.
    ///
    /// # Errors
    /// If it doesn't in time. The error contains the policies that it enforces.
    pub fn until_policies(&self, policies: &[&str]) -> Result<FilterConfig> {
        let what = format!("policies {policies:?} at {}", self.state.claims.id);
        self.until(&what, |config| {
            let mut found: Vec<&str> = config.stages.iter().map(|s| s.policy.as_str()).collect();
            found.sort_unstable();
            let mut wanted = policies.to_vec();
            wanted.sort_unstable();
            found == wanted
        })
    }
}

impl Drop for XdsProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    async fn stream(&self) -> Result<()> {
        let server = *lock(&self.server);
        let endpoint = Endpoint::from_shared(format!("http://{server}"))?;
        let version = lock(&self.known)
            .history
            .last()
            .map(|(version, _)| version.clone())
            .unwrap_or_default();
        let first = DiscoveryRequest {
            node: Some(self.claims.node()),
            version_info: version,
            ..request()
        };
        let (requests, mut responses) = subscribe(&endpoint, first).await?;
        lock(&self.known).connected = true;
        while let Some(response) = responses.message().await? {
            let answer = self.answer(response)?;
            requests.send(answer).await?;
        }
        Ok(())
    }

    fn ended(&self, how: Result<()>) {
        let mut known = lock(&self.known);
        known.connected = false;
        known.ended = Some(match how {
            Ok(()) => "the server ended it".to_owned(),
            Err(error) => format!("{error:#}"),
        });
    }

    fn answer(&self, response: DiscoveryResponse) -> Result<DiscoveryRequest> {
        let mut known = lock(&self.known);
        let refusal = lock(&self.refusal).clone();
        let mut answer = DiscoveryRequest {
            response_nonce: response.nonce,
            ..request()
        };
        if let Some(message) = refusal {
            answer.error_detail = Some(RpcStatus {
                code: 13,
                message,
                details: Vec::new(),
            });
        } else {
            let resource = response.resources.first().context("no resource")?;
            let config = configuration(&resource.value)?;
            known.history.push((response.version_info, config));
        }
        answer.version_info = known
            .history
            .last()
            .map(|(version, _)| version.clone())
            .unwrap_or_default();
        Ok(answer)
    }
}

/// Opens a stream whose first request is `first`. Returns the sender of further requests and
/// the responses.
pub(crate) async fn subscribe(
    endpoint: &Endpoint,
    first: DiscoveryRequest,
) -> Result<(mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>)> {
    let channel = endpoint.connect().await?;
    let (requests, receiver) = mpsc::channel(4);
    requests.send(first).await?;
    let responses = Client::new(channel)
        .stream_extension_configs(ReceiverStream::new(receiver))
        .await?;
    Ok((requests, responses.into_inner()))
}

pub(crate) fn request() -> DiscoveryRequest {
    DiscoveryRequest {
        resource_names: vec![SLOT.to_owned()],
        type_url: TYPE_URL.to_owned(),
        ..DiscoveryRequest::default()
    }
}

/// Returns the filter's configuration that a resource contains.
fn configuration(resource: &[u8]) -> Result<FilterConfig> {
    let extension = TypedExtensionConfig::decode(resource)?;
    let wasm = Wasm::decode(&extension.typed_config.context("no filter")?.value[..])?;
    let plugin = wasm.config.context("no plugin")?;
    let text = StringValue::decode(&plugin.configuration.context("no configuration")?.value[..])?;
    FilterConfig::from_json(text.value.as_bytes()).map_err(|e| anyhow!("{e}: {}", text.value))
}
