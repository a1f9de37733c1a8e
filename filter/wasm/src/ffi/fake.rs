//! A fake Envoy for unit tests of the VM. It records the periods of ticks and the resumed streams,
//! and has no headers, properties or shared data. Each test has its own, because each test has its
//! own thread.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::NOT_FOUND;

#[derive(Default)]
struct Envoy {
    effective: u32,
    /// The periods of ticks by root context, ms.
    periods: BTreeMap<u32, u32>,
    resumed: Vec<u32>,
}

thread_local! {
    static ENVOY: RefCell<Envoy> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut Envoy) -> T) -> T {
    ENVOY.with_borrow_mut(f)
}

/// Returns the tick period of a root context, ms. It is 0 without ticks.
pub(crate) fn period(root: u32) -> u32 {
    with(|envoy| envoy.periods.get(&root).copied().unwrap_or_default())
}

/// Returns the resumed streams, in order.
pub(crate) fn resumed() -> Vec<u32> {
    with(|envoy| envoy.resumed.clone())
}

#[unsafe(no_mangle)]
extern "C" fn proxy_set_effective_context(context: u32) -> u32 {
    with(|envoy| envoy.effective = context);
    0
}

#[unsafe(no_mangle)]
extern "C" fn proxy_set_tick_period_milliseconds(period: u32) -> u32 {
    with(|envoy| envoy.periods.insert(envoy.effective, period));
    0
}

#[unsafe(no_mangle)]
extern "C" fn proxy_continue_stream(_stream_type: u32) -> u32 {
    with(|envoy| envoy.resumed.push(envoy.effective));
    0
}

/// Defines functions that only return a status. Arguments are left out, because the caller passes
/// and removes them in the C calling conventions of x86-64 and aarch64.
macro_rules! return_status {
    ($status:expr => $($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> u32 {
            $status
        }
    )* };
}

return_status! { 0 =>
    proxy_log
    proxy_replace_header_map_value
    proxy_remove_header_map_value
    proxy_set_property
    proxy_send_local_response
    proxy_http_call
    proxy_call_foreign_function
    proxy_define_metric
    proxy_increment_metric
    proxy_record_metric
    proxy_get_metric
    proxy_set_shared_data
    proxy_register_shared_queue
    proxy_resolve_shared_queue
    proxy_enqueue_shared_queue
    clock_time_get
}

return_status! { NOT_FOUND =>
    proxy_get_buffer_bytes
    proxy_get_header_map_pairs
    proxy_get_header_map_value
    proxy_get_property
    proxy_get_shared_data
    proxy_dequeue_shared_queue
}
