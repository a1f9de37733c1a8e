//! Checks of the response time controller's settings.

use crate::{
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
                "degradation": {"min_quality": 0.1, "decrease": 1.2, "increase": 0.05, "admission": true},
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
            // As the paper's table is printed.
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
            // The rule between the three errors is the lowest's.
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
            "type": "AcceptanceAllowance", "allowance": 0.1, "window_us": 1_000_000, "step_us": 10_000,
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
