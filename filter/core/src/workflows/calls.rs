//! Calls between processes: what a request hands on with its calls, what its response tells who
//! asked, and what is learned from the answers of those that it calls.

use std::time::Duration;

use super::adaptation::Heard;
use super::call_tree::{Branch, Parent};
use super::part::Part;
use super::process::Workflows;
use super::stats::{Count, ProcessCount};
use super::wire::Announcement;
use super::{OTHER, ProcessId, ServiceId, Token, WorkflowId};
use crate::decision::Ticket;
use crate::host::Host;
use crate::refusal::Origin;
use crate::request::{ClassId, Progress};
use crate::requests::{Request, Requests};
use crate::time::Instant;

/// What a response tells the process that asked (headers [`super::wire::RATE`] and
/// [`super::wire::PROGRESS`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    /// Who answers, and what it lets that process send.
    pub announcement: Announcement,
    /// Service time and work of the request and all calls below it.
    pub progress: Progress,
}

/// A call of the process to another one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Call {
    workflow: WorkflowId,
    service: ServiceId,
    began: Instant,
    branch: Option<Branch>,
    /// What is left of the deadline.
    pub deadline: Option<Duration>,
    /// Progress of the whole so far.
    pub progress: Progress,
    /// The class of the request that it is part of.
    pub class: Option<ClassId>,
}

impl Call {
    /// The workflow that it is part of.
    #[must_use]
    pub fn workflow(&self) -> WorkflowId {
        self.workflow
    }
}

impl Workflows {
    /// What the request and the calls below it have done.
    pub(super) fn done(
        &mut self,
        host: &impl Host,
        now: Instant,
        part: &Part,
        started: Instant,
    ) -> Progress {
        // Nothing is looked up for workflows that call nobody.
        let calls = self
            .published
            .row(part.origin.workflow)
            .is_none_or(|row| row.calls);
        let branch = part.branch.filter(|_| calls);
        let children = branch.and_then(|branch| self.branches.load(host, branch).ok().flatten());
        children.unwrap_or_default().progress(started, now)
    }

    /// What the application is to hand on with its calls for a request; `None` before it goes to
    /// the backend.
    #[must_use]
    pub(crate) fn token(&self, request: &Request, part: &Part) -> Option<Token> {
        let started = part.started?;
        let mut progress = request.attributes.progress;
        progress.age += started.since(request.arrived);
        let parent = Parent {
            process: self.process,
            branch: part.branch,
            workflow: part.origin.workflow,
            class: request.attributes.class,
            started,
            deadline: part.deadline,
            progress,
        };
        Some(parent.token())
    }

    /// The response to a request begins: what it tells the process that asked; `None` where no
    /// process of the mesh did.
    pub(crate) fn answer(
        &mut self,
        host: &impl Host,
        now: Instant,
        requests: &mut Requests,
        ticket: Ticket,
    ) -> Option<Answer> {
        let (_, part) = requests.both_mut(ticket)?;
        let done = self.done(host, now, part, part.started?);
        part.done = Some(done);
        part.origin.upstream.map(|_| Answer {
            announcement: self.announcement(part.origin),
            progress: done,
        })
    }

    /// The response of a request says how much of the second resource it used, in its units.
    pub(crate) fn resource_used(requests: &mut Requests, ticket: Ticket, amount: f64) {
        if let Some((_, part)) = requests.both_mut(ticket)
            && amount.is_finite()
        {
            part.resource = amount.max(0.0);
        }
    }

    /// What the sender of a request may send of its workflow, for answers that are no backend's
    /// (refusals). A dry run asks nobody to send less.
    #[must_use]
    pub fn announcement(&self, origin: Origin) -> Announcement {
        let sender = origin.upstream.unwrap_or(ProcessId::UNKNOWN);
        let rate = self.published.announced(origin.workflow, sender);
        Announcement {
            process: self.process,
            rate: rate.filter(|_| self.enforced && !self.retired),
            ttl: None,
        }
    }

    /// The deadline of the request of `token`; `None` where it has none, or that isn't ours.
    #[must_use]
    pub(crate) fn deadline(&self, token: &[u8]) -> Option<Instant> {
        Parent::of_token(self.process, token)?.deadline
    }

    /// The process calls `service` for the request of `token`; where that is nowhere to be found,
    /// for nobody knows which of `workflow`. Every call is to be [`Workflows::answered`].
    pub fn called(
        &mut self,
        host: &impl Host,
        now: Instant,
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
                began: now,
                branch: None,
                deadline: None,
                progress: Progress::UNKNOWN,
                class: None,
            };
        };
        // An id of before the cap was lowered is none now.
        let known = parent.workflow.0 <= self.config.max_workflows;
        let workflow = if known { parent.workflow } else { OTHER };
        self.stats.count(workflow, Count::Calls);
        let begun = parent.branch.map(|branch| {
            let found = self.branches.began(host, now, branch, parent.started);
            (branch, found.ok().flatten())
        });
        // A place that is another's already, or a host that fails: the call doesn't show in the
        // progress.
        let children = begun.and_then(|(_, children)| children);
        let branch = begun.and_then(|(branch, children)| children.map(|_| branch));
        let so_far = children.unwrap_or_default().progress(parent.started, now);
        let told = parent.progress;
        Call {
            workflow,
            service,
            began: now,
            branch,
            deadline: parent.deadline.map(|deadline| deadline.since(now)),
            progress: Progress {
                elapsed: told.elapsed + so_far.elapsed,
                work: told.work + so_far.work,
                age: told.age + now.since(parent.started),
                ..told
            },
            class: Some(parent.class),
        }
    }

    /// A call ended; `heard` is what the other process announced with its answer, `progress` what
    /// it says that the call took. `None`: it was lost, or said nothing.
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
            // Where the host fails, the call doesn't show in the progress.
            self.branches
                .ended(host, now, branch, took, progress)
                .unwrap_or(());
        }
        let process = heard.map_or(ProcessId::UNKNOWN, |heard| heard.process);
        self.tally.called(workflow, service, process, 1);
        if let Some(heard) = heard {
            let ttl = Duration::from_micros(self.config.rate_ttl_us);
            // Who announces a shorter life was heard so much earlier.
            let sooner = heard
                .ttl
                .map_or(Duration::ZERO, |own| ttl.saturating_sub(own));
            self.tally.heard(&Heard {
                workflow,
                service,
                process,
                rate: heard.rate.unwrap_or(f64::INFINITY),
                at: now - sooner,
            });
        }
    }

    /// An announcement came that isn't believed, or can't be read.
    pub fn rate_refused(&mut self) {
        self.stats.count_process(ProcessCount::Refused, 1);
    }
}
