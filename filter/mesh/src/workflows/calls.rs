//! Calls between processes: the headers of a request's calls, the announcement in its response, and
//! the effect of the answers of called processes.

use std::time::Duration;

use headgate_core::config::SharingConfig;
use headgate_core::decision::{Origin, Ticket};
use headgate_core::host::Host;
use headgate_core::requests::Requests;
use headgate_strategies::request::{ClassId, Progress};
use headgate_strategies::time::Instant;

use super::call_tree::{Branch, Parent};
use super::part::Part;
use super::process::Workflows;
use super::stats::{Count, ProcessCount};
use super::wire::Announcement;
use super::{OTHER, ProcessId, ServiceId, Token, WorkflowId};

/// The longest time for which a request can use all of the second resource, s.
const MOST_SECONDS: f64 = 3_600.0;

/// A response's announcement to the calling process (headers [`super::wire::RATE`] and
/// [`super::wire::PROGRESS`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Announced {
    /// This process's id, and the rate at which it accepts requests from the caller.
    pub announcement: Announcement,
    /// The elapsed time and the work of the request and all calls below it.
    pub progress: Progress,
}

/// A call of this process to another process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Call {
    workflow: WorkflowId,
    service: ServiceId,
    began: Instant,
    branch: Option<Branch>,
    /// The remaining time until the deadline.
    pub deadline: Option<Duration>,
    /// The request's progress so far, over all processes.
    pub progress: Progress,
    /// The class of the request that caused the call, unless the classes have been edited since.
    pub class: Option<ClassId>,
}

impl Call {
    /// Returns the workflow of the call.
    pub fn workflow(&self) -> WorkflowId {
        self.workflow
    }

    /// Returns the called service.
    #[cfg(test)]
    pub(crate) fn service(&self) -> ServiceId {
        self.service
    }
}

impl Workflows {
    /// Returns the progress of the request and the calls below it.
    pub(super) fn done(
        &mut self,
        host: &impl Host,
        now: Instant,
        part: &Part,
        workflow: WorkflowId,
        started: Instant,
    ) -> Progress {
        // Requests of workflows without calls have no sums to look up.
        let row = self.published.row(workflow);
        let calls = row.is_none_or(|row| row.calls);
        let branch = part.branch.filter(|_| calls);
        let children = branch.and_then(|branch| self.branches.load(host, branch).ok().flatten());
        children.unwrap_or_default().progress(started, now)
    }

    /// Whether a request has a workflow.
    pub(crate) fn has(&self, requests: &Requests, ticket: Ticket) -> bool {
        self.parts.of(requests, ticket).is_some()
    }

    /// Returns the token of a request, which the application copies to its calls. Returns `None`
    /// before the request goes to the backend.
    pub(crate) fn token(&self, requests: &Requests, ticket: Ticket) -> Option<Token> {
        let (request, part) = self.parts.of(requests, ticket)?;
        let started = part.started?;
        let mut progress = request.attributes.progress;
        progress.age += started.since(request.arrived);
        let parent = Parent {
            process: self.process,
            branch: part.branch,
            workflow: WorkflowId(request.origin.flow),
            class: request.attributes.class,
            classes: self.classes,
            started,
            deadline: part.deadline,
            progress,
        };
        Some(parent.token())
    }

    /// Returns the announcement for the sender of a request, when the response begins. Returns
    /// `None` if the sender is a client outside the mesh.
    pub(crate) fn answer(
        &mut self,
        host: &impl Host,
        now: Instant,
        requests: &mut Requests,
        ticket: Ticket,
    ) -> Option<Announced> {
        let (request, part) = self.parts.of(requests, ticket)?;
        let (part, origin) = (*part, request.origin);
        let workflow = WorkflowId(origin.flow);
        let done = self.done(host, now, &part, workflow, part.started?);
        self.parts.both_mut(requests, ticket)?.1.done = Some(done);
        origin.sender.map(|_| Announced {
            announcement: self.announcement(origin),
            progress: done,
        })
    }

    /// Sets a request's use of the second resource, in its units, as its response reports it. A use
    /// of more than [`MOST_SECONDS`] of the whole capacity is ignored. It would leave the workflow
    /// no rate, and without requests its mean cost would never change again.
    pub(crate) fn resource_used(&mut self, requests: &mut Requests, ticket: Ticket, amount: f64) {
        let SharingConfig::DominantResource { resource, .. } = &self.config.sharing else {
            return;
        };
        if let Some((_, part)) = self.parts.both_mut(requests, ticket)
            && amount <= resource.capacity * MOST_SECONDS
        {
            part.resource = Some(amount.max(0.0));
        }
    }

    /// Returns the announcement of the rate at which a request's sender may send the request's
    /// workflow. It is for refusals, which don't come from the backend. A dry run announces no
    /// limit.
    pub fn announcement(&self, origin: Origin) -> Announcement {
        let sender = origin.sender.map_or(ProcessId::UNKNOWN, ProcessId);
        let workflow = WorkflowId(origin.flow);
        let rate = self.published.announced(workflow, sender);
        Announcement {
            process: self.process,
            rate: rate.filter(|_| self.enforced && !self.retired),
        }
    }

    /// Whether this process made `token`.
    pub(crate) fn made(&self, token: &[u8]) -> bool {
        Parent::of_token(self.process, token).is_some()
    }

    /// Returns the deadline of the request of `token`. Returns `None` if the request has no
    /// deadline, or if another process made the token.
    pub(crate) fn deadline(&self, token: &[u8]) -> Option<Instant> {
        Parent::of_token(self.process, token)?.deadline
    }

    /// Records a call to `service` for the request of `token`. Without a valid token, the call is
    /// only counted, for `workflow`. The application made the call at `since`, and the call is sent
    /// at `now`. The caller must report the end of every call with [`Workflows::answered`].
    pub fn called(
        &mut self,
        host: &impl Host,
        (since, now): (Instant, Instant),
        service: ServiceId,
        token: Option<&[u8]>,
        workflow: Option<WorkflowId>,
    ) -> Call {
        let parent = token.and_then(|token| Parent::of_token(self.process, token));
        let Some(parent) = parent else {
            let workflow = workflow.unwrap_or(OTHER);
            self.stats.count(workflow, Count::Calls);
            return Call {
                workflow,
                service,
                began: since,
                branch: None,
                deadline: None,
                progress: Progress::default(),
                class: None,
            };
        };
        // The id may have been assigned before the cap was lowered.
        let known = parent.workflow.0 <= self.config.max_workflows;
        let workflow = if known { parent.workflow } else { OTHER };
        self.stats.count(workflow, Count::Calls);
        let begun = parent.branch.map(|branch| {
            let found = self.branches.began(host, since, branch, parent.started);
            (branch, found.ok().flatten())
        });
        // If the branch belongs to a later request, or the host fails, the progress doesn't include
        // the call.
        let children = begun.and_then(|(_, children)| children);
        let branch = begun.and_then(|(branch, children)| children.map(|_| branch));
        let so_far = children.unwrap_or_default().progress(parent.started, now);
        let received = parent.progress;
        Call {
            workflow,
            service,
            began: since,
            branch,
            deadline: parent.deadline.map(|deadline| deadline.since(now)),
            progress: Progress {
                elapsed: received.elapsed + so_far.elapsed,
                work: received.work + so_far.work,
                age: received.age + now.since(parent.started),
                ..received
            },
            // After an edit of the classes, another class may have the id.
            class: Some(parent.class).filter(|_| parent.classes == self.classes),
        }
    }

    /// Records the end of a call. `heard` and `progress` are the announcement and the progress in
    /// the answer. They are `None` if the call got no answer, or if the answer has none.
    pub fn answered(
        &mut self,
        host: &impl Host,
        now: Instant,
        call: Call,
        heard: Option<&Announcement>,
        progress: Option<&Progress>,
    ) {
        let Call {
            workflow, service, ..
        } = call;
        if let Some(branch) = call.branch {
            let took = now.since(call.began);
            // On a host error, the progress doesn't include the end of the call.
            self.branches
                .ended(host, now, branch, took, progress)
                .unwrap_or(());
        }
        let process = heard.map_or(ProcessId::UNKNOWN, |heard| heard.process);
        let callee = (workflow, service, process);
        self.measured.called(callee, 1);
        if let Some(heard) = heard {
            let rate = heard.rate.unwrap_or(f64::INFINITY);
            self.measured.heard(callee, rate, now);
        }
    }

    /// Counts an announcement that is untrusted or unreadable.
    pub fn rate_refused(&mut self) {
        self.stats.count_process(ProcessCount::Refused, 1);
    }
}
