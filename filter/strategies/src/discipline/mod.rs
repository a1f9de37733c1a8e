//! Queue disciplines: the order in which waiting requests get slots.
//!
//! Wisp (§5) schedules the sub-tasks of requests inside a process. A proxy orders whole requests,
//! each once. A discipline gives each request a *rank* when the request joins the queue. The
//! smallest rank goes first, over all workers (`queue` and `stage::dispatch` of `headgate-core`).
//! No shared queue is needed, and every discipline gets the same order across worker threads.
//!
//! | discipline | rank | source |
//! |---|---|---|
//! | FIFO | arrival | |
//! | EDF | deadline | Wisp §4.2 |
//! | LSTF | deadline − (total − elapsed service time) | Wisp §4.2, Table 2 |
//! | SJF | total work | Wisp Table 2 |
//! | SRTF | total − elapsed service time | Wisp Table 2 |
//! | LASF | work so far | Wisp Table 2 |
//! | DRR | round in which its flow can pay for it | `fair` |
//! | WFQ | finish tag of its flow | `fair` |
//! | Priority | number of its class | Wisp §3.1 |
//! | Slack | latest start: arrival + min over percentiles p of (objective_p − pt_p) | `slack` |
//!
//! The deadline is the request's own deadline. A request without one has the objective of its type
//! at the highest percentile or, without objectives, `queue.timeout`. If a request carries no
//! progress, its remaining work is the measured mean processing time of its type. `rank` converts
//! numbers to ranks that keep the order of arrival among equals.
//!
//! A queue that is only observed (`queue.mode: Observe`, `mode: DryRun`) is in the backend, where
//! the discipline has no effect. The order of such a queue is FIFO, and waits are estimated as in a
//! FIFO, regardless of the configured discipline.

mod cost;
mod fair;
mod rank;
mod slack;

use std::time::Duration;

use crate::config::{self, Mode, QueueMode, StageConfig};
use crate::host::{HostError, Shared};
use crate::request::Attributes;
use crate::service_times::ServiceTimes;
use crate::time::{Instant, micros, nanos};

use fair::Fair;
use rank::{Layout, PRIORITY, ROUND, TAG, WORK};

/// The order of one stage's queue.
#[derive(Debug)]
pub struct Order {
    discipline: config::Discipline,
    timeout: Duration,
    fair: Option<Fair>,
}

/// A request's turn in a fair queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The number of the flow.
    pub flow: u16,
    /// The charge of the flow for this request, rounds (fixed point).
    pub share: u64,
    /// The turn, rounds (fixed point), without later corrections of the flow's earlier charges.
    pub at: i64,
}

/// A request's position in the order of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The rank. The smallest rank goes first, over all workers.
    pub rank: u64,
    /// The turn in a fair queue, or `None` under other orders.
    pub turn: Option<Turn>,
}

impl Order {
    /// Creates the order of the checked `stage`. `prefix` is the prefix of its stats' names.
    ///
    /// # Errors
    /// [`HostError`] when the host refuses a metric.
    pub fn new(host: &impl Shared, prefix: &str, stage: &StageConfig) -> Result<Self, HostError> {
        // The backend orders a queue that is only observed.
        let holds = stage.mode == Mode::Enforce && stage.queue.mode == QueueMode::Hold;
        let discipline = if holds {
            stage.queue.discipline.clone()
        } else {
            config::Discipline::Fifo
        };
        let fair = Fair::new(host, prefix, stage, &discipline)?;
        Ok(Self {
            discipline,
            timeout: Duration::from_micros(stage.queue.timeout_us),
            fair,
        })
    }

    /// Returns the group of `request` in the queue: its type, class or flow. The number is below
    /// [`Order::groups`].
    pub fn group(&self, request: &Attributes) -> u16 {
        match (&self.fair, &self.discipline) {
            (Some(fair), _) => fair.flow_of(request),
            (None, config::Discipline::Priority) => request.class.0.into(),
            (None, _) => request.kind.0,
        }
    }

    /// Returns the number of groups in `stage`, whose order this is.
    pub fn groups(&self, stage: &StageConfig) -> usize {
        match (&self.fair, &self.discipline) {
            (Some(fair), _) => fair.flows(),
            (None, config::Discipline::Priority) => stage.classes.len().max(1),
            (None, _) => stage.types.len(),
        }
    }

    /// Returns the value to publish for the first waiter's `rank`.
    #[inline]
    pub fn announce(&self, rank: u64) -> u64 {
        rank::announce(rank, self.kind().0)
    }

    /// Returns the rank that another worker published. Returns `None` while that worker has another
    /// order, because an edit has reached only one of the two workers.
    pub fn heard(&self, announced: u64) -> Option<u64> {
        rank::heard(announced, self.kind().0)
    }

    /// Returns the order's number, below 16, and the layout of its ranks. The layout is `None` if
    /// ranks are instants: arrivals, deadlines or latest starts.
    fn kind(&self) -> (u64, Option<Layout>) {
        match self.discipline {
            config::Discipline::Fifo => (1, None),
            config::Discipline::Edf => (2, None),
            config::Discipline::Lstf => (3, None),
            config::Discipline::Sjf => (4, Some(WORK)),
            config::Discipline::Srtf => (5, Some(WORK)),
            config::Discipline::Lasf => (6, Some(WORK)),
            config::Discipline::Drr { .. } => (7, Some(ROUND)),
            config::Discipline::Slack => (8, None),
            config::Discipline::Wfq { .. } => (9, Some(TAG)),
            config::Discipline::Priority => (10, Some(PRIORITY)),
        }
    }

    /// Whether requests may be served in an order other than that of their arrival.
    pub fn reorders(&self) -> bool {
        self.discipline != config::Discipline::Fifo
    }

    /// Returns the largest ratio of the growth of a type's wait to the growth of a FIFO's wait.
    /// Orders by limits (slack, deadlines) let no request be overtaken for long. In a short queue,
    /// a wait is mostly the remaining time of requests in service, which a longer queue does not
    /// multiply.
    pub fn steepest_wait(&self) -> f64 {
        if self.admits_by_drain() {
            1.0
        } else {
            f64::INFINITY
        }
    }

    /// Whether requests are admitted by the time in which the queue drains, rather than by the wait
    /// that each request can expect.
    ///
    /// Orders by deadline or slack bring all requests equally close to their limits: a request with
    /// slack waits for one without. So under overload the wait of *every* type is close to its
    /// limit, and admission by that wait refuses the many cheap requests as often as the few
    /// expensive ones. At 1.5 times the full load Bouncer with an allowance of 0.3 then rejects 40%
    /// of all requests, whereas a FIFO rejects 13.7%. The drain time shows which requests have
    /// enough slack: a request whose slack is shorter is served in time only at the expense of
    /// others' slack. With admission by the drain time, the same strategy rejects 13.7% and meets
    /// all objectives (simulator, `slack-order`).
    ///
    /// With a value cut, few queued requests have much slack
    /// ([`ValueCut`](crate::strategy::ValueCut)). Then each type is judged by its own wait.
    ///
    /// Orders by size, attained service, class or turn give each type its own place in the queue,
    /// whatever the limits of the others. Under these, requests are judged by that place.
    pub fn admits_by_drain(&self) -> bool {
        self.kind().1.is_none()
    }

    /// Returns the place of a request. It came at `arrived`, found `queued` others, and is expected
    /// to take `expected_us` of slot time. Fair queues charge the request's flow. [`Order::left`]
    /// takes the charge back, and [`Order::ended`] corrects it.
    pub fn place(
        &mut self,
        host: &impl Shared,
        arrived: Instant,
        request: &Attributes,
        times: &ServiceTimes,
        expected_us: u64,
        queued: u32,
    ) -> Result<Place, HostError> {
        let Some(fair) = &mut self.fair else {
            let rank = self.rank(arrived, request, times);
            return Ok(Place { rank, turn: None });
        };
        let (rank, turn) = fair.place(host, arrived, request, expected_us, queued)?;
        let turn = Some(turn);
        Ok(Place { rank, turn })
    }

    /// Returns the rank of the first request of `flow` on this worker. The request came at
    /// `arrived` and has the turn `at` ([`Turn::at`]).
    pub fn rank_of_turn(
        &mut self,
        host: &impl Shared,
        flow: u16,
        at: i64,
        arrived: Instant,
    ) -> Result<u64, HostError> {
        match &mut self.fair {
            Some(fair) => fair.rank(host, flow, at, arrived),
            None => Ok(arrived.as_nanos()),
        }
    }

    /// Records the end of a request that had `turn` and held a slot for `taken`. `output` is the
    /// number of tokens in its response, and `usual_us` the usual time of such requests, or 0 if it
    /// is not known.
    pub fn ended(
        &mut self,
        host: &impl Shared,
        request: &Attributes,
        turn: Option<Turn>,
        output: u32,
        usual_us: u64,
        taken: Duration,
    ) -> Result<(), HostError> {
        let Some(fair) = &mut self.fair else {
            return Ok(());
        };
        fair.ended(host, request, turn, output, (usual_us, micros(taken)))
    }

    /// Whether a flow of a fair queue has no state to keep. Always true under orders without turns.
    pub fn is_idle(&mut self, host: &impl Shared, flow: u16) -> Result<bool, HostError> {
        match &mut self.fair {
            Some(fair) => fair.is_idle(host, flow),
            None => Ok(true),
        }
    }

    /// Resets the state of a flow of a fair queue, because its id now belongs to other requests.
    pub fn forget(&mut self, flow: u16) {
        if let Some(fair) = &mut self.fair {
            fair.forget(flow);
        }
    }

    /// Records that a request left the queue for a slot. `least` is the smallest rank of all
    /// waiting requests at that time.
    pub fn started(&self, host: &impl Shared, least: u64) -> Result<(), HostError> {
        self.fair
            .as_ref()
            .map_or(Ok(()), |fair| fair.started(host, least))
    }

    /// Takes back the charge of a request that left the queue without a slot.
    pub fn left(&mut self, host: &impl Shared, turn: Option<Turn>) -> Result<(), HostError> {
        match (&mut self.fair, turn) {
            (Some(fair), Some(turn)) => fair.left(host, turn),
            _ => Ok(()),
        }
    }

    /// Returns the rank of a request that arrives at `now`. Under a fair queue, this is the rank of
    /// a request without a turn.
    fn rank(&self, now: Instant, request: &Attributes, times: &ServiceTimes) -> u64 {
        let progress = &request.progress;
        let mean = || times.mean_of(request).unwrap_or_default();
        let remaining = || match progress.total {
            Some(total) => total.saturating_sub(progress.elapsed),
            None => mean(),
        };
        match self.discipline {
            config::Discipline::Fifo
            | config::Discipline::Drr { .. }
            | config::Discipline::Wfq { .. } => now.as_nanos(),
            config::Discipline::Edf => self.deadline(now, request, times).as_nanos(),
            config::Discipline::Lstf => {
                let deadline = self.deadline(now, request, times).as_nanos();
                deadline.saturating_sub(nanos(remaining()))
            }
            config::Discipline::Slack => slack::rank(now, request, times),
            config::Discipline::Sjf => rank::by_work(
                progress
                    .total_work
                    .unwrap_or_else(|| progress.work + mean()),
                now,
            ),
            config::Discipline::Srtf => rank::by_work(remaining(), now),
            config::Discipline::Lasf => rank::by_work(progress.work, now),
            config::Discipline::Priority => PRIORITY.rank(request.class.0.into(), now),
        }
    }

    /// Whether `discipline` uses [`Attributes::progress`].
    pub fn needs_progress(discipline: &config::Discipline) -> bool {
        matches!(
            discipline,
            config::Discipline::Lstf
                | config::Discipline::Sjf
                | config::Discipline::Srtf
                | config::Discipline::Lasf
        )
    }

    /// Returns the difference between the ranks of two requests that arrive `span` apart.
    pub fn tolerance(&self, span: Duration) -> u64 {
        let (_, layout) = self.kind();
        layout.map_or_else(|| nanos(span), |layout| layout.tolerance(span))
    }

    fn deadline(&self, now: Instant, request: &Attributes, times: &ServiceTimes) -> Instant {
        let objective = || {
            times
                .objectives(request.kind)
                .last()
                .map(|o| o.response_time)
        };
        let within = request.own_deadline.or_else(objective);
        now + within.unwrap_or(self.timeout)
    }
}
