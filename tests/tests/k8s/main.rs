//! Tests against a Kubernetes API server, and of the chart.
//!
//! Each module expects an API server that only its own tests share, and no other operator. So
//! `scripts/test kube` runs each module in a process of its own.

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
