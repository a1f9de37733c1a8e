//! One call that the process behind the proxy makes: from its headers to its answer's.
//!
//! It counts as answered when the headers of its response come, when the called proxy has just
//! written its announcement. A response that streams for minutes would bring an announcement that
//! expired long ago. A call that Envoy retries is one call: only the last process answers.
//!
//! It may be delayed before it is sent.

use crate::engine::Calling;
use crate::host::Host;

use super::{Filter, Stream};

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
    /// [`Action::Send`](crate::decision::Action::Send), and then calls [`Filter::send`].
    #[must_use]
    pub fn request_headers(
        &mut self,
        filter: &mut Filter<impl Host>,
        stream: &impl Stream,
    ) -> bool {
        match filter.call(stream) {
            Called::Sent(calling) => self.calling = calling,
            Called::Held => self.held = true,
        }
        !self.held
    }

    /// Handles the response's headers.
    pub fn response_headers(&mut self, filter: &mut Filter<impl Host>, stream: &impl Stream) {
        if let Some(calling) = self.calling.take() {
            filter.answered(stream, calling);
        }
        if std::mem::take(&mut self.held) {
            filter.forwarded_answered(stream);
        }
    }

    /// Records the end of the stream: a call that wasn't answered by then is lost.
    pub fn done(&mut self, filter: &mut Filter<impl Host>, stream: &impl Stream) {
        if let Some(calling) = self.calling.take() {
            filter.unanswered(stream, calling);
        }
        if std::mem::take(&mut self.held) {
            filter.held_ended(stream);
        }
    }
}
