//! TLS on the xDS address, with certificates from files that may be replaced at any time.
//!
//! The files are usually in a mounted Secret, which Kubernetes replaces by renaming a symlink while
//! the operator runs. They are polled rather than watched, because reading three small files each
//! second costs little, and works with every kind of mount. The content is unusable if it isn't
//! PEM, or if the key doesn't match because only some files have been replaced. Then the previous
//! content stays in use.
//!
//! TLS sessions are never resumed. A resumed session would skip the verification of the client's
//! certificate, and so ignore a change of the CA.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::AsyncReadExt as _;
use tokio::sync::watch;
use tracing::{error, info, warn};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::certificate;
use crate::metrics::XdsMetrics;
use crate::timestamp::rfc3339;

/// The interval at which the files are read.
const POLL: Duration = Duration::from_secs(1);
/// The maximum size of a file, bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The paths of the server's certificate and key and of the CA of its clients, all PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate chain, its own certificate first.
    pub cert: PathBuf,
    /// The private key of the server's certificate.
    pub key: PathBuf,
    /// CAs that sign the proxies' certificates.
    pub client_ca: PathBuf,
    /// Whether a proxy may connect without a certificate, because it can present a token.
    pub tokens: bool,
}

/// Returns an error about the file that `argument` names.
fn fault(argument: &str, path: &Path, problem: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("--{argument} {}: {problem}", path.display())
}

/// The content of the files at one moment.
#[derive(Clone, PartialEq, Eq)]
struct Pem {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Vec<u8>,
}

/// The server's certificate and the CAs that verify its clients.
pub struct Trust {
    /// The server's TLS configuration.
    pub(crate) config: Arc<ServerConfig>,
    /// The content of the client CAs' file, PEM.
    client_ca: Vec<u8>,
    verifier: Arc<dyn ClientCertVerifier>,
    /// The start and the end of the time in which the server's certificate and at least one CA are
    /// valid.
    validity: (SystemTime, SystemTime),
}

impl TlsFiles {
    async fn read(&self) -> anyhow::Result<Pem> {
        Ok(Pem {
            cert: read("tls-cert", &self.cert).await?,
            key: read("tls-key", &self.key).await?,
            client_ca: read("client-ca", &self.client_ca).await?,
        })
    }

    fn trust(&self, pem: &Pem) -> anyhow::Result<Trust> {
        let of_cert = |p: String| fault("tls-cert", &self.cert, p);
        let of_ca = |p: String| fault("client-ca", &self.client_ca, p);
        let chain = certificates(&pem.cert).map_err(of_cert)?;
        let key = PrivateKeyDer::from_pem_slice(&pem.key).map_err(|e| {
            fault(
                "tls-key",
                &self.key,
                format!(
                    "no private key in PEM ({e}); a Secret of type kubernetes.io/tls has it as \
                         tls.key"
                ),
            )
        })?;
        let authorities = certificates(&pem.client_ca).map_err(of_ca)?;
        let server = chain
            .first()
            .map_or(Err("no certificate".to_owned()), validity);
        let server = server.map_err(of_cert)?;
        let mut roots = RootCertStore::empty();
        let mut latest = SystemTime::UNIX_EPOCH;
        for authority in authorities {
            latest = latest.max(validity(&authority).map_err(of_ca)?.1);
            roots
                .add(authority)
                .map_err(|e| of_ca(format!("no CA certificate: {e}")))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        if self.tokens {
            verifier = verifier.allow_unauthenticated();
        }
        let verifier = verifier.build().map_err(|e| of_ca(e.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| of_cert(e.to_string()))?
            .with_client_cert_verifier(Arc::clone(&verifier))
            .with_single_cert(chain, key)
            .map_err(|e| {
                of_cert(format!(
                    "it can't be used with --tls-key {}: {e}",
                    self.key.display()
                ))
            })?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Trust {
            config: Arc::new(config),
            client_ca: pem.client_ca.clone(),
            verifier,
            validity: (server.0, server.1.min(latest)),
        })
    }

    /// Reads the files for the first time.
    ///
    /// # Errors
    /// Returns one line that names the file at fault.
    pub async fn load(self) -> anyhow::Result<Tls> {
        let pem = self.read().await?;
        let trust = self.trust(&pem)?;
        Ok(Tls {
            files: self,
            pem,
            trust: watch::Sender::new(Arc::new(trust)),
        })
    }
}

async fn read(argument: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    let content = async {
        let file = tokio::fs::File::open(path).await?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes).await?;
        Ok(bytes)
    };
    content
        .await
        .map_err(|error: io::Error| fault(argument, path, error))
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => {
            Err("no certificate in it; PEM starts with -----BEGIN CERTIFICATE-----".to_owned())
        }
        Err(e) => Err(format!("no PEM: {e}")),
    }
}

fn validity(der: &CertificateDer<'_>) -> Result<(SystemTime, SystemTime), String> {
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|e| format!("no X.509 certificate: {e}"))?;
    Ok(certificate::validity(&certificate))
}

impl Trust {
    /// Returns the expiry of the server's certificate or of the last valid client CA, whichever is
    /// earlier.
    pub const fn expires(&self) -> SystemTime {
        self.validity.1
    }

    /// Returns the server's TLS configuration for HTTP/1.1.
    pub fn http1(&self) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// Returns the client CAs, PEM. They also verify the server's certificate.
    pub fn client_ca(&self) -> &[u8] {
        &self.client_ca
    }

    /// Whether a client with `chain` would be accepted at `now`.
    pub fn admits(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> bool {
        let since = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        chain.split_first().is_some_and(|(own, intermediates)| {
            self.verifier
                .verify_client_cert(own, intermediates, UnixTime::since_unix_epoch(since))
                .is_ok()
        })
    }

    /// Returns the age of the certificates at `now`. It states whether the last part of their life
    /// has begun, or they have expired.
    fn age(&self, now: SystemTime) -> Age {
        match certificate::is_old(self.validity, now) {
            _ if self.expires() < now => Age::Expired,
            true => Age::Old,
            false => Age::Fresh,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Age {
    Fresh,
    Old,
    Expired,
}

/// TLS files with the loaded certificates.
pub struct Tls {
    files: TlsFiles,
    pem: Pem,
    trust: watch::Sender<Arc<Trust>>,
}

impl Tls {
    /// Returns the current and later values.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Trust>> {
        self.trust.subscribe()
    }

    /// Reloads changed files until all receivers are dropped.
    pub(crate) async fn follow(self, metrics: &XdsMetrics) {
        let Self {
            files,
            mut pem,
            trust,
        } = self;
        let mut refused: Option<String> = None;
        let mut logged = Age::Fresh;
        let mut tick = tokio::time::interval(POLL);
        loop {
            report_age(&trust.borrow(), &mut logged, metrics, &files);
            tokio::select! {
                _ = tick.tick() => {}
                () = trust.closed() => return,
            }
            let next = match files.read().await {
                Ok(now) if now == pem => {
                    refused = None;
                    continue;
                }
                Ok(now) => files.trust(&now).map(|trust| (now, trust)),
                Err(error) => Err(error),
            };
            match next {
                Ok((now, next)) => {
                    info!(
                        expires = rfc3339(next.expires()),
                        "new TLS files are in use; proxies whose certificate isn't signed by \
                         one of their CAs are disconnected"
                    );
                    (pem, refused, logged) = (now, None, Age::Fresh);
                    metrics.tls_reloads.inc();
                    trust.send_replace(Arc::new(next));
                }
                Err(error) => {
                    // Each error is logged once, rather than every second.
                    let error = error.to_string();
                    if refused.as_ref() != Some(&error) {
                        metrics.tls_reload_failures.inc();
                        warn!("{error}; the previous TLS files stay in use");
                        refused = Some(error);
                    }
                }
            }
        }
    }
}

/// Updates the metric. Logs one warning before the expiry, and one error at the expiry.
fn report_age(trust: &Trust, logged: &mut Age, metrics: &XdsMetrics, files: &TlsFiles) {
    metrics.set_certificate_validity(trust.validity);
    let age = trust.age(SystemTime::now());
    if age == *logged {
        return;
    }
    *logged = age;
    let (cert, ca) = (files.cert.display(), files.client_ca.display());
    let expires = rfc3339(trust.expires());
    match age {
        Age::Fresh => {}
        Age::Old => warn!(
            expires,
            "the TLS certificate {cert} or the CA {ca} expires soon; see why its issuer doesn't \
             renew it"
        ),
        Age::Expired => error!(
            expires,
            "the TLS certificate {cert} or the CA {ca} has expired: proxies can't connect and keep \
             their last configuration; see why its issuer didn't renew it"
        ),
    }
}

#[cfg(test)]
mod tests;
