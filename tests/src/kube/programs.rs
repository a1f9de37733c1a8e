//! Where the programs of a Kubernetes come from: folders that the scripts `get-*` print. What a script has put into the
//! cache once it finds in milliseconds, so that a test run by hand needs no preparation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, bail};

/// Folder with etcd, kube-apiserver and the others (`scripts/get-kubernetes`).
///
/// # Errors
/// If they are neither in the cache nor can be built.
pub fn kubernetes() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    once(&FOLDER, "get-kubernetes")
}

/// Folder with helm and kubectl (`scripts/get-helm`).
///
/// # Errors
/// If they are neither in the cache nor can be downloaded.
pub fn helm() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    once(&FOLDER, "get-helm")
}

/// Folder with containerd and whatever else a node needs (`scripts/get-node-tools`).
///
/// # Errors
/// If something is neither on this machine nor in the cache and can't be downloaded.
pub fn node_tools() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    once(&FOLDER, "get-node-tools")
}

/// Environment in which the programs of [`node_tools`] are found and run.
///
/// # Errors
/// As [`node_tools`].
pub fn node_environment() -> Result<BTreeMap<String, String>> {
    let file = node_tools()?.join("environment");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    Ok(pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect())
}

/// Folder with prometheus and promtool (`scripts/get-prometheus`).
///
/// # Errors
/// If they are neither on the machine nor in the cache nor can be downloaded.
pub fn prometheus() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    once(&FOLDER, "get-prometheus")
}

/// Root of this repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn once(folder: &'static OnceLock<Result<PathBuf, String>>, script: &str) -> Result<&'static Path> {
    folder
        .get_or_init(|| run(script).map_err(|error| format!("{error:#}")))
        .as_deref()
        .map_err(|error| anyhow!("{error}"))
}

fn run(script: &str) -> Result<PathBuf> {
    let path = repository().join("scripts").join(script);
    let output = Command::new(&path)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", path.display()))?;
    if !output.status.success() {
        bail!(
            "scripts/{script}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(PathBuf::from(
        String::from_utf8_lossy(&output.stdout).trim(),
    ))
}
