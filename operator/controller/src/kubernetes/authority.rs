//! The operator's own CA, for clusters without a PKI.
//!
//! The CA is in a Secret that the first replica creates. Each replica signs a certificate of its
//! own with it, into files that [`Tls`](crate::xds::tls::Tls) follows, and signs the next one long
//! before that one expires. So neither people nor the chart create certificates. Two replicas
//! conflict only when the Secret is created: the API server lets one of them win.
//!
//! An existing Secret of this name is used as it is, also one that a chart before 0.2 made:
//! certificates of its CA stay valid. Proxies get the CA from ConfigMaps ([`super::publish`]).

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use tokio::time::Instant;
use tracing::{info, warn};

use super::FIELD_MANAGER;
use super::cluster::ObjectKey;
use super::deliver::object::MANAGED_BY;
use crate::certificate::{Authority, new_authority};
use crate::xds::tls::TlsFiles;

/// The validity of a new CA.
const CA_LIFE: Duration = Duration::from_secs(3_650 * 86_400);
/// The validity of the operator's certificate.
const LIFE: Duration = Duration::from_secs(30 * 86_400);
/// The age at which a certificate is renewed.
const RENEW: Duration = Duration::from_secs(10 * 86_400);
/// The interval at which the Secret is read again, in case its CA has been replaced.
const CHECK: Duration = Duration::from_secs(3_600);
/// The pause after the API server failed to answer.
const RETRY: Duration = Duration::from_secs(5);

/// Data of a Secret.
type Data = BTreeMap<String, ByteString>;

/// Signs the operator's certificate with the CA of a Secret.
#[derive(Debug, Clone)]
pub struct OwnCertificate {
    api: Api<Secret>,
    secret: ObjectKey,
    names: Vec<String>,
    files: TlsFiles,
}

impl OwnCertificate {
    /// Returns a signer for these DNS names and IP addresses that writes into `files`.
    #[must_use]
    pub fn new(client: Client, secret: ObjectKey, names: Vec<String>, files: TlsFiles) -> Self {
        Self {
            api: Api::namespaced(client, &secret.namespace),
            secret,
            names,
            files,
        }
    }

    /// Signs the first certificate, as soon as the API server answers. Returns the CA.
    ///
    /// # Errors
    /// One line: the Secret can't be read or used.
    pub async fn issue(&self) -> anyhow::Result<Data> {
        let named = || format!("--tls-authority {}", self.secret.name);
        loop {
            let data = match self.authority().await {
                Ok(data) => data,
                Err(Error::Api(status)) if (400..500).contains(&status.code) => {
                    return Err(anyhow::Error::from(Error::Api(status)).context(named()));
                }
                Err(error) => {
                    warn!(
                        "--tls-authority {}: {error}; trying again",
                        self.secret.name
                    );
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            self.sign(&data).with_context(named)?;
            return Ok(data);
        }
    }

    /// Renews the certificate that `authority` has signed, for ever.
    pub async fn follow(self, mut authority: Data) {
        let mut signed = Instant::now();
        loop {
            tokio::time::sleep(CHECK).await;
            match self.renew(&authority, signed.elapsed()).await {
                Ok(Some(data)) => (authority, signed) = (data, Instant::now()),
                Ok(None) => {}
                Err(error) => {
                    let name = &self.secret.name;
                    warn!("--tls-authority {name}: {error:#}; the certificate from before stays");
                }
            }
        }
    }

    /// Signs another certificate if the CA has changed or the certificate has reached the age for
    /// renewal. Returns the CA.
    async fn renew(&self, authority: &Data, age: Duration) -> anyhow::Result<Option<Data>> {
        let data = self.authority().await?;
        if data == *authority && age < RENEW {
            return Ok(None);
        }
        self.sign(&data)?;
        Ok(Some(data))
    }

    /// Returns the Secret's data; creates the Secret if it doesn't exist.
    async fn authority(&self) -> Result<Data, Error> {
        loop {
            if let Some(secret) = self.api.get_opt(&self.secret.name).await? {
                return Ok(secret.data.unwrap_or_default());
            }
            let secret = self.new_secret().map_err(|e| Error::Service(e.into()))?;
            match self.api.create(&PostParams::default(), &secret).await {
                Ok(secret) => {
                    info!(
                        secret = self.secret.name,
                        "made a CA for the operator's certificate"
                    );
                    return Ok(secret.data.unwrap_or_default());
                }
                // Another replica created it first.
                Err(Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn new_secret(&self) -> anyhow::Result<Secret> {
        let pair = new_authority("headgate CA", CA_LIFE, SystemTime::now())?;
        let data = [("tls.crt", pair.cert), ("tls.key", pair.key)];
        let data = data.map(|(key, pem)| (key.to_owned(), ByteString(pem.into_bytes())));
        Ok(Secret {
            metadata: ObjectMeta {
                name: Some(self.secret.name.clone()),
                labels: Some([(MANAGED_BY.0.to_owned(), FIELD_MANAGER.to_owned())].into()),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(data.into()),
            ..Secret::default()
        })
    }

    fn sign(&self, data: &Data) -> anyhow::Result<()> {
        let part = |key: &str| {
            let bytes = data.get(key).map(|bytes| bytes.0.as_slice());
            bytes.ok_or_else(|| anyhow!("the Secret has no {key}; a CA's has tls.crt and tls.key"))
        };
        let authority = Authority::from_pem(part("tls.crt")?, part("tls.key")?)?;
        let address = |name: &String| name.parse::<IpAddr>().ok();
        let addresses: Vec<IpAddr> = self.names.iter().filter_map(address).collect();
        let names = self.names.iter().filter(|name| address(name).is_none());
        let names: Vec<String> = names.cloned().collect();
        let pair = authority.server(&names, &addresses, LIFE, SystemTime::now())?;
        let files = &self.files;
        for (path, content) in [
            (&files.client_ca, authority.cert()),
            (&files.key, &pair.key),
            (&files.cert, &pair.cert),
        ] {
            replace(path, content).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

/// Replaces a file atomically.
fn replace(path: &Path, content: &str) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&partial)?;
    file.write_all(content.as_bytes())?;
    fs::rename(partial, path)
}
