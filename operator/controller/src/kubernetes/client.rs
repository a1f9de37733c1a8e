//! The connection to the API server, with timeouts on every step.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::requests::count_requests;
use crate::metrics::Metrics;

/// The timeout of connecting to the API server.
const CONNECT: Duration = Duration::from_secs(5);
/// The timeout of sending a request to the API server.
const WRITE: Duration = Duration::from_secs(10);
/// The longest time without a byte from the API server. It is longer than the duration of a watch
/// ([`headgate_deliver::watch::WATCH_SECONDS`]), so only a dead connection reaches it.
const READ: Duration = Duration::from_secs(75);

/// Options for access to the API server.
#[derive(Debug, Clone, Default, Args)]
pub struct Access {
    /// Kubeconfig file [default: $KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

impl Access {
    /// Returns the client's configuration, from the kubeconfig or, in a Pod, from its service
    /// account.
    ///
    /// # Errors
    /// Returns one line that names the argument or file at fault, or has the text of `unknown` if
    /// no cluster is configured.
    pub async fn config(&self, unknown: impl FnOnce() -> String) -> anyhow::Result<Config> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        // The text of each error has those of its causes, so it isn't the source of another error.
        match (&self.kubeconfig, &self.context) {
            (Some(path), _) => {
                let at =
                    |error: KubeconfigError| anyhow!("--kubeconfig {}: {error}", path.display());
                let file = Kubeconfig::read_from(path).map_err(at)?;
                let config = Config::from_custom_kubeconfig(file, &options).await;
                config.map_err(at)
            }
            (None, Some(context)) => Config::from_kubeconfig(&options)
                .await
                .map_err(|error| anyhow!("--context {context}: {error}")),
            (None, None) => Config::infer()
                .await
                .map_err(|error| anyhow!("{}: {error}", unknown())),
        }
    }
}

/// Returns a client and its default namespace.
///
/// # Errors
/// Returns one line that names the missing setting, and the remedy.
pub async fn connect(access: &Access, metrics: Metrics) -> anyhow::Result<(Client, String)> {
    let unknown = "--kubernetes: no cluster is known; in a Pod, give it a service account; \
                   elsewhere, set --kubeconfig or $KUBECONFIG";
    let mut config = access.config(|| unknown.to_owned()).await?;
    config.connect_timeout = Some(CONNECT);
    config.write_timeout = Some(WRITE);
    config.read_timeout = Some(READ);
    config.reset_reader_on_write = true;
    // Watches and writes have their own backoff. A retry by the client would extend a write beyond
    // its timeout without the leader's knowledge, and the leader must not write after its Lease has
    // expired.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let client = ClientBuilder::try_from(config)
        .context("--kubernetes: creating a client failed")?
        .with_layer(&count_requests(metrics))
        .build();
    Ok((client, namespace))
}
