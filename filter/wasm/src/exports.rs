//! The callbacks from Envoy. They are the exports of proxy-wasm's ABI 0.2.1 that the filter needs,
//! and no others.
//!
//! Envoy calls every function of the ABI that a module exports. Each call enters the VM, which
//! costs more than the work of most callbacks. A callback for logs and a second callback for the
//! end of a stream would be two useless entries for each request. So the only entries for a request
//! are those for its context, its headers, each part of its body, its trailers, the response's
//! headers, each part of the response's body, the response's trailers, and its end.
#![allow(unsafe_code)] // exported names

use headgate_core::http::Level;

use crate::contexts;
use crate::ffi;
use crate::vm;

#[cfg(target_os = "wasi")]
unsafe extern "C" {
    fn __wasm_call_ctors();
}

/// The result of a callback for headers (`FilterHeadersStatus`) that continues the request.
const CONTINUE: u32 = 0;
/// The result of a callback for headers (`FilterHeadersStatus`) that holds the request, with its
/// body: `StopAllIterationAndWatermark`. With `StopIteration` and the plugin's setting
/// `allow_on_headers_stop_iteration`, the first part of the body would continue the request.
const PAUSE: u32 = 4;

/// Starts the module. Envoy calls this function once in each VM, before all others.
#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    #[cfg(target_os = "wasi")]
    // SAFETY: the linker defines this function, and Envoy calls `_initialize` once.
    unsafe {
        __wasm_call_ctors();
    }
    std::panic::set_hook(Box::new(|panic| {
        ffi::log(Level::Error, &format!("headgate: {panic}"));
    }));
}

/// Declares the ABI version of the exports by the name of this function.
#[unsafe(no_mangle)]
extern "C" fn proxy_abi_version_0_2_1() {}

/// Allocates memory into which Envoy writes the results of calls.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    ffi::allocate(size)
}

/// Handles the start of a configuration (`parent` is 0), a request or an outbound call.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_context_create(context: u32, parent: u32) {
    contexts::create(context, parent);
}

/// Applies the configuration of a root context, of `size` bytes.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_configure(context: u32, size: usize) -> bool {
    contexts::configure(context, size)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_tick(context: u32) {
    vm::with(|vm| vm.tick(context));
}

/// Handles a wake-up through a shared queue, by another worker or by this one.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_queue_ready(context: u32, queue: u32) {
    vm::with(|vm| vm.woken(context, queue));
}

/// Handles the response to a request that a tick sent. The response has no headers if the request
/// failed.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_http_call_response(
    context: u32,
    _token: u32,
    _headers: u32,
    body_size: usize,
    _trailers: u32,
) {
    vm::with(|vm| vm.reported(context, body_size));
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_headers(context: u32, _count: usize, end: bool) -> u32 {
    #[cfg(feature = "trap")]
    trap();
    if contexts::request_headers(context, end) {
        CONTINUE
    } else {
        PAUSE
    }
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_body(context: u32, _size: usize, end: bool) -> u32 {
    if end {
        contexts::request_end(context);
    }
    CONTINUE
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_trailers(context: u32, _count: usize) -> u32 {
    contexts::request_end(context);
    CONTINUE
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_headers(context: u32, _count: usize, end: bool) -> u32 {
    contexts::response_headers(context, end);
    CONTINUE
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_body(context: u32, size: usize, end: bool) -> u32 {
    if end {
        contexts::response_end(context);
    } else if size > 0 {
        contexts::response_part(context);
    }
    CONTINUE
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_trailers(context: u32, _count: usize) -> u32 {
    contexts::response_trailers(context);
    CONTINUE
}

/// Handles the end of a stream's or a configuration's context.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_delete(context: u32) {
    contexts::delete(context);
}

#[cfg(feature = "trap")]
#[allow(clippy::panic)] // the purpose of the feature
fn trap() {
    let headers = ffi::headers(headgate_core::http::Map::Request);
    let wanted = b"x-headgate-trap";
    if headers.is_ok_and(|bytes| bytes.windows(wanted.len()).any(|part| part == wanted)) {
        panic!("trapped on request");
    }
}
