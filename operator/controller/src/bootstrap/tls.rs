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

use minijinja::value::Serde;
use serde::Serialize;

use crate::template::render;

/// The credential that proves a proxy's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SdsFiles {
    /// The path of the file with [`XdsTls::identity_yaml`].
    pub identity: PathBuf,
    /// The path of the file with [`XdsTls::ca_yaml`].
    pub ca: PathBuf,
}

impl SdsFiles {
    /// Returns the paths beside the bootstrap. For `envoy.yaml`, these are
    /// `envoy-xds-certificate.yaml` or `envoy-xds-token.yaml`, and `envoy-xds-ca.yaml`.
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
    /// Returns the content of the SDS file for the proxy's certificate or token.
    ///
    /// # Errors
    /// If a path isn't UTF-8.
    pub fn identity_yaml(&self) -> anyhow::Result<String> {
        let template = include_str!("templates/sds_identity.yaml.j2");
        render("sds_identity.yaml.j2", template, Serde(self))
    }

    /// Returns the content of the SDS file for the CA.
    ///
    /// # Errors
    /// If a path isn't UTF-8.
    pub fn ca_yaml(&self) -> anyhow::Result<String> {
        let template = include_str!("templates/sds_ca.yaml.j2");
        render("sds_ca.yaml.j2", template, Serde(self))
    }
}
