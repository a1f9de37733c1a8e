//! What one worker holds of the workflows of one stage.
//!
//! Time, membership and the host are arguments, as everywhere. Nothing here fails: where the host
//! does, requests pass as if their workflow had no limit.

use std::time::Duration;

use super::adaptation::Adaptation;
use super::call_tree::{Branch, Branches, MAX_BRANCHES};
use super::limiter::{Limiter, Verdict};
use super::names::Directory;
use super::part::Part;
use super::published::Published;
use super::stats::{Count, ProcessCount, WorkflowStats};
use super::tally::Tally;
use super::{OTHER, ProcessId, ServiceId, WorkflowId};
use crate::config::{Mode, StageConfig, WorkflowsConfig};
use crate::decision::{Arrival, Ticket};
use crate::host::{Host, HostError, Number};
use crate::refusal::{Origin, Reason};
use crate::request::Attributes;
use crate::requests::{Request, Requests};
use crate::shared;
use crate::stats;
use crate::time::Instant;
use crate::workers::{Membership, WorkerId};

/// Downstream services that are told apart.
pub const MAX_SERVICES: u16 = 255;

/// What the rate limiter says to a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Passage {
    /// On to the stage.
    Forward(Ticket),
    /// Hold it until a [`Release`] names it.
    Hold(Ticket),
    /// Answer it now: why, and the time after which a request would pass.
    Refuse(Reason, Duration),
}

/// What becomes of a request that the rate limiter held.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Release {
    /// On to the stage.
    Admit {
        /// The request.
        ticket: Ticket,
        /// The caller's name for it.
        stream: u32,
    },
    /// Answer it now; its ticket is void.
    Refuse {
        /// The caller's name for it.
        stream: u32,
        /// Whose it was.
        origin: Origin,
        /// What it said of itself.
        attributes: Attributes,
        /// Why.
        reason: Reason,
        /// Time after which a request would pass.
        retry_after: Duration,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Workflows {
    pub(super) config: WorkflowsConfig,
    /// Whether anybody is held or refused, rather than counted.
    pub(super) enforced: bool,
    /// P.
    pub(super) slots: f64,
    /// Longest wait of a request, whatever its deadline.
    pub(super) longest_wait: Duration,
    /// What the names of blobs start with.
    pub(super) key: String,
    pub(super) process: ProcessId,
    pub(super) worker: WorkerId,
    pub(super) names: Directory,
    pub(super) services: Directory,
    pub(super) limiter: Limiter,
    pub(super) branches: Branches,
    pub(super) tally: Tally,
    pub(super) stats: WorkflowStats,
    pub(super) published: Published,
    /// Counts how often [`Workflows::published`] changed, over all workers.
    pub(super) sequence: Number,
    pub(super) seen: Option<u64>,
    /// Algorithm 1; what it knows is in the record of all workers.
    pub(super) adaptation: Adaptation,
    /// By workflow.
    pub(super) deadlines: Vec<Option<Duration>>,
    /// Revision of the names that stats and deadlines have.
    pub(super) named: Option<u64>,
    /// Revision of the services whose names are in stats.
    pub(super) served: Option<u64>,
    pub(super) exchanged: Instant,
    /// Requests in the backend, and until when their slot time is accounted for.
    running: u32,
    accounted: Instant,
    /// Number of the last request that went to the backend.
    generation: u32,
    /// Whether this worker wrote gauges that somebody must take back.
    pub(super) shown: bool,
    pub(super) retired: bool,
}

/// Of numbers that differ in a bit, numbers that have nothing to do with each other (`splitmix64`,
/// G. Steele et al., OOPSLA '14).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The name of this process, drawn by the first of its workers.
pub(crate) fn process(host: &impl Host, key: &str, seed: u64) -> Result<ProcessId, HostError> {
    let drawn = key
        .bytes()
        .fold(seed, |seed, byte| mix(seed ^ u64::from(byte)));
    let (process, ()) = shared::change(host, &format!("{key}/process"), |process| {
        let unknown = *process == ProcessId::UNKNOWN;
        if unknown {
            *process = ProcessId(drawn.max(1));
        }
        (unknown, ())
    })?;
    Ok(process)
}

impl Workflows {
    /// The workflows of `stage` on the worker that `membership` names; `None` if it has none
    /// configured. `seed` differs between processes: the first worker of each draws its name with
    /// it.
    ///
    /// # Errors
    /// [`HostError`] when the host refuses a metric or a blob.
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
            slots: f64::from(stage.parallelism),
            longest_wait: Duration::from_micros(stage.queue.timeout_us),
            process: process(host, &key, seed)?,
            worker: membership.id(),
            names: directory("names", config.max_workflows)?,
            services: directory("services", MAX_SERVICES)?,
            limiter: Limiter::new(&prefix),
            branches: Branches::new(format!("{key}/branch")),
            tally: Tally::default(),
            stats: WorkflowStats::new(host, &prefix)?,
            published: Published::default(),
            sequence: host.number(&format!("{prefix}.rates_changes"))?,
            seen: None,
            adaptation: Adaptation::new(config),
            deadlines: Vec::new(),
            named: None,
            served: None,
            exchanged: now,
            running: 0,
            accounted: now,
            generation: 0,
            shown: false,
            retired: false,
            config: config.clone(),
            key,
        };
        this.names.sync(host)?;
        this.reserve(host, now);
        this.learn_names(host)?;
        this.learn_rates(host)?;
        Ok(Some(this))
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &WorkflowsConfig {
        &self.config
    }

    /// What this process is called by the others.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// The workflow `name`; [`OTHER`] for one that is empty, too long, or beyond the cap. One that
    /// is known costs no host call, nor does one beyond the cap.
    pub fn identify(&mut self, host: &impl Host, now: Instant, name: &[u8]) -> WorkflowId {
        self.names.id(host, now, name).map_or(OTHER, WorkflowId)
    }

    /// A request names a workflow whose name is longer than names may be: it shares [`OTHER`].
    pub(crate) fn name_too_long(&mut self) {
        // Of those beyond the cap, each is counted when it arrives.
        if !self.names.is_full() {
            self.stats.count_process(ProcessCount::Folded, 1);
        }
    }

    /// Ids of workflows that stand for nothing or for another workflow than before, since the last
    /// call.
    pub(crate) fn take_freed(&mut self) -> Vec<u16> {
        self.names.take_freed()
    }

    /// The downstream service `name`; those beyond [`MAX_SERVICES`] share id 0.
    pub fn service(&mut self, host: &impl Host, now: Instant, name: &[u8]) -> ServiceId {
        ServiceId(self.services.id(host, now, name).unwrap_or(0))
    }

    /// Adds to a request that enters the mesh here what is known of its workflow: deadline and
    /// totals.
    pub(crate) fn complete(&self, request: &mut Arrival) {
        let Origin { workflow, upstream } = request.origin;
        if upstream.is_some() {
            return;
        }
        let attributes = &mut request.attributes;
        let own = self.deadlines.get(usize::from(workflow.0)).copied();
        attributes.own_deadline = attributes.own_deadline.or(own.flatten());
        if let Some((service, work)) = self.published.row(workflow).and_then(|row| row.totals) {
            let progress = &mut attributes.progress;
            progress.total = progress.total.or(Some(service));
            progress.total_work = progress.total_work.or(Some(work));
        }
    }

    /// A request arrives. With [`Passage::Forward`] and [`Passage::Hold`] it is in the table, and
    /// is to be [`Workflows::ended`].
    ///
    /// The drop policy (§4.3): a request waits only if what is left of its deadline, less the mean
    /// time that its workflow takes from here on, is more than the wait that is expected.
    /// `hopeless`: it has little chance even without a wait ([`crate::stage::Stage::is_hopeless`]),
    /// and takes no number of the limiter.
    pub(crate) fn arrive(
        &mut self,
        host: &impl Host,
        now: Instant,
        requests: &mut Requests,
        request: &Arrival,
        hopeless: bool,
    ) -> Passage {
        let Origin { workflow, upstream } = request.origin;
        self.stats.count(workflow, Count::Offered);
        if workflow == OTHER && self.names.is_full() {
            self.stats.count_process(ProcessCount::Folded, 1);
        }
        self.tally.row(workflow).measured.offered += 1;
        let sender = upstream.unwrap_or(ProcessId::UNKNOWN);
        self.tally.arrived(workflow, sender, 1);

        let row = self.published.row(workflow);
        let attributes = request.attributes;
        let ahead = row.and_then(|row| row.completion).unwrap_or_default();
        let own = attributes.own_deadline.map(|own| own.saturating_sub(ahead));
        // Who says nothing of a deadline may have given up long before the queue's timeout. Then
        // nobody is left to hear what answers say of rates, they expire, and everything is let in
        // that is lost further down.
        let patience = own.unwrap_or(Duration::from_micros(self.config.rate_ttl_us));
        let tolerance = patience.min(self.longest_wait);
        let hasty = own.is_some_and(|own| own < self.longest_wait);

        let longest = self.config.max_queue_length;
        let verdict = if hopeless {
            Verdict::Late(Duration::ZERO)
        } else {
            let verdict = self.limiter.arrive(host, now, workflow, longest, tolerance);
            // Where the host fails, nothing is limited.
            verdict.unwrap_or(Verdict::Pass)
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
        let mut part = Part {
            origin: request.origin,
            deadline: attributes.own_deadline.map(|own| now + own),
            passed: None,
            started: None,
            branch: None,
            resource: 0.0,
            done: None,
        };
        if held {
            let ticket = requests.insert(waits, Some(part));
            self.limiter.hold(workflow, ticket, now, tolerance);
            return Passage::Hold(ticket);
        }
        if let Verdict::Wait(_) = verdict {
            self.limiter.use_up(workflow);
        }
        if refused.is_none() {
            self.stats.count(workflow, Count::Admitted);
        }
        self.tally.row(workflow).measured.admitted += 1;
        part.pass(&mut waits, now);
        Passage::Forward(requests.insert(waits, Some(part)))
    }

    /// A request goes to the backend now.
    pub(crate) fn started(&mut self, now: Instant, requests: &mut Requests, ticket: Ticket) {
        self.account(now);
        let Some((_, part)) = requests.both_mut(ticket) else {
            return;
        };
        if part.started.is_some() {
            return;
        }
        part.started = Some(now);
        self.running += 1;
        self.generation = self.generation.wrapping_add(1);
        part.branch = (ticket.slot < MAX_BRANCHES).then_some(Branch {
            worker: self.worker,
            slot: ticket.slot,
            generation: self.generation,
        });
    }

    /// Adds the slot time up to now.
    pub(super) fn account(&mut self, now: Instant) {
        let used = now.since(self.accounted).saturating_mul(self.running);
        self.tally.busy = self.tally.busy.saturating_add(used);
        self.accounted = self.accounted.max(now);
    }

    /// The request of `ticket` ended. `served` is when it got its slot: `None` within where nobody
    /// can tell, `None` where it was not served (its client gone).
    pub(crate) fn ended(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        part: &Part,
        served: Option<Option<Instant>>,
    ) {
        self.account(now);
        if part.passed.is_none() {
            self.limiter.remove(part.origin.workflow, ticket);
        }
        let Some(started) = part.started else {
            return;
        };
        self.running = self.running.saturating_sub(1);
        let Some(dequeued) = served else {
            return;
        };
        let Origin { workflow, upstream } = part.origin;
        let mut done = part.done;
        if upstream.is_none() && done.is_none() {
            done = Some(self.done(host, now, part, started));
        }
        self.stats.count(workflow, Count::Completed);
        let row = self.tally.row(workflow);
        let measured = &mut row.measured;
        measured.completed += 1;
        let service = now.since(dequeued.unwrap_or(started));
        measured.service = measured.service.saturating_add(service);
        let completion = now.since(part.passed.unwrap_or(started));
        measured.completion = measured.completion.saturating_add(completion);
        measured.resource += part.resource;
        if let Some(done) = done.filter(|_| upstream.is_none()) {
            let entered = &mut row.entered;
            entered.requests += 1;
            entered.service = entered.service.saturating_add(done.elapsed);
            entered.work = entered.work.saturating_add(done.work);
        }
    }
}
