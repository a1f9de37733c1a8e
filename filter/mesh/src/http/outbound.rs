//! One call that the process behind the proxy makes: from its headers to its answer's.
//!
//! It counts as answered when the headers of its response come, when the called proxy has just
//! written its announcement. A response that streams for minutes would bring an announcement that
//! expired long ago. A call that Envoy retries is one call: only the last process answers.
//!
//! It may be delayed before it is sent.

use headgate_core::host::Host;
use headgate_core::http::Stream;

use super::{answered, call, forwarded_answered, held_ended, unanswered};
use crate::Filter;
use crate::engine::Calling;

/// One call.
#[derive(Debug, Default)]
pub struct Outbound {
    /// The call's state, until it is answered.
    calling: Option<Calling>,
    /// Whether it was or still is delayed; the filter then keeps its state until it is answered.
    held: bool,
}

/// The decision about a call at its headers.
pub(super) enum Called {
    /// It is sent.
    Sent(Option<Calling>),
    /// It waits.
    Held,
}

impl Outbound {
    /// Whether it waits for its answer.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.held || self.calling.is_some()
    }

    /// Decides when the call's headers arrive. If false, the caller holds the call until its
    /// [`Action::Send`](headgate_core::decision::Action::Send), and then calls
    /// [`send`](super::send).
    #[must_use]
    pub fn request_headers(
        &mut self,
        filter: &mut Filter<impl Host>,
        stream: &impl Stream,
    ) -> bool {
        match call(filter, stream) {
            Called::Sent(calling) => self.calling = calling,
            Called::Held => self.held = true,
        }
        !self.held
    }

    /// Handles the response's headers.
    pub fn response_headers(&mut self, filter: &mut Filter<impl Host>, stream: &impl Stream) {
        if let Some(calling) = self.calling.take() {
            answered(filter, stream, calling);
        }
        if std::mem::take(&mut self.held) {
            forwarded_answered(filter, stream);
        }
    }

    /// Records the end of the stream: a call that wasn't answered by then is lost.
    pub fn done(&mut self, filter: &mut Filter<impl Host>, stream: &impl Stream) {
        if let Some(calling) = self.calling.take() {
            unanswered(filter, stream, calling);
        }
        if std::mem::take(&mut self.held) {
            held_ended(filter, stream);
        }
    }
}
