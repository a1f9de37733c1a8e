//! Headgate's filter as a Wasm module: a host of [`headgate_core::http`] by proxy-wasm, and nothing else.
//!
//! Envoy runs one VM per worker thread. [`vm`] is that VM's state: the filter, and how the engine's actions reach
//! other streams of the worker. [`root`], [`stream`] and [`call`] translate Envoy's callbacks into calls of it: a
//! stream is a request to the process behind the proxy, a call is one that it makes to others. [`envoy`] is how the
//! filter sees a stream, [`host`] how the engines of all workers share state. Both reach Envoy with `Result`s
//! throughout: the SDK's own helpers panic on unexpected answers, and a panic takes every request of the worker with
//! it.

mod call;
mod envoy;
mod ffi;
mod host;
mod root;
mod roots;
mod stream;
mod ticks;
mod turn;
mod vm;

/// What Envoy calls first.
mod entry {
    #![allow(missing_docs)] // the macro's exported function

    use proxy_wasm::types::LogLevel;

    proxy_wasm::main! {{
        // Also makes a panic leave its message in the log.
        proxy_wasm::set_log_level(LogLevel::Info);
        proxy_wasm::set_root_context(|id| Box::new(crate::root::Root::new(id)));
    }}
}
