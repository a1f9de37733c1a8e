//! The checks of [`FilterConfig::from_json`], which protect the data path from any configuration.
//! The operator explains users' mistakes earlier, in terms of their YAML. So a configuration that
//! fails here was not compiled by the operator.

mod class_admission;
mod response_time_controller;
mod workflows;

use std::collections::HashSet;
use std::fmt::Arguments;
use std::ops::RangeInclusive;

use serde::Deserialize;

use super::bounds::{at_most, ensure, header_name, positive, within};
use super::{
    AutoParallelism, ClassConfig, ConfigError, DEFAULT_TYPE, Direction, ErrorsConfig, FilterConfig,
    Flow, MAX_CLASSES, MAX_ERRORS, MAX_PARALLELISM, MAX_QUEUE_LENGTH, MAX_ROUTES, MAX_STAGES,
    MAX_TOKENS, MAX_TYPES, MAX_WORKFLOW_NAME, Measure, Objective, SetHeader, StageConfig,
    StrategyConfig, TokensConfig, TypeConfig,
};

/// The range of the values of types and classes, and of the tokens for each unit of a header's
/// value.
const VALUES: RangeInclusive<f64> = 0.001..=1000.0;

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
    #[must_use]
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
        self.check_direction()?;
        at_most("stages", self.stages.len(), MAX_STAGES)?;
        for (i, stage) in self.stages.iter().enumerate() {
            stage.check(&format!("stages[{i}]"))?;
        }
        let policies = self.stages.iter().map(|stage| stage.policy.as_str());
        unique(policies, "policy names", |i| format!("stages[{i}].policy"))
    }
}

impl StageConfig {
    fn check(&self, at: &str) -> Result<(), ConfigError> {
        let check = |field: &str, is_right: bool, problem: &dyn Fn() -> String| {
            ensure(is_right, format_args!("{at}.{field}"), problem)
        };
        check("policy", !self.policy.is_empty(), &|| {
            "empty; namespace/name of the policy".to_owned()
        })?;
        // The policy's name is part of a response header and of the names of stats, in which a dot
        // becomes `_`.
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '/');
        if let Some(odd) = self.policy.chars().find(|&c| !plain(c)) {
            check("policy", false, &|| {
                format!("{:?} has {odd:?}; a-z A-Z 0-9 - . and / only", self.policy)
            })?;
        }
        self.check_routes(at)?;
        let slots = 1..=MAX_PARALLELISM;
        check("parallelism", slots.contains(&self.parallelism), &|| {
            format!("{}; 1 to {MAX_PARALLELISM} slots", self.parallelism)
        })?;
        if let Some(AutoParallelism { min, max }) = self.auto_parallelism {
            let is_right = (1..=max).contains(&min) && max <= MAX_PARALLELISM;
            check("auto_parallelism", is_right, &|| {
                format!("{min} to {max} slots; 1 <= min <= max <= {MAX_PARALLELISM}")
            })?;
        }
        if let Some(tokens) = &self.tokens {
            tokens.check(&format!("{at}.tokens"))?;
        }
        let longest = self.queue.max_length;
        check("queue.max_length", longest <= MAX_QUEUE_LENGTH, &|| {
            format!("{longest}; at most {MAX_QUEUE_LENGTH} requests")
        })?;
        check("queue.timeout_us", self.queue.timeout_us > 0, &|| {
            "0; at least 1".to_owned()
        })?;
        let ends = self.types.iter().map(|kind| self.measure_of(kind));
        let early = self.release_slot == Measure::FirstByte
            && ends
                .chain([self.measure])
                .any(|end| end == Measure::LastByte);
        check("release_slot", !early, &|| {
            "FirstByte with measure LastByte; LastByte, or measure FirstByte".to_owned()
        })?;
        let keeps_tokens = self.tokens.is_none() || self.release_slot == Measure::LastByte;
        check("tokens", keeps_tokens, &|| {
            "given with release_slot FirstByte, after which the backend still has them".to_owned()
        })?;
        self.errors.check(&format!("{at}.errors"))?;
        if let Some(retries) = &self.retries {
            header_name(format_args!("{at}.retries.header"), &retries.header)?;
        }
        self.service_times.check(&format!("{at}.service_times"))?;
        self.strategy.check(at, self)?;
        if let Some(avoidance) = &self.starvation_avoidance {
            avoidance.check(&format!("{at}.starvation_avoidance"), self)?;
        }
        let types = self.types.len();
        check("types", (1..=MAX_TYPES).contains(&types), &|| {
            format!("{types} types; 1 to {MAX_TYPES}")
        })?;
        let needs_slo = matches!(self.strategy, StrategyConfig::Bouncer { .. });
        for (i, kind) in self.types.iter().enumerate() {
            kind.check(&format!("{at}.types[{i}]"), i + 1 == types)?;
            let is_right = !(needs_slo && kind.slo.is_empty());
            check(&format!("types[{i}].slo"), is_right, &|| {
                "empty; Bouncer decides by objectives, so every type needs one or more".to_owned()
            })?;
            let is_seen = kind.tpot.is_empty() || self.release_slot == Measure::LastByte;
            check(&format!("types[{i}].tpot"), is_seen, &|| {
                "given with release_slot FirstByte, after which nothing is measured".to_owned()
            })?;
        }
        let names = self.types.iter().map(|kind| kind.name.as_str());
        unique(names, "names of types", |i| format!("{at}.types[{i}].name"))?;
        check_classes(&self.classes, at)?;
        if let Some(workflows) = &self.workflows {
            workflows.check(&format!("{at}.workflows"))?;
        }
        if let Some(admission) = &self.class_admission {
            admission.check(self, &format!("{at}.class_admission"))?;
        }
        self.check_discipline(at)
    }

    fn check_routes(&self, at: &str) -> Result<(), ConfigError> {
        let field = format_args!("{at}.routes");
        at_most(field, self.routes.len(), MAX_ROUTES)?;
        for (i, route) in self.routes.iter().enumerate() {
            let name = route.strip_suffix('*').unwrap_or(route);
            let field = format_args!("{at}.routes[{i}]");
            ensure(!name.is_empty(), field, || {
                format!(
                    "{route:?}; the name of a route or, before *, how names begin; no routes at \
                     all for every request"
                )
            })?;
            ensure(!name.contains('*'), field, || {
                format!("{route:?}; * only at the end")
            })?;
        }
        Ok(())
    }

    fn check_discipline(&self, at: &str) -> Result<(), ConfigError> {
        let Some((by, quantum_us, weights)) = self.queue.discipline.fair() else {
            return Ok(());
        };
        let at = format!("{at}.queue.discipline");
        if let Some(quantum) = quantum_us {
            within(format_args!("{at}.quantum_us"), quantum, 100..=60_000_000)?;
        }
        let has_flows = by != Flow::Class || !self.classes.is_empty();
        ensure(has_flows, format_args!("{at}.by"), || {
            "Class; the stage has no classes".to_owned()
        })?;
        if let Some(tokens) = self.queue.discipline.token_cost() {
            let costs = [("input", tokens.input), ("output", tokens.output)];
            for (name, cost) in costs {
                within(format_args!("{at}.tokens.{name}"), cost, 0.0..=1000.0)?;
            }
            let is_seen = self.release_slot == Measure::LastByte;
            ensure(is_seen, format_args!("{at}.tokens"), || {
                "given with release_slot FirstByte, after which no tokens are counted".to_owned()
            })?;
        }
        for (name, weight) in weights {
            let (known, what) = match by {
                Flow::Type => (self.types.iter().any(|t| t.name == *name), "type"),
                Flow::Class => (self.classes.iter().any(|c| c.name == *name), "class"),
                Flow::Workflow => ((1..=MAX_WORKFLOW_NAME).contains(&name.len()), "workflow"),
            };
            let field = format_args!("{at}.weights");
            ensure(known, field, || {
                format!("{name:?}; no {what} has that name")
            })?;
            ensure((0.01..=100.0).contains(weight), field, || {
                format!("{weight} for {name:?}; 0.01 to 100")
            })?;
        }
        Ok(())
    }
}

/// Checks the classes of a stage, or of a called service.
fn check_classes(classes: &[ClassConfig], at: &str) -> Result<(), ConfigError> {
    let at = format!("{at}.classes");
    at_most(&at, classes.len(), MAX_CLASSES)?;
    for (i, class) in classes.iter().enumerate() {
        let (last, matches) = (i + 1 == classes.len(), class.matches.len());
        check_name(&format!("{at}[{i}].name"), &class.name)?;
        within(format_args!("{at}[{i}].value"), class.value, VALUES)?;
        ensure(
            (matches == 0) == last,
            format_args!("{at}[{i}].matches"),
            || format!("{matches} matches; the last class has none, every other class one or more"),
        )?;
    }
    let names = classes.iter().map(|class| class.name.as_str());
    unique(names, "names of classes", |i| format!("{at}[{i}].name"))
}

/// Checks that no name appears twice. `field` returns the field of the name at an index.
fn unique<'a>(
    names: impl Iterator<Item = &'a str>,
    what: &str,
    field: impl Fn(usize) -> String,
) -> Result<(), ConfigError> {
    let mut known = HashSet::new();
    for (i, name) in names.enumerate() {
        let problem = || format!("{name:?} appears twice; {what} are unique");
        ensure(known.insert(name), field(i), problem)?;
    }
    Ok(())
}

fn check_name(at: &str, name: &str) -> Result<(), ConfigError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let is_right = (1..=63).contains(&name.len()) && name.chars().all(plain);
    ensure(is_right, at, || {
        format!("{name:?}; 1 to 63 of a-z A-Z 0-9 - _")
    })
}

impl TokensConfig {
    fn check(&self, at: &str) -> Result<(), ConfigError> {
        positive(format_args!("{at}.budget"), self.budget, MAX_TOKENS.into())?;
        if let Some(most) = self.per_request {
            within(format_args!("{at}.per_request"), most, 1..=MAX_TOKENS)?;
        }
        for (name, count) in [("prompt", &self.prompt), ("output", &self.output)] {
            let Some(count) = count else { continue };
            let at = format!("{at}.{name}");
            if let Some(header) = &count.header {
                header_name(format_args!("{at}.header"), header)?;
            }
            within(format_args!("{at}.per_unit"), count.per_unit, VALUES)?;
            within(
                format_args!("{at}.otherwise"),
                count.otherwise,
                0..=MAX_TOKENS,
            )?;
        }
        Ok(())
    }
}

impl ErrorsConfig {
    fn check(&self, at: &str) -> Result<(), ConfigError> {
        let (http, grpc) = (format!("{at}.http"), format!("{at}.grpc"));
        at_most(&http, self.http.len(), MAX_ERRORS)?;
        at_most(&grpc, self.grpc.len(), MAX_ERRORS)?;
        for (first, last) in &self.http {
            let is_right = 100 <= *first && first <= last && *last <= 599;
            let problem = || format!("{first} to {last}; a range within 100 to 599");
            ensure(is_right, &http, problem)?;
        }
        self.grpc
            .iter()
            .try_for_each(|&status| within(&grpc, status, 1..=16))
    }
}

impl TypeConfig {
    fn check(&self, at: &str, last: bool) -> Result<(), ConfigError> {
        check_name(&format!("{at}.name"), &self.name)?;
        let (name, matches) = (&self.name, self.matches.len());
        ensure(
            (name == DEFAULT_TYPE) == last,
            format_args!("{at}.name"),
            || format!("{name:?}; the last type, and only it, is {DEFAULT_TYPE:?}"),
        )?;
        ensure((matches == 0) == last, format_args!("{at}.matches"), || {
            format!("{matches} matches; {DEFAULT_TYPE:?} has none, every other type one or more")
        })?;
        within(format_args!("{at}.value"), self.value, VALUES)?;
        if let Some(cost) = &self.cost {
            header_name(format_args!("{at}.cost.size.header"), &cost.size.header)?;
        }
        let set = format!("{at}.on_refusal");
        at_most(&set, self.on_refusal.len(), 8)?;
        for (i, SetHeader { name, value }) in self.on_refusal.iter().enumerate() {
            header_name(format_args!("{set}[{i}].name"), name)?;
            let is_right = !value.is_empty() && !value.chars().any(char::is_control);
            ensure(is_right, format_args!("{set}[{i}].value"), || {
                format!("{value:?}; a header's value without control characters")
            })?;
        }
        check_objectives(&self.slo, format_args!("{at}.slo"))?;
        check_objectives(&self.tpot, format_args!("{at}.tpot"))
    }
}

fn check_objectives(objectives: &[Objective], at: Arguments<'_>) -> Result<(), ConfigError> {
    let mut previous = 0.0;
    for (i, o) in objectives.iter().enumerate() {
        let (at, p) = (format!("{at}[{i}]"), o.percentile);
        let is_right = p > previous && p < 100.0;
        ensure(is_right, format_args!("{at}.percentile"), || {
            format!("{p}; above {previous} and below 100, ascending")
        })?;
        previous = p;
        ensure(
            o.objective_us > 0,
            format_args!("{at}.objective_us"),
            || "0; at least 1".to_owned(),
        )?;
    }
    at_most(at, objectives.len(), 16)
}

#[cfg(test)]
mod tests;
