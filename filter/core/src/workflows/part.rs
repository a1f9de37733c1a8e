//! What a workflow has to know of one request, from its arrival to its end.

use super::call_tree::Branch;
use crate::refusal::Origin;
use crate::request::Progress;
use crate::requests::Request;
use crate::time::Instant;

/// See the module. The request's attributes are what the stage is to know of it: what it said, with
/// the deadline of its workflow where it named none and the totals of its workflow where it enters
/// the mesh.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) origin: Origin,
    /// When waiting for it becomes pointless.
    pub(super) deadline: Option<Instant>,
    /// When the limiter let it pass; `None` while it holds it.
    pub(super) passed: Option<Instant>,
    /// When it went to the backend.
    pub(super) started: Option<Instant>,
    /// Where its calls are added up.
    pub(super) branch: Option<Branch>,
    /// What it used of the second resource, in its unit.
    pub(super) resource: f64,
    /// What it and its calls have done, once its response began.
    pub(super) done: Option<Progress>,
}

impl Part {
    /// The limiter lets `request` go, which came to it at `arrived`: from now on its time counts.
    pub(super) fn pass(&mut self, request: &mut Request, now: Instant) {
        self.passed = Some(now);
        request.attributes.progress.age += now.since(request.arrived);
        if let Some(deadline) = self.deadline {
            request.attributes.own_deadline = Some(deadline.since(now));
        }
    }
}
