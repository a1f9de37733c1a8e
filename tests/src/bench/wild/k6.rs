//! Load from k6: an open loop with one scenario for each type of request. The answers are read as
//! they arrive.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

use crate::kube::programs;
use crate::mix::QueryType;

/// The timeout of a client: four times the longest objective.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// A part of a load.
#[derive(Debug, Clone)]
pub(super) struct Stage {
    /// The length of the stage.
    pub(super) duration: Duration,
    /// The rate of each type at the end of the stage, requests/s, in the mix's order.
    pub(super) rates: Vec<f64>,
    /// Whether the rates change at once rather than linearly during the stage.
    pub(super) jump: bool,
}

impl Stage {
    /// Returns a stage with a constant rate of a mix.
    pub(super) fn constant(duration: Duration, rate: f64, mix: &[QueryType]) -> Self {
        Self {
            duration,
            rates: mix.iter().map(|query| rate * query.share).collect(),
            jump: true,
        }
    }
}

/// The outcome of a request: an answer, or a client that gave up.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    /// The index of the request's type in the mix.
    pub(super) kind: usize,
    /// The time at which the request was sent, from the start of the load.
    pub(super) sent: Duration,
    /// The response time as the client saw it.
    pub(super) latency: Duration,
    /// HTTP status, or 0 for a client that gave up.
    pub(super) status: u16,
    /// Headgate's reason for a refusal, if any.
    pub(super) reason: Option<String>,
}

/// The results of a load.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The answers in the order in which they ended.
    pub(super) answers: Vec<Answer>,
    /// 99th percentile of the lateness of clients in sending, ms.
    pub(super) late_p99_ms: f64,
    /// The number of requests for which k6 had no client. If it is above 0, the load wasn't the
    /// requested one.
    pub(super) dropped: u64,
}

/// Runs a load to its end. `during` is called at the start and may run until the end.
///
/// # Errors
/// If k6 fails, or `during` does.
pub(super) fn run(
    program: &Path,
    target: SocketAddr,
    mix: &[QueryType],
    stages: &[Stage],
    seed: u64,
    during: impl FnOnce(Instant) -> Result<()>,
) -> Result<Outcome> {
    let types: Vec<Value> = (0..mix.len())
        .map(|kind| scenario(mix, stages, kind))
        .collect();
    let wild = json!({
        "target": target.to_string(),
        "timeout": TIMEOUT.as_secs_f64(),
        "seed": seed,
        "types": types,
    });
    let mut command = Command::new(program);
    command
        .args([
            "run",
            "--quiet",
            "--no-usage-report",
            "--no-summary",
            "--log-format",
            "raw",
        ])
        .args(["--address", "", "--out", "csv=-", "--env"])
        .arg(format!("WILD={wild}"))
        .arg(programs::repository().join("tests/wild/load.js"))
        .env("K6_CSV_TIME_FORMAT", "unix_milli")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut k6 = Guard(
        command
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?,
    );
    let samples = BufReader::new(k6.0.stdout.take().context("k6 has a standard output")?).lines();
    let log = BufReader::new(k6.0.stderr.take().context("k6 has a standard error")?).lines();
    let (begin, begun) = mpsc::channel();
    std::thread::scope(|scope| {
        let log = scope.spawn(move || {
            let mut last = Vec::new();
            for line in log.map_while(Result::ok) {
                if line.contains("the load begins") {
                    let _ = begin.send((Instant::now(), SystemTime::now()));
                } else if !line.starts_with("Request Failed") {
                    last.push(line);
                }
            }
            last
        });
        let samples = scope.spawn(|| collect(samples, mix));
        let began = match begun.recv() {
            Ok((instant, time)) => {
                if let Err(error) = during(instant) {
                    let _ = k6.0.kill();
                    return Err(error);
                }
                time.duration_since(UNIX_EPOCH)?
            }
            // In this case, k6 ended without a sample.
            Err(mpsc::RecvError) => Duration::ZERO,
        };
        let join = |_| anyhow!("a thread that reads from k6 panicked");
        let (mut outcome, log) = (samples.join().map_err(join)??, log.join().map_err(join)?);
        let status = k6.0.wait()?;
        ensure!(status.success(), "k6: {status}\n{}", log.join("\n"));
        for answer in &mut outcome.answers {
            answer.sent = answer.sent.saturating_sub(began);
        }
        Ok(outcome)
    })
}

/// A k6 process. Killed when dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the scenario of a type. k6 takes the target rates of its stages as whole numbers, so
/// they are per minute.
fn scenario(mix: &[QueryType], stages: &[Stage], kind: usize) -> Value {
    let mut list = Vec::new();
    for stage in stages {
        let target = (stage.rates[kind] * 60.0).round();
        if stage.jump {
            list.push(json!({"target": target, "duration": "0s"}));
        }
        list.push(
            json!({"target": target, "duration": format!("{}ms", stage.duration.as_millis())}),
        );
    }
    json!({"name": mix[kind].name, "path": mix[kind].path, "stages": list})
}

/// Reads k6's samples, lines of the form `metric,timestamp (ms),value,scenario,tags,…`. The times
/// of sending in the result are since 1970.
fn collect(
    mut lines: impl Iterator<Item = io::Result<String>>,
    mix: &[QueryType],
) -> Result<Outcome> {
    let Some(head) = lines.next().transpose()? else {
        return Ok(Outcome::default());
    };
    ensure!(
        head.starts_with("metric_name,timestamp,metric_value,scenario,extra_tags"),
        "k6 writes other columns than expected: {head}"
    );
    let mut outcome = Outcome::default();
    let mut late = Vec::new();
    for line in lines {
        let line = line?;
        let mut fields = line.split(',');
        let mut next = || fields.next().unwrap_or_default();
        let (metric, timestamp, value, scenario, tags) = (next(), next(), next(), next(), next());
        match metric {
            "answer" => {
                let kind = mix.iter().position(|query| query.name == scenario);
                let tag = |name: &str| tags.split('&').find_map(|tag| tag.strip_prefix(name));
                let (Some(kind), Some(status)) = (kind, tag("status=")) else {
                    bail!("a sample of k6 without type or status: {line}");
                };
                let latency = Duration::from_secs_f64(value.parse::<f64>()? / 1e3);
                outcome.answers.push(Answer {
                    kind,
                    sent: Duration::from_millis(timestamp.parse()?).saturating_sub(latency),
                    latency,
                    status: status.parse()?,
                    reason: tag("reason=").map(str::to_owned),
                });
            }
            "late" => late.push(value.parse::<f64>()?),
            "dropped_iterations" => outcome.dropped += value.parse::<f64>()? as u64,
            _ => {}
        }
    }
    late.sort_by(f64::total_cmp);
    outcome.late_p99_ms = late.get(late.len() * 99 / 100).copied().unwrap_or_default();
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::super::Service;
    use super::*;

    #[test]
    fn samples_become_answers() -> Result<()> {
        let mix = Service::Sqlite.mix();
        let text = "metric_name,timestamp,metric_value,scenario,extra_tags,metadata\n\
                    late,1000,3.5,search,,\n\
                    http_reqs,1000,1.000000,search,,\n\
                    answer,1500,250.000000,search,status=200,\n\
                    answer,1600,1.000000,report,reason=value&status=503,\n\
                    dropped_iterations,1700,2.000000,search,,\n";
        let outcome = collect(text.lines().map(|line| Ok(line.to_owned())), &mix)?;
        let answer = |kind, sent, latency, status, reason: Option<&str>| Answer {
            kind,
            sent: Duration::from_millis(sent),
            latency: Duration::from_millis(latency),
            status,
            reason: reason.map(str::to_owned),
        };
        let expected = [
            answer(1, 1_250, 250, 200, None),
            answer(2, 1_599, 1, 503, Some("value")),
        ];
        assert_eq!(outcome.answers, expected);
        assert_eq!((outcome.dropped, outcome.late_p99_ms), (2, 3.5));
        Ok(())
    }

    #[test]
    fn rates_are_whole_numbers_per_minute_and_jump_or_climb() {
        let mix = Service::Sqlite.mix();
        let stages = [
            Stage::constant(Duration::from_secs(2), 10.0, &mix),
            Stage {
                jump: false,
                ..Stage::constant(Duration::from_secs(4), 20.0, &mix)
            },
        ];
        let expected = json!([
            {"target": 180.0, "duration": "0s"},
            {"target": 180.0, "duration": "2000ms"},
            {"target": 360.0, "duration": "4000ms"},
        ]);
        assert_eq!(scenario(&mix, &stages, 1)["stages"], expected);
    }
}
