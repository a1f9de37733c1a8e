//! Algorithm 1 of Wisp (§4.1.1) for all workflows of a process.
//!
//! The algorithm runs once an interval, on one worker of the process, with the measurements of all
//! workers:
//!
//! ```text
//! 1  σ ← LocalResourceSharingPolicy()                         sharing
//! 2  for all downstream services D                            downstream
//! 3      for all processes d in service D
//! 4          σ_d ← GetRates(d) / α
//! 5      σ ← min(σ, Q(σ_d (d ∈ D), q))                        quantile
//! ```
//!
//! GetRates is not a call. Processes announce their rates with every response, and the latest
//! announcement counts (§5 names that alternative). This process divides σ among its callers by
//! their demand, and announces its part to each caller ([`super::upstream`]).
//!
//! Probing per process of a service, and any agreement between processes, are left out on purpose.
//! Each process acts on the latest announcements. A chain of n hops needs at least n intervals to
//! pass a change on.

mod interval;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use interval::{Calls, Heard, Interval, Measured, UpstreamDemand};

use super::downstream::Downstream;
use super::estimates::{Estimates, Keep, Quotient, Sums};
use super::sharing::{Capacity, Load, Memory, Sharing, intervals};
use super::upstream::Upstream;
use super::{OTHER, OTHER_NAME, ProcessId, ServiceId, WorkflowId};
use headgate_core::config::{MAX_WORKFLOWS, SharingConfig, WorkflowsConfig};
use headgate_strategies::rng;
use headgate_strategies::time::Instant;

/// The maximum number of downstream services. Services with higher ids have no quantile of their
/// own.
pub const MAX_SERVICES: usize = 1024;
/// The minimum length of an interval. Shorter intervals count as this long. Otherwise a clock that
/// stands still would cause a division by zero.
const SHORTEST: Duration = Duration::from_millis(1);

/// The bottleneck of a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bottleneck {
    /// This process. The rate is that of the local policy.
    Local,
    /// This downstream service. Its Q is the smallest.
    Service(ServiceId),
}

/// A workflow's state in a process, for stats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snapshot {
    /// The workflow.
    pub workflow: WorkflowId,
    /// σ, the rate in force, requests/s. It is infinite for no limit.
    pub rate: f64,
    /// The rate that the local policy alone would set (line 1), requests/s. It is infinite for no
    /// limit.
    pub local_rate: f64,
    /// λ, the arrival rate, requests/s.
    pub demand: f64,
    /// The bottleneck that sets the rate, or `None` without a limit.
    pub bottleneck: Option<Bottleneck>,
    /// The mean time from admission to end, or `None` as long as no request has been answered.
    pub completion: Option<Duration>,
}

/// The name that an id belongs to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Name {
    #[serde(skip)]
    text: String,
    /// The hash of the text, or of the text that another worker assigned. `None` before the first
    /// assignment.
    hash: Option<u64>,
}

impl Name {
    /// Assigns a name to the id. Returns whether the id had another name before.
    fn assign(&mut self, text: &str) -> bool {
        if self.text == text && self.hash.is_some() {
            return false;
        }
        let hash = Some(rng::hash(text.bytes()));
        let other = self.hash.is_some() && self.hash != hash;
        self.text.clear();
        self.text.push_str(text);
        self.hash = hash;
        other
    }
}

/// One workflow's estimates. The workflow's settings are those of its name
/// ([`Adaptation::assign`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Workflow {
    name: Name,
    /// Whether the workflow has any measurements.
    seen: bool,
    #[serde(skip)]
    sums: Sums,
    estimates: Estimates,
    /// The factor by which the next run multiplies the calls of earlier intervals.
    #[serde(skip, default = "one")]
    keep_calls: f64,
    local: f64,
    downstream: f64,
    rate: f64,
    bottleneck: Option<Bottleneck>,
}

impl Default for Workflow {
    fn default() -> Self {
        Self {
            name: Name::default(),
            seen: false,
            sums: Sums::default(),
            estimates: Estimates::default(),
            keep_calls: 1.0,
            local: f64::INFINITY,
            downstream: f64::INFINITY,
            rate: f64::INFINITY,
            bottleneck: None,
        }
    }
}

impl Workflow {
    fn is_valid(&self) -> bool {
        let Estimates {
            offered,
            service,
            resource,
            completion,
        } = self.estimates;
        let quotients = [offered, service, resource, completion].into_iter();
        let mut sums = quotients.flat_map(|quotient| [quotient.sum, quotient.count]);
        let mut rates = [self.local, self.downstream, self.rate].into_iter();
        sums.all(is_amount) && rates.all(|rate| rate >= 0.0)
    }

    /// Resets the measurements, because they belong to another workflow.
    fn forget(&mut self) {
        *self = Self {
            name: std::mem::take(&mut self.name),
            ..Self::default()
        };
    }
}

const fn one() -> f64 {
    1.0
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Service {
    name: Name,
    #[serde(skip)]
    quantile: Option<f64>,
}

/// The state of an [`Adaptation`] from one run to the next.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The hash of the sharing policy to which `memory` belongs.
    policy: u64,
    /// The workflows by id.
    workflows: Vec<Workflow>,
    services: Vec<Service>,
    downstream: Downstream,
    upstream: Upstream,
    /// The sharing policy's state, by workflow id.
    memory: Vec<Memory>,
    /// The utilization of each resource, the quotient of used units and available units.
    utilization: [Quotient; 2],
    /// The time of the last run.
    now: Instant,
}

impl State {
    /// Whether the state is within the bounds on which the code relies, and its numbers are within
    /// their ranges.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let quotients = self.utilization.iter().flat_map(|q| [q.sum, q.count]);
        let mut amounts = quotients.chain(self.memory.iter().filter_map(|memory| memory.rate));
        amounts.all(is_amount)
            && self.workflows.iter().all(Workflow::is_valid)
            && self.memory.len() == self.workflows.len()
            && self.workflows.len() <= usize::from(MAX_WORKFLOWS) + 1
            && self.services.len() <= MAX_SERVICES
            && self.downstream.entries.is_valid()
            && self.upstream.entries.is_valid()
    }
}

/// The rates of a process and the state from which they are computed.
#[derive(Debug)]
pub struct Adaptation {
    config: WorkflowsConfig,
    sharing: Sharing,
    /// Whether line 1 runs. If false, only downstream services limit rates.
    shares_slots: bool,
    state: State,
    loads: Vec<Load>,
    rates: Vec<f64>,
}

impl Adaptation {
    /// Creates the state without measurements and limits.
    #[must_use]
    pub fn new(config: &WorkflowsConfig) -> Self {
        let mut adaptation = Self {
            config: config.clone(),
            sharing: Sharing::new(&config.sharing),
            shares_slots: true,
            state: State::default(),
            loads: Vec::new(),
            rates: Vec::new(),
        };
        adaptation.exchange(State::default());
        adaptation
    }

    /// Continues from `state`, and returns the previous state. The names of workflows and services
    /// must be assigned again. The measurements of an id are kept if the same name is assigned to
    /// the id.
    pub fn exchange(&mut self, state: State) -> State {
        let before = std::mem::replace(&mut self.state, state);
        let policy = rng::hash(format!("{:?}", self.config.sharing).bytes());
        if self.state.policy != policy {
            self.state.policy = policy;
            self.state.memory.fill(Memory::default());
        }
        self.assign(OTHER, OTHER_NAME);
        before
    }

    /// Continues with another configuration. Estimates stay. A change of the sharing policy resets
    /// the state of that policy.
    pub fn reconfigure(&mut self, config: &WorkflowsConfig) {
        if self.config == *config {
            return;
        }
        if self.config.sharing != config.sharing {
            self.sharing = Sharing::new(&config.sharing);
        }
        self.config = config.clone();
        let state = std::mem::take(&mut self.state);
        self.exchange(state);
        for service in &mut self.state.services {
            service.quantile = config.service_quantiles.get(&service.name.text).copied();
        }
    }

    /// Sets whether line 1 shares the process's slots among workflows.
    pub(crate) fn share_slots(&mut self, shares_slots: bool) {
        self.shares_slots = shares_slots;
    }

    /// Assigns a name to the id of a workflow, which then has the settings of the name. An id that
    /// had another name loses its measurements. Returns whether it had another name. A call that
    /// changes nothing is cheap.
    pub fn assign(&mut self, workflow: WorkflowId, name: &str) -> bool {
        let known = self.workflow(workflow);
        let renamed = known.is_some_and(|known| known.name.assign(name));
        if renamed {
            self.clear(workflow);
        }
        renamed
    }

    /// Assigns a name to the id of a downstream service, which then has the quantile of the name.
    pub fn assign_service(&mut self, service: ServiceId, name: &str) {
        let at = usize::from(service.0);
        if at >= MAX_SERVICES {
            return;
        }
        if self.state.services.len() <= at {
            self.state.services.resize_with(at + 1, Service::default);
        }
        let known = &mut self.state.services[at];
        known.quantile = self.config.service_quantiles.get(name).copied();
        if known.name.assign(name) {
            self.state.downstream.forget_service(service);
        }
    }

    /// Resets the measurements of a workflow, whose id may get another name from now on.
    pub fn forget(&mut self, workflow: WorkflowId) {
        if let Some(known) = self.state.workflows.get_mut(usize::from(workflow.0)) {
            *known = Workflow::default();
            self.clear(workflow);
        }
    }

    /// Runs Algorithm 1 for one interval. Allocates memory only if there are more workflows or
    /// processes than before.
    pub fn run(&mut self, interval: &Interval<'_>) {
        let elapsed = interval.elapsed.max(SHORTEST);
        let configured = Duration::from_micros(self.config.interval_us);
        let ttl = Duration::from_micros(self.config.rate_ttl_us);
        self.state.now = interval.now;
        self.measure(interval, elapsed, Keep::new(elapsed, configured));
        self.state.downstream.expire(interval.now, ttl);
        // Line 1 shares the local resources.
        self.share(interval.slots, intervals(elapsed, configured));
        for (id, workflow) in self.state.workflows.iter_mut().enumerate() {
            if !workflow.seen {
                continue;
            }
            let id = WorkflowId(id as u16);
            // `limit` computes lines 2 to 4, and Q of line 5, for each service.
            let named = self.config.workflows.get(&workflow.name.text);
            let own = named
                .and_then(|w| w.quantile)
                .unwrap_or(self.config.quantile);
            let services = &self.state.services;
            let q = |service: ServiceId| {
                let Some(service) = services.get(usize::from(service.0)) else {
                    return own;
                };
                let pair = named.and_then(|w| w.service_quantiles.get(&service.name.text));
                pair.copied().or(service.quantile).unwrap_or(own)
            };
            // Calls are counted when they are answered, so they are divided by completed requests.
            // If they were divided by admitted requests, α would be too small, and rates too high,
            // while latencies grow.
            let completed = workflow.estimates.service.count;
            let limit = self
                .state
                .downstream
                .limit(id, completed, q, interval.now, ttl);
            // Line 5 takes the smaller of the local and the downstream rate.
            workflow.downstream = limit.map_or(f64::INFINITY, |limit| limit.rate);
            workflow.rate = workflow.local.min(workflow.downstream);
            workflow.bottleneck = match limit {
                Some(limit) if limit.rate < workflow.local => {
                    Some(Bottleneck::Service(limit.service))
                }
                _ => workflow.local.is_finite().then_some(Bottleneck::Local),
            };
            let demand = workflow.estimates.demand();
            self.state.upstream.split(id, workflow.rate, demand);
        }
    }

    /// Returns σ, the rate at which the process admits `workflow`, requests/s. It is infinite for
    /// no limit.
    #[must_use]
    pub fn rate(&self, workflow: WorkflowId) -> f64 {
        self.seen(workflow).map_or(f64::INFINITY, |w| w.rate)
    }

    /// Returns the rate of `workflow` to announce to an unknown process, requests/s, or `None` for
    /// no limit.
    #[must_use]
    pub fn announced_to_newcomers(&self, workflow: WorkflowId) -> Option<f64> {
        let announced = self.state.upstream.newcomer(workflow, self.rate(workflow));
        announced.is_finite().then_some(announced)
    }

    /// Yields all limits to announce to upstream processes, requests/s, in ascending order of
    /// workflow and process. Allocates no memory.
    pub fn announcements(&self) -> impl Iterator<Item = (WorkflowId, ProcessId, f64)> + '_ {
        self.state
            .upstream
            .iter()
            .filter(|(_, _, rate)| rate.is_finite())
    }

    /// Yields the workflows with measurements, in ascending order. Allocates no memory.
    pub fn workflows(&self) -> impl Iterator<Item = Snapshot> + '_ {
        let all = self.state.workflows.iter().enumerate();
        all.filter(|(_, w)| w.seen).map(|(id, w)| Snapshot {
            workflow: WorkflowId(id as u16),
            rate: w.rate,
            local_rate: w.local,
            demand: w.estimates.demand(),
            bottleneck: w.bottleneck,
            completion: w.estimates.completion().and_then(seconds),
        })
    }

    /// Returns the number of announced rates that expired without a newer rate since the last call
    /// of this function, and resets the number.
    pub fn take_expired(&mut self) -> u64 {
        self.state.downstream.take_expired()
    }

    /// Adds the interval's counts to the estimates.
    fn measure(&mut self, interval: &Interval<'_>, elapsed: Duration, keep: Keep) {
        let seconds = elapsed.as_secs_f64();
        for measured in interval.workflows {
            let Some(workflow) = self.workflow(measured.workflow) else {
                continue;
            };
            workflow.seen = true;
            let sums = &mut workflow.sums;
            sums.offered += measured.offered as f64;
            sums.completed += measured.completed as f64;
            sums.service += measured.service.as_secs_f64();
            sums.reported += measured.reported as f64;
            sums.resource += amount(measured.resource);
            sums.answered += measured.answered as f64;
            sums.completion += measured.completion.as_secs_f64();
        }
        for workflow in self.state.workflows.iter_mut().filter(|w| w.seen) {
            let sums = std::mem::take(&mut workflow.sums);
            workflow.keep_calls = workflow.estimates.add(keep, seconds, &sums);
        }
        let workflows = &self.state.workflows;
        self.state.downstream.decay(|workflow| {
            let known = workflows.get(usize::from(workflow.0));
            known.map_or(0.0, |workflow| workflow.keep_calls)
        });
        for calls in interval.calls.iter().filter(|c| is_known(c.workflow)) {
            let key = (calls.workflow, calls.service, calls.process);
            self.state.downstream.called(key, calls.count, interval.now);
        }
        for heard in interval.heard.iter().filter(|h| is_known(h.workflow)) {
            let key = (heard.workflow, heard.service, heard.process);
            self.state
                .downstream
                .heard(key, heard.rate, heard.at.min(interval.now));
        }
        self.state.upstream.decay(keep.cost, interval.now);
        for demand in interval.upstream.iter().filter(|d| is_known(d.workflow)) {
            let (workflow, process) = (demand.workflow, demand.process);
            self.state
                .upstream
                .sent(workflow, process, demand.offered, interval.now);
        }
        let [slots, resource] = &mut self.state.utilization;
        // Without a limit, there is no utilization.
        if interval.slots < f64::INFINITY {
            slots.add(
                keep.demand,
                amount(interval.busy),
                amount(interval.slots) * seconds,
            );
        }
        if let SharingConfig::DominantResource { resource: what, .. } = &self.config.sharing {
            let used = amount(interval.resource_used);
            resource.add(keep.demand, used, amount(what.capacity) * seconds);
        }
    }

    /// Runs line 1, for all workflows.
    fn share(&mut self, slots: f64, intervals: f64) {
        if !self.shares_slots {
            for workflow in &mut self.state.workflows {
                workflow.local = f64::INFINITY;
            }
            return;
        }
        // A workflow without completed requests is assumed to be like the others.
        let mut all = Estimates::default();
        for Workflow { estimates, .. } in self.state.workflows.iter().filter(|w| w.seen) {
            let Estimates {
                service, resource, ..
            } = estimates;
            all.service.add(1.0, service.sum, service.count);
            all.resource.add(1.0, resource.sum, resource.count);
        }
        // As long as no use is known, as without a second resource, only the slots are shared.
        let resource = all.resource_cost().unwrap_or(0.0);
        self.loads.clear();
        for (id, workflow) in self.state.workflows.iter().enumerate() {
            if !workflow.seen {
                continue;
            }
            let id = WorkflowId(id as u16);
            let named = self.config.workflows.get(&workflow.name.text);
            let estimates = &workflow.estimates;
            let cost = estimates.cost().or_else(|| all.cost());
            let resource = estimates.resource_cost().unwrap_or(resource);
            self.loads.push(Load {
                workflow: id,
                demand: estimates.demand(),
                downstream: workflow.downstream,
                cost: cost.map(|cost| [cost, resource]),
                leaf: self.state.downstream.is_leaf(id),
                weight: named.map_or(1.0, |w| w.weight),
                guarantee: named.and_then(|w| w.guarantee).unwrap_or(0.0),
            });
        }
        let capacity = Capacity {
            slots,
            utilization: self.state.utilization.map(|u| u.value(0.0).unwrap_or(0.0)),
            intervals,
        };
        self.sharing.run(
            &capacity,
            &self.loads,
            &mut self.state.memory,
            &mut self.rates,
        );
        for (load, &rate) in self.loads.iter().zip(&self.rates) {
            self.state.workflows[usize::from(load.workflow.0)].local = rate;
        }
    }

    /// Returns the state of an id, and creates the state if needed. Returns `None` for an id beyond
    /// the cap.
    fn workflow(&mut self, workflow: WorkflowId) -> Option<&mut Workflow> {
        if !is_known(workflow) {
            return None;
        }
        let at = usize::from(workflow.0);
        if self.state.workflows.len() <= at {
            self.state.workflows.resize_with(at + 1, Workflow::default);
            self.state.memory.resize(at + 1, Memory::default());
        }
        self.state.workflows.get_mut(at)
    }

    fn seen(&self, workflow: WorkflowId) -> Option<&Workflow> {
        let known = self.state.workflows.get(usize::from(workflow.0));
        known.filter(|workflow| workflow.seen)
    }

    fn clear(&mut self, workflow: WorkflowId) {
        let at = usize::from(workflow.0);
        self.state.workflows[at].forget();
        self.state.memory[at] = Memory::default();
        self.state.downstream.forget(workflow);
        self.state.upstream.forget(workflow);
    }
}

fn is_known(workflow: WorkflowId) -> bool {
    workflow.0 <= MAX_WORKFLOWS
}

/// Returns `x`, or 0 if `x` is not a valid amount.
fn amount(x: f64) -> f64 {
    if is_amount(x) { x } else { 0.0 }
}

pub(super) fn is_amount(x: f64) -> bool {
    x >= 0.0 && x.is_finite()
}

fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests;
