//! The attachment of a [`Mesh`] to the engine of `headgate-core`.

use headgate_core::beside::{Beside, InForce, Passage, Release};
use headgate_core::classify::RequestView;
use headgate_core::config::{ConfigError, FilterConfig, StageConfig};
use headgate_core::decision::{Action, Arrival, PolicyId, Ticket};
use headgate_core::host::Host;
use headgate_core::requests::Requests;
use headgate_core::stage::Stage;
use headgate_core::workers::WorkerId;
use headgate_strategies::host::HostError;
use headgate_strategies::time::Instant;

use crate::engine::flows::Flows;
use crate::engine::{self, Mesh, Policy};
use crate::workflows::{WorkflowId, Workflows};

impl Beside for Mesh {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    fn listen<'a>(
        &mut self,
        host: &impl Host,
        newest_first: impl Iterator<Item = &'a FilterConfig> + Clone,
    ) -> Result<(), ConfigError> {
        // Only a gateway has `outbound` in an inbound configuration. In a sidecar, the listener for
        // calls has its own configuration.
        let gateway = newest_first
            .clone()
            .find(|config| config.outbound.is_some());
        if gateway.is_some() || self.gateway {
            self.outbound = match gateway {
                Some(config) => self.new_outbound(host, config)?,
                None => None,
            };
            self.gateway = self.outbound.is_some();
        }
        let mut stages = newest_first.clone().flat_map(|config| &config.stages);
        self.workflows = stages.any(|stage| stage.workflows.is_some());
        let receives = |s: &StageConfig| s.class_admission.as_ref().is_some_and(|a| a.receives);
        self.classes = newest_first.flat_map(|config| &config.stages).any(receives);
        Ok(())
    }

    fn call_by(&mut self, host: &impl Host, config: &FilterConfig) -> Result<(), ConfigError> {
        self.outbound = self.new_outbound(host, config)?;
        self.gateway = false;
        Ok(())
    }

    fn forget_calls(&mut self) {
        self.outbound = None;
    }

    fn reconfigure(
        &mut self,
        host: &impl Host,
        now: Instant,
        policy: &InForce<'_>,
        requests: &mut Requests,
        releases: &mut Vec<Release>,
    ) -> Result<(), HostError> {
        let InForce {
            id,
            config,
            membership,
            ..
        } = *policy;
        // The seed differs between the workers and policies of a process.
        let seed = self.seed.wrapping_add(u64::from(id.0));
        let new = || Workflows::new(config, membership, seed, now, host);
        let classes = config.classes.iter().map(|class| class.name.clone());
        let Some(own) = self.policy_mut(id) else {
            if !policy.changed {
                return Ok(());
            }
            let (workflows, flows) = (new()?, Flows::new(host, config)?);
            if workflows.is_some() || flows.is_some() {
                self.policies.push(Policy {
                    id,
                    name: config.policy.clone(),
                    classes: classes.collect(),
                    in_force: true,
                    workflows,
                    flows,
                });
            }
            return Ok(());
        };
        own.in_force = true;
        let revived = own.workflows.as_ref().is_some_and(Workflows::is_retired);
        if !policy.changed && !revived {
            return Ok(());
        }
        own.classes = classes.collect();
        let changed = Flows::new(host, config).map(|flows| own.flows = flows);
        let kept = match &mut own.workflows {
            Some(workflows) => workflows.reconfigure(config, now, host, requests, releases),
            none => new().map(|workflows| *none = workflows),
        };
        changed.and(kept)
    }

    fn retire(
        &mut self,
        now: Instant,
        policy: PolicyId,
        requests: &mut Requests,
        releases: &mut Vec<Release>,
    ) {
        if let Some(own) = self.policy_mut(policy) {
            own.in_force = false;
            if let Some(workflows) = &mut own.workflows {
                workflows.retire(now, requests, releases);
            }
        }
    }

    fn forget(&mut self, policy: PolicyId) {
        self.policies.retain(|own| own.id != policy);
    }

    fn flush(&mut self, host: &impl Host, now: Instant, policy: PolicyId) -> Result<(), HostError> {
        match self.workflows_mut(policy) {
            Some(workflows) => workflows.flush(host, now),
            None => Ok(()),
        }
    }

    fn describe(
        &mut self,
        host: &impl Host,
        now: Instant,
        (policy, config): (PolicyId, &StageConfig),
        request: &impl RequestView,
        arrival: &mut Arrival,
    ) {
        let attributes = &mut arrival.attributes;
        let mut own = self.policies.iter_mut().find(|own| own.id == policy);
        if let Some(flows) = own.as_mut().and_then(|own| own.flows.as_mut()) {
            (attributes.flow, attributes.weight) = flows.find(host, now, request);
        }
        let workflows = own.and_then(|own| own.workflows.as_mut());
        // Retired workflows stay for earlier requests. The policy's peers are now those of its
        // class admission.
        if let Some(workflows) = workflows.filter(|workflows| !workflows.is_retired()) {
            let known = (config, attributes);
            let scratch = &mut self.scratch;
            arrival.origin = engine::origin(workflows, host, now, request, known, scratch);
        } else if let Some(class) = engine::named_class(config, request) {
            attributes.class = class;
        }
    }

    fn arrive(
        &mut self,
        host: &impl Host,
        now: Instant,
        stage: &mut Stage,
        arrival: &Arrival,
    ) -> Option<Passage> {
        let own = self.policy_mut(stage.policy())?;
        let workflows = own.workflows.as_mut().filter(|w| !w.is_retired())?;
        let mut arrival = *arrival;
        if let Some(flows) = &own.flows {
            let id = arrival.origin.flow;
            arrival.attributes.flow = id;
            arrival.attributes.weight = flows.weight(workflows.name(WorkflowId(id)));
        }
        workflows.complete(&mut arrival);
        let hopeless = stage.is_hopeless(arrival.stream, &arrival.attributes);
        let requests = &mut stage.requests;
        Some(workflows.arrive(host, now, requests, &arrival, hopeless))
    }

    fn started(&mut self, now: Instant, requests: &mut Requests, ticket: Ticket) {
        if let Some(workflows) = self.workflows_mut(ticket.policy) {
            workflows.started(now, requests, ticket);
        }
    }

    fn ended(
        &mut self,
        host: &impl Host,
        now: Instant,
        requests: &Requests,
        ticket: Ticket,
        answered: bool,
    ) {
        if let Some(workflows) = self.workflows_mut(ticket.policy) {
            workflows.ended(host, now, requests, ticket, answered);
        }
    }

    fn tick(
        &mut self,
        host: &impl Host,
        now: Instant,
        (policy, worker): (PolicyId, WorkerId),
        stage: &mut Stage,
        releases: &mut Vec<Release>,
    ) -> Result<(), HostError> {
        let Some(own) = self.policy_mut(policy) else {
            return Ok(());
        };
        let named = match &mut own.flows {
            Some(flows) => flows.tick(host, now, stage),
            None => Ok(()),
        };
        let Some(workflows) = &mut own.workflows else {
            return named;
        };
        for id in workflows.take_freed() {
            stage.forget_flow(id);
        }
        // While the backend needs no limit, P is not known, and there is nothing to share.
        let slots = match stage.is_unlimited() {
            true => f64::INFINITY,
            false => stage.parallelism().into(),
        };
        let requests = &mut stage.requests;
        let adapted = workflows.tick(host, now, (worker, slots), requests, releases);
        // Retired workflows stay until their last request has ended, so that the last answer still
        // has an announcement.
        if workflows.is_over(&stage.requests) {
            own.workflows = None;
        }
        named.and(adapted)
    }

    fn is_busy(&self, policy: PolicyId, requests: &Requests) -> bool {
        let workflows = self.workflows(policy);
        workflows.is_some_and(|workflows| workflows.is_busy(requests))
    }

    fn holds_calls(&self) -> bool {
        !self.held.is_empty()
    }

    fn send_calls(&mut self, now: Option<Instant>, actions: &mut Vec<Action>) {
        self.held.send(now, actions);
    }
}
