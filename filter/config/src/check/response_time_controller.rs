//! Checks of the response time controller's settings.

use std::fmt::Display;

use crate::bounds::{ensure, positive, within};
use crate::{
    ConfigError, ControlScope, DegradationConfig, ResponseTimeControllerConfig, StageConfig,
};

/// The maximum number of controllers of one stage, because workers rewrite their shared state at
/// every tick.
const MAX_CONTROLLERS: usize = 256;
/// The maximum number of requests between two runs of a controller, which stores a sample for each
/// of these requests.
const MAX_REQUESTS: u32 = 10_000;
/// Highest rate, requests/s.
const MAX_RATE: f64 = 1e6;

impl ResponseTimeControllerConfig {
    /// Checks the settings of `stage`, whose strategy is at `at`.
    pub(crate) fn check(&self, at: &str, stage: &StageConfig) -> Result<(), ConfigError> {
        let strategy = format!("{at}.strategy");
        self.check_targets(&strategy, stage)?;
        self.check_law(&strategy)?;
        if let Some(degradation) = &self.degradation {
            check_degradation(&format!("{strategy}.degradation"), degradation)?;
        }
        self.check_starvation_avoidance(at, stage)
    }

    fn check_targets(&self, at: &str, stage: &StageConfig) -> Result<(), ConfigError> {
        let types = match self.scope {
            ControlScope::Type => stage.types.len(),
            ControlScope::Policy => 1,
        };
        let classes = stage.classes.len().max(1);
        let targets = &self.targets_us;
        ensure(
            types * classes <= MAX_CONTROLLERS,
            format_args!("{at}.scope"),
            || {
                format!(
                    "{types} types of {classes} classes; at most {MAX_CONTROLLERS} controllers, or \
                     one for all types with scope \"Policy\""
                )
            },
        )?;
        let field = format_args!("{at}.targets_us");
        ensure(
            targets.len() == types && targets.iter().all(|row| row.len() == classes),
            field,
            || format!("{targets:?}; {types} rows of {classes}: types, then classes"),
        )?;
        let mut all = targets.iter().flatten();
        let problem = || format!("{targets:?}; each at least 1");
        ensure(all.all(|&target| target > 0), field, problem)
    }

    fn check_law(&self, at: &str) -> Result<(), ConfigError> {
        let number = |field: &str, number: f64, is_right: bool, right: &str| {
            let problem = || format!("{number}; {right}");
            ensure(is_right, format_args!("{at}.{field}"), problem)
        };
        let p = self.percentile;
        number("percentile", p, p > 0.0 && p < 100.0, "above 0, below 100")?;
        let past = self.smoothing;
        let is_ratio = (0.0..1.0).contains(&past);
        number("smoothing", past, is_ratio, "0 or more, below 1")?;
        within(
            format_args!("{at}.requests"),
            self.requests,
            1..=MAX_REQUESTS,
        )?;
        within(
            format_args!("{at}.timeout_us"),
            self.timeout_us,
            10_000..=3_600_000_000,
        )?;
        let (above, offset) = (self.decrease_above, self.increase_offset);
        within(format_args!("{at}.decrease_above"), above, -1.0..=10.0)?;
        within(format_args!("{at}.increase_offset"), offset, -1.0..=10.0)?;
        let below = self.increase_below;
        let is_below = below > -1.0 && below <= offset && below <= above;
        ensure(is_below, format_args!("{at}.increase_below"), || {
            format!(
                "{below}; above -1, at most increase_offset ({offset}), where an increase is 0, \
                 and at most decrease_above ({above})"
            )
        })?;
        if let Some(increase) = self.increase {
            positive(format_args!("{at}.increase"), increase, MAX_RATE)?;
        }
        divisor(format_args!("{at}.decrease"), self.decrease)?;
        let lower = format_args!("{at}.lower_class_decrease");
        divisor(lower, self.lower_class_decrease)?;
        let (least, most) = (self.min_rate, self.max_rate);
        number(
            "min_rate",
            least,
            least >= 1e-3,
            "at least 0.001 requests/s",
        )?;
        let right = format!("min_rate ({least}) to {MAX_RATE} requests/s");
        number("max_rate", most, most >= least && most <= MAX_RATE, &right)
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

fn check_degradation(at: &str, degradation: &DegradationConfig) -> Result<(), ConfigError> {
    let least = degradation.min_quality;
    let problem = || format!("{least}; above 0, below 1");
    let field = format_args!("{at}.min_quality");
    ensure(least > 0.0 && least < 1.0, field, problem)?;
    divisor(format_args!("{at}.decrease"), degradation.decrease)?;
    positive(format_args!("{at}.increase"), degradation.increase, 1.0)
}

fn divisor(field: impl Display, divisor: f64) -> Result<(), ConfigError> {
    let is_right = divisor > 1.0 && divisor <= 1e6;
    ensure(is_right, field, || format!("{divisor}; above 1"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::FilterConfig;

    fn stage() -> Value {
        json!({
            "policy": "default/mail",
            "parallelism": 4,
            "queue": {"max_length": 100, "timeout_us": 1_000_000},
            "strategy": {
                "type": "ResponseTimeController",
                "percentile": 90, "targets_us": [[1_000, 2_000], [3_000, 4_000]], "scope": "Type",
                "smoothing": 0.7, "requests": 100, "timeout_us": 1_000_000,
                "increase_below": -0.5, "decrease_above": 0, "increase": 2, "decrease": 1.2,
                "increase_offset": -0.1, "min_rate": 0.05, "max_rate": 2000,
                "lower_class_decrease": 10, "lower_class_patience": 20,
                "degradation": {
                    "min_quality": 0.1, "decrease": 1.2, "increase": 0.05, "admission": true,
                },
            },
            "types": [{"name": "list", "matches": [{"method": "GET"}]}, {"name": "default"}],
            "classes": [{"name": "gold", "matches": [{"method": "GET"}]}, {"name": "rest"}],
        })
    }

    fn checked(stage: &Value) -> Result<FilterConfig, ConfigError> {
        FilterConfig::from_json(json!({"stages": [stage]}).to_string().as_bytes())
    }

    #[test]
    fn what_is_right_passes_and_comes_back() {
        let config = checked(&stage()).unwrap();
        let json = serde_json::to_vec(&config).unwrap();
        assert_eq!(FilterConfig::from_json(&json).unwrap(), config);
        let mut one_for_all = stage();
        one_for_all["strategy"]["scope"] = json!("Policy");
        one_for_all["strategy"]["targets_us"] = json!([[1_000, 2_000]]);
        checked(&one_for_all).unwrap();
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = [
            ("/percentile", json!(100)),
            ("/targets_us", json!([[1_000, 2_000]])),
            ("/targets_us", json!([[1_000], [2_000]])),
            ("/targets_us", json!([[1_000, 0], [1, 1]])),
            ("/smoothing", json!(1)),
            ("/requests", json!(0)),
            ("/requests", json!(10_001)),
            ("/timeout_us", json!(9_999)),
            // This is the value as printed in the paper's Figure 4.
            ("/increase_below", json!(0.5)),
            ("/increase_below", json!(-1)),
            ("/decrease_above", json!(-0.6)),
            ("/increase_offset", json!(-0.6)),
            ("/increase", json!(0)),
            ("/decrease", json!(1)),
            ("/lower_class_decrease", json!(0.5)),
            ("/min_rate", json!(0)),
            ("/max_rate", json!(0.01)),
            ("/degradation/min_quality", json!(0)),
            ("/degradation/decrease", json!(1)),
            ("/degradation/increase", json!(1.5)),
        ];
        for (field, value) in wrong {
            let mut stage = stage();
            *stage["strategy"].pointer_mut(field).unwrap() = value.clone();
            let error = checked(&stage).unwrap_err();
            // The rule that relates these three fields reports its error at `increase_below`.
            let named = match field {
                "/decrease_above" | "/increase_offset" => "increase_below".to_owned(),
                field => field[1..].replace('/', "."),
            };
            let expected = format!("stages[0].strategy.{named}");
            assert_eq!(error.field, expected, "{value}: {error}");
        }
    }

    #[test]
    fn too_many_controllers_and_pointless_wrappers_are_refused() {
        let mut many = stage();
        let kind = |i| json!({"name": format!("t{i}"), "matches": [{"method": "GET"}]});
        let mut types: Vec<Value> = (0..128).map(kind).collect();
        types.push(json!({"name": "default"}));
        many["strategy"]["targets_us"] = json!(vec![[1_000, 1_000]; types.len()]);
        many["types"] = types.into();
        assert_eq!(
            checked(&many).unwrap_err().field,
            "stages[0].strategy.scope"
        );
        let mut wrapped = stage();
        wrapped["starvation_avoidance"] = json!({
            "type": "AcceptanceAllowance", "allowance": 0.1,
            "window_us": 1_000_000, "step_us": 10_000,
        });
        checked(&wrapped).unwrap();
        wrapped["strategy"]["scope"] = json!("Policy");
        wrapped["strategy"]["targets_us"] = json!([[1_000, 2_000]]);
        assert_eq!(
            checked(&wrapped).unwrap_err().field,
            "stages[0].starvation_avoidance"
        );
    }
}
