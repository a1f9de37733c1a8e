//! The requests that a stage holds or has let through, by ticket.

use std::time::Duration;

use crate::discipline::Turn;
use crate::refusal::Cause;
use crate::request::Attributes;
use crate::time::Instant;

/// A stage's promise to one request: present it to [`super::Stage::finish`] when the request ends, in
/// whatever way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    pub(super) slot: u32,
    generation: u32,
}

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for a slot, since its arrival.
    Queued,
    /// Holds a slot.
    Running {
        /// When it got the slot; `None` when nobody can tell, so that it can't be measured.
        dequeued: Option<Instant>,
    },
}

/// As what a request enters the strategy's measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    /// As it was served.
    Real,
    /// In a dry run: with the queue wait that it would have had.
    Modelled(Duration),
    /// In a dry run that would have refused it: not at all.
    Refused,
}

/// A request in the stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// The caller's name for it.
    pub(super) stream: u32,
    /// What it said at its arrival, with its type and class of today.
    pub(super) attributes: Attributes,
    pub(super) arrived: Instant,
    /// When waiting becomes pointless.
    pub(super) deadline: Instant,
    /// Why it is refused then.
    pub(super) late: Cause,
    /// Its place in the order of the queue.
    pub(super) rank: u64,
    /// What it spends of its flow's turns.
    pub(super) turn: Option<Turn>,
    /// Its part of the queued work, in the unit of [`crate::work::Work`].
    pub(super) work: i64,
    /// Estimated queue wait at its arrival if the queue were a FIFO.
    pub(super) fifo_wait: Duration,
    /// Answers that its own stands for.
    pub(super) weight: u32,
    pub(super) counts: Counts,
    pub(super) phase: Phase,
}

impl Request {
    /// Its group in the order of the queue ([`crate::discipline::Order::group`]).
    pub(super) fn group(&self) -> u16 {
        self.turn.map_or(self.attributes.kind.0, |turn| turn.flow)
    }
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    request: Option<Request>,
}

/// A table with reused places: nothing is allocated once it has grown to the usual load.
#[derive(Debug, Default)]
pub(super) struct Requests {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Requests {
    pub(super) fn insert(&mut self, request: Request) -> Ticket {
        if let Some(slot) = self.free.pop() {
            let entry = &mut self.entries[slot as usize];
            entry.request = Some(request);
            return Ticket {
                slot,
                generation: entry.generation,
            };
        }
        // 2^32 requests don't fit in a wasm32 VM.
        let slot = self.entries.len() as u32;
        self.entries.push(Entry {
            generation: 0,
            request: Some(request),
        });
        Ticket {
            slot,
            generation: 0,
        }
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Request> {
        self.entries.get(slot as usize)?.request.as_ref()
    }

    /// The request that `ticket` was given for; `None` once it was taken.
    pub(super) fn of(&self, ticket: Ticket) -> Option<&Request> {
        let entry = self.entries.get(ticket.slot as usize)?;
        entry
            .request
            .as_ref()
            .filter(|_| entry.generation == ticket.generation)
    }

    pub(super) fn of_mut(&mut self, ticket: Ticket) -> Option<&mut Request> {
        let entry = self.entries.get_mut(ticket.slot as usize)?;
        let current = entry.generation == ticket.generation;
        entry.request.as_mut().filter(|_| current)
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Request> {
        self.entries.get_mut(slot as usize)?.request.as_mut()
    }

    /// Takes the request that `ticket` was given for; `None` if it was taken before.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Request> {
        let entry = self.entries.get(ticket.slot as usize)?;
        if entry.generation != ticket.generation {
            return None;
        }
        self.take_slot(ticket.slot)
    }

    pub(super) fn take_slot(&mut self, slot: u32) -> Option<Request> {
        let entry = self.entries.get_mut(slot as usize)?;
        let request = entry.request.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        Some(request)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Request> {
        self.entries.iter().filter_map(|e| e.request.as_ref())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.entries.iter_mut().filter_map(|e| e.request.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::TypeId;

    fn request(stream: u32) -> Request {
        Request {
            stream,
            arrived: Instant::from_nanos(0),
            deadline: Instant::from_nanos(1),
            late: Cause::QueueTimeout,
            rank: 0,
            turn: None,
            attributes: Attributes::of(TypeId(0)),
            work: 0,
            fifo_wait: Duration::ZERO,
            weight: 1,
            counts: Counts::Real,
            phase: Phase::Queued,
        }
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
