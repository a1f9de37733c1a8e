//! Headgate's filter as a Wasm module. It is only a host for [`headgate_core::http`], through
//! proxy-wasm.
//!
//! Envoy runs one VM per worker thread. [`vm`] is that VM's state. It has the filter, and delivers
//! the engine's actions to other streams of the worker. [`exports`] has Envoy's callbacks, and
//! [`contexts`] their contexts, such as a request to the process behind the proxy, or one of its
//! outbound calls. [`envoy`] is the filter's interface to a stream, and [`host`] is the state that
//! the engines of all workers share. [`unfiltered`] keeps its numbers if the proxy rejects their
//! gauges. All call Envoy through [`ffi`], with `Result`s throughout, because a panic loses every
//! request of the worker.
//!
//! The module uses no SDK. The SDK of proxy-wasm exports every callback, whether or not a filter
//! uses it, and looks contexts up in its own maps. Both cost some microseconds per request
//! (`scripts/bench cpu`).

mod contexts;
mod envoy;
mod exports;
mod ffi;
mod host;
#[cfg(test)]
#[path = "../../core/tests/memory/mod.rs"]
mod memory;
mod ticks;
mod turn;
mod unfiltered;
mod vm;
