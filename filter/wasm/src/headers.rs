//! Request headers as the host hands them over, read in place.
//!
//! The serialized map is a number of pairs, their lengths, then names and values with a zero byte after
//! each, all lengths 32-bit little-endian. One pass finds what every request is asked for; other names
//! are looked up when a rule wants them.

use std::cell::OnceCell;
use std::ops::Range;

use headgate_core::classify::RequestView;

use crate::ffi;

/// The headers of one request.
pub(crate) struct Headers {
    bytes: Vec<u8>,
    path: Range<usize>,
    method: Range<usize>,
    upgrade: bool,
    timeout: bool,
    route_name: OnceCell<Option<Vec<u8>>>,
}

/// Headers in which a request states its own deadline.
pub(crate) const TIMEOUTS: [&str; 3] = [
    "x-headgate-timeout-ms",
    "grpc-timeout",
    "x-envoy-expected-rq-timeout-ms",
];

impl Headers {
    /// Never fails: what can't be read is absent.
    pub(crate) fn parse(bytes: Vec<u8>) -> Self {
        let mut this = Self {
            path: 0..0,
            method: 0..0,
            upgrade: false,
            timeout: false,
            route_name: OnceCell::new(),
            bytes: Vec::new(),
        };
        for (name, value) in pairs(&bytes) {
            match &bytes[name] {
                b":path" => this.path = value,
                b":method" => this.method = value,
                b"upgrade" => this.upgrade = true,
                name if TIMEOUTS.iter().any(|t| t.as_bytes() == name) => this.timeout = true,
                _ => {}
            }
        }
        this.bytes = bytes;
        this
    }

    /// Whether the connection becomes something else than a request and its response.
    pub(crate) fn is_upgrade(&self) -> bool {
        self.upgrade || &self.bytes[self.method.clone()] == b"CONNECT"
    }

    /// Whether any of [`TIMEOUTS`] is there.
    pub(crate) fn has_timeout(&self) -> bool {
        self.timeout
    }
}

impl RequestView for Headers {
    fn path(&self) -> Option<&[u8]> {
        Some(&self.bytes[self.path.clone()]).filter(|path| !path.is_empty())
    }

    fn method(&self) -> Option<&[u8]> {
        Some(&self.bytes[self.method.clone()]).filter(|method| !method.is_empty())
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        pairs(&self.bytes)
            .find(|(n, _)| &self.bytes[n.clone()] == name.as_bytes())
            .map(|(_, value)| &self.bytes[value])
    }

    fn route_name(&self) -> Option<&[u8]> {
        let read = || ffi::property(b"xds\0route_name").unwrap_or_default();
        self.route_name.get_or_init(read).as_deref()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(word)).ok()
}

/// Names and values as ranges of `bytes`; stops at the first pair that doesn't fit.
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

/// Serializes `pairs` into `out`, for a response.
pub(crate) fn serialize<'a>(
    pairs: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    out: &mut Vec<u8>,
) {
    let length = |s: &str| u32::try_from(s.len()).unwrap_or(0).to_le_bytes();
    out.clear();
    out.extend(
        u32::try_from(pairs.clone().count())
            .unwrap_or(0)
            .to_le_bytes(),
    );
    for (name, value) in pairs.clone() {
        out.extend(length(name));
        out.extend(length(value));
    }
    for (name, value) in pairs {
        out.extend(name.as_bytes());
        out.push(0);
        out.extend(value.as_bytes());
        out.push(0);
    }
}
