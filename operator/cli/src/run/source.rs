//! The source of the policies of `headgate run`: a folder, or the API server of a cluster.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use clap::Args;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use headgate_controller::kubernetes::ca_bundle::CaBundle;
use headgate_controller::kubernetes::operate::{Operator, OperatorArgs, Shared};
use headgate_controller::source;
use headgate_xds::tls::Trust;

/// The source of policies: a folder or a cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct SourceArgs {
    /// Folder with AdmissionPolicy files (*.yaml, *.yml)
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present = "kubernetes",
        conflicts_with = "kubernetes"
    )]
    pub(crate) config_dir: Option<PathBuf>,
    /// Read AdmissionPolicies from the API server, and write their status
    #[arg(long)]
    pub(crate) kubernetes: bool,
    #[command(flatten)]
    pub(crate) operator: OperatorArgs,
}

impl SourceArgs {
    /// Checks that the source exists.
    ///
    /// # Errors
    /// Returns one line if the folder is missing.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        match &self.config_dir {
            Some(dir) if !dir.is_dir() => bail!(
                "--config-dir {}: no such folder; create it and put AdmissionPolicy files in",
                dir.display()
            ),
            _ => Ok(()),
        }
    }

    /// Returns the name of the source for messages.
    pub(super) fn name(&self) -> String {
        match &self.config_dir {
            Some(dir) => dir.display().to_string(),
            None => "the API server".to_owned(),
        }
    }

    /// Starts the source, which sends plans. An operator in a cluster writes statuses from its
    /// first plan on.
    ///
    /// # Errors
    /// Returns one line if no API server is known.
    pub(super) async fn start(
        &self,
        publish_ca: Option<(String, watch::Receiver<Arc<Trust>>)>,
        ca_bundle: Option<CaBundle>,
        shared: Shared,
        shutdown: watch::Receiver<bool>,
    ) -> anyhow::Result<Source> {
        if let Some(dir) = &self.config_dir {
            let Shared { plans, metrics, .. } = shared;
            // Without a cluster, this process always leads.
            metrics.plan.set_leader(true);
            let watching = source::dir::watch(dir.clone(), plans, shutdown, metrics);
            return Ok(Source {
                watching: tokio::spawn(watching),
                ended: format!("--config-dir {}: watching it ended", dir.display()),
                operator: None,
            });
        }
        let args = self.operator.clone();
        let operator = Operator::start(args, publish_ca, ca_bundle, shared, shutdown);
        let (operator, watching) = operator.await?;
        Ok(Source {
            watching,
            ended: "--kubernetes: watching the API server ended".to_owned(),
            operator: Some(operator),
        })
    }
}

/// A source that sends plans.
pub(super) struct Source {
    watching: JoinHandle<anyhow::Result<()>>,
    /// The error message if `watching` ends without an error.
    ended: String,
    /// The operator in a cluster. `None` for a folder.
    pub(super) operator: Option<Operator>,
}

impl Source {
    /// Returns a description of the objects that the first plan waits for.
    pub(super) fn missing(&self) -> watch::Receiver<String> {
        match &self.operator {
            None => watch::channel("the folder to be read".to_owned()).1,
            Some(operator) => operator.waiting.clone(),
        }
    }

    /// Waits until the source fails and returns the error.
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        match (&mut self.watching).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) | Err(_) => anyhow!("{}", self.ended),
        }
    }

    /// Waits until all writes have ended after the shutdown.
    pub(super) async fn ended(self) {
        match self.operator {
            None => self.watching.abort(),
            // The tasks don't panic. After a panic, there would be nothing left to wait for.
            Some(operator) => drop(operator.writing.await),
        }
    }
}
