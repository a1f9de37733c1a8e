//! Headgate's operator, as a library.
//!
//! A source turns `AdmissionPolicy` resources into a [`plan`](headgate_api::plan). It reads them
//! from a folder ([`source`]) or from a cluster ([`kubernetes`]). [`headgate_xds`] serves the plan
//! to Envoy, and [`headgate_deliver`] writes it into objects that other control planes read. The
//! state of both is in the policies' [`conditions`] and in the [`report`].

pub mod admin;
pub mod bootstrap;
pub mod conditions;
pub mod endpoint;
pub mod inject;
pub mod kubernetes;
pub mod metrics;
pub mod modules;
pub mod report;
pub mod source;
mod template;
