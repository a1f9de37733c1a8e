//! A policy's `Programmed` condition: what the proxies that should enforce it say about it.

use serde::{Deserialize, Serialize};

use super::tally::{Rejection, Tally};

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
/// `Pending` (none has answered), `EnvoyRejected` (one refused the newest version), `NoProxies`.
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
            "no connected proxy stands for its target",
        ),
        (r, t) if r == t => Condition::new(true, "Programmed", share),
        (0, _) => Condition::new(false, "Pending", share),
        _ => Condition::new(false, "PartiallyProgrammed", share),
    }
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
