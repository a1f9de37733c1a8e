//! Tests with the programs of other projects. Control planes run on a Kubernetes node and program
//! the proxies, and Headgate's operator writes the objects that the control planes read. An
//! endpoint picker is called by an Envoy with Headgate. The image's static binary is tested here,
//! too, because the other parts of `scripts/test` don't build it.

mod cluster;
mod envoy_gateway;
mod image;
mod istio;
mod older;
mod pages;
mod picker;
