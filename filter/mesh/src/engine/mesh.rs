//! The mesh state of one engine.

use std::collections::HashMap;

use headgate_core::config::{ConfigError, Direction, FilterConfig};
use headgate_core::decision::PolicyId;
use headgate_core::host::Host;
use headgate_strategies::request::ClassId;

use super::flows::Flows;
use super::smoothing::Held;
use super::{Calling, Outbound, Scratch};
use crate::workflows::Workflows;

/// Workflows, class admission and smoothing of one engine.
#[derive(Debug, Default)]
pub struct Mesh {
    pub(crate) seed: u64,
    /// The state of the process's calls, or `None` without an outbound configuration.
    pub(crate) outbound: Option<Outbound>,
    /// The number of times that `outbound` was configured.
    pub(crate) generation: u32,
    /// Whether the proxy is a gateway, whose requests are also its calls. `outbound` is then part
    /// of an inbound configuration.
    pub(crate) gateway: bool,
    /// Delayed calls, which survive changes of the configuration.
    pub(crate) held: Held,
    pub(crate) scratch: Scratch,
    /// The policies with workflows or with queues whose flows are workflows.
    pub(crate) policies: Vec<Policy>,
    /// Whether any stage has workflows. If false, the headers of workflows are neither read nor
    /// written.
    pub(crate) workflows: bool,
    /// Whether any stage has class admission, for which the headers of senders are read.
    pub(crate) classes: bool,
    /// The calls that were sent and have no answer yet, by stream. A gateway's call has the stream
    /// of its request.
    pub(crate) calls: HashMap<u32, Calling>,
    /// Whether the admission server answered the last report. `None` before the first report.
    pub(crate) server_heard: Option<bool>,
}

/// A policy with workflows or with a queue whose flows are workflows.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) id: PolicyId,
    pub(crate) name: String,
    pub(crate) classes: Vec<String>,
    pub(crate) in_force: bool,
    pub(crate) workflows: Option<Workflows>,
    pub(crate) flows: Option<Flows>,
}

impl Policy {
    pub(crate) fn class_name(&self, class: ClassId) -> Option<&str> {
        self.classes.get(usize::from(class.0)).map(String::as_str)
    }
}

impl Mesh {
    pub(crate) fn policy(&self, id: PolicyId) -> Option<&Policy> {
        self.policies.iter().find(|policy| policy.id == id)
    }

    pub(crate) fn policy_mut(&mut self, id: PolicyId) -> Option<&mut Policy> {
        self.policies.iter_mut().find(|policy| policy.id == id)
    }

    /// Returns the workflows of a policy, or `None` if the policy has none.
    pub fn workflows(&self, policy: PolicyId) -> Option<&Workflows> {
        self.policy(policy)?.workflows.as_ref()
    }

    /// Returns the workflows of `policy` mutably, for callers that exchange announcements without
    /// headers.
    pub fn workflows_mut(&mut self, policy: PolicyId) -> Option<&mut Workflows> {
        self.policy_mut(policy)?.workflows.as_mut()
    }

    /// Returns the state of the calls of `config`, if it has calls.
    ///
    /// # Errors
    /// [`ConfigError`] with the setting at fault.
    pub(crate) fn new_outbound(
        &mut self,
        host: &impl Host,
        config: &FilterConfig,
    ) -> Result<Option<Outbound>, ConfigError> {
        self.generation = self.generation.wrapping_add(1);
        let seeds = (self.seed, self.generation);
        let mut outbound = config.outbound.clone();
        if config.direction == Direction::Inbound
            && let Some(outbound) = &mut outbound
        {
            // A gateway's calls aren't delayed, because they are its clients' requests, which
            // already hold a slot.
            outbound.smoothing = None;
            outbound.service_smoothing.clear();
        }
        outbound
            .map(|outbound| Outbound::new(host, outbound, seeds))
            .transpose()
    }
}
