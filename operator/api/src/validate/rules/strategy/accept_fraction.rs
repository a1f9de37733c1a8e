//! Settings of `AcceptFraction`.

use headgate_core::config::{AcceptFractionConfig, StageConfig};

use super::super::window::window;
use super::super::{At, Open, Stored, Table, real};
use crate::AcceptFractionSettings;

pub(in crate::validate::rules) static FIELDS: Table = fields! {
    "maxUtilization" =>
        real(Stored(0.95), 0.0, 1.0, "the share of the slots that may be in use").above(),
    "processingUnits" => real(Open, 0.0, 1e6, "what works in parallel").above(),
};

pub(super) fn config(
    settings: Option<&AcceptFractionSettings>,
    at: &At<'_>,
) -> AcceptFractionConfig {
    let settings = settings.cloned().unwrap_or_default();
    let (window_us, step_us) = window(settings.window.as_ref(), settings.step.as_ref(), at);
    AcceptFractionConfig {
        max_utilization: at.field("maxUtilization").real(settings.max_utilization),
        units: at
            .field("processingUnits")
            .given_real(settings.processing_units),
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
            "no effect while Headgate looks for the number of slots, which has no limit then; \
             give processingUnits, or parallelism as total or perEndpoint",
        );
    }
}
