//! The outcome of deliveries, for the status of the policies in them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::adapter::Adapter;
use crate::cluster::ObjectKey;

/// The beginning of the message that Istio's agents can't load the module now. The reason follows.
pub const NO_FILTER: &str = "sidecars that start now have no filter";

/// The outcome of all deliveries, by policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Delivered {
    /// Whether the first round has ended. Before that, a missing delivery isn't a failure.
    pub complete: bool,
    /// Deliveries of each policy, by `namespace/name`, ordered by adapter and object.
    pub policies: BTreeMap<String, Vec<Delivery>>,
    /// The reason why Istio's agents can't load the module now, if they can't.
    pub unserved: Option<String>,
}

/// The outcome for one object that contains a policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Delivery {
    /// The adapter that wrote the object.
    pub adapter: Adapter,
    /// The object.
    pub object: ObjectKey,
    /// The outcome for the object.
    pub state: ObjectState,
}

/// The outcome for one object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectState {
    /// The object is as wanted. Its reader has accepted it or, like Istio, reports no acceptance.
    Delivered,
    /// The object is as wanted, but no proxy or Pod that reads it was observed.
    Unread,
    /// The object isn't delivered yet, for this reason. The write is retried.
    Pending(String),
    /// The object can't be delivered, or its reader refuses it. Contains the reason and the remedy.
    Failed(String),
}

impl Delivery {
    /// Returns the object's kind and key, such as `WasmPlugin shop/headgate-search-1a2b3c4d`.
    pub fn name(&self) -> String {
        format!("{} {}", self.adapter.kind(), self.object)
    }
}

impl Delivered {
    /// Returns status, reason and message of a policy's condition `Programmed`. `None` if no object
    /// delivers the policy.
    pub fn programmed(&self, policy: &str) -> Option<(bool, &'static str, String)> {
        let deliveries = self.policies.get(policy).filter(|d| !d.is_empty())?;
        let mut failed = Vec::new();
        let mut pending = Vec::new();
        for delivery in deliveries {
            match &delivery.state {
                ObjectState::Failed(why) => failed.push(format!("{}: {why}", delivery.name())),
                ObjectState::Pending(why) => pending.push(format!("{}: {why}", delivery.name())),
                ObjectState::Delivered | ObjectState::Unread => {}
            }
        }
        let (reason, lines) = match (failed.is_empty(), pending.is_empty()) {
            (false, _) => ("DeliveryFailed", failed),
            (true, false) => ("Pending", pending),
            (true, true) => {
                let names: Vec<String> = deliveries.iter().map(Delivery::name).collect();
                let mut text = format!("delivered as {}", shortened(&names));
                let is_loaded = |d: &Delivery| d.adapter.is_plugin();
                if let Some(why) = &self.unserved
                    && deliveries.iter().any(is_loaded)
                {
                    let _ = write!(text, "; {NO_FILTER}: {why}");
                }
                return Some(
                    match deliveries.iter().all(|d| d.state == ObjectState::Unread) {
                        false => (true, "Programmed", text),
                        true => (
                            false,
                            "NoProxies",
                            format!("{text}, {}", unread(deliveries)),
                        ),
                    },
                );
            }
        };
        Some((false, reason, shortened(&lines)))
    }
}

/// Returns a message about the readers that these objects lack, with the remedy.
fn unread(deliveries: &[Delivery]) -> String {
    let is_file = |d: &Delivery| d.adapter == Adapter::ConfigMap;
    let (reader, remedy) = match (
        deliveries.iter().all(is_file),
        deliveries.iter().any(is_file),
    ) {
        (true, _) => ("that mounts it", "mount it"),
        (false, true) => (
            "with a proxy of Istio that it selects, or that mounts the ConfigMap",
            "have a sidecar or mount it",
        ),
        (false, false) => ("with a proxy of Istio that it selects", "have a sidecar"),
    };
    format!("but no Pod was seen {reader}; check that the target's Pods run and {remedy}")
}

/// Returns the first three lines and the number of the others, because the length of a condition's
/// message is limited.
fn shortened(lines: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = lines.iter().take(SHOWN).cloned().collect::<Vec<_>>();
    match lines.len().saturating_sub(SHOWN) {
        0 => shown.join("; "),
        more => format!("{}; and {more} more", shown.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(states: &[ObjectState]) -> Delivered {
        let delivery = |(i, state): (usize, &ObjectState)| Delivery {
            adapter: Adapter::Istio,
            object: ObjectKey::new("a", format!("o{i}")),
            state: state.clone(),
        };
        let all = states.iter().enumerate().map(delivery).collect();
        Delivered {
            complete: true,
            policies: BTreeMap::from([("a/p".to_owned(), all)]),
            unserved: None,
        }
    }

    #[test]
    fn the_worst_state_of_an_object_is_reported() {
        let failed = || ObjectState::Failed("no".into());
        let pending = || ObjectState::Pending("soon".into());
        let said = |states: &[ObjectState]| delivered(states).programmed("a/p");
        assert_eq!(said(&[]), None);
        assert_eq!(delivered(&[failed()]).programmed("a/other"), None);
        assert_eq!(
            said(&[ObjectState::Delivered, pending(), failed()]),
            Some((false, "DeliveryFailed", "WasmPlugin a/o2: no".into()))
        );
        assert_eq!(
            said(&[ObjectState::Delivered, pending()]),
            Some((false, "Pending", "WasmPlugin a/o1: soon".into()))
        );
        let (status, reason, text) = said(&[ObjectState::Unread, ObjectState::Unread]).unwrap();
        assert_eq!((status, reason), (false, "NoProxies"));
        assert!(text.starts_with("delivered as WasmPlugin a/o0; WasmPlugin a/o1, but no Pod"));
        let mut of_file = delivered(&[ObjectState::Unread, ObjectState::Unread]);
        of_file.policies.get_mut("a/p").unwrap()[0].adapter = Adapter::ConfigMap;
        let (_, _, text) = of_file.programmed("a/p").unwrap();
        assert!(
            text.ends_with("run and have a sidecar or mount it"),
            "{text}"
        );
        let read_once = said(&[ObjectState::Unread, ObjectState::Delivered]).unwrap();
        assert_eq!((read_once.0, read_once.1), (true, "Programmed"));
        let (status, reason, text) = said(&vec![ObjectState::Delivered; 5]).unwrap();
        assert_eq!((status, reason), (true, "Programmed"));
        assert_eq!(
            text,
            "delivered as WasmPlugin a/o0; WasmPlugin a/o1; WasmPlugin a/o2; and 2 more"
        );
    }

    #[test]
    fn a_module_that_cannot_be_loaded_is_reported() {
        let mut delivered = delivered(&[ObjectState::Delivered]);
        delivered.unserved = Some("URL: answers 503".into());
        let text = "delivered as WasmPlugin a/o0; sidecars that start now have no filter: URL: \
                    answers 503";
        let said = (true, "Programmed", text.to_owned());
        assert_eq!(delivered.programmed("a/p"), Some(said));
        delivered.policies.get_mut("a/p").unwrap()[0].adapter = Adapter::ConfigMap;
        let (_, _, text) = delivered.programmed("a/p").unwrap();
        assert_eq!(text, "delivered as ConfigMap a/o0");
    }
}
