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
    /// `metadata.creationTimestamp`, RFC 3339 in UTC, so it sorts as a text.
    pub created: Option<String>,
    /// What it applies to, in the order given, without duplicates.
    pub targets: Vec<TargetRef>,
    /// Slots, from which [`crate::compile`] computes the stage's parallelism.
    pub slots: Slots,
    /// The admission stage, for one endpoint.
    pub stage: StageConfig,
    /// What calls of the backend to other services belong to; `None` without workflows and class admission. What these
    /// services promise is in their policies ([`crate::compile`]).
    pub outbound: Option<OutboundConfig>,
    /// What classes promise to those who call the service; `None` without class admission.
    pub promises: Option<ServiceAdmissionConfig>,
    /// What is right and yet seldom meant, each as `FIELD: what there is and what it leads to`.
    pub warnings: Vec<String>,
}

impl ValidPolicy {
    /// `namespace/name`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// P as it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slots {
    /// Over all endpoints.
    Total(u32),
    /// For each ready endpoint.
    PerEndpoint(u32),
    /// What each proxy finds.
    Auto(AutoParallelism),
}

/// What a proxy begins with that finds its slots: so few that it doubles them from below what the backend can do,
/// so many that a service with a few workers is not kept waiting.
const FIRST: u32 = 4;

impl Slots {
    /// Slots in front of `endpoints` endpoints, 1 to 1,000,000. No endpoints count as one: a proxy
    /// that is configured before its backend is ready must not start with none.
    #[must_use]
    pub fn for_endpoints(self, endpoints: u32) -> u32 {
        match self {
            Self::Total(total) => total,
            Self::PerEndpoint(each) => each.saturating_mul(endpoints.max(1)).min(MAX_PARALLELISM),
            Self::Auto(AutoParallelism { min, max }) => FIRST.max(min).min(max),
        }
    }

    /// The bounds of what is found; `None` where nothing is.
    #[must_use]
    pub fn auto(self) -> Option<AutoParallelism> {
        match self {
            Self::Auto(bounds) => Some(bounds),
            Self::Total(_) | Self::PerEndpoint(_) => None,
        }
    }

    /// All that one proxy in front of `endpoints` endpoints gets.
    #[must_use]
    pub fn portion(self, endpoints: u32) -> Portion {
        Portion {
            parallelism: self.for_endpoints(endpoints),
            factor: match self {
                Self::Total(_) | Self::Auto(_) => 1.0,
                Self::PerEndpoint(_) => f64::from(endpoints.max(1)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_multiply_with_endpoints_within_bounds() {
        assert_eq!(Slots::Total(20).for_endpoints(7), 20);
        assert_eq!(Slots::PerEndpoint(8).for_endpoints(3), 24);
        assert_eq!(Slots::PerEndpoint(8).for_endpoints(0), 8);
        assert_eq!(
            Slots::PerEndpoint(1_000_000).for_endpoints(u32::MAX),
            1_000_000
        );
    }
}
