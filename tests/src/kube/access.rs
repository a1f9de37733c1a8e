//! Access to a cluster: kubectl and helm with a kubeconfig, run in a place from which the API
//! server is reachable.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::programs;
use crate::process;

/// kubectl and helm for one cluster.
#[derive(Debug, Clone)]
pub struct Access {
    /// The kubeconfig of an administrator.
    pub kubeconfig: PathBuf,
    /// The prefix of the commands that start programs, such as `nsenter …`, or empty for the
    /// machine's own namespaces.
    pub launcher: Vec<OsString>,
}

impl Access {
    /// Returns a command that runs `program` in a place from which the API server is reachable.
    pub fn command(&self, program: &Path) -> Command {
        let Some((first, rest)) = self.launcher.split_first() else {
            return Command::new(program);
        };
        let mut command = Command::new(first);
        command.args(rest).arg(program);
        command
    }

    /// Runs kubectl as an administrator and returns its output.
    ///
    /// # Errors
    /// If kubectl fails. The error contains kubectl's message.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_as(&self.kubeconfig, arguments, None)
    }

    /// Returns the object or list that `kubectl get` finds with these arguments.
    ///
    /// # Errors
    /// If kubectl fails. The error contains kubectl's message.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        let all = [&["get", "--output=json"], arguments].concat();
        Ok(serde_json::from_str(&self.kubectl(&all)?)?)
    }

    /// Runs kubectl with a kubeconfig and standard input, and returns its output.
    ///
    /// # Errors
    /// If kubectl fails. The error contains kubectl's message.
    pub fn kubectl_as(
        &self,
        kubeconfig: &Path,
        arguments: &[&str],
        input: Option<&str>,
    ) -> Result<String> {
        let mut command = self.command(&programs::helm()?.join("kubectl"));
        command.arg("--kubeconfig").arg(kubeconfig).args(arguments);
        process::run(&mut command, input)
            .with_context(|| format!("kubectl {}", arguments.join(" ")))
    }

    /// Applies YAML with `kubectl apply`.
    ///
    /// # Errors
    /// If an object is refused. The error contains the API server's message.
    pub fn apply(&self, yaml: &str) -> Result<String> {
        self.kubectl_as(&self.kubeconfig, &["apply", "--filename=-"], Some(yaml))
    }

    /// Runs helm as an administrator and returns its output. Helm's own files are in the
    /// kubeconfig's folder, so a user's settings have no effect and no files are left behind.
    ///
    /// # Errors
    /// If helm fails. The error contains helm's message.
    pub fn helm(&self, arguments: &[&str]) -> Result<String> {
        let home = self.kubeconfig.with_file_name("helm");
        let mut command = self.command(&programs::helm()?.join("helm"));
        programs::helm_home(&mut command, &home);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments);
        process::run(&mut command, None).with_context(|| format!("helm {}", arguments.join(" ")))
    }
}
