//! Requests in flight: one span for each request at each process, and its caller.

use headgate_core::decision::Ticket;
use headgate_core::request::Progress;
use headgate_mesh::workflows::wire::Announcement;
use headgate_mesh::workflows::{Call, ProcessId, Token};

use super::seen::Ending;

/// The workflow data that an answer carries.
pub(super) type Said = (Announcement, Progress);

/// The recipient of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// A client: index of its load.
    Client(u32),
    /// A request of another process.
    Span(SpanId),
    /// The caller has gone.
    Gone,
}

/// The id of a span. Its generation detects that the index was reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpanId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// The state of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The index is free.
    Free,
    /// On the way to its process, in one of its queues, or at work.
    Open,
    /// Ended, with its answer on the way back.
    Answered(Ending),
    /// Ended, and its answer was lost.
    Lost,
}

/// A request at a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) generation: u32,
    pub(super) state: State,
    pub(super) caller: Caller,
    pub(super) workflow: u16,
    pub(super) task: u16,
    pub(super) process: u32,
    /// The process that called; for a client's request, its own process.
    pub(super) called_by: u32,
    pub(super) partition: u32,
    pub(super) size: u32,
    /// End-to-end deadline, ns since the start; `u64::MAX`: none.
    pub(super) deadline: u64,
    /// The time at which it was sent, ns.
    pub(super) sent: u64,
    /// The time at which it got its slot, ns.
    pub(super) began: u64,
    pub(super) ticket: Option<Ticket>,
    /// The token that it passes on with its calls.
    pub(super) token: Option<Token>,
    /// The process that called, if it identifies itself.
    pub(super) upstream: Option<ProcessId>,
    /// That process's record of the call.
    pub(super) call: Option<Call>,
    /// The workflow data that the answer carries.
    pub(super) said: Option<Said>,
    pub(super) step: u16,
    /// Calls of the step that are still to be made.
    pub(super) left: u32,
    /// Calls of the step that were made and not answered.
    pub(super) outstanding: u32,
}

/// All spans.
#[derive(Debug, Default)]
pub(super) struct Spans {
    spans: Vec<Span>,
    free: Vec<u32>,
}

impl Spans {
    pub(super) fn insert(&mut self, span: Span) -> SpanId {
        let Some(index) = self.free.pop() else {
            self.spans.push(span);
            // 2^32 requests at once don't fit into memory.
            return self.id((self.spans.len() - 1) as u32);
        };
        let place = &mut self.spans[index as usize];
        *place = Span {
            generation: place.generation,
            ..span
        };
        self.id(index)
    }

    pub(super) fn id(&self, index: u32) -> SpanId {
        SpanId {
            index,
            generation: self.spans[index as usize].generation,
        }
    }

    /// Returns the span, if it still exists.
    pub(super) fn get_mut(&mut self, id: SpanId) -> Option<&mut Span> {
        let span = &mut self.spans[id.index as usize];
        (span.generation == id.generation && span.state != State::Free).then_some(span)
    }

    pub(super) fn at(&self, index: u32) -> &Span {
        &self.spans[index as usize]
    }

    pub(super) fn at_mut(&mut self, index: u32) -> &mut Span {
        &mut self.spans[index as usize]
    }

    /// Frees a span's index for reuse.
    pub(super) fn remove(&mut self, index: u32) {
        let span = &mut self.spans[index as usize];
        span.generation = span.generation.wrapping_add(1);
        span.state = State::Free;
        self.free.push(index);
    }
}
