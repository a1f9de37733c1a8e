//! Headgate's admission engine: all decisions, without input or output. It classifies a request,
//! decides on it, queues it, dispatches it to a slot and measures it. Its algorithms are in
//! [`headgate_strategies`].
//!
//! The same code runs in Envoy (as a WebAssembly module with one instance per worker thread, or as
//! a native module with one instance per process), in the simulator and in the tests. So it reads
//! no clock, has no randomness of its own, and depends on neither proxy-wasm nor Kubernetes. Time
//! and random numbers are arguments. State that several workers share is behind [`host::Host`], and
//! a stream of the proxy is behind [`http::Stream`]. Behaviour between processes is in another
//! crate, behind [`beside::Beside`].
//!
//! Points 1, 2 and 3 of Bouncer's Figure 1 are [`stage::Stage::arrive`],
//! [`decision::Action::Resume`] and [`stage::Stage::finish`].

pub mod beside;
pub mod classify;
pub mod deadline;
pub mod decision;
pub mod engine;
pub mod host;
pub mod http;
pub mod ledger;
#[cfg(test)]
#[path = "../tests/memory/mod.rs"]
mod memory;
pub mod progress;
pub mod queue;
pub mod requests;
pub mod stage;
pub mod stats;
pub mod workers;

pub use headgate_config as config;

/// The name by which files that other crates also include refer to this crate.
#[cfg(test)]
extern crate self as headgate_core;
