//! One proxy's share of a policy's slots.
//!
//! If each proxy enforced the whole limit, the limit would multiply with the number of proxies. So
//! the slots of all endpoints are divided among the proxies in front of them, rounded down. Each
//! proxy has at least one slot, because a proxy without slots would refuse all requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use headgate_core::config::StageConfig;

use crate::slots::{Portion, Slots};
use crate::target::TargetRef;

/// The terms of one proxy's share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The slots as in the policy.
    pub slots: Slots,
    /// The number of proxies that share the slots; 0 counts as 1.
    pub proxies: u32,
    /// The endpoints behind the proxies.
    pub endpoints: Endpoints,
}

/// Endpoints behind proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoints {
    /// Each proxy has one endpoint of its own, as sidecars do.
    Own,
    /// All proxies share the same endpoints, as gateways do. The endpoints are counted by Service,
    /// each once it is ready. Without ready endpoints, the number counts as 1, because a proxy that
    /// is configured before its backend is ready must not start without slots.
    Shared(Arc<BTreeMap<TargetRef, u32>>),
}

impl Share {
    /// Returns the portion of one proxy.
    pub fn portion(&self) -> Portion {
        let shared = match (&self.endpoints, self.slots) {
            (Endpoints::Own, Slots::PerEndpoint(_)) => return self.slots.portion(1, 1),
            (Endpoints::Own, _) => 1,
            (Endpoints::Shared(ready), _) => ready.values().copied().map(u64::from).sum(),
        };
        self.slots.portion(shared, self.proxies)
    }

    /// Returns the stage of a proxy with this share, from the `stage` of a proxy with the share
    /// `own`.
    pub fn instead_of(&self, own: &Self, stage: &StageConfig) -> StageConfig {
        let (here, there) = (self.portion(), own.portion());
        Portion {
            parallelism: here.parallelism,
            factor: here.factor / there.factor,
        }
        .of(stage)
    }

    /// Returns the share of a proxy that one policy reaches through two targets, with one stage.
    /// The share covers the endpoints of both targets. The number of proxies is that of the target
    /// with more proxies.
    pub fn and(&self, other: &Self) -> Self {
        let endpoints = match (&self.endpoints, &other.endpoints) {
            (Endpoints::Own, other) => other.clone(),
            (own, Endpoints::Own) => own.clone(),
            (Endpoints::Shared(a), Endpoints::Shared(b)) => {
                let mut both = BTreeMap::clone(a);
                both.extend(b.iter().map(|(service, ready)| (service.clone(), *ready)));
                Endpoints::Shared(Arc::new(both))
            }
        };
        Self {
            slots: self.slots,
            proxies: self.proxies.max(other.proxies),
            endpoints,
        }
    }
}

#[cfg(test)]
mod tests {
    use headgate_core::config::{FilterConfig, MAX_PARALLELISM};
    use proptest::prelude::*;

    use super::*;

    fn ready(services: &[(&str, u32)]) -> Endpoints {
        let service = |name: &str| format!("Service/a/{name}").parse().unwrap();
        let ready = services.iter().map(|(name, n)| (service(name), *n));
        Endpoints::Shared(Arc::new(ready.collect()))
    }

    fn share(slots: Slots, proxies: u32, endpoints: Endpoints) -> Share {
        Share {
            slots,
            proxies,
            endpoints,
        }
    }

    #[test]
    fn a_gateway_multiplies_by_endpoints_and_divides_by_replicas() {
        let of = |slots, proxies, endpoints| share(slots, proxies, endpoints).portion().parallelism;
        let gateway = |proxies| of(Slots::PerEndpoint(8), proxies, ready(&[("x", 3), ("y", 2)]));
        assert_eq!([1, 2, 3, 100].map(gateway), [40, 20, 13, 1]);
        assert_eq!(of(Slots::PerEndpoint(8), 2, ready(&[("x", 0)])), 4);
        assert_eq!(of(Slots::Total(20), 3, ready(&[("x", 7)])), 6);
        assert_eq!(of(Slots::PerEndpoint(8), 5, Endpoints::Own), 8);
        assert_eq!(of(Slots::Total(20), 0, Endpoints::Own), 20);
        let most = ready(&[("x", u32::MAX), ("y", u32::MAX)]);
        assert_eq!(of(Slots::PerEndpoint(1_000_000), 1, most), 1_000_000);
    }

    #[test]
    fn one_stage_for_two_targets_counts_each_endpoint_once() {
        let a = share(Slots::PerEndpoint(4), 2, ready(&[("x", 3), ("y", 1)]));
        let b = share(Slots::PerEndpoint(4), 3, ready(&[("y", 1), ("z", 2)]));
        assert_eq!(a.and(&b).portion().parallelism, 4 * 6 / 3);
        assert_eq!(a.and(&b), b.and(&a));
    }

    #[test]
    fn processing_units_are_divided_exactly() {
        let whole = serde_json::json!({
            "policy": "a/b", "parallelism": 8, "types": [{"name": "default"}],
            "queue": {"discipline": {"type": "FIFO"}, "max_length": 800, "timeout_us": 1000},
            "strategy": {
                "type": "AcceptFraction", "max_utilization": 0.8, "units": 5,
                "window_us": 1000, "step_us": 100,
            },
        });
        let mut beside_bouncer = whole.clone();
        let mut capacity = beside_bouncer["strategy"].take();
        capacity.as_object_mut().unwrap().remove("type");
        beside_bouncer["strategy"] = serde_json::json!({"type": "Bouncer", "capacity": capacity});
        for stage in [whole, beside_bouncer] {
            let stage: StageConfig = serde_json::from_value(stage).unwrap();
            // Three endpoints of 5 units are behind two proxies.
            let share = share(Slots::PerEndpoint(8), 2, ready(&[("x", 3)]));
            let strategy = share.portion().of(&stage).strategy;
            assert_eq!(strategy.accept_fraction().unwrap().units, Some(7.5));
        }
    }

    #[test]
    fn tokens_are_divided_like_slots() {
        let whole = serde_json::json!({
            "policy": "a/b", "parallelism": 8, "tokens": {"budget": 100.0},
            "types": [{"name": "default"}], "strategy": {"type": "MaxQueueLength"},
            "queue": {"discipline": {"type": "FIFO"}, "max_length": 800, "timeout_us": 1000},
        });
        let whole: StageConfig = serde_json::from_value(whole).unwrap();
        let budget = |share: Share| {
            let stage = share.portion().that_matters(&whole).of(&whole);
            stage.tokens.map(|tokens| tokens.budget)
        };
        // In the first case, three endpoints of 100 tokens each are behind two proxies. In the
        // second case, all endpoints together have 100 tokens behind four proxies.
        let each = share(Slots::PerEndpoint(8), 2, ready(&[("x", 3)]));
        assert_eq!(budget(each), Some(150.0));
        assert_eq!(
            budget(share(Slots::Total(8), 4, Endpoints::Own)),
            Some(25.0)
        );
        let many = share(Slots::PerEndpoint(8), 1, ready(&[("x", u32::MAX)]));
        assert_eq!(budget(many), Some(1e9));
    }

    /// The filter refuses a configuration with a larger quantity.
    #[test]
    fn quantities_for_many_endpoints_are_in_the_filters_bounds() {
        let whole = serde_json::json!({
            "policy": "a/b", "parallelism": 8, "types": [{"name": "default"}],
            "queue": {"max_length": 800, "timeout_us": 1000},
            "strategy": {
                "type": "AcceptFraction", "max_utilization": 0.8, "units": 1e6,
                "window_us": 1000, "step_us": 100,
            },
            "workflows": {
                "identify": [{"type": "Type"}], "quantile": 0.5, "interval_us": 100_000,
                "rate_ttl_us": 1_000_000, "max_workflows": 2, "max_queue_length": 100,
                "sharing": {
                    "type": "DominantResource", "probe": 10, "max_utilization": 0.9,
                    "resource": {"capacity": 1e12, "report": {"type": "Orca", "metric": "io"}},
                },
                "workflows": {"checkout": {"guarantee": 1e9}},
            },
        });
        let whole: StageConfig = serde_json::from_value(whole).unwrap();
        for endpoints in [1_001, u32::MAX] {
            let share = share(Slots::PerEndpoint(8), 1, ready(&[("x", endpoints)]));
            let config = FilterConfig {
                stages: vec![share.portion().of(&whole)],
                ..FilterConfig::default()
            };
            assert_eq!(config.check(), Ok(()), "{endpoints}");
        }
    }

    proptest! {
        #[test]
        fn never_more_than_total_unless_proxies_outnumber_slots(
            total in 1..=MAX_PARALLELISM, proxies in 0..5_000_u32,
        ) {
            let each = share(Slots::Total(total), proxies, Endpoints::Own).portion().parallelism;
            prop_assert!(each >= 1);
            let all = u64::from(each) * u64::from(proxies.max(1));
            prop_assert!(all <= u64::from(total) || each == 1);
        }

        #[test]
        fn more_proxies_never_mean_more_slots_and_more_endpoints_never_fewer(
            each in 1..=MAX_PARALLELISM,
            total in any::<bool>(),
            proxies in 0..1_000_u32,
            endpoints in 0..1_000_u32,
        ) {
            let slots = if total { Slots::Total(each) } else { Slots::PerEndpoint(each) };
            let of = |proxies, endpoints| {
                share(slots, proxies, ready(&[("x", endpoints)])).portion().parallelism
            };
            prop_assert!(of(proxies + 1, endpoints) <= of(proxies, endpoints));
            prop_assert!(of(proxies, endpoints + 1) >= of(proxies, endpoints));
        }
    }
}
