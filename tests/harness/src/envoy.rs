//! A real Envoy as a child process.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::bootstrap::Bootstrap;
use crate::http;
use crate::process::Child;
use crate::skip::note;
use crate::wait;

/// Prefix of the names of the filter's stats.
const FILTERS: &str = "wasmcustom.headgate.";

/// Environment variable with the path of the Envoy binary. The default is `envoy` in `PATH`.
const ENVOY_ENV: &str = "HEADGATE_ENVOY";

fn program() -> PathBuf {
    std::env::var_os(ENVOY_ENV).map_or_else(|| PathBuf::from("envoy"), PathBuf::from)
}

/// Returns the command prefix that runs a program with its monotonic clock `ahead` of the
/// machine's, in a time namespace of Linux. The program ends with the command.
fn in_time_namespace(ahead: Duration) -> Command {
    let seconds = ahead.as_secs().to_string();
    let mut command = Command::new("unshare");
    command
        .args(["--map-root-user", "--time", "--fork", "--kill-child"])
        .args(["--monotonic", &seconds, "--boottime", &seconds, "--"]);
    command
}

/// Whether clocks can be shifted here. If they can't, prints a note. The running test doesn't count
/// as skipped.
pub fn can_shift_clocks() -> bool {
    const AHEAD: u64 = 1_000_000_000;
    let tried = in_time_namespace(Duration::from_secs(AHEAD))
        .args(["cat", "/proc/uptime"])
        .output();
    let failure = match &tried {
        Ok(output) => {
            let uptime = String::from_utf8_lossy(&output.stdout);
            let shown = uptime.split('.').next().and_then(|s| s.parse().ok());
            if shown.is_some_and(|seconds: u64| seconds >= AHEAD) {
                return true;
            }
            String::from_utf8_lossy(&output.stderr).trim().to_owned()
        }
        Err(error) => error.to_string(),
    };
    note(&format!(
        "clocks not shifted: that needs time namespaces, and unshare (Debian: util-linux) says: {failure}"
    ));
    false
}

/// A running Envoy. Killed when dropped.
#[derive(Debug)]
pub struct EnvoyProcess {
    child: Child,
    admin: SocketAddr,
    _dir: tempfile::TempDir,
}

impl EnvoyProcess {
    /// Starts Envoy with `concurrency` worker threads and waits until it is live and all listeners
    /// serve.
    ///
    /// Ports in `bootstrap`, including the admin port, may be 0. Envoy then picks free ports, and
    /// [`admin`](Self::admin) and [`listener`](Self::listener) return them.
    ///
    /// # Errors
    /// If Envoy is missing, ends, or isn't ready in time. The error contains its last lines of
    /// output.
    pub fn start(bootstrap: &Bootstrap, concurrency: u32) -> Result<Self> {
        Self::spawn(Command::new(program()), bootstrap, concurrency)
    }

    /// Starts Envoy as on a host that started at another time. Envoy's monotonic clock is `ahead`
    /// of this host's clock. The process id and CPU times are those of the program that has set
    /// Envoy's clock.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start), and if [`can_shift_clocks`] is false.
    pub fn start_ahead(bootstrap: &Bootstrap, concurrency: u32, ahead: Duration) -> Result<Self> {
        let mut command = in_time_namespace(ahead);
        command.arg(program());
        Self::spawn(command, bootstrap, concurrency)
    }

    fn spawn(mut command: Command, bootstrap: &Bootstrap, concurrency: u32) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("headgate-envoy-")
            .tempdir()?;
        let config = dir.path().join("bootstrap.json");
        std::fs::write(&config, bootstrap.to_json()?)?;
        let address_file = dir.path().join("admin-address");
        command
            .arg("--config-path")
            .arg(&config)
            .arg("--concurrency")
            .arg(concurrency.to_string())
            .arg("--admin-address-path")
            .arg(&address_file)
            .args([
                "--disable-hot-restart",
                "--log-level",
                "info",
                "--drain-time-s",
                "1",
            ]);
        let mut child = Child::spawn("envoy", &mut command)
            .with_context(|| format!("set {ENVOY_ENV} to an Envoy 1.40 binary"))?;

        let started = wait::until("Envoy's admin address", || {
            if !child.is_running() {
                return Ok(None);
            }
            let address = std::fs::read_to_string(&address_file).map_err(|e| e.to_string())?;
            address
                .trim()
                .parse::<SocketAddr>()
                .map(Some)
                .map_err(|e| e.to_string())
        });
        let admin = match started {
            Ok(Some(admin)) => admin,
            Ok(None) => bail!("Envoy ended at once\n{}", child.tail()),
            Err(error) => bail!("{error}\n{}", child.tail()),
        };
        let mut envoy = Self {
            child,
            admin,
            _dir: dir,
        };
        envoy.wait_until_ready()?;
        Ok(envoy)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let admin = self.admin;
        let ready = wait::until("Envoy to be ready", || {
            let answer = http::get(admin, "/ready").map_err(|e| e.to_string())?;
            if answer.status == 200 {
                Ok(())
            } else {
                Err(answer.body.trim().to_owned())
            }
        });
        ready.map_err(|error| anyhow!("{error}\n{}", self.child.tail()))
    }

    /// Returns the address of the admin interface.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Returns the bound address of the listener of this name.
    ///
    /// # Errors
    /// If no listener has this name.
    pub fn listener(&self, name: &str) -> Result<SocketAddr> {
        let listeners: Value = serde_json::from_str(&self.admin_get("/listeners?format=json")?)?;
        let statuses = listeners["listener_statuses"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let status = statuses.iter().find(|s| s["name"] == name);
        let socket = status.map(|s| &s["local_address"]["socket_address"]);
        let address = socket.and_then(|s| {
            let port = u16::try_from(s["port_value"].as_u64()?).ok()?;
            Some(SocketAddr::new(s["address"].as_str()?.parse().ok()?, port))
        });
        address.ok_or_else(|| anyhow!("Envoy has no listener {name}: {listeners}"))
    }

    /// Returns the body of a `GET` to the admin interface.
    ///
    /// # Errors
    /// If Envoy doesn't answer 200.
    pub fn admin_get(&self, path: &str) -> Result<String> {
        ok(path, http::get(self.admin, path)?)
    }

    /// Returns the body of a `POST` to the admin interface.
    ///
    /// # Errors
    /// If Envoy doesn't answer 200.
    fn admin_post(&self, path: &str) -> Result<String> {
        ok(path, http::post(self.admin, path, "")?)
    }

    /// Returns all counters and gauges by name.
    ///
    /// # Errors
    /// If Envoy doesn't answer.
    pub fn stats(&self) -> Result<BTreeMap<String, u64>> {
        let text = self.admin_get("/stats?type=All")?;
        Ok(text.lines().filter_map(parse_stat).collect())
    }

    /// Returns the value of a counter or gauge, or 0 if Envoy doesn't have it.
    ///
    /// # Errors
    /// If Envoy doesn't answer.
    pub fn stat(&self, name: &str) -> Result<u64> {
        let text = self.admin_get(&format!("/stats?filter={}", filter_of(name, "$")))?;
        let mut stats = text.lines().filter_map(parse_stat);
        Ok(stats
            .find(|(found, _)| found == name)
            .map_or(0, |(_, value)| value))
    }

    /// Returns the counters and gauges whose names start with `prefix`, without the prefix.
    ///
    /// # Errors
    /// If Envoy doesn't answer.
    pub fn stats_under(&self, prefix: &str) -> Result<BTreeMap<String, u64>> {
        let text = self.admin_get(&format!("/stats?filter={}", filter_of(prefix, "")))?;
        let stats = text.lines().filter_map(parse_stat);
        Ok(stats
            .filter_map(|(name, value)| Some((name.strip_prefix(prefix)?.to_owned(), value)))
            .collect())
    }

    /// Returns the number of open client connections of each worker, without those of the admin
    /// interface.
    ///
    /// # Errors
    /// If Envoy doesn't answer.
    pub fn connections_by_worker(&self) -> Result<Vec<u64>> {
        let stats = self.stats_under("listener.")?;
        let of_worker = |name: &str| {
            name.contains(".worker_")
                && name.ends_with(".downstream_cx_active")
                && !name.starts_with("admin")
        };
        Ok(stats
            .iter()
            .filter(|(name, _)| of_worker(name))
            .map(|(_, count)| *count)
            .collect())
    }

    /// Returns the quantiles of a histogram since Envoy's start, as `(percent, value)`. The list is
    /// empty if nothing was recorded. Envoy merges histograms every 5 s, so the newest values may
    /// be missing.
    ///
    /// # Errors
    /// If Envoy doesn't answer.
    pub fn histogram(&self, name: &str) -> Result<Vec<(f64, f64)>> {
        let path = format!(
            "/stats?format=json&type=Histograms&filter={}",
            anchored(name)
        );
        let answer: Value = serde_json::from_str(&self.admin_get(&path)?)?;
        let found = answer["stats"]
            .as_array()
            .into_iter()
            .flatten()
            .find_map(|entry| entry.get("histograms"));
        let Some(found) = found else {
            return Ok(Vec::new());
        };
        let percents = found["supported_quantiles"]
            .as_array()
            .into_iter()
            .flatten()
            .map(Value::as_f64);
        let values = found["computed_quantiles"][0]["values"]
            .as_array()
            .into_iter()
            .flatten();
        let values = values.map(|value| value["cumulative"].as_f64());
        Ok(percents
            .zip(values)
            .filter_map(|(percent, value)| Some((percent?, value?)))
            .collect())
    }

    /// Returns Envoy's whole running configuration.
    ///
    /// # Errors
    /// If Envoy doesn't answer.
    pub fn config_dump(&self) -> Result<Value> {
        Ok(serde_json::from_str(
            &self.admin_get("/config_dump?include_eds")?,
        )?)
    }

    /// Makes all listeners drain gracefully. They still answer new requests.
    ///
    /// # Errors
    /// If Envoy doesn't answer.
    pub fn drain(&self) -> Result<()> {
        self.admin_post("/drain_listeners?graceful&skip_exit")
            .map(|_| ())
    }

    /// Returns Envoy's output: its log, and access logs that go to standard output.
    pub fn output(&self) -> String {
        self.child.output()
    }

    /// Returns the lines of Envoy's log about a failure of the filter or a refused configuration.
    pub fn filter_errors(&self) -> Vec<String> {
        let marks = [
            "headgate:",
            "wasm log",
            "Wasm VM failed",
            "Plugin configured",
            "panicked",
            "Function: proxy_",
        ];
        let output = self.output();
        let bad = |line: &&str| {
            (line.contains("[error]") || line.contains("[critical]"))
                && marks.iter().any(|m| line.contains(m))
        };
        output.lines().filter(bad).map(str::to_owned).collect()
    }

    /// Returns Envoy's process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Whether Envoy is still running.
    pub fn is_running(&mut self) -> bool {
        self.child.is_running()
    }

    /// Returns the CPU time of the whole process since its start.
    ///
    /// # Errors
    /// If Envoy has ended.
    pub fn cpu_time(&self) -> Result<Duration> {
        self.child.cpu_time()
    }

    /// Returns Envoy's resident memory, bytes.
    ///
    /// # Errors
    /// If Envoy has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.child.resident_bytes()
    }

    /// Suspends Envoy. It keeps its sockets and answers nothing, like a host that the network has
    /// lost.
    pub fn pause(&self) {
        self.child.pause();
    }

    /// Resumes Envoy after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.child.resume();
    }

    /// Sends SIGTERM to Envoy and returns at once.
    pub fn terminate(&self) {
        self.child.terminate();
    }

    /// Waits until Envoy ends by itself.
    ///
    /// # Errors
    /// If it doesn't end within `deadline`. The error contains its last lines of output.
    pub fn wait_for_end(&mut self, deadline: Duration) -> Result<std::process::ExitStatus> {
        self.child.wait_for_end(deadline)
    }

    /// Ends Envoy with SIGTERM, and with SIGKILL if it doesn't end.
    ///
    /// # Errors
    /// If its end can't be awaited.
    pub fn stop(self) -> Result<()> {
        self.child.stop()
    }
}

fn ok(path: &str, answer: http::Answer) -> Result<String> {
    if answer.status != 200 {
        bail!(
            "Envoy's admin {path}: {} {}",
            answer.status,
            answer.body.trim()
        );
    }
    Ok(answer.body)
}

/// Parses a line such as `name: 12`. Returns `None` for histograms and text readouts.
fn parse_stat(line: &str) -> Option<(String, u64)> {
    let (name, value) = line.rsplit_once(": ")?;
    Some((common_name(name), value.trim().parse().ok()?))
}

/// Returns the name that a stat has in the Wasm filter. In the native filter's stats, names of
/// workflows and services are labels at the end of the name.
fn common_name(name: &str) -> String {
    let member = || {
        let (family, labels) = name
            .strip_prefix(FILTERS)?
            .split_once(".headgate_policy.")?;
        let (part, metric) = family.split_once('.')?;
        let (policy, labels) = labels.split_once(".headgate_")?;
        let value = labels.strip_prefix(part)?.strip_prefix('.')?;
        Some(format!("{FILTERS}policy.{policy}.{part}.{value}.{metric}"))
    };
    member().unwrap_or_else(|| name.to_owned())
}

/// Returns a regular expression for a stat's name, or its prefix, that also matches all names that
/// [`common_name`] may map to it.
fn filter_of(name: &str, end: &str) -> String {
    let plain = format!("^{}{end}", escape(name));
    let may_be_label = end.is_empty() || name.contains(".workflow.") || name.contains(".service.");
    if name.starts_with(FILTERS) && may_be_label {
        format!("{plain}|^{}(workflow|service)[.]", escape(FILTERS))
    } else {
        plain
    }
}

fn anchored(name: &str) -> String {
    format!("^{}$", escape(name))
}

/// Escapes a stat's name for a regular expression in a URL. Dots become literal, and `/` needs no
/// escape.
fn escape(name: &str) -> String {
    name.replace('.', "[.]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_of_both_filters_have_one_name() {
        let native =
            "wasmcustom.headgate.workflow.calls.headgate_policy.shop/a.headgate_workflow.w";
        let wasm = "wasmcustom.headgate.policy.shop/a.workflow.w.calls";
        assert_eq!(common_name(native), wasm);
        for plain in [wasm, "wasmcustom.headgate.panics", "server.uptime"] {
            assert_eq!(common_name(plain), plain);
        }
        let filter = filter_of(wasm, "$");
        assert!(filter.ends_with("$|^wasmcustom[.]headgate[.](workflow|service)[.]"));
        assert_eq!(filter_of("server.uptime", "$"), "^server[.]uptime$");
    }
}
