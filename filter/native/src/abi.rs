//! Envoy's ABI for dynamic modules. It has the hooks that Envoy calls, and the functions that Envoy
//! offers.
//!
//! The declarations are those of `source/extensions/dynamic_modules/abi/abi.h` as of ABI v0.1.0
//! (Envoy 1.38 and 1.39). ABI v0.2.0 (Envoy 1.40) has them unchanged. Envoy resolves all of them
//! when it loads the module, so functions of later versions can't be used here.
//!
//! Each hook catches panics, because a panic that left a hook would abort Envoy. After a panic the
//! filter fails open (see [`crate::process::failed`]).
#![allow(unsafe_code)] // imported functions, and pointers in hooks

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

use headgate_core::host::MetricKind;
use headgate_core::http::{Level, LocalReply, Map, Property};
use headgate_mesh::engine::Callout;
use headgate_strategies::host::HostError;

use crate::metrics::Change;
use crate::process::{self, Configuration, Head};
use crate::recovery;
use crate::stream::Request;

#[cfg(test)]
#[path = "../tests/fake/mod.rs"]
pub(crate) mod fake;

/// A buffer in the memory of Envoy or of this module.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    bytes: *const u8,
    length: usize,
}

/// A header in the memory of Envoy or of this module.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    name: Buffer,
    value: Buffer,
}

const NOTHING: Buffer = Buffer {
    bytes: std::ptr::null(),
    length: 0,
};

impl Buffer {
    /// Returns a buffer that is valid for as long as `bytes`. The callee copies what it keeps.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.as_ptr(),
            length: bytes.len(),
        }
    }

    /// Returns the bytes of the buffer.
    ///
    /// # Safety
    /// The buffer must still be valid. A buffer from Envoy is valid until the end of the hook in
    /// which it was obtained, or until headers change.
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.bytes.is_null() {
            return &[];
        }
        // SAFETY: the caller guarantees that the buffer is valid.
        unsafe { std::slice::from_raw_parts(self.bytes, self.length) }
    }
}

/// The attribute id (`envoy_dynamic_module_type_attribute_id`) of `response.code_details`.
const RESPONSE_CODE_DETAILS: u32 = 16;
/// The attribute id of `connection.uri_san_peer_certificate`.
const DOWNSTREAM_PEER: u32 = 37;
/// The attribute id of `upstream.address`.
const UPSTREAM_ADDRESS: u32 = 41;
/// The attribute id of `upstream.uri_san_peer_certificate`.
const UPSTREAM_PEER: u32 = 49;
/// The attribute id of `xds.route_name`.
const ROUTE_NAME: u32 = 61;

/// The value `envoy_dynamic_module_type_metadata_source_Dynamic`.
const DYNAMIC: u32 = 0;

/// The status of the hook for request headers that continues the request
/// (`envoy_dynamic_module_type_on_http_filter_request_headers_status`).
const CONTINUE: u32 = 0;
/// The status that stops the request, because the filter has sent a response.
const STOP: u32 = 1;
/// The status that stops the request, and buffers its body up to the high watermark.
const STOP_AND_WATERMARK: u32 = 4;

unsafe extern "C" {
    fn envoy_dynamic_module_callback_log(level: u32, message: Buffer);
    fn envoy_dynamic_module_callback_register_shared_data(key: Buffer, data: *mut c_void) -> bool;
    fn envoy_dynamic_module_callback_get_shared_data(key: Buffer, data: *mut *mut c_void) -> bool;
    fn envoy_dynamic_module_callback_http_filter_config_define_counter(
        config: *mut c_void,
        name: Buffer,
        labels: *const Buffer,
        count: usize,
        id: *mut usize,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_config_define_gauge(
        config: *mut c_void,
        name: Buffer,
        labels: *const Buffer,
        count: usize,
        id: *mut usize,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_config_define_histogram(
        config: *mut c_void,
        name: Buffer,
        labels: *const Buffer,
        count: usize,
        id: *mut usize,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_config_increment_counter(
        config: *mut c_void,
        id: usize,
        labels: *const Buffer,
        count: usize,
        value: u64,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_config_set_gauge(
        config: *mut c_void,
        id: usize,
        labels: *const Buffer,
        count: usize,
        value: u64,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_config_record_histogram_value(
        config: *mut c_void,
        id: usize,
        labels: *const Buffer,
        count: usize,
        value: u64,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_config_scheduler_new(
        config: *mut c_void,
    ) -> *mut c_void;
    fn envoy_dynamic_module_callback_http_filter_config_scheduler_commit(
        scheduler: *mut c_void,
        event: u64,
    );
    fn envoy_dynamic_module_callback_http_filter_config_scheduler_delete(scheduler: *mut c_void);
    fn envoy_dynamic_module_callback_http_filter_config_http_callout(
        config: *mut c_void,
        id: *mut u64,
        cluster: Buffer,
        headers: *const Header,
        count: usize,
        body: Buffer,
        timeout_ms: u64,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_get_header(
        filter: *mut c_void,
        map: u32,
        name: Buffer,
        value: *mut Buffer,
        index: usize,
        count: *mut usize,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_headers_size(filter: *mut c_void, map: u32) -> usize;
    fn envoy_dynamic_module_callback_http_get_headers(
        filter: *mut c_void,
        map: u32,
        headers: *mut Header,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_body_size(filter: *mut c_void, body: u32) -> usize;
    fn envoy_dynamic_module_callback_http_get_body_chunks_size(
        filter: *mut c_void,
        body: u32,
    ) -> usize;
    fn envoy_dynamic_module_callback_http_get_body_chunks(
        filter: *mut c_void,
        body: u32,
        chunks: *mut Buffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_set_header(
        filter: *mut c_void,
        map: u32,
        name: Buffer,
        value: Buffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_clear_route_cache(filter: *mut c_void);
    fn envoy_dynamic_module_callback_http_send_response(
        filter: *mut c_void,
        status: u32,
        headers: *const Header,
        count: usize,
        body: Buffer,
        details: Buffer,
    );
    fn envoy_dynamic_module_callback_http_filter_get_attribute_string(
        filter: *mut c_void,
        attribute: u32,
        value: *mut Buffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_cluster_name(
        filter: *mut c_void,
        name: *mut Buffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_metadata_string(
        filter: *mut c_void,
        source: u32,
        namespace: Buffer,
        key: Buffer,
        value: *mut Buffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_metadata_number(
        filter: *mut c_void,
        source: u32,
        namespace: Buffer,
        key: Buffer,
        value: *mut f64,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_active_span(filter: *mut c_void) -> *mut c_void;
    fn envoy_dynamic_module_callback_http_span_set_tag(
        span: *mut c_void,
        key: Buffer,
        value: Buffer,
    );
    fn envoy_dynamic_module_callback_http_filter_scheduler_new(filter: *mut c_void) -> *mut c_void;
    fn envoy_dynamic_module_callback_http_filter_scheduler_commit(
        scheduler: *mut c_void,
        event: u64,
    );
    fn envoy_dynamic_module_callback_http_filter_scheduler_delete(scheduler: *mut c_void);
    fn envoy_dynamic_module_callback_http_filter_continue_decoding(filter: *mut c_void);
}

/// Writes a line to Envoy's log.
pub(crate) fn log(level: Level, message: &str) {
    let level = match level {
        Level::Info => 2,
        Level::Warn => 3,
        Level::Error => 4,
    };
    // SAFETY: `message` is valid during the call.
    unsafe { envoy_dynamic_module_callback_log(level, Buffer::of(message.as_bytes())) }
}

/// Returns the pointer that a module of this process registered under `key`, or null.
pub(crate) fn shared_data(key: &str) -> *const c_void {
    let mut data = std::ptr::null_mut();
    let key = Buffer::of(key.as_bytes());
    // SAFETY: `key` is valid during the call. `data` is a live local, which Envoy writes if it
    // finds a pointer.
    let found = unsafe { envoy_dynamic_module_callback_get_shared_data(key, &raw mut data) };
    if found { data } else { std::ptr::null() }
}

/// Registers `data` for all modules of this process. `data` must live as long as the process.
pub(crate) fn share_data(key: &str, data: *const c_void) {
    let key = Buffer::of(key.as_bytes());
    // SAFETY: `key` is valid during the call. Envoy only stores the pointer.
    unsafe { envoy_dynamic_module_callback_register_shared_data(key, data.cast_mut()) };
}

/// The stream of the hook that runs.
#[derive(Clone, Copy)]
pub(crate) struct Envoy(*mut c_void);

/// The span of the stream of the hook that runs.
#[derive(Clone, Copy)]
pub(crate) struct Span(*mut c_void);

impl Span {
    /// Sets a tag, and replaces a tag of the same name.
    pub(crate) fn tag(self, name: &str, value: &str) {
        let (name, value) = (Buffer::of(name.as_bytes()), Buffer::of(value.as_bytes()));
        // SAFETY: the span lives as long as its stream, whose hook runs. Envoy copies the buffers.
        unsafe { envoy_dynamic_module_callback_http_span_set_tag(self.0, name, value) }
    }
}

/// The value `envoy_dynamic_module_type_http_body_type_ReceivedResponseBody`.
const RECEIVED_RESPONSE_BODY: u32 = 2;

impl Envoy {
    /// Whether the current part of the response's body is empty.
    pub(crate) fn is_body_empty(self) -> bool {
        // SAFETY: `self` belongs to the hook that runs, and Envoy runs the stream's hooks on this
        // thread.
        let size = unsafe {
            envoy_dynamic_module_callback_http_get_body_size(self.0, RECEIVED_RESPONSE_BODY)
        };
        size == 0
    }

    /// Calls `each` with the slices of the current part of the response's body.
    pub(crate) fn response_body(self, each: &mut dyn FnMut(&[u8])) {
        let body = RECEIVED_RESPONSE_BODY;
        // SAFETY: `self` belongs to the hook that runs, and Envoy runs the stream's hooks on this
        // thread.
        let count =
            unsafe { envoy_dynamic_module_callback_http_get_body_chunks_size(self.0, body) };
        let mut chunks = vec![NOTHING; count];
        // SAFETY: `self` belongs to the hook that runs. `chunks` has room for `count` chunks, and
        // their number can't have changed since the call before.
        let read = unsafe {
            envoy_dynamic_module_callback_http_get_body_chunks(self.0, body, chunks.as_mut_ptr())
        };
        for chunk in chunks.iter().filter(|_| read) {
            // SAFETY: Envoy keeps the bytes until the hook returns.
            each(unsafe { chunk.bytes() });
        }
    }

    /// Returns all headers of a map in the format of `headgate_core::http`.
    pub(crate) fn headers(self, map: Map) -> Vec<u8> {
        // SAFETY: `self` belongs to the hook that runs, and Envoy runs the stream's hooks on this
        // thread.
        let count =
            unsafe { envoy_dynamic_module_callback_http_get_headers_size(self.0, map as u32) };
        let empty = Header {
            name: NOTHING,
            value: NOTHING,
        };
        let mut headers = vec![empty; count];
        // SAFETY: `self` belongs to the hook that runs. `headers` has room for `count` headers, and
        // their number can't have changed since the call before.
        let read = unsafe {
            envoy_dynamic_module_callback_http_get_headers(self.0, map as u32, headers.as_mut_ptr())
        };
        if !read {
            headers.clear();
        }
        // SAFETY: nothing changes a header before this function returns.
        let pair = |header: &Header| unsafe { (header.name.bytes(), header.value.bytes()) };
        // A pair takes two lengths and two zero bytes besides its text.
        let size = |header: &Header| 10 + header.name.length + header.value.length;
        let mut bytes = Vec::with_capacity(4 + headers.iter().map(size).sum::<usize>());
        headgate_core::http::serialize(headers.iter().map(pair), &mut bytes);
        bytes
    }

    /// Returns the first value of a header.
    pub(crate) fn header(self, map: Map, name: &str) -> Option<Vec<u8>> {
        self.read(|value| {
            let (name, none) = (Buffer::of(name.as_bytes()), std::ptr::null_mut());
            // SAFETY: `self` belongs to the hook that runs. `name` and `value` are live. The number
            // of values is optional.
            unsafe {
                envoy_dynamic_module_callback_http_get_header(
                    self.0, map as u32, name, value, 0, none,
                )
            }
        })
    }

    /// Sets a header and removes all others of that name. If `value` is `None`, removes all headers
    /// of that name.
    pub(crate) fn set_header(
        self,
        map: Map,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), HostError> {
        let (name, value) = (Buffer::of(name), value.map_or(NOTHING, Buffer::of));
        // SAFETY: `self` belongs to the hook that runs. Both buffers are valid during the call. No
        // bytes of headers are borrowed, because all values that were read before were copied.
        let set = unsafe {
            envoy_dynamic_module_callback_http_set_header(self.0, map as u32, name, value)
        };
        let call = "http_set_header";
        set.then_some(()).ok_or(HostError::Call { call, status: 0 })
    }

    /// Makes Envoy select the stream's route again.
    pub(crate) fn clear_route_cache(self) {
        // SAFETY: `self` belongs to the hook that runs.
        unsafe { envoy_dynamic_module_callback_http_clear_route_cache(self.0) }
    }

    /// Returns a property, or `None` if the stream doesn't have it.
    pub(crate) fn property(self, property: Property<'_>) -> Option<Vec<u8>> {
        let attribute = match property {
            Property::RouteName => ROUTE_NAME,
            Property::DownstreamPeer => DOWNSTREAM_PEER,
            Property::UpstreamPeer => UPSTREAM_PEER,
            Property::UpstreamAddress => UPSTREAM_ADDRESS,
            Property::ResponseCodeDetails => RESPONSE_CODE_DETAILS,
            Property::ClusterName => {
                return self.read(|name| {
                    // SAFETY: `self` belongs to the hook that runs, and `name` is a live local.
                    unsafe { envoy_dynamic_module_callback_http_get_cluster_name(self.0, name) }
                });
            }
            Property::Metadata(path) => return self.metadata(path),
        };
        self.read(|value| {
            // SAFETY: `self` belongs to the hook that runs, and `value` is a live local.
            unsafe {
                envoy_dynamic_module_callback_http_filter_get_attribute_string(
                    self.0, attribute, value,
                )
            }
        })
    }

    /// Returns the value at `path` in the dynamic metadata. Envoy's ABI gives access to values
    /// directly in a namespace, but not to values in a nested structure.
    fn metadata(self, path: &[String]) -> Option<Vec<u8>> {
        static TELL: Once = Once::new();
        let [namespace, key] = path else {
            TELL.call_once(|| {
                let message = format!(
                    "headgate: metadata path {path:?} has more parts than a namespace and a key. A \
                     native module can't read such a path, so it has no value. Use the Wasm \
                     filter, or have the value set directly under one key"
                );
                log(Level::Warn, &message);
            });
            return None;
        };
        let (namespace, key) = (Buffer::of(namespace.as_bytes()), Buffer::of(key.as_bytes()));
        let text = self.read(|value| {
            // SAFETY: `self` belongs to the hook that runs, and the buffers are live.
            unsafe {
                envoy_dynamic_module_callback_http_get_metadata_string(
                    self.0, DYNAMIC, namespace, key, value,
                )
            }
        });
        text.filter(|text| !text.is_empty()).or_else(|| {
            let mut number = 0.0;
            // SAFETY: `self` belongs to the hook that runs. The buffers and `number` are live.
            let found = unsafe {
                envoy_dynamic_module_callback_http_get_metadata_number(
                    self.0,
                    DYNAMIC,
                    namespace,
                    key,
                    &raw mut number,
                )
            };
            found.then(|| headgate_core::http::metadata::whole(number))?
        })
    }

    /// Returns the span of the stream, or `None` if Envoy doesn't trace the stream.
    pub(crate) fn span(self) -> Option<Span> {
        // SAFETY: `self` belongs to the hook that runs, and Envoy runs the stream's hooks on this
        // thread.
        let span = unsafe { envoy_dynamic_module_callback_http_get_active_span(self.0) };
        (!span.is_null()).then_some(Span(span))
    }

    /// Returns a copy of the value that `read` finds.
    fn read(self, read: impl FnOnce(*mut Buffer) -> bool) -> Option<Vec<u8>> {
        let mut value = NOTHING;
        // SAFETY: Envoy wrote `value` just now, and nothing has changed since.
        read(&raw mut value).then(|| unsafe { value.bytes() }.to_vec())
    }

    /// Sends a local reply. Envoy runs the response's filters, including this one, before this
    /// function returns.
    fn reply(self, reply: &LocalReply) {
        let header = |name: &str, value: &str| Header {
            name: Buffer::of(name.as_bytes()),
            value: Buffer::of(value.as_bytes()),
        };
        let mut headers: Vec<Header> = Vec::with_capacity(reply.headers.len() + 1);
        headers.extend(
            reply
                .headers
                .iter()
                .map(|(name, value)| header(name, value)),
        );
        // Without `grpc-status` Envoy reports success to a gRPC client, regardless of the HTTP
        // status.
        let grpc_status = reply.grpc_status.to_string();
        let content = self.header(Map::Request, headgate_core::classify::CONTENT_TYPE);
        if content.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
            headers.push(header("grpc-status", &grpc_status));
        }
        // SAFETY: `self` belongs to the hook that runs. All buffers are valid during the call, in
        // which Envoy copies them.
        unsafe {
            envoy_dynamic_module_callback_http_send_response(
                self.0,
                reply.status,
                headers.as_ptr(),
                headers.len(),
                Buffer::of(reply.body.as_bytes()),
                Buffer::of(reply.details.as_bytes()),
            );
        }
    }

    fn resume(self) {
        // SAFETY: `self` belongs to the hook that runs.
        unsafe { envoy_dynamic_module_callback_http_filter_continue_decoding(self.0) }
    }

    /// Returns a handle that lets other threads schedule a call for this stream.
    pub(crate) fn scheduler(self) -> Scheduler {
        // SAFETY: `self` belongs to the hook that runs.
        Scheduler(unsafe { envoy_dynamic_module_callback_http_filter_scheduler_new(self.0) })
    }
}

/// A handle that schedules a call for a stream on the stream's worker. The handle may outlive the
/// stream, and then has no effect.
pub(crate) struct Scheduler(*mut c_void);

// SAFETY: Envoy's scheduler posts to the dispatcher of the stream's worker. Any thread may do so.
unsafe impl Send for Scheduler {}

impl Scheduler {
    /// Asks Envoy to call `on_http_filter_scheduled` for the stream soon.
    pub(crate) fn commit(&self) {
        // SAFETY: the scheduler lives until it is dropped.
        unsafe { envoy_dynamic_module_callback_http_filter_scheduler_commit(self.0, 0) }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // SAFETY: `scheduler_new` returned the pointer, and the scheduler is deleted once.
        unsafe { envoy_dynamic_module_callback_http_filter_scheduler_delete(self.0) }
    }
}

/// Envoy's object for a filter's configuration, on which metrics are defined and written.
#[derive(Clone, Copy)]
pub(crate) struct Scope(*mut c_void);

// SAFETY: the object is used in hooks of the configuration only, while Envoy keeps it. Other
// threads only store the pointer.
unsafe impl Send for Scope {}
// SAFETY: other threads only store the pointer.
unsafe impl Sync for Scope {}

impl Scope {
    /// Defines a metric, or a family of metrics with `labels`. That is possible only while Envoy
    /// creates the configuration. Returns `None` if Envoy refuses the metric.
    pub(crate) fn define(self, kind: MetricKind, name: &str, labels: &[&str]) -> Option<usize> {
        let define = match kind {
            MetricKind::Counter => envoy_dynamic_module_callback_http_filter_config_define_counter,
            MetricKind::Gauge => envoy_dynamic_module_callback_http_filter_config_define_gauge,
            MetricKind::Histogram => {
                envoy_dynamic_module_callback_http_filter_config_define_histogram
            }
        };
        let (mut id, name) = (0, Buffer::of(name.as_bytes()));
        let labels = buffers(labels);
        let (labels, count) = (labels.as_ptr(), labels.len());
        // SAFETY: `self` is the configuration of the hook that runs. The name and the labels are
        // valid during the call. `id` is a live local.
        let result = unsafe { define(self.0, name, labels, count, &raw mut id) };
        (result == 0).then_some(id)
    }

    /// Adds to a counter, sets a gauge, or records into a histogram.
    pub(crate) fn write(self, change: &Change) {
        let write = match change.name.kind {
            MetricKind::Counter => {
                envoy_dynamic_module_callback_http_filter_config_increment_counter
            }
            MetricKind::Gauge => envoy_dynamic_module_callback_http_filter_config_set_gauge,
            MetricKind::Histogram => {
                envoy_dynamic_module_callback_http_filter_config_record_histogram_value
            }
        };
        let member = change.name.member.as_ref();
        let labels = buffers(member.map_or(&[][..], |member| &member.values));
        let (labels, count) = (labels.as_ptr(), labels.len());
        // SAFETY: `self` is the configuration of the hook that runs, and the metric is one of its
        // own. The labels are valid during the call.
        unsafe { write(self.0, change.id, labels, count, change.value) };
    }

    /// Sends a request. Returns false if Envoy can't send it, as when Envoy doesn't know the
    /// cluster. Envoy passes the response to `on_http_filter_config_http_callout_done`, perhaps
    /// before this function returns.
    pub(crate) fn post(self, callout: &Callout) -> bool {
        let header = |name: &'static str, value: &'static str| Header {
            name: Buffer::of(name.as_bytes()),
            value: Buffer::of(value.as_bytes()),
        };
        let headers = [
            header(":method", "POST"),
            header(":path", callout.path),
            header(":authority", callout.cluster),
            header("content-type", "application/json"),
        ];
        let timeout = u64::try_from(callout.timeout.as_millis()).unwrap_or(u64::MAX);
        let mut id = 0;
        // SAFETY: `self` is the configuration of the hook that runs, on the main thread. All
        // buffers are valid during the call, in which Envoy copies them. `id` is a live local.
        let result = unsafe {
            envoy_dynamic_module_callback_http_filter_config_http_callout(
                self.0,
                &raw mut id,
                Buffer::of(callout.cluster.as_bytes()),
                headers.as_ptr(),
                headers.len(),
                Buffer::of(&callout.body),
                timeout,
            )
        };
        result == 0
    }

    /// Returns a handle that lets other threads schedule a call for this configuration.
    pub(crate) fn ticker(self) -> Ticker {
        // SAFETY: `self` is the configuration of the hook that runs.
        Ticker(unsafe { envoy_dynamic_module_callback_http_filter_config_scheduler_new(self.0) })
    }
}

/// Returns buffers that are valid for as long as `texts`.
fn buffers(texts: &[impl AsRef<str>]) -> Vec<Buffer> {
    let buffer = |text: &_| Buffer::of(AsRef::<str>::as_ref(text).as_bytes());
    texts.iter().map(buffer).collect()
}

/// A handle that schedules a call for a configuration on the main thread. The handle may outlive
/// the configuration, and then has no effect.
pub(crate) struct Ticker(*mut c_void);

// SAFETY: Envoy's scheduler posts to the main thread's dispatcher. Any thread may do so.
unsafe impl Send for Ticker {}
// SAFETY: the only call on a shared handle posts, which doesn't change the handle.
unsafe impl Sync for Ticker {}

impl Ticker {
    /// Asks Envoy to call `on_http_filter_config_scheduled` for the configuration soon. Envoy may
    /// call `on_http_filter_config_destroy` before this function returns, on this thread, so the
    /// caller must hold no lock.
    pub(crate) fn commit(&self) {
        // SAFETY: the scheduler lives until it is dropped.
        unsafe { envoy_dynamic_module_callback_http_filter_config_scheduler_commit(self.0, 0) }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        // SAFETY: `config_scheduler_new` returned the pointer, and the scheduler is deleted once.
        unsafe { envoy_dynamic_module_callback_http_filter_config_scheduler_delete(self.0) }
    }
}

/// Runs a hook. Returns `open` if the hook panics.
fn guard<T>(open: T, hook: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(hook)).unwrap_or_else(|_| {
        process::failed();
        open
    })
}

/// Returns the configuration behind a pointer that `on_http_filter_config_new` returned.
///
/// # Safety
/// The configuration was not destroyed.
unsafe fn configuration<'a>(config: *const c_void) -> &'a Arc<Configuration> {
    // SAFETY: the caller guarantees that the configuration was not destroyed.
    unsafe { &*config.cast() }
}

/// Runs a hook of the stream for which `on_http_filter_new` returned `filter`. Returns `open` if
/// `filter` is null, because `on_http_filter_new` panicked, or if this hook panics.
///
/// # Safety
/// `filter` was not destroyed. References may coexist, because a hook may run inside another hook
/// of the same stream.
unsafe fn on_stream<T: Copy>(
    filter: *const c_void,
    open: T,
    hook: impl FnOnce(&Request) -> T,
) -> T {
    guard(open, || {
        // SAFETY: the caller guarantees that `filter` was not destroyed.
        let request = unsafe { filter.cast::<Request>().as_ref() };
        request.map_or(open, hook)
    })
}

/// Handles the first hook. Returns the ABI version. Envoy logs a warning if this version differs
/// from its own.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_program_init() -> *const c_char {
    guard((), || recovery::report_panics(process::panicked));
    c"v0.2.0".as_ptr()
}

/// Creates a configuration, on the main thread. If it returns null, the configuration is refused
/// and Envoy keeps the last one.
///
/// # Safety
/// By Envoy's contract, `envoy` lives as long as the configuration, and the buffers live during the
/// call.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    envoy: *mut c_void,
    name: Buffer,
    config: Buffer,
) -> *const c_void {
    guard(std::ptr::null(), || {
        // SAFETY: by Envoy's contract, both buffers are valid during the call.
        let (name, json) = unsafe { (name.bytes(), config.bytes()) };
        match Configuration::new(Scope(envoy), &String::from_utf8_lossy(name), json) {
            Some(configuration) => Box::into_raw(Box::new(configuration)).cast_const().cast(),
            None => std::ptr::null(),
        }
    })
}

/// Destroys a configuration.
///
/// # Safety
/// By Envoy's contract, `config` is one of this module's configurations, and this is its last use.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(config: *const c_void) {
    guard((), || {
        // SAFETY: `config` came from a box, and this is its last use.
        let configuration =
            unsafe { Box::from_raw(config.cast_mut().cast::<Arc<Configuration>>()) };
        configuration.gone();
    });
}

/// Runs the tick that a [`Ticker`] scheduled.
///
/// # Safety
/// By Envoy's contract, `config` is one of this module's configurations and is alive.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_scheduled(
    _envoy: *mut c_void,
    config: *const c_void,
    _event: u64,
) {
    // SAFETY: by Envoy's contract, `config` is alive.
    guard((), || process::tick(unsafe { configuration(config) }));
}

/// Handles the response to the request of [`Scope::post`].
///
/// # Safety
/// By Envoy's contract, `headers` has `count` items, `chunks` has `chunk_count` items, and both are
/// valid during the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_http_callout_done(
    _envoy: *mut c_void,
    _config: *const c_void,
    _id: u64,
    _result: u32,
    headers: *const Header,
    count: usize,
    chunks: *const Buffer,
    chunk_count: usize,
) {
    guard((), || {
        // SAFETY: by Envoy's contract, the counts are right. A failed request has neither headers
        // nor chunks.
        let (headers, chunks) = unsafe { (slice(headers, count), slice(chunks, chunk_count)) };
        // SAFETY: by Envoy's contract, the buffers of headers are valid during the call.
        let is_ok = |header: &Header| unsafe {
            header.name.bytes() == b":status" && header.value.bytes() == b"200"
        };
        let mut body = Vec::new();
        for chunk in chunks {
            // SAFETY: by Envoy's contract, the chunks are valid during the call.
            body.extend_from_slice(unsafe { chunk.bytes() });
        }
        process::reported(headers.iter().any(is_ok).then_some(&body));
    });
}

/// Returns the items as a slice, which is empty if `items` is null.
///
/// # Safety
/// Unless `items` is null, it points to `count` valid items.
unsafe fn slice<'a, T>(items: *const T, count: usize) -> &'a [T] {
    if items.is_null() {
        return &[];
    }
    // SAFETY: the caller guarantees that `items` points to `count` valid items.
    unsafe { std::slice::from_raw_parts(items, count) }
}

/// Creates the filter of a new stream.
///
/// # Safety
/// By Envoy's contract, `config` is one of this module's configurations and is alive.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_new(
    config: *const c_void,
    _envoy: *mut c_void,
) -> *const c_void {
    guard(std::ptr::null(), || {
        // SAFETY: by Envoy's contract, `config` is alive.
        let request = Request::new(unsafe { configuration(config) });
        Box::into_raw(Box::new(request)).cast_const().cast()
    })
}

/// Handles the request headers of a stream.
///
/// # Safety
/// By Envoy's contract, here and in all hooks of a stream, `envoy` is the stream's filter, `filter`
/// is the pointer that `on_http_filter_new` returned for the stream, and both are alive.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_headers(
    envoy: *mut c_void,
    filter: *const c_void,
    end_of_stream: bool,
) -> u32 {
    let hook = |request: &Request| match request.request_headers(Envoy(envoy), end_of_stream) {
        Head::Continue => CONTINUE,
        Head::Hold => STOP_AND_WATERMARK,
        Head::Reply(reply) => {
            Envoy(envoy).reply(&reply);
            STOP
        }
    };
    // SAFETY: by Envoy's contract, `filter` is alive.
    unsafe { on_stream(filter, CONTINUE, hook) }
}

/// Handles a part of the body of a request.
///
/// # Safety
/// See `on_http_filter_request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_body(
    envoy: *mut c_void,
    filter: *const c_void,
    end_of_stream: bool,
) -> u32 {
    let hook = |request: &Request| {
        if end_of_stream {
            request.request_end(Envoy(envoy));
        }
        CONTINUE
    };
    // SAFETY: by Envoy's contract, `filter` is alive.
    unsafe { on_stream(filter, CONTINUE, hook) }
}

/// Handles the trailers of a request.
///
/// # Safety
/// See `on_http_filter_request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_trailers(
    envoy: *mut c_void,
    filter: *const c_void,
) -> u32 {
    let hook = |request: &Request| {
        request.request_end(Envoy(envoy));
        CONTINUE
    };
    // SAFETY: by Envoy's contract, `filter` is alive.
    unsafe { on_stream(filter, CONTINUE, hook) }
}

/// Handles the turn of a held request, which a [`Scheduler`] scheduled.
///
/// # Safety
/// See `on_http_filter_request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_scheduled(
    envoy: *mut c_void,
    filter: *const c_void,
    _event: u64,
) {
    let envoy = Envoy(envoy);
    let hook = |request: &Request| match request.scheduled(envoy) {
        Some(Head::Continue) => true,
        Some(Head::Reply(reply)) => {
            envoy.reply(&reply);
            false
        }
        Some(Head::Hold) | None => false,
    };
    // SAFETY: by Envoy's contract, `filter` is alive. A held request continues if the module
    // panics.
    if unsafe { on_stream(filter, true, hook) } {
        envoy.resume();
    }
}

/// Handles the headers of a response.
///
/// # Safety
/// See `on_http_filter_request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_headers(
    envoy: *mut c_void,
    filter: *const c_void,
    end_of_stream: bool,
) -> u32 {
    let hook = |request: &Request| {
        request.response_headers(Envoy(envoy), end_of_stream);
        CONTINUE
    };
    // SAFETY: by Envoy's contract, `filter` is alive.
    unsafe { on_stream(filter, CONTINUE, hook) }
}

/// Handles a part of the body of a response.
///
/// # Safety
/// See `on_http_filter_request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_body(
    envoy: *mut c_void,
    filter: *const c_void,
    end_of_stream: bool,
) -> u32 {
    let hook = |request: &Request| {
        if end_of_stream {
            request.response_end(Envoy(envoy));
        } else {
            request.response_part(Envoy(envoy));
        }
        CONTINUE
    };
    // SAFETY: by Envoy's contract, `filter` is alive.
    unsafe { on_stream(filter, CONTINUE, hook) }
}

/// Handles the trailers of a response.
///
/// # Safety
/// See `on_http_filter_request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_trailers(
    envoy: *mut c_void,
    filter: *const c_void,
) -> u32 {
    let hook = |request: &Request| {
        request.response_trailers(Envoy(envoy));
        CONTINUE
    };
    // SAFETY: by Envoy's contract, `filter` is alive.
    unsafe { on_stream(filter, CONTINUE, hook) }
}

/// Handles the end of a stream.
///
/// # Safety
/// See `on_http_filter_request_headers`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_stream_complete(
    envoy: *mut c_void,
    filter: *const c_void,
) {
    // SAFETY: by Envoy's contract, `filter` is alive.
    unsafe { on_stream(filter, (), |request| request.done(Envoy(envoy))) };
}

/// Destroys the filter of a stream that has ended.
///
/// # Safety
/// By Envoy's contract, `filter` is the pointer that `on_http_filter_new` returned, and this is its
/// last use.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_destroy(filter: *const c_void) {
    guard((), || {
        // SAFETY: `filter` came from a box, and this is its last use.
        let request = unsafe { Box::from_raw(filter.cast_mut().cast::<Request>()) };
        request.destroyed();
    });
}

/// Defines hooks in which the filter does nothing. They are for callouts and streams that the
/// filter never starts, and for watermarks. Arguments are left out, because the caller passes and
/// removes them in the C calling conventions of x86-64 and aarch64.
macro_rules! ignored {
    ($($hook:ident)*) => { $(
        /// Does nothing.
        #[unsafe(no_mangle)]
        extern "C" fn $hook() {}
    )* };
}

ignored! {
    envoy_dynamic_module_on_http_filter_http_callout_done
    envoy_dynamic_module_on_http_filter_http_stream_headers
    envoy_dynamic_module_on_http_filter_http_stream_data
    envoy_dynamic_module_on_http_filter_http_stream_trailers
    envoy_dynamic_module_on_http_filter_http_stream_complete
    envoy_dynamic_module_on_http_filter_http_stream_reset
    envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark
    envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark
}
