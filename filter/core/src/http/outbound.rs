//! One call that the process behind the proxy makes: from its headers to its answer's.
//!
//! It counts as answered when the headers of its response come, which is when the called proxy
//! wrote what it announces; a response that streams for minutes would bring an announcement that
//! expired long ago. A call that is tried again by Envoy is one call: nobody but the last process
//! answers.
//!
//! It may have to wait before it is sent.

use crate::engine::Calling;
use crate::host::Host;

use super::{Filter, Stream};

/// One call.
#[derive(Debug, Default)]
pub struct Outbound {
    /// What it belongs to, until it is answered.
    calling: Option<Calling>,
    /// It waited or still waits; the filter knows what it belongs to, until it is answered.
    held: bool,
}

/// What becomes of a call at its headers.
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

    /// The call's headers are there. False: the caller holds it until there is an
    /// [`Action::Send`](crate::decision::Action::Send) for it, and then tells [`Filter::send`].
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

    /// The response's headers are there.
    pub fn response_headers(&mut self, filter: &mut Filter<impl Host>, stream: &impl Stream) {
        if let Some(calling) = self.calling.take() {
            filter.answered(stream, calling);
        }
        if std::mem::take(&mut self.held) {
            filter.forwarded_answered(stream);
        }
    }

    /// The stream ends: if the call wasn't answered by then, it is lost.
    pub fn done(&mut self, filter: &mut Filter<impl Host>, stream: &impl Stream) {
        if let Some(calling) = self.calling.take() {
            filter.unanswered(stream, calling);
        }
        if std::mem::take(&mut self.held) {
            filter.held_ended(stream);
        }
    }
}
