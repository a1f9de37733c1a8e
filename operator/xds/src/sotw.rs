//! The protocol's variant state of the world, in which every response carries all resources that
//! the stream has subscribed to.
//!
//! The rules, from the xDS protocol's specification:
//! - A request answers the response whose nonce it carries. A request with an older nonce is
//!   ignored, because a newer one repeats its content.
//! - `error_detail` is a NACK. The proxy keeps its previous version. The refused content isn't sent
//!   again until something changes, and a change back to the proxy's version needs no response.
//! - `version_info` in a stream's first request is the version that the proxy still runs after a
//!   reconnect. Versions are content hashes, so a restarted operator doesn't resend unchanged
//!   content.
//! - The list of names replaces the previous one. A new name gets a response even if the proxy had
//!   its content before, because the proxy may have dropped the content on unsubscribing.

use std::collections::BTreeSet;

use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};

use crate::ECDS_TYPE_URL;
use crate::digest::hash;
use crate::resource::Resource;

/// The largest number of resources that a stream may subscribe to. Envoy subscribes to one
/// resource, but the protocol allows more.
pub const MAX_NAMES: usize = 64;
/// The longest resource name, in bytes.
pub const MAX_NAME: usize = 256;

/// The resources that a stream should have now.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Offer {
    /// One resource for each subscribed slot of Headgate, ordered by name.
    pub resources: Vec<Resource>,
    /// Subscribed names that don't belong to Headgate.
    pub unknown: Vec<String>,
    /// The content hash of all of `resources`. Empty if there are none.
    pub version: String,
}

impl Offer {
    /// Returns an offer of these resources.
    #[must_use]
    pub fn new(resources: Vec<Resource>, unknown: Vec<String>) -> Self {
        let version = match resources.as_slice() {
            [] => String::new(),
            [one] => one.version.clone(),
            many => hash(
                many.iter()
                    .flat_map(|r| r.version.bytes())
                    .collect::<Vec<_>>()
                    .as_slice(),
            ),
        };
        Self {
            resources,
            unknown,
            version,
        }
    }
}

/// A request's answer to the previous response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The proxy runs this version. It accepted the response, or reported the version on
    /// connecting.
    Ack(String),
    /// The proxy refused this version and keeps the previous one.
    Nack {
        /// The refused version.
        version: String,
        /// Envoy's reason.
        message: String,
    },
}

/// The error of a stream that subscribes to more than a proxy can need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many resource names: at most {MAX_NAMES} of at most {MAX_NAME} bytes a stream")]
pub struct TooMany;

/// The state of one stream.
#[derive(Debug, Default)]
pub struct Sotw {
    /// Whether a request has been received.
    seen: bool,
    names: BTreeSet<String>,
    sent: Option<Sent>,
    /// The version that the proxy runs.
    held: Option<String>,
    /// The version that the proxy last refused.
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
        let names: BTreeSet<String> = requested.into_iter().collect();
        if self.seen && !names.is_subset(&self.names) {
            self.held = None;
            self.refused = None;
        }
        self.names = names;
    }

    /// Applies a request.
    ///
    /// # Errors
    /// Returns an error for more names than [`MAX_NAMES`], or for a name longer than [`MAX_NAME`].
    pub fn receive(&mut self, request: DiscoveryRequest) -> Result<Option<Verdict>, TooMany> {
        let names = &request.resource_names;
        if names.len() > MAX_NAMES || names.iter().any(|name| name.len() > MAX_NAME) {
            return Err(TooMany);
        }
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
            // A later request with this nonce only changes the names, regardless of the answer.
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

    /// Returns the subscribed names.
    #[must_use]
    pub fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// Whether a response is unanswered. Then nothing can be sent, and no [`Offer`] is needed.
    #[must_use]
    pub fn busy(&self) -> bool {
        self.sent.as_ref().is_some_and(|s| !s.answered)
    }

    /// Returns the response that brings the proxy from its state to `offer`, if one is due. `nonce`
    /// must be new on this stream.
    pub fn respond(&mut self, offer: &Offer, nonce: u64) -> Option<DiscoveryResponse> {
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

    /// Whether the proxy reports that it runs `offer`.
    #[must_use]
    pub fn holds(&self, offer: &Offer) -> bool {
        !offer.resources.is_empty() && self.held.as_deref() == Some(&offer.version)
    }

    /// Whether the proxy reports that it runs any resource.
    #[must_use]
    pub fn holds_any(&self) -> bool {
        self.held.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use envoy_types::pb::google::rpc::Status;
    use headgate_core::config::FilterConfig;

    use super::*;
    use crate::resource::Resource;

    fn offer(revision: &str, names: &[&str]) -> Offer {
        let config = FilterConfig {
            revision: revision.into(),
            ..FilterConfig::default()
        };
        let resource = |n: &&str| Resource::new(&config, n, Path::new("/m.wasm"));
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
