//! Headgate's filter as a Wasm module: only a host of [`headgate_core::http`] through proxy-wasm.
//!
//! Envoy runs one VM per worker thread. [`vm`] is that VM's state: the filter, and the delivery of
//! the engine's actions to other streams of the worker. [`exports`] are Envoy's callbacks, and
//! [`contexts`] their subjects: a request to the process behind the proxy, or a call that it makes
//! to others. [`envoy`] is the filter's view of a stream, [`host`] the state that the engines of
//! all workers share. All reach Envoy through [`ffi`], with `Result`s throughout, because a panic
//! loses every request of the worker.
//!
//! The module uses no SDK: that of proxy-wasm exports every callback, whether or not a filter uses
//! it, and looks contexts up in maps of its own. Both cost some microseconds a request
//! (`scripts/bench cpu`).

mod contexts;
mod envoy;
mod exports;
mod ffi;
mod host;
mod ticks;
mod turn;
mod vm;
