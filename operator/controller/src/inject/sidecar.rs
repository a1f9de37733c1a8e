//! The containers and volumes of an injected Envoy, from a template.

use serde_json::Value;

use super::{Settings, names};
use crate::bootstrap::{fill, quoted};

const CERTIFICATE: &str = "\
- --xds-tls-cert=/etc/headgate/tls/tls.crt
- --xds-tls-key=/etc/headgate/tls/tls.key";
// Mode 0o444 lets Envoy's user read the Secret without an fsGroup, which would also apply to the
// application.
const CERTIFICATE_VOLUME: &str = "secret: {secretName: $NAME, defaultMode: 0o444}";
const TOKEN: &str = "- --xds-token=/etc/headgate/tls/token";
/// The kubelet writes and renews the token. The operator keeps the ConfigMap in each namespace.
const TOKEN_VOLUME: &str = "\
projected:
  sources:
  - serviceAccountToken: {audience: headgate, path: token, expirationSeconds: 3600}
  - configMap: {name: $NAME, items: [{key: ca.crt, path: ca.crt}]}";
/// The port of Envoy's admin interface, on the loopback address.
pub(super) const ADMIN_PORT: u16 = 9901;
/// The port of `/stats/prometheus` and `/ready`.
pub(super) const STATS_PORT: u16 = 9902;
/// The name of [`STATS_PORT`] in the template.
pub(super) const STATS_PORT_NAME: &str = "envoy-stats";

/// Returns `initContainers` and `volumes` for a Pod's spec, with names that `spec` doesn't use yet.
pub(super) fn render(
    settings: &Settings,
    spec: &Value,
    app_port: u16,
    port_name: &str,
) -> Result<Value, String> {
    let containers = [names(&spec["containers"]), names(&spec["initContainers"])].concat();
    let [headgate, envoy] =
        ["headgate", "envoy"].map(|name| free(name, |name| containers.contains(&name)));
    let volumes = names(&spec["volumes"]);
    let is_taken = |prefix: &str| {
        let is_ours = |name: &str| matches!(name, "" | "-tls" | "-podinfo");
        (volumes.iter()).any(|name| name.strip_prefix(prefix).is_some_and(is_ours))
    };
    let volume = free("headgate", is_taken);
    let (identity, tls_volume, name) = match &settings.tls_secret {
        Some(secret) => (CERTIFICATE, CERTIFICATE_VOLUME, secret),
        None => (TOKEN, TOKEN_VOLUME, &settings.ca_config_map),
    };
    let http2 = if settings.upstream_http2 {
        "- --upstream-http2"
    } else {
        ""
    };
    let cpu_limit = settings.proxy_cpu_limit.as_deref();
    let cpu_limit = cpu_limit.map(|limit| format!("cpu: {}, ", quoted(limit)));
    let filled = fill(
        include_str!("sidecar.yaml"),
        &[
            ("HEADGATE", &headgate),
            ("ENVOY", &envoy),
            ("VOLUME", &volume),
            ("IMAGE", &quoted(&settings.image)),
            ("ENVOY_IMAGE", &quoted(&settings.envoy_image)),
            ("LISTEN_PORT", &settings.listen_port.to_string()),
            ("APP_PORT", &app_port.to_string()),
            ("ADMIN_PORT", &ADMIN_PORT.to_string()),
            ("STATS_PORT", &STATS_PORT.to_string()),
            ("XDS", &settings.xds.to_string()),
            ("FILTER", settings.filter.name()),
            ("HTTP_TWO", http2),
            ("IDENTITY", identity),
            ("TLS_VOLUME", &fill(tls_volume, &[("NAME", &quoted(name))])),
            ("CONCURRENCY", &settings.concurrency.to_string()),
            ("PORT_NAME", &quoted(port_name)),
            ("CPU_REQUEST", &quoted(&settings.proxy_cpu_request)),
            ("MEMORY_REQUEST", &quoted(&settings.proxy_memory_request)),
            ("CPU_LIMIT", &cpu_limit.unwrap_or_default()),
            ("MEMORY_LIMIT", &quoted(&settings.proxy_memory_limit)),
        ],
    );
    serde_saphyr::from_str(&filled).map_err(|error| error.to_string())
}

/// Returns `name`, with a number appended if it is taken.
fn free(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let mut found = name.to_owned();
    let mut number = 2;
    while is_taken(&found) {
        found = format!("{name}-{number}");
        number += 1;
    }
    found
}
