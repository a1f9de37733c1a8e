//! One request: from its headers to the end of its response, however it ends.

use headgate_core::decision::{Decision, Ticket};
use headgate_core::stage::Outcome;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

use crate::ffi;
use crate::vm;

/// `%RESPONSE_CODE_DETAILS%` of a response that came from the backend.
const VIA_UPSTREAM: &[u8] = b"via_upstream";

/// One request.
pub(crate) struct Stream {
    id: u32,
    /// Its place among those of its policy, until it ends.
    ticket: Option<Ticket>,
    /// What the end of its response will mean.
    outcome: Outcome,
}

impl Stream {
    pub(crate) fn new(id: u32) -> Self {
        Self {
            id,
            ticket: None,
            outcome: Outcome::Completed,
        }
    }

    fn finish(&mut self, outcome: Outcome) {
        if let Some(ticket) = self.ticket.take() {
            vm::with(|vm| vm.finish(self.id, ticket, outcome));
        }
    }
}

/// Whether the response is the backend's rather than Envoy's own (no route, no connection, timeout,
/// another filter).
fn from_backend() -> bool {
    ffi::property(b"response\0code_details")
        .ok()
        .flatten()
        .is_some_and(|d| d == VIA_UPSTREAM)
}

impl Context for Stream {
    /// The stream ends: normally after its response, early when the client left or the backend failed.
    fn on_done(&mut self) -> bool {
        vm::with(|vm| vm.forwarded_ended(self.id));
        self.finish(Outcome::Unmeasured);
        true
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        match vm::with(|vm| vm.request(self.id)) {
            None | Some(Decision::PassBy) => Action::Continue,
            Some(Decision::Forward(ticket)) => {
                self.ticket = Some(ticket);
                Action::Continue
            }
            Some(Decision::Hold(ticket)) => {
                self.ticket = Some(ticket);
                Action::Pause
            }
            Some(Decision::Refuse(_)) => Action::Pause,
        }
    }

    fn on_http_response_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        let Some(ticket) = self.ticket else {
            return Action::Continue;
        };
        vm::with(|vm| {
            // Before we write what the process behind a gateway wrote as well.
            vm.forwarded_answered(self.id);
            vm.hint(ticket);
            vm.answer(ticket);
        });
        let first_byte = vm::with(|vm| vm.ends_at_first_byte(ticket)).unwrap_or(false);
        if !vm::with(|vm| vm.wants_sample(ticket)).unwrap_or(true) {
            self.outcome = Outcome::Unsampled;
        } else if !from_backend() {
            self.outcome = Outcome::Unmeasured;
        }
        if end_of_stream || first_byte || self.outcome == Outcome::Unmeasured {
            self.finish(self.outcome);
        }
        Action::Continue
    }

    fn on_http_response_body(&mut self, _size: usize, end_of_stream: bool) -> Action {
        if end_of_stream {
            self.finish(self.outcome);
        }
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _count: usize) -> Action {
        self.finish(self.outcome);
        Action::Continue
    }
}
