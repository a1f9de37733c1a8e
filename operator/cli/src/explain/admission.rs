//! Class admission in words: the target of a request's class, and the senders whose classes are
//! trusted.

use headgate_core::config::{Fallback, ServiceAdmissionConfig};
use headgate_core::request::ClassId;
use headgate_mesh::class_admission::Law;
use headgate_mesh::class_admission::protocol::Method;

use super::{Duration, Subject, duration};

/// Returns the effects of class admission on the request; none if the policy has no targets for
/// classes.
pub(super) fn admission(
    subject: &Subject<'_>,
    promises: Option<&ServiceAdmissionConfig>,
) -> Vec<String> {
    let (Some(class), Some(promises)) = (subject.class, promises) else {
        return Vec::new();
    };
    let lowest = promises.classes.last().map_or("", |c| c.name.as_str());
    let promise = match promises.targets_us.get(class) {
        Some(target) => format!(
            "calls of this class are to take {} at most{} beside the service's work, at p{}: while \
             they take longer, callers run some of them in {lowest}, and tell their applications \
             (classAdmission)",
            duration(*target),
            if promises.per_cost {
                " for each unit of cost"
            } else {
                ""
            },
            promises.percentile,
        ),
        None => {
            "it promises nothing: calls of other classes run in it while these miss their targets \
                 (classAdmission)"
                .to_owned()
        }
    };
    let times = times(promises, class);
    // With workflows, their settings decide who is trusted.
    let stage = subject.stage;
    let own = stage
        .class_admission
        .iter()
        .filter(|_| stage.workflows.is_none());
    let believed = own.map(|a| match a.peers.as_slice() {
        [] => "x-headgate-class of a request goes before matches, from any sender".to_owned(),
        peers => format!(
            "x-headgate-class of a request goes before matches, if it is of {}",
            peers.join(", ")
        ),
    });
    let central = promises.central.as_ref();
    let central = central.map(|central| {
        let decides = match central.method {
            Method::Misses { allowed, period_us } => format!(
                "after {allowed} misses within {} for all callers",
                duration(period_us)
            ),
            Method::Incast { .. } => {
                "by the average wait, so that targets are for the mean".to_owned()
            }
        };
        let alone = match central.fallback {
            Fallback::Distributed => "each caller decides for itself",
            Fallback::Admit => "none do",
        };
        format!(
            "a server decides which do, {decides} (headgate run --admission); while it is silent, \
             {alone}"
        )
    });
    std::iter::once(promise)
        .chain(times)
        .chain(central)
        .chain(believed)
        .collect()
}

/// Describes how fast each caller decides, and the resulting percentile, if callers decide.
fn times(promises: &ServiceAdmissionConfig, class: usize) -> Option<String> {
    let law = Law::try_from(promises.settings()).ok()?;
    let class = ClassId(u8::try_from(class).ok()?);
    if !law.promises(class) || promises.central.is_some() {
        return None;
    }
    let calls = law.calls_per_window();
    Some(format!(
        "p{} holds for callers with {} calls of the class or more in a window of {}, p{} for those \
         with a tenth of them; a caller that runs {} of them in the class needs {} without a miss \
         to run all there again",
        promises.percentile,
        calls.round().max(1.0),
        Duration::from(law.window(class)),
        // Percentiles are shown with few digits.
        (law.percentile(calls / 10.0) * 1e3).round() / 1e3,
        promises.min_probability,
        Duration::from(law.recovery(class)),
    ))
}
