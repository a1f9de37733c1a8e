//! `HOST:PORT`, the form of endpoints on the command line.

use std::fmt;
use std::net::{Ipv6Addr, UdpSocket};
use std::str::FromStr;

use serde::Serialize;

/// The name of the two loopback addresses, IPv4 and IPv6.
pub const LOCALHOST: &str = "localhost";

/// A host and a port, as in `127.0.0.1:8080`, `[::1]:8080` or `backend:8080`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// An address, or a name that DNS resolves.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Endpoint {
    /// Returns the endpoint in the form that Envoy accepts on this machine. An Envoy on a machine
    /// without IPv6 refuses a configuration with any IPv6 address.
    pub fn on_this_machine(&self) -> Self {
        match UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)) {
            Ok(_) => self.clone(),
            Err(_) => self.without_ipv6(),
        }
    }

    fn without_ipv6(&self) -> Self {
        let host = match self.host.as_str() {
            "::" => "0.0.0.0",
            LOCALHOST => "127.0.0.1",
            host => host,
        };
        Self {
            host: host.to_owned(),
            port: self.port,
        }
    }
}

/// The error for a text that isn't `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address; write HOST:PORT, such as 127.0.0.1:8080")]
pub struct ParseEndpointError(String);

impl FromStr for Endpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseEndpointError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let port = port.parse().map_err(|_| error())?;
        let (bare, is_v6) = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            Some(bare) => (bare, true),
            None => (host, false),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let host = match is_v6 {
            // Envoy compares addresses in certificates as text in this form.
            true => bare.parse().ok().map(|v6: Ipv6Addr| v6.to_string()),
            false => (!bare.is_empty() && bare.chars().all(plain)).then(|| bare.to_owned()),
        };
        host.map(|host| Self { host, port }).ok_or_else(error)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_ipv6_both_families_are_one() {
        for (text, expected) in [
            ("[::]:1", "0.0.0.0:1"),
            ("localhost:2", "127.0.0.1:2"),
            ("[fd00::1]:3", "[fd00::1]:3"),
            ("search.shop.svc:4", "search.shop.svc:4"),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.without_ipv6().to_string(), expected);
        }
    }

    #[test]
    fn endpoints_read_back_what_they_print() {
        for text in ["127.0.0.1:80", "[::1]:8080", "backend.svc:9"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        let long: Endpoint = "[FD00:0::0001]:1".parse().unwrap();
        assert_eq!(long.to_string(), "[fd00::1]:1");
        for text in [
            "",
            "80",
            "host",
            "host:",
            ":80",
            "::1:80",
            "[x]:80",
            "host:70000",
            "a b:1",
            "a{:1",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(
                error.ends_with("write HOST:PORT, such as 127.0.0.1:8080"),
                "{error}"
            );
        }
    }
}
