//! The compiled form of one policy, cached from plan to plan.

use std::sync::Arc;

use headgate_core::config::{FilterConfig, StageConfig};

use headgate_api::compile::{self, Promises};
use headgate_api::plan::Portion;
use headgate_api::validate::ValidPolicy;

/// A part of a policy in compiled form, by its portion of the slots.
type Part<T> = (Portion, Arc<T>);

/// The compiled form of a policy. Parts that a plan doesn't use are dropped with the next plan.
#[derive(Debug)]
pub(super) struct Known {
    /// The policy's stage for one endpoint, from which all other parts are derived.
    base: StageConfig,
    stages: Vec<Part<StageConfig>>,
    configs: Vec<Part<FilterConfig>>,
    /// The configuration of outbound slots.
    outbound: Option<Arc<FilterConfig>>,
}

impl Known {
    /// Returns the compiled form of `policy`. This is `before` if the policy is unchanged, else a
    /// new form without parts.
    pub(super) fn of(policy: &ValidPolicy, before: Option<Self>) -> Self {
        match before {
            Some(mut before) if before.base == policy.stage => {
                before
                    .stages
                    .retain(|(_, stage)| Arc::strong_count(stage) > 1);
                before.configs.retain(|(_, c)| Arc::strong_count(c) > 1);
                before
            }
            _ => Self {
                base: policy.stage.clone(),
                stages: Vec::new(),
                configs: Vec::new(),
                outbound: None,
            },
        }
    }

    /// Returns the configuration of outbound slots, if the policy has workflows or class admission.
    pub(super) fn outbound(
        &mut self,
        policy: &ValidPolicy,
        promises: &Promises<'_>,
    ) -> Option<Arc<FilterConfig>> {
        let calls = compile::calls(policy, promises);
        let known = self.outbound.take();
        let known = known.filter(|known| known.outbound == calls);
        self.outbound = known.or_else(|| calls.map(compile::outbound).map(Arc::new));
        self.outbound.clone()
    }

    /// Returns the stage for `routes` with this portion of the policy.
    pub(super) fn stage(
        &mut self,
        policy: &ValidPolicy,
        routes: &[String],
        portion: Portion,
    ) -> Arc<StageConfig> {
        let portion = portion.that_matters(&policy.stage);
        let is_same = |(of, stage): &&Part<StageConfig>| *of == portion && stage.routes == routes;
        if let Some((_, known)) = self.stages.iter().find(is_same) {
            return Arc::clone(known);
        }
        let stage = Arc::new(StageConfig {
            routes: routes.to_vec(),
            ..portion.of(&policy.stage)
        });
        self.stages.push((portion, Arc::clone(&stage)));
        stage
    }

    /// Returns the configuration that enforces this portion of the policy alone.
    pub(super) fn config(&mut self, policy: &ValidPolicy, portion: Portion) -> Arc<FilterConfig> {
        let portion = portion.that_matters(&policy.stage);
        let is_same = |(of, _): &&Part<FilterConfig>| *of == portion;
        if let Some((_, known)) = self.configs.iter().find(is_same) {
            return Arc::clone(known);
        }
        let config = Arc::new(compile::of_stages(vec![portion.of(&policy.stage)]));
        self.configs.push((portion, Arc::clone(&config)));
        config
    }
}
