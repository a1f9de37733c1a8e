//! The requests of a policy on one worker, from their arrival to their end.

use std::time::Duration;

use headgate_strategies::discipline::Turn;
use headgate_strategies::reason::Reason;
use headgate_strategies::request::Attributes;
use headgate_strategies::rng;
use headgate_strategies::time::Instant;

use crate::decision::{Origin, PolicyId, Ticket};

/// The host to which a request was sent: a hash of its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upstream(u64);

impl Upstream {
    /// Returns the host with this address.
    pub fn at(address: &[u8]) -> Self {
        Self(rng::hash(address.iter().copied()))
    }
}

/// The phase of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The request is not in the stage yet. [`Beside`](crate::beside::Beside) holds it, or the
    /// decision on it is pending.
    Arriving,
    /// The request waits for a slot.
    Queued,
    /// The request is in the backend.
    Running {
        /// The time at which the request got its slot, or `None` if unknown. The request is then
        /// not measured.
        dequeued: Option<Instant>,
    },
}

/// The way in which a request counts in the strategy's measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counts {
    /// The request counts with its actual times.
    Real,
    /// In a dry run, the request counts with the queue wait that it would have had under
    /// enforcement.
    Modelled(Duration),
    /// The request doesn't count, because an enforced decision would have refused it.
    Refused,
}

/// A request in the stage's table.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The caller's id for the request.
    pub stream: u32,
    /// The request's attributes at its arrival, except that type and class follow the current
    /// configuration.
    pub attributes: Attributes,
    /// The request's origin, which a refusal repeats.
    pub origin: Origin,
    /// The time at which the request entered the stage.
    pub arrived: Instant,
    /// The time at which the longest allowed queue wait of the request ends.
    pub(crate) deadline: Instant,
    /// The reason for a refusal of the request at the deadline.
    pub(crate) late: Reason,
    /// The request's rank at its arrival.
    pub(crate) rank: u64,
    /// The request's turn, under orders with turns.
    pub(crate) turn: Option<Turn>,
    /// The request's part of the queued work, in the unit of [`headgate_strategies::work`].
    pub(crate) work: i64,
    /// The estimated queue wait at the request's arrival if the queue were a FIFO. `None` if no
    /// service time was known then.
    pub(crate) fifo_wait: Option<Duration>,
    /// The tokens of the budget that the request has or had. It takes them with its slot, and takes
    /// more if its output grows beyond them.
    pub(crate) tokens: u32,
    /// The number of requests that this one represents, because not every request is measured. 0 if
    /// it isn't measured itself.
    pub(crate) weight: u32,
    /// The end of the request's processing time, if its response then continues as a stream.
    pub(crate) first_byte: Option<Instant>,
    /// Whether the response's body has begun. A client that reads slowly may delay its end, so the
    /// backend no longer owes an answer.
    pub(crate) begun: bool,
    /// The number of output tokens in the response, if they are counted.
    pub(crate) output: u32,
    /// Whether `output` counts tokens, rather than parts of the response.
    pub(crate) counts_each: bool,
    /// The time per output token of the response. `None` if it isn't measured, or if the response
    /// has too few tokens.
    pub(crate) token_time: Option<Duration>,
    pub(crate) counts: Counts,
    /// The request's phase.
    pub phase: Phase,
    /// The time at which the proxy had received the whole request. `None` while its body still
    /// arrives.
    pub(crate) sent: Option<Instant>,
    /// Whether the request has been in the backend for so long that it counts as failed.
    pub(crate) overdue: bool,
    /// Whether the search for P has counted the request as late.
    pub(crate) counted_late: bool,
    /// Whether the request has been in the backend for longer than its type usually takes.
    pub(crate) silent: bool,
    /// The time at which the request released its slot before its end, and its upstream host at
    /// that time if that host hung.
    pub freed: Option<(Instant, Option<Upstream>)>,
    /// The number of slots in use when the request got its slot.
    pub(crate) beside: u32,
    /// Whether the request waits apart from the queue, because no request of its type is answered.
    pub(crate) parked: bool,
}

impl Request {
    /// Creates a request that arrives at `now`.
    pub fn new(stream: u32, attributes: Attributes, now: Instant) -> Self {
        Self {
            stream,
            attributes,
            origin: Origin::default(),
            arrived: now,
            deadline: now,
            late: Reason::QueueTimeout,
            rank: 0,
            turn: None,
            work: 0,
            fifo_wait: None,
            tokens: 0,
            weight: 1,
            first_byte: None,
            begun: false,
            output: 0,
            counts_each: false,
            token_time: None,
            counts: Counts::Real,
            phase: Phase::Arriving,
            sent: Some(now),
            overdue: false,
            counted_late: false,
            silent: false,
            freed: None,
            beside: 0,
            parked: false,
        }
    }

    /// Returns the time for which the request has had its slot at `now`. Returns `None` if the time
    /// isn't known.
    pub fn slot_time(&self, now: Instant) -> Option<Duration> {
        let Phase::Running { dequeued } = self.phase else {
            return None;
        };
        let until = self.freed.map_or(now, |(at, _)| at);
        Some(until.since(dequeued?))
    }

    /// Returns the time since which the backend owes an answer. Returns `None` if the request isn't
    /// in the backend or its answer has begun, and while its body still arrives.
    pub(crate) fn unanswered_since(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running { dequeued } if !self.begun => Some(dequeued?.max(self.sent?)),
            _ => None,
        }
    }

    /// Returns the number of output tokens that were counted. Returns the expected number if tokens
    /// weren't counted, or if no output was expected.
    pub(crate) fn real_output(&self) -> u32 {
        let expects_output = self.attributes.tokens > self.attributes.prompt_tokens;
        match self.counts_each && expects_output {
            true => self.output,
            false => self.attributes.output,
        }
    }
}

#[derive(Debug)]
struct Row {
    generation: u32,
    request: Option<Request>,
}

/// A table of requests with reused rows. Once the table has grown to the usual load, nothing is
/// allocated.
#[derive(Debug, Default)]
pub struct Requests {
    policy: PolicyId,
    rows: Vec<Row>,
    free: Vec<u32>,
}

impl Requests {
    pub(crate) fn new(policy: PolicyId) -> Self {
        Self {
            policy,
            ..Self::default()
        }
    }

    /// Adds a request.
    pub fn insert(&mut self, request: Request) -> Ticket {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.rows.push(Row {
                generation: 0,
                request: None,
            });
            // The cast loses nothing, because 2^32 requests at once don't fit into memory.
            (self.rows.len() - 1) as u32
        });
        let row = &mut self.rows[slot as usize];
        row.request = Some(request);
        Ticket {
            policy: self.policy,
            slot,
            generation: row.generation,
        }
    }

    /// Returns the ticket of the request in `slot`.
    pub(crate) fn ticket(&self, slot: u32) -> Option<Ticket> {
        let row = self.rows.get(slot as usize)?;
        row.request.as_ref().map(|_| Ticket {
            policy: self.policy,
            slot,
            generation: row.generation,
        })
    }

    fn row(&self, ticket: Ticket) -> Option<&Row> {
        let row = self.rows.get(ticket.slot as usize)?;
        (row.generation == ticket.generation).then_some(row)
    }

    fn row_mut(&mut self, ticket: Ticket) -> Option<&mut Row> {
        let row = self.rows.get_mut(ticket.slot as usize)?;
        (row.generation == ticket.generation).then_some(row)
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&Request> {
        self.rows.get(slot as usize)?.request.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Request> {
        self.rows.get_mut(slot as usize)?.request.as_mut()
    }

    /// Returns the request of `ticket`, or `None` if it was taken.
    pub fn of(&self, ticket: Ticket) -> Option<&Request> {
        self.row(ticket)?.request.as_ref()
    }

    /// Returns the request of `ticket` mutably, or `None` if it was taken.
    pub fn of_mut(&mut self, ticket: Ticket) -> Option<&mut Request> {
        self.row_mut(ticket)?.request.as_mut()
    }

    /// Removes and returns the request of `ticket`. Returns `None` if it was taken before.
    pub fn take(&mut self, ticket: Ticket) -> Option<Request> {
        let row = self.row_mut(ticket)?;
        let request = row.request.take()?;
        row.generation = row.generation.wrapping_add(1);
        self.free.push(ticket.slot);
        Some(request)
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    /// Whether the table has no request.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Request> {
        self.rows.iter().filter_map(|row| row.request.as_ref())
    }

    pub(crate) fn tickets(&self) -> impl Iterator<Item = (Ticket, &Request)> {
        let slots = 0..self.rows.len() as u32;
        slots.filter_map(|slot| Some((self.ticket(slot)?, self.get(slot)?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.rows.iter_mut().filter_map(|row| row.request.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use headgate_strategies::request::TypeId;

    use super::*;

    fn request(stream: u32) -> Request {
        Request::new(stream, Attributes::of(TypeId(0)), Instant::from_nanos(0))
    }

    #[test]
    fn a_ticket_is_good_for_one_request_only() {
        let mut requests = Requests::default();
        let first = requests.insert(request(1));
        assert_eq!(requests.take(first).map(|r| r.stream), Some(1));
        let second = requests.insert(request(2));
        assert_eq!(second.slot, first.slot, "the place is reused");
        assert!(
            requests.take(first).is_none(),
            "the old ticket does not take the new request"
        );
        assert_eq!(requests.take(second).map(|r| r.stream), Some(2));
        assert_eq!(requests.len(), 0);
    }
}
