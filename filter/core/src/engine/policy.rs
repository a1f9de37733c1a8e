//! One policy on one worker: its stage, and the calls to [`Beside`] before and after it.

use std::sync::Arc;

use headgate_strategies::host::HostError;
use headgate_strategies::time::Instant;

use super::prepared::Compiled;
use crate::beside::{Beside, InForce, Passage, Release};
use crate::decision::{Action, Arrival, Decision, PolicyId, Ticket};
use crate::host::Host;
use crate::requests::Request;
use crate::stage::{Outcome, Stage};
use crate::workers::{Changes, Membership};

/// A policy in force on this worker.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) id: PolicyId,
    pub(super) compiled: Arc<Compiled>,
    pub(super) stage: Stage,
    /// Whether the last [`Beside::reconfigure`] failed, so that it must be repeated.
    unfinished: bool,
    releases: Vec<Release>,
}

impl Policy {
    /// Creates the policy of `compiled` on the worker of `membership`. `seed` makes the policy's
    /// random decisions repeatable.
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
        beside: &mut impl Beside,
    ) -> Result<Self, HostError> {
        let (config, stats) = (compiled.config.clone(), compiled.stats.clone());
        let mut this = Self {
            id,
            stage: Stage::new(id, config, stats, membership, seed, host)?,
            compiled,
            unfinished: false,
            releases: Vec::new(),
        };
        this.configure_beside(beside, host, now, membership, true)?;
        Ok(this)
    }

    fn configure_beside(
        &mut self,
        beside: &mut impl Beside,
        host: &impl Host,
        now: Instant,
        membership: &Membership,
        changed: bool,
    ) -> Result<(), HostError> {
        let policy = InForce {
            id: self.id,
            config: &self.compiled.config,
            changed,
            membership,
        };
        let requests = &mut self.stage.requests;
        beside.reconfigure(host, now, &policy, requests, &mut self.releases)
    }

    /// Whether the policy needs fast ticks.
    pub(super) fn is_busy(&self, beside: &impl Beside) -> bool {
        self.stage.is_busy() || beside.is_busy(self.id, &self.stage.requests)
    }

    /// Decides on an arriving request.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. The caller then lets the request through, unmanaged.
    pub(super) fn arrive(
        &mut self,
        beside: &mut impl Beside,
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
        match beside.arrive(host, now, &mut self.stage, request) {
            None => self.in_stage(beside, now, actions, |stage, actions| {
                stage.arrive(host, now, *stream, attributes, actions)
            }),
            Some(Passage::Hold(ticket)) => Ok(Decision::Hold(ticket)),
            Some(Passage::Refuse(reason, wait)) => {
                let refusal = self.stage.refuse_before(attributes, *origin, reason, wait);
                Ok(Decision::Refuse(refusal))
            }
            Some(Passage::Forward(ticket)) => self.enter(beside, host, now, ticket, actions),
        }
    }

    /// Moves a request that is already in the table to the stage.
    fn enter(
        &mut self,
        beside: &mut impl Beside,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        actions: &mut Vec<Action>,
    ) -> Result<Decision, HostError> {
        let decision = self.in_stage(beside, now, actions, |stage, actions| {
            stage.enter(host, now, ticket, actions)
        });
        if let Ok(Decision::Forward(ticket)) = &decision {
            beside.started(now, &mut self.stage.requests, *ticket);
        }
        decision
    }

    /// Runs `f` on the stage, and reports to `beside` the requests that `f` sends to the backend.
    pub(super) fn in_stage<T>(
        &mut self,
        beside: &mut impl Beside,
        now: Instant,
        actions: &mut Vec<Action>,
        f: impl FnOnce(&mut Stage, &mut Vec<Action>) -> T,
    ) -> T {
        let before = actions.len();
        let done = f(&mut self.stage, actions);
        for action in &actions[before..] {
            if let Action::Resume { ticket, .. } = action {
                beside.started(now, &mut self.stage.requests, *ticket);
            }
        }
        done
    }

    /// Records the end of a request. A second call has no effect.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub(super) fn finish(
        &mut self,
        beside: &mut impl Beside,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        outcome: Outcome,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let answered = matches!(outcome, Outcome::Completed | Outcome::Unsampled);
        beside.ended(host, now, &self.stage.requests, ticket, answered);
        self.in_stage(beside, now, actions, |stage, actions| {
            stage.finish(host, now, ticket, outcome, actions)
        })
    }

    /// Does the periodic work of the stage, then that of `beside`.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. The next tick then continues the work.
    pub(super) fn tick(
        &mut self,
        beside: &mut impl Beside,
        host: &impl Host,
        now: Instant,
        membership: &Membership,
        changes: &Changes,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let ticked = self.in_stage(beside, now, actions, |stage, actions| {
            stage.tick(host, now, membership, changes, actions)
        });
        let own = (self.id, membership.id());
        let beside_ticked = beside.tick(host, now, own, &mut self.stage, &mut self.releases);
        self.release(beside, host, now, actions);
        ticked.and(beside_ticked)
    }

    /// Executes the decisions on requests that were held before the stage.
    fn release(
        &mut self,
        beside: &mut impl Beside,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let mut releases = std::mem::take(&mut self.releases);
        for release in releases.drain(..) {
            let (Release::Admit(ticket) | Release::Refuse(ticket, ..)) = release;
            let Some(&Request {
                stream,
                origin,
                attributes,
                ..
            }) = self.stage.requests.of(ticket)
            else {
                continue;
            };
            let refused = match release {
                Release::Admit(_) => match self.enter(beside, host, now, ticket, actions) {
                    Ok(Decision::Hold(_)) => continue,
                    Ok(Decision::Refuse(refusal)) => Some(refusal),
                    // If the stage fails, the request continues, unmanaged.
                    Ok(Decision::Forward(_) | Decision::PassBy) | Err(_) => None,
                },
                Release::Refuse(_, reason, wait) => {
                    self.stage.requests.take(ticket);
                    Some(self.stage.refuse_before(&attributes, origin, reason, wait))
                }
            };
            actions.push(match refused {
                Some(refusal) => Action::Refuse { stream, refusal },
                None => Action::Resume { stream, ticket },
            });
        }
        self.releases = releases;
    }

    /// Adopts a new version of the policy.
    ///
    /// # Errors
    /// The errors of [`Stage::reconfigure`].
    pub(super) fn reconfigure(
        &mut self,
        beside: &mut impl Beside,
        host: &impl Host,
        now: Instant,
        compiled: Arc<Compiled>,
        membership: &Membership,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let same = self.stage.config() == &compiled.config;
        let changed = self.in_stage(beside, now, actions, |stage, actions| {
            stage.reconfigure(host, now, &compiled.config, &compiled.stats, actions)
        });
        // Check this even after an error, because requests must be classified by the types that the
        // stage has.
        let applied = same || self.stage.config() == &compiled.config;
        if applied {
            self.compiled = compiled;
        }
        let changed_beside = (applied && !same) || self.unfinished;
        let kept = self.configure_beside(beside, host, now, membership, changed_beside);
        self.unfinished = kept.is_err();
        self.release(beside, host, now, actions);
        changed.and(kept)
    }

    /// Sends all waiting requests to the backend, because the policy is removed.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub(super) fn retire(
        &mut self,
        beside: &mut impl Beside,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let retired = self.in_stage(beside, now, actions, |stage, actions| {
            stage.retire(host, now, actions)
        });
        let requests = &mut self.stage.requests;
        beside.retire(now, self.id, requests, &mut self.releases);
        self.release(beside, host, now, actions);
        retired
    }

    /// Publishes pending counts now, because the worker is about to end.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub(super) fn flush(
        &mut self,
        beside: &mut impl Beside,
        host: &impl Host,
        now: Instant,
    ) -> Result<(), HostError> {
        beside.flush(host, now, self.id)?;
        self.stage.flush(host, now)
    }
}
