//! Headgate's filter as a dynamic module of Envoy. It is only a host for [`headgate_core::http`].
//!
//! One engine serves all workers of the process, behind one lock ([`process`]). So the limit and
//! the order of the queue are exact. Envoy's scheduler resumes a held request on its own worker.
//! [`abi`] is the only interface to Envoy. It has Envoy's functions, the hooks that Envoy calls,
//! and [`abi::Envoy`], the interface to a stream. [`shared`] is the state that the libraries of one
//! process share while one replaces another. Only [`abi`] and [`shared`] contain `unsafe` code.

mod abi;
mod clock;
mod family;
mod metrics;
mod process;
mod recovery;
mod shared;
mod stream;
