//! `AdmissionPolicy` from what users write to what proxies get.
//!
//! A policy has the shape of [`AdmissionPolicy`], becomes one without mistakes ([`validate`]), then
//! part of the filter configuration of its workloads ([`compile`]). A [`plan`] says which proxy
//! gets which configuration, and what became of each policy. Nothing here does I/O.

pub mod compile;
pub mod plan;
mod types;
pub mod validate;

pub use types::*;
