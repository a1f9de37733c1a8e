//! One request: from its headers to the end of its response, however it ends.

use headgate_core::decision::{Decision, Ticket};
use headgate_core::stage::Outcome;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

use crate::answer;
use crate::ffi;
use crate::headers::Upgrade;
use crate::vm;

/// One request.
pub(crate) struct Stream {
    id: u32,
    /// Its place among those of its policy, until it ends.
    ticket: Option<Ticket>,
    /// What it asks its connection to become.
    upgrade: Option<Upgrade>,
    /// What the end of its response will mean.
    outcome: Outcome,
    /// Whether its response is known to be the backend's.
    from_backend: bool,
}

impl Stream {
    pub(crate) fn new(id: u32) -> Self {
        Self {
            id,
            ticket: None,
            upgrade: None,
            outcome: Outcome::Completed,
            from_backend: false,
        }
    }

    fn finish(&mut self, outcome: Outcome) {
        // Where the VM's state is in use, the ticket is kept for the next callback; at the latest for the last.
        if let Some(ticket) = self.ticket
            && vm::with(|vm| vm.finish(self.id, ticket, outcome)).is_some()
        {
            self.ticket = None;
        }
    }
}

/// Who ended the request, or answered it.
fn details() -> Outcome {
    let details = ffi::property(b"response\0code_details");
    answer::of_details(details.ok().flatten().as_deref())
}

impl Context for Stream {
    /// The stream ends: normally after its response, early when the client left or the backend failed.
    fn on_done(&mut self) -> bool {
        vm::with(|vm| vm.gone(self.id));
        if self.ticket.is_some() {
            // No more of the answer comes: the backend broke it off, or the client left.
            let outcome = match details() {
                Outcome::Failed => Outcome::Failed,
                _ => Outcome::Unmeasured,
            };
            self.finish(outcome);
        }
        true
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        match vm::with(|vm| vm.request(self.id, &mut self.upgrade)) {
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
        } else {
            self.outcome = details();
            if self.outcome == Outcome::Completed {
                let judged = vm::with(|vm| vm.judge(ticket, end_of_stream));
                self.outcome = judged.unwrap_or(Outcome::Completed);
                self.from_backend = true;
            }
        }
        // What Envoy answers itself, the backend has nothing more to do for.
        let local = self.outcome != Outcome::Unsampled && !self.from_backend;
        // Once its connection is something else, a request is over.
        let switched = self.upgrade.is_some_and(|upgrade| {
            let status = ffi::response_header(":status").ok().flatten();
            status.is_some_and(|status| upgrade.happened(&status))
        });
        if end_of_stream || first_byte || local || switched {
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
        if let Some(ticket) = self.ticket
            && self.outcome == Outcome::Completed
        {
            let judged = vm::with(|vm| vm.judge_trailers(ticket));
            self.outcome = judged.unwrap_or(Outcome::Completed);
        }
        self.finish(self.outcome);
        Action::Continue
    }
}
