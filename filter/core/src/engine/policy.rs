//! One policy on one worker: the rate limiter of its workflows, if it has any, and then its stage.
//!
//! ```text
//! request ─► limiter (Wisp §4.1, §4.3) ─► stage (strategy, queue, slots) ─► backend
//! ```
//!
//! Both know a request by the same [`Ticket`]: the table of requests is the stage's, and a row has
//! a part for the workflow.

use std::sync::Arc;

use super::flows::Flows;
use super::prepared::Compiled;
use crate::decision::{Action, Arrival, Decision, PolicyId, Ticket};
use crate::host::{Host, HostError};
use crate::requests::Phase;
use crate::stage::{Outcome, Stage, Upstream};
use crate::time::Instant;
use crate::workers::{Changes, Membership};
use crate::workflows::{Passage, Release, Token, Workflows};

/// A policy in force on this worker: its stage and its workflows.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) id: PolicyId,
    pub(super) compiled: Arc<Compiled>,
    pub(super) stage: Stage,
    pub(super) workflows: Option<Workflows>,
    pub(super) flows: Option<Flows>,
    seed: u64,
    releases: Vec<Release>,
}

impl Policy {
    /// The policy of `compiled` on the worker that `membership` names. `seed` makes its random
    /// decisions repeatable.
    ///
    /// # Errors
    /// [`HostError`] when the host refuses a metric.
    pub(super) fn new(
        id: PolicyId,
        compiled: Arc<Compiled>,
        membership: &Membership,
        seed: u64,
        now: Instant,
        host: &impl Host,
    ) -> Result<Self, HostError> {
        let config = &compiled.config;
        Ok(Self {
            id,
            workflows: Workflows::new(config, membership, seed, now, host)?,
            flows: Flows::new(host, config)?,
            stage: {
                let stats = compiled.stats.clone();
                Stage::new(id, config.clone(), stats, membership, seed, host)?
            },
            compiled,
            seed,
            releases: Vec::new(),
        })
    }

    /// Requests of this worker that wait or run.
    pub(super) fn pending(&self) -> usize {
        self.stage.pending()
    }

    /// Whether ticks should come soon.
    pub(super) fn is_busy(&self) -> bool {
        let requests = &self.stage.requests;
        let workflows = self.workflows.as_ref();
        self.stage.is_busy() || workflows.is_some_and(|w| w.is_busy(requests))
    }

    /// Decides about a request that arrives.
    ///
    /// # Errors
    /// [`HostError`]; the caller lets the request through, unmanaged.
    pub(super) fn arrive(
        &mut self,
        host: &impl Host,
        now: Instant,
        request: &Arrival,
        actions: &mut Vec<Action>,
    ) -> Result<Decision, HostError> {
        let Arrival {
            stream,
            attributes,
            origin,
        } = request;
        let Some(workflows) = self.workflows.as_mut().filter(|w| !w.is_retired()) else {
            return self.in_stage(now, actions, |stage, actions| {
                stage.arrive(host, now, *stream, attributes, actions)
            });
        };
        let mut request = *request;
        if let Some(flows) = &self.flows {
            let id = origin.workflow;
            request.attributes.workflow = id.0;
            request.attributes.weight = flows.weight(workflows.name(id));
        }
        workflows.complete(&mut request);
        let hopeless = self.stage.is_hopeless(*stream, &request.attributes);
        let requests = &mut self.stage.requests;
        match workflows.arrive(host, now, requests, &request, hopeless) {
            Passage::Hold(ticket) => Ok(Decision::Hold(ticket)),
            Passage::Refuse(reason, wait) => {
                let refusal = self
                    .stage
                    .refuse_before(now, attributes, *origin, reason, wait);
                Ok(Decision::Refuse(refusal))
            }
            Passage::Forward(ticket) => self.enter(host, now, ticket, actions),
        }
    }

    /// Moves a request from the limiter to the stage.
    fn enter(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        actions: &mut Vec<Action>,
    ) -> Result<Decision, HostError> {
        let decision = self.in_stage(now, actions, |stage, actions| {
            stage.enter(host, now, ticket, actions)
        });
        if let (Ok(Decision::Forward(ticket)), Some(workflows)) = (&decision, &mut self.workflows) {
            workflows.started(now, &mut self.stage.requests, *ticket);
        }
        decision
    }

    /// Runs `f` on the stage, and records for the workflows which requests go to the backend by it.
    fn in_stage<T>(
        &mut self,
        now: Instant,
        actions: &mut Vec<Action>,
        f: impl FnOnce(&mut Stage, &mut Vec<Action>) -> T,
    ) -> T {
        let before = actions.len();
        let done = f(&mut self.stage, actions);
        if let Some(workflows) = &mut self.workflows {
            for action in &actions[before..] {
                if let Action::Resume { ticket, .. } = action {
                    workflows.started(now, &mut self.stage.requests, *ticket);
                }
            }
        }
        done
    }

    /// Records the end of a request. Safe to call twice.
    ///
    /// # Errors
    /// [`HostError`].
    pub(super) fn finish(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        outcome: Outcome,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let requests = &self.stage.requests;
        if let (Some(workflows), Some(request), Some(part)) = (
            &mut self.workflows,
            requests.of(ticket),
            requests.part(ticket),
        ) {
            let answered = matches!(outcome, Outcome::Completed | Outcome::Unsampled);
            let served = match request.phase {
                Phase::Running { dequeued } => Some(dequeued),
                Phase::Queued => Some(None),
                Phase::Arriving => None,
            };
            let served = served.filter(|_| answered);
            workflows.ended(host, now, ticket, part, served);
        }
        self.in_stage(now, actions, |stage, actions| {
            stage.finish(host, now, ticket, outcome, actions)
        })
    }

    /// [`Stage::at_host`].
    ///
    /// # Errors
    /// [`HostError`].
    pub(super) fn at_host(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        upstream: Upstream,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        self.in_stage(now, actions, |stage, actions| {
            stage.at_host(host, now, ticket, upstream, actions)
        })
    }

    /// Returns the token that the application copies to its calls for a request; `None` before it
    /// goes to the backend.
    pub(super) fn token(&self, ticket: Ticket) -> Option<Token> {
        let requests = &self.stage.requests;
        let (request, part) = (requests.of(ticket)?, requests.part(ticket)?);
        self.workflows.as_ref()?.token(request, part)
    }

    /// Another worker freed a slot for a request that waits here.
    ///
    /// # Errors
    /// [`HostError`].
    pub(super) fn woken(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        self.in_stage(now, actions, |stage, actions| {
            stage.woken(host, now, actions)
        })
    }

    /// Housekeeping of both.
    ///
    /// # Errors
    /// [`HostError`]; the next tick continues.
    pub(super) fn tick(
        &mut self,
        host: &impl Host,
        now: Instant,
        membership: &Membership,
        changes: &Changes,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let ticked = self.in_stage(now, actions, |stage, actions| {
            stage.tick(host, now, membership, changes, actions)
        });
        let named = match &mut self.flows {
            Some(flows) => flows.tick(host, now, &mut self.stage),
            None => Ok(()),
        };
        let ticked = ticked.and(named);
        let Some(workflows) = &mut self.workflows else {
            return ticked;
        };
        for id in workflows.take_freed() {
            self.stage.forget_flow(id);
        }
        workflows.set_slots(self.stage.parallelism());
        let (requests, releases) = (&mut self.stage.requests, &mut self.releases);
        let adapted = workflows.tick(host, now, membership.id(), requests, releases);
        self.release(host, now, actions);
        // Its last requests still carry announcements to their senders.
        let retired = self.workflows.as_ref().is_some_and(Workflows::is_retired);
        if retired && !self.stage.requests.any_part() {
            self.workflows = None;
        }
        ticked.and(adapted)
    }

    /// Carries out the limiter's decisions about held requests.
    fn release(&mut self, host: &impl Host, now: Instant, actions: &mut Vec<Action>) {
        let mut releases = std::mem::take(&mut self.releases);
        for release in releases.drain(..) {
            match release {
                Release::Admit { ticket, stream } => {
                    match self.enter(host, now, ticket, actions) {
                        Ok(Decision::Hold(_)) => {}
                        Ok(Decision::Refuse(refusal)) => {
                            actions.push(Action::Refuse { stream, refusal });
                        }
                        // On a host error it goes on, unmanaged.
                        Ok(Decision::Forward(_) | Decision::PassBy) | Err(_) => {
                            actions.push(Action::Resume { stream, ticket });
                        }
                    }
                }
                Release::Refuse {
                    stream,
                    origin,
                    attributes,
                    reason,
                    retry_after,
                } => {
                    let stage = &mut self.stage;
                    let refusal =
                        stage.refuse_before(now, &attributes, origin, reason, retry_after);
                    actions.push(Action::Refuse { stream, refusal });
                }
            }
        }
        self.releases = releases;
    }

    /// Takes a new version of the policy over.
    ///
    /// # Errors
    /// As [`Stage::reconfigure`].
    pub(super) fn reconfigure(
        &mut self,
        host: &impl Host,
        now: Instant,
        compiled: Arc<Compiled>,
        membership: &Membership,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let same = self.stage.config() == &compiled.config;
        let changed = self.in_stage(now, actions, |stage, actions| {
            stage.reconfigure(host, now, &compiled.config, &compiled.stats, actions)
        });
        // Also where an error came after: types are classified as the stage numbers them.
        let applied = same || self.stage.config() == &compiled.config;
        if applied {
            self.compiled = compiled;
        }
        let revived = self.workflows.as_ref().is_some_and(Workflows::is_retired);
        if (same || !applied) && !revived {
            return changed;
        }
        let compiled = Arc::clone(&self.compiled);
        let config = &compiled.config;
        let changed = match Flows::new(host, config) {
            Ok(flows) => {
                self.flows = flows;
                changed
            }
            Err(error) => changed.and(Err(error)),
        };
        let (requests, releases) = (&mut self.stage.requests, &mut self.releases);
        let kept = match (&mut self.workflows, &config.workflows) {
            (Some(workflows), Some(_)) => {
                workflows.reconfigure(config, now, host, requests, releases)
            }
            (Some(workflows), None) => {
                workflows.retire(now, requests, releases);
                Ok(())
            }
            (none, Some(_)) => Workflows::new(config, membership, self.seed, now, host)
                .map(|workflows| *none = workflows),
            (None, None) => Ok(()),
        };
        self.release(host, now, actions);
        changed.and(kept)
    }

    /// Lets all waiting requests go when the policy is removed.
    ///
    /// # Errors
    /// [`HostError`].
    pub(super) fn retire(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let retired = self.in_stage(now, actions, |stage, actions| {
            stage.retire(host, now, actions)
        });
        if let Some(workflows) = &mut self.workflows {
            workflows.retire(now, &mut self.stage.requests, &mut self.releases);
        }
        self.release(host, now, actions);
        retired
    }

    /// Publishes pending counts now, since the worker is about to end.
    ///
    /// # Errors
    /// [`HostError`].
    pub(super) fn flush(&mut self, host: &impl Host, now: Instant) -> Result<(), HostError> {
        if let Some(workflows) = &mut self.workflows {
            workflows.flush(host, now)?;
        }
        self.stage.flush(host, now)
    }
}
