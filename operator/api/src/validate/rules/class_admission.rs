//! `spec.classAdmission`: targets of classes, trusted peers, and the calls that are admitted to
//! classes.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use headgate_admission::ChannelLaw;
use headgate_admission::protocol::Method;
use headgate_core::config::{
    CentralConfig, ClassAdmissionConfig, ClassConfig, Discipline, Flow, Mode, OutboundConfig,
    QueueMode, ServiceAdmissionConfig,
};
use headgate_strategies::request::ClassId;

use super::requirement::When::{All, Any, Given, Not, Several};
use super::requirement::{CLASSES, FORBIDDEN, Rules, When, forbidden, hold, known, only};
use super::workflows::{outbound, peers, services};
use super::{
    Assumed, At, Field, HOUR, MILLISECOND, MINUTE, Open, SECOND, Stored, Table, real, time, whole,
};
use crate::validate::policy::ValidPolicy;
use crate::validate::rules::schema::{Rule, SchemaField, some};
use crate::{AdmissionPolicySpec, CentralizedMethod, ClassAdmissionMethod, Duration};

const STEP: Field = real(Stored(0.01), 0.0, 1.0, "").above();
pub(super) static FIELDS: Table = fields! {
    // Each class but the last may have a target, and there are at most 16 classes.
    "targets" => Field::Map(15, "targets"),
    "targets{}" => time(Open, MILLISECOND, HOUR),
    "percentile" => real(Stored(99.0), 0.0, 100.0, "a percentile").below(),
    "distributed.increase" => STEP,
    "distributed.decrease" => STEP,
    "distributed.minProbability" => real(Stored(0.1), 0.0, 1.0, "").above(),
    // Each of these settings is valid only with one of the methods.
    "centralized.misses" => whole(Assumed(5.0), 1, 1_000_000),
    "centralized.period" => time(Assumed(SECOND), 10.0 * MILLISECOND, MINUTE),
    "centralized.smoothing" => real(Assumed(0.5), 0.0, 1.0, "").below(),
    // The default depends on the period.
    "centralized.report" => time(Open, 10.0 * MILLISECOND, 10.0 * SECOND),
};
const REPORT_US: u64 = 100_000;
const AT_MOST_A_PERIOD: &str = "at most the period";
const ENDS_WITH_IT: &str = "with which the server's decisions end";
/// The rate of calls in one class, calls/s, that few sidecars exceed.
const MANY_CALLS: f64 = 100.0;
const NOTHING: &str = "neither targets, for this service's callers, nor outbound.services or \
                       outbound.smoothing, for its own calls; give one of them";
const NO_CLASSES: &str =
    "with fewer than 2 classes; calls are downgraded to the last of spec.classes";
const LAST: &str = "the last class has no target; leave it out";
const MISSING: &str = "missing; each class but the last has a target";
const PEERS: &str = "given with workflows; give workflows.peers";
const OUTBOUND: &str = "given with workflows; give workflows.outbound";
const CALLS: When = Any(&[
    Given("classAdmission.outbound.smoothing"),
    Given("classAdmission.outbound.services"),
]);
const TARGETS: When = Given("classAdmission.targets");
pub(super) static REQUIREMENTS: Rules = fields! {
    "" => hold("classAdmission", Any(&[Not(&Given("classAdmission")), TARGETS, CALLS]), NOTHING),
    "classAdmission" => only!("centralized", "method", "Centralized"),
    "classAdmission.centralized" => only!("misses", "method", "Misses"),
    "classAdmission.centralized" => only!("period", "method", "Misses"),
    "classAdmission.centralized" => only!("smoothing", "method", "Incast"),
    "" => known("classAdmission.targets", Several("classes"), CLASSES),
    "" => forbidden!("classAdmission.peers", Not(&Given("workflows")), PEERS),
    "" => hold("classAdmission.outbound", Not(&All(&[Given("workflows"), CALLS])), OUTBOUND)
        .reason(FORBIDDEN),
};

/// The policy's class admission in the filter's types.
#[derive(Debug, Default)]
pub(super) struct Meaning {
    pub(super) stage: Option<ClassAdmissionConfig>,
    /// The settings for the callers of the service.
    pub(super) promises: Option<ServiceAdmissionConfig>,
    /// The settings of the backend's calls, if they belong to no workflows.
    pub(super) outbound: Option<OutboundConfig>,
}

pub(super) fn class_admission(
    spec: &AdmissionPolicySpec,
    policy: &str,
    classes: &[ClassConfig],
    at: &At<'_>,
) -> Meaning {
    let Some(given) = &spec.class_admission else {
        return Meaning::default();
    };
    let has_calls = !given.outbound.services.is_empty() || given.outbound.smoothing.is_some();
    let peers = peers::peers(&given.peers, &at.field("peers"));
    let enforced = spec.mode == Mode::Enforce;
    let calls = (policy, enforced);
    let calls_at = at.field("outbound");
    let outbound = outbound(calls, &given.outbound, peers.clone(), &calls_at);
    let targets_us = targets(spec, &given.targets, &at.field("targets"));
    let percentile = at.field("percentile").real();
    let central = centralized(given, at);
    let at = at.field("distributed");
    let promises = ServiceAdmissionConfig {
        classes: classes.to_vec(),
        targets_us,
        percentile,
        per_cost: given.per_cost,
        increase: at.field("increase").real(),
        decrease: at.field("decrease").real(),
        min_probability: at.field("minProbability").real(),
        enforced,
        central,
    };
    let receives = !given.targets.is_empty();
    Meaning {
        stage: Some(ClassAdmissionConfig { receives, peers }),
        promises: receives.then_some(promises),
        outbound: has_calls.then_some(outbound),
    }
}

/// Returns the settings of centralized admission. The service's name is set later, when the
/// service's callers are compiled.
fn centralized(given: &crate::ClassAdmission, at: &At<'_>) -> Option<CentralConfig> {
    let at = at.field("centralized");
    if given.method == ClassAdmissionMethod::Distributed {
        return None;
    }
    let settings = given.centralized.clone().unwrap_or_default();
    let known = at.found();
    let allowed = at.field("misses").whole();
    let period_us = at.field("period").time();
    let report_us = at.field("report").given_time();
    let report_us = report_us.unwrap_or(REPORT_US.min(period_us));
    if settings.method == CentralizedMethod::Misses && at.found() == known && report_us > period_us
    {
        let [report, period] = [report_us, period_us].map(Duration::of_micros);
        let problem = format!("{report}; {AT_MOST_A_PERIOD} ({period}), {ENDS_WITH_IT}");
        at.field("report").add(problem);
    }
    let smoothing = at.field("smoothing").real();
    Some(CentralConfig {
        service: String::new(),
        method: match settings.method {
            CentralizedMethod::Misses => Method::Misses {
                allowed: NonZeroU32::new(allowed).unwrap_or(NonZeroU32::MIN),
                period_us,
            },
            CentralizedMethod::Incast => Method::Incast { smoothing },
        },
        scope: settings.scope,
        report_us,
        fallback: settings.fallback,
    })
}

/// Returns the target of each class but the last, µs.
fn targets(
    spec: &AdmissionPolicySpec,
    targets: &BTreeMap<String, Duration>,
    at: &At<'_>,
) -> Vec<u64> {
    if targets.is_empty() {
        return Vec::new();
    }
    let names = spec.class_names();
    let Some((last, promised @ [_, ..])) = names.split_last() else {
        at.add(NO_CLASSES);
        return Vec::new();
    };
    if targets.keys().any(|name| name == last) {
        at.key(last).add(LAST);
    }
    let mut found = Vec::with_capacity(promised.len());
    for name in promised {
        let at = at.key(name);
        match at.is_given() {
            true => found.push(at.given_time().unwrap_or(1)),
            false => at.add(MISSING),
        }
    }
    found
}

/// Adds warnings about consequences that the author may have overlooked.
pub(super) fn warnings(policy: &ValidPolicy, spec: &At<'_>) {
    let stage = &policy.stage;
    let promises = policy.promises.as_ref();
    if let Some(promises) = promises.filter(|promises| promises.central.is_none()) {
        few_calls(promises, &spec.field("classAdmission.targets"));
    }
    let receives = stage.class_admission.as_ref().is_some_and(|a| a.receives);
    if receives && stage.workflows.as_ref().is_some_and(|w| w.edge) {
        spec.field("classAdmission.targets").add(
            "given with workflows.edge, where no caller is trusted: responses don't report their \
             times, so callers notice only refusals and timeouts, and the service ignores the \
             class of a downgraded call",
        );
    }
    let by_class = matches!(
        &stage.queue.discipline,
        Discipline::Drr {
            by: Flow::Class,
            ..
        } | Discipline::Wfq {
            by: Flow::Class,
            ..
        }
    );
    if receives && (!by_class || stage.queue.mode == QueueMode::Observe) {
        spec.field("queue.discipline").add(
            "not WFQ or DRR by Class: the queue keeps no shares for classes, so downgraded calls \
             wait no longer than others",
        );
    }
}

/// Adds warnings about targets that are met at their percentile only for callers with unusually
/// many calls.
fn few_calls(promises: &ServiceAdmissionConfig, at: &At<'_>) {
    let Ok(law) = ChannelLaw::try_from(promises.settings()) else {
        return;
    };
    for (class, config) in (0..).map(ClassId).zip(&promises.classes) {
        let window = law.window(class);
        let calls_per_s = law.calls_per_window() / window.as_secs_f64();
        if law.promises(class) && calls_per_s > MANY_CALLS {
            at.key(&config.name).add(format!(
                "its windows ({}) are so short that the target holds at p{} only for callers with \
                 at least {} calls/s in the class; give a longer target, or more decrease or less \
                 increase in classAdmission.distributed",
                Duration::from(window),
                promises.percentile,
                calls_per_s.round(),
            ));
        }
    }
}

pub(super) fn schema(spec: &mut SchemaField<'_>) {
    let mut admission = spec.at("classAdmission");
    let mut central = admission.at("centralized");
    let report = "self.report";
    let period = central.value("period");
    let right = format!("{} && {}", central.right("report"), central.right("period"));
    central.rule(
        Rule::words(
            format!(
                "!has({report}) || (has(self.method) && self.method != 'Misses') || !({right}) || \
                 duration({report}) <= duration({period})"
            ),
            &format!("%s; {AT_MOST_A_PERIOD} (%s), {ENDS_WITH_IT}"),
            &[report, &period],
        )
        .on(".report"),
    );
    services::outbound_schema(&mut admission.at("outbound"));

    let given = "has(self.classAdmission)";
    let targets = "self.classAdmission.targets";
    let has_targets = format!("{given} && {}", some(targets));
    let classes = "(has(self.classes) && size(self.classes) > 1)";
    let on = ".classAdmission.targets";
    spec.rule(Rule::text(format!("!({has_targets}) || {classes}"), NO_CLASSES).on(on));
    let condition = format!("{has_targets} && {classes}");
    let last = "self.classes[size(self.classes) - 1].name";
    spec.rule(
        Rule::words(
            format!("!({condition}) || !({last} in {targets})"),
            &format!("%s: {LAST}"),
            &[last],
        )
        .on(on)
        .forbidden(),
    );
    let missing = format!("self.classes.filter(c, c.name != {last} && !(c.name in {targets}))");
    spec.rule(
        Rule::words(
            format!("!({condition}) || size({missing}) == 0"),
            &format!("%s: {MISSING}"),
            &[&format!("{missing}[0].name")],
        )
        .on(on)
        .required(),
    );
}
