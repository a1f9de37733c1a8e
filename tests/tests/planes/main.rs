//! Tests with other projects' programs. Control planes run on a Kubernetes node: they program the
//! proxies, and Headgate's operator writes the objects that they read. An endpoint picker is asked
//! by an Envoy with Headgate. The image's static binary is tested here, too, because the other
//! parts of `scripts/test` don't build it.

mod cluster;
mod envoy_gateway;
mod image;
mod istio;
mod older;
mod pages;
mod picker;
