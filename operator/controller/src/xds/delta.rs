//! Delta: each resource has its own version, and a response carries only the differences.
//!
//! The rules, from the xDS protocol's specification:
//! - Subscriptions are changes, valid whatever nonce the request carries. A second subscription to
//!   a name requests it again. A name that doesn't exist is answered with its removal.
//! - `initial_resource_versions`, in a stream's first request, lists what the proxy still runs
//!   after a reconnect; these versions aren't sent again.
//! - A NACK refuses the whole response. Its content isn't sent again until it changes.

use std::collections::{BTreeMap, BTreeSet};

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource as DeltaResource,
};

use super::dialect::{Dialect, MAX_NAMES, Offer, TooMany, Verdict, check_names};
use super::proxy::Variant;
use super::sotw::WILDCARD;
use super::{DEFAULT_SLOT, ECDS_TYPE_URL};

/// The state of one stream.
#[derive(Debug, Default)]
pub struct Delta {
    /// Whether a request has been received.
    seen: bool,
    wildcard: bool,
    /// Names with an explicit subscription.
    named: BTreeSet<String>,
    /// `named`, and the default slot if there is a wildcard.
    names: BTreeSet<String>,
    /// The version of each resource that the proxy runs.
    held: BTreeMap<String, String>,
    /// The version of each resource that the proxy last refused.
    refused: BTreeMap<String, String>,
    /// Names whose removal the proxy has accepted.
    gone: BTreeSet<String>,
    /// The unanswered response.
    sent: Option<Sent>,
}

#[derive(Debug)]
struct Sent {
    nonce: String,
    /// The version of the whole offer.
    version: String,
    resources: BTreeMap<String, String>,
    removed: Vec<String>,
}

impl Delta {
    fn answer(&mut self, request: &DeltaDiscoveryRequest) -> Option<Verdict> {
        let sent = self.sent.take_if(|s| s.nonce == request.response_nonce)?;
        self.gone.extend(
            sent.removed
                .iter()
                .filter(|n| self.named.contains(*n))
                .cloned(),
        );
        for name in &sent.removed {
            self.held.remove(name);
        }
        match &request.error_detail {
            Some(status) => {
                self.refused.extend(sent.resources);
                Some(Verdict::Nack {
                    version: sent.version,
                    message: status.message.clone(),
                })
            }
            None => {
                self.refused
                    .retain(|name, _| !sent.resources.contains_key(name));
                self.held.extend(sent.resources);
                Some(Verdict::Ack(sent.version))
            }
        }
    }

    /// Forgets the state of `name`, so that it is sent (again).
    fn forget(&mut self, name: &str) {
        self.held.remove(name);
        self.refused.remove(name);
        self.gone.remove(name);
        if let Some(sent) = &mut self.sent {
            sent.resources.remove(name);
        }
    }

    fn subscribe(&mut self, subscribe: Vec<String>, unsubscribe: Vec<String>) {
        for name in subscribe {
            if self.seen {
                self.forget(if name == WILDCARD {
                    DEFAULT_SLOT
                } else {
                    &name
                });
            }
            if name == WILDCARD {
                self.wildcard = true;
            } else {
                self.named.insert(name);
            }
        }
        for name in unsubscribe {
            if name == WILDCARD {
                self.wildcard = false;
            }
            self.named.remove(&name);
        }
        self.names = self.named.clone();
        if self.wildcard {
            self.names.insert(DEFAULT_SLOT.to_owned());
        }
        let dropped: Vec<String> = self
            .held
            .keys()
            .chain(self.refused.keys())
            .chain(&self.gone)
            .filter(|n| !self.names.contains(*n) && !self.wildcard)
            .cloned()
            .collect();
        for name in dropped {
            self.forget(&name);
        }
    }
}

impl Dialect for Delta {
    type Request = DeltaDiscoveryRequest;
    type Response = DeltaDiscoveryResponse;
    const VARIANT: Variant = Variant::Delta;

    fn node(request: &DeltaDiscoveryRequest) -> Option<&Node> {
        request.node.as_ref()
    }

    fn type_url(request: &DeltaDiscoveryRequest) -> &str {
        &request.type_url
    }

    fn receive(&mut self, request: DeltaDiscoveryRequest) -> Result<Option<Verdict>, TooMany> {
        check_names(&request.resource_names_subscribe)?;
        check_names(request.initial_resource_versions.keys())?;
        let verdict = self.answer(&request);
        if !self.seen {
            self.wildcard = request.resource_names_subscribe.is_empty();
            self.held = request.initial_resource_versions.into_iter().collect();
        }
        self.subscribe(
            request.resource_names_subscribe,
            request.resource_names_unsubscribe,
        );
        self.seen = true;
        if self.names.len() > MAX_NAMES {
            return Err(TooMany);
        }
        Ok(verdict)
    }

    fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    fn busy(&self) -> bool {
        self.sent.is_some()
    }

    fn respond(&mut self, offer: &Offer, nonce: u64) -> Option<DeltaDiscoveryResponse> {
        if self.busy() {
            return None;
        }
        let due: Vec<_> = offer
            .resources
            .iter()
            .filter(|r| {
                self.held.get(&r.name) != Some(&r.version)
                    && self.refused.get(&r.name) != Some(&r.version)
            })
            .collect();
        let offered = |name: &String| offer.resources.iter().any(|r| r.name == *name);
        let removed: Vec<String> = offer
            .unknown
            .iter()
            .chain(
                self.held
                    .keys()
                    .filter(|n| !offered(n) && !offer.unknown.contains(n)),
            )
            .filter(|n| !self.gone.contains(*n))
            .cloned()
            .collect();
        if due.is_empty() && removed.is_empty() {
            return None;
        }
        let nonce = nonce.to_string();
        self.sent = Some(Sent {
            nonce: nonce.clone(),
            version: offer.version.clone(),
            resources: due
                .iter()
                .map(|r| (r.name.clone(), r.version.clone()))
                .collect(),
            removed: removed.clone(),
        });
        Some(DeltaDiscoveryResponse {
            system_version_info: offer.version.clone(),
            resources: due
                .into_iter()
                .map(|r| DeltaResource {
                    name: r.name.clone(),
                    version: r.version.clone(),
                    resource: Some(r.any.clone()),
                    ..DeltaResource::default()
                })
                .collect(),
            type_url: ECDS_TYPE_URL.to_owned(),
            removed_resources: removed,
            nonce,
            ..DeltaDiscoveryResponse::default()
        })
    }

    fn holds(&self, offer: &Offer) -> bool {
        !offer.resources.is_empty()
            && offer
                .resources
                .iter()
                .all(|r| self.held.get(&r.name) == Some(&r.version))
    }

    fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use envoy_types::pb::google::rpc::Status;
    use headgate_core::config::FilterConfig;

    use super::super::resource::Resource;
    use super::*;

    fn offer(revision: &str, names: &[&str], unknown: &[&str]) -> Offer {
        let config = FilterConfig {
            revision: revision.into(),
            ..FilterConfig::default()
        };
        let resource = |n: &&str| Arc::new(Resource::new(&config, n, Path::new("/m.wasm")));
        let unknown = unknown.iter().map(ToString::to_string).collect();
        Offer::new(names.iter().map(resource).collect(), unknown)
    }

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn subscribe(names: &[&str]) -> DeltaDiscoveryRequest {
        DeltaDiscoveryRequest {
            resource_names_subscribe: strings(names),
            ..Default::default()
        }
    }

    fn unsubscribe(names: &[&str]) -> DeltaDiscoveryRequest {
        DeltaDiscoveryRequest {
            resource_names_unsubscribe: strings(names),
            ..Default::default()
        }
    }

    fn answer(nonce: u64, error: Option<&str>) -> DeltaDiscoveryRequest {
        DeltaDiscoveryRequest {
            response_nonce: nonce.to_string(),
            error_detail: error.map(|m| Status {
                message: m.into(),
                ..Status::default()
            }),
            ..Default::default()
        }
    }

    fn names(response: &DeltaDiscoveryResponse) -> Vec<&str> {
        response.resources.iter().map(|r| r.name.as_str()).collect()
    }

    #[test]
    fn only_what_differs_is_sent() {
        let mut d = Delta::default();
        d.receive(subscribe(&["headgate"])).unwrap();
        let one = offer("1", &["headgate"], &[]);
        assert_eq!(names(&d.respond(&one, 1).unwrap()), ["headgate"]);
        assert_eq!(
            d.respond(&offer("2", &["headgate"], &[]), 2),
            None,
            "one at a time"
        );
        assert_eq!(
            d.receive(answer(1, None)),
            Ok(Some(Verdict::Ack(one.version.clone())))
        );
        assert!(d.holds(&one));
        d.receive(subscribe(&["headgate-b"])).unwrap();
        let both = offer("1", &["headgate", "headgate-b"], &[]);
        assert_eq!(names(&d.respond(&both, 2).unwrap()), ["headgate-b"]);
    }

    #[test]
    fn a_refused_resource_is_not_sent_again() {
        let mut d = Delta::default();
        d.receive(subscribe(&["headgate"])).unwrap();
        let (one, two) = (
            offer("1", &["headgate"], &[]),
            offer("2", &["headgate"], &[]),
        );
        d.respond(&one, 1).unwrap();
        let verdict = d.receive(answer(1, Some("no"))).unwrap();
        assert_eq!(
            verdict,
            Some(Verdict::Nack {
                version: one.version.clone(),
                message: "no".into()
            })
        );
        assert_eq!(d.respond(&one, 2), None);
        assert!(d.respond(&two, 2).is_some());
        d.receive(answer(2, None)).unwrap();
        assert!(
            d.respond(&one, 3).is_some(),
            "a change makes it worth another try"
        );
    }

    #[test]
    fn what_the_proxy_runs_from_before_a_reconnect_is_not_sent() {
        let one = offer("1", &["headgate"], &[]);
        let mut request = subscribe(&["headgate"]);
        request
            .initial_resource_versions
            .insert("headgate".into(), one.version.clone());
        let mut d = Delta::default();
        d.receive(request).unwrap();
        assert!(d.holds(&one));
        assert_eq!(d.respond(&one, 1), None);
        assert!(d.respond(&offer("2", &["headgate"], &[]), 1).is_some());
    }

    #[test]
    fn subscribing_again_asks_again_even_while_a_response_is_under_way() {
        let one = offer("1", &["headgate"], &[]);
        let mut d = Delta::default();
        d.receive(subscribe(&["headgate"])).unwrap();
        d.respond(&one, 1).unwrap();
        d.receive(unsubscribe(&["headgate"])).unwrap();
        d.receive(subscribe(&["headgate"])).unwrap();
        assert!(d.busy());
        d.receive(answer(1, None)).unwrap();
        assert!(d.respond(&one, 2).is_some());
    }

    #[test]
    fn unknown_names_are_answered_with_their_removal_once() {
        let mut d = Delta::default();
        d.receive(subscribe(&["lua"])).unwrap();
        let none = offer("1", &[], &["lua"]);
        assert_eq!(d.respond(&none, 1).unwrap().removed_resources, ["lua"]);
        d.receive(answer(1, None)).unwrap();
        assert_eq!(d.respond(&none, 2), None);
        assert!(!d.holds(&none));
    }

    #[test]
    fn stale_answers_are_ignored() {
        let mut d = Delta::default();
        d.receive(subscribe(&["headgate"])).unwrap();
        d.respond(&offer("1", &["headgate"], &[]), 7).unwrap();
        assert_eq!(d.receive(answer(6, Some("old"))), Ok(None));
        assert!(d.busy());
    }

    #[test]
    fn wildcards_ask_for_the_default_slot() {
        for request in [subscribe(&[]), subscribe(&["*"])] {
            let mut d = Delta::default();
            d.receive(request).unwrap();
            assert_eq!(d.names().iter().collect::<Vec<_>>(), ["headgate"]);
            d.receive(unsubscribe(&["*"])).unwrap();
            assert!(d.names().is_empty());
        }
    }

    #[test]
    fn memory_does_not_grow_with_names_that_come_and_go() {
        let mut d = Delta::default();
        d.receive(subscribe(&["headgate"])).unwrap();
        for i in 0..1_000 {
            let name = format!("x{i}");
            d.receive(subscribe(&[&name])).unwrap();
            d.respond(&offer("1", &[], &[&name]), i).unwrap();
            d.receive(answer(i, None)).unwrap();
            d.receive(unsubscribe(&[&name])).unwrap();
        }
        assert!(d.held.len() + d.refused.len() + d.gone.len() + d.names.len() < 4);
    }
}
