//! Requests of workflows on one worker, from the rate limiter to their end.

use std::collections::HashMap;

use crate::refusal::Origin;
use crate::request::{Attributes, Progress};
use crate::stage::Ticket;
use crate::time::Instant;

use super::call_tree::Branch;

/// A request's place among those of its workflow, from its arrival to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// A request that is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// The caller's name for it.
    pub(super) stream: u32,
    pub(super) origin: Origin,
    /// What the stage is to know of it.
    pub(super) attributes: Attributes,
    /// When waiting for it becomes pointless.
    pub(super) deadline: Option<Instant>,
    /// When the limiter let it pass; `None` while it holds it.
    pub(super) passed: Option<Instant>,
    /// When it went to the backend.
    pub(super) started: Option<Instant>,
    /// Its place in the stage.
    pub(super) ticket: Option<Ticket>,
    /// Where its calls are added up.
    pub(super) branch: Option<Branch>,
    /// What it used of the second resource, in its unit.
    pub(super) resource: f64,
    /// What it and its calls have done, once its response began.
    pub(super) done: Option<Progress>,
}

impl Request {
    /// The limiter lets it go: from now on its time counts.
    pub(super) fn pass(&mut self, now: Instant) {
        self.passed = Some(now);
        if let Some(deadline) = self.deadline {
            self.attributes.own_deadline = Some(deadline.since(now));
        }
    }
}

#[derive(Debug)]
struct Place {
    generation: u32,
    request: Option<Request>,
}

/// A table with reused places: nothing is allocated once it has grown to the usual load.
#[derive(Debug, Default)]
pub(super) struct Entries {
    places: Vec<Place>,
    free: Vec<u32>,
    /// Slot by stream.
    streams: HashMap<u32, u32>,
}

impl Entries {
    pub(super) fn insert(&mut self, request: Request) -> Entry {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place {
                generation: 0,
                request: None,
            });
            // 2^32 requests don't fit in a wasm32 VM.
            (self.places.len() - 1) as u32
        });
        self.streams.insert(request.stream, slot);
        let place = &mut self.places[slot as usize];
        place.request = Some(request);
        Entry {
            slot,
            generation: place.generation,
        }
    }

    pub(super) fn get(&self, entry: Entry) -> Option<&Request> {
        let place = self.places.get(entry.slot as usize)?;
        let current = place.generation == entry.generation;
        place.request.as_ref().filter(|_| current)
    }

    pub(super) fn get_mut(&mut self, entry: Entry) -> Option<&mut Request> {
        let place = self.places.get_mut(entry.slot as usize)?;
        let current = place.generation == entry.generation;
        place.request.as_mut().filter(|_| current)
    }

    /// The request that the caller names `stream`.
    pub(super) fn named(&self, stream: u32) -> Option<Entry> {
        let &slot = self.streams.get(&stream)?;
        let place = self.places.get(slot as usize)?;
        place.request.as_ref().map(|_| Entry {
            slot,
            generation: place.generation,
        })
    }

    pub(super) fn take(&mut self, entry: Entry) -> Option<Request> {
        self.get(entry)?;
        let place = self.places.get_mut(entry.slot as usize)?;
        let request = place.request.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(entry.slot);
        // Its name may be another's by now.
        if self.streams.get(&request.stream) == Some(&entry.slot) {
            self.streams.remove(&request.stream);
        }
        Some(request)
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.places.iter_mut().filter_map(|p| p.request.as_mut())
    }
}
