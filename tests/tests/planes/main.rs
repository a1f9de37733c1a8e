//! Tests with the control planes of other projects, on a Kubernetes node: they program the proxies,
//! and Headgate's operator writes the objects that they read.

mod cluster;
mod envoy_gateway;
mod istio;
mod older;
mod pages;
