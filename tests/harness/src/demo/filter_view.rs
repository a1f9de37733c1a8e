//! The filter's own estimates, read from the proxy's stats, as an operator reads them on a
//! dashboard.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;

use super::result::FilterPercentile;
use crate::envoy::EnvoyProcess;
use crate::policy;

/// Returns the filter's view of one type over Envoy's last statistics interval (5 s). For each
/// objective, the view has the median of the filter's estimates, and the same percentile of its
/// measurements.
pub(super) fn filter_view(
    envoy: &EnvoyProcess,
    kind: &str,
) -> Result<BTreeMap<String, FilterPercentile>> {
    let prefix = format!("wasmcustom.headgate.policy.{}.type.{kind}.", policy::NAME);
    let measured = last_interval(envoy, &format!("{prefix}response_time_us"))?;
    let mut view = BTreeMap::new();
    for (name, percentile) in [("p50", 50.0), ("p90", 90.0)] {
        let estimated = last_interval(
            envoy,
            &format!("{prefix}estimated_response_time_us.objective.{name}"),
        )?;
        if let (Some(estimated_us), Some(measured_us)) =
            (at(&estimated, 50.0), at(&measured, percentile))
        {
            let both = FilterPercentile {
                estimated_ms: estimated_us / 1e3,
                measured_ms: measured_us / 1e3,
            };
            view.insert(name.to_owned(), both);
        }
    }
    Ok(view)
}

fn at(quantiles: &[(f64, f64)], percentile: f64) -> Option<f64> {
    quantiles
        .iter()
        .find(|(p, _)| *p == percentile)
        .map(|(_, value)| *value)
}

/// Returns the quantiles of a histogram over the last interval, as `(percent, value)`. The list is
/// empty if nothing was recorded in the interval.
fn last_interval(envoy: &EnvoyProcess, name: &str) -> Result<Vec<(f64, f64)>> {
    let path = format!(
        "/stats?format=json&type=Histograms&filter=^{}$",
        name.replace('.', "[.]")
    );
    let answer: Value = serde_json::from_str(&envoy.admin_get(&path)?)?;
    let stats = answer["stats"].as_array().into_iter().flatten();
    let Some(found) = stats.filter_map(|entry| entry.get("histograms")).next() else {
        return Ok(Vec::new());
    };
    let percents = found["supported_quantiles"]
        .as_array()
        .into_iter()
        .flatten();
    let values = found["computed_quantiles"][0]["values"]
        .as_array()
        .into_iter()
        .flatten();
    let both =
        |(percent, value): (&Value, &Value)| Some((percent.as_f64()?, value["interval"].as_f64()?));
    Ok(percents.zip(values).filter_map(both).collect())
}
