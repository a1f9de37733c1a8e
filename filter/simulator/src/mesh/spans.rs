//! Requests in flight: one span for each request at each process, and its caller.

use headgate_core::decision::Ticket;
use headgate_mesh::workflows::wire::Announcement;
use headgate_mesh::workflows::{Call, ProcessId, Token};
use headgate_strategies::request::Progress;

use super::seen::Ending;

/// The workflow data of an answer.
pub(super) type Said = (Announcement, Progress);

/// The recipient of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Caller {
    /// A client, as the index of the client's load.
    Client(u32),
    /// A request of another process.
    Span(SpanId),
    /// The caller no longer waits.
    #[default]
    Gone,
}

/// The id of a span. Its generation detects a reused index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpanId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// The state of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum SpanState {
    /// The index is free.
    Free,
    /// The request is on its way to the process, in one of its queues, or in service.
    #[default]
    Open,
    /// The request has ended, and its answer is on the way back.
    Answered(Ending),
    /// The request has ended, and its answer was lost.
    Lost,
}

/// A request at a process.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Span {
    pub(super) generation: u32,
    pub(super) state: SpanState,
    pub(super) caller: Caller,
    pub(super) workflow: u16,
    pub(super) task: u16,
    pub(super) process: u32,
    /// The calling process. For a client's request, this is the process itself.
    pub(super) called_by: u32,
    pub(super) partition: u32,
    pub(super) size: u32,
    /// The end-to-end deadline, ns since the start; `u64::MAX` for none.
    pub(super) deadline: u64,
    /// The time at which the request was sent, ns.
    pub(super) sent: u64,
    /// The time at which the request got its slot, ns.
    pub(super) began: u64,
    pub(super) ticket: Option<Ticket>,
    /// The token that the request passes to its calls.
    pub(super) token: Option<Token>,
    /// The calling process, if it identifies itself.
    pub(super) upstream: Option<ProcessId>,
    /// The calling process's record of the call.
    pub(super) call: Option<Call>,
    /// The workflow data of the answer.
    pub(super) said: Option<Said>,
    pub(super) step: u16,
    /// The number of calls of the step that are still to be made.
    pub(super) left: u32,
    /// The number of calls of the step that were made and not answered.
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
            // The index fits into 32 bits, because 2^32 requests at once don't fit into memory.
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
        (span.generation == id.generation && span.state != SpanState::Free).then_some(span)
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
        span.state = SpanState::Free;
        self.free.push(index);
    }
}
