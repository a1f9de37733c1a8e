//! Tests with the control planes that others wrote, on a Kubernetes node: they program the proxies, and Headgate's
//! operator writes the objects that they read.

mod cluster;
mod envoy_gateway;
