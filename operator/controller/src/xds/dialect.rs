//! The common interface of the two xDS protocol variants, as used by a stream.

use std::collections::BTreeSet;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Node;

use super::proxy::Variant;
use super::resource::{Resource, hash};

/// The most resources that one stream may name. A proxy has one for each listener that Headgate
/// protects.
pub const MAX_NAMES: usize = 64;
/// The longest resource name, in bytes.
pub const MAX_NAME: usize = 256;

/// The resources that a stream should have now.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Offer {
    /// One for each subscribed name that is Headgate's, ordered by name.
    pub resources: Vec<Arc<Resource>>,
    /// Subscribed names that are not Headgate's.
    pub unknown: Vec<String>,
    /// The content hash of all of `resources`; empty if there are none.
    pub version: String,
}

impl Offer {
    /// Returns an offer of these resources.
    #[must_use]
    pub fn new(resources: Vec<Arc<Resource>>, unknown: Vec<String>) -> Self {
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

/// The answer in a request to the previous response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The proxy runs this version: it accepted the response, or reported the version on
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

/// One protocol variant's state for one stream. It tracks one resource type only: Headgate has no
/// other.
pub trait Dialect: Default + Send + 'static {
    /// The type of a request.
    type Request: Send + 'static;
    /// The type of a response.
    type Response: Send + 'static;
    /// State of the world or delta.
    const VARIANT: Variant;

    /// Returns the node, which a proxy sends in its first request only.
    fn node(request: &Self::Request) -> Option<&Node>;

    /// Returns the type that the request is about; it may be empty on a stream of one type.
    fn type_url(request: &Self::Request) -> &str;

    /// Applies a request for our type.
    ///
    /// # Errors
    /// More names than [`MAX_NAMES`] or a name longer than [`MAX_NAME`].
    fn receive(&mut self, request: Self::Request) -> Result<Option<Verdict>, TooMany>;

    /// Returns the subscribed names.
    fn names(&self) -> &BTreeSet<String>;

    /// Whether a response is unanswered, so that nothing can be sent and no [`Offer`] is needed.
    fn busy(&self) -> bool;

    /// Returns the response that brings the proxy from its state to `offer`, if one is due. `nonce`
    /// must be new on this stream.
    fn respond(&mut self, offer: &Offer, nonce: u64) -> Option<Self::Response>;

    /// Whether the proxy has all of `offer`, by its own account.
    fn holds(&self, offer: &Offer) -> bool;

    /// Whether the proxy has any resource, by its own account.
    fn holds_any(&self) -> bool;
}

/// A stream subscribes to more than a proxy can need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many resource names: at most {MAX_NAMES} of at most {MAX_NAME} bytes a stream")]
pub struct TooMany;

/// Checks a proxy's names before they are kept.
pub(super) fn check_names<'a>(names: impl IntoIterator<Item = &'a String>) -> Result<(), TooMany> {
    for (i, name) in names.into_iter().enumerate() {
        if i >= MAX_NAMES || name.len() > MAX_NAME {
            return Err(TooMany);
        }
    }
    Ok(())
}
