//! What the two xDS protocol variants have in common, seen from a stream.

use std::collections::BTreeSet;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Node;

use super::proxy::Variant;
use super::resource::{Resource, hash};

/// Most resources one stream may name. A proxy has one a listener that Headgate protects.
pub const MAX_NAMES: usize = 64;
/// Longest resource name, in bytes.
pub const MAX_NAME: usize = 256;

/// The resources that a stream should have now.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Offer {
    /// One for each name subscribed that is Headgate's, ordered by name.
    pub resources: Vec<Arc<Resource>>,
    /// Names subscribed that are not Headgate's.
    pub unknown: Vec<String>,
    /// Content hash of all of `resources`; empty when there are none.
    pub version: String,
}

impl Offer {
    /// An offer of these resources.
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

/// What a request said about the response before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The proxy runs this version: it accepted the response, or said so when it connected.
    Ack(String),
    /// The proxy refused this version and keeps the one before.
    Nack {
        /// The refused version.
        version: String,
        /// Envoy's reason.
        message: String,
    },
}

/// One protocol variant's state for one stream. Only one resource type is tracked: Headgate has no
/// other.
pub trait Dialect: Default + Send + 'static {
    /// What a proxy sends.
    type Request: Send + 'static;
    /// What it is sent.
    type Response: Send + 'static;
    /// State of the world or delta.
    const VARIANT: Variant;

    /// The node, which a proxy sends in the first message only.
    fn node(request: &Self::Request) -> Option<&Node>;

    /// The type that the request is about; may be empty on a stream of one type.
    fn type_url(request: &Self::Request) -> &str;

    /// Takes in a request for our type.
    ///
    /// # Errors
    /// More names than [`MAX_NAMES`] or a name longer than [`MAX_NAME`].
    fn receive(&mut self, request: Self::Request) -> Result<Option<Verdict>, TooMany>;

    /// Names subscribed.
    fn names(&self) -> &BTreeSet<String>;

    /// Whether a response is unanswered, so that nothing can be sent and an [`Offer`] needn't be
    /// made.
    fn busy(&self) -> bool;

    /// The response that takes the proxy from what it has to `offer`, if one is due. `nonce` must
    /// be new on this stream.
    fn respond(&mut self, offer: &Offer, nonce: u64) -> Option<Self::Response>;

    /// Whether the proxy already has all of `offer`, by its own account.
    fn holds(&self, offer: &Offer) -> bool;

    /// Whether the proxy runs anything, by its own account.
    fn holds_any(&self) -> bool;
}

/// A stream subscribes to more than a proxy can need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many resource names: at most {MAX_NAMES} of at most {MAX_NAME} bytes a stream")]
pub struct TooMany;

/// Checks names that arrive from a proxy before they are kept.
pub(super) fn check_names<'a>(names: impl IntoIterator<Item = &'a String>) -> Result<(), TooMany> {
    for (i, name) in names.into_iter().enumerate() {
        if i >= MAX_NAMES || name.len() > MAX_NAME {
            return Err(TooMany);
        }
    }
    Ok(())
}
