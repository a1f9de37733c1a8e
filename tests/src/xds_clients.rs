//! Simulated proxies: many xDS clients that, like real proxies, each have their own connection and
//! address.
//!
//! The clients use ECDS as Envoy does. They subscribe, accept every resource, and keep the last
//! one. The benchmark measures the operator, so clients do as little as possible. They record the
//! time at which they send their acceptance.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::transport::{ClientTlsConfig, Endpoint};

use crate::wait;
use crate::xds::{Claims, lock, request, subscribe};

/// The number of connections that are being established at once. More would overflow the backlog.
/// The kernel then drops packets, and the time until their retransmission isn't the operator's.
const CONNECTING: usize = 256;
/// The longest time until all clients have the expected configuration. Ten thousand handshakes take
/// a while.
const PATIENCE: Duration = Duration::from_secs(300);

/// A proxy to simulate.
#[derive(Debug, Clone)]
pub struct ClientSpec {
    /// The identity that the proxy claims.
    pub claims: Claims,
    /// The operator's CA and the proxy's own certificate, if the proxy uses TLS.
    pub tls: Option<ClientTlsConfig>,
}

/// The state of a client.
#[derive(Debug, Clone)]
struct Held {
    /// The last resource, encoded.
    resource: Vec<u8>,
    /// The time at which the client sent its acceptance of the resource.
    accepted: Instant,
    /// The number of responses that the client has received.
    responses: u64,
}

#[derive(Debug, Default)]
struct Client {
    held: Mutex<Option<Held>>,
    /// The reason why the client's stream ended, if it did.
    error: Mutex<Option<String>>,
}

/// Running clients. Dropping this value ends them.
#[derive(Debug)]
pub struct Fleet {
    clients: Vec<Arc<Client>>,
    _runtime: Runtime,
}

impl Fleet {
    /// Connects a client for each of `specs` to `xds` and opens its stream.
    ///
    /// # Errors
    /// If a client can't connect.
    pub fn start(xds: SocketAddr, specs: Vec<ClientSpec>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let clients: Vec<Arc<Client>> = specs.iter().map(|_| Arc::default()).collect();
        let turns = Arc::new(Semaphore::new(CONNECTING));
        let mut connecting = JoinSet::new();
        for ((number, spec), client) in specs.into_iter().enumerate().zip(&clients) {
            let (client, turns) = (Arc::clone(client), Arc::clone(&turns));
            connecting.spawn_on(
                async move {
                    let _turn = turns.acquire().await?;
                    let node = spec.claims.id.clone();
                    let connected = connect(xds, own_address(number), spec, client).await;
                    connected.with_context(|| format!("client {node}"))
                },
                runtime.handle(),
            );
        }
        runtime.block_on(async {
            while let Some(connected) = connecting.join_next().await {
                connected??;
            }
            Ok::<_, anyhow::Error>(())
        })?;
        Ok(Self {
            clients,
            _runtime: runtime,
        })
    }

    /// Waits until all clients of `numbers` have a configuration that contains `marker`, and
    /// returns the time at which the last of them accepted it.
    ///
    /// # Errors
    /// If the clients don't have it in time, or a stream ended.
    pub fn wait_for(
        &self,
        numbers: impl IntoIterator<Item = usize>,
        marker: &str,
    ) -> Result<Instant> {
        let mut missing: Vec<usize> = numbers.into_iter().collect();
        let mut last: Option<Instant> = None;
        wait::until_within(PATIENCE, &format!("clients to hold {marker}"), || {
            let mut failed = None;
            missing.retain(|&number| {
                let Some(client) = self.clients.get(number) else {
                    failed = Some(format!("there is no client {number}"));
                    return true;
                };
                if let Some(error) = lock(&client.error).as_ref() {
                    failed = Some(format!("the stream of client {number} ended: {error}"));
                    return true;
                }
                match lock(&client.held).as_ref() {
                    Some(held) if contains(&held.resource, marker) => {
                        last = last.max(Some(held.accepted));
                        false
                    }
                    _ => true,
                }
            });
            match (failed, missing.len(), last) {
                (None, 0, Some(last)) => Ok(last),
                (None, missing, _) => Err(format!("{missing} don't")),
                (Some(why), ..) => Err(why),
            }
        })
    }

    /// Returns the number of responses that all clients together have received.
    pub fn responses(&self) -> u64 {
        let of = |c: &Arc<Client>| lock(&c.held).as_ref().map_or(0, |held| held.responses);
        self.clients.iter().map(of).sum()
    }
}

/// Returns a different address for each client, because the operator limits connections by address.
fn own_address(number: usize) -> IpAddr {
    let (high, low) = (number / 250, number % 250);
    let byte = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    Ipv4Addr::new(127, 1, byte(high), byte(low + 1)).into()
}

async fn connect(
    xds: SocketAddr,
    local: IpAddr,
    spec: ClientSpec,
    client: Arc<Client>,
) -> Result<()> {
    let endpoint = match spec.tls.clone() {
        Some(tls) => Endpoint::from_shared(format!("https://{xds}"))?.tls_config(tls)?,
        None => Endpoint::from_shared(format!("http://{xds}"))?,
    };
    let first = DiscoveryRequest {
        node: Some(spec.claims.node()),
        ..request()
    };
    let endpoint = endpoint.local_address(Some(local));
    let (requests, mut responses) = subscribe(&endpoint, first).await?;
    tokio::spawn(async move {
        let mut count = 0;
        let ended = loop {
            let response = match responses.message().await {
                Ok(Some(response)) => response,
                Ok(None) => break "by the operator".to_owned(),
                Err(status) => break status.to_string(),
            };
            count += 1;
            let ack = DiscoveryRequest {
                version_info: response.version_info,
                response_nonce: response.nonce,
                ..request()
            };
            if requests.send(ack).await.is_err() {
                break "while it accepted a response".to_owned();
            }
            if let Some(any) = response.resources.into_iter().next_back() {
                *lock(&client.held) = Some(Held {
                    resource: any.value,
                    accepted: Instant::now(),
                    responses: count,
                });
            }
        };
        *lock(&client.error) = Some(ended);
    });
    Ok(())
}

fn contains(haystack: &[u8], needle: &str) -> bool {
    let needle = needle.as_bytes();
    haystack.windows(needle.len()).any(|w| w == needle)
}
