//! The place of an Envoy's admin interface.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use headgate_controller::endpoint::Endpoint;

/// The place of an Envoy's admin interface: a given address, or a Pod that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A TCP address.
    Tcp(Endpoint),
    /// A Unix domain socket; Envoy calls it a pipe.
    Unix(PathBuf),
    /// A port of a Pod, which may listen on the Pod's loopback address only.
    Pod {
        /// The Pod's namespace.
        namespace: String,
        /// The Pod's name.
        name: String,
        /// Port of the admin interface.
        port: u16,
    },
}

/// A text that names no admin interface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no admin address; write HOST:PORT, such as 127.0.0.1:9901, or unix:/PATH")]
pub struct ParsePlaceError(String);

impl FromStr for Place {
    type Err = ParsePlaceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("unix:") {
            Some("") => Err(ParsePlaceError(text.to_owned())),
            Some(path) => Ok(Self::Unix(PathBuf::from(path))),
            None => {
                let endpoint = text.parse().map_err(|_| ParsePlaceError(text.to_owned()))?;
                Ok(Self::Tcp(endpoint))
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(endpoint) => endpoint.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Pod {
                namespace, name, ..
            } => write!(f, "{namespace}/{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_back_what_they_print() {
        for text in [
            "127.0.0.1:9901",
            "[::1]:9901",
            "envoy:9901",
            "unix:/run/envoy.sock",
        ] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        for text in ["", "9901", "unix:", "/run/envoy.sock", "a:b"] {
            let error = text.parse::<Place>().unwrap_err().to_string();
            assert!(error.ends_with("or unix:/PATH"), "{error}");
        }
    }
}
