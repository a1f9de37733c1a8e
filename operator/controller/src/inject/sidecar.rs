//! The containers and volumes of an injected Envoy, from a template.

use minijinja::context;
use minijinja::value::Serde;
use serde_json::Value;

use super::{Settings, names};
use crate::template;

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
    let values = context! {
        headgate, envoy, volume, app_port, port_name,
        admin_port => ADMIN_PORT,
        stats_port => STATS_PORT,
        xds => settings.xds.to_string(),
        ..Serde(settings)
    };
    let filled = template::render("sidecar.yaml.j2", include_str!("sidecar.yaml.j2"), values)
        .map_err(|error| error.to_string())?;
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
