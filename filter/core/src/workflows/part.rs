//! The workflow's state of one request, from its arrival to its end.

use super::call_tree::Branch;
use crate::refusal::Origin;
use crate::request::Progress;
use crate::requests::Request;
use crate::time::Instant;

/// The workflow's state of one request. The request's attributes are the stage's: those that it
/// came with, the deadline of its workflow if it had none, and the totals of its workflow if it
/// enters the mesh here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) origin: Origin,
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
