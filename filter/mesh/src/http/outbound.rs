//! One call of the process behind the proxy, from its request headers to its response headers.
//!
//! A call counts as answered at its response headers, because the called proxy has just written its
//! announcement into them. At the end of a response that streams for minutes, the announcement
//! would have expired. A call that Envoy retries is one call. Only the answer of the last process
//! counts.
//!
//! A call may be delayed before it is sent.

use headgate_core::host::Host;
use headgate_core::http::Stream;

use super::{call, call_answered, call_ended, mesh};
use crate::Filter;

/// One call of the application.
#[derive(Debug, Default)]
pub struct Outbound {
    /// Whether the filter keeps a state of the call, because the call is delayed or waits for its
    /// answer.
    pending: bool,
}

impl Outbound {
    /// Whether the call is delayed or waits for its answer.
    pub fn is_pending(&self) -> bool {
        self.pending
    }

    /// Handles the call's request headers. On false, the caller must hold the call until its
    /// [`Action::Send`](headgate_core::decision::Action::Send), and then call
    /// [`send`](super::send).
    #[must_use]
    pub fn request_headers(
        &mut self,
        filter: &mut Filter<impl Host>,
        stream: &impl Stream,
    ) -> bool {
        let is_sent = call(filter, stream, None);
        self.pending = !is_sent || mesh(filter).calls.contains_key(&stream.id());
        is_sent
    }

    /// Handles the call's response headers.
    pub fn response_headers(&mut self, filter: &mut Filter<impl Host>, stream: &impl Stream) {
        if std::mem::take(&mut self.pending) {
            call_answered(filter, stream);
        }
    }

    /// Records the end of the stream. A call that has no answer yet counts as unanswered.
    pub fn done(&mut self, filter: &mut Filter<impl Host>, stream: &impl Stream) {
        if std::mem::take(&mut self.pending) {
            call_ended(filter, stream);
        }
    }
}
