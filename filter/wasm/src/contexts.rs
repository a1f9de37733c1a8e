//! Envoy's contexts. A context is a configuration, a request to the process behind the proxy, or an
//! outbound call of that process.
//!
//! A callback has no effect while the VM's state is borrowed ([`vm::with`]). The end of a request
//! is then handled by a later callback, at the latest by the last callback of the context.

use std::cell::RefCell;
use std::collections::BTreeMap;

use headgate_core::config::{Direction, FilterConfig};
use headgate_core::decision::Decision;
use headgate_core::http::{Inbound, Level};
use headgate_mesh::Outbound;

use crate::envoy::Effective;
use crate::ffi;
use crate::vm::{self, Filter};

/// One context.
enum Context {
    /// A configuration, with the direction of its streams. Inbound streams are requests to the
    /// process, and outbound streams are its calls.
    Root(Direction),
    Request(Box<Inbound>),
    Call(Box<Outbound>),
}

thread_local! {
    static CONTEXTS: RefCell<BTreeMap<u32, Context>> = const { RefCell::new(BTreeMap::new()) };
}

/// Runs `f` on the context with this number. Returns `None` if the context doesn't exist, or during
/// a callback for another context.
fn with<T>(id: u32, f: impl FnOnce(&mut Context) -> T) -> Option<T> {
    CONTEXTS.with(|contexts| Some(f(contexts.try_borrow_mut().ok()?.get_mut(&id)?)))
}

pub(crate) fn create(id: u32, parent: u32) {
    CONTEXTS.with(|contexts| {
        let Ok(mut contexts) = contexts.try_borrow_mut() else {
            return;
        };
        let context = match contexts.get(&parent) {
            None => Context::Root(Direction::Inbound),
            Some(Context::Root(Direction::Outbound)) => Context::Call(Box::default()),
            Some(_) => Context::Request(Box::default()),
        };
        contexts.insert(id, context);
    });
}

pub(crate) fn delete(id: u32) {
    let context = CONTEXTS.with(|contexts| contexts.try_borrow_mut().ok()?.remove(&id));
    match context {
        None => {}
        Some(Context::Root(_)) => {
            vm::with(|vm| vm.root_gone(id));
        }
        Some(Context::Request(mut inbound)) => {
            vm::with(|vm| vm.done(id, &mut inbound));
        }
        Some(Context::Call(mut outbound)) if outbound.is_pending() => {
            vm::with(|vm| vm.call_done(id, &mut outbound));
        }
        Some(Context::Call(_)) => {}
    }
}

/// Applies the configuration. Returns whether any configuration is in force. Returns false if the
/// configuration can't be read.
pub(crate) fn configure(id: u32, size: usize) -> bool {
    let json = match ffi::plugin_configuration(size) {
        Ok(json) => json,
        Err(error) => {
            let message = format!("headgate: configuration can't be read: {error}");
            ffi::log(Level::Error, &message);
            return false;
        }
    };
    let direction = FilterConfig::direction_of(&json);
    with(id, |context| *context = Context::Root(direction));
    vm::with(|vm| vm.configure(id, direction, &json)).unwrap_or(false)
}

/// Handles request headers. Returns whether the request or the call continues at once. `end` is
/// true if the request has no body.
pub(crate) fn request_headers(id: u32, end: bool) -> bool {
    let goes_on = with(id, |context| match context {
        Context::Root(_) => None,
        Context::Request(inbound) => vm::with(|vm| {
            let decision = vm.request(id, inbound, end);
            !matches!(decision, Decision::Hold(_) | Decision::Refuse(_))
        }),
        Context::Call(outbound) => vm::with(|vm| vm.call(id, outbound)),
    });
    goes_on.flatten().unwrap_or(true)
}

/// Handles the end of a request's body, or its trailers.
pub(crate) fn request_end(id: u32) {
    with(id, |context| match context {
        Context::Request(inbound) if inbound.awaits_request_end() => {
            vm::with(|vm| vm.request_end(id, inbound));
        }
        _ => {}
    });
}

pub(crate) fn response_headers(id: u32, end: bool) {
    with(id, |context| match context {
        Context::Request(inbound) if inbound.is_pending() => {
            vm::on(id, |filter, stream| {
                inbound.response_headers(filter, stream, end);
            });
        }
        Context::Call(outbound) if outbound.is_pending() => {
            vm::on(id, |filter, stream| {
                outbound.response_headers(filter, stream);
            });
        }
        _ => {}
    });
}

/// Handles a part of the response's body other than the last.
pub(crate) fn response_part(id: u32) {
    on_request(id, Inbound::awaits_part, Inbound::response_part);
}

/// Handles the last byte of the body of a response without trailers.
pub(crate) fn response_end(id: u32) {
    on_request(id, Inbound::is_pending, Inbound::response_end);
}

pub(crate) fn response_trailers(id: u32) {
    on_request(id, Inbound::is_pending, Inbound::response_trailers);
}

/// Runs `f` on the request with this number if the request `awaits` what arrived.
fn on_request(
    id: u32,
    awaits: fn(&Inbound) -> bool,
    f: impl FnOnce(&mut Inbound, &mut Filter, &Effective),
) {
    with(id, |context| match context {
        Context::Request(inbound) if awaits(inbound) => {
            vm::on(id, |filter, stream| f(inbound, filter, stream));
        }
        _ => {}
    });
}
