//! TLS to the operator: the transport socket of its cluster, the filter that sends a token, and the
//! two SDS files that make Envoy follow renewed certificates and tokens.
//!
//! Envoy reads certificates and tokens again only if they come through SDS. The SDS file names the
//! certificate or token and the folder to watch. Kubernetes replaces a mounted Secret or token by
//! moving a symlink in that folder, and Envoy watches for moves.
//!
//! An upstream filter of the cluster adds the token to `authorization` of each stream. Envoy's
//! alternative, credentials of `google_grpc`, doesn't apply to HTTP calls. The filter's calls to
//! the server of class admission are HTTP calls.

use std::path::{Path, PathBuf};

use super::{fill, folder, path, quoted};

/// The credential that proves a proxy's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyIdentity {
    /// A certificate.
    Certificate {
        /// The certificate chain, PEM.
        cert: PathBuf,
        /// The private key of the certificate, PEM.
        key: PathBuf,
    },
    /// The token of a service account.
    Token(PathBuf),
}

/// The proxy's identity, and the CA and name by which it verifies the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdsTls {
    /// The credential that the proxy presents.
    pub identity: ProxyIdentity,
    /// CA of the operator's certificate, PEM.
    pub ca: PathBuf,
    /// Name that the operator's certificate must have.
    pub server_name: String,
    /// The paths at which Envoy finds the SDS files.
    pub sds: SdsFiles,
}

/// Paths of the SDS files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SdsFiles {
    /// The path of the file with [`XdsTls::identity_yaml`].
    pub identity: PathBuf,
    /// The path of the file with [`XdsTls::ca_yaml`].
    pub ca: PathBuf,
}

impl SdsFiles {
    /// Returns the paths beside the bootstrap. For `envoy.yaml`, these are
    /// `envoy-xds-certificate.yaml` or `envoy-xds-token.yaml`, and `envoy-xds-ca.yaml`.
    #[must_use]
    pub fn beside(bootstrap: &Path, identity: &ProxyIdentity) -> Self {
        let part = match identity {
            ProxyIdentity::Certificate { .. } => "certificate",
            ProxyIdentity::Token(_) => "token",
        };
        let stem = bootstrap.file_stem().unwrap_or_default().to_string_lossy();
        let file = |part: &str| bootstrap.with_file_name(format!("{stem}-xds-{part}.yaml"));
        Self {
            identity: file(part),
            ca: file("ca"),
        }
    }
}

impl XdsTls {
    pub(super) fn transport_socket(&self) -> String {
        let name = quoted(&self.server_name);
        // In certificates, IP addresses and DNS names are different types of subject alternative
        // names.
        let is_address = self.server_name.parse::<std::net::IpAddr>().is_ok();
        let sni = format!("sni: {name}");
        let (comment, certificate) = match &self.identity {
            ProxyIdentity::Certificate { .. } => (
                "\
# Both ends prove who they are. The proxy's certificate has the URI spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT,
# and it gets what is for that namespace.",
                self.by_sds(include_str!("templates/certificate.yaml")),
            ),
            ProxyIdentity::Token(_) => ("# The operator proves who it is.", String::new()),
        };
        fill(
            include_str!("templates/transport_socket.yaml"),
            &[
                ("COMMENT", comment),
                ("SNI", if is_address { "" } else { &sni }),
                ("CERTIFICATE", &certificate),
                ("KIND", if is_address { "IP_ADDRESS" } else { "DNS" }),
                ("SERVER", &name),
                ("CA", &path(&self.sds.ca)),
            ],
        )
    }

    /// Returns `template` with a reference to the secret in the identity's SDS file.
    fn by_sds(&self, template: &str) -> String {
        fill(template, &[("SDS", &path(&self.sds.identity))])
    }

    /// Returns the HTTP filters of the operator's cluster. The only filter adds the token, so the
    /// text is empty for a proxy with a certificate.
    pub(super) fn http_filters(&self) -> String {
        match &self.identity {
            ProxyIdentity::Token(_) => self.by_sds(include_str!("templates/token.yaml")),
            ProxyIdentity::Certificate { .. } => String::new(),
        }
    }

    /// Returns the content of the SDS file for the proxy's certificate or token.
    #[must_use]
    pub fn identity_yaml(&self) -> String {
        let (template, file, key) = match &self.identity {
            ProxyIdentity::Certificate { cert, key } => (
                include_str!("templates/sds_certificate.yaml"),
                cert,
                path(key),
            ),
            ProxyIdentity::Token(token) => (
                include_str!("templates/sds_token.yaml"),
                token,
                String::new(),
            ),
        };
        sds(template, file, &key)
    }

    /// Returns the content of the SDS file for the CA.
    #[must_use]
    pub fn ca_yaml(&self) -> String {
        sds(include_str!("templates/sds_ca.yaml"), &self.ca, "")
    }
}

/// Returns an SDS file that refers to `file`. Envoy watches the file's folder for moves.
fn sds(template: &str, file: &Path, key: &str) -> String {
    let texts = [
        ("FILE", &*path(file)),
        ("KEY", key),
        ("FOLDER", &folder(file)),
    ];
    fill(template, &texts) + "\n"
}
