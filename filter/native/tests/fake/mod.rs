//! A fake Envoy for unit tests. It has the functions that the module calls, and listeners and
//! streams that call the module's hooks.
//!
//! A process has one engine, so tests run one after another. The time changes only when a test
//! advances it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use headgate_strategies::time::Instant;

use super::*;

static TURN: Mutex<()> = Mutex::new(());
static NANOS: AtomicU64 = AtomicU64::new(0);
static SEEN: Mutex<Seen> = Mutex::new(Seen::new());

/// The module's calls to Envoy.
pub(crate) struct Seen {
    /// The names of defined metrics. A metric's id is its index in this list.
    pub(crate) metrics: Vec<String>,
    /// The written values, by metric and labels.
    pub(crate) written: Vec<(String, u64)>,
    pub(crate) log: Vec<String>,
    /// The slow calls that were made under the engine's lock.
    pub(crate) locked: Vec<&'static str>,
    /// The number of requests sent for a configuration.
    pub(crate) callouts: usize,
    /// Whether streams have spans.
    pub(crate) tracing: bool,
    /// The tags set on spans, in order.
    pub(crate) tags: Vec<(String, String)>,
    /// The number of calls for a stream's span.
    pub(crate) spans: usize,
    /// The function that runs while Envoy schedules the next tick.
    pub(crate) on_commit: Option<Box<dyn FnOnce() + Send>>,
    /// The streams whose hook is scheduled.
    scheduled: Vec<usize>,
}

impl Seen {
    const fn new() -> Self {
        Self {
            metrics: Vec::new(),
            written: Vec::new(),
            log: Vec::new(),
            locked: Vec::new(),
            callouts: 0,
            tracing: false,
            tags: Vec::new(),
            spans: 0,
            on_commit: None,
            scheduled: Vec::new(),
        }
    }

    /// Records a slow call if the engine's lock is held. The lock should not be held during slow
    /// calls.
    fn slow(&mut self, call: &'static str) {
        if process::is_locked() {
            self.locked.push(call);
        }
    }
}

pub(crate) fn seen() -> MutexGuard<'static, Seen> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a new process. Other tests wait until the returned guard is dropped.
pub(crate) fn start() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    process::reset();
    crate::shared::reset();
    *seen() = Seen::new();
    NANOS.store(1_000_000_000_000, Ordering::SeqCst);
    turn
}

pub(crate) fn now() -> Instant {
    Instant::from_nanos(NANOS.load(Ordering::SeqCst))
}

/// Advances the time without a tick.
pub(crate) fn pass(ms: u64) {
    NANOS.fetch_add(ms * 1_000_000, Ordering::SeqCst);
}

/// One configuration of a listener.
pub(crate) struct Listener(*const c_void);

// SAFETY: the last hook of a configuration may run on any thread.
unsafe impl Send for Listener {}

impl Listener {
    /// Creates a listener. Returns `None` if the module refuses `json`.
    pub(crate) fn new(json: &str) -> Option<Self> {
        let (name, json) = (Buffer::of(b""), Buffer::of(json.as_bytes()));
        let envoy = std::ptr::dangling_mut::<u8>().cast();
        // SAFETY: the buffers are valid during the call.
        let config = unsafe { envoy_dynamic_module_on_http_filter_config_new(envoy, name, json) };
        (!config.is_null()).then(|| Self(config))
    }

    /// Runs a tick of this configuration, as Envoy does when the module's thread schedules one.
    pub(crate) fn tick(&self) {
        // SAFETY: the configuration is alive.
        unsafe {
            envoy_dynamic_module_on_http_filter_config_scheduled(std::ptr::null_mut(), self.0, 0);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: the configuration is alive, and this is its last use.
        unsafe { envoy_dynamic_module_on_http_filter_config_destroy(self.0) }
    }
}

/// One stream, with its filter.
pub(crate) struct Stream {
    filter: *const c_void,
    headers: Vec<(String, String)>,
    /// The response code details.
    details: Cell<&'static str>,
    /// The status of the local reply.
    reply: Cell<Option<u32>>,
    resumed: Cell<bool>,
}

/// The filter's decision when a stream's request headers arrive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Became {
    Forwarded,
    Held,
    Answered(u32),
}

impl Stream {
    /// Sends the request headers of a new stream.
    pub(crate) fn arrive(listener: &Listener, path: &str) -> (Box<Self>, Became) {
        // SAFETY: the listener is alive.
        let filter =
            unsafe { envoy_dynamic_module_on_http_filter_new(listener.0, std::ptr::null_mut()) };
        let headers = [(":method", "GET"), (":path", path), (":status", "200")];
        let stream = Box::new(Self {
            filter,
            headers: headers.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec(),
            details: Cell::new("via_upstream"),
            reply: Cell::default(),
            resumed: Cell::default(),
        });
        // SAFETY: the stream and its filter are alive.
        let status = unsafe {
            envoy_dynamic_module_on_http_filter_request_headers(stream.envoy(), filter, true)
        };
        let became = match (status, stream.reply.get()) {
            (CONTINUE, _) => Became::Forwarded,
            (_, Some(status)) => Became::Answered(status),
            _ => Became::Held,
        };
        (stream, became)
    }

    /// Returns the stream's path. The path is also the address of the stream's upstream host and
    /// the name of its cluster.
    fn path(&self) -> &str {
        let mut headers = self.headers.iter();
        headers
            .find(|(name, _)| name == ":path")
            .map_or("", |(_, path)| path)
    }

    fn envoy(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Returns the decision on a held request, or `None` while the request waits.
    pub(crate) fn became(&self) -> Option<Became> {
        let resumed = self.resumed.get().then_some(Became::Forwarded);
        self.reply.get().map(Became::Answered).or(resumed)
    }

    /// Sets a header of the response. The request has it, too.
    pub(crate) fn set_header(&mut self, name: &str, value: &str) {
        self.headers.push((name.to_owned(), value.to_owned()));
    }

    /// Sends the backend's response 200, without a body.
    pub(crate) fn answer(&self) {
        let (envoy, filter) = (self.envoy(), self.filter);
        // SAFETY: the stream and its filter are alive.
        unsafe {
            envoy_dynamic_module_on_http_filter_response_headers(envoy, filter, true);
        }
    }

    /// Sends Envoy's own response, without a body, after a timeout.
    pub(crate) fn time_out(&self) {
        self.details.set("response_timeout");
        self.answer();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let (envoy, filter) = (self.envoy(), self.filter);
        seen().scheduled.retain(|at| *at != envoy as usize);
        // SAFETY: the stream and its filter are alive, and this is their last use.
        unsafe {
            envoy_dynamic_module_on_http_filter_stream_complete(envoy, filter);
            envoy_dynamic_module_on_http_filter_destroy(filter);
        }
    }
}

/// Runs the hooks that were scheduled for streams.
pub(crate) fn run_scheduled() {
    let scheduled = std::mem::take(&mut seen().scheduled);
    for at in scheduled {
        let envoy = at as *mut c_void;
        // SAFETY: streams that have ended were removed.
        let filter = unsafe { stream(envoy) }.filter;
        // SAFETY: the stream and its filter are alive.
        unsafe { envoy_dynamic_module_on_http_filter_scheduled(envoy, filter, 0) };
    }
}

/// Returns the stream behind the pointer.
///
/// # Safety
/// `filter` is a live [`Stream`].
unsafe fn stream<'a>(filter: *mut c_void) -> &'a Stream {
    // SAFETY: the caller guarantees that `filter` is a live stream.
    unsafe { &*filter.cast_const().cast() }
}

/// Returns the text in a buffer.
///
/// # Safety
/// `buffer` is valid.
unsafe fn text(buffer: Buffer) -> String {
    // SAFETY: the caller guarantees that `buffer` is valid.
    String::from_utf8_lossy(unsafe { buffer.bytes() }).into_owned()
}

/// Returns the name of a metric with the values of its labels.
unsafe fn member(id: usize, labels: *const Buffer, count: usize) -> String {
    let mut name = seen().metrics[id].clone();
    // SAFETY: the caller passes `count` valid labels.
    for label in unsafe { slice(labels, count) } {
        name.push(' ');
        // SAFETY: the caller's labels are valid buffers.
        name.push_str(&unsafe { text(*label) });
    }
    name
}

unsafe fn write(id: usize, labels: *const Buffer, count: usize, value: u64) -> u32 {
    // SAFETY: the caller passes `count` valid labels.
    let name = unsafe { member(id, labels, count) };
    seen().slow("write a metric");
    seen().written.push((name, value));
    0
}

unsafe fn define(name: Buffer, id: *mut usize) -> u32 {
    // SAFETY: the caller passes a valid buffer.
    let name = unsafe { text(name) };
    let mut seen = seen();
    seen.slow("define a metric");
    seen.metrics.push(name);
    // SAFETY: the caller passes a valid pointer.
    unsafe { *id = seen.metrics.len() - 1 };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_callback_log(_level: u32, message: Buffer) {
    // SAFETY: `message` is valid during the call.
    let message = unsafe { text(message) };
    seen().log.push(message);
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_register_shared_data(
    _: Buffer,
    _: *mut c_void,
) -> bool {
    true
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_get_shared_data(
    _key: Buffer,
    _data: *mut *mut c_void,
) -> bool {
    false
}

/// Defines the functions for metrics of each kind.
macro_rules! metrics {
    ($($define:ident $write:ident)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $define(
            _config: *mut c_void,
            name: Buffer,
            _labels: *const Buffer,
            _count: usize,
            id: *mut usize,
        ) -> u32 {
            // SAFETY: the module's arguments are valid during the call.
            unsafe { define(name, id) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $write(
            _config: *mut c_void,
            id: usize,
            labels: *const Buffer,
            count: usize,
            value: u64,
        ) -> u32 {
            // SAFETY: the module's arguments are valid during the call.
            unsafe { write(id, labels, count, value) }
        }
    )* };
}

metrics! {
    envoy_dynamic_module_callback_http_filter_config_define_counter
        envoy_dynamic_module_callback_http_filter_config_increment_counter
    envoy_dynamic_module_callback_http_filter_config_define_gauge
        envoy_dynamic_module_callback_http_filter_config_set_gauge
    envoy_dynamic_module_callback_http_filter_config_define_histogram
        envoy_dynamic_module_callback_http_filter_config_record_histogram_value
}

/// Defines the functions for schedulers. A scheduler is the pointer to its stream or configuration.
macro_rules! schedulers {
    ($($new:ident $delete:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $new(scheduled: *mut c_void) -> *mut c_void {
            scheduled
        }

        #[unsafe(no_mangle)]
        extern "C" fn $delete(_scheduler: *mut c_void) {}
    )* };
}

schedulers! {
    envoy_dynamic_module_callback_http_filter_config_scheduler_new
        envoy_dynamic_module_callback_http_filter_config_scheduler_delete
    envoy_dynamic_module_callback_http_filter_scheduler_new
        envoy_dynamic_module_callback_http_filter_scheduler_delete
}

/// Schedules no tick, because ticks are run by tests.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_config_scheduler_commit(
    _scheduler: *mut c_void,
    _event: u64,
) {
    let on_commit = seen().on_commit.take();
    if let Some(on_commit) = on_commit {
        on_commit();
    }
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_scheduler_commit(
    scheduler: *mut c_void,
    _event: u64,
) {
    seen().scheduled.push(scheduler as usize);
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_config_http_callout(
    _config: *mut c_void,
    _id: *mut u64,
    _cluster: Buffer,
    _headers: *const Header,
    _count: usize,
    _body: Buffer,
    _timeout_ms: u64,
) -> u32 {
    seen().callouts += 1;
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_callback_http_get_header(
    filter: *mut c_void,
    _map: u32,
    name: Buffer,
    value: *mut Buffer,
    _index: usize,
    _count: *mut usize,
) -> bool {
    // SAFETY: the module's arguments are valid during the call.
    let (stream, name) = unsafe { (stream(filter), text(name)) };
    let found = stream.headers.iter().find(|(n, _)| *n == name);
    if let Some((_, found)) = found {
        // SAFETY: the module's `value` is valid during the call.
        unsafe { *value = Buffer::of(found.as_bytes()) };
    }
    found.is_some()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_callback_http_get_headers_size(
    filter: *mut c_void,
    _map: u32,
) -> usize {
    seen().slow("read headers");
    // SAFETY: the stream is alive.
    unsafe { stream(filter) }.headers.len()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_callback_http_get_headers(
    filter: *mut c_void,
    _map: u32,
    headers: *mut Header,
) -> bool {
    // SAFETY: the stream is alive.
    let stream = unsafe { stream(filter) };
    for (at, (name, value)) in stream.headers.iter().enumerate() {
        let header = Header {
            name: Buffer::of(name.as_bytes()),
            value: Buffer::of(value.as_bytes()),
        };
        // SAFETY: `headers` has room for the number of headers that the call before returned.
        unsafe { headers.add(at).write(header) };
    }
    true
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_body_size(_: *mut c_void, _: u32) -> usize {
    0
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_body_chunks_size(
    _: *mut c_void,
    _: u32,
) -> usize {
    0
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_body_chunks(
    _: *mut c_void,
    _: u32,
    _: *mut Buffer,
) -> bool {
    false
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_set_header(
    _filter: *mut c_void,
    _map: u32,
    _name: Buffer,
    _value: Buffer,
) -> bool {
    true
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_clear_route_cache(_filter: *mut c_void) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_callback_http_send_response(
    filter: *mut c_void,
    status: u32,
    _headers: *const Header,
    _count: usize,
    _body: Buffer,
    _details: Buffer,
) {
    // SAFETY: the stream is alive.
    unsafe { stream(filter) }.reply.set(Some(status));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_callback_http_filter_get_attribute_string(
    filter: *mut c_void,
    attribute: u32,
    value: *mut Buffer,
) -> bool {
    let text = match attribute {
        // SAFETY: the stream is alive.
        RESPONSE_CODE_DETAILS => unsafe { stream(filter) }.details.get(),
        // SAFETY: the stream is alive.
        UPSTREAM_ADDRESS => unsafe { stream(filter) }.path(),
        _ => return false,
    };
    // SAFETY: the module's argument is valid during the call.
    unsafe { *value = Buffer::of(text.as_bytes()) };
    true
}

#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_callback_http_get_cluster_name(
    filter: *mut c_void,
    name: *mut Buffer,
) -> bool {
    // SAFETY: the stream is alive.
    let path = unsafe { stream(filter) }.path();
    // SAFETY: the module's argument is valid during the call.
    unsafe { *name = Buffer::of(path.as_bytes()) };
    true
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_metadata_string(
    _filter: *mut c_void,
    _source: u32,
    _namespace: Buffer,
    _key: Buffer,
    _value: *mut Buffer,
) -> bool {
    false
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_metadata_number(
    _filter: *mut c_void,
    _source: u32,
    _namespace: Buffer,
    _key: Buffer,
    _value: *mut f64,
) -> bool {
    false
}

#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_callback_http_filter_continue_decoding(
    filter: *mut c_void,
) {
    // SAFETY: the stream is alive.
    unsafe { stream(filter) }.resumed.set(true);
}

/// Returns the span of a stream, which is the pointer to the stream.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_active_span(
    filter: *mut c_void,
) -> *mut c_void {
    let mut seen = seen();
    seen.spans += 1;
    match seen.tracing {
        true => filter,
        false => std::ptr::null_mut(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_callback_http_span_set_tag(
    _span: *mut c_void,
    key: Buffer,
    value: Buffer,
) {
    // SAFETY: `key` and `value` are valid during the call.
    let tag = unsafe { (text(key), text(value)) };
    seen().tags.push(tag);
}
