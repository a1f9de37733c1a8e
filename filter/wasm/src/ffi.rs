//! The proxy-wasm calls. The status of each call is checked. All `unsafe` calls are in this file,
//! except for the call in `exports` that starts the module.
//!
//! The wrappers of proxy-wasm's Rust SDK panic on an unexpected status, and a panic loses every
//! request of the worker.
#![allow(unsafe_code)] // imported host functions

use std::time::Duration;

use headgate_core::http::{Level, Map};
use headgate_strategies::host::HostError;

#[cfg(test)]
pub(crate) mod fake;

const OK: u32 = 0;
const NOT_FOUND: u32 = 1;
const EMPTY: u32 = 7;
const CAS_MISMATCH: u32 = 8;
/// The value `WasmHeaderMapType::HttpCallResponseHeaders`.
const CALLOUT_RESPONSE: u32 = 6;
/// The value `WasmBufferType::HttpResponseBody`.
const RESPONSE_BODY: u32 = 1;
/// The value `WasmBufferType::HttpCallResponseBody`.
const CALLOUT_BODY: u32 = 4;
/// The value `WasmStreamType::Request`.
const REQUEST_STREAM: u32 = 0;
/// The value `WasmBufferType::PluginConfiguration`.
const PLUGIN_CONFIGURATION: u32 = 7;
/// A number of bytes that exceeds every buffer. The host returns the whole buffer.
const ALL: usize = i32::MAX as usize;
/// The id of WASI's `CLOCK_REALTIME`.
const REALTIME: u32 = 0;
/// The id of WASI's `CLOCK_MONOTONIC`.
const MONOTONIC: u32 = 1;

unsafe extern "C" {
    fn proxy_log(level: u32, message: *const u8, size: usize) -> u32;
    fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
    fn proxy_get_buffer_bytes(
        buffer: u32,
        start: usize,
        max_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_replace_header_map_value(
        map: u32,
        name: *const u8,
        name_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_get_header_map_value(
        map: u32,
        name: *const u8,
        name_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_remove_header_map_value(map: u32, name: *const u8, name_size: usize) -> u32;
    fn proxy_get_property(
        path: *const u8,
        path_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_set_property(
        path: *const u8,
        path_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_send_local_response(
        code: u32,
        details: *const u8,
        details_size: usize,
        body: *const u8,
        body_size: usize,
        headers: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> u32;
    fn proxy_http_call(
        cluster: *const u8,
        cluster_size: usize,
        headers: *const u8,
        headers_size: usize,
        body: *const u8,
        body_size: usize,
        trailers: *const u8,
        trailers_size: usize,
        timeout_ms: u32,
        token: *mut u32,
    ) -> u32;
    fn proxy_call_foreign_function(
        name: *const u8,
        name_size: usize,
        arguments: *const u8,
        arguments_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_set_effective_context(context: u32) -> u32;
    fn proxy_continue_stream(stream_type: u32) -> u32;
    fn proxy_define_metric(kind: u32, name: *const u8, size: usize, id: *mut u32) -> u32;
    fn proxy_increment_metric(id: u32, offset: i64) -> u32;
    fn proxy_record_metric(id: u32, value: u64) -> u32;
    fn proxy_get_metric(id: u32, value: *mut u64) -> u32;
    fn proxy_get_shared_data(
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
        cas: *mut u32,
    ) -> u32;
    fn proxy_set_shared_data(
        key: *const u8,
        key_size: usize,
        data: *const u8,
        size: usize,
        cas: u32,
    ) -> u32;
    fn proxy_register_shared_queue(name: *const u8, size: usize, id: *mut u32) -> u32;
    fn proxy_resolve_shared_queue(
        vm_id: *const u8,
        vm_id_size: usize,
        name: *const u8,
        name_size: usize,
        id: *mut u32,
    ) -> u32;
    fn proxy_enqueue_shared_queue(id: u32, data: *const u8, size: usize) -> u32;
    fn proxy_dequeue_shared_queue(id: u32, data: *mut *mut u8, size: *mut usize) -> u32;
}

#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u32;
}

fn check(call: &'static str, status: u32) -> Result<(), HostError> {
    if status == OK {
        Ok(())
    } else {
        Err(HostError::Call { call, status })
    }
}

/// Returns memory of `size` bytes for a result of the host. [`take`] takes ownership of the memory.
pub(crate) fn allocate(size: usize) -> *mut u8 {
    // The memory is zeroed, because the host may write nothing.
    Box::leak(vec![0; size].into_boxed_slice()).as_mut_ptr()
}

/// Takes ownership of a buffer that the host got from [`allocate`].
fn take(data: *mut u8, size: usize) -> Option<Vec<u8>> {
    if data.is_null() {
        return None;
    }
    // SAFETY: the host wrote `size` bytes into a boxed slice of exactly that size, and passes its
    // ownership.
    Some(unsafe { Vec::from_raw_parts(data, size, size) })
}

/// Returns the buffer that `read` makes the host return, or `None` if the host has none. `call` is
/// the name of the call.
fn returned(
    call: &'static str,
    read: impl FnOnce(*mut *mut u8, *mut usize) -> u32,
) -> Result<Option<Vec<u8>>, HostError> {
    let (mut data, mut size) = (std::ptr::null_mut(), 0);
    match read(&raw mut data, &raw mut size) {
        NOT_FOUND => Ok(None),
        status => check(call, status).map(|()| take(data, size)),
    }
}

/// Returns all headers of a map, in the format of [`headgate_core::http::Headers`]. That takes one
/// host call and one allocation for all headers, instead of one per header.
pub(crate) fn headers(map: Map) -> Result<Vec<u8>, HostError> {
    let call = "proxy_get_header_map_pairs";
    // SAFETY: both pointers are to live locals of `returned`.
    let all = returned(call, |data, size| unsafe {
        proxy_get_header_map_pairs(map as u32, data, size)
    });
    all.map(Option::unwrap_or_default)
}

/// Returns the first value of a header.
pub(crate) fn header(map: u32, name: &str) -> Result<Option<Vec<u8>>, HostError> {
    // SAFETY: `name` is valid for its length, and the other pointers are to live locals of
    // `returned`.
    returned("proxy_get_header_map_value", |data, size| unsafe {
        proxy_get_header_map_value(map, name.as_ptr(), name.len(), data, size)
    })
}

/// Returns at most `most` bytes of a buffer.
fn buffer(buffer: u32, most: usize) -> Result<Option<Vec<u8>>, HostError> {
    // SAFETY: both pointers are to live locals of `returned`.
    returned("proxy_get_buffer_bytes", |data, size| unsafe {
        proxy_get_buffer_bytes(buffer, 0, most, data, size)
    })
}

/// Returns the part of the response's body that arrives, or `None` if the part is empty. The caller
/// must call this function in the callback for that part.
pub(crate) fn response_body() -> Result<Option<Vec<u8>>, HostError> {
    buffer(RESPONSE_BODY, ALL)
}

/// Sends a request from the effective root context, which receives the response. `headers` is
/// serialized like [`request_headers`].
pub(crate) fn http_call(
    cluster: &str,
    headers: &[u8],
    body: &[u8],
    timeout: Duration,
) -> Result<(), HostError> {
    // The map of trailers has no entries.
    let trailers = [0_u8; 4];
    let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
    let mut token = 0;
    // SAFETY: every pointer is valid for the length beside it, and `token` is a live local.
    let status = unsafe {
        proxy_http_call(
            cluster.as_ptr(),
            cluster.len(),
            headers.as_ptr(),
            headers.len(),
            body.as_ptr(),
            body.len(),
            trailers.as_ptr(),
            trailers.len(),
            millis,
            &raw mut token,
        )
    };
    check("proxy_http_call", status)
}

/// Returns the body, of `size` bytes, of the response to [`http_call`]. Returns `None` unless the
/// status is 200. The caller must call this function in the response's callback.
pub(crate) fn http_call_answer(size: usize) -> Result<Option<Vec<u8>>, HostError> {
    let status = header(CALLOUT_RESPONSE, ":status");
    if status.ok().flatten().as_deref() != Some(b"200") {
        return Ok(None);
    }
    buffer(CALLOUT_BODY, size)
}

/// Sets a header and removes all others of that name.
pub(crate) fn set_header(map: Map, name: &str, value: &[u8]) -> Result<(), HostError> {
    let (map, name_size, size) = (map as u32, name.len(), value.len());
    // SAFETY: both slices are valid for their lengths.
    let status = unsafe {
        proxy_replace_header_map_value(map, name.as_ptr(), name_size, value.as_ptr(), size)
    };
    check("proxy_replace_header_map_value", status)
}

/// Removes all headers of this name.
pub(crate) fn remove_header(map: Map, name: &[u8]) -> Result<(), HostError> {
    // SAFETY: `name` is valid for its length.
    let status = unsafe { proxy_remove_header_map_value(map as u32, name.as_ptr(), name.len()) };
    check("proxy_remove_header_map_value", status)
}

/// Makes Envoy select the route of the effective stream again. Envoy registers this function in
/// addition to the ABI. The function has neither arguments nor results.
pub(crate) fn clear_route_cache() -> Result<(), HostError> {
    let name = "clear_route_cache";
    let (mut data, mut size) = (std::ptr::null_mut(), 0);
    let (text, length) = (name.as_ptr(), name.len());
    // SAFETY: `name` is valid for its length, and the last two pointers are to live locals.
    let status =
        unsafe { proxy_call_foreign_function(text, length, text, 0, &raw mut data, &raw mut size) };
    check(name, status)
}

/// Returns a property by its path, whose elements are separated by zero bytes. Returns `None` if
/// the property doesn't exist.
pub(crate) fn property(path: &[u8]) -> Result<Option<Vec<u8>>, HostError> {
    // SAFETY: `path` is valid for its length, and the other pointers are to live locals of
    // `returned`.
    returned("proxy_get_property", |data, size| unsafe {
        proxy_get_property(path.as_ptr(), path.len(), data, size)
    })
}

/// Sets a property of the effective stream, which later filters can read.
pub(crate) fn set_property(path: &[u8], value: &[u8]) -> Result<(), HostError> {
    // SAFETY: both slices are valid for their lengths.
    let status =
        unsafe { proxy_set_property(path.as_ptr(), path.len(), value.as_ptr(), value.len()) };
    check("proxy_set_property", status)
}

/// Answers the effective stream. `headers` is serialized like [`request_headers`]. `details`
/// becomes `%RESPONSE_CODE_DETAILS%`, which the SDK's own call leaves empty.
pub(crate) fn send_local_response(
    code: u32,
    details: &str,
    body: &str,
    headers: &[u8],
    grpc_status: i32,
) -> Result<(), HostError> {
    // SAFETY: every pointer is valid for the length beside it.
    let status = unsafe {
        proxy_send_local_response(
            code,
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            grpc_status,
        )
    };
    check("proxy_send_local_response", status)
}

/// Returns the monotonic time since an arbitrary point that is the same for all workers of the
/// process. The wall clock may step.
pub(crate) fn monotonic_time() -> Result<Duration, HostError> {
    time(MONOTONIC)
}

/// Returns the time since 1970 by the machine's clock.
pub(crate) fn wall_time() -> Result<Duration, HostError> {
    time(REALTIME)
}

fn time(clock: u32) -> Result<Duration, HostError> {
    let mut nanos = 0;
    // SAFETY: the pointer is to a live local.
    let status = unsafe { clock_time_get(clock, 0, &raw mut nanos) };
    check("clock_time_get", status).map(|()| Duration::from_nanos(nanos))
}

/// Writes a line to Envoy's log. A line that can't be written is lost.
pub(crate) fn log(level: Level, message: &str) {
    let level = match level {
        Level::Info => 2,
        Level::Warn => 3,
        Level::Error => 4,
    };
    // SAFETY: `message` is valid for its length.
    let _ = unsafe { proxy_log(level, message.as_ptr(), message.len()) };
}

/// Sets the tick period of the current root context, or of the current stream's root context.
pub(crate) fn set_tick_period(period: Duration) -> Result<(), HostError> {
    let millis = u32::try_from(period.as_millis()).unwrap_or(u32::MAX);
    // SAFETY: all arguments are plain values.
    check("proxy_set_tick_period_milliseconds", unsafe {
        proxy_set_tick_period_milliseconds(millis)
    })
}

/// Returns the plugin's configuration of `size` bytes.
pub(crate) fn plugin_configuration(size: usize) -> Result<Vec<u8>, HostError> {
    buffer(PLUGIN_CONFIGURATION, size).map(Option::unwrap_or_default)
}

/// Makes `context` the effective context of the following calls.
pub(crate) fn set_effective_context(context: u32) -> Result<(), HostError> {
    // SAFETY: all arguments are plain values.
    check("proxy_set_effective_context", unsafe {
        proxy_set_effective_context(context)
    })
}

/// Continues the effective stream's paused request.
pub(crate) fn resume_request() -> Result<(), HostError> {
    // SAFETY: all arguments are plain values.
    check("proxy_continue_stream", unsafe {
        proxy_continue_stream(REQUEST_STREAM)
    })
}

/// Defines a metric. `kind` is 0 for a counter, 1 for a gauge, and 2 for a histogram.
pub(crate) fn define_metric(kind: u32, name: &str) -> Result<u32, HostError> {
    let mut id = 0;
    // SAFETY: `name` is valid for its length, and `id` is a live local.
    let status = unsafe { proxy_define_metric(kind, name.as_ptr(), name.len(), &raw mut id) };
    check("proxy_define_metric", status).map(|()| id)
}

/// Adds to a counter or gauge.
pub(crate) fn increment_metric(id: u32, offset: i64) -> Result<(), HostError> {
    // SAFETY: all arguments are plain values.
    check("proxy_increment_metric", unsafe {
        proxy_increment_metric(id, offset)
    })
}

/// Sets a gauge or records into a histogram.
pub(crate) fn record_metric(id: u32, value: u64) -> Result<(), HostError> {
    // SAFETY: all arguments are plain values.
    check("proxy_record_metric", unsafe {
        proxy_record_metric(id, value)
    })
}

/// Reads a counter or gauge.
pub(crate) fn get_metric(id: u32) -> Result<u64, HostError> {
    let mut value = 0;
    // SAFETY: the pointer is to a live local.
    let status = unsafe { proxy_get_metric(id, &raw mut value) };
    check("proxy_get_metric", status).map(|()| value)
}

/// Returns a blob and its compare-and-swap value, or `None` if the blob is absent.
pub(crate) fn get_shared_data(key: &str) -> Result<Option<(Vec<u8>, u32)>, HostError> {
    let (mut data, mut size, mut cas) = (std::ptr::null_mut(), 0, 0);
    let (text, length) = (key.as_ptr(), key.len());
    // SAFETY: `key` is valid for its length, and the other pointers are to live locals.
    let status =
        unsafe { proxy_get_shared_data(text, length, &raw mut data, &raw mut size, &raw mut cas) };
    match status {
        NOT_FOUND => Ok(None),
        status => check("proxy_get_shared_data", status)
            .map(|()| Some((take(data, size).unwrap_or_default(), cas))),
    }
}

/// Stores a blob if its compare-and-swap value is still `cas`, if it is absent, or if `cas` is 0.
pub(crate) fn set_shared_data(key: &str, value: &[u8], cas: u32) -> Result<(), HostError> {
    // SAFETY: both slices are valid for their lengths.
    let status =
        unsafe { proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas) };
    match status {
        CAS_MISMATCH => Err(HostError::Conflict),
        status => check("proxy_set_shared_data", status),
    }
}

/// Makes the current root context the receiver of the queue of this name.
pub(crate) fn register_queue(name: &str) -> Result<u32, HostError> {
    let mut id = 0;
    // SAFETY: `name` is valid for its length, and `id` is a live local.
    let status = unsafe { proxy_register_shared_queue(name.as_ptr(), name.len(), &raw mut id) };
    check("proxy_register_shared_queue", status).map(|()| id)
}

/// Returns the queue of this name that a VM of `vm_id` registered.
pub(crate) fn resolve_queue(vm_id: &[u8], name: &str) -> Result<u32, HostError> {
    let mut id = 0;
    // SAFETY: both slices are valid for their lengths, and `id` is a live local.
    let status = unsafe {
        proxy_resolve_shared_queue(
            vm_id.as_ptr(),
            vm_id.len(),
            name.as_ptr(),
            name.len(),
            &raw mut id,
        )
    };
    check("proxy_resolve_shared_queue", status).map(|()| id)
}

/// Puts an empty message into a queue, which wakes its receiver.
pub(crate) fn enqueue(queue: u32) -> Result<(), HostError> {
    let nothing: &[u8] = &[];
    // SAFETY: the message is an empty slice.
    check("proxy_enqueue_shared_queue", unsafe {
        proxy_enqueue_shared_queue(queue, nothing.as_ptr(), 0)
    })
}

/// Removes a message from a queue. Returns false if the queue was empty.
pub(crate) fn dequeue(queue: u32) -> Result<bool, HostError> {
    let (mut data, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: both pointers are to live locals.
    let status = unsafe { proxy_dequeue_shared_queue(queue, &raw mut data, &raw mut size) };
    match status {
        EMPTY | NOT_FOUND => Ok(false),
        status => check("proxy_dequeue_shared_queue", status).map(|()| {
            drop(take(data, size));
            true
        }),
    }
}
