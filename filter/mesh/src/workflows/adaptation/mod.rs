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

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::downstream::Downstream;
use super::estimates::{Estimates, Keep, Quotient, amount, is_amount};
use super::measurements::{Measured, Measurements};
use super::sharing::{Capacity, Load, Memory, Sharing, intervals};
use super::upstream::Upstream;
use super::{MAX_SERVICES, OTHER, OTHER_NAME, ProcessId, ServiceId, WorkflowId};
use headgate_core::config::{MAX_WORKFLOWS, SharingConfig, WorkflowsConfig};
use headgate_strategies::rng;
use headgate_strategies::time::Instant;

/// The minimum length of an interval. Shorter intervals count as this long. Otherwise a clock that
/// stands still would cause a division by zero.
const SHORTEST: Duration = Duration::from_millis(1);

/// The weight of a new interval's mean in an average over intervals.
const SMOOTHING: f64 = 0.3;

/// The input of [`Adaptation::run`].
#[derive(Debug, Clone, Copy)]
pub struct Interval<'a> {
    /// The end of the interval.
    pub now: Instant,
    /// The length of the interval, which is the time since the previous run.
    pub elapsed: Duration,
    /// P, the number of slots of the process. It is infinite without a limit.
    pub slots: f64,
    /// The measurements of all workers in the interval.
    pub measured: &'a Measurements,
}

/// The bottleneck of a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bottleneck {
    /// This process. The rate is that of the local policy.
    Local,
    /// This downstream service. Its Q is the smallest.
    Service(ServiceId),
}

/// A workflow's state in a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snapshot {
    /// The workflow.
    pub workflow: WorkflowId,
    /// σ, the rate in force, requests/s. It is infinite without a limit.
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
    /// The mean elapsed time and work of a request that enters the mesh here, including all calls
    /// below the request.
    pub totals: Option<(Duration, Duration)>,
    /// Whether any request of the workflow made a call.
    pub calls: bool,
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

/// A downstream service. Its quantile is that of its name ([`State::assign_service`]).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Service {
    name: Name,
    /// The time at which [`State::forget_idle_services`] last found the service in use.
    used: Option<Instant>,
}

/// One workflow's estimates. The workflow's settings are those of its name
/// ([`State::assign`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Workflow {
    name: Name,
    /// Whether the workflow has any measurements.
    seen: bool,
    estimates: Estimates,
    /// The factor by which the next run multiplies the calls of earlier intervals.
    #[serde(skip, default = "one")]
    keep_calls: f64,
    local: f64,
    downstream: f64,
    rate: f64,
    bottleneck: Option<Bottleneck>,
    /// The sharing policy's state.
    memory: Memory,
    /// The mean elapsed time and work of a request that enters the mesh here, including all calls
    /// below the request, s.
    totals: Option<(f64, f64)>,
    calls: bool,
    /// The time of the last request, or of the first check if there was none.
    used: Option<Instant>,
}

impl Default for Workflow {
    fn default() -> Self {
        Self {
            name: Name::default(),
            seen: false,
            estimates: Estimates::default(),
            keep_calls: 1.0,
            local: f64::INFINITY,
            downstream: f64::INFINITY,
            rate: f64::INFINITY,
            bottleneck: None,
            memory: Memory::default(),
            totals: None,
            calls: false,
            used: None,
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
        let sums = quotients.flat_map(|quotient| [quotient.sum, quotient.count]);
        let mut amounts = sums.chain(self.memory.rate);
        let mut rates = [self.local, self.downstream, self.rate].into_iter();
        amounts.all(is_amount) && rates.all(|rate| rate >= 0.0)
    }

    /// Adds the measurements of an interval, which have their default if there were no requests.
    fn measure(&mut self, now: Instant, seconds: f64, keep: Keep, measured: &Measured) {
        if *measured != Measured::default() {
            self.seen = true;
            self.used = Some(now);
        }
        if self.seen {
            self.keep_calls = self.estimates.add(keep, seconds, measured);
        }
        if measured.entered > 0 {
            let mean = |sum: Duration| sum.as_secs_f64() / measured.entered as f64;
            let (elapsed, work) = (mean(measured.elapsed), mean(measured.work));
            let (e, w) = self.totals.unwrap_or((elapsed, work));
            self.totals = Some((e + SMOOTHING * (elapsed - e), w + SMOOTHING * (work - w)));
        }
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

/// The measurements and rates of a process, from one run of Algorithm 1 to the next. The names of
/// workflows and services must be assigned before a run. The measurements of an id are kept if the
/// same name is assigned to the id.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The hash of the sharing policy to which the memory of workflows belongs.
    policy: u64,
    /// The workflows by id.
    workflows: Vec<Workflow>,
    /// The downstream services by id.
    services: Vec<Service>,
    downstream: Downstream,
    upstream: Upstream,
    /// The utilization of each resource, the quotient of used units and available units.
    utilization: [Quotient; 2],
}

impl State {
    /// Whether the state is within the bounds on which the code relies, and its numbers are within
    /// their ranges.
    pub fn is_valid(&self) -> bool {
        let mut quotients = self.utilization.iter().flat_map(|q| [q.sum, q.count]);
        quotients.all(is_amount)
            && self.workflows.iter().all(Workflow::is_valid)
            && self.workflows.len() <= usize::from(MAX_WORKFLOWS) + 1
            && self.services.len() <= usize::from(MAX_SERVICES) + 1
            && self.downstream.entries.is_valid()
            && self.upstream.entries.is_valid()
    }

    /// Assigns a name to the id of a workflow, which then has the settings of the name. An id that
    /// had another name loses its measurements. A call that changes nothing is cheap.
    pub fn assign(&mut self, workflow: WorkflowId, name: &str) {
        let known = self.workflow(workflow);
        if known.is_some_and(|known| known.name.assign(name)) {
            self.clear(workflow);
        }
    }

    /// Assigns a name to the id of a downstream service, which then has the quantile of the name.
    pub fn assign_service(&mut self, service: ServiceId, name: &str) {
        if service.0 > MAX_SERVICES {
            return;
        }
        let at = usize::from(service.0);
        if self.services.len() <= at {
            self.services.resize_with(at + 1, Service::default);
        }
        if self.services[at].name.assign(name) {
            self.services[at].used = None;
            self.downstream.forget_service(service);
        }
    }

    /// Resets those of `services` that had no calls and no rates for `span`, and returns their ids.
    /// The time of a service begins with the first call of this function.
    pub(super) fn forget_idle_services(
        &mut self,
        services: impl Iterator<Item = u16>,
        now: Instant,
        span: Duration,
    ) -> Vec<u16> {
        for entry in self.downstream.entries.iter() {
            let ServiceId(id) = entry.key.1;
            if let Some(service) = self.services.get_mut(usize::from(id)) {
                service.used = Some(now);
            }
        }
        let is_idle = |id: &u16| {
            let Some(service) = self.services.get_mut(usize::from(*id)) else {
                return false;
            };
            let idle = now.since(*service.used.get_or_insert(now)) >= span;
            if idle {
                *service = Service::default();
            }
            idle
        };
        services.filter(is_idle).collect()
    }

    /// Resets the measurements of a workflow, whose id may get another name from now on.
    pub fn forget(&mut self, workflow: WorkflowId) {
        if let Some(known) = self.workflows.get_mut(usize::from(workflow.0)) {
            *known = Workflow::default();
            self.clear(workflow);
        }
    }

    /// Returns σ, the rate at which the process admits `workflow`, requests/s. It is infinite for
    /// no limit.
    pub fn rate(&self, workflow: WorkflowId) -> f64 {
        self.seen(workflow).map_or(f64::INFINITY, |w| w.rate)
    }

    /// Returns the rate of `workflow` to announce to an unknown process, requests/s, or `None` for
    /// no limit.
    pub fn announced_to_newcomers(&self, workflow: WorkflowId) -> Option<f64> {
        let announced = self.upstream.newcomer(workflow, self.rate(workflow));
        announced.is_finite().then_some(announced)
    }

    /// Yields all limits to announce to upstream processes, requests/s, in ascending order of
    /// workflow and process. Allocates no memory.
    pub fn announcements(&self) -> impl Iterator<Item = (WorkflowId, ProcessId, f64)> + '_ {
        self.upstream.iter().filter(|(_, _, rate)| rate.is_finite())
    }

    /// Yields the workflows with measurements, in ascending order. Allocates no memory.
    pub fn workflows(&self) -> impl Iterator<Item = Snapshot> + '_ {
        let all = self.workflows.iter().enumerate();
        all.filter(|(_, w)| w.seen).map(|(id, w)| Snapshot {
            workflow: WorkflowId(id as u16),
            rate: w.rate,
            local_rate: w.local,
            demand: w.estimates.demand(),
            bottleneck: w.bottleneck,
            completion: w.estimates.completion().and_then(seconds),
            totals: w.totals.and_then(|(e, w)| seconds(e).zip(seconds(w))),
            calls: w.calls,
        })
    }

    /// Returns the time of the last request of a workflow. If there was none, returns the time of
    /// the first call of this function.
    pub(super) fn used(&mut self, workflow: WorkflowId, now: Instant) -> Instant {
        let known = self.workflow(workflow);
        known.map_or(now, |known| *known.used.get_or_insert(now))
    }

    /// Adds the interval's measurements to the estimates.
    fn measure(
        &mut self,
        sharing: &SharingConfig,
        interval: &Interval<'_>,
        elapsed: Duration,
        keep: Keep,
    ) {
        let &Interval { now, measured, .. } = interval;
        let seconds = elapsed.as_secs_f64();
        let seen = measured.workflows.len().min(usize::from(MAX_WORKFLOWS) + 1);
        let all = self.workflows.len().max(seen);
        self.workflows.resize_with(all, Workflow::default);
        for (id, workflow) in self.workflows.iter_mut().enumerate() {
            let own = measured.workflows.get(id).copied().unwrap_or_default();
            workflow.measure(now, seconds, keep, &own);
        }
        let workflows = &self.workflows;
        self.downstream.decay(|workflow| {
            let known = workflows.get(usize::from(workflow.0));
            known.map_or(0.0, |workflow| workflow.keep_calls)
        });
        for (&key, &count) in &measured.calls {
            if let Some(workflow) = self.workflow(key.0) {
                workflow.calls = true;
                self.downstream.called(key, count, now);
            }
        }
        for (&key, &(rate, at)) in measured.heard.iter().filter(|(key, _)| is_known(key.0)) {
            self.downstream.heard(key, rate, at.min(now));
        }
        self.upstream.decay(keep.cost, now);
        for (&key, &count) in measured.arrivals.iter().filter(|(key, _)| is_known(key.0)) {
            self.upstream.sent(key, count, now);
        }
        let [slots, resource] = &mut self.utilization;
        // Without a limit, there is no utilization.
        if interval.slots < f64::INFINITY {
            let available = amount(interval.slots) * seconds;
            let busy = measured.busy.as_secs_f64().min(available);
            slots.add(keep.demand, busy, available);
        }
        if let SharingConfig::DominantResource { resource: what, .. } = sharing {
            let used: f64 = measured.workflows.iter().map(|m| amount(m.resource)).sum();
            resource.add(keep.demand, used, amount(what.capacity) * seconds);
        }
    }

    /// Returns the state of an id, and creates the state if needed. Returns `None` for an id beyond
    /// the cap.
    fn workflow(&mut self, workflow: WorkflowId) -> Option<&mut Workflow> {
        if !is_known(workflow) {
            return None;
        }
        let at = usize::from(workflow.0);
        if self.workflows.len() <= at {
            self.workflows.resize_with(at + 1, Workflow::default);
        }
        self.workflows.get_mut(at)
    }

    fn seen(&self, workflow: WorkflowId) -> Option<&Workflow> {
        let known = self.workflows.get(usize::from(workflow.0));
        known.filter(|workflow| workflow.seen)
    }

    fn clear(&mut self, workflow: WorkflowId) {
        let at = usize::from(workflow.0);
        self.workflows[at].forget();
        self.downstream.forget(workflow);
        self.upstream.forget(workflow);
    }
}

/// Algorithm 1, on one worker.
#[derive(Debug)]
pub struct Adaptation {
    sharing: Sharing,
    /// The hash of the sharing policy.
    policy: u64,
    /// Whether line 1 runs. If false, only downstream services limit rates.
    shares_slots: bool,
    loads: Vec<Load>,
}

impl Adaptation {
    /// Creates the algorithm with the sharing policy of `config`. If `shares_slots` is false, line
    /// 1, which shares the process's slots among workflows, is left out.
    pub fn new(config: &WorkflowsConfig, shares_slots: bool) -> Self {
        Self {
            sharing: Sharing::new(&config.sharing),
            policy: rng::hash(format!("{:?}", config.sharing).bytes()),
            shares_slots,
            loads: Vec::new(),
        }
    }

    /// Runs Algorithm 1 for one interval. `config` is the configuration of [`Adaptation::new`].
    /// Returns the number of announced rates that expired without a newer rate. Allocates memory
    /// only if there are more workflows or processes than before.
    pub fn run(
        &mut self,
        config: &WorkflowsConfig,
        state: &mut State,
        interval: &Interval<'_>,
    ) -> u64 {
        if state.policy != self.policy {
            state.policy = self.policy;
            for workflow in &mut state.workflows {
                workflow.memory = Memory::default();
            }
        }
        state.assign(OTHER, OTHER_NAME);
        let elapsed = interval.elapsed.max(SHORTEST);
        let configured = Duration::from_micros(config.interval_us);
        let ttl = Duration::from_micros(config.rate_ttl_us);
        let keep = Keep::new(elapsed, configured);
        state.measure(&config.sharing, interval, elapsed, keep);
        let expired = state.downstream.expire(interval.now, ttl);
        // Line 1 shares the local resources.
        let capacity = Capacity {
            slots: interval.slots,
            utilization: state.utilization.map(|u| u.value(0.0).unwrap_or(0.0)),
            intervals: intervals(elapsed, configured),
        };
        self.share(config, state, &capacity);
        for (id, workflow) in state.workflows.iter_mut().enumerate() {
            if !workflow.seen {
                continue;
            }
            let id = WorkflowId(id as u16);
            // `limit` computes lines 2 to 4, and Q of line 5, for each service.
            let named = config.workflows.get(&workflow.name.text);
            let own = named.and_then(|w| w.quantile).unwrap_or(config.quantile);
            let services = &state.services;
            let of_services = &config.service_quantiles;
            let q = |service: ServiceId| {
                let service = services.get(usize::from(service.0));
                let known = service.and_then(|Service { name, .. }| {
                    let pair = named.and_then(|w| w.service_quantiles.get(&name.text));
                    pair.or_else(|| of_services.get(&name.text))
                });
                known.copied().unwrap_or(own)
            };
            // Calls are counted when they are answered, so they are divided by completed requests.
            // If they were divided by admitted requests, α would be too small, and rates too high,
            // while latencies grow.
            let completed = workflow.estimates.service.count;
            let limit = state.downstream.limit(id, completed, q, interval.now, ttl);
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
            state.upstream.split(id, workflow.rate, demand);
        }
        expired
    }

    /// Runs line 1, for all workflows.
    fn share(&mut self, config: &WorkflowsConfig, state: &mut State, capacity: &Capacity) {
        if !self.shares_slots {
            for workflow in &mut state.workflows {
                workflow.local = f64::INFINITY;
            }
            return;
        }
        // A workflow without completed requests is assumed to be like the others.
        let mut all = Estimates::default();
        for Workflow { estimates, .. } in state.workflows.iter().filter(|w| w.seen) {
            let Estimates {
                service, resource, ..
            } = estimates;
            all.service.add(1.0, service.sum, service.count);
            all.resource.add(1.0, resource.sum, resource.count);
        }
        // As long as no use is known, as without a second resource, only the slots are shared.
        let resource = all.resource_cost().unwrap_or(0.0);
        self.loads.clear();
        for (id, workflow) in state.workflows.iter().enumerate() {
            if !workflow.seen {
                continue;
            }
            let id = WorkflowId(id as u16);
            let named = config.workflows.get(&workflow.name.text);
            let estimates = &workflow.estimates;
            let cost = estimates.cost().or_else(|| all.cost());
            let resource = estimates.resource_cost().unwrap_or(resource);
            self.loads.push(Load {
                workflow: id,
                demand: estimates.demand(),
                downstream: workflow.downstream,
                cost: cost.map(|cost| [cost, resource]),
                leaf: state.downstream.is_leaf(id),
                weight: named.map_or(1.0, |w| w.weight),
                guarantee: named.and_then(|w| w.guarantee).unwrap_or(0.0),
                memory: workflow.memory,
                rate: f64::INFINITY,
            });
        }
        self.sharing.run(capacity, &mut self.loads);
        for load in &self.loads {
            let workflow = &mut state.workflows[usize::from(load.workflow.0)];
            (workflow.local, workflow.memory) = (load.rate, load.memory);
        }
    }
}

fn is_known(workflow: WorkflowId) -> bool {
    workflow.0 <= MAX_WORKFLOWS
}

fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests;
