//! The checks of [`FilterConfig::from_json`], which keep the data path safe, whatever configuration
//! arrives. The operator explains users' mistakes earlier, in terms of their YAML. So a
//! configuration that fails here was not compiled by the operator.

mod class_admission;
mod response_time_controller;
mod workflows;

use std::ops::RangeInclusive;

use serde::Deserialize;

use super::bounds::{at_most, header_name, within};
use super::{
    AutoParallelism, ClassConfig, ConfigError, DEFAULT_TYPE, Direction, ErrorsConfig, FilterConfig,
    Flow, MAX_CLASSES, MAX_ERRORS, MAX_PARALLELISM, MAX_QUEUE_LENGTH, MAX_ROUTES, MAX_STAGES,
    MAX_TYPES, MAX_WORKFLOW_NAME, Measure, StageConfig, StrategyConfig, TypeConfig,
};

/// The range of the values of types and classes.
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

    /// Returns the direction of a configuration, even if other parts are invalid; inbound if it
    /// can't be read.
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

    /// Checks the guarantees of [`FilterConfig::from_json`] for a configuration built in code.
    ///
    /// # Errors
    /// Returns the first problem found, with the path of its field.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_direction()?;
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
        // The name is part of the names of stats, in which a dot becomes `_`, and of a response
        // header.
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '/');
        if let Some(odd) = self.policy.chars().find(|&c| !plain(c)) {
            return err(
                "policy",
                format!("{:?} has {odd:?}; a-z A-Z 0-9 - . and / only", self.policy),
            );
        }
        self.check_routes(at)?;
        if !(1..=MAX_PARALLELISM).contains(&self.parallelism) {
            return err(
                "parallelism",
                format!("{}; 1 to {MAX_PARALLELISM} slots", self.parallelism),
            );
        }
        if let Some(AutoParallelism { min, max }) = self.auto_parallelism
            && (!(1..=max).contains(&min) || max > MAX_PARALLELISM)
        {
            return err(
                "auto_parallelism",
                format!("{min} to {max} slots; 1 <= min <= max <= {MAX_PARALLELISM}"),
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
        if self.release_slot == Measure::FirstByte && self.measure == Measure::LastByte {
            return err(
                "release_slot",
                "FirstByte with measure LastByte; LastByte, or measure FirstByte".into(),
            );
        }
        self.errors.check(&format!("{at}.errors"))?;
        if let Some(retries) = &self.retries {
            header_name(format_args!("{at}.retries.header"), &retries.header)?;
        }
        self.service_times.check(&format!("{at}.service_times"))?;
        self.strategy.check(at, self)?;
        if let Some(avoidance) = &self.starvation_avoidance {
            avoidance.check(&format!("{at}.starvation_avoidance"))?;
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
        if self.routes.len() > MAX_ROUTES {
            return Err(ConfigError::new(
                format!("{at}.routes"),
                format!("{} routes; at most {MAX_ROUTES}", self.routes.len()),
            ));
        }
        for (i, route) in self.routes.iter().enumerate() {
            let name = route.strip_suffix('*').unwrap_or(route);
            let problem = if name.is_empty() {
                "the name of a route or, before *, how names begin; no routes at all for every \
                 request"
            } else if name.contains('*') {
                "* only at the end"
            } else {
                continue;
            };
            return Err(ConfigError::new(
                format!("{at}.routes[{i}]"),
                format!("{route:?}; {problem}"),
            ));
        }
        Ok(())
    }

    fn check_discipline(&self, at: &str) -> Result<(), ConfigError> {
        let Some((by, quantum_us, weights)) = self.queue.discipline.fair() else {
            return Ok(());
        };
        let err = |field: &str, problem: String| {
            let field = format!("{at}.queue.discipline.{field}");
            Err(ConfigError::new(field, problem))
        };
        if let Some(quantum) = quantum_us {
            let field = format_args!("{at}.queue.discipline.quantum_us");
            within(field, quantum, 100..=60_000_000)?;
        }
        if by == Flow::Class && self.classes.is_empty() {
            return err("by", "Class; the stage has no classes".into());
        }
        for (name, weight) in weights {
            let (known, what) = match by {
                Flow::Type => (self.types.iter().any(|t| t.name == *name), "type"),
                Flow::Class => (self.classes.iter().any(|c| c.name == *name), "class"),
                Flow::Workflow => ((1..=MAX_WORKFLOW_NAME).contains(&name.len()), "workflow"),
            };
            if !known {
                return err("weights", format!("{name:?}; no {what} has that name"));
            }
            if !(0.01..=100.0).contains(weight) {
                return err("weights", format!("{weight} for {name:?}; 0.01 to 100"));
            }
        }
        Ok(())
    }
}

/// Checks the classes of a stage, or of a called service.
fn check_classes(classes: &[ClassConfig], at: &str) -> Result<(), ConfigError> {
    let err =
        |field: String, problem: String| Err(ConfigError::new(format!("{at}.{field}"), problem));
    if classes.len() > MAX_CLASSES {
        return err(
            "classes".into(),
            format!("{} classes; at most {MAX_CLASSES}", classes.len()),
        );
    }
    for (i, class) in classes.iter().enumerate() {
        let last = i + 1 == classes.len();
        check_name(&format!("{at}.classes[{i}].name"), &class.name)?;
        if classes[..i].iter().any(|c| c.name == class.name) {
            return err(
                format!("classes[{i}].name"),
                format!(
                    "{:?} appears twice; names of classes are unique",
                    class.name
                ),
            );
        }
        within(format_args!("{at}.classes[{i}].value"), class.value, VALUES)?;
        if class.matches.is_empty() != last {
            return err(
                format!("classes[{i}].matches"),
                format!(
                    "{} matches; the last class has none, every other class one or more",
                    class.matches.len()
                ),
            );
        }
    }
    Ok(())
}

fn check_name(at: &str, name: &str) -> Result<(), ConfigError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 63 || !name.chars().all(plain) {
        return Err(ConfigError::new(
            at,
            format!("{name:?}; 1 to 63 of a-z A-Z 0-9 - _"),
        ));
    }
    Ok(())
}

impl ErrorsConfig {
    fn check(&self, at: &str) -> Result<(), ConfigError> {
        let err =
            |field: &str, problem: String| Err(ConfigError::new(format!("{at}.{field}"), problem));
        at_most(format_args!("{at}.http"), self.http.len(), MAX_ERRORS)?;
        at_most(format_args!("{at}.grpc"), self.grpc.len(), MAX_ERRORS)?;
        let odd = |&&(first, last): &&(u16, u16)| first < 100 || last > 599 || first > last;
        if let Some((first, last)) = self.http.iter().find(odd) {
            return err(
                "http",
                format!("{first} to {last}; a range within 100 to 599"),
            );
        }
        if let Some(odd) = self.grpc.iter().find(|status| !(1..=16).contains(*status)) {
            return err("grpc", format!("{odd}; 1 to 16"));
        }
        Ok(())
    }
}

impl TypeConfig {
    fn check(&self, at: &str, last: bool) -> Result<(), ConfigError> {
        check_name(&format!("{at}.name"), &self.name)?;
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
        within(format_args!("{at}.value"), self.value, VALUES)?;
        if let Some(cost) = &self.cost {
            header_name(format_args!("{at}.cost.size.header"), &cost.size.header)?;
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

#[cfg(test)]
mod tests;
