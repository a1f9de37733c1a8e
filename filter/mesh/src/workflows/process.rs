//! One worker's state of the workflows of one stage.
//!
//! Time, membership and the host are arguments of the methods. After a host error, requests pass as
//! if their workflow had no limit.

use std::time::Duration;

use headgate_core::beside::Passage;
use headgate_core::config::{Discipline, Flow, Mode, StageConfig, WorkflowsConfig};
use headgate_core::decision::{Arrival, Origin, Ticket};
use headgate_core::host::Host;
use headgate_core::requests::{Request, Requests};
use headgate_core::stats;
use headgate_core::workers::{Membership, WorkerId};
use headgate_strategies::host::HostError;
use headgate_strategies::reason::Reason;
use headgate_strategies::rng::{self, Rng};
use headgate_strategies::time::Instant;

use super::adaptation::Adaptation;
use super::call_tree::{Branch, Branches, MAX_BRANCHES};
use super::limiter::{Limiter, Verdict};
use super::measurements::Measurements;
use super::names::Directory;
use super::part::{Part, Parts};
use super::published::Published;
use super::stats::{Count, ProcessCount, WorkflowStats};
use super::{MAX_SERVICES, OTHER, OTHER_NAME, ProcessId, ServiceId, WorkflowId};
use crate::shared::{self, Watched};

/// One worker's workflows of one stage, with their names, rate limiter, call trees, measurements
/// and rates.
#[derive(Debug)]
pub struct Workflows {
    pub(super) config: WorkflowsConfig,
    /// Whether requests are held and refused. If false, decisions are only counted.
    pub(super) enforced: bool,
    /// The hash of the names of the policy's classes.
    pub(super) classes: u8,
    /// The longest wait of a request. A deadline can only shorten the wait.
    pub(super) longest_wait: Duration,
    pub(super) process: ProcessId,
    pub(super) worker: WorkerId,
    pub(super) names: Directory,
    pub(super) services: Directory,
    pub(super) limiter: Limiter,
    pub(super) branches: Branches,
    /// This worker's measurements since its last exchange with the record.
    pub(super) measured: Measurements,
    pub(super) stats: WorkflowStats,
    pub(super) published: Published,
    /// The record that the workers share ([`super::record::Record`]). Only runs of Algorithm 1 are
    /// announced.
    pub(super) record: Watched,
    /// Algorithm 1. Its state is in the record.
    pub(super) adaptation: Adaptation,
    /// The configured deadlines by workflow.
    pub(super) deadlines: Vec<Option<Duration>>,
    /// The revision of the workflow names that stats and deadlines use.
    pub(super) named: Option<u64>,
    /// Whether each configured workflow has an id.
    pub(super) reserved: bool,
    /// The revision of the service names that stats use.
    pub(super) served: Option<u64>,
    pub(super) exchanged: Instant,
    /// The number of requests in the backend that hold slots. Slots that were released since the
    /// last exchange still count. Their slot time until `accounted` has been added.
    running: u32,
    accounted: Instant,
    /// The number of the last request that went to the backend.
    generation: u32,
    /// Whether this worker wrote gauges that must be reset at the end.
    pub(super) shown: bool,
    pub(super) retired: bool,
    pub(super) parts: Parts,
}

/// Returns this process's id. The first worker that calls this function draws the id.
pub(crate) fn process(host: &impl Host, key: &str, seed: u64) -> Result<ProcessId, HostError> {
    let mix = |seed, byte| Rng::new(seed ^ u64::from(byte)).next_u64();
    let drawn = key.bytes().fold(seed, mix);
    let (process, ()) = shared::change(host, &format!("{key}/process"), |process| {
        let unknown = *process == ProcessId::UNKNOWN;
        if unknown {
            *process = ProcessId(drawn.max(1));
        }
        (unknown, ())
    })?;
    Ok(process)
}

/// Returns a hash of the names of the classes of `stage`, in their order.
pub(super) fn hash_of_classes(stage: &StageConfig) -> u8 {
    let classes = stage.classes.iter();
    let names = classes.flat_map(|class| class.name.bytes().chain([b'/']));
    let [hash, ..] = rng::hash(names).to_le_bytes();
    hash
}

/// Whether the queue gives workflows turns by tokens. Rates that share slot time would then
/// override the turns. In slot time, long sequences cost hardly more than short ones.
pub(super) fn takes_turns_by_tokens(stage: &StageConfig) -> bool {
    matches!(
        stage.queue.discipline,
        Discipline::Wfq {
            by: Flow::Workflow,
            tokens: Some(_),
            ..
        }
    )
}

impl Workflows {
    /// Creates the workflows of `stage` on the worker of `membership`. Returns `None` if no
    /// workflows are configured. `seed` must differ between processes, because the process's id is
    /// drawn from its first worker's seed.
    ///
    /// # Errors
    /// [`HostError`] if the host refuses a metric or a blob.
    pub fn new(
        stage: &StageConfig,
        membership: &Membership,
        seed: u64,
        now: Instant,
        host: &impl Host,
    ) -> Result<Option<Self>, HostError> {
        let Some(config) = &stage.workflows else {
            return Ok(None);
        };
        let prefix = stats::prefix(&stage.policy);
        let key = format!("headgate/workflows/{}", stage.policy);
        let directory = |what: &str, cap| {
            let changes = format!("{prefix}.{what}_changes");
            Directory::new(host, format!("{key}/{what}"), &changes, cap)
        };
        let mut this = Self {
            enforced: stage.mode == Mode::Enforce,
            classes: hash_of_classes(stage),
            longest_wait: Duration::from_micros(stage.queue.timeout_us),
            process: process(host, &key, seed)?,
            worker: membership.id(),
            names: directory("names", config.max_workflows)?,
            services: directory("services", MAX_SERVICES)?,
            limiter: Limiter::new(&prefix),
            branches: Branches::new(format!("{key}/branch")),
            measured: Measurements::default(),
            stats: WorkflowStats::new(host, &prefix)?,
            published: Published::default(),
            record: Watched::new(
                host,
                format!("{key}/record"),
                &format!("{prefix}.rates_changes"),
            )?,
            adaptation: Adaptation::new(config, !takes_turns_by_tokens(stage)),
            deadlines: Vec::new(),
            named: None,
            reserved: false,
            served: None,
            exchanged: now,
            running: 0,
            accounted: now,
            // Sums under the numbers of earlier workflows may remain. These were given at less than
            // one number per µs.
            generation: (now.as_nanos() / 1_000) as u32,
            shown: false,
            retired: false,
            parts: Parts::default(),
            config: config.clone(),
        };
        this.learn_names(host)?;
        this.learn_rates(host)?;
        Ok(Some(this))
    }

    /// Returns the configuration.
    pub fn config(&self) -> &WorkflowsConfig {
        &self.config
    }

    /// Returns this process's id.
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// Returns the id of the workflow `name`, or [`OTHER`] if the name is empty, too long, beyond
    /// the cap, or that of [`OTHER`]. Neither a known name nor a name beyond the cap costs a host
    /// call.
    pub fn identify(&mut self, host: &impl Host, now: Instant, name: &[u8]) -> WorkflowId {
        if name == OTHER_NAME.as_bytes() {
            return OTHER;
        }
        self.names.id(host, now, name).map_or(OTHER, WorkflowId)
    }

    /// Counts a request whose workflow name is too long. The request belongs to [`OTHER`].
    pub(crate) fn name_too_long(&mut self) {
        // If the directory is full, `arrive` counts each request of `OTHER`.
        if !self.names.is_full() {
            self.stats.count_process(ProcessCount::Folded, 1);
        }
    }

    /// Returns the ids that lost their workflow since the last call of this function. Each of these
    /// ids is now free or has another workflow.
    pub(crate) fn take_freed(&mut self) -> Vec<u16> {
        self.names.take_freed()
    }

    /// Returns the id of the downstream service `name`. Services beyond [`MAX_SERVICES`] share id
    /// 0.
    pub fn service(&mut self, host: &impl Host, now: Instant, name: &[u8]) -> ServiceId {
        ServiceId(self.services.id(host, now, name).unwrap_or(0))
    }

    /// Sets a request's deadline and totals from its workflow, if the request enters the mesh here
    /// and lacks them.
    pub(crate) fn complete(&self, request: &mut Arrival) {
        let Origin { flow, sender } = request.origin;
        if sender.is_some() {
            return;
        }
        let workflow = WorkflowId(flow);
        let attributes = &mut request.attributes;
        let own = self.deadlines.get(usize::from(flow)).copied();
        attributes.own_deadline = attributes.own_deadline.or(own.flatten());
        if let Some((service, work)) = self.published.row(workflow).and_then(|row| row.totals) {
            let progress = &mut attributes.progress;
            progress.total = progress.total.or(Some(service));
            progress.total_work = progress.total_work.or(Some(work));
        }
    }

    /// Decides on an arriving request. After [`Passage::Forward`] and [`Passage::Hold`], the
    /// request is in the table, and the caller must report its end with [`Workflows::ended`].
    ///
    /// The drop policy (§4.3) lets a request wait only if its remaining deadline, less its
    /// workflow's mean completion time from here on, exceeds the expected wait. A `hopeless`
    /// request would miss its deadline even without a wait
    /// ([`headgate_core::stage::Stage::is_hopeless`]). A hopeless request is rejected and takes no
    /// number of the limiter.
    pub(crate) fn arrive(
        &mut self,
        host: &impl Host,
        now: Instant,
        requests: &mut Requests,
        request: &Arrival,
        hopeless: bool,
    ) -> Passage {
        let Origin { flow, sender } = request.origin;
        let workflow = WorkflowId(flow);
        self.stats.count(workflow, Count::Offered);
        if workflow == OTHER && self.names.is_full() {
            self.stats.count_process(ProcessCount::Folded, 1);
        }
        self.measured.workflow(workflow).offered += 1;
        let sender = sender.map_or(ProcessId::UNKNOWN, ProcessId);
        self.measured.arrived((workflow, sender), 1);

        let row = self.published.row(workflow);
        let attributes = request.attributes;
        let ahead = row.and_then(|row| row.completion).unwrap_or_default();
        let own = attributes.own_deadline.map(|own| own.saturating_sub(ahead));
        // A client without a deadline may give up long before the queue's timeout. If all clients
        // gave up, none would receive the rates in the answers. The rates would expire, and
        // upstream processes would then admit all requests, which would be lost here. So the wait
        // is limited to the rates' time to live.
        let patience = own.unwrap_or(Duration::from_micros(self.config.rate_ttl_us));
        let tolerance = patience.min(self.longest_wait);
        let hasty = own.is_some_and(|own| own < self.longest_wait);

        let longest = self.config.max_queue_length;
        let verdict = if hopeless {
            Verdict::Late(Duration::ZERO)
        } else if let Some(level) = row.and_then(|row| row.level.as_ref()) {
            let limited = (workflow, level);
            let verdict = self.limiter.arrive(host, now, limited, longest, tolerance);
            // On a host error, the limiter admits the request.
            verdict.unwrap_or(Verdict::Pass)
        } else {
            Verdict::Pass
        };
        let refused = match verdict {
            Verdict::Pass | Verdict::Wait(_) => None,
            Verdict::Late(wait) if hasty || hopeless => {
                Some((Reason::Deadline, Count::Deadline, wait))
            }
            Verdict::Late(wait) | Verdict::Full(wait) => {
                Some((Reason::RateLimited, Count::RateLimited, wait))
            }
        };
        if let Some((reason, count, wait)) = refused {
            self.stats.count(workflow, count);
            if self.enforced {
                self.stats.count(workflow, Count::RejectedEnforced);
                return Passage::Refuse(reason, wait);
            }
        }
        let held = self.enforced && matches!(verdict, Verdict::Wait(_));
        let mut waits = Request::new(request.stream, attributes, now);
        waits.origin = request.origin;
        let mut part = Part {
            deadline: attributes.own_deadline.map(|own| now + own),
            hasty,
            passed: None,
            started: None,
            branch: None,
            resource: None,
            done: None,
        };
        if held {
            let ticket = self.parts.insert(requests, waits, part);
            self.limiter.hold(workflow, ticket, now, tolerance);
            return Passage::Hold(ticket);
        }
        if let Verdict::Wait(_) = verdict {
            self.limiter.use_up(workflow);
        }
        if refused.is_none() {
            self.stats.count(workflow, Count::Admitted);
        }
        part.pass(&mut waits, now);
        Passage::Forward(self.parts.insert(requests, waits, part))
    }

    /// Records that a request goes to the backend now.
    pub(crate) fn started(&mut self, now: Instant, requests: &mut Requests, ticket: Ticket) {
        self.account(now);
        let Some((_, part)) = self.parts.both_mut(requests, ticket) else {
            return;
        };
        if part.started.is_some() {
            return;
        }
        part.started = Some(now);
        self.running += 1;
        self.generation = self.generation.wrapping_add(1);
        part.branch = (ticket.slot() < MAX_BRANCHES).then_some(Branch {
            worker: self.worker,
            slot: ticket.slot(),
            generation: self.generation,
        });
    }

    /// Adds the slot time of requests in the backend since the last call of this function.
    pub(super) fn account(&mut self, now: Instant) {
        let used = now.since(self.accounted).saturating_mul(self.running);
        self.measured.busy = self.measured.busy.saturating_add(used);
        self.accounted = self.accounted.max(now);
    }

    /// Counts the requests with slots anew, because requests may release slots before their ends.
    pub(super) fn recount(&mut self, now: Instant, requests: &Requests) {
        self.account(now);
        self.running = self.parts.running(requests);
    }

    /// Records the end of the request of `ticket`. A request that went to the backend counts in
    /// costs and in calls per request even if it isn't `answered`, because its slot time and its
    /// calls count as well. Otherwise a workflow whose requests fail late would cost nothing.
    pub(crate) fn ended(
        &mut self,
        host: &impl Host,
        now: Instant,
        requests: &Requests,
        ticket: Ticket,
        answered: bool,
    ) {
        let Some((request, part)) = self.parts.of(requests, ticket) else {
            return;
        };
        let (part, slot_time) = (*part, request.slot_time(now));
        let held_slot = request.freed.is_none();
        let Origin { flow, sender } = request.origin;
        let workflow = WorkflowId(flow);
        self.account(now);
        if part.passed.is_none() {
            self.limiter.remove(workflow, ticket);
        }
        let Some(started) = part.started else {
            return;
        };
        self.running = self.running.saturating_sub(u32::from(held_slot));
        let measured = self.measured.workflow(workflow);
        measured.completed += 1;
        let service = slot_time.unwrap_or(now.since(started));
        measured.service = measured.service.saturating_add(service);
        // An answer without a report means that the request used nothing. Without an answer, the
        // use is unknown.
        if let Some(used) = part.resource.or_else(|| answered.then_some(0.0)) {
            measured.reported += 1;
            measured.resource += used;
        }
        if !answered {
            return;
        }
        measured.answered += 1;
        let completion = now.since(part.passed.unwrap_or(started));
        measured.completion = measured.completion.saturating_add(completion);
        self.stats.count(workflow, Count::Completed);
        let mut done = part.done;
        if sender.is_none() && done.is_none() {
            done = Some(self.done(host, now, &part, workflow, started));
        }
        if let Some(done) = done.filter(|_| sender.is_none()) {
            let measured = self.measured.workflow(workflow);
            measured.entered += 1;
            measured.elapsed = measured.elapsed.saturating_add(done.elapsed);
            measured.work = measured.work.saturating_add(done.work);
        }
    }
}

#[cfg(test)]
mod tests {
    use headgate_core::config::FilterConfig;
    use headgate_strategies::request::{Attributes, TypeId};

    use super::*;
    use crate::memory::MemoryHost;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn config() -> FilterConfig {
        let json = r#"{"revision":"r","stages":[{"policy":"ns/p","parallelism":50,
            "queue":{"max_length":100,"timeout_us":1000000},
            "strategy":{"type":"MaxQueueLength"},"types":[{"name":"default"}],
            "workflows":{"identify":[{"type":"Header","name":"x-tenant"}],
                "quantile":0.5,"interval_us":100000,"rate_ttl_us":1000000,
                "sharing":{"type":"StaticGuarantees"},"max_workflows":10,"max_queue_length":20,
                "workflows":{"a":{"guarantee":50.0}}}}]}"#;
        FilterConfig::from_json(json.as_bytes()).unwrap()
    }

    /// Sends a request to the backend at `now`.
    fn send(workflows: &mut Workflows, requests: &mut Requests, now: Instant) -> Ticket {
        let part = Part {
            deadline: None,
            hasty: false,
            passed: Some(now),
            started: None,
            branch: None,
            resource: None,
            done: None,
        };
        let request = Request::new(1, Attributes::of(TypeId(0)), now);
        let ticket = workflows.parts.insert(requests, request, part);
        workflows.started(now, requests, ticket);
        ticket
    }

    /// A response of hours isn't among the load that the slots limit.
    #[test]
    fn a_request_that_released_its_slot_is_not_busy() {
        let (config, host) = (config(), MemoryHost::new());
        let membership = Membership::join(at(0), 1, &host).unwrap();
        let new = Workflows::new(&config.stages[0], &membership, 1, at(0), &host);
        let mut workflows = new.unwrap().unwrap();
        let mut requests = Requests::default();
        let long = send(&mut workflows, &mut requests, at(0));
        let other = send(&mut workflows, &mut requests, at(0));
        requests.of_mut(long).unwrap().freed = Some((at(90), None));
        let worker = (membership.id(), 50.0);
        let ticked = workflows.tick(&host, at(100), worker, &mut requests, &mut Vec::new());
        ticked.unwrap();
        workflows.account(at(150));
        assert_eq!(workflows.measured.busy, Duration::from_millis(50));
        workflows.ended(&host, at(150), &requests, long, false);
        workflows.account(at(160));
        assert_eq!(workflows.measured.busy, Duration::from_millis(60));
        workflows.ended(&host, at(160), &requests, other, false);
        workflows.account(at(170));
        assert_eq!(workflows.measured.busy, Duration::from_millis(60));
    }

    /// Returns the branch of the first request of new workflows, which goes to the backend at
    /// `now`.
    fn first_branch(workflows: &mut Workflows, now: Instant) -> Branch {
        let mut requests = Requests::default();
        let ticket = send(workflows, &mut requests, now);
        let (_, part) = workflows.parts.of(&requests, ticket).unwrap();
        part.branch.unwrap()
    }

    #[test]
    fn new_workflows_continue_no_earlier_sums() {
        let config = config();
        let host = MemoryHost::new();
        let membership = Membership::join(at(0), 1, &host).unwrap();
        let new = |now| Workflows::new(&config.stages[0], &membership, 1, now, &host);
        let mut earlier = new(at(0)).unwrap().unwrap();
        let branch = first_branch(&mut earlier, at(0));
        let began = earlier.branches.began(&host, at(1), branch, at(0));
        assert!(began.unwrap().is_some());
        let mut later = new(at(2)).unwrap().unwrap();
        let next = first_branch(&mut later, at(3));
        assert_eq!((next.worker, next.slot), (branch.worker, branch.slot));
        assert_eq!(later.branches.load(&host, next).unwrap(), None);
    }
}
