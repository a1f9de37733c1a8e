//! The settings of SEDA's response time controller, and their checks.

use serde::{Deserialize, Serialize};

use super::place::{Checked, HOUR_US, Place};

/// The maximum number of controllers of one stage, because workers rewrite their shared state at
/// every tick.
pub const MAX_CONTROLLERS: usize = 256;
/// The maximum number of requests between two runs of a controller, which stores a sample for each
/// of these requests.
const MAX_REQUESTS: u32 = 10_000;
/// Highest rate, requests/s.
const MAX_RATE: f64 = 1e6;

/// SEDA's response time controller. The names in parentheses are those of Figure 4.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResponseTimeControllerConfig {
    /// Percentile of response times that the controller keeps at the target, 0 < p < 100.
    pub percentile: f64,
    /// The targets, µs. There is one row for each type, or one row for all types with
    /// [`ControlScope::Policy`]. A row has one target for each class, or a single target if there
    /// are no classes.
    pub targets_us: Vec<Vec<u64>>,
    /// The scope of a controller.
    pub scope: ControlScope,
    /// Weight of the past in the moving average of the percentile (α), ratio 0 <= α < 1.
    pub smoothing: f64,
    /// Requests between two runs of a controller (nreq).
    pub requests: u32,
    /// Time after which the controller runs with fewer requests, µs (timeout).
    pub timeout_us: u64,
    /// Relative error below which the rate is increased (err_i).
    pub increase_below: f64,
    /// Relative error above which the rate is decreased (err_d).
    pub decrease_above: f64,
    /// Factor of an increase, requests/s (adj_i). Absent: the factor is 5% of the measured
    /// throughput, and the settings of increases and decreases apply per target time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub increase: Option<f64>,
    /// Divisor of a decrease, above 1 (adj_d).
    pub decrease: f64,
    /// Relative error at which an increase is 0 (c_i).
    pub increase_offset: f64,
    /// Least rate, requests/s, above 0.
    pub min_rate: f64,
    /// Greatest rate, requests/s.
    pub max_rate: f64,
    /// Divisor of the rates of lower classes (adj_lo), above 1.
    pub lower_class_decrease: f64,
    /// The number of runs for which all lower classes must have their least rate before the class's
    /// own rate is decreased (lc_thresh).
    pub lower_class_patience: u32,
    /// Service degradation, which comes before refusals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub degradation: Option<DegradationConfig>,
}

impl ResponseTimeControllerConfig {
    /// Returns SEDA's own settings: Figure 4, and §3.3 for classes. `targets_us` is the target of
    /// the 90th percentile.
    pub fn figure_4(scope: ControlScope, targets_us: Vec<Vec<u64>>) -> Self {
        Self {
            percentile: 90.0,
            targets_us,
            scope,
            smoothing: 0.7,
            requests: 100,
            timeout_us: 1_000_000,
            // The paper's Figure 4 lacks the minus sign. The documentation of the strategy's law
            // gives the reasons for it.
            increase_below: -0.5,
            decrease_above: 0.0,
            increase: Some(2.0),
            decrease: 1.2,
            increase_offset: -0.1,
            min_rate: 0.05,
            max_rate: 2_000.0,
            lower_class_decrease: 10.0,
            lower_class_patience: 20,
            degradation: None,
        }
    }

    /// Returns the default settings of a controller without `increase`.
    pub fn adaptive(scope: ControlScope, targets_us: Vec<Vec<u64>>) -> Self {
        Self {
            smoothing: 0.3,
            requests: 20,
            increase_below: -0.1,
            increase: None,
            max_rate: 100_000.0,
            ..Self::figure_4(scope, targets_us)
        }
    }
}

/// The scope of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ControlScope {
    /// Each type, or each class of a type, as each stage of SEDA.
    #[default]
    Type,
    /// All types together, or each class of all types.
    Policy,
}

/// Service degradation (SEDA §3.4): a request header carries the quality that the application
/// should deliver.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DegradationConfig {
    /// Lowest quality, ratio 0 < q < 1.
    pub min_quality: f64,
    /// Divisor of quality when response times miss the target, above 1.
    pub decrease: f64,
    /// Increase of the quality when response times meet the target, ratio.
    pub increase: f64,
    /// Whether requests are refused when the lowest quality doesn't suffice.
    pub admission: bool,
}

impl ResponseTimeControllerConfig {
    /// Checks the settings at `at`, of a stage with this many types and classes.
    pub(crate) fn check(&self, at: &Place, types: usize, classes: usize) -> Checked {
        let rows = match self.scope {
            ControlScope::Type => types,
            ControlScope::Policy => 1,
        };
        self.check_targets(at, rows, classes.max(1))?;
        self.check_law(at)?;
        match &self.degradation {
            Some(degradation) => check_degradation(&at.field("degradation"), degradation),
            None => Ok(()),
        }
    }

    fn check_targets(&self, at: &Place, types: usize, classes: usize) -> Checked {
        let targets = &self.targets_us;
        at.ensure("scope", types * classes <= MAX_CONTROLLERS, || {
            format!(
                "Type with {types} types and {classes} classes; at most {MAX_CONTROLLERS} types \
                 times classes, or scope Policy"
            )
        })?;
        let is_right = targets.len() == types && targets.iter().all(|row| row.len() == classes);
        at.ensure("targets_us", is_right, || {
            format!("{targets:?}; {types} rows (types) of {classes} targets (classes)")
        })?;
        let mut targets = targets.iter().flatten();
        targets.try_for_each(|&target| at.within("targets_us", target, 1..=HOUR_US))
    }

    fn check_law(&self, at: &Place) -> Checked {
        let number = |field: &str, number: f64, is_right: bool, right: &str| {
            at.ensure(field, is_right, || format!("{number}; {right}"))
        };
        let p = self.percentile;
        number("percentile", p, p > 0.0 && p < 100.0, "above 0, below 100")?;
        let past = self.smoothing;
        let is_ratio = (0.0..1.0).contains(&past);
        number("smoothing", past, is_ratio, "0 or more, below 1")?;
        at.within("requests", self.requests, 1..=MAX_REQUESTS)?;
        at.within("timeout_us", self.timeout_us, 10_000..=HOUR_US)?;
        let (above, offset) = (self.decrease_above, self.increase_offset);
        at.within("decrease_above", above, -1.0..=10.0)?;
        at.within("increase_offset", offset, -1.0..=10.0)?;
        let below = self.increase_below;
        let is_below = below > -1.0 && below <= offset && below <= above;
        at.ensure("increase_below", is_below, || {
            format!(
                "{below}; above -1, at most increase_offset ({offset}) and decrease_above ({above})"
            )
        })?;
        if let Some(increase) = self.increase {
            at.positive("increase", increase, MAX_RATE)?;
        }
        divisor(at, "decrease", self.decrease)?;
        divisor(at, "lower_class_decrease", self.lower_class_decrease)?;
        let (least, most) = (self.min_rate, self.max_rate);
        let right = "at least 0.001 requests/s";
        number("min_rate", least, least >= 1e-3, right)?;
        let right = format!("min_rate ({least}) to {MAX_RATE} requests/s");
        number("max_rate", most, most >= least && most <= MAX_RATE, &right)
    }
}

fn check_degradation(at: &Place, degradation: &DegradationConfig) -> Checked {
    let least = degradation.min_quality;
    let problem = || format!("{least}; above 0, below 1");
    at.ensure("min_quality", least > 0.0 && least < 1.0, problem)?;
    divisor(at, "decrease", degradation.decrease)?;
    at.positive("increase", degradation.increase, 1.0)
}

fn divisor(at: &Place, field: &str, divisor: f64) -> Checked {
    let is_right = divisor > 1.0 && divisor <= 1e6;
    at.ensure(field, is_right, || {
        format!("{divisor}; above 1, at most 1000000")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{ConfigError, FilterConfig};

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
    fn a_valid_configuration_survives_a_round_trip() {
        let config = checked(&stage()).unwrap();
        let json = serde_json::to_vec(&config).unwrap();
        assert_eq!(FilterConfig::from_json(&json).unwrap(), config);
        let mut one_for_all = stage();
        one_for_all["strategy"]["scope"] = json!("Policy");
        one_for_all["strategy"]["targets_us"] = json!([[1_000, 2_000]]);
        checked(&one_for_all).unwrap();
    }

    #[test]
    fn an_error_names_each_invalid_value() {
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
