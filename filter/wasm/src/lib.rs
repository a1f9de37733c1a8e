//! Headgate's Envoy filter: glue between [`headgate_core`] and proxy-wasm, and nothing else.
//!
//! Envoy runs one VM per worker thread. [`vm`] is that VM's state: the engine, the host, and the actions
//! that the engine asks for. [`root`] and [`stream`] translate Envoy's callbacks into calls of it.
//! [`host`] is the only way to Envoy, with `Result`s throughout: the SDK's own helpers panic on
//! unexpected answers, and a panic takes every request of the worker with it.

mod ffi;
mod headers;
mod host;
mod refusal;
mod root;
mod stream;
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
