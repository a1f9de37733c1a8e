//! Headgate's Envoy filter: glue between [`headgate_core`] and proxy-wasm, and nothing else.
//!
//! Envoy runs one VM per worker thread. [`vm`] is that VM's state: the engine, the host, and the actions
//! that the engine asks for. [`root`], [`stream`] and [`call`] translate Envoy's callbacks into calls of it:
//! a stream is a request to the process behind the proxy, a call is one that it makes to others.
//! [`host`] is the only way to Envoy, with `Result`s throughout: the SDK's own helpers panic on
//! unexpected answers, and a panic takes every request of the worker with it.

mod answer;
mod call;
mod ffi;
mod headers;
mod host;
mod refusal;
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
