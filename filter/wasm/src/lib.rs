//! Headgate's filter as a Wasm module: a host of [`headgate_core::http`] by proxy-wasm, and nothing else.
//!
//! Envoy runs one VM per worker thread. [`vm`] is that VM's state: the filter, and how the engine's actions reach
//! other streams of the worker. [`exports`] are Envoy's callbacks, and [`contexts`] what they are about: a request to the
//! process behind the proxy, or a call that it makes to others. [`envoy`] is how the filter sees a stream, [`host`] how the
//! engines of all workers share state. All reach Envoy by [`ffi`], with `Result`s throughout: a panic takes every request of
//! the worker with it.
//!
//! There is no SDK between: that of proxy-wasm exports every callback there is, whether or not a filter has a use for it,
//! and looks contexts up in maps of its own. Both cost some microseconds a request (`scripts/bench cpu`).

mod contexts;
mod envoy;
mod exports;
mod ffi;
mod host;
mod ticks;
mod turn;
mod vm;
