//! The folders of the programs that tests and benchmarks run. The scripts `get-*` print these
//! folders. A script finds programs in the cache within milliseconds, so a test that is run by hand
//! needs no preparation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result};

use crate::skip::skip;

/// Returns the folder with etcd, kube-apiserver and the other programs of Kubernetes
/// (`scripts/get-kubernetes`).
///
/// # Errors
/// If they aren't in the cache and can't be built.
pub fn kubernetes() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    once(&FOLDER, "get-kubernetes")
}

/// Returns the folder with helm and kubectl (`scripts/get-helm`).
///
/// # Errors
/// If they aren't in the cache and can't be downloaded.
pub fn helm() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    once(&FOLDER, "get-helm")
}

/// Sets the folder of helm's own files for `command`, so that a user's repositories and plugins
/// don't affect a test.
pub fn helm_home(command: &mut Command, home: &Path) {
    for (name, folder) in [
        ("HELM_CACHE_HOME", "cache"),
        ("HELM_CONFIG_HOME", "config"),
        ("HELM_DATA_HOME", "data"),
    ] {
        command.env(name, home.join(folder));
    }
}

/// Returns the folder with containerd and the other programs that a node needs
/// (`scripts/get-node-tools`).
///
/// # Errors
/// If a program is neither on this machine nor in the cache, and can't be downloaded.
pub fn node_tools() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    once(&FOLDER, "get-node-tools")
}

/// Returns the folder with Envoy Gateway and its chart (`scripts/get-envoy-gateway`).
///
/// # Errors
/// If they aren't in the cache and can't be built.
pub fn envoy_gateway() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    once(&FOLDER, "get-envoy-gateway")
}

/// Returns the folder with the inference extension's endpoint picker and its CRDs
/// (`scripts/get-endpoint-picker`).
///
/// # Errors
/// If they aren't in the cache and can't be built.
pub fn endpoint_picker() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    once(&FOLDER, "get-endpoint-picker")
}

/// Returns the folder with Istio's programs and charts (`scripts/get-istio`).
///
/// # Errors
/// If they aren't in the cache and can't be built.
pub fn istio() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    once(&FOLDER, "get-istio")
}

/// Returns the folder with the previous minor version of Headgate, and its chart
/// (`scripts/get-older`).
///
/// # Errors
/// If they aren't in the cache and can't be built.
pub fn older() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    once(&FOLDER, "get-older")
}

/// Returns the folder with the CRDs of another project (`scripts/get-crds`).
///
/// # Errors
/// If they aren't in the cache and can't be downloaded.
pub fn crds(project: &str) -> Result<PathBuf> {
    Ok(run("get-crds", &[project])?.join(project))
}

/// Returns the environment variables with which the programs of [`node_tools`] are found and run.
///
/// # Errors
/// The errors of [`node_tools`].
pub fn node_environment() -> Result<BTreeMap<String, String>> {
    let file = node_tools()?.join("environment");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    Ok(pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect())
}

/// Returns the folder with prometheus and promtool (`scripts/get-prometheus`).
///
/// # Errors
/// If they are neither on this machine nor in the cache and can't be downloaded.
pub fn prometheus() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    once(&FOLDER, "get-prometheus")
}

/// Returns the path of the load generator k6 (`scripts/get-k6`).
///
/// # Errors
/// If it isn't in the cache and can't be downloaded.
pub fn k6() -> Result<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    once(&PROGRAM, "get-k6")
}

/// Returns the path of the LLM server llama-server (`scripts/get-llama`).
///
/// # Errors
/// If it isn't in the cache and can't be built.
pub fn llama() -> Result<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    once(&PROGRAM, "get-llama")
}

/// Returns the path of a Python with the packages that the services of `tests/wild` import
/// (`scripts/get-service-python`).
///
/// # Errors
/// If it isn't in the cache and can't be made.
pub fn service_python() -> Result<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    once(&PROGRAM, "get-service-python")
}

/// Returns the folder with postgres, initdb and pgbouncer (`scripts/get-postgres`).
///
/// # Errors
/// If they are neither on this machine nor in the cache and can't be downloaded.
pub fn postgres() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    once(&FOLDER, "get-postgres")
}

/// Returns the path of the proxy haproxy (`scripts/get-haproxy`).
///
/// # Errors
/// If it is neither on this machine nor in the cache and can't be downloaded.
pub fn haproxy() -> Result<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    once(&PROGRAM, "get-haproxy")
}

/// Returns the path of the Go toolchain, which no script downloads.
///
/// # Errors
/// If it isn't installed.
pub fn go() -> Result<&'static Path> {
    let found = Command::new("go").arg("version").output().is_ok();
    let missing = || Missing::Unavailable("Go is not installed (https://go.dev/dl)".to_owned());
    Ok(found.then_some(Path::new("go")).ok_or_else(missing)?)
}

/// Returns the root of this repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The exit status by which a script reports that this kind of machine can't have its programs
/// (`scripts/lib.sh`).
const UNAVAILABLE: i32 = 77;

/// The reason why a script returned no folder.
#[derive(Debug, Clone, thiserror::Error)]
enum Missing {
    /// This kind of machine can't have the programs. The text is the reason.
    #[error("{0}")]
    Unavailable(String),
    /// Getting the programs failed. The text is the error.
    #[error("{0}")]
    Failed(String),
}

/// Returns `folder`, or `None` if this kind of machine can't have it. In the second case, reports
/// the running test as skipped.
///
/// # Errors
/// If this kind of machine can have the folder, but getting it failed.
pub fn or_skip(folder: Result<&'static Path>) -> Result<Option<&'static Path>> {
    match folder {
        Ok(folder) => Ok(Some(folder)),
        Err(error) => match why_unavailable(&error) {
            Some(why) => {
                skip(why);
                Ok(None)
            }
            None => Err(error),
        },
    }
}

/// Returns the reason why this kind of machine can't have a program. Returns `None` if `error` has
/// another cause.
pub fn why_unavailable(error: &anyhow::Error) -> Option<&str> {
    match error.downcast_ref() {
        Some(Missing::Unavailable(why)) => Some(why),
        _ => None,
    }
}

fn once(
    folder: &'static OnceLock<Result<PathBuf, Missing>>,
    script: &str,
) -> Result<&'static Path> {
    let had = folder.get_or_init(|| run(script, &[]));
    Ok(had.as_deref().map_err(Clone::clone)?)
}

fn run(script: &str, arguments: &[&str]) -> Result<PathBuf, Missing> {
    let path = repository().join("scripts").join(script);
    let output = Command::new(&path)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Missing::Failed(format!("cannot run {}: {error}", path.display())))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(PathBuf::from(
            String::from_utf8_lossy(&output.stdout).trim(),
        )),
        Some(UNAVAILABLE) => Err(Missing::Unavailable(
            said.lines().last().unwrap_or_default().to_owned(),
        )),
        _ => Err(Missing::Failed(format!("scripts/{script}: {said}"))),
    }
}
