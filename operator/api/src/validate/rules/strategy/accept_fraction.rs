//! Settings of `AcceptFraction`.

use std::ops::Bound::{Excluded, Included};

use headgate_core::config::{AcceptFractionConfig, StageConfig};

use super::super::window::{self, MINUTE_IN_SECONDS, window};
use super::super::{Problems, Real};
use crate::AcceptFractionSettings;
use crate::validate::path::Path;
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
    at: &Path,
    problems: &mut Problems,
) -> AcceptFractionConfig {
    let settings = settings.cloned().unwrap_or_default();
    let max_utilization = problems.real(
        at.field("maxUtilization"),
        settings.max_utilization,
        &MAX_UTILIZATION,
    );
    let units = settings
        .processing_units
        .map(|units| problems.real(at.field("processingUnits"), Some(units), &UNITS));
    let (window_us, step_us) = window(
        settings.window.as_ref(),
        settings.step.as_ref(),
        MINUTE_IN_SECONDS,
        at,
        problems,
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
pub(super) fn warnings(stage: &StageConfig, noted: &mut Problems) {
    let Some(fraction) = stage.strategy.accept_fraction() else {
        return;
    };
    let strategy = Path::default().field("spec.strategy");
    if stage.auto_parallelism.is_some() && fraction.units.is_none() {
        noted.add(
            strategy.field("acceptFraction"),
            "no effect while Headgate looks for the number of slots, which has no limit then; \
             give processingUnits, or parallelism as total or perEndpoint",
        );
    }
}
