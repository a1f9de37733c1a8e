//! The plan of a service: a tree of steps for each kind of request.
//!
//! ```yaml
//! operations:
//! - path: /scan
//!   steps:
//!   - call: {service: auth, path: /check}
//!   - parallel:
//!     - call: {service: en, path: /read, count: 10, atOnce: true}
//!     - compute: {meanMs: 5, distribution: Exponential}
//! ```
//!
//! Steps of an operation run one after the other. A request's path determines its type, its cost
//! and all calls that it causes, so workflows with different graphs have different paths.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Exp};
use serde::{Deserialize, Serialize};

/// The headers that carry a request's context. They are those of W3C Trace Context and Baggage, and
/// Headgate's own for applications that pass on a single header.
pub const CONTEXT: [&str; 4] = ["baggage", "traceparent", "tracestate", "x-headgate-request"];

/// The configuration of one service process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceConfig {
    /// The name of the process, such as `en-1`, which the statistics show.
    pub process: String,
    /// The address of requests. Port 0 picks a free port.
    pub listen: SocketAddr,
    /// The address of statistics. Port 0 picks a free port.
    pub control: SocketAddr,
    /// The outbound listener of the process's sidecar. Without it, the service can't call other
    /// services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbound: Option<SocketAddr>,
    /// The seed of the service times.
    pub seed: u64,
    /// The behaviour of the process.
    pub behaviour: Behaviour,
}

/// The properties that all processes of a service share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Behaviour {
    /// The number of concurrent computing steps. Others wait in the order of their arrival.
    pub workers: usize,
    /// The number of concurrent requests, as with a thread for each request. A request counts from
    /// its start to its answer, with all calls. Others wait in the order of their arrival.
    /// Unlimited by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// The treatment of a request whose caller has left.
    #[serde(default)]
    pub abandoned: Abandoned,
    /// Request headers that calls inherit. Empty for a service that propagates none.
    #[serde(default = "context")]
    pub propagate: Vec<String>,
    /// The timeout of a call, ms.
    #[serde(default = "call_timeout_ms")]
    pub call_timeout_ms: f64,
    /// Headers of every answer, such as those of a process that reports a false rate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_headers: Vec<(String, String)>,
    /// The divisor of all service times. It can be changed while the service runs.
    #[serde(default = "one")]
    pub speed: f64,
    /// The operations, which requests select by their path.
    pub operations: Vec<Operation>,
}

/// The treatment of a request whose caller has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Abandoned {
    /// The request is served although its caller has left, as by a thread that is blocked in a call
    /// or a lock. So an overloaded service may lose all its capacity to requests that have timed
    /// out.
    #[default]
    Finish,
    /// The request ends at once, with its calls.
    Cancel,
}

/// The requests of one type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Operation {
    /// The prefix of the paths of the operation's requests. The longest matching prefix counts.
    pub path: String,
    /// The steps of the operation, in order.
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// A part of the work of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Step {
    /// Computing, which takes the time of a worker.
    Compute(Compute),
    /// Calls to another service.
    Call(Call),
    /// Steps that run one after the other.
    Sequence(Vec<Step>),
    /// Steps that run at the same time.
    Parallel(Vec<Step>),
}

/// Computing, which takes the time of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Compute {
    /// Mean service time, ms.
    pub mean_ms: f64,
    /// The distribution of service times.
    #[serde(default)]
    pub distribution: Distribution,
}

/// The distribution of service times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Distribution {
    /// All service times are equal.
    #[default]
    Constant,
    /// Service times are exponentially distributed, as in the evaluation of Wisp.
    Exponential,
}

/// Calls to another service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Call {
    /// The name of the service.
    pub service: String,
    /// The path of the calls. The default is the path of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The number of calls.
    #[serde(default = "once")]
    pub count: u32,
    /// Whether all calls are sent at once rather than one after the other.
    #[serde(default)]
    pub at_once: bool,
    /// The selection of the service's process.
    #[serde(default)]
    pub route: Route,
    /// The timeout of each call, ms. The default is the service's `callTimeoutMs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<f64>,
    /// The effect of a failed call on its request.
    #[serde(default)]
    pub on_failure: OnFailure,
}

/// The selection of the process that receives a call. The service only names the method, and the
/// proxy selects the process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Route {
    /// The calls go to the processes in turn.
    #[default]
    RoundRobin,
    /// The hash of this header of the request selects the process, and equal values select the same
    /// process. The calls inherit the header.
    Hash(String),
    /// The calls go to the process with this number, from 1.
    Process(usize),
}

/// The effect of a failed call on its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum OnFailure {
    /// The request fails, too, and its outstanding calls are cancelled.
    #[default]
    Fail,
    /// The request continues without the answer.
    Ignore,
}

fn context() -> Vec<String> {
    CONTEXT.map(str::to_owned).to_vec()
}

fn call_timeout_ms() -> f64 {
    2_000.0
}

fn one() -> f64 {
    1.0
}

fn once() -> u32 {
    1
}

/// Returns `ms` as a duration.
///
/// # Errors
/// If `ms` is negative, or isn't a number.
pub fn millis(ms: f64) -> Result<Duration> {
    match Duration::try_from_secs_f64(ms / 1_000.0) {
        Ok(duration) => Ok(duration),
        Err(error) => bail!("{ms} ms: {error}"),
    }
}

impl Behaviour {
    /// Checks the configuration.
    ///
    /// # Errors
    /// Names the first invalid field.
    pub fn check(&self) -> Result<()> {
        ensure!(self.workers > 0, "workers: 0; give at least 1");
        ensure!(self.threads != Some(0), "threads: 0; give at least 1");
        ensure!(
            self.speed.is_finite() && self.speed > 0.0,
            "speed: {}; give a number above 0",
            self.speed
        );
        ensure!(
            !self.operations.is_empty(),
            "operations: none; give at least one"
        );
        millis(self.call_timeout_ms)?;
        for operation in &self.operations {
            let wrong = |error: anyhow::Error| error.context(operation.path.clone());
            ensure!(
                operation.path.starts_with('/'),
                "{:?}: a path starts with /",
                operation.path
            );
            each(&operation.steps, &mut |step| step.check()).map_err(wrong)?;
        }
        Ok(())
    }

    /// Returns the names of the services that the service calls, each name once.
    pub fn calls(&self) -> Vec<&str> {
        let calls = self.operations.iter().flat_map(|o| calls(&o.steps));
        let mut names: Vec<&str> = calls.map(|call| call.service.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Returns all calls of a tree.
pub(crate) fn calls(steps: &[Step]) -> Vec<&Call> {
    let mut calls = Vec::new();
    for step in steps {
        match step {
            Step::Call(call) => calls.push(call),
            Step::Sequence(inner) | Step::Parallel(inner) => calls.extend(self::calls(inner)),
            Step::Compute(_) => {}
        }
    }
    calls
}

/// Visits every step of a tree, including nested steps.
fn each<'a>(steps: &'a [Step], visit: &mut dyn FnMut(&'a Step) -> Result<()>) -> Result<()> {
    for step in steps {
        visit(step)?;
        if let Step::Sequence(inner) | Step::Parallel(inner) = step {
            each(inner, visit)?;
        }
    }
    Ok(())
}

impl Step {
    fn check(&self) -> Result<()> {
        match self {
            Self::Compute(compute) => millis(compute.mean_ms).map(|_| ()),
            Self::Call(call) => {
                ensure!(
                    call.route != Route::Process(0),
                    "route: processes are numbered from 1"
                );
                call.timeout_ms.map_or(Ok(()), |ms| millis(ms).map(|_| ()))
            }
            Self::Sequence(_) | Self::Parallel(_) => Ok(()),
        }
    }
}

impl Compute {
    /// Draws the service time of one request at `speed`.
    pub(super) fn draw(&self, speed: f64, rng: &mut SmallRng) -> Duration {
        let mean = self.mean_ms / 1_000.0 / speed;
        let seconds = match self.distribution {
            Distribution::Constant => mean,
            // A mean of 0 has no exponential distribution.
            Distribution::Exponential => {
                Exp::new(1.0 / mean).map_or(0.0, |times| times.sample(rng))
            }
        };
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_tree_is_read_from_yaml() {
        let text = "
workers: 2
operations:
- path: /scan
  steps:
  - call: {service: auth, path: /check}
  - parallel:
    - call: {service: en, count: 10, atOnce: true, route: {process: 2}, onFailure: Ignore}
    - sequence:
      - compute: {meanMs: 5, distribution: Exponential}
      - call: {service: en, route: {hash: x-partition}}
";
        let behaviour: Behaviour = serde_saphyr::from_str(text).unwrap();
        behaviour.check().unwrap();
        assert_eq!(behaviour.calls(), ["auth", "en"]);
        assert_eq!(behaviour.propagate, CONTEXT);
        let again: Behaviour =
            serde_json::from_str(&serde_json::to_string(&behaviour).unwrap()).unwrap();
        assert_eq!(again, behaviour);
    }

    #[test]
    fn service_times_have_the_mean_asked_for() {
        let mut rng = SmallRng::seed_from_u64(1);
        for distribution in [Distribution::Constant, Distribution::Exponential] {
            let compute = Compute {
                mean_ms: 20.0,
                distribution,
            };
            let sum: Duration = (0..20_000).map(|_| compute.draw(2.0, &mut rng)).sum();
            let mean = sum.as_secs_f64() / 20_000.0;
            assert!(
                (mean / 0.010 - 1.0).abs() < 0.03,
                "{distribution:?}: {mean}"
            );
        }
    }

    #[test]
    fn mistakes_are_named() {
        let behaviour = |text: &str| serde_saphyr::from_str::<Behaviour>(text).unwrap().check();
        assert!(behaviour("{workers: 0, operations: [{path: /}]}").is_err());
        assert!(behaviour("{workers: 1, operations: []}").is_err());
        let negative = "{workers: 1, operations: [{path: /, steps: [{compute: {meanMs: -1}}]}]}";
        let error = format!("{:#}", behaviour(negative).unwrap_err());
        assert!(error.starts_with("/: -1 ms"), "{error}");
    }
}
