//! One call that the process behind the proxy makes: from its headers to its answer's.
//!
//! It counts as answered when the headers of its response come, which is when the called proxy wrote what it announces;
//! a response that streams for minutes would bring an announcement that expired long ago. A call that is tried again by
//! Envoy is one call: nobody but the last process answers.

use crate::engine::Calling;
use crate::host::Host;

use super::{Filter, Stream};

/// One call.
#[derive(Debug, Default)]
pub struct Outbound {
    /// What it belongs to, until it is answered.
    calling: Option<Calling>,
}

impl Outbound {
    /// Whether it waits for its answer.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.calling.is_some()
    }

    /// The call's headers are there.
    pub fn request_headers(&mut self, filter: &mut Filter<impl Host>, stream: &impl Stream) {
        self.calling = filter.call(stream);
    }

    /// The response's headers are there.
    pub fn response_headers(&mut self, filter: &mut Filter<impl Host>, stream: &impl Stream) {
        if let Some(calling) = self.calling.take() {
            filter.answered(stream, calling);
        }
    }

    /// The stream ends: if the call wasn't answered by then, it is lost.
    pub fn done(&mut self, filter: &mut Filter<impl Host>, stream: &impl Stream) {
        if let Some(calling) = self.calling.take() {
            filter.unanswered(stream, calling);
        }
    }
}
