//! The protocol's variant state of the world, on a stream that subscribes to one resource.
//!
//! Envoy opens a stream for each name of a slot, which listeners with the same slot share, and
//! refuses a response with any other number of resources than one. When the last of these listeners
//! is removed, Envoy sends a request without names just before it resets the stream.
//!
//! The rules, from the xDS protocol's specification:
//! - A request answers the response whose nonce it carries. A request with an older nonce is
//!   ignored, because a newer one repeats its content.
//! - `error_detail` is a NACK. The proxy keeps its previous version. The refused content isn't sent
//!   again until something changes, and a change back to the proxy's version needs no response.
//! - `version_info` in a stream's first request is the version that the proxy still runs after a
//!   reconnect. Versions are content hashes, so a restarted operator doesn't resend unchanged
//!   content.

use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};

use crate::ECDS_TYPE_URL;
use crate::resource::Resource;

/// The longest resource name, in bytes.
const MAX_NAME: usize = 256;

/// A request's answer to the previous response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The proxy accepted this version.
    Ack(String),
    /// The proxy refused this version and keeps the previous one.
    Nack {
        /// The refused version.
        version: String,
        /// Envoy's reason.
        message: String,
    },
}

/// The error of a request that doesn't name the stream's only resource.
const WRONG_NAMES: &str = "resource_names: each request of a stream names the same resource, and \
                           no other, in at most 256 bytes";

/// The state of one stream.
#[derive(Debug)]
pub(crate) struct Sotw {
    /// The name of the resource.
    name: String,
    /// The response that isn't answered yet.
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
}

impl Sotw {
    /// Returns the state after a stream's first request.
    ///
    /// # Errors
    /// Returns an error unless the request names one resource, in at most [`MAX_NAME`] bytes.
    pub(crate) fn new(first: DiscoveryRequest) -> Result<Self, &'static str> {
        let [name] = <[String; 1]>::try_from(first.resource_names).map_err(|_| WRONG_NAMES)?;
        if name.len() > MAX_NAME {
            return Err(WRONG_NAMES);
        }
        Ok(Self {
            name,
            sent: None,
            held: Some(first.version_info).filter(|version| !version.is_empty()),
            refused: None,
        })
    }

    /// Applies a later request.
    ///
    /// # Errors
    /// Returns an error unless the request names the stream's resource.
    pub(crate) fn receive(
        &mut self,
        request: DiscoveryRequest,
    ) -> Result<Option<Verdict>, &'static str> {
        if request.resource_names != [self.name.as_str()] {
            return Err(WRONG_NAMES);
        }
        let answered = self.sent.take_if(|s| s.nonce == request.response_nonce);
        let Some(Sent { version, .. }) = answered else {
            return Ok(None);
        };
        if let Some(status) = request.error_detail {
            self.refused = Some(version.clone());
            let message = status.message;
            return Ok(Some(Verdict::Nack { version, message }));
        }
        self.held = Some(version.clone());
        self.refused = None;
        Ok(Some(Verdict::Ack(version)))
    }

    /// Returns the name of the resource.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a response is unanswered. Then nothing can be sent.
    pub(crate) fn busy(&self) -> bool {
        self.sent.is_some()
    }

    /// Returns the response that brings the proxy from its state to `resource`, if one is due.
    /// `nonce` must be new on this stream.
    pub(crate) fn respond(&mut self, resource: &Resource, nonce: u64) -> Option<DiscoveryResponse> {
        let known = |version: &Option<String>| version.as_ref() == Some(&resource.version);
        if self.busy() || known(&self.held) || known(&self.refused) {
            return None;
        }
        let nonce = nonce.to_string();
        self.sent = Some(Sent {
            nonce: nonce.clone(),
            version: resource.version.clone(),
        });
        Some(DiscoveryResponse {
            version_info: resource.version.clone(),
            resources: vec![resource.any.clone()],
            type_url: ECDS_TYPE_URL.to_owned(),
            nonce,
            ..DiscoveryResponse::default()
        })
    }

    /// Whether the proxy reports that it runs `resource`.
    pub(crate) fn holds(&self, resource: &Resource) -> bool {
        self.held.as_ref() == Some(&resource.version)
    }

    /// Whether the proxy reports that it runs any version.
    pub(crate) fn holds_any(&self) -> bool {
        self.held.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use envoy_types::pb::google::rpc::Status;
    use headgate_core::config::FilterConfig;

    use super::*;

    const NAME: &str = "headgate";

    fn resource(revision: &str) -> Resource {
        let config = FilterConfig {
            revision: revision.into(),
            ..FilterConfig::default()
        };
        Resource::new(&config, NAME, Path::new("/m.wasm"))
    }

    fn request(names: &[&str], version: &str, nonce: &str) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: version.into(),
            resource_names: names.iter().map(ToString::to_string).collect(),
            response_nonce: nonce.into(),
            ..DiscoveryRequest::default()
        }
    }

    fn nack(nonce: &str) -> DiscoveryRequest {
        let error_detail = Some(Status {
            code: 13,
            message: "no".into(),
            ..Status::default()
        });
        DiscoveryRequest {
            error_detail,
            ..request(&[NAME], "", nonce)
        }
    }

    /// Returns a stream that was sent `resource` as nonce 1.
    fn sent(resource: &Resource) -> Sotw {
        let mut s = Sotw::new(request(&[NAME], "", "")).unwrap();
        let response = s.respond(resource, 1).unwrap();
        assert_eq!(
            (response.nonce.as_str(), &response.version_info),
            ("1", &resource.version)
        );
        s
    }

    #[test]
    fn one_response_until_it_is_answered() {
        let (one, two) = (resource("1"), resource("2"));
        let mut s = sent(&one);
        assert!(s.busy());
        assert_eq!(s.respond(&two, 2), None);
        let ack = s.receive(request(&[NAME], &one.version, "1"));
        assert_eq!(ack, Ok(Some(Verdict::Ack(one.version.clone()))));
        assert!(s.holds(&one));
        assert_eq!(s.respond(&one, 2), None);
        let response = s.respond(&two, 2).unwrap();
        assert_eq!(response.version_info, two.version);
        assert_eq!(response.resources, [two.any]);
    }

    #[test]
    fn a_refused_version_is_not_sent_again() {
        let (one, two, three) = (resource("1"), resource("2"), resource("3"));
        let mut s = sent(&one);
        s.receive(request(&[NAME], &one.version, "1")).unwrap();
        s.respond(&two, 2).unwrap();
        let verdict = s.receive(nack("2")).unwrap();
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
        let one = resource("1");
        let mut s = sent(&one);
        s.receive(nack("1")).unwrap();
        assert_eq!(s.receive(request(&[NAME], "", "1")), Ok(None));
        assert!(!s.holds(&one));
        assert_eq!(s.respond(&one, 2), None);
    }

    #[test]
    fn stale_nonces_are_ignored() {
        let (one, two) = (resource("1"), resource("2"));
        let mut s = sent(&one);
        s.receive(request(&[NAME], &one.version, "1")).unwrap();
        s.respond(&two, 2).unwrap();
        assert_eq!(s.receive(nack("1")), Ok(None));
        assert_eq!(s.receive(request(&[NAME], "", "")), Ok(None));
        assert!(s.busy());
    }

    #[test]
    fn a_configuration_from_before_a_reconnect_is_not_sent_again() {
        let (one, two) = (resource("1"), resource("2"));
        let mut s = Sotw::new(request(&[NAME], &one.version, "9")).unwrap();
        assert!(s.holds(&one));
        assert_eq!(s.respond(&one, 1), None);
        assert!(s.respond(&two, 1).is_some());
    }

    #[test]
    fn a_stream_is_for_one_resource() {
        let long = "x".repeat(257);
        for names in [&[][..], &[NAME, "headgate-b"], &[&long]] {
            let refused = Sotw::new(request(names, "", "")).unwrap_err();
            assert_eq!(refused, WRONG_NAMES, "{names:?}");
        }
        for names in [&[][..], &[NAME, "headgate-b"], &["headgate-b"]] {
            let mut s = sent(&resource("1"));
            let refused = s.receive(request(names, "", "1"));
            assert_eq!(refused, Err(WRONG_NAMES), "{names:?}");
        }
    }
}
