//! Runs a policy and a mix in the simulator. The simulator runs the stage that Envoy's filter would
//! run, compiled by the same binary, in front of a backend with the same service times.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result};
use headgate_core::config::{FilterConfig, StageConfig};
use headgate_simulator::backend::Servers;
use headgate_simulator::{Outcome, Request, Run, Source, Until};
use headgate_strategies::strategy::TypeId;
use serde_json::Value;

use crate::headgate;
use crate::load::{self, Due, LoadSpec};

/// Returns the stage that `headgate render` makes from `policy`.
fn stage(policy: &Value) -> Result<StageConfig> {
    let file = tempfile::Builder::new()
        .prefix("headgate-policy-")
        .suffix(".yaml")
        .tempfile()?;
    serde_json::to_writer(file.as_file(), policy)?;
    let path = file.path().to_str().context("the path is no UTF-8")?;
    let rendered = headgate::run_command(&["render", "--output", "json", path])?;
    let rendered: Value = serde_json::from_str(&rendered)?;
    let config = rendered
        .pointer("/resources/0/typed_config/config/configuration/value")
        .and_then(Value::as_str)
        .with_context(|| format!("no configuration of the filter in {rendered:#}"))?;
    let config: FilterConfig = serde_json::from_str(config)?;
    let stage = config.stages.into_iter().next();
    stage.context("the policy compiles to no stage")
}

/// Returns the mean time for which a slot was empty in Envoy after each of `answered` requests,
/// beyond the time for which it was empty in the simulator. `utilization` is the ratio 0..=1 in
/// which the backend's workers were busy in Envoy. `slot_time` is the time of all slots together.
pub fn turnaround(
    simulated: &Outcome,
    utilization: f64,
    slot_time: Duration,
    answered: u64,
) -> Duration {
    let idle = (simulated.utilization - utilization).max(0.0);
    slot_time.mul_f64(idle).div_f64(answered.max(1) as f64)
}

/// Runs the stage of `policy` with exactly the requests of `load`. `policy` is a policy of
/// [`crate::policy::for_mix`], perhaps with changes. The requests carry their service times
/// ([`RequestType::service`](crate::load::RequestType)).
///
/// # Errors
/// If the policy is refused, its types are not the load's, or the engine fails.
pub fn replay(policy: &Value, load: &LoadSpec) -> Result<Outcome> {
    replay_with(policy, load, Duration::ZERO)
}

/// Runs a policy as [`replay`] does, with `turnaround` added to each service time.
///
/// # Errors
/// The errors of [`replay`].
pub fn replay_with(policy: &Value, load: &LoadSpec, turnaround: Duration) -> Result<Outcome> {
    let stage = stage(policy)?;
    let kinds = load
        .types
        .iter()
        .map(|kind| {
            let at = stage.types.iter().position(|t| t.name == kind.name);
            let at = at.with_context(|| format!("the policy has no type {}", kind.name))?;
            Ok(TypeId(u16::try_from(at)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let requests = load::schedule(load)
        .into_iter()
        .map(|due| request(due, turnaround))
        .collect::<Result<VecDeque<_>>>()?;
    let run = Run {
        stage: &stage,
        kinds: &kinds,
        warm_up: load.warmup,
        until: Until::Time(load.duration()),
        seed: load.seed,
    };
    Ok(run.with(&mut Replay(requests), Servers::new(stage.parallelism))?)
}

fn request(due: Due, turnaround: Duration) -> Result<Request> {
    let nanos = |time: Duration| Ok::<u64, anyhow::Error>(u64::try_from(time.as_nanos())?);
    let service = due.service.with_context(|| {
        format!(
            "request {} carries no service time: give its type one",
            due.seq
        )
    })?;
    let occupied = nanos(service + turnaround)?;
    Ok(Request::new(nanos(due.at)?, due.kind, occupied))
}

/// Requests that are known in advance.
struct Replay(VecDeque<Request>);

impl Source for Replay {
    fn peek(&self) -> Option<u64> {
        self.0.front().map(|request| request.at)
    }

    fn take(&mut self) -> Option<Request> {
        self.0.pop_front()
    }
}
