//! Envoy's callbacks for one request.

use headgate_core::decision::Decision;
use headgate_core::http::Inbound;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

use crate::vm;

/// One request. Where the VM's state is in use, its end is noticed at a later callback, at the latest at the last.
pub(crate) struct Stream {
    id: u32,
    inbound: Inbound,
}

impl Stream {
    pub(crate) fn new(id: u32) -> Self {
        Self {
            id,
            inbound: Inbound::default(),
        }
    }
}

#[cfg(feature = "trap")]
#[allow(clippy::panic)] // what the feature is for
fn trap() {
    use headgate_core::http::Stream;
    let headers = crate::envoy::Effective(0).request_headers();
    let wanted = b"x-headgate-trap";
    if headers.is_ok_and(|bytes| bytes.windows(wanted.len()).any(|part| part == wanted)) {
        panic!("trapped on request");
    }
}

impl Context for Stream {
    fn on_done(&mut self) -> bool {
        vm::with(|vm| vm.done(self.id, &mut self.inbound));
        true
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        #[cfg(feature = "trap")]
        trap();
        match vm::with(|vm| vm.request(self.id, &mut self.inbound)) {
            None | Some(Decision::PassBy | Decision::Forward(_)) => Action::Continue,
            Some(Decision::Hold(_) | Decision::Refuse(_)) => Action::Pause,
        }
    }

    fn on_http_response_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        if self.inbound.is_pending() {
            vm::with(|vm| {
                vm.on(self.id, |filter, stream| {
                    self.inbound.response_headers(filter, stream, end_of_stream);
                });
            });
        }
        Action::Continue
    }

    fn on_http_response_body(&mut self, _size: usize, end_of_stream: bool) -> Action {
        if end_of_stream && self.inbound.is_pending() {
            vm::with(|vm| {
                vm.on(self.id, |filter, stream| {
                    self.inbound.response_end(filter, stream);
                });
            });
        }
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _count: usize) -> Action {
        if self.inbound.is_pending() {
            vm::with(|vm| {
                vm.on(self.id, |filter, stream| {
                    self.inbound.response_trailers(filter, stream);
                });
            });
        }
        Action::Continue
    }
}
