//! One call that the process behind the proxy makes: from its headers to its answer's.
//!
//! It counts as answered when the headers of its response come, which is when the called proxy wrote what it announces;
//! a response that streams for minutes would bring an announcement that expired long ago. A call that is tried again by
//! Envoy is one call: nobody but the last process answers.

use headgate_core::engine::Calling;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

use crate::vm;

/// One call.
pub(crate) struct Call {
    id: u32,
    /// What it belongs to, until it is answered.
    calling: Option<Calling>,
}

impl Call {
    pub(crate) fn new(id: u32) -> Self {
        Self { id, calling: None }
    }
}

impl Context for Call {
    /// The stream ends: if the call wasn't answered by then, it is lost.
    fn on_done(&mut self) -> bool {
        if let Some(calling) = self.calling.take() {
            vm::with(|vm| vm.unanswered(calling));
        }
        true
    }
}

impl HttpContext for Call {
    fn on_http_request_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        self.calling = vm::with(|vm| vm.call(self.id)).flatten();
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        if let Some(calling) = self.calling.take() {
            vm::with(|vm| vm.answered(calling));
        }
        Action::Continue
    }
}
