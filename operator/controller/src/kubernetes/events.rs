//! Events (`events.k8s.io`) on policies, for `kubectl describe` and `kubectl get events`.
//!
//! An Event reports a transition of a policy's status after the status was written, so a controller
//! that restarts or takes over doesn't report the transition again. Delivery is best effort. Events
//! are dropped while the queue is full, because a status must not wait for its Event.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::debug;

use super::CONTROLLER_NAME;
use super::resource::{AdmissionPolicyStatus, PolicyAncestorStatus};
use crate::conditions::Type;
use crate::metrics::{Metrics, WriteResult};
use headgate_api::{API_VERSION, KIND};
use headgate_deliver::cluster::ObjectKey;
use headgate_deliver::object::FIELD_MANAGER;
use headgate_xds::node::clip;

/// The capacity of the queue of Events.
pub const BACKLOG: usize = 4_096;
/// The longest note, in bytes. The API server accepts 1,024.
const MAX_NOTE: usize = 1_000;
/// The timeout of writing one Event.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// An Event about a policy.
pub type News = (ObjectReference, Event);

/// Returns Events for the reportable transitions from `old` to `new`, one for each reason.
pub fn transitions(old: Option<&AdmissionPolicyStatus>, new: &AdmissionPolicyStatus) -> Vec<Event> {
    let mut notes_by_reason: BTreeMap<(&str, &str, bool), Vec<String>> = BTreeMap::new();
    for entry in ours(new) {
        let before = old.and_then(|old| ours(old).find(|e| e.ancestor_ref == entry.ancestor_ref));
        for condition in &entry.conditions {
            let reason_before = before
                .and_then(|e| e.conditions.iter().find(|c| c.type_ == condition.type_))
                .map(|c| c.reason.as_str());
            if reason_before == Some(condition.reason.as_str())
                || !is_reported(&condition.type_, &condition.reason)
            {
                continue;
            }
            let target = &entry.ancestor_ref;
            let section = target.section_name.iter().map(|s| format!("/{s}"));
            let name = target.name.clone() + &section.collect::<String>();
            let note = format!("{} {name}: {}", target.kind, condition.message);
            let is_true = condition.status == "True";
            let key = (condition.type_.as_str(), condition.reason.as_str(), is_true);
            notes_by_reason.entry(key).or_default().push(note);
        }
    }
    notes_by_reason
        .into_iter()
        .map(|((_, reason, is_true), notes)| Event {
            type_: match is_true {
                true => EventType::Normal,
                false => EventType::Warning,
            },
            reason: reason.to_owned(),
            note: Some(clip(&notes.join("; "), MAX_NOTE)),
            action: "Reconcile".to_owned(),
            secondary: None,
        })
        .collect()
}

/// Returns an Event's reference to a policy.
pub fn reference(policy: ObjectKey, uid: String) -> ObjectReference {
    ObjectReference {
        api_version: Some(API_VERSION.to_owned()),
        kind: Some(KIND.to_owned()),
        namespace: Some(policy.namespace),
        name: Some(policy.name),
        uid: Some(uid),
        ..ObjectReference::default()
    }
}

fn ours(status: &AdmissionPolicyStatus) -> impl Iterator<Item = &PolicyAncestorStatus> {
    status
        .ancestors
        .iter()
        .filter(|e| e.controller_name == CONTROLLER_NAME)
}

/// Whether a reason is reported as an Event. A temporary state (`Pending`) isn't, and neither is a
/// reason that another condition already reports.
fn is_reported(type_: &str, reason: &str) -> bool {
    type_ != Type::Programmed.as_str()
        || matches!(reason, "Programmed" | "EnvoyRejected" | "DeliveryFailed")
}

/// Writes Events until all senders are dropped.
pub async fn publish(
    client: Client,
    instance: String,
    mut news: mpsc::Receiver<News>,
    metrics: Metrics,
) {
    let reporter = Reporter {
        controller: CONTROLLER_NAME.to_owned(),
        instance: Some(instance),
    };
    while let Some((policy, event)) = news.recv().await {
        // A recorder counts an Event with the reason of an earlier one as its repetition, and drops
        // the new note. So each Event has its own recorder.
        let recorder = Recorder::new(client.clone(), reporter.clone());
        let result = timeout(WRITE_TIMEOUT, recorder.publish(&event, &policy)).await;
        let result = match result {
            Ok(Ok(())) => WriteResult::Applied,
            Ok(Err(error)) => {
                debug!(field_manager = FIELD_MANAGER, "an Event was lost: {error}");
                WriteResult::Error
            }
            Err(_) => WriteResult::Error,
        };
        metrics.kubernetes.wrote("events", result);
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
    use k8s_openapi::jiff::Timestamp;

    use super::super::resource::AncestorReference;
    use super::*;
    use headgate_fakes::api_server;

    fn status(entries: &[(&str, &str, &str)]) -> AdmissionPolicyStatus {
        let condition = |of: Type, reason: &str| Condition {
            type_: of.as_str().to_owned(),
            status: match reason == of.as_str() {
                true => "True".to_owned(),
                false => "False".to_owned(),
            },
            reason: reason.to_owned(),
            message: "why".to_owned(),
            observed_generation: Some(1),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        };
        let ancestors = entries
            .iter()
            .map(|(name, accepted, programmed)| PolicyAncestorStatus {
                ancestor_ref: AncestorReference {
                    group: String::new(),
                    kind: "Service".to_owned(),
                    namespace: Some("a".to_owned()),
                    name: (*name).to_owned(),
                    section_name: None,
                },
                controller_name: CONTROLLER_NAME.to_owned(),
                conditions: vec![
                    condition(Type::Accepted, accepted),
                    condition(Type::Programmed, programmed),
                ],
            })
            .collect();
        AdmissionPolicyStatus {
            conditions: Vec::new(),
            ancestors,
        }
    }

    fn reported(
        old: Option<&AdmissionPolicyStatus>,
        new: &AdmissionPolicyStatus,
    ) -> Vec<(String, bool)> {
        transitions(old, new)
            .into_iter()
            .map(|e| (e.reason, e.type_ == EventType::Warning))
            .collect()
    }

    #[test]
    fn only_transitions_are_reported() {
        let pending = status(&[("s", "Accepted", "Pending")]);
        let done = status(&[("s", "Accepted", "Programmed")]);
        let refused = status(&[("s", "Accepted", "EnvoyRejected")]);
        let invalid = status(&[("s", "Invalid", "Invalid")]);
        let is = |reason: &str, warning| vec![(reason.to_owned(), warning)];
        assert_eq!(reported(None, &pending), is("Accepted", false));
        assert_eq!(reported(Some(&pending), &done), is("Programmed", false));
        assert_eq!(reported(Some(&done), &done), []);
        assert_eq!(reported(Some(&done), &pending), []);
        assert_eq!(reported(Some(&done), &refused), is("EnvoyRejected", true));
        assert_eq!(
            reported(Some(&done), &invalid),
            is("Invalid", true),
            "once, not for both conditions"
        );
    }

    #[tokio::test]
    async fn another_mistake_has_its_own_note() {
        let (posted, mut notes) = mpsc::unbounded_channel();
        let client = api_server(move |method, _, body| {
            posted.send((method.clone(), body["note"].clone())).unwrap();
            Some((201, body))
        });
        let (send, news) = mpsc::channel(2);
        for note in ["p50", "targetRefs"] {
            let event = Event {
                type_: EventType::Warning,
                reason: "Invalid".to_owned(),
                note: Some(note.to_owned()),
                action: "Reconcile".to_owned(),
                secondary: None,
            };
            let policy = reference(ObjectKey::new("a", "p"), "u".to_owned());
            send.send((policy, event)).await.unwrap();
        }
        drop(send);
        publish(client, "me".to_owned(), news, Metrics::new()).await;
        for note in ["p50", "targetRefs"] {
            assert_eq!(notes.recv().await, Some((Method::POST, note.into())));
        }
    }

    #[test]
    fn an_event_about_an_override_is_no_warning() {
        let done = status(&[("s", "Accepted", "Programmed")]);
        let mut overridden = status(&[("s", "Accepted", "Overridden")]);
        let entry = &mut overridden.ancestors[0];
        let condition = Condition {
            type_: Type::Overridden.as_str().to_owned(),
            status: "True".to_owned(),
            ..entry.conditions[1].clone()
        };
        entry.conditions.push(condition);
        let is = vec![("Overridden".to_owned(), false)];
        assert_eq!(reported(Some(&done), &overridden), is, "once");
        let over = reported(Some(&overridden), &done);
        assert_eq!(over, [("Programmed".to_owned(), false)]);
    }

    #[test]
    fn a_listener_is_named() {
        let mut new = status(&[("g", "Accepted", "Pending")]);
        new.ancestors[0].ancestor_ref.section_name = Some("web".to_owned());
        let note = transitions(None, &new)[0].note.clone();
        assert_eq!(note.unwrap(), "Service g/web: why");
    }

    #[test]
    fn targets_with_the_same_news_share_an_event() {
        let new = status(&[("s", "Accepted", "Pending"), ("t", "Accepted", "Pending")]);
        let events = transitions(None, &new);
        assert_eq!(events.len(), 1);
        let note = events[0].note.as_deref();
        assert_eq!(note, Some("Service s: why; Service t: why"));
    }
}
