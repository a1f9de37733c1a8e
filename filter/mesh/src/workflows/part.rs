//! The workflow data of one request, from its arrival to its end.

use headgate_core::decision::Ticket;
use headgate_core::requests::{Request, Requests};
use headgate_strategies::request::Progress;
use headgate_strategies::time::Instant;

use super::WorkflowId;
use super::call_tree::Branch;

/// The workflow data of one request. The request's attributes are those at its arrival, with two
/// additions from its workflow. The deadline is added if the request had none, and the totals if
/// the request enters the mesh here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// The end-to-end deadline of the request.
    pub(super) deadline: Option<Instant>,
    /// Whether the deadline limits the wait in the limiter. If false, the queue's timeout limits
    /// the wait.
    pub(super) hasty: bool,
    /// The time at which the limiter let the request pass, or `None` while the limiter holds the
    /// request.
    pub(super) passed: Option<Instant>,
    /// The time at which the request went to the backend.
    pub(super) started: Option<Instant>,
    /// The address of the sums over the request's calls.
    pub(super) branch: Option<Branch>,
    /// The request's use of the second resource, in its unit, or `None` if no response reported it.
    pub(super) resource: Option<f64>,
    /// The progress of the request and its calls, or `None` until the response begins.
    pub(super) done: Option<Progress>,
}

impl Part {
    /// Records that the limiter lets `request` pass. Adds the wait since the arrival to the
    /// request's age, and sets its deadline to the remaining time.
    pub(super) fn pass(&mut self, request: &mut Request, now: Instant) {
        self.passed = Some(now);
        request.attributes.progress.age += now.since(request.arrived);
        if let Some(deadline) = self.deadline {
            request.attributes.own_deadline = Some(deadline.since(now));
        }
    }
}

/// The parts of a worker's requests, by slot of the requests' table. The part of an ended request
/// stays until the slot is reused.
#[derive(Debug, Default)]
pub(crate) struct Parts(Vec<Option<(Ticket, Part)>>);

impl Parts {
    /// Adds `request` to the table `requests`, and keeps its part.
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

    /// Returns the request and its part, or `None` if the request has ended or has no part.
    pub(super) fn of<'a>(
        &'a self,
        requests: &'a Requests,
        ticket: Ticket,
    ) -> Option<(&'a Request, &'a Part)> {
        let (own, part) = self.0.get(ticket.slot() as usize)?.as_ref()?;
        Some((requests.of(ticket)?, part)).filter(|_| *own == ticket)
    }

    /// Does the same as [`Parts::of`], with mutable results.
    pub(super) fn both_mut<'a>(
        &'a mut self,
        requests: &'a mut Requests,
        ticket: Ticket,
    ) -> Option<(&'a mut Request, &'a mut Part)> {
        let (own, part) = self.0.get_mut(ticket.slot() as usize)?.as_mut()?;
        Some((requests.of_mut(ticket)?, part)).filter(|_| *own == ticket)
    }

    /// Yields the workflow of each request that has a part.
    pub(super) fn workflows<'a>(
        &'a self,
        requests: &'a Requests,
    ) -> impl Iterator<Item = WorkflowId> + 'a {
        let parts = self.0.iter().flatten();
        parts.filter_map(move |(ticket, _)| Some(WorkflowId(requests.of(*ticket)?.origin.flow)))
    }

    /// Returns the number of requests in the backend, without those that released their slots.
    pub(super) fn running(&self, requests: &Requests) -> u32 {
        let holds_slot = |of: &Request| of.freed.is_none();
        let parts = self.0.iter().flatten();
        let started = parts.filter(|(_, part)| part.started.is_some());
        let running = started.filter(|(ticket, _)| requests.of(*ticket).is_some_and(holds_slot));
        u32::try_from(running.count()).unwrap_or(u32::MAX)
    }

    /// Whether any request has a part.
    pub(super) fn any(&self, requests: &Requests) -> bool {
        let mut parts = self.0.iter().flatten();
        parts.any(|(ticket, _)| requests.of(*ticket).is_some())
    }
}
