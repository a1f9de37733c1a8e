//! A configuration with everything that can be prepared without the engine: compiled rules, and
//! defined stats.
//!
//! With hundreds of types, the preparation takes milliseconds. If several threads share one engine,
//! they continue to use it during that time.

use std::sync::Arc;

use headgate_strategies::request::TypeId;

use crate::classify::Classifier;
use crate::config::{ConfigError, CostConfig, FilterConfig, StageConfig};
use crate::host::Metrics;
use crate::stats::StageStats;

/// A checked configuration with its compiled stages.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) config: FilterConfig,
    /// The stages of `config`, in the same order.
    pub(super) stages: Vec<Arc<Compiled>>,
}

/// A stage of a configuration.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) config: StageConfig,
    pub(super) classifier: Classifier,
    /// The stage's defined stats, without any counts.
    pub(super) stats: StageStats,
}

impl Prepared {
    /// Prepares a configuration from the control plane.
    ///
    /// # Errors
    /// [`ConfigError`] with the field at fault.
    pub fn from_json(metrics: &impl Metrics, json: &[u8]) -> Result<Self, ConfigError> {
        Self::of_checked(metrics, FilterConfig::from_json(json)?)
    }

    /// Prepares a configuration built in code.
    ///
    /// # Errors
    /// [`ConfigError`] with the field at fault.
    pub fn new(metrics: &impl Metrics, config: FilterConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Self::of_checked(metrics, config)
    }

    fn of_checked(metrics: &impl Metrics, config: FilterConfig) -> Result<Self, ConfigError> {
        let compile = |(i, stage): (usize, &StageConfig)| {
            let at =
                |e: ConfigError| ConfigError::new(format!("stages[{i}].{}", e.field), e.problem);
            Ok(Arc::new(Compiled {
                classifier: Classifier::new(stage).map_err(at)?,
                // Every stat exists from the start, even on workers without traffic.
                stats: StageStats::new(metrics, stage)
                    .map_err(|e| ConfigError::new(format!("stages[{i}]"), e.to_string()))?,
                config: stage.clone(),
            }))
        };
        let stages = config.stages.iter().enumerate().map(compile);
        Ok(Self {
            stages: stages.collect::<Result<_, ConfigError>>()?,
            config,
        })
    }
}

impl Compiled {
    /// Returns the header in which requests of `kind` state their size, or `None` if their cost
    /// doesn't depend on the size.
    pub(super) fn size_header(&self, kind: TypeId) -> Option<&str> {
        let cost = self.config.types.get(usize::from(kind.0))?.cost.as_ref()?;
        Some(&cost.size.header)
    }

    /// Returns the header in which requests state their cost, or `None` if the strategy doesn't use
    /// a stated cost.
    pub(super) fn cost_header(&self) -> Option<&str> {
        match self.config.strategy.cost() {
            CostConfig::Header { header } => Some(header),
            CostConfig::Measured | CostConfig::Type { .. } => None,
        }
    }
}
