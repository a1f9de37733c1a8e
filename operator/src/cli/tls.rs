//! Arguments for TLS on the xDS address.

use std::path::PathBuf;

use clap::Args;

use crate::xds::tls::{Tls, TlsError, TlsFiles};

/// TLS on the xDS address. All three files or none.
#[derive(Debug, Clone, Default, Args)]
pub struct TlsArgs {
    /// Serve xDS over TLS with this certificate chain (PEM). The files are followed: new ones are taken into use
    /// without a restart
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "client_ca"])]
    pub tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// CA that proxies' certificates must be signed by (PEM, one or several). A certificate is for the namespace in
    /// its URI, spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT. With --kubernetes, a proxy may show a token of its service
    /// account for audience headgate in place of a certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub client_ca: Option<PathBuf>,
}

impl TlsArgs {
    /// Reads the files, if they are named. With `tokens`, proxies may come without a certificate.
    ///
    /// # Errors
    /// One line that names the file at fault.
    pub async fn load(&self, tokens: bool) -> Result<Option<Tls>, TlsError> {
        match (&self.tls_cert, &self.tls_key, &self.client_ca) {
            (Some(cert), Some(key), Some(client_ca)) => {
                let files = TlsFiles {
                    cert: cert.clone(),
                    key: key.clone(),
                    client_ca: client_ca.clone(),
                    tokens,
                };
                files.load().await.map(Some)
            }
            _ => Ok(None),
        }
    }
}
