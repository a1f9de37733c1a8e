//! Headgate's filter as a dynamic module of Envoy: a host for [`headgate_core::http`], and nothing
//! else.
//!
//! One engine serves all workers of the process, behind one lock ([`process`]), so the limit and
//! the order of the queue are exact by construction. Envoy's scheduler resumes a held request on
//! its own worker. [`abi`] is the only interface to Envoy: it has Envoy's functions, the hooks that
//! Envoy calls, and [`abi::Envoy`], the interface to a stream. [`shared`] is the state that the
//! libraries of one process share while one replaces another. Only [`abi`] and [`shared`] contain
//! `unsafe` code.

mod abi;
mod clock;
mod family;
mod metrics;
mod process;
mod recovery;
mod shared;
mod stream;
