//! Settings of `AcceptFraction`.

use headgate_core::config::{AcceptFractionConfig, StageConfig};

use super::super::window::window;
use super::super::{At, Open, Stored, Table, real};

pub(super) static FIELDS: Table = fields! {
    "maxUtilization" =>
        real(Stored(0.95), 0.0, 1.0, "the share of the slots that may be in use").above(),
    "processingUnits" => real(Open, 0.0, 1e6, "what works in parallel").above(),
};

pub(super) fn config(at: &At<'_>) -> AcceptFractionConfig {
    let (window_us, step_us) = window(at);
    AcceptFractionConfig {
        max_utilization: at.field("maxUtilization").real(),
        units: at.field("processingUnits").given_real(),
        window_us,
        step_us,
    }
}

/// Adds warnings about limits that have no effect.
pub(super) fn warnings(stage: &StageConfig, spec: &At<'_>) {
    let Some(fraction) = stage.strategy.accept_fraction() else {
        return;
    };
    if stage.auto_parallelism.is_some() && fraction.units.is_none() {
        spec.field("strategy.acceptFraction").add(
            "no effect while parallelism is found, because slots have no limit then; give \
             processingUnits, or parallelism as total or perEndpoint",
        );
    }
}
