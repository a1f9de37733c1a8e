//! One stream in Envoy, through proxy-wasm.

use std::time::Duration;

use headgate_core::http::{Level, Map, Property, Proxy, Stream, metadata};
use headgate_strategies::host::HostError;
use headgate_strategies::time::{Instant, nanos};

use crate::ffi;

/// The effective context with its number. The context is a stream or a root context. All calls
/// apply to the effective context, regardless of the number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effective(pub(crate) u32);

/// The path of the dynamic metadata. The elements of a property's path are separated by zero bytes.
const METADATA: &[u8] = b"metadata\0filter_metadata";

impl Proxy for Effective {
    fn now(&self) -> Result<Instant, HostError> {
        ffi::monotonic_time().map(|since: Duration| Instant::from_nanos(nanos(since)))
    }

    fn log(&self, level: Level, message: &str) {
        ffi::log(level, message);
    }
}

impl Stream for Effective {
    fn id(&self) -> u32 {
        self.0
    }

    fn headers(&self, map: Map) -> Result<Vec<u8>, HostError> {
        ffi::headers(map)
    }

    fn header(&self, map: Map, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        ffi::header(map as u32, name)
    }

    fn response_body(&self, each: &mut dyn FnMut(&[u8])) -> Result<(), HostError> {
        if let Some(bytes) = ffi::response_body()? {
            each(&bytes);
        }
        Ok(())
    }

    fn set_header(&self, map: Map, name: &str, value: &[u8]) -> Result<(), HostError> {
        ffi::set_header(map, name, value)
    }

    fn remove_header(&self, map: Map, name: &[u8]) -> Result<(), HostError> {
        ffi::remove_header(map, name)
    }

    fn clear_route_cache(&self) -> Result<(), HostError> {
        ffi::clear_route_cache()
    }

    fn property(&self, property: Property<'_>) -> Result<Option<Vec<u8>>, HostError> {
        match property {
            Property::RouteName => ffi::property(b"xds\0route_name"),
            Property::ClusterName => ffi::property(b"xds\0cluster_name"),
            Property::Metadata(path) => {
                let mut name = METADATA.to_vec();
                for part in path {
                    name.push(0);
                    name.extend_from_slice(part.as_bytes());
                }
                Ok(ffi::property(&name)?.and_then(metadata::text))
            }
            Property::DownstreamPeer => ffi::property(b"connection\0uri_san_peer_certificate"),
            Property::UpstreamPeer => ffi::property(b"upstream\0uri_san_peer_certificate"),
            Property::UpstreamAddress => ffi::property(b"upstream\0address"),
            Property::ResponseCodeDetails => ffi::property(b"response\0code_details"),
        }
    }
}
