//! `spec.queue`.

use std::collections::BTreeMap;

use headgate_core::config::{
    Discipline, Flow, MAX_QUEUE_LENGTH, MAX_WORKFLOW_NAME, QueueConfig, QueueMode, TokenCost,
};

use super::requirement::When::{All, Any, Given, Is, Not};
use super::requirement::{CLASSES, Rules, TYPES, When, hold, known};
use super::{
    Assumed, At, Field, HOUR, MILLISECOND, MINUTE, Open, SECOND, Stored, Table, WEIGHT, real, time,
    whole,
};
use crate::validate::rules::schema::{self as cel, Rule, SchemaField};
use crate::{AdmissionPolicySpec, DisciplineType, StrategyType};

/// The largest number of weights. Each is looked up by name.
const MAX_WEIGHTS: usize = 1024;
pub(super) static FIELDS: Table = fields! {
    "maxLength" => whole(Stored(800.0), 0, MAX_QUEUE_LENGTH),
    "timeout" => time(Stored(SECOND), MILLISECOND, HOUR),
    "drr.quantum" => time(Stored(10.0 * MILLISECOND), MILLISECOND, MINUTE),
    "drr.weights" => Field::Map(MAX_WEIGHTS, "weights"),
    "drr.weights{}" => real(Open, 0.01, 100.0, WEIGHT),
    "wfq.weights" => Field::Map(MAX_WEIGHTS, "weights"),
    "wfq.weights{}" => real(Open, 0.01, 100.0, WEIGHT),
    "wfq.tokens.input" => real(Assumed(1.0), 0.0, 1000.0, ""),
    "wfq.tokens.output" => real(Assumed(2.0), 0.0, 1000.0, ""),
};
const ORDER_IS_THE_BACKENDS: &str =
    "\"%s\"; with mode Observe the order is the backend's; leave it out or use mode Hold";
const NO_PRIORITIES: &str =
    "\"%s\"; there are no classes; add spec.classes or use another discipline";
const NO_CLASSES: &str = "Class; there are none; add spec.classes or use Type or Workflow";
pub(super) static REQUIREMENTS: Rules = fields! {
    "queue" => hold("discipline", Any(&[Is("mode", "Hold"), IN_ORDER]), ORDER_IS_THE_BACKENDS)
        .showing("discipline"),
    "" => hold("queue.discipline", Any(&[Not(&PRIORITY), Given("classes")]), NO_PRIORITIES)
        .showing("queue.discipline"),
    "" => hold("queue.drr.by", Any(&[Not(&DRR_BY_CLASS), Given("classes")]), NO_CLASSES),
    "" => hold("queue.wfq.by", Any(&[Not(&WFQ_BY_CLASS), Given("classes")]), NO_CLASSES),
    "" => known("queue.drr.weights", Is("queue.drr.by", "Type"), TYPES),
    "" => known("queue.wfq.weights", Is("queue.wfq.by", "Type"), TYPES),
    "" => known("queue.drr.weights", All(&[DRR_BY_CLASS, Given("classes")]), CLASSES),
    "" => known("queue.wfq.weights", All(&[WFQ_BY_CLASS, Given("classes")]), CLASSES),
};
const IN_ORDER: When = Any(&[Not(&Given("discipline")), Is("discipline", "FIFO")]);
const PRIORITY: When = Is("queue.discipline", "Priority");
const DRR_BY_CLASS: When = Is("queue.drr.by", "Class");
const WFQ_BY_CLASS: When = Is("queue.wfq.by", "Class");

pub(super) fn queue(spec: &AdmissionPolicySpec, at: &At<'_>) -> QueueConfig {
    let queue = &spec.queue;
    let chosen = in_use(spec);
    let name = chosen.to_string();
    for (field, needed) in [("drr", DisciplineType::Drr), ("wfq", DisciplineType::Wfq)] {
        let at = at.field(field);
        if at.is_given() && chosen != needed {
            let right = format!("leave it out or use discipline {needed}");
            at.add(format!("given with discipline {name}; {right}"));
        }
    }
    QueueConfig {
        mode: queue.mode,
        discipline: discipline(spec, at),
        max_length: at.field("maxLength").whole(),
        timeout_us: at.field("timeout").time(),
    }
}

/// Returns the discipline of the policy. The default is `Slack` with a held queue and Bouncer,
/// because every type has objectives then, and FIFO otherwise.
pub(super) fn in_use(spec: &AdmissionPolicySpec) -> DisciplineType {
    let held = spec.queue.mode == QueueMode::Hold;
    let default = match spec.strategy.kind {
        StrategyType::Bouncer if held => DisciplineType::Slack,
        _ => DisciplineType::Fifo,
    };
    spec.queue.discipline.unwrap_or(default)
}

fn discipline(spec: &AdmissionPolicySpec, at: &At<'_>) -> Discipline {
    match in_use(spec) {
        DisciplineType::Fifo => Discipline::Fifo,
        DisciplineType::Edf => Discipline::Edf,
        DisciplineType::Lstf => Discipline::Lstf,
        DisciplineType::Sjf => Discipline::Sjf,
        DisciplineType::Srtf => Discipline::Srtf,
        DisciplineType::Lasf => Discipline::Lasf,
        DisciplineType::Priority => Discipline::Priority,
        DisciplineType::Slack => Discipline::Slack,
        DisciplineType::Drr => {
            let by = spec
                .queue
                .drr
                .as_ref()
                .map_or(Flow::default(), |drr| drr.by);
            let at = at.field("drr");
            Discipline::Drr {
                by,
                quantum_us: at.field("quantum").time(),
                weights: weights(spec, by, &at),
            }
        }
        DisciplineType::Wfq => {
            let by = spec
                .queue
                .wfq
                .as_ref()
                .map_or(Flow::default(), |wfq| wfq.by);
            let at = at.field("wfq");
            let tokens = at.field("tokens");
            let cost = || TokenCost {
                input: tokens.field("input").real(),
                output: tokens.field("output").real(),
            };
            Discipline::Wfq {
                by,
                weights: weights(spec, by, &at),
                tokens: tokens.is_given().then(cost),
            }
        }
    }
}

/// Returns the weights in force of the fair queue at `at`. A workflow has its weight from
/// `workflows.named` unless the queue's own weights name it.
fn weights(spec: &AdmissionPolicySpec, by: Flow, at: &At<'_>) -> BTreeMap<String, f64> {
    let own = own_weights(by, at);
    if by != Flow::Workflow {
        return own;
    }
    let named = spec.workflows.iter().flat_map(|workflows| &workflows.named);
    // The API server adds the default weight, which must mean the same as an absent weight.
    let weight = |given: Option<f64>| given.filter(|weight| *weight != 1.0);
    let named = named.filter_map(|w| Some((w.name.clone(), weight(w.weight)?)));
    named.chain(own).collect()
}

/// Returns the fair queue's own weights, and checks the flows that it distinguishes.
fn own_weights(by: Flow, at: &At<'_>) -> BTreeMap<String, f64> {
    let weights = at.field("weights");
    let own = weights.values(|_| Some(()));
    weights.count(own.len());
    let is_odd = |id: &&String| !(1..=MAX_WORKFLOW_NAME).contains(&id.len());
    for id in own.keys().filter(|id| by == Flow::Workflow && is_odd(id)) {
        let right = format!("the id of a workflow, 1 to {MAX_WORKFLOW_NAME} bytes");
        weights.key(id).add(format!("{} bytes; {right}", id.len()));
    }
    weights.values(At::given_real)
}

pub(super) fn schema(spec: &mut SchemaField<'_>) {
    fair(spec, "drr", DisciplineType::Drr);
    fair(spec, "wfq", DisciplineType::Wfq);
}

/// Adds the schema of a fair queue's settings: of `discipline`, in the field `name`.
fn fair(spec: &mut SchemaField<'_>, name: &str, discipline: DisciplineType) {
    let (field, on) = (format!("self.queue.{name}"), format!(".queue.{name}"));
    let mut settings = spec.at(&format!("queue.{name}"));
    let odd = format!("size(bytes(k)) < 1 || size(bytes(k)) > {MAX_WORKFLOW_NAME}");
    let bytes = format!("string(self.weights.filter(k, {odd}).map(k, size(bytes(k)))[0])");
    settings.rule(
        Rule::value(
            format!(
                "self.by != 'Workflow' || !has(self.weights) || !self.weights.exists(k, {odd})"
            ),
            &cel::format("%s bytes", &[&bytes]),
            format!("the id of a workflow, 1 to {MAX_WORKFLOW_NAME} bytes"),
        )
        .on(".weights"),
    );

    let others = "has(self.queue.discipline) ? self.queue.discipline : \
                  self.queue.mode == 'Hold' && self.strategy.type == 'Bouncer' ? 'Slack' : 'FIFO'";
    let chosen = format!("has(self.queue.discipline) && self.queue.discipline == '{discipline}'");
    let problem = format!("given with discipline %s; leave it out or use discipline {discipline}");
    spec.rule(
        Rule::words(format!("!has({field}) || ({chosen})"), &problem, &[others])
            .on(&on)
            .forbidden(),
    );
}
