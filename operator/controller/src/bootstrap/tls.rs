//! TLS to the operator: the transport socket of its cluster, the filter that sends a token, and the
//! two SDS files that make Envoy follow renewed certificates and tokens.
//!
//! Envoy reads certificates and tokens again only if they come through SDS. The SDS file names them
//! and the folder to watch. Kubernetes replaces a mounted Secret or token by moving a symlink in
//! that folder, and Envoy watches for moves.
//!
//! An upstream filter of the cluster adds the token to `authorization` of each stream. Envoy's
//! alternative, credentials of `google_grpc`, doesn't apply to HTTP calls, which the filter makes
//! to the server of class admission.

use std::path::{Path, PathBuf};

use super::{indented, quoted};

/// Names of the SDS secrets.
const CERTIFICATE: &str = "headgate_xds_certificate";
const TOKEN: &str = "headgate_xds_token";
const CA: &str = "headgate_xds_ca";

/// The credential that proves a proxy's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyIdentity {
    /// A certificate.
    Certificate {
        /// The certificate chain, PEM.
        cert: PathBuf,
        /// Its key, PEM.
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
    /// The paths beside the bootstrap: `envoy.yaml` has `envoy-xds-certificate.yaml` or
    /// `envoy-xds-token.yaml`, and `envoy-xds-ca.yaml`.
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

fn path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// Returns the folder of `file` as an Envoy watched directory.
fn folder(file: &Path) -> String {
    let parent = file.parent().filter(|p| !p.as_os_str().is_empty());
    path(parent.unwrap_or(Path::new(".")))
}

impl XdsTls {
    pub(super) fn transport_socket(&self) -> String {
        let name = quoted(&self.server_name);
        // Certificates have addresses as another kind of subject alternative name.
        let (kind, sni) = match self.server_name.parse::<std::net::IpAddr>() {
            Ok(_) => ("IP_ADDRESS", String::new()),
            Err(_) => ("DNS", format!("\n    sni: {name}")),
        };
        let (comment, certificate) = match &self.identity {
            ProxyIdentity::Certificate { .. } => (
                "\
# Both ends prove who they are. The proxy's certificate has the URI spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT,
# and it gets what is for that namespace.",
                format!(
                    "
      # Through SDS, although they are files: so Envoy takes renewed ones without a restart.
      tls_certificate_sds_secret_configs:
      - {}",
                    indented(&self.secret(CERTIFICATE), 8)
                ),
            ),
            ProxyIdentity::Token(_) => ("# The operator proves who it is.", String::new()),
        };
        format!(
            "\
{comment}
transport_socket:
  name: envoy.transport_sockets.tls
  typed_config:
    \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext{sni}
    common_tls_context:
      tls_params: {{tls_minimum_protocol_version: TLSv1_2}}{certificate}
      combined_validation_context:
        default_validation_context:
          match_typed_subject_alt_names:
          - {{san_type: {kind}, matcher: {{exact: {name}}}}}
        validation_context_sds_secret_config:
          name: {CA}
          sds_config: {{resource_api_version: V3, path_config_source: {{path: {ca}}}}}",
            ca = path(&self.sds.ca),
        )
    }

    /// Returns the reference to a secret in the SDS file of the identity.
    fn secret(&self, name: &str) -> String {
        format!(
            "\
name: {name}
sds_config: {{resource_api_version: V3, path_config_source: {{path: {}}}}}",
            path(&self.sds.identity)
        )
    }

    /// Returns further lines of the cluster's `HttpProtocolOptions`.
    pub(super) fn http_filters(&self) -> String {
        let ProxyIdentity::Token(_) = &self.identity else {
            return String::new();
        };
        format!(
            "\
    # The proxy's token says which namespace it is of, and it gets what is for that namespace.
    http_filters:
    - name: envoy.filters.http.credential_injector
      typed_config:
        \"@type\": type.googleapis.com/envoy.extensions.filters.http.credential_injector.v3.CredentialInjector
        overwrite: true
        credential:
          name: envoy.http.injected_credentials.generic
          typed_config:
            \"@type\": type.googleapis.com/envoy.extensions.http.injected_credentials.generic.v3.Generic
            header_value_prefix: \"Bearer \"
            credential:
              {secret}
    - name: envoy.filters.http.upstream_codec
      typed_config:
        \"@type\": type.googleapis.com/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec
",
            secret = indented(&self.secret(TOKEN), 14),
        )
    }

    /// Returns the content of the SDS file for the proxy's certificate or token.
    #[must_use]
    pub fn identity_yaml(&self) -> String {
        match &self.identity {
            ProxyIdentity::Certificate { cert, key } => certificate_yaml(cert, key),
            ProxyIdentity::Token(token) => token_yaml(token),
        }
    }

    /// Returns the content of the SDS file for the CA.
    #[must_use]
    pub fn ca_yaml(&self) -> String {
        format!(
            "\
# The CA that the operator's certificate must be signed by.
resources:
- \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: {CA}
  validation_context:
    trusted_ca: {{filename: {ca}}}
    watched_directory: {{path: {folder}}}
",
            ca = path(&self.ca),
            folder = folder(&self.ca),
        )
    }
}

fn certificate_yaml(cert: &Path, key: &Path) -> String {
    format!(
        "\
# The certificate by which this proxy proves its namespace to Headgate. Envoy reads it again when something is
# moved into the watched folder.
resources:
- \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: {CERTIFICATE}
  tls_certificate:
    certificate_chain: {{filename: {cert}}}
    private_key: {{filename: {key}}}
    watched_directory: {{path: {folder}}}
",
        cert = path(cert),
        key = path(key),
        folder = folder(cert),
    )
}

fn token_yaml(token: &Path) -> String {
    format!(
        "\
# The token by which this proxy proves its namespace to Headgate. Envoy reads it again when something is moved into
# the watched folder, as the kubelet does when it renews the token.
resources:
- \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: {TOKEN}
  generic_secret:
    secret:
      filename: {token}
      watched_directory: {{path: {folder}}}
",
        token = path(token),
        folder = folder(token),
    )
}
