//! Headgate's behaviour between processes. It consists of workflows across a mesh ([`workflows`]),
//! the sender's side of class admission ([`headgate_admission`]), and smoothing of calls to
//! services that refuse requests ([`smoothing`]).
//!
//! A [`Mesh`] contains workflows, class admission and smoothing for one engine of `headgate-core`.
//! The engine uses the mesh only as a [`Beside`](headgate_core::beside::Beside). The inbound side
//! of a sidecar reads a request's workflow, sender and progress, and answers with the rate that the
//! sender may use. The outbound side ([`Outbound`]) finds the request that caused a call. It passes
//! the request's workflow, deadline, class and progress on, and records the answer.

mod beside;
mod channels;
pub mod engine;
mod http;
#[cfg(test)]
#[path = "../../core/tests/memory/mod.rs"]
mod memory;
mod shared;
pub mod smoothing;
pub mod workflow;
pub mod workflows;

pub use engine::Mesh;
pub use http::{Outbound, report, reported, send};

/// An engine with workflows, class admission and smoothing.
pub type Engine = headgate_core::engine::Engine<Mesh>;
/// A filter with workflows, class admission and smoothing.
pub type Filter<H> = headgate_core::http::Filter<H, Mesh>;
