//! A policy's conditions at its targets. They state whether the policy is accepted, and whether the
//! proxies that should enforce it do so.

use std::collections::BTreeMap;

use headgate_core::config::MAX_STAGES;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use headgate_api::plan::{PolicyState, TargetRef};
use headgate_xds::tally::{Rejection, Tallies, Tally};

/// A condition, as defined by the Kubernetes API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Whether the condition is true.
    pub status: bool,
    /// The reason in one word, for programs.
    pub reason: String,
    /// The message in one line, for people.
    pub message: String,
}

impl Condition {
    /// Returns a condition.
    pub fn new(status: bool, reason: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// A type of condition. A new type needs a variant here with its line in [`Type::ALL`] and
/// [`Type::as_str`], an entry in [`at`], and its name in the comments of `kubernetes/resource.rs`.
/// An Event about a false condition is a warning. `headgate status` shows a condition of a new type
/// while it is present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Type {
    /// Whether the policy is valid and may apply to the target.
    Accepted,
    /// Whether proxies enforce the policy.
    Programmed,
    /// Whether a policy with precedence is in force in place of this policy on all proxies. This
    /// isn't an error. The condition is present only while it is true.
    Overridden,
}

impl Type {
    /// All types.
    pub const ALL: [Self; 3] = [Self::Accepted, Self::Programmed, Self::Overridden];

    /// Returns the name in a Kubernetes status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Programmed => "Programmed",
            Self::Overridden => "Overridden",
        }
    }
}

/// The conditions of a policy, by type.
pub type Conditions = BTreeMap<Type, Condition>;

/// Whether a condition is present and true.
pub fn is_true(conditions: &Conditions, of: Type) -> bool {
    conditions.get(&of).is_some_and(|c| c.status)
}

/// Reads a mapping, and ignores unknown types, because a newer version may have more.
pub(crate) fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Conditions, D::Error> {
    let fields = BTreeMap::<String, Value>::deserialize(deserializer)?;
    let known = fields.into_iter().filter_map(|(name, value)| {
        let of: Type = serde_json::from_value(Value::String(name)).ok()?;
        Some((of, serde_json::from_value(value).ok()?))
    });
    Ok(known.collect())
}

/// Returns the condition that states whether the proxies that should enforce a policy do so.
///
/// The reasons are `Programmed` (all run it), `PartiallyProgrammed` (some do, the rest haven't
/// answered), `Pending` (none has answered), `EnvoyRejected` (one refused the newest version), and
/// `NoProxies` (none is connected).
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
            "no connected proxy serves this target; check that its Pods have a Headgate sidecar \
             and an identity for this namespace",
        ),
        (r, t) if r == t => Condition::new(true, "Programmed", share),
        (0, _) => Condition::new(false, "Pending", share),
        _ => Condition::new(false, "PartiallyProgrammed", share),
    }
}

/// Returns the conditions of a policy at `target`. `target` is `None` for a policy without a
/// readable target. `delivered` is the outcome of the policy's deliveries, if objects deliver the
/// policy.
pub fn at(
    state: &PolicyState,
    target: Option<&TargetRef>,
    tallies: &Tallies,
    delivered: Option<&Condition>,
) -> Conditions {
    let accepted = accepted_at(state, target);
    let overridden = overridden_at(state, target).filter(|_| accepted.status);
    let programmed = match target {
        _ if overridden.is_some() => Condition::new(
            false,
            "Overridden",
            "not enforced at this target; see condition Overridden",
        ),
        Some(target) if accepted.status => {
            let tally = tallies.of_generation(&state.name, state.generation, target);
            match state.beyond_limit.get(target) {
                Some(applying) => Condition::new(
                    false,
                    "LimitReached",
                    format!(
                        "{applying} policies apply to a proxy of this target, which runs at most \
                         {MAX_STAGES}; the proxy runs without this policy (policies of routes are \
                         left out first, the newest before the others): merge policies, or attach \
                         routes to another Gateway"
                    ),
                ),
                None => together(tally.total, programmed(&tally), delivered),
            }
        }
        // Without a known version, only a delivered object can have the last good one.
        Some(target)
            if state.accepted.is_err()
                && (!state.revision.is_empty() || !state.has_version && delivered.is_some()) =>
        {
            let tally = tallies.of_target(&state.name, target);
            let kept = together(tally.total, programmed(&tally), delivered).message;
            let message = format!("the last good version stays in force: {kept}");
            Condition::new(false, &accepted.reason, message)
        }
        _ => Condition::new(
            false,
            &accepted.reason,
            "not enforced at this target; see condition Accepted",
        ),
    };
    let always = [(Type::Accepted, accepted), (Type::Programmed, programmed)];
    let overridden = overridden.map(|c| (Type::Overridden, c));
    always.into_iter().chain(overridden).collect()
}

/// Combines the condition from the proxies' answers with the outcome of deliveries, because a
/// policy may reach proxies in both ways. Objects without a reader don't count for a policy that
/// connected proxies run.
fn together(proxies: u64, said: Condition, delivered: Option<&Condition>) -> Condition {
    match delivered {
        None => said,
        Some(delivered) if proxies == 0 => delivered.clone(),
        Some(delivered) if !said.status || delivered.reason == "NoProxies" => said,
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
            format!(
                "the older policy {} applies to {}",
                lost.winner, lost.target
            ),
        );
    }
    let message = match state.remarks(target) {
        Some(remarks) => format!("valid, but {remarks}"),
        None => "valid".to_owned(),
    };
    Condition::new(true, "Accepted", message)
}

fn overridden_at(state: &PolicyState, target: Option<&TargetRef>) -> Option<Condition> {
    let lost = state
        .overridden
        .iter()
        .find(|c| Some(&c.target) == target)?;
    let message = format!(
        "{}, which has precedence, is in force on all proxies of this target",
        lost.winner
    );
    Some(Condition::new(true, "Overridden", message))
}

/// Returns the summary of a policy's conditions over all targets. A condition is true if it is true
/// at all targets. Otherwise its reason and message are those of the first target at which it is
/// false. If there are several targets, the message names this target. `Programmed` leaves out
/// overridden targets, unless all are overridden. A condition that some target lacks is left out.
pub fn summary<T: AsRef<str>>(of_targets: &[(T, Conditions)]) -> Conditions {
    let is_overridden = |c: &Conditions| is_true(c, Type::Overridden);
    let all_are = of_targets.iter().all(|(_, c)| is_overridden(c));
    let of_type = |of: Type| {
        let counts = |c: &Conditions| of != Type::Programmed || all_are || !is_overridden(c);
        let counted = of_targets.iter().filter(|(_, c)| counts(c));
        let all: Option<Vec<_>> = counted.map(|(t, c)| Some((t, c.get(&of)?))).collect();
        let all = all?;
        let (target, condition) = all.iter().find(|(_, c)| !c.status).or(all.first())?;
        let mut condition = Condition::clone(condition);
        if of_targets.len() > 1 && !condition.status {
            condition.message = format!("{}: {}", target.as_ref(), condition.message);
        }
        Some((of, condition))
    };
    Type::ALL.into_iter().filter_map(of_type).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use headgate_core::config::FilterConfig;

    use super::*;
    use crate::kubernetes::crd;
    use headgate_xds::OUTBOUND_SLOT;
    use headgate_xds::node::Identity;
    use headgate_xds::proxy::{Nack, Proxy, Push};
    use headgate_xds::snapshot::Assignment;
    use headgate_xds::tally::Tallies;

    /// Returns a proxy that should run version 2 of `default/search`.
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
            slot: None,
            connected: now,
            disconnected: None,
            version: Some("2".to_owned()),
            assignment: Arc::new(Assignment {
                config,
                ..Assignment::default()
            }),
            sent: None,
            acked: acked.map(push),
            nack: refused.map(|v| Nack {
                push: push(v),
                message: "why".into(),
            }),
        }
    }

    #[test]
    fn all_condition_types_are_listed_and_documented() {
        let error = serde_json::from_str::<Type>("\"\"")
            .unwrap_err()
            .to_string();
        // The text is such as: unknown variant ``, expected one of `accepted`, …
        let known: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
        let all = Type::ALL.map(|of| serde_json::to_value(of).unwrap());
        assert_eq!(all[..], known[..]);
        let definition = serde_json::to_value(crd::definition().unwrap()).unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let status = &schema["properties"]["status"]["properties"];
        let of_target = &status["ancestors"]["items"]["properties"]["conditions"];
        let of_condition = &of_target["items"]["properties"]["type"];
        for described in [&status["conditions"], of_target, of_condition] {
            let text = described["description"].as_str().unwrap();
            let is_missing = |of: &Type| !text.contains(&format!("`{}`", of.as_str()));
            let missing: Vec<Type> = Type::ALL.into_iter().filter(is_missing).collect();
            assert!(missing.is_empty(), "{missing:?} in {text:?}");
        }
    }

    fn of(policy: &str, proxies: &[Proxy]) -> Condition {
        let connected = proxies.iter().filter(|proxy| proxy.disconnected.is_none());
        let streams: Vec<_> = connected.cloned().map(Arc::new).collect();
        let mut tallies = Tallies::default();
        tallies.count(policy, &streams);
        programmed(&tallies.of_policy(policy))
    }

    #[test]
    fn reasons_follow_what_proxies_say() {
        // Each proxy has a connection of its own.
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
            let slot = Some(OUTBOUND_SLOT.to_owned());
            of(
                "default/search",
                &[proxy(Some("2"), None), Proxy { slot, ..calls }],
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
    fn an_object_without_a_reader_is_no_matter_to_connected_proxies() {
        let unread = Condition::new(false, "NoProxies", "delivered as ConfigMap a/o");
        let failed = Condition::new(false, "DeliveryFailed", "conflict");
        let runs = of("default/search", &[proxy(Some("2"), None)]);
        assert_eq!(together(1, runs.clone(), Some(&unread)), runs);
        assert_eq!(together(0, runs.clone(), Some(&unread)), unread);
        let said = together(1, runs, Some(&failed));
        assert_eq!(
            (said.status, said.reason.as_str()),
            (false, "DeliveryFailed")
        );
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
