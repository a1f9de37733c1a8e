//! A backend whose queue can be watched, an open-loop load generator, the processes of a running system (Envoy,
//! `headgate`), and the demo that is made of them.
//!
//! A result about latency is worth no more than the clock and the load behind it, so both halves report their own
//! errors: the backend how late its service times ended ([`backend::BackendStats::late_ms`]), the generator how late
//! it sent ([`load::LoadReport::lateness_ms`]).
//!
//! The demo is built from nothing by people who want to see Headgate, so this crate knows `headgate` as a program
//! only, and neither Kubernetes nor xDS.

pub mod backend;
pub mod bootstrap;
pub mod clock;
pub mod demo;
pub mod envoy;
pub mod headgate;
pub mod http;
pub mod lab;
pub mod load;
pub mod mix;
pub mod native_filters;
pub mod policy;
pub mod process;
pub mod quantiles;
pub mod rig;
pub mod skip;
pub mod table;
pub mod wait;
