//! Headers in the serialized form of a host, read in place.
//!
//! The serialized map has proxy-wasm's format: the number of pairs, the lengths of names and
//! values, then the names and values with a zero byte after each. The number and all lengths are
//! 32-bit little-endian. One pass finds the headers that every request needs. Other names are
//! looked up when a rule uses them.
//!
//! Sidecars exchange data in Headgate's own headers. If an untrusted client sends such headers,
//! [`Headers::disown`] hides them, so that no rule can match them.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ops::Range;

use headgate_strategies::host::HostError;

use crate::classify::{RequestView, retries};
use crate::config::ATTEMPT_HEADERS;
use crate::deadline;

use super::{Map, Property, Stream};

/// The headers of one request, and the properties of its stream that rules use, read on demand.
#[derive(Debug)]
pub struct Headers<'a, S> {
    stream: &'a S,
    bytes: Vec<u8>,
    path: Range<usize>,
    method: Range<usize>,
    upgrade: bool,
    timeout: bool,
    attempt: bool,
    /// Whether any name starts with [`OURS`].
    ours: bool,
    disowned: bool,
    route_name: OnceCell<Option<Vec<u8>>>,
    peer: OnceCell<Option<Vec<u8>>>,
}

/// The prefix of Headgate's own headers.
const OURS: &[u8] = b"x-headgate-";

/// The kind of connection upgrade that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upgrade {
    /// Another protocol, such as WebSocket.
    Protocol,
    /// A tunnel.
    Tunnel,
}

impl Upgrade {
    /// Whether the response's status shows that the upgrade happened. The backend may also ignore
    /// the upgrade request.
    pub(super) fn happened(self, status: &[u8]) -> bool {
        match self {
            Self::Protocol => status == b"101",
            Self::Tunnel => status.len() == 3 && status.starts_with(b"2"),
        }
    }
}

impl<'a, S: Stream> Headers<'a, S> {
    /// Returns the headers of the request of `stream`. Headers that can't be read count as absent.
    ///
    /// # Errors
    /// [`HostError`] of [`Stream::request_headers`].
    pub fn of_request(stream: &'a S) -> Result<Self, HostError> {
        Ok(Self::parse(stream, stream.headers(Map::Request)?))
    }

    fn parse(stream: &'a S, bytes: Vec<u8>) -> Self {
        let mut this = Self {
            stream,
            path: 0..0,
            method: 0..0,
            upgrade: false,
            timeout: false,
            attempt: false,
            ours: false,
            disowned: false,
            route_name: OnceCell::new(),
            peer: OnceCell::new(),
            bytes: Vec::new(),
        };
        for (name, value) in pairs(&bytes) {
            let name = &bytes[name];
            this.ours |= name.starts_with(OURS);
            match name {
                b":path" => this.path = value,
                b":method" => this.method = value,
                b"upgrade" => this.upgrade = true,
                name if deadline::HEADERS.iter().any(|t| t.as_bytes() == name) => {
                    this.timeout = true;
                }
                name if ATTEMPT_HEADERS.iter().any(|(a, _)| a.as_bytes() == name) => {
                    this.attempt = true;
                }
                _ => {}
            }
        }
        this.bytes = bytes;
        this
    }

    /// Returns the kind of upgrade that the request asks for, if any.
    pub(super) fn upgrade(&self) -> Option<Upgrade> {
        match &self.bytes[self.method.clone()] {
            b"CONNECT" => Some(Upgrade::Tunnel),
            _ => self.upgrade.then_some(Upgrade::Protocol),
        }
    }

    /// Whether any of [`deadline::HEADERS`] is present.
    pub(super) fn has_timeout(&self) -> bool {
        self.timeout
    }

    /// Whether any of Headgate's own headers is present.
    pub fn any_of_ours(&self) -> bool {
        self.ours
    }

    /// Hides Headgate's own headers from the rules.
    pub fn disown(&mut self) {
        self.disowned = true;
    }

    /// Whether Headgate's own headers are hidden.
    pub fn is_disowned(&self) -> bool {
        self.disowned
    }

    /// Yields the names of Headgate's own headers, even if they are hidden.
    pub fn ours(&self) -> impl Iterator<Item = &[u8]> {
        let names = pairs(&self.bytes).take_while(|_| self.ours);
        let names = names.map(|(name, _)| &self.bytes[name]);
        names.filter(|name| name.starts_with(OURS))
    }

    fn property(&self, property: Property<'_>) -> Option<Vec<u8>> {
        self.stream.property(property).unwrap_or_default()
    }
}

impl<S: Stream> RequestView for Headers<'_, S> {
    fn path(&self) -> Option<&[u8]> {
        Some(&self.bytes[self.path.clone()]).filter(|path| !path.is_empty())
    }

    fn method(&self) -> Option<&[u8]> {
        Some(&self.bytes[self.method.clone()]).filter(|method| !method.is_empty())
    }

    fn is_retry(&self) -> bool {
        self.attempt && retries::is_retry(self)
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        if self.disowned && name.as_bytes().starts_with(OURS) {
            return None;
        }
        // Envoy has the host as HTTP/2's pseudo-header, whichever version the client uses.
        let name = match name {
            "host" => ":authority",
            name => name,
        };
        header(&self.bytes, name)
    }

    fn values(&self, name: &'static str) -> impl Iterator<Item = &[u8]> {
        values(&self.bytes, name)
    }

    fn route_name(&self) -> Option<&[u8]> {
        let read = || self.property(Property::RouteName);
        self.route_name.get_or_init(read).as_deref()
    }

    fn listener(&self) -> &str {
        self.stream.listener()
    }

    fn metadata(&self, path: &[String]) -> Option<Cow<'_, [u8]>> {
        self.property(Property::Metadata(path)).map(Cow::Owned)
    }

    fn peer(&self) -> Option<Cow<'_, [u8]>> {
        let read = || self.property(Property::DownstreamPeer);
        let peer = self.peer.get_or_init(read).as_deref();
        peer.filter(|id| !id.is_empty()).map(Cow::Borrowed)
    }
}

/// Yields the values of a header in serialized headers, by its lower case name. Headers that can't
/// be read count as absent.
pub fn values<'a>(bytes: &'a [u8], name: &str) -> impl Iterator<Item = &'a [u8]> {
    pairs(bytes)
        .filter(move |(n, _)| &bytes[n.clone()] == name.as_bytes())
        .map(move |(_, value)| &bytes[value])
}

/// Returns the first of the [`values`] of a header.
pub fn header<'a>(bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
    values(bytes, name).next()
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(word)).ok()
}

/// Yields names and values as ranges of `bytes`. Stops at the first pair that doesn't fit into
/// `bytes`.
fn pairs(bytes: &[u8]) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + '_ {
    let count = word(bytes, 0).unwrap_or(0);
    let mut at = count.saturating_mul(8).saturating_add(4);
    (0..count).map_while(move |i| {
        let (name, value) = (word(bytes, 4 + 8 * i)?, word(bytes, 8 + 8 * i)?);
        let name = at..at.checked_add(name)?;
        let value = (name.end + 1)..name.end.checked_add(1)?.checked_add(value)?;
        at = value.end.checked_add(1)?;
        (value.end <= bytes.len()).then_some((name, value))
    })
}

/// Serializes the headers `pairs` into `out`.
pub fn serialize<'a, T: AsRef<[u8]> + ?Sized + 'a>(
    pairs: impl Iterator<Item = (&'a T, &'a T)> + Clone,
    out: &mut Vec<u8>,
) {
    let length = |n: usize| u32::try_from(n).unwrap_or(0).to_le_bytes();
    out.clear();
    out.extend(length(pairs.clone().count()));
    for (name, value) in pairs.clone() {
        out.extend(length(name.as_ref().len()));
        out.extend(length(value.as_ref().len()));
    }
    for (name, value) in pairs {
        out.extend(name.as_ref());
        out.push(0);
        out.extend(value.as_ref());
        out.push(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStream;

    #[test]
    fn headers_of_a_stranger_are_hidden() {
        let stream = MemoryStream::of(&[
            (":path", "/a"),
            ("x-headgate-process", "0"),
            ("x-headgate-cost", "7"),
            ("grpc-timeout", "1S"),
            ("x-headgat", "is another's"),
        ]);
        let mut headers = Headers::of_request(&stream).unwrap();
        assert!(headers.any_of_ours() && headers.has_timeout());
        let ours = [&b"x-headgate-process"[..], b"x-headgate-cost"];
        assert!(headers.ours().eq(ours));
        assert_eq!(headers.header("x-headgate-cost"), Some(&b"7"[..]));
        headers.disown();
        assert_eq!(headers.header("x-headgate-cost"), None);
        assert_eq!(headers.header("grpc-timeout"), Some(&b"1S"[..]));
        assert!(headers.ours().eq(ours));
    }

    #[test]
    fn the_host_is_a_header_in_each_version_of_http() {
        let stream = MemoryStream::of(&[(":path", "/a"), (":authority", "example.com")]);
        let headers = Headers::of_request(&stream).unwrap();
        assert_eq!(headers.header("host"), Some(&b"example.com"[..]));
    }

    #[test]
    fn any_bytes_cause_no_panic() {
        let stream = MemoryStream::of(&[]);
        let mut bytes = Vec::new();
        serialize(
            [("a", "b"), ("x-headgate-rate", "c")].into_iter(),
            &mut bytes,
        );
        for cut in 0..bytes.len() {
            let headers = Headers::parse(&stream, bytes[..cut].to_vec());
            assert_eq!(headers.path(), None);
        }
        for count in [2, 3, 1 << 16, u32::MAX] {
            bytes[..4].copy_from_slice(&count.to_le_bytes());
            let headers = Headers::parse(&stream, bytes.clone());
            assert_eq!(headers.values("baggage").count(), 0);
        }
    }
}
