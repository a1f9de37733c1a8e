//! Shapes of the filter's configuration and the checks that [`FilterConfig::from_json`] makes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ConfigError, DEFAULT_TYPE, MAX_PARALLELISM, MAX_QUEUE_LENGTH, MAX_STAGES, MAX_TYPES};

/// Everything one proxy workload enforces.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterConfig {
    /// Content hash that names this configuration in logs and in `headgate status`.
    #[serde(default)]
    pub revision: String,
    /// Admission stages, first match wins. Empty: every request passes untouched.
    #[serde(default)]
    pub stages: Vec<StageConfig>,
}

/// One admission stage: P slots, one queue, per-type objectives (Bouncer Figure 1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageConfig {
    /// `namespace/name` of the policy.
    pub policy: String,
    /// `metadata.generation` of the policy.
    #[serde(default)]
    pub generation: i64,
    /// Envoy route names that this stage is for; empty means every request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<String>,
    /// Enforce or only count.
    #[serde(default)]
    pub mode: Mode,
    /// P: requests that the backend may work on at once, by this proxy. 1 ..= 1,000,000.
    pub parallelism: u32,
    /// The queue in front of the slots.
    pub queue: QueueConfig,
    /// When a request's processing time ends.
    #[serde(default)]
    pub measure: Measure,
    /// Decides which requests may enter the queue.
    pub strategy: StrategyConfig,
    /// Wraps the strategy so that no type starves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starvation_avoidance: Option<StarvationAvoidance>,
    /// Query types in matching order; the last is `default` and matches everything.
    pub types: Vec<TypeConfig>,
    /// Requests that bypass the stage altogether (health checks).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<Match>,
}

/// Whether decisions take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Mode {
    /// Refuse and queue.
    #[default]
    Enforce,
    /// Decide and count, refuse nothing, hold nothing.
    DryRun,
}

/// When a request's processing time ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Measure {
    /// At the end of the response body or trailers.
    #[default]
    LastByte,
    /// At the response headers; for streams.
    FirstByte,
}

/// The queue in front of the slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueConfig {
    /// Who holds the queue.
    #[serde(default)]
    pub mode: QueueMode,
    /// Order of the queue.
    #[serde(default)]
    pub discipline: Discipline,
    /// Longest queue, in requests. 0: a request that finds no free slot is refused.
    pub max_length: u32,
    /// Longest wait in the queue, in µs; a request's own deadline may be shorter.
    pub timeout_us: u64,
}

/// Who holds the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum QueueMode {
    /// The proxy: at most P requests are in the backend.
    #[default]
    Hold,
    /// The backend: nothing is held; wait and processing time are reconstructed from the arrival and
    /// completion order of a FIFO with P servers.
    Observe,
}

/// Order in which queued requests get slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Discipline {
    /// First in, first out.
    #[default]
    #[serde(rename = "FIFO")]
    Fifo,
}

/// Decides which requests may enter the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum StrategyConfig {
    /// Bouncer Alg. 1.
    Bouncer {
        /// Length of a dual-buffer interval, µs.
        interval_us: u64,
        /// Samples a histogram needs before it is used in place of the general one.
        min_samples: u32,
    },
    /// Refuses only when the queue is full (`queue.max_length`).
    MaxQueueLength {
        /// Length of a dual-buffer interval, µs (processing times still feed stats and Retry-After).
        interval_us: u64,
        /// Samples a histogram needs before it is used in place of the general one.
        min_samples: u32,
    },
    /// Refuses what would wait too long (Bouncer §5.2.2, Eq. 5; per type §5.5).
    MaxQueueWait {
        /// Length of a dual-buffer interval, µs (processing times still feed stats and Retry-After).
        interval_us: u64,
        /// Samples a histogram needs before it is used in place of the general one.
        min_samples: u32,
        /// T, µs.
        limit_us: u64,
        /// T of types that have one of their own, µs.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        type_limits_us: BTreeMap<String, u64>,
        /// D, µs.
        window_us: u64,
        /// Δ, µs.
        step_us: u64,
    },
    /// Refuses the part of the requests that exceeds a utilization (Bouncer §5.2.3).
    AcceptFraction {
        /// Length of a dual-buffer interval, µs (processing times still feed stats and Retry-After).
        interval_us: u64,
        /// Samples a histogram needs before it is used in place of the general one.
        min_samples: u32,
        /// MaxUtil, ratio 0 < u <= 1.
        max_utilization: f64,
        /// D, µs.
        window_us: u64,
        /// Δ, µs.
        step_us: u64,
    },
}

impl StrategyConfig {
    /// Length of a dual-buffer interval, µs.
    #[must_use]
    pub const fn interval_us(&self) -> u64 {
        match self {
            Self::Bouncer { interval_us, .. }
            | Self::MaxQueueLength { interval_us, .. }
            | Self::MaxQueueWait { interval_us, .. }
            | Self::AcceptFraction { interval_us, .. } => *interval_us,
        }
    }

    /// Samples a histogram needs before it is used in place of the general one.
    #[must_use]
    pub const fn min_samples(&self) -> u32 {
        match self {
            Self::Bouncer { min_samples, .. }
            | Self::MaxQueueLength { min_samples, .. }
            | Self::MaxQueueWait { min_samples, .. }
            | Self::AcceptFraction { min_samples, .. } => *min_samples,
        }
    }
}

/// Wraps the strategy so that no type starves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum StarvationAvoidance {
    /// Bouncer Alg. 2.
    AcceptanceAllowance {
        /// A, ratio 0..=1.
        allowance: f64,
        /// D, µs.
        window_us: u64,
        /// Δ, µs.
        step_us: u64,
    },
    /// Bouncer Alg. 3.
    HelpingTheUnderserved {
        /// α, ratio 0 < α <= 1.
        alpha: f64,
        /// D, µs.
        window_us: u64,
        /// Δ, µs.
        step_us: u64,
    },
}

/// A query type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypeConfig {
    /// Its name in stats, headers and access logs: `[A-Za-z0-9_-]{1,63}`.
    pub name: String,
    /// Any of these; empty only for `default`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// Response time objectives, ascending by percentile; may be empty for strategies without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slo: Vec<Objective>,
}

/// One response time objective.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// Percentile, 0 < p < 100, e.g. 50 or 99.9.
    pub percentile: f64,
    /// Response time that `percentile` percent of the type's requests must not exceed, µs.
    pub objective_us: u64,
}

/// All given conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// `:path` without its query string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// `:method`, upper case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Request headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderMatch>,
    /// gRPC service and method; holds only for requests with a gRPC content type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcMatch>,
    /// Name of the Envoy route that was selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
}

/// A condition on the path, as in HTTPRoute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "value")]
pub enum PathMatch {
    /// The whole path.
    Exact(String),
    /// Whole path elements: `/q` matches `/q` and `/q/x`, not `/qx`.
    PathPrefix(String),
    /// The whole path matches this regular expression.
    RegularExpression(String),
}

/// How a string is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum StringMatchKind {
    /// Equal.
    #[default]
    Exact,
    /// The whole value matches this regular expression.
    RegularExpression,
}

/// A condition on one request header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderMatch {
    /// How `value` is compared.
    #[serde(default, rename = "type")]
    pub kind: StringMatchKind,
    /// Lower case name.
    pub name: String,
    /// Value or regular expression.
    pub value: String,
}

/// A condition on a gRPC request's `/service/method`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrpcMatch {
    /// How `service` and `method` are compared.
    #[serde(default, rename = "type")]
    pub kind: StringMatchKind,
    /// Fully qualified service, e.g. `search.v1.Search`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Method, e.g. `Query`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

impl FilterConfig {
    /// Reads a configuration; an empty input is the empty configuration.
    ///
    /// # Errors
    /// The first problem found, with the path of its field. Nothing is applied partially.
    pub fn from_json(json: &[u8]) -> Result<Self, ConfigError> {
        if json.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        let config: Self = serde_json::from_slice(json)
            .map_err(|e| ConfigError::new("configuration", e.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// Checks what [`FilterConfig::from_json`] guarantees of a configuration built in code.
    ///
    /// # Errors
    /// The first problem found, with the path of its field.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.stages.len() > MAX_STAGES {
            return Err(ConfigError::new(
                "stages",
                format!("{} stages; at most {MAX_STAGES}", self.stages.len()),
            ));
        }
        for (i, stage) in self.stages.iter().enumerate() {
            stage.check(&format!("stages[{i}]"))?;
            if self.stages[..i].iter().any(|s| s.policy == stage.policy) {
                return Err(ConfigError::new(
                    format!("stages[{i}].policy"),
                    format!("{:?} appears twice; policy names are unique", stage.policy),
                ));
            }
        }
        Ok(())
    }
}

impl StageConfig {
    fn check(&self, at: &str) -> Result<(), ConfigError> {
        let err =
            |field: &str, problem: String| Err(ConfigError::new(format!("{at}.{field}"), problem));
        if self.policy.is_empty() {
            return err("policy", "empty; namespace/name of the policy".into());
        }
        // The name is part of the names of stats, where a dot becomes `_`, and of a response header.
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '/');
        if let Some(odd) = self.policy.chars().find(|&c| !plain(c)) {
            return err(
                "policy",
                format!("{:?} has {odd:?}; a-z A-Z 0-9 - . and / only", self.policy),
            );
        }
        if !(1..=MAX_PARALLELISM).contains(&self.parallelism) {
            return err(
                "parallelism",
                format!("{}; 1 to {MAX_PARALLELISM} slots", self.parallelism),
            );
        }
        if self.queue.max_length > MAX_QUEUE_LENGTH {
            return err(
                "queue.max_length",
                format!(
                    "{}; at most {MAX_QUEUE_LENGTH} requests",
                    self.queue.max_length
                ),
            );
        }
        if self.queue.timeout_us == 0 {
            return err("queue.timeout_us", "0; at least 1".into());
        }
        let interval_us = self.strategy.interval_us();
        if !(10_000..=3_600_000_000).contains(&interval_us) {
            return err(
                "strategy.interval_us",
                format!("{interval_us}; 10000 to 3600000000"),
            );
        }
        self.check_strategy(at)?;
        match self.starvation_avoidance {
            None => {}
            Some(StarvationAvoidance::AcceptanceAllowance {
                allowance,
                window_us,
                step_us,
            }) => {
                if !(0.0..=1.0).contains(&allowance) {
                    return err(
                        "starvation_avoidance.allowance",
                        format!("{allowance}; 0 to 1"),
                    );
                }
                check_window(&format!("{at}.starvation_avoidance"), window_us, step_us)?;
            }
            Some(StarvationAvoidance::HelpingTheUnderserved {
                alpha,
                window_us,
                step_us,
            }) => {
                if !(alpha > 0.0 && alpha <= 1.0) {
                    return err(
                        "starvation_avoidance.alpha",
                        format!("{alpha}; above 0, at most 1"),
                    );
                }
                check_window(&format!("{at}.starvation_avoidance"), window_us, step_us)?;
            }
        }
        if self.types.is_empty() || self.types.len() > MAX_TYPES {
            return err(
                "types",
                format!("{} types; 1 to {MAX_TYPES}", self.types.len()),
            );
        }
        for (i, kind) in self.types.iter().enumerate() {
            let last = i + 1 == self.types.len();
            kind.check(&format!("{at}.types[{i}]"), last)?;
            if kind.slo.is_empty() && matches!(self.strategy, StrategyConfig::Bouncer { .. }) {
                return err(
                    &format!("types[{i}].slo"),
                    "empty; Bouncer decides by objectives, so every type needs one or more".into(),
                );
            }
            if self.types[..i].iter().any(|t| t.name == kind.name) {
                return err(
                    &format!("types[{i}].name"),
                    format!("{:?} appears twice; names of types are unique", kind.name),
                );
            }
        }
        Ok(())
    }
}

impl StageConfig {
    fn check_strategy(&self, at: &str) -> Result<(), ConfigError> {
        let err = |field: &str, problem: String| {
            Err(ConfigError::new(format!("{at}.strategy.{field}"), problem))
        };
        let (window_us, step_us) = match &self.strategy {
            StrategyConfig::Bouncer { .. } | StrategyConfig::MaxQueueLength { .. } => return Ok(()),
            StrategyConfig::MaxQueueWait {
                type_limits_us,
                window_us,
                step_us,
                ..
            } => {
                let unknown = |name: &&String| self.types.iter().all(|t| t.name != **name);
                if let Some(name) = type_limits_us.keys().find(unknown) {
                    return err("type_limits_us", format!("{name:?}; no type has that name"));
                }
                (*window_us, *step_us)
            }
            StrategyConfig::AcceptFraction {
                max_utilization,
                window_us,
                step_us,
                ..
            } => {
                if !(*max_utilization > 0.0 && *max_utilization <= 1.0) {
                    return err(
                        "max_utilization",
                        format!("{max_utilization}; above 0, at most 1"),
                    );
                }
                (*window_us, *step_us)
            }
        };
        check_window(&format!("{at}.strategy"), window_us, step_us)
    }
}

fn check_window(at: &str, window_us: u64, step_us: u64) -> Result<(), ConfigError> {
    let steps = window_us.checked_div(step_us).unwrap_or(0);
    if (2..=10_000).contains(&steps) {
        return Ok(());
    }
    Err(ConfigError::new(
        format!("{at}.window_us"),
        format!("{window_us} in steps of {step_us}; 2 to 10000 steps"),
    ))
}

impl TypeConfig {
    fn check(&self, at: &str, last: bool) -> Result<(), ConfigError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.name.is_empty() || self.name.len() > 63 || !self.name.chars().all(plain) {
            return Err(ConfigError::new(
                format!("{at}.name"),
                format!("{:?}; 1 to 63 of a-z A-Z 0-9 - _", self.name),
            ));
        }
        if (self.name == DEFAULT_TYPE) != last {
            return Err(ConfigError::new(
                format!("{at}.name"),
                format!(
                    "{:?}; the last type, and only it, is {DEFAULT_TYPE:?}",
                    self.name
                ),
            ));
        }
        if self.matches.is_empty() != last {
            return Err(ConfigError::new(
                format!("{at}.matches"),
                format!(
                    "{} matches; {DEFAULT_TYPE:?} has none, every other type one or more",
                    self.matches.len()
                ),
            ));
        }
        let mut previous = 0.0;
        for (i, o) in self.slo.iter().enumerate() {
            if !(o.percentile > previous && o.percentile < 100.0) {
                return Err(ConfigError::new(
                    format!("{at}.slo[{i}].percentile"),
                    format!(
                        "{}; above {previous} and below 100, ascending",
                        o.percentile
                    ),
                ));
            }
            previous = o.percentile;
            if o.objective_us == 0 {
                return Err(ConfigError::new(
                    format!("{at}.slo[{i}].objective_us"),
                    "0; at least 1",
                ));
            }
        }
        if self.slo.len() > 16 {
            return Err(ConfigError::new(
                format!("{at}.slo"),
                format!("{} objectives; at most 16", self.slo.len()),
            ));
        }
        Ok(())
    }
}
