//! The admission stage: `parallelism`, and all parts together.

use headgate_core::config::{MAX_PARALLELISM, OutboundConfig, StageConfig};

use super::classes::classes;
use super::errors::errors;
use super::queue::queue;
use super::strategy::strategy;
use super::types::{BOUNCER_NEEDS_OBJECTIVES, SLACK_NEEDS_OBJECTIVES, excluded, types};
use super::workflows::workflows;
use super::{Problems, Whole, shadow};
use crate::api::{self, AdmissionPolicySpec, DisciplineType, StrategyType};
use crate::validate::path::Path;
use crate::validate::policy::Slots;
use crate::validate::schema::{Place, Rule};

const SLOTS: Whole = Whole {
    default: 1,
    bounds: (1, MAX_PARALLELISM),
};
const NO_SLOTS: &str = "empty; total or perEndpoint, such as {total: 20}";

/// What a spec means.
pub(crate) struct Meaning {
    /// The stage of one endpoint.
    pub(crate) stage: StageConfig,
    /// Slots as they were given.
    pub(crate) slots: Slots,
    /// What calls of the backend to other services belong to.
    pub(crate) outbound: Option<OutboundConfig>,
}

/// Checks the spec and says what it means.
pub(crate) fn stage(
    spec: &AdmissionPolicySpec,
    policy: String,
    generation: i64,
    problems: &mut Problems,
) -> Meaning {
    let root = Path::default().field("spec");
    let slots = parallelism(&spec.parallelism, &root.field("parallelism"), problems);
    let errors = errors(&spec.errors, &root.field("errors"), problems);
    let queue = queue(spec, &root.field("queue"), problems);
    let strategy = strategy(spec, &root.field("strategy"), problems);
    let types = types(
        &spec.types,
        reason_for_objectives(spec),
        &root.field("types"),
        problems,
    );
    let classes = classes(&spec.classes, &root.field("classes"), problems);
    let excluded = excluded(&spec.exclude, &root.field("exclude"), problems);
    shadow::check(spec, &root, problems);
    let (workflows, outbound) = workflows(spec, &policy, &root.field("workflows"), problems);
    let stage = StageConfig {
        policy,
        generation,
        routes: Vec::new(),
        mode: spec.mode.into(),
        parallelism: slots.for_endpoints(1),
        auto_parallelism: None,
        queue,
        measure: spec.measure.into(),
        errors,
        service_times: strategy.service_times,
        strategy: strategy.config,
        starvation_avoidance: strategy.starvation_avoidance,
        types,
        classes,
        workflows,
        excluded,
    };
    Meaning {
        stage,
        slots,
        outbound,
    }
}

pub(super) fn schema(spec: &mut Place<'_>) {
    let mut parallelism = spec.at("parallelism");
    parallelism.at("total").whole_bounds(&SLOTS);
    parallelism.at("perEndpoint").whole_bounds(&SLOTS);
    parallelism
        .rule(Rule::text(
            "has(self.total) || has(self.perEndpoint)",
            NO_SLOTS,
        ))
        .rule(Rule::words(
            "!(has(self.total) && has(self.perEndpoint))",
            "total %s and perEndpoint %s; give one of them",
            &["string(self.total)", "string(self.perEndpoint)"],
        ));
}

/// Why each type needs objectives, if it does.
fn reason_for_objectives(spec: &AdmissionPolicySpec) -> Option<&'static str> {
    if spec.strategy.kind == StrategyType::Bouncer {
        return Some(BOUNCER_NEEDS_OBJECTIVES);
    }
    (spec.queue.discipline == Some(DisciplineType::Slack)).then_some(SLACK_NEEDS_OBJECTIVES)
}

fn parallelism(parallelism: &api::Parallelism, at: &Path, problems: &mut Problems) -> Slots {
    match (parallelism.total, parallelism.per_endpoint) {
        (total @ Some(_), None) => Slots::Total(problems.whole(at.field("total"), total, &SLOTS)),
        (None, each @ Some(_)) => {
            Slots::PerEndpoint(problems.whole(at.field("perEndpoint"), each, &SLOTS))
        }
        (Some(total), Some(each)) => {
            problems.add(
                at.clone(),
                format!("total {total} and perEndpoint {each}; give one of them"),
            );
            Slots::Total(1)
        }
        (None, None) => {
            problems.add(at.clone(), NO_SLOTS);
            Slots::Total(1)
        }
    }
}
