//! `AdmissionPolicy`, from the user's YAML to the proxies' configuration.
//!
//! A policy is read as an [`AdmissionPolicy`], checked ([`validate`]), and compiled into the filter
//! configuration of its workloads ([`compile`]). A [`plan`] contains the configuration of each
//! proxy and the state of each policy. Nothing here does I/O.

pub mod compile;
pub mod plan;
mod slots;
mod target;
mod types;
pub mod validate;

pub use types::*;
