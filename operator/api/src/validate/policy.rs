//! A policy without mistakes.

use headgate_core::config::{
    AutoParallelism, MAX_PARALLELISM, OutboundConfig, ServiceAdmissionConfig, StageConfig,
};

use crate::plan::{Portion, TargetRef};

/// A policy without mistakes, in the types that the filter uses.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidPolicy {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `metadata.generation`, 0 when not given.
    pub generation: i64,
    /// `metadata.creationTimestamp`, RFC 3339 in UTC. Such timestamps sort as texts.
    pub created: Option<String>,
    /// The objects that the policy targets, in the given order, without duplicates.
    pub targets: Vec<TargetRef>,
    /// The slots, from which [`crate::compile`] computes the stage's parallelism.
    pub slots: Slots,
    /// The admission stage, for one endpoint.
    pub stage: StageConfig,
    /// The settings of the backend's calls to other services; `None` without workflows and class
    /// admission. The targets of those services are in their own policies ([`crate::compile`]).
    pub outbound: Option<OutboundConfig>,
    /// The settings of class admission for the service's callers; `None` without class admission.
    pub promises: Option<ServiceAdmissionConfig>,
    /// Settings that are valid but seldom intended, each as `FIELD: the setting and its effect`.
    pub warnings: Vec<String>,
}

impl ValidPolicy {
    /// Returns `namespace/name`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

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

/// The initial slots of a proxy that finds its slots. The number is small, so that the proxy begins
/// below the backend's capacity and doubles the number. The number is large enough that a service
/// with a few workers isn't slowed down.
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
