//! Rules for the admission stage: `parallelism`, `retries`, and all parts together.

use headgate_core::classify::Budget;
use headgate_core::config::{
    ATTEMPT_HEADERS, AutoParallelism, MAX_PARALLELISM, MAX_TOKENS, Measure, RetriesConfig,
    StageConfig, TokenCount, TokensConfig,
};

use super::class_admission::{self, class_admission};
use super::classes::classes;
use super::errors::errors;
use super::identity::targets;
use super::matches::check_matches;
use super::names::{HEADER, header};
use super::queue::queue;
use super::requirement::When::{All, Any, Given, Is, Not};
use super::requirement::{Rules, When, hold};
use super::strategy::strategy;
use super::types::{BOUNCER_NEEDS_OBJECTIVES, SLACK_NEEDS_OBJECTIVES, types};
use super::workflows::workflows;
use super::{Assumed, At, Field, Open, Stored, Table, check_requirements, real, shadow, whole};
use crate::slots::Slots;
use crate::validate::policy::ValidPolicy;
use crate::validate::rules::schema::{Rule, SchemaField, some};
use crate::{AdmissionPolicy, AdmissionPolicySpec, DisciplineType, StrategyType};

/// Fields of blocks without a file of their own.
pub(super) static FIELDS: Table = fields! {
    "parallelism.total" => whole(Open, 1, MAX_PARALLELISM),
    "parallelism.perEndpoint" => whole(Open, 1, MAX_PARALLELISM),
    "parallelism.auto.min" => whole(Assumed(FEWEST as f64), 1, MAX_PARALLELISM),
    "parallelism.auto.max" => whole(Assumed(MAX_PARALLELISM as f64), 1, MAX_PARALLELISM),
    "parallelism.tokens.budget" => whole(Open, 1, MAX_TOKENS),
    "parallelism.tokens.prompt.header" => Field::Text(&HEADER),
    "parallelism.tokens.prompt.perUnit" => PER_UNIT,
    "parallelism.tokens.prompt.otherwise" => whole(Open, 0, MAX_TOKENS),
    "parallelism.tokens.output.header" => Field::Text(&HEADER),
    "parallelism.tokens.output.perUnit" => PER_UNIT,
    "parallelism.tokens.output.otherwise" => whole(Open, 0, MAX_TOKENS),
    "parallelism.tokens.perRequest" => whole(Open, 1, MAX_TOKENS),
    "retries.header" => Field::Text(&HEADER),
    "retries.firstAttempt" => whole(Stored(0.0), 0, 1),
};
/// Tokens for each unit of a header.
const PER_UNIT: Field = real(Assumed(1.0), 0.001, 1000.0, "");
/// The default minimum of the slots that a proxy finds.
const FEWEST: u32 = 2;
const READ_ANYWAY: &str = "read by default; give another header, or leave retries out";
const EXPRESSIONS: &str = "regular expressions too large when compiled, with those of classes and \
                           exclude; use fewer, or smaller repetition counts";
const ONE_OF: &str = "more than one of auto, total and perEndpoint; give one of them";
const NO_TOKENS: &str = "neither prompt nor output; give at least one of them";
const OBSERVED: &str = "with queue.mode Observe no request is held, so parallelism can't be found; \
                        give parallelism.total or parallelism.perEndpoint";
const RELEASED_UNMEASURED: &str = "with releaseSlot FirstByte and measure LastByte, slots would be \
                                   free before their requests are measured; give measure \
                                   FirstByte, or leave releaseSlot out";
const RELEASED_UNSEEN: &str = "with releaseSlot FirstByte nothing is measured after the first byte, \
                               and no token is kept; leave out releaseSlot, or the types' tpot, \
                               queue.wfq.tokens and parallelism.tokens";
pub(super) static REQUIREMENTS: Rules = fields! {
    "parallelism.tokens" => hold("", Any(&[Given("prompt"), Given("output")]), NO_TOKENS),
    "" => hold("", Any(&[Not(&Is("queue.mode", "Observe")), FIXED]), OBSERVED),
    "" => hold("", Any(&[Not(&RELEASED), Is("measure", "FirstByte")]), RELEASED_UNMEASURED),
};
const FIXED: When = Any(&[Given("parallelism.total"), Given("parallelism.perEndpoint")]);
/// The CRD has no default for this field, because version 0.1 lacks the field.
const RELEASED: When = All(&[Given("releaseSlot"), Is("releaseSlot", "FirstByte")]);

/// Checks the targets and the spec of a policy, and returns it in the filter's types, without
/// warnings.
pub(crate) fn policy(policy: &AdmissionPolicy, namespace: &str, root: &At<'_>) -> ValidPolicy {
    let spec = &policy.spec;
    let name = policy.metadata.name.clone();
    let full_name = format!("{namespace}/{name}");
    check_requirements(spec, root);
    let generation = policy.metadata.generation.unwrap_or(0);
    let targets = targets(&spec.target_refs, namespace, &root.field("targetRefs"));
    let at = root.field("parallelism");
    let slots = parallelism(&at);
    let given = spec.parallelism.tokens.as_ref();
    let tokens = given.map(|given| tokens(given, &at.field("tokens")));
    let errors = errors(&spec.errors, &root.field("errors"));
    let given = spec.retries.as_ref();
    let retries = given.map(|given| retries(given, &root.field("retries")));
    let queue = queue(spec, &root.field("queue"));
    let counts_tokens = spec.types.iter().any(|t| !t.tpot.is_empty())
        || ["queue.wfq.tokens", "parallelism.tokens"]
            .iter()
            .any(|field| root.field(field).is_given());
    if spec.release_slot == Measure::FirstByte && counts_tokens {
        root.add(RELEASED_UNSEEN);
    }
    let strategy = strategy(spec, &root.field("strategy"));
    let mut budget = Budget::of_accepted();
    let types = types(
        &spec.types,
        spec.measure,
        reason_for_objectives(spec),
        &root.field("types"),
        &mut budget,
    );
    let classes = classes(&spec.classes, &root.field("classes"), &mut budget);
    let excluded = check_matches(&spec.exclude, &root.field("exclude"), &mut budget);
    if budget.is_exceeded() {
        root.field("types").add(EXPRESSIONS);
    }
    shadow::check(spec, root);
    let (workflows, outbound) = workflows(spec, &full_name, &root.field("workflows"));
    let at = root.field("classAdmission");
    let class_admission::Meaning {
        stage: class_admission,
        promises,
        outbound: calls,
    } = class_admission(spec, &full_name, &classes, &at);
    let stage = StageConfig {
        policy: full_name,
        generation,
        routes: Vec::new(),
        mode: spec.mode,
        parallelism: slots.portion(1, 1).parallelism,
        auto_parallelism: slots.auto(),
        tokens,
        queue,
        measure: spec.measure,
        release_slot: spec.release_slot,
        errors,
        retries,
        service_times: strategy.service_times,
        strategy: strategy.config,
        starvation_avoidance: strategy.starvation_avoidance,
        types,
        classes,
        workflows,
        class_admission,
        excluded,
    };
    ValidPolicy {
        namespace: namespace.to_owned(),
        name,
        generation,
        created: policy.metadata.creation_timestamp.clone(),
        targets,
        slots,
        stage,
        outbound: outbound.or(calls),
        promises,
        warnings: Vec::new(),
    }
}

pub(super) fn schema(spec: &mut SchemaField<'_>) {
    let mut parallelism = spec.at("parallelism");
    let mut auto = parallelism.at("auto");
    auto.rule(Rule::words(
        "!has(self.min) || !has(self.max) || self.min <= self.max",
        "min %s and max %s; min at most max",
        &["string(self.min)", "string(self.max)"],
    ));
    parallelism.rule(Rule::text(
        "(has(self.auto) ? 1 : 0) + (has(self.total) ? 1 : 0) + \
         (has(self.perEndpoint) ? 1 : 0) <= 1",
        ONE_OF,
    ));
    let known = ATTEMPT_HEADERS.map(|(name, _)| format!("'{name}'"));
    let rule = format!("!(self.lowerAscii() in [{}])", known.join(", "));
    spec.at("retries.header")
        .rule(Rule::quoted(rule, "self", READ_ANYWAY));
    let some_tpot = format!("self.types.exists(t, {})", some("t.tpot"));
    let charged = "(has(self.queue) && has(self.queue.wfq) && has(self.queue.wfq.tokens))";
    let kept = "(has(self.parallelism) && has(self.parallelism.tokens))";
    spec.rule(Rule::text(
        format!(
            "!has(self.releaseSlot) || self.releaseSlot != 'FirstByte' || \
             !({some_tpot} || {charged} || {kept})"
        ),
        RELEASED_UNSEEN,
    ));
}

/// Returns the reason why each type needs objectives; `None` if objectives aren't needed.
fn reason_for_objectives(spec: &AdmissionPolicySpec) -> Option<&'static str> {
    if spec.strategy.kind == StrategyType::Bouncer {
        return Some(BOUNCER_NEEDS_OBJECTIVES);
    }
    (spec.queue.discipline == Some(DisciplineType::Slack)).then_some(SLACK_NEEDS_OBJECTIVES)
}

fn retries(given: &crate::Retries, at: &At<'_>) -> RetriesConfig {
    let at_header = at.field("header");
    let name = header(&given.header, &at_header);
    if ATTEMPT_HEADERS.iter().any(|(known, _)| *known == name) {
        at_header.add(format!("{:?}; {READ_ANYWAY}", given.header));
    }
    let at = at.field("firstAttempt");
    RetriesConfig {
        header: name,
        first_attempt: at.whole(),
    }
}

fn tokens(given: &crate::TokenBudget, at: &At<'_>) -> TokensConfig {
    let count = |given: &Option<crate::TokenCount>, at: At<'_>| {
        let given = given.as_ref()?;
        let name = given.header.as_ref();
        Some(TokenCount {
            header: name.map(|name| header(name, &at.field("header"))),
            per_unit: at.field("perUnit").real(),
            otherwise: at.field("otherwise").whole(),
        })
    };
    TokensConfig {
        budget: at.field("budget").whole().into(),
        prompt: count(&given.prompt, at.field("prompt")),
        output: count(&given.output, at.field("output")),
        per_request: at.field("perRequest").given_whole(),
    }
}

fn parallelism(at: &At<'_>) -> Slots {
    match ["auto", "total", "perEndpoint"].map(|field| at.field(field).is_given()) {
        [false, true, false] => Slots::Total(at.field("total").whole()),
        [false, false, true] => Slots::PerEndpoint(at.field("perEndpoint").whole()),
        [_, false, false] => {
            let at = at.field("auto");
            let most = at.field("max").whole();
            let min = at.field("min");
            let fewest = match min.is_given() {
                true => min.whole(),
                false => FEWEST.min(most),
            };
            if fewest > most {
                at.add(format!("min {fewest} and max {most}; min at most max"));
                return Slots::Total(1);
            }
            Slots::Auto(AutoParallelism {
                min: fewest,
                max: most,
            })
        }
        _ => {
            at.add(ONE_OF);
            Slots::Total(1)
        }
    }
}
