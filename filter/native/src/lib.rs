//! Headgate's filter as a dynamic module of Envoy: a host of [`headgate_core::http`], and nothing else.
//!
//! One engine serves all workers of the process, behind one lock ([`process`]): the limit and the order of the queue
//! are exact by construction. A held request goes on, on its own worker, through Envoy's scheduler. [`abi`] is the only
//! way to Envoy: it has Envoy's functions, the hooks that Envoy calls, and [`abi::Envoy`], which is how the filter sees
//! a stream. [`shared`] is how the libraries of one process share state while one replaces another. No other file has
//! `unsafe`.

mod abi;
mod clock;
mod family;
mod metrics;
mod process;
mod recovery;
mod shared;
mod stream;
