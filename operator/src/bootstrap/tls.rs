//! TLS to the operator: the transport socket of its cluster, and the two SDS files that make Envoy follow
//! renewed certificates.
//!
//! Envoy reads certificates again only where they come through SDS. An SDS file that names them, with the
//! folder to watch, does that: Kubernetes replaces a mounted Secret by moving a symlink there, and Envoy
//! watches for moves.

use std::path::{Path, PathBuf};

use super::quoted;

/// Names of the two secrets.
const CERTIFICATE: &str = "headgate_xds_certificate";
const CA: &str = "headgate_xds_ca";

/// How a proxy proves itself, and knows the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdsTls {
    /// The proxy's certificate chain, PEM.
    pub cert: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
    /// CA of the operator's certificate, PEM.
    pub ca: PathBuf,
    /// Name that the operator's certificate must have.
    pub server_name: String,
    /// Where Envoy finds the SDS files.
    pub sds: SdsFiles,
}

/// Paths of the SDS files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SdsFiles {
    /// Holds [`XdsTls::certificate_yaml`].
    pub certificate: PathBuf,
    /// Holds [`XdsTls::ca_yaml`].
    pub ca: PathBuf,
}

impl SdsFiles {
    /// Beside the bootstrap: `envoy.yaml` has `envoy-xds-certificate.yaml` and `envoy-xds-ca.yaml`.
    #[must_use]
    pub fn beside(bootstrap: &Path) -> Self {
        let stem = bootstrap.file_stem().unwrap_or_default().to_string_lossy();
        let file = |part: &str| bootstrap.with_file_name(format!("{stem}-xds-{part}.yaml"));
        Self {
            certificate: file("certificate"),
            ca: file("ca"),
        }
    }
}

fn path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// The folder of a file, as something to watch.
fn folder(file: &Path) -> String {
    let parent = file.parent().filter(|p| !p.as_os_str().is_empty());
    path(parent.unwrap_or(Path::new(".")))
}

impl XdsTls {
    /// The cluster's transport socket.
    pub(super) fn transport_socket(&self) -> String {
        let name = quoted(&self.server_name);
        // Addresses stand in certificates as another kind of name.
        let (kind, sni) = match self.server_name.parse::<std::net::IpAddr>() {
            Ok(_) => ("IP_ADDRESS", String::new()),
            Err(_) => ("DNS", format!("\n    sni: {name}")),
        };
        format!(
            "\
# Both ends prove who they are. The proxy's certificate has the URI spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT,
# and it gets what is for that namespace.
transport_socket:
  name: envoy.transport_sockets.tls
  typed_config:
    \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext{sni}
    common_tls_context:
      tls_params: {{tls_minimum_protocol_version: TLSv1_2}}
      # Through SDS, although they are files: so Envoy takes renewed ones without a restart.
      tls_certificate_sds_secret_configs:
      - name: {CERTIFICATE}
        sds_config: {{resource_api_version: V3, path_config_source: {{path: {certificate}}}}}
      combined_validation_context:
        default_validation_context:
          match_typed_subject_alt_names:
          - {{san_type: {kind}, matcher: {{exact: {name}}}}}
        validation_context_sds_secret_config:
          name: {CA}
          sds_config: {{resource_api_version: V3, path_config_source: {{path: {ca}}}}}",
            certificate = path(&self.sds.certificate),
            ca = path(&self.sds.ca),
        )
    }

    /// Content of the SDS file for the proxy's certificate.
    #[must_use]
    pub fn certificate_yaml(&self) -> String {
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
            cert = path(&self.cert),
            key = path(&self.key),
            folder = folder(&self.cert),
        )
    }

    /// Content of the SDS file for the CA.
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
