//! Tests on a Kubernetes node with Pods.

mod operator;
mod smoke;
