//! The workflow's state of one request, from its arrival to its end.

use headgate_core::decision::Ticket;
use headgate_core::request::Progress;
use headgate_core::requests::{Request, Requests};
use headgate_core::time::Instant;

use super::Origin;
use super::call_tree::Branch;

/// The workflow's state of one request. The request's attributes are the stage's: those that it
/// came with, the deadline of its workflow if it had none, and the totals of its workflow if it
/// enters the mesh here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// The time at which waiting becomes pointless.
    pub(super) deadline: Option<Instant>,
    /// The time at which the limiter let it pass; `None` while it holds it.
    pub(super) passed: Option<Instant>,
    /// The time at which it went to the backend.
    pub(super) started: Option<Instant>,
    /// The place of the sums over its calls.
    pub(super) branch: Option<Branch>,
    /// Its use of the second resource, in its unit.
    pub(super) resource: f64,
    /// The progress of it and its calls, once its response began.
    pub(super) done: Option<Progress>,
}

impl Part {
    /// Records that the limiter lets `request` pass. The wait since its arrival is added to its
    /// age, and its deadline becomes the remaining time.
    pub(super) fn pass(&mut self, request: &mut Request, now: Instant) {
        self.passed = Some(now);
        request.attributes.progress.age += now.since(request.arrived);
        if let Some(deadline) = self.deadline {
            request.attributes.own_deadline = Some(deadline.since(now));
        }
    }
}

/// Returns the origin of a request, which came with one if it has a part.
pub(super) fn origin(request: &Request) -> Origin {
    request.origin.map_or(Origin::UNKNOWN, Origin::from)
}

/// The parts of a worker's requests, by their place in the table. That of a request that is over
/// stays until the place is reused.
#[derive(Debug, Default)]
pub(crate) struct Parts(Vec<Option<(Ticket, Part)>>);

impl Parts {
    /// Adds a request to the table, with its part.
    pub(super) fn insert(
        &mut self,
        requests: &mut Requests,
        request: Request,
        part: Part,
    ) -> Ticket {
        let ticket = requests.insert(request);
        let at = ticket.slot() as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        self.0[at] = Some((ticket, part));
        ticket
    }

    /// The request and its part; `None` if it is over, or has none.
    pub(super) fn of<'a>(
        &'a self,
        requests: &'a Requests,
        ticket: Ticket,
    ) -> Option<(&'a Request, &'a Part)> {
        let (own, part) = self.0.get(ticket.slot() as usize)?.as_ref()?;
        Some((requests.of(ticket)?, part)).filter(|_| *own == ticket)
    }

    /// As [`Parts::of`], to change both.
    pub(super) fn both_mut<'a>(
        &'a mut self,
        requests: &'a mut Requests,
        ticket: Ticket,
    ) -> Option<(&'a mut Request, &'a mut Part)> {
        let (own, part) = self.0.get_mut(ticket.slot() as usize)?.as_mut()?;
        Some((requests.of_mut(ticket)?, part)).filter(|_| *own == ticket)
    }

    /// Whether any request has a part.
    pub(super) fn any(&self, requests: &Requests) -> bool {
        let mut parts = self.0.iter().flatten();
        parts.any(|(ticket, _)| requests.of(*ticket).is_some())
    }
}
