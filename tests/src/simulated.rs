//! A policy and a mix as the simulator takes them: the stage that Envoy's filter would run, compiled by the same
//! binary, before a backend of the same service times.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headgate_core::config::{FilterConfig, StageConfig};
use headgate_core::strategy::TypeId;
use headgate_simulator::{LogNormal, Outcome, Simulation, TypeLoad, Workload};
use serde_json::Value;

use crate::headgate;
use crate::mix::{self, QueryType};

/// Runs of a policy under a mix.
#[derive(Debug, Clone, Copy)]
pub struct Runs {
    /// Offered load as a multiple of capacity.
    pub load: f64,
    /// Load before results count.
    pub warmup: Duration,
    /// Load that counts.
    pub measured: Duration,
    /// Number of runs; their seeds are 1, 2, …
    pub seeds: u64,
}

/// The stage that `headgate render` makes of `policy`.
///
/// # Errors
/// If the policy is refused.
pub fn stage(policy: &Value) -> Result<StageConfig> {
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

/// `mix` as a workload for the stage of [`crate::policy::for_mix`].
///
/// # Errors
/// If a type's service times are no lognormal distribution.
pub fn workload(mix: &[QueryType]) -> Result<Workload> {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let kind = |(at, query): (usize, &QueryType)| {
        Ok(TypeLoad {
            name: query.name.to_owned(),
            kind: TypeId(u16::try_from(at)?),
            share: query.share,
            service_time: LogNormal::new(ms(query.mean), ms(query.median))?,
        })
    };
    let types = mix.iter().enumerate().map(kind).collect::<Result<_>>()?;
    Ok(Workload::new(types)?)
}

/// Simulates `runs` of `policy`, made by [`crate::policy::for_mix`] or from it.
///
/// # Errors
/// If the policy is refused or the engine fails.
pub fn simulate(policy: &Value, mix: &[QueryType], runs: &Runs) -> Result<Vec<Outcome>> {
    let stage = stage(policy)?;
    ensure!(
        stage.types.iter().zip(mix).all(|(t, q)| t.name == q.name),
        "the policy's types are not the mix's"
    );
    let workload = workload(mix)?;
    let per_second = runs.load * mix::capacity_rps(mix, stage.parallelism as usize);
    (1..=runs.seeds)
        .map(|seed| {
            let simulation = Simulation {
                stage: &stage,
                workload: &workload,
                per_second,
                warm_up: runs.warmup,
                requests: (per_second * runs.measured.as_secs_f64()) as u64,
                seed,
            };
            Ok(simulation.run()?)
        })
        .collect()
}
