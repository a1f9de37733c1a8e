//! Certificates of an xDS server and of proxies, and the connections of proxies.
#![allow(clippy::unwrap_used, dead_code)]

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use headgate_xds::tls::TlsFiles;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::common::World;

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

impl World {
    /// Returns a channel without TLS, from the address `local`.
    pub(crate) async fn plain(&self, local: &str) -> Result<Channel, tonic::transport::Error> {
        let local: IpAddr = local.parse().unwrap();
        Endpoint::from_shared(format!("http://{}", self.xds))?
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
        Endpoint::from_shared(format!("https://{}", self.xds))?
            .tls_config(config)?
            .connect()
            .await
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
