//! Gauges of the value cut, of a stage and of its types.
//!
//! All workers see the same cut, and each writes what it sees when that has changed.

use super::controllers::{Gauge, set};
use super::gauges::Gauges;
use crate::config::{StageConfig, StrategyConfig};
use crate::host::{HostError, Metrics};
use crate::request::TypeId;
use crate::strategy::ValueCut;

/// The gauges, each with the value that was written last.
#[derive(Debug, Clone)]
pub(super) struct ValueCutGauges {
    /// By type.
    types: Vec<TypeGauges>,
    budget: Gauge,
    floors: Gauge,
}

#[derive(Debug, Clone)]
struct TypeGauges {
    admitted: Gauge,
    density: Gauge,
    asked: Gauge,
}

impl ValueCutGauges {
    /// `names` are those of the types in stats. `None` where nothing is shed by value.
    pub(super) fn new(
        host: &impl Metrics,
        gauges: &mut Gauges,
        prefix: &str,
        names: &[&str],
        config: &StageConfig,
    ) -> Result<Option<Self>, HostError> {
        let StrategyConfig::Bouncer {
            shed_by_value: true,
            ..
        } = config.strategy
        else {
            return Ok(None);
        };
        let mut gauge = |name: &str| {
            let id = gauges.define(host, format!("{prefix}.{name}"))?;
            Ok((id, None))
        };
        let mut types = Vec::with_capacity(names.len());
        for name in names {
            types.push(TypeGauges {
                admitted: gauge(&format!("type.{name}.value_admitted_permille"))?,
                density: gauge(&format!("type.{name}.value_per_slot_second_milli"))?,
                asked: gauge(&format!("type.{name}.value_slots_asked_milli"))?,
            });
        }
        Ok(Some(Self {
            types,
            budget: gauge("value_budget_permille")?,
            floors: gauge("floors_over_capacity")?,
        }))
    }

    /// Publishes what has changed.
    pub(super) fn publish(&mut self, host: &impl Metrics, cut: &ValueCut) -> Result<(), HostError> {
        for (kind, gauges) in (0..).map(TypeId).zip(&mut self.types) {
            set(host, &mut gauges.admitted, Some(cut.admitted(kind)))?;
            set(host, &mut gauges.density, Some(cut.density(kind)))?;
            set(host, &mut gauges.asked, Some(cut.asked(kind)))?;
        }
        set(host, &mut self.budget, Some(cut.budget()))?;
        let over = u64::from(!cut.floors_fit());
        if self.floors.1 != Some(over) {
            host.record(self.floors.0, over)?;
            self.floors.1 = Some(over);
        }
        Ok(())
    }
}
