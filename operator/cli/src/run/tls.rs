//! Arguments for TLS on the xDS address.

use std::future::Future;
use std::path::PathBuf;

use clap::Args;

use headgate_controller::kubernetes::authority::OwnCertificate;
use headgate_controller::kubernetes::client::{Access, connect};
use headgate_controller::metrics::Metrics;
use headgate_deliver::cluster::ObjectKey;
use headgate_xds::tls::{Tls, TlsFiles};

/// TLS on the xDS address. All three files or none.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TlsArgs {
    /// Serve xDS over TLS with this certificate chain (PEM). Changes of the files take effect
    /// without a restart
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "client_ca"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// CA certificates that verify proxies' certificates (PEM, one or several). A certificate
    /// proves the namespace in its URI, spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT. With
    /// --kubernetes, a proxy may present a token of its service account with audience headgate
    /// instead
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Secret in the operator's namespace with the CA that issues --tls-cert. The operator creates
    /// the Secret if it doesn't exist, and writes the three files above
    #[arg(long, value_name = "NAME", requires_all = ["tls_cert", "kubernetes"])]
    pub(crate) tls_authority: Option<String>,
    /// DNS name or IP address in the certificate that --tls-authority issues; may be repeated
    #[arg(long = "tls-name", value_name = "NAME", requires = "tls_authority")]
    pub(crate) tls_names: Vec<String>,
    /// Name of the ConfigMap that the operator writes into every watched namespace. It has the
    /// content of --client-ca as ca.crt, with which proxies verify the operator
    #[arg(long, value_name = "NAME", requires_all = ["tls_cert", "kubernetes"])]
    pub(crate) publish_ca: Option<String>,
}

impl TlsArgs {
    fn files(&self, tokens: bool) -> Option<TlsFiles> {
        Some(TlsFiles {
            cert: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            client_ca: self.client_ca.clone()?,
            tokens,
        })
    }

    /// Creates the files if --tls-authority is set. The returned future renews the files forever.
    ///
    /// # Errors
    /// Returns one line if the Secret can't be used.
    pub(crate) async fn make(
        &self,
        access: &Access,
        namespace: Option<String>,
        metrics: &Metrics,
    ) -> anyhow::Result<Option<impl Future<Output = ()> + use<>>> {
        let (Some(secret), Some(files)) = (&self.tls_authority, self.files(true)) else {
            return Ok(None);
        };
        let (client, default_namespace) = connect(access, metrics.clone()).await?;
        let secret = ObjectKey::new(namespace.unwrap_or(default_namespace), secret.clone());
        let own = OwnCertificate::new(client, secret, self.tls_names.clone(), files);
        let signed = own.issue().await?;
        Ok(Some(own.follow(signed)))
    }

    /// Reads the files, if the arguments name them. With `tokens`, proxies may connect without a
    /// certificate.
    ///
    /// # Errors
    /// Returns one line that names the file at fault.
    pub(crate) async fn load(&self, tokens: bool) -> anyhow::Result<Option<Tls>> {
        match self.files(tokens) {
            Some(files) => files.load().await.map(Some),
            None => Ok(None),
        }
    }
}
