//! Tests against a Kubernetes API server, and of the chart.
//!
//! Each module expects a process of its own, which `scripts/test kube` gives it: an API server that
//! its tests share, and no other operator.

mod chart;
mod check;
mod cli;
mod controller;
mod crd;
mod dashboards;
mod deliver;
mod examples;
mod faults;
mod helm_chart;
mod injection;
mod namespaces;
mod pages;
mod permissions;
mod selected;
mod smoke;
mod tokens;
