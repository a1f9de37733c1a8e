//! Settings of `AcceptFraction`.

use std::ops::Bound::{Excluded, Included};

use headgate_core::config::{AcceptFractionConfig, StageConfig};

use super::super::window::{self, MINUTE_IN_SECONDS, window};
use super::super::{At, Real};
use crate::AcceptFractionSettings;
use crate::validate::schema::Place;

const MAX_UTILIZATION: Real = Real {
    default: 0.95,
    bounds: (Excluded(0.0), Included(1.0)),
    right: "the share of the slots that may be in use, above 0, at most 1",
};
/// |PU|; the number of slots by default. This default only replaces a wrong value.
const UNITS: Real = Real {
    default: 1.0,
    bounds: (Excluded(0.0), Included(1_000_000.0)),
    right: "what works in parallel, above 0, at most 1000000",
};

pub(super) fn config(
    settings: Option<&AcceptFractionSettings>,
    at: &At<'_>,
) -> AcceptFractionConfig {
    let settings = settings.cloned().unwrap_or_default();
    let max_utilization = at
        .field("maxUtilization")
        .real(settings.max_utilization, &MAX_UTILIZATION);
    let units = at
        .field("processingUnits")
        .given_real(settings.processing_units, &UNITS);
    let (window_us, step_us) = window(
        settings.window.as_ref(),
        settings.step.as_ref(),
        MINUTE_IN_SECONDS,
        at,
    );
    AcceptFractionConfig {
        max_utilization,
        units,
        window_us,
        step_us,
    }
}

pub(super) fn schema(at: &mut Place<'_>) {
    at.at("maxUtilization").real(&MAX_UTILIZATION);
    at.at("processingUnits").real_bounds(&UNITS);
    window::schema(at, &MINUTE_IN_SECONDS);
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
