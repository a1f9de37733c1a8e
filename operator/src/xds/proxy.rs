//! What is remembered of one stream of one proxy.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use headgate_core::config::{Direction, FilterConfig, StageConfig};
use serde::{Deserialize, Serialize};

use super::direction;
use super::module::Kind;
use super::node::Identity;
use crate::plan::{InForce, TargetRef};

/// The gRPC service that a stream uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Transport {
    /// Extension config discovery, a stream for each slot.
    Ecds,
    /// Aggregated discovery, one stream a proxy.
    Ads,
}

impl Transport {
    /// Its usual abbreviation.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ecds => "ECDS",
            Self::Ads => "ADS",
        }
    }
}

/// The protocol variant that a stream speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Variant {
    /// State of the world.
    #[serde(rename = "SotW")]
    StateOfTheWorld,
    /// Incremental.
    #[serde(rename = "delta")]
    Delta,
}

impl Variant {
    /// Its usual abbreviation.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StateOfTheWorld => "SotW",
            Self::Delta => "delta",
        }
    }
}

/// A version that was sent to a proxy, or that it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// xDS version: configuration, module and slot names.
    pub version: String,
    /// [`FilterConfig::revision`] of the inbound slots, or of the outbound ones where there are no
    /// others; empty for the empty configuration.
    pub revision: String,
    /// The kind of filter in it.
    pub filter: Kind,
    /// When it was sent or accepted.
    pub at: SystemTime,
}

/// A proxy's last refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nack {
    /// What it refused.
    pub push: Push,
    /// Envoy's reason.
    pub message: String,
}

/// One stream of one proxy.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// Who it is.
    pub identity: Identity,
    /// Address it connected from.
    pub peer: String,
    /// Service in use.
    pub transport: Transport,
    /// Protocol variant in use.
    pub variant: Variant,
    /// Filter slots that it subscribed to and that are Headgate's.
    pub slots: BTreeSet<String>,
    /// When the stream began.
    pub connected: SystemTime,
    /// When it ended.
    pub disconnected: Option<SystemTime>,
    /// What it should run: version, and the configuration of its inbound slots.
    pub assigned: Option<(String, Arc<FilterConfig>)>,
    /// The policies of that configuration, each with the target by which it reaches the proxy.
    pub in_force: Vec<InForce>,
    /// Why no policy applies to it.
    pub problem: Option<String>,
    /// Why it gets the Wasm filter, where it asks for the native one.
    pub fallback: Option<String>,
    /// What it was sent last.
    pub sent: Option<Push>,
    /// What it runs, as far as it said.
    pub acked: Option<Push>,
    /// Its last refusal.
    pub nack: Option<Nack>,
}

/// How far a proxy is with what it should run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    /// It runs it.
    Running,
    /// It hasn't answered.
    Pending,
    /// It refused it, for this reason.
    Rejected(String),
}

/// Whether all of these slots are outbound, and there is one.
pub(super) fn is_outbound<'a>(slots: impl IntoIterator<Item = &'a String>) -> bool {
    let mut slots = slots.into_iter().peekable();
    slots.peek().is_some() && slots.all(|name| direction(name) == Direction::Outbound)
}

impl Proxy {
    /// The stages of the policies that this stream is about. One for outbound slots only is about
    /// the policy whose workflows the calls belong to.
    pub fn stages(&self) -> impl Iterator<Item = &StageConfig> {
        let outbound = is_outbound(&self.slots);
        let assigned = self.assigned.iter();
        let stages = assigned.flat_map(|(_, config)| &config.stages);
        let calls = |s: &StageConfig| s.workflows.is_some() || s.class_admission.is_some();
        stages.filter(move |s| !outbound || calls(s))
    }

    /// The targets by which `policy` reaches it.
    pub fn targets_of(&self, policy: &str) -> impl Iterator<Item = &TargetRef> {
        self.in_force
            .iter()
            .filter(move |f| f.policy == policy)
            .map(|f| &f.target)
    }

    /// How far it is with what it should run.
    #[must_use]
    pub fn run_state(&self) -> RunState {
        let Some((version, _)) = &self.assigned else {
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
