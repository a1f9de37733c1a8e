//! Settings of `MaxQueueWait`.

use headgate_core::config::{QueueMode, StageConfig, StrategyConfig};

use super::super::requirement::When::{Always, Is};
use super::super::requirement::{Rules, TYPES, known, required};
use super::super::types::MAX_TYPES;
use super::super::window::window;
use super::super::{At, Field, HOUR, MILLISECOND, Open, Table, time};
use crate::Duration;

pub(super) static FIELDS: Table = fields! {
    "limit" => time(Open, MILLISECOND, HOUR),
    "limits" => Field::Map(MAX_TYPES, "limits"),
    "limits{}" => time(Open, MILLISECOND, HOUR),
};
const NO_LIMIT: &str = "missing; the longest wait of an admitted request, such as 10ms";
pub(super) static REQUIREMENTS: Rules = fields! {
    "strategy" => required!("maxQueueWait.limit", Is("type", "MaxQueueWait"), NO_LIMIT),
    "" => known("strategy.maxQueueWait.limits", Always, TYPES),
};

pub(super) fn config(at: &At<'_>) -> StrategyConfig {
    let limit_us = at.field("limit").time();
    let type_limits_us = at.field("limits").values(At::given_time);
    let (window_us, step_us) = window(at);
    StrategyConfig::MaxQueueWait {
        limit_us,
        type_limits_us,
        window_us,
        step_us,
    }
}

/// Adds warnings about limits without effect, because the queue's timeout is shorter.
pub(super) fn warnings(stage: &StageConfig, spec: &At<'_>) {
    let StrategyConfig::MaxQueueWait {
        limit_us,
        type_limits_us,
        ..
    } = &stage.strategy
    else {
        return;
    };
    let timeout_us = stage.queue.timeout_us;
    if stage.queue.mode != QueueMode::Hold {
        return;
    }
    let settings = spec.field("strategy.maxQueueWait");
    let limits = settings.field("limits");
    let of_types = type_limits_us.iter();
    let of_types = of_types.map(|(name, limit_us)| (limits.key(name), limit_us));
    let all = [(settings.field("limit"), limit_us)].into_iter();
    for (at, &limit_us) in all.chain(of_types).filter(|(_, us)| **us > timeout_us) {
        at.add(format!(
            "{}, above queue.timeout ({}): requests that would wait longer are admitted, and \
             refused after the timeout; give a limit below it, or a longer timeout",
            Duration::of_micros(limit_us),
            Duration::of_micros(timeout_us),
        ));
    }
}
