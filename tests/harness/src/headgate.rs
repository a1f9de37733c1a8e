//! The `headgate` binary as a child process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::bootstrap::Bootstrap;
use crate::http;
use crate::process::Child;

/// Environment variable with the path of the binary. The default is `dist/headgate` of this
/// repository.
pub const HEADGATE_ENV: &str = "HEADGATE_BIN";

/// Environment variable with the path of the filter's Wasm module. The default is
/// `dist/headgate.wasm`.
const MODULE_ENV: &str = "HEADGATE_WASM";

/// Environment variable with the path of the filter's native module. The default is
/// `dist/libheadgate.so`.
const NATIVE_ENV: &str = "HEADGATE_NATIVE";

/// Environment variable with the tested kind of filter: `wasm`, the default, or `native`.
const FILTER_ENV: &str = "HEADGATE_FILTER";

/// Environment variable with the folder of the variants that `scripts/build variants` builds.
pub const VARIANTS_ENV: &str = "HEADGATE_VARIANTS";

/// A running `headgate run`. Killed when dropped.
#[derive(Debug)]
pub struct Headgate {
    child: Child,
    xds: SocketAddr,
    admin: SocketAddr,
    admission: Option<SocketAddr>,
}

/// The options of `headgate run`.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The folder of policies.
    pub config_dir: PathBuf,
    /// The filter's module.
    pub module: PathBuf,
    /// The native module, for proxies that request it.
    pub native: Option<PathBuf>,
    /// The folder from which proxies load the module. `None` for the binary's default.
    pub module_dir: Option<PathBuf>,
    /// The address of the xDS server. Port 0 picks a free port.
    pub xds: SocketAddr,
    /// Additional arguments.
    pub arguments: Vec<String>,
}

impl RunOptions {
    /// Returns the options for a free port and the built module.
    pub fn new(config_dir: &Path) -> Self {
        Self {
            config_dir: config_dir.to_owned(),
            module: module_path(),
            native: None,
            module_dir: None,
            xds: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            arguments: Vec::new(),
        }
    }
}

impl Headgate {
    /// Starts the operator and waits until it serves.
    ///
    /// # Errors
    /// If the operator can't be started or ends. The error contains its last lines of output.
    pub fn start(options: &RunOptions) -> Result<Self> {
        let mut command = Command::new(binary_path());
        command
            .arg("run")
            .arg("--config-dir")
            .arg(&options.config_dir)
            .arg(format!("--xds={}", options.xds))
            .arg("--admin=127.0.0.1:0")
            .arg("--wasm")
            .arg(&options.module)
            .args(&options.arguments);
        if let Some(native) = &options.native {
            command.arg("--native").arg(native);
        }
        if let Some(dir) = &options.module_dir {
            command.arg("--module-dir").arg(dir);
        }
        Self::spawn(command)
    }

    /// Starts `headgate run` with these arguments and with an admin address on a free port. Waits
    /// until it serves.
    ///
    /// # Errors
    /// If the program can't be started or ends. The error contains its last lines of output.
    pub fn start_with(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary_path());
        command
            .arg("run")
            .args(arguments)
            .arg("--admin=127.0.0.1:0");
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Result<Self> {
        let mut child = Child::spawn("headgate", &mut command)
            .with_context(|| format!("build it with scripts/build, or set {HEADGATE_ENV}"))?;
        let line = child.wait_for_line("headgate: xds=")?;
        let (xds, admin) = (address(&line, "xds")?, address(&line, "admin")?);
        Ok(Self {
            child,
            xds,
            admin,
            admission: address(&line, "admission").ok(),
        })
    }

    /// Returns the address of the operator's class admission server, if it has one.
    pub fn admission(&self) -> Option<SocketAddr> {
        self.admission
    }

    /// Returns the address of the operator's xDS server.
    pub fn xds(&self) -> SocketAddr {
        self.xds
    }

    /// Returns the address of the operator's admin port, which serves its status.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Returns the operator's status, as JSON.
    ///
    /// # Errors
    /// If the operator doesn't answer.
    pub fn status(&self) -> Result<Value> {
        let answer = http::get(self.admin, "/status")?;
        serde_json::from_str(&answer.body)
            .with_context(|| format!("headgate's status: {}", answer.body))
    }

    /// Returns the operator's output.
    pub fn output(&self) -> String {
        self.child.output()
    }

    /// Returns the last lines of the operator's output, for messages.
    pub fn tail(&self) -> String {
        self.child.tail()
    }

    /// Returns the operator's process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Returns the operator's resident memory, bytes.
    ///
    /// # Errors
    /// If the operator has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.child.resident_bytes()
    }

    /// Ends the operator with SIGTERM, and with SIGKILL if it doesn't end.
    ///
    /// # Errors
    /// If its end can't be awaited.
    pub fn stop(self) -> Result<()> {
        self.child.stop()
    }

    /// Kills the operator without notice.
    ///
    /// # Errors
    /// If the operator can't be killed.
    pub fn kill(self) -> Result<()> {
        self.child.kill()
    }
}

/// Runs a `headgate` command to its end and returns its standard output.
///
/// # Errors
/// If the command can't be run or fails. The error contains its standard error.
pub fn run_command(arguments: &[&str]) -> Result<String> {
    run_program(&binary_path(), arguments)
}

/// Runs a command of [`full_path`] to its end and returns its standard output.
///
/// # Errors
/// If the command can't be run or fails. The error contains its standard error.
pub fn run_full(arguments: &[&str]) -> Result<String> {
    run_program(&full_path(), arguments)
}

fn run_program(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output =
        output.with_context(|| format!("{}: build it with scripts/build", program.display()))?;
    if !output.status.success() {
        bail!(
            "headgate {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns a bootstrap of `headgate bootstrap` for a listener on a free port, with `arguments`
/// added. The command prints it, or writes it to the file of `--output`.
///
/// # Errors
/// If the command fails.
pub fn bootstrap(upstream: SocketAddr, xds: SocketAddr, arguments: &[&str]) -> Result<Bootstrap> {
    let (upstream, xds) = (format!("--upstream={upstream}"), format!("--xds={xds}"));
    let mut all = vec![
        "bootstrap",
        "--listen=127.0.0.1:0",
        "--admin=127.0.0.1:0",
        &upstream,
        &xds,
    ];
    all.extend_from_slice(arguments);
    let printed = run_command(&all)?;
    // With `--output`, the standard output has instructions instead of the bootstrap.
    let file = arguments.iter().find_map(|a| a.strip_prefix("--output="));
    match file {
        Some(file) => Bootstrap::parse(&std::fs::read_to_string(file)?),
        None => Bootstrap::parse(&printed),
    }
}

/// Returns the path of the `headgate` binary.
pub fn binary_path() -> PathBuf {
    std::env::var_os(HEADGATE_ENV).map_or_else(|| dist("headgate"), PathBuf::from)
}

/// Returns the path of the `headgate` binary with all commands. The binary of [`binary_path`] may
/// be the image's, which has fewer.
pub fn full_path() -> PathBuf {
    dist("headgate")
}

/// Returns the path of the filter's Wasm module.
pub fn module_path() -> PathBuf {
    std::env::var_os(MODULE_ENV).map_or_else(|| dist("headgate.wasm"), PathBuf::from)
}

/// Returns the path of the filter's native module.
pub fn native_path() -> PathBuf {
    std::env::var_os(NATIVE_ENV).map_or_else(|| dist("libheadgate.so"), PathBuf::from)
}

/// Whether the native filter is tested, rather than the Wasm filter.
pub fn is_native() -> bool {
    std::env::var_os(FILTER_ENV).is_some_and(|kind| kind == "native")
}

/// Returns the tested kind of filter, as a value of `--filter`.
pub fn tested_kind() -> &'static str {
    if is_native() { "native" } else { "wasm" }
}

/// Returns the path of the module of the tested kind.
pub fn tested_module() -> PathBuf {
    if is_native() {
        native_path()
    } else {
        module_path()
    }
}

/// Copies [`tested_module`] to `folder`, where a test can replace it, and returns the copy's path.
///
/// # Errors
/// If the module can't be copied.
pub fn copy_tested_module(folder: &Path) -> Result<PathBuf> {
    let module = tested_module();
    let copy = folder.join(module.file_name().unwrap_or_default());
    std::fs::copy(&module, &copy).with_context(|| module.display().to_string())?;
    Ok(copy)
}

/// Returns the path of a variant of the module that only tests load, such as `headgate-trap.wasm`.
/// It is in the folder that the environment variable [`VARIANTS_ENV`] names, or in
/// `target/variants`.
pub fn variant_path(name: &str) -> PathBuf {
    let folder = std::env::var_os(VARIANTS_ENV).map(PathBuf::from);
    folder
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/variants"))
        .join(name)
}

fn dist(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../dist")
        .join(name)
}

/// Returns the address in `name=ADDRESS`, a part of a line.
///
/// # Errors
/// If the line has no such address.
pub fn address(line: &str, name: &str) -> Result<SocketAddr> {
    let value = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    value
        .and_then(|v| v.parse().ok())
        .ok_or_else(|| anyhow!("no {name}= in {line:?}"))
}
