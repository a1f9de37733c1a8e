//! What one policy compiled to, kept from plan to plan.

use std::sync::Arc;

use headgate_core::config::{FilterConfig, StageConfig};

use crate::compile::{self, Promises};
use crate::plan::Portion;
use crate::validate::ValidPolicy;

/// What a policy compiled to. Only what the current plan asked for stays.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The policy's stage for one endpoint, of which everything else is made.
    base: Option<StageConfig>,
    stages: Vec<Arc<StageConfig>>,
    configs: Vec<Arc<FilterConfig>>,
    /// For outbound slots.
    outbound: Option<Arc<FilterConfig>>,
    /// Of the plan before.
    old_stages: Vec<Arc<StageConfig>>,
    old_configs: Vec<Arc<FilterConfig>>,
}

impl Known {
    /// What the plan before knew of `policy`, if it still is the same.
    pub(super) fn of(policy: &ValidPolicy, before: Option<Self>) -> Self {
        match before {
            Some(before) if before.base.as_ref() == Some(&policy.stage) => Self {
                old_stages: before.stages,
                old_configs: before.configs,
                stages: Vec::new(),
                configs: Vec::new(),
                base: before.base,
                outbound: before.outbound,
            },
            _ => Self {
                base: Some(policy.stage.clone()),
                ..Self::default()
            },
        }
    }

    /// Drops what the plan didn't ask for.
    pub(super) fn forget_old(&mut self) {
        self.old_stages = Vec::new();
        self.old_configs = Vec::new();
    }

    /// What outbound slots get, if the policy has workflows or class admission.
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

    /// The stage for `routes` with this part of the policy.
    pub(super) fn stage(
        &mut self,
        policy: &ValidPolicy,
        routes: &[String],
        portion: Portion,
    ) -> Arc<StageConfig> {
        let wanted = StageConfig {
            routes: routes.to_vec(),
            ..portion.of(&policy.stage)
        };
        let same = |s: &&Arc<StageConfig>| is_same(s, &wanted) && s.routes == routes;
        if let Some(known) = self.stages.iter().find(same) {
            return Arc::clone(known);
        }
        let stage = match self.old_stages.iter().find(same) {
            Some(known) => Arc::clone(known),
            None => Arc::new(wanted),
        };
        self.stages.push(Arc::clone(&stage));
        stage
    }

    /// The configuration that enforces this part of the policy alone.
    pub(super) fn config(&mut self, policy: &ValidPolicy, portion: Portion) -> Arc<FilterConfig> {
        let wanted = portion.of(&policy.stage);
        let same = |c: &&Arc<FilterConfig>| c.stages.iter().all(|s| is_same(s, &wanted));
        if let Some(known) = self.configs.iter().find(same) {
            return Arc::clone(known);
        }
        let config = match self.old_configs.iter().find(same) {
            Some(known) => Arc::clone(known),
            None => Arc::new(compile::of_stages(vec![wanted])),
        };
        self.configs.push(Arc::clone(&config));
        config
    }
}

/// Whether two stages of one policy have the same part of it.
fn is_same(a: &StageConfig, b: &StageConfig) -> bool {
    a.parallelism == b.parallelism && a.workflows == b.workflows
}
