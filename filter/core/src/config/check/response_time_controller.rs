//! Checks of the response time controller's settings.

use crate::config::{
    ConfigError, ControlScope, DegradationConfig, ResponseTimeControllerConfig, StageConfig,
};

/// Most controllers of one stage: the workers share their state and rewrite it at their ticks.
const MAX_CONTROLLERS: usize = 256;
/// Most requests between two runs: each controller keeps as many samples.
const MAX_REQUESTS: u32 = 10_000;
/// Greatest rate, requests/s.
const MAX_RATE: f64 = 1e6;

type Problem = (&'static str, String);

impl ResponseTimeControllerConfig {
    /// Checks the settings of `stage`, whose strategy is at `at`.
    pub(super) fn check(&self, at: &str, stage: &StageConfig) -> Result<(), ConfigError> {
        self.check_targets(stage)
            .and_then(|()| self.check_law())
            .and_then(|()| self.degradation.map_or(Ok(()), check_degradation))
            .map_err(|(field, problem)| ConfigError::new(format!("{at}.strategy.{field}"), problem))
            .and_then(|()| self.check_starvation_avoidance(at, stage))
    }

    fn check_targets(&self, stage: &StageConfig) -> Result<(), Problem> {
        let types = match self.scope {
            ControlScope::Type => stage.types.len(),
            ControlScope::Policy => 1,
        };
        let classes = stage.classes.len().max(1);
        let targets = &self.targets_us;
        if types * classes > MAX_CONTROLLERS {
            return err(
                "scope",
                format!(
                    "{types} types of {classes} classes; at most {MAX_CONTROLLERS} controllers, or \
                     one for all types with scope \"Policy\""
                ),
            );
        }
        if targets.len() != types || targets.iter().any(|row| row.len() != classes) {
            return err(
                "targets_us",
                format!("{targets:?}; {types} rows of {classes}: types, then classes"),
            );
        }
        if targets.iter().flatten().any(|&target| target == 0) {
            return err("targets_us", format!("{targets:?}; each at least 1"));
        }
        Ok(())
    }

    fn check_law(&self) -> Result<(), Problem> {
        within(
            "percentile",
            self.percentile,
            |p| p > 0.0 && p < 100.0,
            "above 0, below 100",
        )?;
        within(
            "smoothing",
            self.smoothing,
            |a| (0.0..1.0).contains(&a),
            "0 or more, below 1",
        )?;
        if !(1..=MAX_REQUESTS).contains(&self.requests) {
            return err(
                "requests",
                format!("{}; 1 to {MAX_REQUESTS}", self.requests),
            );
        }
        if !(10_000..=3_600_000_000).contains(&self.timeout_us) {
            return err(
                "timeout_us",
                format!("{}; 10000 to 3600000000", self.timeout_us),
            );
        }
        let offset = self.increase_offset;
        let above = self.decrease_above;
        within(
            "decrease_above",
            above,
            |e| (-1.0..=10.0).contains(&e),
            "-1 to 10",
        )?;
        within(
            "increase_offset",
            offset,
            |e| (-1.0..=10.0).contains(&e),
            "-1 to 10",
        )?;
        let below = self.increase_below;
        if !(below > -1.0 && below <= offset && below <= above) {
            return err(
                "increase_below",
                format!(
                    "{below}; above -1, at most increase_offset ({offset}), where an increase is 0, \
                     and at most decrease_above ({above})"
                ),
            );
        }
        within(
            "increase",
            self.increase,
            |i| i > 0.0 && i <= MAX_RATE,
            "above 0, at most 1000000",
        )?;
        let divisor = |d: f64| d > 1.0 && d <= 1e6;
        within("decrease", self.decrease, divisor, "above 1")?;
        within(
            "lower_class_decrease",
            self.lower_class_decrease,
            divisor,
            "above 1",
        )?;
        let (least, greatest) = (self.min_rate, self.max_rate);
        within(
            "min_rate",
            least,
            |r| r >= 1e-3,
            "at least 0.001 requests/s",
        )?;
        if !(greatest >= least && greatest <= MAX_RATE) {
            return err(
                "max_rate",
                format!("{greatest}; min_rate ({least}) to {MAX_RATE} requests/s"),
            );
        }
        Ok(())
    }

    fn check_starvation_avoidance(&self, at: &str, stage: &StageConfig) -> Result<(), ConfigError> {
        if stage.starvation_avoidance.is_some() && self.scope == ControlScope::Policy {
            return Err(ConfigError::new(
                format!("{at}.starvation_avoidance"),
                "one response time controller for all types refuses all of them alike; scope \
                 \"Type\", or no starvation avoidance",
            ));
        }
        Ok(())
    }
}

fn check_degradation(degradation: DegradationConfig) -> Result<(), Problem> {
    let DegradationConfig {
        min_quality,
        decrease,
        increase,
        admission: _,
    } = degradation;
    let ratio = |q: f64| q > 0.0 && q < 1.0;
    within(
        "degradation.min_quality",
        min_quality,
        ratio,
        "above 0, below 1",
    )?;
    within(
        "degradation.decrease",
        decrease,
        |d| d > 1.0 && d <= 1e6,
        "above 1",
    )?;
    within(
        "degradation.increase",
        increase,
        |i| i > 0.0 && i <= 1.0,
        "above 0, at most 1",
    )
}

fn within(
    field: &'static str,
    value: f64,
    is_right: impl Fn(f64) -> bool,
    right: &str,
) -> Result<(), Problem> {
    if is_right(value) {
        return Ok(());
    }
    err(field, format!("{value}; {right}"))
}

fn err(field: &'static str, problem: String) -> Result<(), Problem> {
    Err((field, problem))
}
