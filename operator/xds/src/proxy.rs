//! The record of one stream of one proxy.

use std::sync::Arc;
use std::time::SystemTime;

use headgate_core::config::{Direction, StageConfig};

use crate::direction;
use crate::module::Kind;
use crate::node::Identity;
use crate::snapshot::Assignment;
use headgate_api::plan::TargetRef;

/// A version that was sent to a proxy, or that the proxy runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// The xDS version, a hash of configuration, module and slot name.
    pub version: String,
    /// The revision of the slot's configuration. Empty for the empty configuration.
    pub revision: String,
    /// The kind of filter in the version.
    pub filter: Kind,
    /// The time at which the version was sent or accepted.
    pub at: SystemTime,
}

/// A proxy's last refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nack {
    /// The refused version.
    pub push: Push,
    /// Envoy's reason.
    pub message: String,
}

/// One stream of one proxy.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// The proxy's identity.
    pub identity: Identity,
    /// The address from which the proxy connected.
    pub peer: String,
    /// The filter slot of the stream, if it is Headgate's.
    pub slot: Option<String>,
    /// The time at which the stream began.
    pub connected: SystemTime,
    /// The time at which the stream ended.
    pub disconnected: Option<SystemTime>,
    /// The version that the proxy should run. `None` without a slot, or after the proxy has
    /// disconnected.
    pub version: Option<String>,
    /// The content of the assigned version, or the reason why it is empty.
    pub assignment: Arc<Assignment>,
    /// The last version that was sent to the proxy.
    pub sent: Option<Push>,
    /// The version that the proxy reports as running.
    pub acked: Option<Push>,
    /// The proxy's last refusal.
    pub nack: Option<Nack>,
}

/// The progress of a proxy towards its assigned version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    /// The proxy runs that version.
    Running,
    /// The proxy hasn't answered.
    Pending,
    /// The proxy refused that version, for this reason.
    Rejected(String),
}

impl Proxy {
    /// Returns the stages of this stream's policies. For an outbound slot, these are only the
    /// stages with workflows or class admission.
    pub fn stages(&self) -> impl Iterator<Item = &StageConfig> {
        let slot = self.slot.as_deref();
        let outbound = slot.is_some_and(|slot| direction(slot) == Direction::Outbound);
        let assigned = self.version.iter();
        let stages = assigned.flat_map(|_| &self.assignment.config.stages);
        let calls = |s: &StageConfig| s.workflows.is_some() || s.class_admission.is_some();
        stages.filter(move |s| !outbound || calls(s))
    }

    /// Returns the targets through which `policy` reaches the proxy.
    pub fn targets_of(&self, policy: &str) -> impl Iterator<Item = &TargetRef> {
        let in_force = self.assignment.in_force.iter();
        let of_policy = in_force.filter(move |f| f.policy == policy);
        of_policy.map(|f| &f.target)
    }

    /// Returns the proxy's progress towards its assigned version.
    pub fn run_state(&self) -> RunState {
        let Some(version) = &self.version else {
            return RunState::Pending;
        };
        if self.acked.as_ref().is_some_and(|p| p.version == *version) {
            return RunState::Running;
        }
        match &self.nack {
            Some(nack) if nack.push.version == *version => RunState::Rejected(nack.message.clone()),
            _ => RunState::Pending,
        }
    }
}
