//! Tests on a Kubernetes node with Pods.

mod operator;
mod pages;
mod smoke;
