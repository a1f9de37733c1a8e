//! The stage and the traffic of Bouncer §5.3, for tests.

// Test helpers may panic, as tests do.
#![allow(clippy::unwrap_used)]

pub(crate) mod fabric;

use headgate_core::config::StageConfig;
use headgate_strategies::strategy::TypeId;
use serde_json::json;

use crate::workload::{LogNormal, TypeLoad, Workload};

/// Table 1: name, share, mean and median processing time, ms.
const TYPES: [(&str, f64, f64, f64); 4] = [
    ("fast", 0.4, 1.16, 0.38),
    ("mediumfast", 0.2, 2.53, 1.14),
    ("mediumslow", 0.3, 12.13, 7.40),
    ("slow", 0.1, 20.05, 12.51),
];

/// Returns Bouncer's basic policy with 100 slots: types by path below /q.
pub(crate) fn stage() -> StageConfig {
    let slo = json!([
        {"percentile": 50, "objective_us": 18_000},
        {"percentile": 90, "objective_us": 50_000},
    ]);
    let kind = |(name, ..): (&str, f64, f64, f64)| {
        let path = json!({"type": "PathPrefix", "value": format!("/q/{name}")});
        json!({"name": name, "matches": [{"path": path}], "slo": slo})
    };
    let mut types = TYPES.map(kind).to_vec();
    types.push(json!({"name": "default", "slo": slo}));
    let stage = json!({
        "policy": "default/simulated",
        "generation": 1,
        "parallelism": 100,
        "queue": {"max_length": 1_000_000, "timeout_us": 3_600_000_000_u64},
        "strategy": {"type": "Bouncer"},
        "types": types,
    });
    serde_json::from_value(stage).unwrap()
}

pub(crate) fn workload() -> Workload {
    let kind = |(id, (name, share, mean, median)): (u16, (&str, f64, f64, f64))| {
        TypeLoad::new(
            name,
            TypeId(id),
            share,
            LogNormal::new(mean, median).unwrap(),
        )
    };
    Workload::new((0..).zip(TYPES).map(kind).collect()).unwrap()
}
