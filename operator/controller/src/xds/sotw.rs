//! State of the world: every response carries all resources that the stream has subscribed to.
//!
//! The rules, from the xDS protocol's specification:
//! - A request answers the response whose nonce it carries. A request with an older nonce is
//!   ignored, because a newer one repeats its content.
//! - `error_detail` is a NACK. The proxy keeps its previous version, so the same content isn't sent
//!   again until something changes; a change back to the proxy's version needs no response either.
//! - `version_info` in a stream's first request is the version that the proxy still runs after a
//!   reconnect. Versions are content hashes, so a restarted operator sends nothing needlessly.
//! - The list of names replaces the previous one. A name that is new in it gets a response even if
//!   the proxy had that content once: it may have dropped it when it unsubscribed.

use std::collections::BTreeSet;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};

use super::dialect::{Dialect, Offer, TooMany, Verdict, check_names};
use super::proxy::Variant;
use super::{DEFAULT_SLOT, ECDS_TYPE_URL};

/// A subscription to all resources.
pub(super) const WILDCARD: &str = "*";

/// The state of one stream.
#[derive(Debug, Default)]
pub struct Sotw {
    /// Whether a request has been received.
    seen: bool,
    /// Whether the stream has only ever sent empty lists of names, which subscribe to all
    /// resources.
    legacy_wildcard: bool,
    names: BTreeSet<String>,
    sent: Option<Sent>,
    /// The version that the proxy runs.
    held: Option<String>,
    /// The version that it last refused.
    refused: Option<String>,
}

#[derive(Debug)]
struct Sent {
    nonce: String,
    version: String,
    answered: bool,
}

impl Sotw {
    fn subscribe(&mut self, requested: Vec<String>) {
        self.legacy_wildcard = requested.is_empty() && (self.legacy_wildcard || !self.seen);
        let mut names: BTreeSet<String> = requested.into_iter().collect();
        if names.remove(WILDCARD) || self.legacy_wildcard {
            names.insert(DEFAULT_SLOT.to_owned());
        }
        if self.seen && !names.is_subset(&self.names) {
            self.held = None;
            self.refused = None;
        }
        self.names = names;
    }
}

impl Dialect for Sotw {
    type Request = DiscoveryRequest;
    type Response = DiscoveryResponse;
    const VARIANT: Variant = Variant::StateOfTheWorld;

    fn node(request: &DiscoveryRequest) -> Option<&Node> {
        request.node.as_ref()
    }

    fn type_url(request: &DiscoveryRequest) -> &str {
        &request.type_url
    }

    fn receive(&mut self, request: DiscoveryRequest) -> Result<Option<Verdict>, TooMany> {
        check_names(&request.resource_names)?;
        if !self.seen {
            self.held = Some(request.version_info).filter(|v| !v.is_empty());
            self.subscribe(request.resource_names);
            self.seen = true;
            return Ok(None);
        }
        if request.response_nonce.is_empty() {
            self.subscribe(request.resource_names);
            return Ok(None);
        }
        let Some(sent) = self
            .sent
            .as_mut()
            .filter(|s| s.nonce == request.response_nonce)
        else {
            return Ok(None);
        };
        let first_answer = !std::mem::replace(&mut sent.answered, true);
        let version = sent.version.clone();
        let verdict = match request.error_detail {
            Some(status) => {
                self.refused = Some(version.clone());
                Some(Verdict::Nack {
                    version,
                    message: status.message,
                })
            }
            // A later request with this nonce only changes names, whatever the answer was.
            None if first_answer => {
                self.held = Some(version.clone());
                self.refused = None;
                Some(Verdict::Ack(version))
            }
            None => None,
        };
        self.subscribe(request.resource_names);
        Ok(verdict)
    }

    fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    fn busy(&self) -> bool {
        self.sent.as_ref().is_some_and(|s| !s.answered)
    }

    fn respond(&mut self, offer: &Offer, nonce: u64) -> Option<DiscoveryResponse> {
        let known = |version: &Option<String>| version.as_deref() == Some(&offer.version);
        if self.busy() || offer.resources.is_empty() || known(&self.held) || known(&self.refused) {
            return None;
        }
        let nonce = nonce.to_string();
        self.sent = Some(Sent {
            nonce: nonce.clone(),
            version: offer.version.clone(),
            answered: false,
        });
        Some(DiscoveryResponse {
            version_info: offer.version.clone(),
            resources: offer.resources.iter().map(|r| r.any.clone()).collect(),
            type_url: ECDS_TYPE_URL.to_owned(),
            nonce,
            ..DiscoveryResponse::default()
        })
    }

    fn holds(&self, offer: &Offer) -> bool {
        !offer.resources.is_empty() && self.held.as_deref() == Some(&offer.version)
    }

    fn holds_any(&self) -> bool {
        self.held.is_some()
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

    fn offer(revision: &str, names: &[&str]) -> Offer {
        let config = FilterConfig {
            revision: revision.into(),
            ..FilterConfig::default()
        };
        let resource = |n: &&str| Arc::new(Resource::new(&config, n, Path::new("/m.wasm")));
        Offer::new(names.iter().map(resource).collect(), Vec::new())
    }

    fn request(names: &[&str], version: &str, nonce: &str) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: version.into(),
            resource_names: names.iter().map(ToString::to_string).collect(),
            response_nonce: nonce.into(),
            ..DiscoveryRequest::default()
        }
    }

    fn nack(names: &[&str], nonce: &str) -> DiscoveryRequest {
        let error_detail = Some(Status {
            code: 13,
            message: "no".into(),
            ..Status::default()
        });
        DiscoveryRequest {
            error_detail,
            ..request(names, "", nonce)
        }
    }

    /// Returns a stream that was sent `offer` as nonce 1.
    fn sent(offer: &Offer) -> Sotw {
        let mut s = Sotw::default();
        assert_eq!(s.receive(request(&["headgate"], "", "")), Ok(None));
        let response = s.respond(offer, 1).unwrap();
        assert_eq!(
            (response.nonce.as_str(), &response.version_info),
            ("1", &offer.version)
        );
        s
    }

    #[test]
    fn one_response_until_it_is_answered() {
        let (one, two) = (offer("1", &["headgate"]), offer("2", &["headgate"]));
        let mut s = sent(&one);
        assert!(s.busy());
        assert_eq!(s.respond(&two, 2), None);
        let ack = s.receive(request(&["headgate"], &one.version, "1"));
        assert_eq!(ack, Ok(Some(Verdict::Ack(one.version.clone()))));
        assert!(s.holds(&one));
        assert_eq!(s.respond(&one, 2), None);
        assert_eq!(s.respond(&two, 2).unwrap().version_info, two.version);
    }

    #[test]
    fn a_refused_version_is_not_sent_again() {
        let (one, two, three) = (
            offer("1", &["headgate"]),
            offer("2", &["headgate"]),
            offer("3", &["headgate"]),
        );
        let mut s = sent(&one);
        s.receive(request(&["headgate"], &one.version, "1"))
            .unwrap();
        s.respond(&two, 2).unwrap();
        let verdict = s.receive(nack(&["headgate"], "2")).unwrap();
        assert_eq!(
            verdict,
            Some(Verdict::Nack {
                version: two.version.clone(),
                message: "no".into()
            })
        );
        assert_eq!(s.respond(&two, 3), None, "refused");
        assert_eq!(s.respond(&one, 3), None, "the proxy still runs it");
        assert!(s.holds(&one) && !s.holds(&two));
        assert!(s.respond(&three, 3).is_some());
    }

    #[test]
    fn a_request_after_a_nack_with_its_nonce_is_no_ack() {
        let one = offer("1", &["headgate"]);
        let mut s = sent(&one);
        s.receive(nack(&["headgate"], "1")).unwrap();
        assert_eq!(s.receive(request(&["headgate"], "", "1")), Ok(None));
        assert!(!s.holds(&one));
        assert_eq!(s.respond(&one, 2), None);
    }

    #[test]
    fn stale_nonces_are_ignored() {
        let (one, two) = (offer("1", &["headgate"]), offer("2", &["headgate"]));
        let mut s = sent(&one);
        s.receive(request(&["headgate"], &one.version, "1"))
            .unwrap();
        s.respond(&two, 2).unwrap();
        assert_eq!(s.receive(nack(&[], "1")), Ok(None));
        assert!(s.busy());
        assert_eq!(s.names().len(), 1, "its names are not taken either");
    }

    #[test]
    fn what_the_proxy_runs_from_before_a_reconnect_is_not_sent() {
        let (one, two) = (offer("1", &["headgate"]), offer("2", &["headgate"]));
        let mut s = Sotw::default();
        s.receive(request(&["headgate"], &one.version, "9"))
            .unwrap();
        assert!(s.holds(&one));
        assert_eq!(s.respond(&one, 1), None);
        assert!(s.respond(&two, 1).is_some());
    }

    #[test]
    fn a_new_name_is_answered_and_so_is_one_that_comes_back() {
        let one = offer("1", &["headgate"]);
        let both = offer("1", &["headgate", "headgate-b"]);
        let mut s = sent(&one);
        s.receive(request(&["headgate"], &one.version, "1"))
            .unwrap();
        s.receive(request(&["headgate", "headgate-b"], &one.version, "1"))
            .unwrap();
        assert_eq!(s.respond(&both, 2).unwrap().resources.len(), 2);
        s.receive(request(&["headgate", "headgate-b"], &both.version, "2"))
            .unwrap();
        s.receive(request(&[], &both.version, "2")).unwrap();
        assert!(s.names().is_empty());
        s.receive(request(&["headgate", "headgate-b"], &both.version, "2"))
            .unwrap();
        assert!(s.respond(&both, 3).is_some());
    }

    #[test]
    fn wildcards_ask_for_the_default_slot() {
        for names in [&[][..], &["*"][..]] {
            let mut s = Sotw::default();
            s.receive(request(names, "", "")).unwrap();
            assert_eq!(s.names().iter().collect::<Vec<_>>(), ["headgate"]);
        }
    }

    #[test]
    fn subscriptions_are_bounded() {
        let many: Vec<String> = (0..65).map(|i| i.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(
            Sotw::default().receive(request(&many, "", "")),
            Err(TooMany)
        );
        assert_eq!(
            Sotw::default().receive(request(&[&"x".repeat(257)], "", "")),
            Err(TooMany)
        );
    }
}
