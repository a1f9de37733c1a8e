//! An xDS server in this process, and proxies that communicate with the server over the wire.
#![allow(clippy::unwrap_used, dead_code)]

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use headgate_api::plan::Plan;
use headgate_controller::metrics::Metrics;
use headgate_controller::xds::module::{Module, Modules};
use headgate_controller::xds::registry::Registry;
use headgate_controller::xds::snapshot::Snapshot;
use headgate_controller::xds::tls::TlsFiles;
use headgate_controller::xds::{Limits, Server};
use headgate_core::config::FilterConfig;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// A certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate and its key, both in PEM.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL treats a certificate whose subject equals its issuer as self-signed.
        params
            .distinguished_name
            .push(DnType::CommonName, "test CA");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    fn sign(&self, mut params: CertificateParams, life: Duration) -> Pair {
        params.use_authority_key_identifier_extension = true;
        params.not_before = (SystemTime::now() - Duration::from_secs(3_600)).into();
        params.not_after = (SystemTime::now() - Duration::from_secs(3_500) + life).into();
        let key = KeyPair::generate().unwrap();
        Pair {
            cert: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    pub(crate) fn server(&self) -> Pair {
        let params = CertificateParams::new(vec!["headgate.test".to_owned()]).unwrap();
        self.sign(params, Duration::from_secs(7_200))
    }

    /// Returns a proxy's certificate with these URIs.
    pub(crate) fn proxy(&self, uris: &[&str]) -> Pair {
        self.sign(of_uris(uris), Duration::from_secs(7_200))
    }

    /// Returns a certificate that expired some minutes ago.
    pub(crate) fn expired(&self, uri: &str) -> Pair {
        self.sign(of_uris(&[uri]), Duration::ZERO)
    }
}

fn of_uris(uris: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    let uri = |u: &&str| SanType::URI((*u).try_into().unwrap());
    params.subject_alt_names = uris.iter().map(uri).collect();
    params
}

/// Returns the SPIFFE id of a workload in `namespace`.
pub(crate) fn spiffe(namespace: &str) -> String {
    format!("spiffe://cluster.local/ns/{namespace}/sa/default")
}

/// Writes the server's certificate and key and the clients' CA into `dir`. Each file is written
/// atomically.
pub(crate) fn write_tls(dir: &Path, pair: &Pair, client_ca: &str) -> TlsFiles {
    let file = |name: &str, content: &str| {
        let (path, next) = (dir.join(name), dir.join(format!(".{name}")));
        std::fs::write(&next, content).unwrap();
        std::fs::rename(next, &path).unwrap();
        path
    };
    TlsFiles {
        cert: file("tls.crt", &pair.cert),
        key: file("tls.key", &pair.key),
        client_ca: file("ca.crt", client_ca),
        tokens: false,
    }
}

/// Returns a plan with a policy of this revision for each of these targets.
pub(crate) fn plan(targets: &[&str], revision: &str) -> Arc<Plan> {
    let config = |target: &str| {
        let namespace = target.split('/').nth(1).unwrap();
        let json = format!(
            r#"{{"revision": "{revision}-{namespace}", "stages": [{{
                "policy": "{namespace}/policy", "parallelism": 1,
                "queue": {{"max_length": 1, "timeout_us": 1}}, "types": [{{"name": "default"}}],
                "strategy": {{"type": "MaxQueueLength"}}}}]}}"#
        );
        Arc::new(FilterConfig::from_json(json.as_bytes()).unwrap())
    };
    Arc::new(Plan {
        workloads: targets
            .iter()
            .map(|t| (t.parse().unwrap(), config(t)))
            .collect(),
        ..Plan::default()
    })
}

/// A server on a free port.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) plans: watch::Sender<Arc<Plan>>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(crate) metrics: Metrics,
    _modules: watch::Sender<Arc<Modules>>,
    _shutdown: watch::Sender<bool>,
    pub(crate) dir: TempDir,
}

impl Running {
    /// Starts a server of `plan`. The server uses TLS if a certificate and a client CA are given.
    pub(crate) async fn start(plan: Arc<Plan>, limits: Limits, tls: Option<(&Pair, &str)>) -> Self {
        Self::with_module(plan, limits, tls, b"\0asm\x01\0\0\0").await
    }

    /// Starts a server as [`start`](Self::start) does, with a module that an Envoy can load.
    pub(crate) async fn with_module(
        plan: Arc<Plan>,
        limits: Limits,
        tls: Option<(&Pair, &str)>,
        wasm: &[u8],
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("m.wasm");
        std::fs::write(&source, wasm).unwrap();
        let module = Module::install(&source, &dir.path().join("modules")).unwrap();
        let (plans, plan_rx) = watch::channel(plan);
        let (modules, module_rx) = watch::channel(Arc::new(module.into()));
        let shutdown = watch::Sender::new(false);
        let metrics = Metrics::new();
        let registry = Registry::new(limits.proxies, limits.keep, metrics.clone());
        let registry = Arc::new(registry);
        let mut server = Server::new(plan_rx, module_rx, limits, Arc::clone(&registry));
        if let Some((pair, client_ca)) = tls {
            let files = write_tls(dir.path(), pair, client_ca);
            server = server.with_tls(files.load().await.unwrap(), None);
        }
        let snapshots = server.snapshots();
        // The listener accepts connections to all addresses of 127.0.0.0/8, and clients may use
        // different ones as their own.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(server.serve(listener, shutdown.subscribe()));
        Self {
            address,
            plans,
            registry,
            snapshots,
            metrics,
            _modules: modules,
            _shutdown: shutdown,
            dir,
        }
    }

    /// Returns a channel without TLS, from the address `local`.
    pub(crate) async fn plain(&self, local: &str) -> Result<Channel, tonic::transport::Error> {
        let local: IpAddr = local.parse().unwrap();
        Endpoint::from_shared(format!("http://{}", self.address))?
            .local_address(Some(local))
            .connect()
            .await
    }

    /// Returns a channel over TLS, with or without a certificate.
    pub(crate) async fn tls(
        &self,
        server_ca: &str,
        own: Option<&Pair>,
    ) -> Result<Channel, tonic::transport::Error> {
        let mut config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(server_ca))
            .domain_name("headgate.test");
        if let Some(own) = own {
            config = config.identity(Identity::from_pem(&own.cert, &own.key));
        }
        Endpoint::from_shared(format!("https://{}", self.address))?
            .tls_config(config)?
            .connect()
            .await
    }
}

/// Returns a node with these strings as metadata.
pub(crate) fn node(id: &str, metadata: &[(&str, &str)]) -> Node {
    let value = |text: &str| Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    };
    let fields: HashMap<String, Value> = metadata
        .iter()
        .map(|(k, v)| ((*k).to_owned(), value(v)))
        .collect();
    Node {
        id: id.to_owned(),
        metadata: Some(Struct { fields }),
        ..Node::default()
    }
}

/// Returns the first request of a stream.
pub(crate) fn subscribe(node: Node) -> DiscoveryRequest {
    DiscoveryRequest {
        node: Some(node),
        resource_names: vec!["headgate".to_owned()],
        ..DiscoveryRequest::default()
    }
}

/// Polls until `condition` holds, and panics if it doesn't hold within 20 s.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waited = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let deadline = Duration::from_secs(20);
    assert!(
        tokio::time::timeout(deadline, waited).await.is_ok(),
        "waited {deadline:?} for {what}"
    );
}
