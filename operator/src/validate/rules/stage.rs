//! The admission stage: `parallelism`, and all parts together.

use headgate_core::config::{MAX_PARALLELISM, StageConfig};

use super::classes::classes;
use super::queue::queue;
use super::strategy::strategy;
use super::types::{excluded, types};
use super::{Problems, shadow};
use crate::api::{self, AdmissionPolicySpec, DisciplineType, StrategyType};
use crate::validate::path::Path;
use crate::validate::policy::Slots;

/// Checks the spec and says what it means. `parallelism` of the stage is that of one endpoint.
pub(crate) fn stage(
    spec: &AdmissionPolicySpec,
    policy: String,
    generation: i64,
    problems: &mut Problems,
) -> (StageConfig, Slots) {
    let root = Path::default().field("spec");
    let slots = parallelism(&spec.parallelism, &root.field("parallelism"), problems);
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
    let stage = StageConfig {
        policy,
        generation,
        routes: Vec::new(),
        mode: spec.mode.into(),
        parallelism: slots.for_endpoints(1),
        queue,
        measure: spec.measure.into(),
        service_times: strategy.service_times,
        strategy: strategy.config,
        starvation_avoidance: strategy.starvation_avoidance,
        types,
        classes,
        excluded,
    };
    (stage, slots)
}

/// Why each type needs objectives, if it does.
fn reason_for_objectives(spec: &AdmissionPolicySpec) -> Option<&'static str> {
    if spec.strategy.kind == StrategyType::Bouncer {
        return Some("Bouncer decides by objectives");
    }
    (spec.queue.discipline == Some(DisciplineType::Slack))
        .then_some("the discipline Slack orders by objectives")
}

fn parallelism(parallelism: &api::Parallelism, at: &Path, problems: &mut Problems) -> Slots {
    let bounds = (1, MAX_PARALLELISM);
    match (parallelism.total, parallelism.per_endpoint) {
        (total @ Some(_), None) => {
            Slots::Total(problems.number(at.field("total"), total, 1, bounds))
        }
        (None, each @ Some(_)) => {
            Slots::PerEndpoint(problems.number(at.field("perEndpoint"), each, 1, bounds))
        }
        (Some(total), Some(each)) => {
            problems.add(
                at.clone(),
                format!("total {total} and perEndpoint {each}; give one of them"),
            );
            Slots::Total(1)
        }
        (None, None) => {
            problems.add(
                at.clone(),
                "empty; total or perEndpoint, such as {total: 20}",
            );
            Slots::Total(1)
        }
    }
}
