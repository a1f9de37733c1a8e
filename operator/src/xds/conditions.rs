//! A policy's conditions at its targets: whether it is accepted, and what the proxies that should enforce it say.

use headgate_core::config::MAX_STAGES;
use serde::{Deserialize, Serialize};

use super::tally::{Rejection, Tallies, Tally};
use crate::plan::{PolicyState, TargetRef};

/// A condition in the sense of the Kubernetes API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Whether it holds.
    pub status: bool,
    /// One word, for programs.
    pub reason: String,
    /// One line, for people.
    pub message: String,
}

impl Condition {
    /// A condition.
    #[must_use]
    pub fn new(status: bool, reason: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// Whether the proxies that should enforce a policy do so.
///
/// Reasons: `Programmed` (all run it), `PartiallyProgrammed` (some do, the rest haven't answered),
/// `Pending` (none has answered), `EnvoyRejected` (one refused the newest version), `NoProxies` (none is connected).
#[must_use]
pub fn programmed(tally: &Tally) -> Condition {
    let Tally { running, total, .. } = *tally;
    let share = format!("{running} of {total} proxies run it");
    if let Some(Rejection { node, message }) = &tally.rejected {
        let kept = "the last good configuration stays";
        return Condition::new(
            false,
            "EnvoyRejected",
            format!("{share}; {node} refused it: {message}; {kept}"),
        );
    }
    match (running, total) {
        (_, 0) => Condition::new(
            false,
            "NoProxies",
            "no connected proxy serves this target; check that its Pods have a Headgate sidecar and an identity for this namespace",
        ),
        (r, t) if r == t => Condition::new(true, "Programmed", share),
        (0, _) => Condition::new(false, "Pending", share),
        _ => Condition::new(false, "PartiallyProgrammed", share),
    }
}

/// Whether a policy is right and may apply at `target` (`Accepted`), and whether proxies enforce it there
/// (`Programmed`). A policy that names no target that can be read has none. `delivered` is what became of the policy
/// where another control plane's objects carry it.
#[must_use]
pub fn at(
    state: &PolicyState,
    target: Option<&TargetRef>,
    tallies: &Tallies,
    delivered: Option<&Condition>,
) -> [Condition; 2] {
    let accepted = accepted_at(state, target);
    let programmed = match target {
        Some(target) if accepted.status => {
            let tally = tallies.of_generation(&state.name, state.generation, target);
            match state.beyond_limit.get(target) {
                Some(applying) => Condition::new(
                    false,
                    "LimitReached",
                    format!(
                        "{applying} policies apply to a proxy of this target, which takes at most {MAX_STAGES}; this \
                         policy is left out there (those of routes are first, the newest first): merge policies, or \
                         attach routes to another Gateway"
                    ),
                ),
                None => together(tally.total, programmed(&tally), delivered),
            }
        }
        Some(target) if state.accepted.is_err() && !state.revision.is_empty() => {
            let kept = programmed(&tallies.of_target(&state.name, target)).message;
            let message = format!("the last good version stays in force: {kept}");
            Condition::new(false, &accepted.reason, message)
        }
        _ => Condition::new(false, &accepted.reason, "nothing is enforced here"),
    };
    [accepted, programmed]
}

/// What proxies say and what became of delivered objects; a policy may reach proxies in both ways.
fn together(proxies: u64, said: Condition, delivered: Option<&Condition>) -> Condition {
    match delivered {
        None => said,
        Some(delivered) if proxies == 0 => delivered.clone(),
        Some(_) if !said.status => said,
        Some(delivered) => Condition {
            message: format!("{}; {}", said.message, delivered.message),
            ..delivered.clone()
        },
    }
}

fn accepted_at(state: &PolicyState, target: Option<&TargetRef>) -> Condition {
    let refused = |reason, message: String| Condition::new(false, reason, message);
    if let Err(problems) = &state.accepted {
        return refused("Invalid", problems.lines().collect::<Vec<_>>().join("; "));
    }
    let missing = state.not_found.iter().find(|(t, _)| Some(t) == target);
    if let Some((_, why)) = missing {
        return refused("TargetNotFound", why.clone());
    }
    if let Some(lost) = state.conflicts.iter().find(|c| Some(&c.target) == target) {
        return refused(
            "Conflicted",
            format!("{} belongs to {}, which is older", lost.target, lost.winner),
        );
    }
    if let Some(lost) = state.overridden.iter().find(|c| Some(&c.target) == target) {
        return refused(
            "Overridden",
            format!("{} is in force on its proxies", lost.winner),
        );
    }
    let message = match state.remarks(target) {
        Some(remarks) => format!("valid, but {remarks}"),
        None => "valid".to_owned(),
    };
    Condition::new(true, "Accepted", message)
}

/// The conditions at all targets of a policy in one pair: `Accepted` holds where it does at each of them, and
/// `Programmed` where it does at each that is accepted. Else the first that doesn't hold speaks, and names its target
/// if there are several.
#[must_use]
pub fn summary<T: AsRef<str>>(of_targets: &[(T, [Condition; 2])]) -> Option<[Condition; 2]> {
    let several = of_targets.len() > 1;
    let worst = |all: &[(&str, &Condition)]| {
        let (target, condition) = all.iter().find(|(_, c)| !c.status).or(all.first())?;
        let mut condition = Condition::clone(condition);
        if several && !condition.status {
            condition.message = format!("{target}: {}", condition.message);
        }
        Some(condition)
    };
    let pick = |which: fn(&[Condition; 2]) -> &Condition, only: fn(&[Condition; 2]) -> bool| {
        let chosen = of_targets.iter().filter(|(_, c)| only(c));
        let chosen: Vec<(&str, &Condition)> = chosen.map(|(t, c)| (t.as_ref(), which(c))).collect();
        worst(&chosen)
    };
    let accepted = pick(|[accepted, _]| accepted, |_| true)?;
    let programmed = pick(
        |[_, programmed]| programmed,
        |[accepted, _]| accepted.status,
    );
    let programmed = programmed.or_else(|| pick(|[_, programmed]| programmed, |_| true))?;
    Some([accepted, programmed])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::SystemTime;

    use headgate_core::config::FilterConfig;

    use super::super::OUTBOUND_SLOT;
    use super::super::node::Identity;
    use super::super::proxy::{Nack, Proxy, Push, Transport, Variant};
    use super::super::tally::Tallies;
    use super::*;

    /// A proxy that should run version 2 of `default/search`.
    fn proxy(acked: Option<&str>, refused: Option<&str>) -> Proxy {
        let json = r#"{"stages": [{"policy": "default/search", "parallelism": 1,
            "queue": {"max_length": 1, "timeout_us": 1}, "types": [{"name": "default"}],
            "strategy": {"type": "MaxQueueLength"}}]}"#;
        let config = Arc::new(FilterConfig::from_json(json.as_bytes()).unwrap());
        let now = SystemTime::UNIX_EPOCH;
        let push = |v: &str| Push {
            version: v.to_owned(),
            revision: String::new(),
            filter: Default::default(),
            at: now,
        };
        Proxy {
            identity: Identity {
                id: "edge".into(),
                ..Identity::default()
            },
            peer: String::new(),
            transport: Transport::Ecds,
            variant: Variant::Delta,
            slots: BTreeSet::new(),
            connected: now,
            disconnected: None,
            assigned: Some(("2".into(), config)),
            in_force: Vec::new(),
            problem: None,
            fallback: None,
            sent: None,
            acked: acked.map(push),
            nack: refused.map(|v| Nack {
                push: push(v),
                message: "why".into(),
            }),
        }
    }

    fn of(policy: &str, proxies: &[Proxy]) -> Condition {
        programmed(&Tallies::of(proxies).of_policy(policy))
    }

    #[test]
    fn reasons_follow_what_proxies_say() {
        // Each over a connection of its own.
        let reason = |proxies: &[Proxy]| {
            let apart = proxies.iter().enumerate().map(|(i, proxy)| Proxy {
                peer: i.to_string(),
                ..proxy.clone()
            });
            let apart: Vec<Proxy> = apart.collect();
            of("default/search", &apart).reason
        };
        let (runs, silent) = (proxy(Some("2"), None), proxy(Some("1"), None));
        assert_eq!(reason(&[]), "NoProxies");
        assert_eq!(reason(std::slice::from_ref(&silent)), "Pending");
        assert_eq!(
            reason(&[runs.clone(), silent.clone()]),
            "PartiallyProgrammed"
        );
        assert_eq!(reason(&[runs.clone(), runs.clone()]), "Programmed");
        assert_eq!(
            reason(&[runs.clone(), proxy(Some("1"), Some("2"))]),
            "EnvoyRejected"
        );
        assert_eq!(
            reason(&[proxy(Some("2"), Some("1"))]),
            "Programmed",
            "an older refusal"
        );
        let gone = Proxy {
            disconnected: Some(SystemTime::now()),
            ..silent
        };
        assert_eq!(reason(&[runs, gone]), "Programmed");
        let two_slots = |calls: Proxy| {
            let slots = BTreeSet::from([OUTBOUND_SLOT.to_owned()]);
            of(
                "default/search",
                &[proxy(Some("2"), None), Proxy { slots, ..calls }],
            )
            .message
        };
        let without_workflows = two_slots(proxy(Some("1"), None));
        assert_eq!(
            without_workflows, "1 of 1 proxies run it",
            "its other slot has no part of the policy"
        );
        let other = of("default/other", &[proxy(Some("2"), None)]);
        assert_eq!((other.status, other.reason.as_str()), (false, "NoProxies"));
    }

    #[test]
    fn a_refusal_names_proxy_and_reason() {
        let condition = of("default/search", &[proxy(None, Some("2"))]);
        assert_eq!(
            condition.message,
            "0 of 1 proxies run it; edge refused it: why; the last good configuration stays"
        );
    }
}
