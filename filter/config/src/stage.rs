//! The configuration of a workload, and of its stages.
//!
//! The checks of [`FilterConfig::from_json`] protect the data path from any configuration. Each is
//! beside the type whose values it checks. The operator explains users' mistakes earlier, in terms
//! of their YAML. So a configuration that fails here was not compiled by the operator.

use serde::{Deserialize, Serialize};

use super::place::{Checked, Place};
use super::types::{check_classes, is_default};
use super::{
    AutoParallelism, ClassAdmissionConfig, ClassConfig, ConfigError, ErrorsConfig, MAX_PARALLELISM,
    MAX_ROUTES, MAX_STAGES, MAX_TYPES, Match, Measure, Mode, OutboundConfig, QueueConfig,
    RetriesConfig, ServiceTimesConfig, StarvationAvoidance, StrategyConfig, TokensConfig,
    TypeConfig, WorkflowsConfig,
};

/// The listener that a configuration is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Direction {
    /// Requests to the service behind the proxy, or to a gateway.
    #[default]
    Inbound,
    /// Calls of that service to others.
    Outbound,
}

/// The configuration of one proxy workload, with all its policies.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterConfig {
    /// Content hash that names this configuration in logs and in `headgate status`.
    #[serde(default)]
    pub revision: String,
    /// The listener that the configuration is for. An outbound configuration has no stages.
    #[serde(default, skip_serializing_if = "is_default")]
    pub direction: Direction,
    /// Workflows and classes of the process's outbound calls. If the direction is `Inbound`, the
    /// proxy is a gateway. Its requests are then also its calls, because one listener receives and
    /// forwards them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbound: Option<OutboundConfig>,
    /// Admission stages, of which the first that covers a request applies. Empty: every request
    /// passes untouched.
    #[serde(default)]
    pub stages: Vec<StageConfig>,
}

/// One admission stage, with P slots, one queue and objectives for each type (Bouncer Figure 1).
/// The default, without slots and types, is the base of stages that are built in code.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageConfig {
    /// `namespace/name` of the policy.
    pub policy: String,
    /// `metadata.generation` of the policy.
    #[serde(default)]
    pub generation: i64,
    /// Names of the Envoy routes that this stage covers. A name that ends in `*` matches all names
    /// with the prefix before it. Empty means every request. At most
    /// [`MAX_ROUTES`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<String>,
    /// Whether decisions take effect.
    #[serde(default)]
    pub mode: Mode,
    /// P, the number of requests from this proxy that may be in the backend at once, 1 ..=
    /// 1,000,000. With `auto_parallelism`, this is the initial value.
    pub parallelism: u32,
    /// The bounds of a P that is found automatically. Absent: P is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_parallelism: Option<AutoParallelism>,
    /// A budget of tokens, which requests take in addition to their slots. Absent: only slots limit
    /// requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokensConfig>,
    /// The queue in front of the slots.
    pub queue: QueueConfig,
    /// The moment at which a request's processing time ends.
    #[serde(default)]
    pub measure: Measure,
    /// The moment at which a request's slot becomes free, not before the end of its processing
    /// time.
    #[serde(default, skip_serializing_if = "is_default")]
    pub release_slot: Measure,
    /// The responses that count as errors of the backend.
    #[serde(default, skip_serializing_if = "is_default")]
    pub errors: ErrorsConfig,
    /// A header that numbers attempts, in addition to [`ATTEMPT_HEADERS`](super::ATTEMPT_HEADERS).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<RetriesConfig>,
    /// Settings of the estimates of processing times.
    #[serde(default)]
    pub service_times: ServiceTimesConfig,
    /// The strategy that decides which requests may enter the queue.
    pub strategy: StrategyConfig,
    /// Starvation avoidance, which wraps the strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starvation_avoidance: Option<StarvationAvoidance>,
    /// Query types in matching order. The last one is `default` and matches everything.
    pub types: Vec<TypeConfig>,
    /// Classes of requests, the highest priority first. The last one takes requests that no other
    /// matches. Empty: all requests are of one class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassConfig>,
    /// Settings of workflows that cross this stage and others. Absent: workflow ids only order the
    /// queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflows: Option<WorkflowsConfig>,
    /// Class admission, by classes that senders name in their requests. Absent: only a stage with
    /// workflows trusts these names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_admission: Option<ClassAdmissionConfig>,
    /// Requests that bypass the stage altogether (health checks).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<Match>,
}

impl StageConfig {
    /// Returns the largest number of workflows with ids of their own, or `None` for a stage without
    /// workflows.
    pub fn max_flows(&self) -> Option<u16> {
        self.workflows.as_ref().map(|w| w.max_workflows)
    }

    /// Returns the moment at which the processing time of requests of `kind` ends.
    pub fn measure_of(&self, kind: &TypeConfig) -> Measure {
        kind.measure.unwrap_or(self.measure)
    }

    /// Whether requests of some type hold their slots for longer than their measured processing
    /// times.
    pub fn holds_streams(&self) -> bool {
        let starts = |kind| self.measure_of(kind) == Measure::FirstByte;
        self.release_slot == Measure::LastByte && self.types.iter().any(starts)
    }

    /// Whether a request header carries the quality of the response.
    pub fn degrades(&self) -> bool {
        match &self.strategy {
            StrategyConfig::ResponseTimeController(settings) => settings.degradation.is_some(),
            _ => false,
        }
    }
}

impl FilterConfig {
    /// Parses and checks a configuration. An empty input is the empty configuration.
    ///
    /// # Errors
    /// Returns the first problem found, with the path of its field. Nothing is applied partially.
    pub fn from_json(json: &[u8]) -> Result<Self, ConfigError> {
        if json.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        let config: Self = serde_json::from_slice(json)
            .map_err(|e| ConfigError::new("configuration", e.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// Returns the direction of a configuration, even if other parts are invalid. A direction that
    /// can't be read counts as inbound.
    pub fn direction_of(json: &[u8]) -> Direction {
        #[derive(Default, Deserialize)]
        struct Head {
            #[serde(default)]
            direction: Direction,
        }
        serde_json::from_slice::<Head>(json)
            .unwrap_or_default()
            .direction
    }

    /// Checks a configuration built in code by the rules of [`FilterConfig::from_json`].
    ///
    /// # Errors
    /// Returns the first problem found, with the path of its field.
    pub fn check(&self) -> Result<(), ConfigError> {
        let at = Place::new("");
        self.check_direction(&at)?;
        at.at_most("stages", self.stages.len(), MAX_STAGES)?;
        for (i, stage) in self.stages.iter().enumerate() {
            stage.check(&at.item("stages", i))?;
        }
        let list = ("stages", "policy");
        at.unique(list, &self.stages, |stage| &stage.policy, "policy names")
    }

    /// Checks that only inbound configurations have stages, and that a gateway's calls belong to
    /// one of its stages.
    fn check_direction(&self, at: &Place) -> Checked {
        let is_inbound = self.direction == Direction::Inbound;
        at.ensure("stages", is_inbound || self.stages.is_empty(), || {
            "given with direction Outbound; no stages, or direction Inbound".to_owned()
        })?;
        let Some(outbound) = &self.outbound else {
            return Ok(());
        };
        let policy = &outbound.policy;
        let is_it = |s: &StageConfig| {
            s.policy == *policy && (s.workflows.is_some() || s.class_admission.is_some())
        };
        let is_known = !is_inbound || self.stages.iter().any(is_it);
        let at = at.field("outbound");
        at.ensure("policy", is_known, || {
            format!("{policy:?}; the policy of a stage with workflows or class_admission")
        })?;
        outbound.check(&at)
    }
}

impl StageConfig {
    fn check(&self, at: &Place) -> Checked {
        at.ensure("policy", !self.policy.is_empty(), || {
            "empty; namespace/name of the policy".to_owned()
        })?;
        // The policy's name is part of a response header and of the names of stats, in which a dot
        // becomes `_`.
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '/');
        if let Some(odd) = self.policy.chars().find(|&c| !plain(c)) {
            at.ensure("policy", false, || {
                format!("{:?} has {odd:?}; a-z A-Z 0-9 - . and / only", self.policy)
            })?;
        }
        self.check_routes(at)?;
        let slots = 1..=MAX_PARALLELISM;
        at.ensure("parallelism", slots.contains(&self.parallelism), || {
            format!("{}; 1 to {MAX_PARALLELISM} slots", self.parallelism)
        })?;
        if let Some(AutoParallelism { min, max }) = self.auto_parallelism {
            let is_right = (1..=max).contains(&min) && max <= MAX_PARALLELISM;
            at.ensure("auto_parallelism", is_right, || {
                format!("min {min} and max {max}; 1 <= min <= max <= {MAX_PARALLELISM}")
            })?;
        }
        if let Some(tokens) = &self.tokens {
            tokens.check(&at.field("tokens"))?;
        }
        self.queue.check(&at.field("queue"))?;
        let ends = self.types.iter().map(|kind| self.measure_of(kind));
        let mut ends = ends.chain([self.measure]);
        let to_the_end = self.release_slot == Measure::LastByte;
        let early = !to_the_end && ends.any(|end| end == Measure::LastByte);
        at.ensure("release_slot", !early, || {
            "FirstByte with measure LastByte; LastByte, or measure FirstByte".to_owned()
        })?;
        at.ensure("tokens", self.tokens.is_none() || to_the_end, || {
            "given with release_slot FirstByte; release_slot LastByte, or no tokens".to_owned()
        })?;
        self.errors.check(&at.field("errors"))?;
        if let Some(retries) = &self.retries {
            at.header_name("retries.header", &retries.header)?;
        }
        self.service_times.check(&at.field("service_times"))?;
        let strategy = at.field("strategy");
        self.strategy
            .check(&strategy, &self.types, self.classes.len())?;
        if let Some(avoidance) = &self.starvation_avoidance {
            let at = at.field("starvation_avoidance");
            avoidance.check(&at, &self.strategy, &self.types)?;
        }
        let types = self.types.len();
        at.ensure("types", (1..=MAX_TYPES).contains(&types), || {
            format!("{types} types; 1 to {MAX_TYPES}")
        })?;
        let needs_slo = matches!(self.strategy, StrategyConfig::Bouncer { .. });
        for (i, kind) in self.types.iter().enumerate() {
            let at = at.item("types", i);
            kind.check(&at, i + 1 == types)?;
            at.ensure("slo", !(needs_slo && kind.slo.is_empty()), || {
                "empty; one objective or more for each type with strategy Bouncer".to_owned()
            })?;
            at.ensure("tpot", kind.tpot.is_empty() || to_the_end, || {
                "given with release_slot FirstByte; release_slot LastByte, or no tpot".to_owned()
            })?;
        }
        let list = ("types", "name");
        at.unique(list, &self.types, |kind| &kind.name, "names of types")?;
        check_classes(&self.classes, at)?;
        if let Some(workflows) = &self.workflows {
            workflows.check(&at.field("workflows"))?;
        }
        if let Some(admission) = &self.class_admission {
            admission.check(self.classes.len(), &at.field("class_admission"))?;
        }
        let at = at.field("queue.discipline");
        let discipline = &self.queue.discipline;
        discipline.check(&at, &self.types, &self.classes, self.release_slot)
    }

    fn check_routes(&self, at: &Place) -> Checked {
        at.at_most("routes", self.routes.len(), MAX_ROUTES)?;
        for (i, route) in self.routes.iter().enumerate() {
            let name = route.strip_suffix('*').unwrap_or(route);
            let field = &format!("routes[{i}]");
            at.ensure(field, !name.is_empty(), || {
                format!(
                    "{route:?}; the name of a route, or the beginning of names and then *; no \
                     routes for all requests"
                )
            })?;
            at.ensure(field, !name.contains('*'), || {
                format!("{route:?}; * only at the end")
            })?;
        }
        Ok(())
    }
}
