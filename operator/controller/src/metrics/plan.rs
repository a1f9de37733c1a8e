//! The metrics of plans, their changes and duration, and of leadership.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use headgate_xds::metrics::register;

/// Buckets, in seconds. A plan of a few policies takes well under 1 ms. A plan of 1,000 policies
/// must take far less than 1 s.
const DURATIONS: [f64; 12] = [
    0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
];

/// Handles of the metrics of plans and of leadership.
#[derive(Debug, Clone)]
pub struct PlanMetrics {
    changes: Counter,
    duration: Histogram,
    leader: Gauge,
}

impl PlanMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let duration = Histogram::new(DURATIONS);
        registry.register_with_unit(
            "plan_duration",
            "Time to compute a plan, whether it changed or not",
            Unit::Seconds,
            duration.clone(),
        );
        Self {
            changes: register(
                registry,
                "plan_changes",
                "Plans that differed from the previous one and were passed to the xDS server",
            ),
            duration,
            leader: register(
                registry,
                "leader",
                "1 while this replica writes status and owned objects, else 0; 1 without a cluster",
            ),
        }
    }

    /// Records a plan that took `duration`. `changed` is whether it differs from the previous plan.
    pub fn made(&self, duration: Duration, changed: bool) {
        self.duration.observe(duration.as_secs_f64());
        if changed {
            self.changes.inc();
        }
    }

    /// Sets whether this replica leads. Without a cluster, the replica always leads.
    pub fn set_leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }
}
