//! A real Prometheus that scrapes a running system, and its query API.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http;
use crate::kube::programs;
use crate::process::Child;
use crate::wait;

/// The interval between scrapes, and between evaluations of rules.
pub const INTERVAL: Duration = Duration::from_secs(2);

/// The targets of one `job` label.
#[derive(Debug, Clone)]
pub struct Job {
    /// The name of the job.
    pub name: String,
    /// The path of the metrics.
    pub path: String,
    /// The targets, each with the labels that Kubernetes would add.
    pub targets: Vec<(SocketAddr, BTreeMap<String, String>)>,
}

/// A running Prometheus. Killed when dropped.
#[derive(Debug)]
pub struct Prometheus {
    child: Child,
    addr: SocketAddr,
    _dir: TempDir,
}

/// A series in the answer to a query.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The labels of the series. The label `__name__` has the name.
    pub labels: BTreeMap<String, String>,
    /// Pairs of Unix time in seconds and value, which may be NaN.
    pub points: Vec<(f64, f64)>,
}

/// Whether Prometheus and promtool are available here. If they aren't, reports the running test as
/// skipped.
///
/// # Errors
/// If this kind of machine can have the programs, but getting them failed.
pub fn can_run() -> Result<bool> {
    Ok(programs::or_skip(programs::prometheus())?.is_some())
}

impl Prometheus {
    /// Starts Prometheus on a free port with the rule files `rules`, and waits until it answers.
    ///
    /// # Errors
    /// If Prometheus isn't available or doesn't start. The error contains its last lines of output.
    pub fn start(jobs: &[Job], rules: &[PathBuf]) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("headgate-prometheus-")
            .tempdir()?;
        let interval = format!("{}s", INTERVAL.as_secs());
        let scrape = |job: &Job| {
            let targets = job.targets.iter();
            let targets = targets.map(|(a, labels)| json!({"targets": [a], "labels": labels}));
            json!({"job_name": job.name, "metrics_path": job.path,
                "static_configs": targets.collect::<Vec<_>>()})
        };
        let config = json!({
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "scrape_configs": jobs.iter().map(scrape).collect::<Vec<_>>(),
            "rule_files": rules,
        });
        // JSON is valid YAML.
        let path = dir.path().join("prometheus.yaml");
        std::fs::write(&path, serde_json::to_string_pretty(&config)?)?;
        let mut command = Command::new(programs::prometheus()?.join("prometheus"));
        command
            .arg(format!("--config.file={}", path.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.path().join("data").display()
            ))
            .arg("--web.listen-address=127.0.0.1:0");
        let mut child = Child::spawn("prometheus", &mut command)?;
        let line = child.wait_for_line("msg=\"Listening on\"")?;
        let addr = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("address=")?.parse().ok())
            .ok_or_else(|| anyhow!("no address in {line:?}"))?;
        let this = Self {
            child,
            addr,
            _dir: dir,
        };
        wait::until("Prometheus to be ready", || {
            match http::get(addr, "/-/ready") {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(answer.body),
                Err(error) => Err(error.to_string()),
            }
        })
        .with_context(|| this.child.tail())?;
        Ok(this)
    }

    /// Returns the present values of `expression`.
    ///
    /// # Errors
    /// If Prometheus refuses the query, with its message, or doesn't answer.
    pub fn query(&self, expression: &str) -> Result<Vec<Series>> {
        self.series(&format!("/api/v1/query?query={}", encode(expression)))
            .with_context(|| expression.to_owned())
    }

    /// Returns the values between two Unix times, every `step` seconds.
    ///
    /// # Errors
    /// The errors of [`query`](Self::query).
    pub fn query_range(
        &self,
        expression: &str,
        (from, to): (f64, f64),
        step: f64,
    ) -> Result<Vec<Series>> {
        let query = encode(expression);
        let path = format!("/api/v1/query_range?query={query}&start={from}&end={to}&step={step}");
        self.series(&path).with_context(|| expression.to_owned())
    }

    /// Returns the values of `label` in the series that `selector` matches.
    ///
    /// # Errors
    /// The errors of [`query`](Self::query).
    pub fn label_values(&self, selector: &str, label: &str) -> Result<Vec<String>> {
        let path = format!("/api/v1/label/{label}/values?match[]={}", encode(selector));
        Ok(serde_json::from_value(self.api(&path)?)?)
    }

    /// Waits until every target of `job` was scraped after `moment`.
    ///
    /// # Errors
    /// If a target isn't scraped in time. The error contains the state of Prometheus' targets.
    pub fn wait_for_scrape(&self, job: &str, moment: SystemTime) -> Result<()> {
        let moment = unix(moment);
        // A target may miss a scrape on a busy machine, so the last good scrape of each counts.
        let last = format!("max_over_time((timestamp(up{{job=\"{job}\"}} == 1))[10m:1s])");
        let missing = format!("count(up{{job=\"{job}\"}}) - count({last} >= {moment}) == 0");
        let patience = 2 * wait::DEADLINE;
        wait::until_within(
            patience,
            &format!("a scrape of {job} after {moment}"),
            || match self.query(&missing) {
                Ok(none) if !none.is_empty() => Ok(()),
                other => Err(format!("{other:?}; {:?}", self.query(&last))),
            },
        )
    }

    /// Waits until `expression` has a value other than NaN and zero.
    ///
    /// # Errors
    /// If it has no such value in time. The error contains the last answer.
    pub fn wait_for(&self, expression: &str) -> Result<Vec<Series>> {
        wait::until_within(
            Duration::from_secs(60),
            &format!("a value of {expression}"),
            || match self.query(expression) {
                Ok(found)
                    if found
                        .iter()
                        .any(|s| s.points.iter().any(|p| p.1.is_finite() && p.1 != 0.0)) =>
                {
                    Ok(found)
                }
                Ok(found) => Err(format!("{found:?}")),
                Err(error) => Err(format!("{error:#}")),
            },
        )
    }

    /// Returns the groups of rules, as Prometheus evaluates them.
    ///
    /// # Errors
    /// If Prometheus doesn't answer.
    pub fn rules(&self) -> Result<Value> {
        self.api("/api/v1/rules")
    }

    fn api(&self, path: &str) -> Result<Value> {
        let answer = http::get(self.addr, path)?;
        let mut body: Value = serde_json::from_str(&answer.body)
            .with_context(|| format!("{}: {}", answer.status, answer.body))?;
        if body["status"] != "success" {
            bail!("Prometheus: {}", body["error"]);
        }
        Ok(body["data"].take())
    }

    fn series(&self, path: &str) -> Result<Vec<Series>> {
        let data = self.api(path)?;
        let point = |p: &Value| {
            let value = p[1].as_str()?;
            // Prometheus writes `+Inf`, and Rust can parse it.
            Some((p[0].as_f64()?, value.parse().ok()?))
        };
        if data["resultType"] == "scalar" {
            let points = point(&data["result"]).into_iter().collect();
            return Ok(vec![Series {
                labels: BTreeMap::new(),
                points,
            }]);
        }
        let results = data["result"].as_array().map(Vec::as_slice);
        let series = |r: &Value| {
            let labels = serde_json::from_value(r["metric"].clone())?;
            let many = r["values"].as_array().into_iter().flatten();
            let points = many.chain(r.get("value")).filter_map(point).collect();
            Ok(Series { labels, points })
        };
        results.unwrap_or_default().iter().map(series).collect()
    }
}

/// Runs `promtool` with `arguments` and `input`, and returns its output.
///
/// # Errors
/// If `promtool` fails. The error contains all of its output.
pub fn promtool(arguments: &[&str], folder: &Path, input: &str) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), input)?;
    let output = Command::new(programs::prometheus()?.join("promtool"))
        .args(arguments)
        .current_dir(folder)
        .stdin(file.reopen()?)
        .output()
        .context("promtool")?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if !output.status.success() {
        bail!("promtool {}: {said}", arguments.join(" "));
    }
    Ok(said)
}

/// Returns a time as seconds since 1970.
pub fn unix(moment: SystemTime) -> f64 {
    moment
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

/// Percent-encodes a text for a query string.
fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}
