//! The filter's handling of requests and responses, for any proxy.
//!
//! ```text
//! Envoy ─► host (Wasm, native) ─► Inbound ─► Filter ─► Engine
//! ```
//!
//! An [`Inbound`] is one request to the process behind the proxy. It follows Envoy's callbacks,
//! from request headers to the end of the stream. [`Filter`] is the state that all streams share:
//! the engine, and the rules for Headgate's headers. A host translates callbacks into calls of
//! these two types, implements [`Stream`], and executes the results. The results are a
//! [`LocalReply`], and the actions for held requests ([`Filter::actions`]).
//!
//! A local reply and a resumption are results rather than calls of [`Stream`]. Envoy may execute
//! either of them immediately and run this stream's response callbacks inside the call. The filter
//! would then still be borrowed, or its lock held.

pub mod answer;
mod filter;
mod headers;
mod inbound;
mod listeners;
pub mod metadata;
mod reply;
#[cfg(test)]
mod tests;
mod tokens;

pub use filter::Filter;
pub use headers::{Headers, header, serialize, values};
pub use inbound::Inbound;
pub use listeners::Listeners;
pub use reply::{BY_RATE, LocalReply, REFUSED};

use headgate_strategies::host::HostError;
use headgate_strategies::time::Instant;

use crate::beside::Beside;
use crate::decision::{Refusal, Ticket};
use crate::host::Host;

/// The severity of a line in the proxy's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// `info`.
    Info,
    /// `warning`.
    Warn,
    /// `error`.
    Error,
}

/// The proxy, apart from any stream.
pub trait Proxy {
    /// Returns the time of a monotonic clock that is the same for all workers of the process.
    ///
    /// # Errors
    /// [`HostError::Call`] when the clock can't be read.
    fn now(&self) -> Result<Instant, HostError>;

    /// Writes a line to the proxy's log. A line that can't be written is lost.
    fn log(&self, level: Level, message: &str);
}

/// A property of a stream that isn't a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property<'a> {
    /// Name of the route that was selected.
    RouteName,
    /// Name of the route's cluster.
    ClusterName,
    /// A string or a whole number in dynamic metadata, as text. Its path is the namespace of the
    /// filter that wrote the value, followed by keys.
    Metadata(&'a [String]),
    /// SPIFFE id in the client's certificate.
    DownstreamPeer,
    /// SPIFFE id in the server's certificate.
    UpstreamPeer,
    /// Address of the server. Absent before the upstream connection exists.
    UpstreamAddress,
    /// The response code details (`%RESPONSE_CODE_DETAILS%`).
    ResponseCodeDetails,
}

/// The headers or the trailers of a stream, with their numbers in both of Envoy's ABIs
/// (`WasmHeaderMapType`, `envoy_dynamic_module_type_http_header_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Map {
    /// The request's headers.
    Request = 0,
    /// The response's headers.
    Response = 2,
    /// The response's trailers.
    ResponseTrailers = 3,
}

/// One stream in the proxy, as a filter reads and changes it. Names of headers are in lower case.
///
/// All calls fail with [`HostError::Call`] when the proxy refuses.
#[allow(clippy::missing_errors_doc)] // see above
pub trait Stream: Proxy {
    /// Returns the stream's number, unique among the open streams.
    fn id(&self) -> u32;

    /// Returns the name of the stream's listener, as passed to [`Filter::configure`].
    fn listener(&self) -> &str {
        ""
    }

    /// Returns all headers of `map`, in the format that [`Headers`] reads. This takes one call and
    /// one allocation for all headers, instead of one per header.
    fn headers(&self, map: Map) -> Result<Vec<u8>, HostError>;

    /// Returns the first value of a header.
    fn header(&self, map: Map, name: &str) -> Result<Option<Vec<u8>>, HostError>;

    /// Calls `each` with the bytes, in slices, of the part of the response's body that has just
    /// arrived.
    fn response_body(&self, each: &mut dyn FnMut(&[u8])) -> Result<(), HostError>;

    /// Sets a header, and removes all others of that name.
    fn set_header(&self, map: Map, name: &str, value: &[u8]) -> Result<(), HostError>;

    /// Removes all headers of this name, if any.
    fn remove_header(&self, map: Map, name: &[u8]) -> Result<(), HostError>;

    /// Makes the proxy select the stream's route again, by the current headers, when the proxy next
    /// needs the route.
    fn clear_route_cache(&self) -> Result<(), HostError>;

    /// Returns a property, or `None` if it is absent.
    fn property(&self, property: Property<'_>) -> Result<Option<Vec<u8>>, HostError>;
}

/// The trust in a request's Headgate headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    /// Whether [`BesideHttp::strip`] must remove headers before the application sees the request.
    pub strip: bool,
    /// Whether the sender is a trusted proxy, which gets the request's times in the response.
    pub by_peer: bool,
}

/// The part of [`Beside`] that reads and writes headers. Every function does nothing by default.
///
/// Most functions need the engine and the host as well, so they take the [`Filter`] instead of
/// `self`.
#[allow(unused_variables)]
pub trait BesideHttp: Beside {
    /// Sets headers on the response to a refused request.
    fn announce(&mut self, refusal: &Refusal, set: impl FnMut(&'static str, &str)) {}

    /// Returns how far an arriving request's Headgate headers are trusted, and hides untrusted ones
    /// from all rules.
    fn standing<H: Host>(
        filter: &Filter<H, Self>,
        headers: &mut Headers<'_, impl Stream>,
    ) -> Standing {
        Standing::default()
    }

    /// Removes Headgate's headers from a request before the application sees it.
    fn strip<H: Host, S: Stream>(
        filter: &mut Filter<H, Self>,
        stream: &S,
        headers: &Headers<'_, S>,
    ) {
    }

    /// Sets headers of a request that goes to the backend. `headers` is `None` for a request that
    /// was held, because its copy of the headers is gone.
    fn goes_on<H: Host, S: Stream>(
        filter: &mut Filter<H, Self>,
        stream: &S,
        ticket: Ticket,
        headers: Option<&Headers<'_, S>>,
    ) {
    }

    /// Handles the headers of the response to a request.
    fn answers<H: Host>(
        filter: &mut Filter<H, Self>,
        stream: &impl Stream,
        ticket: Ticket,
        by_peer: bool,
    ) {
    }

    /// Handles the end of the stream of a request.
    fn ends<H: Host>(filter: &mut Filter<H, Self>, stream: &impl Stream) {}
}

impl BesideHttp for () {}
