//! The slots of a policy, and the portion of one proxy.

use headgate_core::config::{
    AutoParallelism, MAX_PARALLELISM, MAX_QUANTITY, MAX_TOKENS, SharingConfig, StageConfig,
};

/// The slots (P) as in the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slots {
    /// Over all endpoints.
    Total(u32),
    /// For each ready endpoint.
    PerEndpoint(u32),
    /// Each proxy finds its number of slots, within these bounds.
    Auto(AutoParallelism),
}

/// The initial slots of a proxy that finds its number of slots. The number is small, so that the
/// proxy starts below the backend's capacity and then doubles it. It is large enough not to slow
/// down a service with a few workers.
const FIRST: u32 = 4;

impl Slots {
    /// Returns the bounds of the slots that proxies find; `None` for fixed slots.
    #[must_use]
    pub fn auto(self) -> Option<AutoParallelism> {
        match self {
            Self::Auto(bounds) => Some(bounds),
            Self::Total(_) | Self::PerEndpoint(_) => None,
        }
    }

    /// Returns the slots of one endpoint; `None` if the policy doesn't specify them.
    #[must_use]
    pub const fn of_endpoint(self) -> Option<u32> {
        match self {
            Self::PerEndpoint(each) => Some(each),
            Self::Total(_) | Self::Auto(_) => None,
        }
    }

    /// Returns the portion of each of `proxies` proxies in front of the same `endpoints` endpoints.
    /// 0 counts as 1 for either number, because a proxy that is configured before its backend is
    /// ready must not start without slots.
    #[must_use]
    pub fn portion(self, endpoints: u64, proxies: u32) -> Portion {
        let proxies = proxies.max(1);
        let (slots, endpoints) = match self {
            Self::Total(total) => (total, 1),
            Self::PerEndpoint(each) => (each, endpoints.max(1)),
            Self::Auto(AutoParallelism { min, max }) => {
                // Each proxy finds its own number of slots. Rates are divided as with a total.
                return Portion {
                    parallelism: FIRST.max(min).min(max),
                    factor: 1.0 / f64::from(proxies),
                };
            }
        };
        let slots = u64::from(slots).saturating_mul(endpoints) / u64::from(proxies);
        Portion {
            parallelism: u32::try_from(slots)
                .unwrap_or(MAX_PARALLELISM)
                .clamp(1, MAX_PARALLELISM),
            // The conversion is exact, because the number of endpoints is far below 2^53.
            factor: endpoints as f64 / f64::from(proxies),
        }
    }
}

/// One proxy's portion of a policy's quantities, which the policy specifies for all endpoints or
/// for each.
///
/// Slots are whole numbers, rounded down. Other quantities that are divided like slots (a
/// workflow's guarantee, the capacity of a second resource, processing units, tokens) may be
/// fractions, and are divided exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Portion {
    /// Slots, 1 ..= [`MAX_PARALLELISM`].
    pub parallelism: u32,
    /// The factor from the policy's quantities to the proxy's, above 0. The factor is 1 with one
    /// proxy for one endpoint.
    pub factor: f64,
}

impl Portion {
    /// Returns the parts of this portion that affect the stage `whole`: the factor becomes 1 if
    /// `whole` has no quantities to multiply. So portions that give equal stages are equal.
    #[must_use]
    pub fn that_matters(mut self, whole: &StageConfig) -> Self {
        let fraction = whole.strategy.accept_fraction();
        let is_whole = whole.workflows.is_none() && whole.tokens.is_none();
        if is_whole && fraction.is_none_or(|f| f.units.is_none()) {
            self.factor = 1.0;
        }
        self
    }

    /// Returns the stage with this portion of the quantities of `whole`.
    pub fn of(&self, whole: &StageConfig) -> StageConfig {
        let mut stage = StageConfig {
            parallelism: self.parallelism,
            ..whole.clone()
        };
        scale(&mut stage, self.factor);
        stage
    }
}

/// Gives `stage` the routes, slots and other divided quantities of `present`, another version of
/// the same policy for the same proxies.
pub fn with_share_of(stage: &mut StageConfig, present: &StageConfig) {
    stage.routes.clone_from(&present.routes);
    stage.parallelism = present.parallelism;
    stage.auto_parallelism = present.auto_parallelism;
    if let (Some(tokens), Some(now)) = (&mut stage.tokens, &present.tokens) {
        tokens.budget = now.budget;
    }
    let now = present.strategy.accept_fraction();
    if let (Some(fraction), Some(now)) = (stage.strategy.accept_fraction_mut(), now) {
        fraction.units = now.units;
    }
    let (Some(workflows), Some(now)) = (&mut stage.workflows, &present.workflows) else {
        return;
    };
    for (name, workflow) in &mut workflows.workflows {
        if let Some(now) = now.workflows.get(name) {
            workflow.guarantee = now.guarantee;
        }
    }
    if let SharingConfig::DominantResource { resource, .. } = &mut workflows.sharing
        && let SharingConfig::DominantResource { resource: now, .. } = &now.sharing
    {
        resource.capacity = now.capacity;
    }
}

/// Multiplies the fractional quantities that are divided like slots. A product beyond the largest
/// value that the filter accepts becomes this value: the filter would refuse the configuration.
fn scale(stage: &mut StageConfig, factor: f64) {
    if let Some(tokens) = &mut stage.tokens {
        tokens.budget = (tokens.budget * factor).min(MAX_TOKENS.into());
    }
    let scaled = |quantity: f64| (quantity * factor).min(MAX_QUANTITY);
    if let Some(fraction) = stage.strategy.accept_fraction_mut() {
        fraction.units = fraction.units.map(scaled);
    }
    let Some(workflows) = &mut stage.workflows else {
        return;
    };
    for workflow in workflows.workflows.values_mut() {
        workflow.guarantee = workflow.guarantee.map(scaled);
    }
    if let SharingConfig::DominantResource { resource, .. } = &mut workflows.sharing {
        resource.capacity = scaled(resource.capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_multiply_with_endpoints_within_bounds() {
        let slots = |of: Slots, endpoints| of.portion(endpoints, 1).parallelism;
        assert_eq!(slots(Slots::Total(20), 7), 20);
        assert_eq!(slots(Slots::PerEndpoint(8), 3), 24);
        assert_eq!(slots(Slots::PerEndpoint(8), 0), 8);
        assert_eq!(slots(Slots::PerEndpoint(1_000_000), u64::MAX), 1_000_000);
    }
}
