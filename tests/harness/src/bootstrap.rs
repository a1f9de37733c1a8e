//! Envoy bootstraps as values. They are the output of `headgate bootstrap`, with the changes that a
//! test needs.

use std::net::SocketAddr;

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};

/// An Envoy bootstrap.
#[derive(Debug, Clone, PartialEq)]
pub struct Bootstrap {
    root: Value,
}

impl Bootstrap {
    /// Parses a bootstrap in YAML or JSON.
    ///
    /// # Errors
    /// If the text is neither.
    pub fn parse(text: &str) -> Result<Self> {
        let root = serde_saphyr::from_str(text).context("the bootstrap is no YAML")?;
        Ok(Self { root })
    }

    /// Returns the bootstrap of a plain proxy without Headgate. It has one listener called
    /// `ingress` and one cluster called `upstream`, and all other ports are free.
    pub fn plain(upstream: SocketAddr) -> Self {
        let mut bootstrap = Self { root: json!({}) };
        bootstrap.root["admin"] = json!({"address": socket("127.0.0.1", 0)});
        let router = json!({
            "name": "envoy.filters.http.router",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            },
        });
        let manager = json!({
            "@type": concat!(
                "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.",
                "HttpConnectionManager",
            ),
            "stat_prefix": "ingress",
            "http_filters": [router],
            "route_config": {"virtual_hosts": [{
                "name": "all",
                "domains": ["*"],
                "routes": [{
                    "match": {"prefix": "/"},
                    "route": {"cluster": "upstream", "timeout": "0s"},
                }],
            }]},
        });
        let listener = json!({
            "name": "ingress",
            "address": socket("127.0.0.1", 0),
            "filter_chains": [{"filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": manager,
            }]}],
        });
        let endpoint =
            json!({"endpoint": {"address": socket(&upstream.ip().to_string(), upstream.port())}});
        // The circuit breakers are high, so that only the subject of the test limits the load.
        let limits = json!({
            "max_connections": 100_000,
            "max_pending_requests": 100_000,
            "max_requests": 100_000,
            "max_retries": 100,
        });
        let cluster = json!({
            "name": "upstream",
            "type": "STATIC",
            "connect_timeout": "5s",
            "circuit_breakers": {"thresholds": [limits]},
            "load_assignment": {
                "cluster_name": "upstream",
                "endpoints": [{"lb_endpoints": [endpoint]}],
            },
        });
        bootstrap.root["static_resources"] =
            json!({"listeners": [listener], "clusters": [cluster]});
        bootstrap
    }

    /// Returns the bootstrap as JSON, for Envoy.
    ///
    /// # Errors
    /// If the bootstrap can't be serialised.
    pub fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(&self.root)?)
    }

    /// Returns the root of the bootstrap, for changes that have no method of their own.
    pub fn root(&mut self) -> &mut Value {
        &mut self.root
    }

    /// Returns the name of the first listener.
    ///
    /// # Errors
    /// If the bootstrap has no listener.
    pub fn listener_name(&self) -> Result<String> {
        let name = self.root["static_resources"]["listeners"][0]["name"].as_str();
        name.map(str::to_owned)
            .ok_or_else(|| anyhow!("the bootstrap's first listener has no name"))
    }

    /// Returns the configuration of the HTTP connection manager of the first listener.
    ///
    /// # Errors
    /// If the bootstrap has no such manager.
    pub fn manager(&mut self) -> Result<&mut Value> {
        let path = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
        self.root
            .pointer_mut(path)
            .ok_or_else(|| anyhow!("the bootstrap's first listener has no HTTP manager"))
    }

    /// Returns the cluster `name`.
    ///
    /// # Errors
    /// If no cluster has this name.
    pub fn cluster(&mut self, name: &str) -> Result<&mut Value> {
        let clusters = self.root["static_resources"]["clusters"].as_array_mut();
        let cluster = clusters.into_iter().flatten().find(|c| c["name"] == name);
        cluster.ok_or_else(|| anyhow!("the bootstrap has no cluster {name}"))
    }

    /// Inserts a filter before all other HTTP filters.
    ///
    /// # Errors
    /// If there is no HTTP connection manager.
    pub fn prepend_filter(&mut self, filter: Value) -> Result<()> {
        let filters = self.manager()?["http_filters"].as_array_mut();
        filters
            .ok_or_else(|| anyhow!("the HTTP manager has no filters"))?
            .insert(0, filter);
        Ok(())
    }

    /// Adds an access log to standard output. It has a line for each request, which begins with the
    /// mark `ACCESS `.
    ///
    /// # Errors
    /// If there is no HTTP connection manager.
    pub fn log_access(&mut self, format: &str) -> Result<()> {
        self.manager()?["access_log"] = json!([{
            "name": "envoy.access_loggers.stdout",
            "typed_config": {
                "@type":
                    "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
                "log_format": {
                    "text_format_source": {"inline_string": format!("ACCESS {format}\n")},
                },
            },
        }]);
        Ok(())
    }

    /// Returns the routes of the first virtual host.
    ///
    /// # Errors
    /// If the routes are not in the bootstrap.
    pub fn routes(&mut self) -> Result<&mut Vec<Value>> {
        let routes = self
            .manager()?
            .pointer_mut("/route_config/virtual_hosts/0/routes");
        routes
            .and_then(Value::as_array_mut)
            .ok_or_else(|| anyhow!("the bootstrap has no routes"))
    }

    /// Makes Envoy use HTTP/2 to the upstream `cluster`.
    ///
    /// # Errors
    /// If no cluster has this name.
    pub fn http2_upstream(&mut self, cluster: &str) -> Result<()> {
        self.cluster(cluster)?["typed_extension_protocol_options"] = json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type":
                    "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            },
        });
        Ok(())
    }
}

/// Returns an Envoy socket address.
pub fn socket(address: &str, port: u16) -> Value {
    json!({"socket_address": {"address": address, "port_value": port}})
}
