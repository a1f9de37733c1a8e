//! Envoy's callbacks for one call that the process behind the proxy makes.

use headgate_core::http::Outbound;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

use crate::vm;

/// One call.
pub(crate) struct Call {
    id: u32,
    outbound: Outbound,
}

impl Call {
    pub(crate) fn new(id: u32) -> Self {
        Self {
            id,
            outbound: Outbound::default(),
        }
    }
}

impl Context for Call {
    fn on_done(&mut self) -> bool {
        if self.outbound.is_pending() {
            vm::with(|vm| vm.on(self.id, |filter, stream| self.outbound.done(filter, stream)));
        }
        true
    }
}

impl HttpContext for Call {
    fn on_http_request_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        vm::with(|vm| vm.call(self.id, &mut self.outbound));
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        if self.outbound.is_pending() {
            vm::with(|vm| {
                vm.on(self.id, |filter, stream| {
                    self.outbound.response_headers(filter, stream);
                });
            });
        }
        Action::Continue
    }
}
