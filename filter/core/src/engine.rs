//! One worker's engine: the stages of its configuration, and its membership in the process.
//!
//! A host has one engine per VM (Wasm) or per process (native), and forwards Envoy's callbacks to
//! it. In a VM an engine joins the process at its first request, not at its configuration. The
//! reason is that Envoy also configures VMs that never get a request (a canary for every update, a
//! base VM on the main thread).

mod policy;
mod prepared;

use std::sync::Arc;
use std::time::Duration;

use headgate_strategies::discipline::Order;
use headgate_strategies::host::HostError;
use headgate_strategies::request::{Attributes, Progress};
use headgate_strategies::time::Instant;
use headgate_strategies::work;

use crate::beside::Beside;
use crate::classify::{Classified, RequestView, retries};
use crate::config::{ConfigError, Direction, FilterConfig, StageConfig, TokenCount};
use crate::decision::{Action, Arrival, Decision, Origin, PolicyId, Refusal, Ticket};
use crate::host::Host;
use crate::progress::progress;
use crate::requests::{Requests, Upstream};
use crate::stage::{Outcome, Stage};
use crate::stats::StageCount;
use crate::workers::{Changes, Membership, WorkerId};

use policy::Policy;
use prepared::Compiled;

pub use prepared::Prepared;

/// The time between ticks while [`Engine::is_busy`] is true. Ticks expire deadlines and repair lost
/// wake-ups. In normal operation a request never waits for a tick.
pub const FAST_TICK: Duration = Duration::from_millis(10);
/// The time between ticks while [`Engine::is_busy`] is false. It is well below a lease.
pub const SLOW_TICK: Duration = Duration::from_millis(50);

/// The names of a refusal's policy and request type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words<'a> {
    /// `namespace/name`.
    pub policy: &'a str,
    /// The request's type.
    pub kind: &'a str,
}

/// The stages for the requests of one listener, in matching order. A running policy may have newer
/// settings from the configuration of another listener.
#[derive(Debug)]
struct Listener {
    name: String,
    stages: Vec<Arc<Compiled>>,
}

/// One worker's engine: the stages of all listeners, and the behaviour `B` beside them.
#[derive(Debug)]
pub struct Engine<B = ()> {
    seed: u64,
    membership: Option<Membership>,
    listeners: Vec<Listener>,
    /// The policies of the current configurations, which run from the first request on.
    compiled: Vec<Arc<Compiled>>,
    /// Whether a host error interrupted a change of the running policies. The next tick then
    /// continues it.
    unbuilt: bool,
    /// Whether any running policy was removed and is not retired yet.
    unsettled: bool,
    /// The running policies, and removed policies that still have requests.
    policies: Vec<Policy>,
    next_policy: u32,
    /// Whether any stage degrades service.
    degrades: bool,
    /// Requests, with their streams, whose upstream hosts the caller must report.
    suspects: Vec<(Ticket, u32)>,
    beside: B,
}

impl<B: Beside> Engine<B> {
    /// Creates an engine without configuration, which lets all requests through. `seed` must differ
    /// between the workers of a process. The seed identifies the worker in the list of members, and
    /// makes the worker's random decisions repeatable.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            membership: None,
            listeners: Vec::new(),
            compiled: Vec::new(),
            unbuilt: false,
            unsettled: false,
            policies: Vec::new(),
            next_policy: 0,
            degrades: false,
            suspects: Vec::new(),
            beside: B::new(seed),
        }
    }

    /// Returns the behaviour beside the stages.
    pub fn beside(&self) -> &B {
        &self.beside
    }

    /// Returns the behaviour beside the stages, mutably.
    pub fn beside_mut(&mut self) -> &mut B {
        &mut self.beside
    }

    /// Returns the behaviour beside the stages, and the requests of `policy`.
    pub fn with_requests(&mut self, policy: PolicyId) -> Option<(&mut B, &mut Requests)> {
        let (policy, beside) = self.policy_beside(policy)?;
        Some((beside, &mut policy.stage.requests))
    }

    /// Returns the stage of `policy`.
    pub fn stage(&self, policy: PolicyId) -> Option<&Stage> {
        Some(&self.policy(policy)?.stage)
    }

    /// Returns the stage of `policy`, mutably. Requests enter and leave it through the engine.
    pub fn stage_mut(&mut self, policy: PolicyId) -> Option<&mut Stage> {
        Some(&mut self.policy_beside(policy)?.0.stage)
    }

    /// Returns this worker's number, or `None` before the worker has joined.
    pub fn worker(&self) -> Option<WorkerId> {
        self.membership.as_ref().map(Membership::id)
    }

    /// Returns the number of requests that wait or run on this worker.
    pub fn pending(&self) -> usize {
        let pending = |policy: &Policy| policy.stage.pending();
        self.policies.iter().map(pending).sum()
    }

    /// Adopts a configuration. An invalid configuration changes nothing, and the last valid one
    /// stays in force.
    ///
    /// # Errors
    /// [`ConfigError`] with the field at fault, or with the error of [`Engine::build`].
    pub fn configure(
        &mut self,
        host: &impl Host,
        now: Instant,
        config: &FilterConfig,
        actions: &mut Vec<Action>,
    ) -> Result<(), ConfigError> {
        let prepared = Prepared::new(host, config.clone())?;
        if config.direction == Direction::Outbound {
            return self.beside.call_by(host, config);
        }
        self.listen(host, &[("", &prepared)])?;
        let built = self.build(host, now, actions);
        let built = built.and(self.retire_removed(host, now, actions));
        built.map_err(|e| ConfigError::new("stages", e.to_string()))
    }

    /// Adopts the inbound configurations of all listeners, each with its listener's name, oldest
    /// first. A request is subject to the configuration of its own listener
    /// ([`RequestView::listener`]). A policy in several configurations runs once. Its settings come
    /// from the newest of these configurations, and its routes from each of them. If any
    /// configuration is invalid, nothing changes. After a success the caller must call
    /// [`Engine::build`].
    ///
    /// # Errors
    /// [`ConfigError`] with the field at fault.
    pub fn listen(
        &mut self,
        host: &impl Host,
        listeners: &[(&str, &Prepared)],
    ) -> Result<(), ConfigError> {
        let newest_first = listeners.iter().rev().map(|(_, p)| &p.config);
        self.beside.listen(host, newest_first)?;
        let mut stages = listeners.iter().flat_map(|(_, p)| &p.config.stages);
        self.degrades = stages.any(StageConfig::degrades);
        self.compiled.clear();
        for stage in listeners.iter().rev().flat_map(|(_, p)| &p.stages) {
            let same = |c: &Arc<Compiled>| c.config.policy == stage.config.policy;
            if !self.compiled.iter().any(same) {
                self.compiled.push(Arc::clone(stage));
            }
        }
        let listener = |(name, prepared): &(&str, &Prepared)| Listener {
            name: (*name).to_owned(),
            stages: prepared.stages.clone(),
        };
        self.listeners = listeners.iter().map(listener).collect();
        Ok(())
    }

    /// Adapts the running stages to the configuration, and keeps the stages that the configuration
    /// still contains. A stage that can't be changed stays as it was. The waiting requests of other
    /// stages stay until [`Engine::retire_removed`]. No stage runs before this worker has joined.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. The next tick then continues the work.
    pub fn build(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let Some(membership) = &self.membership else {
            return Ok(());
        };
        let mut done = Ok(());
        let mut old = std::mem::take(&mut self.policies);
        for compiled in &self.compiled {
            let compiled = Arc::clone(compiled);
            let same = |p: &Policy| p.compiled.config.policy == compiled.config.policy;
            if let Some(at) = old.iter().position(same) {
                let mut policy = old.remove(at);
                let beside = &mut self.beside;
                let changed = policy.reconfigure(beside, host, now, compiled, membership, actions);
                done = done.and(changed);
                self.policies.push(policy);
                continue;
            }
            let id = PolicyId(self.next_policy);
            self.next_policy += 1;
            let seed = self.seed.wrapping_add(u64::from(id.0));
            let beside = &mut self.beside;
            match Policy::new(id, compiled, membership, seed, now, host, beside) {
                Ok(policy) => self.policies.push(policy),
                Err(error) => done = done.and(Err(error)),
            }
        }
        self.unsettled = old.iter().any(|gone| !gone.stage.is_retired());
        self.policies.append(&mut old);
        self.unbuilt = done.is_err();
        done
    }

    /// Retires the policies that are in no configuration any more. Their waiting requests go to the
    /// backend.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn retire_removed(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        if !std::mem::take(&mut self.unsettled) {
            return Ok(());
        }
        let mut done = Ok(());
        for policy in &mut self.policies {
            let name = &policy.compiled.config.policy;
            let stays = self.compiled.iter().any(|c| c.config.policy == *name);
            if !stays && !policy.stage.is_retired() {
                done = done.and(policy.retire(&mut self.beside, host, now, actions));
            }
        }
        done
    }

    /// Yields the names of the running policies, and of removed policies that still have requests.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &str> {
        let policies = self.policies.iter();
        policies.map(|policy| policy.stage.config().policy.as_str())
    }

    /// Joins the process now, without waiting for the first request.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. The next request then tries again.
    pub fn join(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let membership = Membership::join(now, self.seed, host)?;
        self.membership = Some(membership);
        self.build(host, now, actions)?;
        // The decision on the first request uses times measured by other workers, or by the VM
        // before this one.
        self.tick_stages(host, now, &Changes::default(), actions)
    }

    /// Whether the engine has no stages. It then lets all requests through.
    pub fn is_idle(&self) -> bool {
        self.compiled.is_empty()
    }

    /// Returns the configuration of the policy whose stage covers `request`.
    pub fn config_for(&self, request: &impl RequestView) -> Option<&StageConfig> {
        // Before a worker's first request no stage runs yet.
        let running = self.policies.iter().map(|r| &r.compiled);
        let mut compiled = running.chain(&self.compiled);
        let policy = self.policy_for(request)?;
        let compiled = compiled.find(|c| c.config.policy == policy)?;
        Some(&compiled.config)
    }

    /// Returns the name of the policy whose stage covers `request`.
    fn policy_for(&self, request: &impl RequestView) -> Option<&str> {
        let name = request.listener();
        let listener = self.listeners.iter().find(|l| l.name == name)?;
        let mut stages = listener.stages.iter();
        let stage = stages.find(|stage| stage.classifier.covers(request))?;
        Some(&stage.config.policy)
    }

    /// Decides on an arriving request. `own_deadline` is the request's own deadline, as a time from
    /// now.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. The caller then lets the request through.
    pub fn arrive(
        &mut self,
        host: &impl Host,
        now: Instant,
        stream: u32,
        request: &impl RequestView,
        own_deadline: Option<Duration>,
        actions: &mut Vec<Action>,
    ) -> Result<Decision, HostError> {
        if self.is_idle() {
            return Ok(Decision::PassBy);
        }
        self.be_member(host, now, actions)?;
        let named = self.policy_for(request);
        let named = |p: &Policy| Some(p.compiled.config.policy.as_str()) == named;
        let Some(at) = self.policies.iter().position(named) else {
            return Ok(Decision::PassBy);
        };
        let policy = &mut self.policies[at];
        let kind = match policy.compiled.classifier.classify(request) {
            Classified::Excluded => {
                policy.stage.pass_by(StageCount::Excluded);
                return Ok(Decision::PassBy);
            }
            Classified::Type(kind) => kind,
        };
        let compiled = &policy.compiled;
        let tokens = compiled.config.tokens.as_ref();
        let (tokens, prompt_tokens) = tokens.map_or((0, 0), |tokens| {
            let read = |count: &Option<TokenCount>| {
                work::size(request.header(count.as_ref()?.header.as_deref()?)?)
            };
            tokens.of(read(&tokens.prompt), read(&tokens.output))
        });
        let attributes = Attributes {
            class: compiled.classifier.class(request),
            own_deadline,
            is_retry: request.is_retry()
                || (compiled.config.retries.as_ref())
                    .is_some_and(|own| retries::is_retry_by(own, request)),
            cost: compiled
                .cost_header()
                .and_then(|name| work::cost(request.header(name)?)),
            size: compiled
                .size_header(kind)
                .and_then(|name| work::size(request.header(name)?)),
            tokens,
            prompt_tokens,
            progress: if Order::needs_progress(&compiled.config.queue.discipline) {
                Progress {
                    // An untrusted age may affect the order, but not a controller that refuses
                    // other requests.
                    age: Duration::ZERO,
                    ..progress(request)
                }
            } else {
                Progress::default()
            },
            ..Attributes::of(kind)
        };
        let mut arrival = Arrival {
            stream,
            attributes,
            origin: Origin::default(),
        };
        let own = (policy.id, &compiled.config);
        self.beside.describe(host, now, own, request, &mut arrival);
        let decision = policy.arrive(&mut self.beside, host, now, &arrival, actions);
        if decision.is_err() {
            policy.stage.pass_by(StageCount::Unmanaged);
        }
        decision
    }

    /// Decides on a request with attributes that the caller supplies, as the simulator does.
    /// [`Engine::arrive`] finds the attributes itself.
    ///
    /// # Errors
    /// The errors of [`Engine::arrive`].
    pub fn admit(
        &mut self,
        host: &impl Host,
        now: Instant,
        policy: PolicyId,
        arrival: &Arrival,
        actions: &mut Vec<Action>,
    ) -> Result<Decision, HostError> {
        self.be_member(host, now, actions)?;
        match self.policy_beside(policy) {
            Some((policy, beside)) => policy.arrive(beside, host, now, arrival, actions),
            None => Ok(Decision::PassBy),
        }
    }

    /// Joins the process on the first request. On later requests, renews the membership if the
    /// lease may have expired.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. The next request then tries again.
    pub fn be_member(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        match &self.membership {
            None => self.join(host, now, actions),
            Some(_) => self.resume_lease(host, now, actions),
        }
    }

    /// Records the end of a request. A second call has no effect.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn finish(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        outcome: Outcome,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let policy = self.policy(ticket.policy);
        let own = policy.and_then(|policy| policy.stage.stream(ticket));
        let ticked = self.resume_lease(host, now, actions);
        // The request has ended, so drop the actions that the tick decided for this request.
        actions.retain(|action| Some(action.stream()) != own);
        let done = match self.policy_beside(ticket.policy) {
            Some((policy, beside)) => policy.finish(beside, host, now, ticket, outcome, actions),
            None => Ok(()),
        };
        done.and(ticked)
    }

    fn policy(&self, id: PolicyId) -> Option<&Policy> {
        let mut policies = self.policies.iter();
        policies.find(|policy| policy.id == id)
    }

    fn policy_beside(&mut self, id: PolicyId) -> Option<(&mut Policy, &mut B)> {
        let mut policies = self.policies.iter_mut();
        let policy = policies.find(|policy| policy.id == id)?;
        Some((policy, &mut self.beside))
    }

    /// Renews this worker's membership if its lease may have expired because the thread was
    /// suspended. The caller must do this before it books anything.
    fn resume_lease(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        match &self.membership {
            Some(membership) if membership.is_doubtful(now) => self.tick(host, now, actions),
            _ => Ok(()),
        }
    }

    /// Returns the requests, with their streams, whose upstream hosts the last tick requested. The
    /// caller drains the list, and calls [`Engine::at_host`] for those that have a host.
    pub fn suspects(&mut self) -> &mut Vec<(Ticket, u32)> {
        &mut self.suspects
    }

    /// Reports the upstream host of a request that is in the backend.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn at_host(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        upstream: Upstream,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        match self.policy_beside(ticket.policy) {
            Some((policy, beside)) => policy.in_stage(beside, now, actions, |stage, actions| {
                stage.at_host(host, now, ticket, upstream, actions)
            }),
            None => Ok(()),
        }
    }

    /// Whether any stage requests a quality from its application. Then only Headgate may set the
    /// quality header.
    pub fn degrades(&self) -> bool {
        self.degrades
    }

    /// Whether ticks should come every [`FAST_TICK`] rather than every [`SLOW_TICK`].
    pub fn is_busy(&self) -> bool {
        self.beside.holds_calls() || self.policies.iter().any(|p| p.is_busy(&self.beside))
    }

    /// Uses a slot that another worker freed, for a request that waits here.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn woken(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        self.resume_lease(host, now, actions)?;
        for policy in &mut self.policies {
            policy.in_stage(&mut self.beside, now, actions, |stage, actions| {
                stage.woken(host, now, actions)
            })?;
        }
        Ok(())
    }

    /// Does the periodic work, every [`FAST_TICK`] or [`SLOW_TICK`]. Before this worker has joined,
    /// that is only the sending of outbound calls.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. The next tick then continues the work.
    pub fn tick(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        self.beside.send_calls(Some(now), actions);
        let Some(membership) = &mut self.membership else {
            return Ok(());
        };
        let changes = membership.tick(now, host)?;
        let built = match self.unbuilt {
            true => self.build(host, now, actions),
            false => Ok(()),
        };
        self.tick_stages(host, now, &changes, actions)?;
        if let Some(membership) = &mut self.membership {
            for dead in changes.dead.into_iter().chain(changes.free) {
                membership.buried(dead, host)?;
            }
        }
        self.policies.retain(|policy| {
            let stays = !policy.stage.is_retired() || policy.stage.pending() > 0;
            if !stays {
                self.beside.forget(policy.id);
            }
            stays
        });
        if changes.hot_restart {
            return Err(HostError::HotRestart);
        }
        built
    }

    /// Releases all bookings of the worker `dead` at once. The caller must be certain that this
    /// worker has ended. The bookings of other dead workers are released when their leases expire.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. A later tick then releases the bookings.
    pub fn bury(
        &mut self,
        host: &impl Host,
        now: Instant,
        dead: WorkerId,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let Some(membership) = &self.membership else {
            return Ok(());
        };
        if !membership.mark(dead, host)? {
            return Ok(());
        }
        let changes = Changes {
            dead: vec![dead],
            ..Changes::default()
        };
        self.tick_stages(host, now, &changes, actions)?;
        match &mut self.membership {
            Some(membership) => membership.buried(dead, host),
            None => Ok(()),
        }
    }

    fn tick_stages(
        &mut self,
        host: &impl Host,
        now: Instant,
        changes: &Changes,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let Some(membership) = &self.membership else {
            return Ok(());
        };
        let mut done = Ok(());
        self.suspects.clear();
        for policy in &mut self.policies {
            policy.stage.find_suspects(now, &mut self.suspects);
            // An error of one policy must not stop the ticks of the others.
            done = done.and(policy.tick(&mut self.beside, host, now, membership, changes, actions));
        }
        done
    }

    /// Publishes pending counts, and then gives up this worker's membership of the process if no
    /// request waits or runs. The filter calls this function after the last configuration of an
    /// inbound listener was removed.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. The lease then expires instead.
    pub fn leave(&mut self, host: &impl Host, now: Instant) -> Result<(), HostError> {
        for policy in &mut self.policies {
            policy.flush(&mut self.beside, host, now)?;
        }
        if self.pending() > 0 {
            return Ok(());
        }
        for gone in &self.policies {
            self.beside.forget(gone.id);
        }
        // Return to the state before the first request, so that a new root context can start over.
        self.policies.clear();
        self.membership
            .take()
            .map_or(Ok(()), |membership| membership.leave(host))
    }

    /// Returns the number of slots of this policy, configured or found automatically.
    pub fn parallelism(&self, policy: PolicyId) -> Option<u32> {
        Some(self.policy(policy)?.stage.parallelism())
    }

    /// Returns the name of a request's type, or `None` if the request's policy was removed.
    pub fn type_name(&self, ticket: Ticket) -> Option<&str> {
        Some(&self.stage(ticket.policy)?.type_of(ticket)?.name)
    }

    /// Returns the names of a refusal's policy and type. The text for the reason is in
    /// [`headgate_strategies::reason::Reason`].
    pub fn words(&self, refusal: &Refusal) -> Words<'_> {
        let config = self.policy(refusal.policy).map(|p| p.stage.config());
        let kind = config.and_then(|config| config.types.get(usize::from(refusal.kind.0)));
        Words {
            policy: config.map_or("", |config| &config.policy),
            kind: kind.map_or("", |kind| &kind.name),
        }
    }
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod stages_tests;
#[cfg(test)]
mod tests;
