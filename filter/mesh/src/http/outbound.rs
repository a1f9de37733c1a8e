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

use super::{answered, call, held_answered, held_ended, unanswered};
use crate::Filter;
use crate::engine::Calling;

/// The state of one call of the application.
#[derive(Debug, Default)]
pub struct Outbound {
    /// The call's state, or `None` once the call is answered.
    calling: Option<Calling>,
    /// Whether the call is or was delayed. The filter then keeps the call's state until the answer.
    held: bool,
}

/// The decision on a call at its request headers.
#[expect(
    clippy::large_enum_variant,
    reason = "it is matched where it is returned, and a box would be an allocation for each call"
)]
pub(super) enum Called {
    /// The call is sent.
    Sent(Option<Calling>),
    /// The call is delayed.
    Held,
}

impl Outbound {
    /// Whether the call is delayed or waits for its answer.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.held || self.calling.is_some()
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
        match call(filter, stream, None) {
            Called::Sent(calling) => self.calling = calling,
            Called::Held => self.held = true,
        }
        !self.held
    }

    /// Handles the call's response headers.
    pub fn response_headers(&mut self, filter: &mut Filter<impl Host>, stream: &impl Stream) {
        if let Some(calling) = self.calling.take() {
            answered(filter, stream, calling);
        }
        if std::mem::take(&mut self.held) {
            held_answered(filter, stream);
        }
    }

    /// Records the end of the stream. A call that has no answer yet counts as unanswered.
    pub fn done(&mut self, filter: &mut Filter<impl Host>, stream: &impl Stream) {
        if let Some(calling) = self.calling.take() {
            unanswered(filter, stream, calling);
        }
        if std::mem::take(&mut self.held) {
            held_ended(filter, stream);
        }
    }
}
