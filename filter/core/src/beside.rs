//! The extension point for behaviour beside the stages of an engine. A type that implements
//! [`Beside`] is a type parameter of [`Engine`](crate::engine::Engine).
//!
//! ```text
//! request ─► Beside::arrive (may hold or refuse it) ─► stage (strategy, queue, slots) ─► backend
//! ```
//!
//! The behaviour and the stage identify a request by the same [`Ticket`], its place in the stage's
//! table of requests. Every method except [`Beside::new`] does nothing by default. With `()` an
//! engine has stages only.

use std::fmt::Debug;
use std::time::Duration;

use headgate_strategies::host::HostError;
use headgate_strategies::reason::Reason;
use headgate_strategies::time::Instant;

use crate::classify::RequestView;
use crate::config::{ConfigError, FilterConfig, StageConfig};
use crate::decision::{Action, Arrival, PolicyId, Ticket};
use crate::host::Host;
use crate::requests::Requests;
use crate::stage::Stage;
use crate::workers::{Membership, WorkerId};

/// The decision on a request before it reaches its stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Passage {
    /// The request enters the stage. It is already in the table of requests.
    Forward(Ticket),
    /// The request is held until a [`Release`] names it. It is already in the table of requests.
    Hold(Ticket),
    /// The request is refused for this reason. After this time, a new request would be admitted.
    Refuse(Reason, Duration),
}

/// The outcome of a request that was held before its stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Release {
    /// The request enters the stage.
    Admit(Ticket),
    /// The request is refused for this reason. After this time, a new request would be admitted.
    Refuse(Ticket, Reason, Duration),
}

/// A policy in force, as passed to [`Beside::reconfigure`].
#[derive(Debug)]
pub struct InForce<'a> {
    /// The policy's number.
    pub id: PolicyId,
    /// The policy's configuration.
    pub config: &'a StageConfig,
    /// Whether the configuration is new.
    pub changed: bool,
    /// The membership of this worker.
    pub membership: &'a Membership,
}

/// Behaviour beside the stages of an engine. `http::BesideHttp` has the part that reads and writes
/// headers.
#[allow(unused_variables)]
pub trait Beside: Debug + Sized {
    /// Creates the state without configuration. `seed` must differ between the engines of a
    /// process.
    fn new(seed: u64) -> Self;

    /// Adopts the inbound configurations, newest first. If an error is returned, nothing changes.
    ///
    /// # Errors
    /// [`ConfigError`] with the field at fault.
    fn listen<'a>(
        &mut self,
        host: &impl Host,
        newest_first: impl Iterator<Item = &'a FilterConfig> + Clone,
    ) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Adopts the configuration for the process's outbound calls. If an error is returned, nothing
    /// changes.
    ///
    /// # Errors
    /// [`ConfigError`] with the field at fault.
    fn call_by(&mut self, host: &impl Host, config: &FilterConfig) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Removes the configuration for outbound calls.
    fn forget_calls(&mut self) {}

    /// Adopts a policy that is new, changed, or in force again after [`Beside::retire`].
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. A new policy is then not in force.
    fn reconfigure(
        &mut self,
        host: &impl Host,
        now: Instant,
        policy: &InForce<'_>,
        requests: &mut Requests,
        releases: &mut Vec<Release>,
    ) -> Result<(), HostError> {
        Ok(())
    }

    /// Releases all held requests of a policy that is no longer in force.
    fn retire(
        &mut self,
        now: Instant,
        policy: PolicyId,
        requests: &mut Requests,
        releases: &mut Vec<Release>,
    ) {
    }

    /// Removes a policy without requests.
    fn forget(&mut self, policy: PolicyId) {}

    /// Publishes pending counts of a policy, because the worker is about to end.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    fn flush(&mut self, host: &impl Host, now: Instant, policy: PolicyId) -> Result<(), HostError> {
        Ok(())
    }

    /// Fills in a request's attributes and origin from its headers.
    fn describe(
        &mut self,
        host: &impl Host,
        now: Instant,
        (policy, config): (PolicyId, &StageConfig),
        request: &impl RequestView,
        arrival: &mut Arrival,
    ) {
    }

    /// Decides on an arriving request. Returns `None` to leave the decision to the stage.
    fn arrive(
        &mut self,
        host: &impl Host,
        now: Instant,
        stage: &mut Stage,
        arrival: &Arrival,
    ) -> Option<Passage> {
        None
    }

    /// Records that a request goes to the backend.
    fn started(&mut self, now: Instant, requests: &mut Requests, ticket: Ticket) {}

    /// Records the end of a request that is still in the table. `answered` is true if the backend
    /// answered the request without a failure.
    fn ended(
        &mut self,
        host: &impl Host,
        now: Instant,
        requests: &Requests,
        ticket: Ticket,
        answered: bool,
    ) {
    }

    /// Does the periodic work for a policy on this `worker`, after that of its stage.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. The next tick then continues the work.
    fn tick(
        &mut self,
        host: &impl Host,
        now: Instant,
        (policy, worker): (PolicyId, WorkerId),
        stage: &mut Stage,
        releases: &mut Vec<Release>,
    ) -> Result<(), HostError> {
        Ok(())
    }

    /// Whether a policy needs fast ticks.
    fn is_busy(&self, policy: PolicyId, requests: &Requests) -> bool {
        false
    }

    /// Whether outbound calls of the process are held.
    fn holds_calls(&self) -> bool {
        false
    }

    /// Sends the held calls that are due by `now`. Without a time it sends all of them, because
    /// there are no further ticks.
    fn send_calls(&mut self, now: Option<Instant>, actions: &mut Vec<Action>) {}
}

impl Beside for () {
    fn new(_seed: u64) -> Self {}
}
