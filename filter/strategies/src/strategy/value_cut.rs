//! The value cut refuses, under overload, the requests that are worth least per unit of slot time.
//!
//! **The problem.** Bouncer (Alg. 1) refuses the request that would miss its own objective. If all
//! types share one objective, as in the paper, that is a request of the expensive type, and the
//! result is close to optimal. If each type has objectives that suit it (expensive types have loose
//! ones), it is a request of the cheap type. A request of 60 ms with 140 ms of slack never misses
//! and takes a slot. The requests of 2.5 ms with 47 ms of slack find no slot. Slots are then full
//! of the requests with the least value per slot time.
//!
//! **The optimum.** With P slots, arrival rates λ, mean processing times m and values v by type,
//! the value answered per second is maximal if slot time is filled in order of v/m (the fractional
//! knapsack). Then all requests of the types above some v/m are admitted, a fraction of one type,
//! and none below. Two rules come close to that with finite queues:
//!
//! *The cut.* Every 100 ms, with w_k = λ_k m_k as the slots that type k demands, in order of v/m:
//!
//! ```text
//! b_1 = ρP − Σ_k a_k w_k      f_k = min(1, b_k / ((1 − a_k) w_k))      b_k+1 = b_k − f_k (1 − a_k) w_k
//! ```
//!
//! Type k is admitted with probability f_k. a_k is its floor, the probability with which starvation
//! avoidance overrides a refusal. So the part a_k + (1 − a_k) f_k of type k is admitted. Floors
//! take their part of the budget first. They fit while Σ a_k w_k ≤ P. Types whose v/m differ by at
//! most 10% share one f. λ is an exponential average over 1 s, over all workers. It is an average
//! over 0.1 s while the numbers of arrivals in two steps in a row deviate by more than 3 standard
//! errors in the same direction. m is lower by the part for requests that don't reach the backend
//! ([`ValueCut::set_usage`]), but not in v/m.
//!
//! *The ceiling.* A request may wait as long as its own objectives allow (Alg. 1), but no longer
//! than types of higher v/m can. Let slack_j be the minimum over percentiles p of (objective_p −
//! pt_p), and wait_j the wait that a request of type j would meet now:
//!
//! ```text
//! max(wait_k, wait_r) ≤ 0.9 · min { slack_j : v_j/m_j > v_k/m_k }      r = the j with the largest slack
//! ```
//!
//! This applies Alg. 1 on behalf of the types with higher v/m. The ceiling takes effect at the next
//! arrival, whereas the cut needs a second. It keeps expensive requests from filling the slots that
//! cheaper ones are about to need. wait_r matters if the discipline lets the more valuable type
//! wait longer than type k.
//!
//! The ceiling applies only while it is needed. While the budget holds all types, ceilings begin to
//! apply when Alg. 1 refuses more than 2% of the value of these types (over 3 s), and end when it
//! refuses less than 0.2%. While a type is broken, they begin at 0.2%, too. Otherwise a shared
//! processor far below full load would refuse requests that only have to wait for a moment. Below
//! the capacity a few slow requests together make a burst, in which Alg. 1 refuses some. With 0.2%
//! in place of 2% for the beginning, the ceilings then refused eight times as many requests for
//! seconds. After a cold start at 0.95 times the capacity of 16 workers, 1.2% of all requests were
//! refused in the first five seconds, not 0.6%. With 2% for the end as well, Alg. 1 refuses up to
//! 2% of the requests that are worth most, and four cores at 1.2 times their capacity answer 1%
//! less.
//!
//! The most valuable types have no ceiling as long as they ask together for at most half of the
//! slots beyond the first, min(P, Σ_k w_k) − 1. They don't make the others wait, because at least
//! half of the slots in use drain the queue while a ceiling holds the rest back. Under the order by
//! slack all types reach their slack at the same time, and the ceilings of types of similar rank
//! differ by a few ms. With a ceiling for every type, valuable types were refused to protect each
//! other, which lowered ρ until slots were idle. With the paper's mix and P = 16 (times and
//! objectives × 4, in simulation), the result is 0.972 and 0.987 of the optimum at 1.5 and 2 times
//! the full load, not 0.965 and 0.973. Then 97% and 99.8% of the slots are busy, not 96%. The first
//! slot is left out because one long request takes it. With one or two slots, short requests need
//! the ceilings of all others.
//!
//! *Feedback.* The cut's budget follows the refusals of Alg. 1 and of the ceiling among types above
//! the cut (f = 1). It moves every 50 requests of these types, but no sooner than a step and no
//! later than a second. With `lost` as the part of their value that was refused, and t the time
//! since the last move,
//!
//! ```text
//! lost ≤ 0.02      ρ ← ρ + 0.04 t                    within 0.3..=1.3
//! lost > 0.02      ρ ← ρ (1 − min(0.2 t, lost))
//! ```
//!
//! So ρ compensates for effects that the means don't show. With few slots and heavy tails, spare
//! slots are needed, and with many slots none. ρ starts at 1.3, its value after a time without
//! overload, because the first means cover few requests. With a start at 1.0, 16 workers answer 1%
//! less in the first five seconds at 1.5 times their capacity, and 2% less if P is found
//! automatically.
//!
//! *A limit on utilization.* `acceptFraction` bounds the slots in use. If that bound is below P,
//! the law uses it in place of P, and ρ is at most 1. Otherwise ρ is at most bound/P. So the bound,
//! whose refusals are at random, finds little to refuse. The refusals that remain don't change ρ,
//! because the bound follows averages of a minute and would make ρ oscillate. Because of these
//! refusals, free slots are not given to requests below the cut.
//!
//! **Measurements** come from a model of the engine. They are the fraction answered within
//! objectives ÷ the optimum, at 1.2, 1.5 and 2 times the full load. The mix is 60% × 2.5 ms and 30%
//! × 4 ms with p50/p90 objectives of 50/150 ms, and 10% × 60 ms with 200/500 ms:
//!
//! ```text
//!                                             P = 2               P = 4               P = 16
//! Alg. 1 alone                           0.53  0.27  0.12    0.52  0.19  0.08    0.52  0.11  0.08
//! cut                                    0.92  0.94  0.95    0.95  0.96  0.97    0.97  0.98  0.99
//! cut; spare slots for the valuable      0.93  0.96  0.98    0.94  0.98  0.99    0.95  0.99  0.99
//! cut; slots of the others bounded       0.75  0.75  0.76    0.89  0.79  0.84    0.92  0.91  0.91
//! cut; fluid forecast of the backlog     0.96  0.98  0.98    0.97  0.98  0.97    0.98  0.97  0.97
//! ceiling, ρ = 10 (no cut)               0.93  0.89  0.82    0.95  0.90  0.84    0.97  0.94  0.88
//! cut and ceiling, by the FIFO's wait    0.95  0.96  0.97    0.97  0.97  0.98    0.99  0.99  0.99
//! cut and ceiling, by the type's wait    0.99  0.99  0.99    1.00  1.00  1.00    1.00  1.00  1.00
//! ```
//!
//! Spare slots (trunk reservation) lose 5 to 15 points on mixes with heavy tails. Bounds on slots
//! leave slots idle when the valuable types are few. The forecast needs a count of running requests
//! by type. The ceiling needs no further measurements. The cut is needed in addition, because the
//! ceiling is the same for all types below the most valuable one and so doesn't rank them. The
//! engine in simulated time reaches the last row of the model. With the paper's mix its result is
//! within 0.01 of Alg. 1 alone with P = 100, and within 0.02 with P = 20. Tolerating 1% in place of
//! 2%, or a ceiling of 0.8, costs the mixes with few slots up to 0.02. A ceiling of 1.0 would leave
//! a FIFO nothing to spare.
//!
//! *Room.* The averages follow the end of a load a second later, and ρ several seconds later. So a
//! request below the cut is admitted if slots are free (a quarter, and three at least, is kept for
//! others) and no request above the cut was refused for a second. The second condition is for a P
//! above the backend's capacity, where slots are always free. With a budget of tokens, slots are
//! often free although tokens aren't, so this rule doesn't apply to requests that take tokens. With
//! it, the model of an LLM server answers 3 to 12% less at twice its capacity.
//!
//! *Tokens.* With a budget of tokens (`parallelism.tokens`), m is the slot time, or the slot time
//! that is worth the request's tokens if that is more ([`ValueCut::learn`]). Tokens are known from
//! the first request on, so a type without a known slot time is ranked by its tokens. If its work
//! were set aside, its tokens would leave no budget for types that are worth more. In the model of
//! the server of `scripts/bench llm`, 9% of the most valuable type are then refused 10 to 22 s
//! after the start.
//!
//! **Exceptions.** A type with fewer than 20 samples has no known slot time. Unless its tokens are
//! known, it is admitted, and its work is set aside. From 20 samples on it has a rank. Before it
//! has a histogram of its own, Alg. 1 judges it by other types' times, so its refusals don't count
//! as lost yet. A histogram needs fifty samples by default, which takes an expensive type 10 to 20
//! s in an overload. This was measured with SQLite on one core, reports of 75 ms, and 1.5 times the
//! capacity from the first request on. From 5 to 11 s after that, 34 to 54 answers/s are in time
//! without a rank meanwhile, and 85 to 90 with a rank from the tenth sample on. Ten samples are too
//! few for a core with two slots or with six, where it answers 13% less with six than with two.
//!
//! A type that misses an objective even without queue wait (`condemned`) is cut like any other.
//! Bouncer admits the rest of it while no request waits. Its refusals don't count as lost, and its
//! slack bounds no other type's wait. It keeps its rank, because other types may have made it slow.
//! On a shared core, reports condemn each other. In front of a queue inside the backend, reports
//! condemn the short requests behind them.
//!
//! A type that is cut entirely still gets its part of 0.5% of the slots, or of 2% if many of its
//! answers fail, because only answers show that its cost has fallen. Types that together bring less
//! than 1% of the value put no ceiling on the others.
//!
//! **Left out.** The part of a type's answers that miss their objective in any case (a heavy tail)
//! should lower its v, but doesn't. The cost that a request states itself is not used.
//!
//! Workers share one record (`controlled`). Each worker adds its arrived work every 50 ms. The
//! first worker after 100 ms advances the averages and ρ. Each worker then fills the budget by
//! itself. The cost is O(n log n) in types × classes every 100 ms, and O(1) per decision. No
//! decision allocates or calls the host.

mod delivery;
mod ranks;
mod record;
#[cfg(test)]
mod tests;

use std::time::Duration;

use super::Controlled;
use super::controlled::fingerprint;
use crate::config::StageConfig;
use crate::request::{Attributes, ClassId, TypeId};
use crate::rng::Rng;
use crate::service_times::ServiceTimes;
use crate::shared;
use crate::time::Instant;
use delivery::{Delivery, Sums};
use record::{RHO, Record, Totals};

/// The time between two exchanges with the other workers.
const EXCHANGE: Duration = Duration::from_millis(50);
/// The parts of the value above the cut that Alg. 1 must refuse for ceilings to apply. The first is
/// for ceilings that apply already, and the second for ceilings that don't.
const SHORT: (f64, f64) = (0.002, 0.02);
/// The part of its type's first objective, and the multiple of the longest mean slot time of a type
/// with traffic, beyond which a request is silent.
const USUAL: (f64, f64) = (0.5, 8.0);
/// The multiple of its type's processing time at the percentile of the last objective beyond which
/// a request is silent, if its type is usually late.
const UNUSUAL: f64 = 2.0;
/// The assumed slot time of a request of a type without a known cost, s.
const UNKNOWN: f64 = 1e-6;
/// The time without a refusal above the cut after which free slots are open to all types.
const CALM: Duration = Duration::from_millis(1_000);
/// The number of standard deviations by which the slots that a type uses exceed their mean at most.
const BY_CHANCE: f64 = 4.0;
/// The number of standard deviations by which the slots of other types exceed their mean at most.
const NEEDED: f64 = 2.0;

/// The state of a type on one worker.
#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    /// The mean processing time, s. It is 0 before the first measurement.
    measured: f64,
    /// Whether the type has no samples, or too few.
    unmeasured: bool,
    /// The mean time for which a request holds its slot, s.
    mean: f64,
    /// The wait that the objectives leave to a request, s. It is `None` without objectives, without
    /// a histogram of the type's own, and if the type is condemned.
    slack: Option<f64>,
    /// Whether the type's slot time is not known. If its tokens aren't known either, the type is
    /// admitted at any value, and its work is set aside.
    cold: bool,
    /// Whether Alg. 1 judges the type by its own histogram.
    own: bool,
    /// Whether the type misses an objective even without queue wait.
    condemned: bool,
    /// The processing time at the percentile of the type's last objective if that is longer than
    /// the objective, s. Otherwise 0.
    late: f64,
    /// The probability with which starvation avoidance overrides a refusal.
    floor: f64,
    /// The mean slot time by which the type is ranked, s. It doesn't rise while any type is broken,
    /// because the broken type may slow this type down. Nor does it rise for a while after this
    /// type was broken, because the mean covers that time.
    own_time: f64,
    /// The slot time that is as large a part of the slots as the type's tokens are of the budget,
    /// s.
    tokens: f64,
    /// The first and the last objective, s, or `None` without objectives.
    objectives: Option<(f64, f64)>,
    /// The part of the type's value that an admitted request delivers, ratio.
    part: f64,
    /// The part of `mean` for which requests hold no slot on average, because some of them don't
    /// reach the backend, ratio.
    unused: f64,
    /// Whether the type is broken.
    has_fault: bool,
    /// Whether the type is broken, and other types are protected from it.
    is_broken: bool,
}

/// The requests of one type and class.
#[derive(Debug, Clone, Copy)]
struct Cell {
    /// The value of one answer, relative.
    value: f64,
    /// The work that arrived and is not in the record yet, s of slot time.
    fresh: f64,
    /// The number of demanded slots, λm.
    rate: f64,
    /// f, the part of the requests that the cut admits, ratio.
    admitted: f64,
    /// Whether the budget alone sets f to 1.
    above: bool,
    /// The longest wait that leaves more valuable types their slack, s.
    ceiling: f64,
    /// The more valuable type whose wait is checked together with that of this type.
    rival: Option<TypeId>,
}

/// The value cut of a stage on one worker.
#[derive(Debug, Default)]
pub struct ValueCut {
    kinds: Vec<Kind>,
    /// The number of cells per type. It is 1, or the number of classes if these differ in value.
    classes: usize,
    /// The cells, by type and then by class.
    cells: Vec<Cell>,
    /// The numbers of the cells by value per slot time, descending.
    order: Vec<u32>,
    /// P, the number of slots.
    all: f64,
    /// The number of slots that may be used, at most `all`.
    slots: f64,
    /// The maximum of ρ.
    most: f64,
    /// Whether P is unlimited, because the right number of slots is not known.
    is_open: bool,
    /// The number of slots that unrestricted types demand, at most `slots`. At least this many
    /// slots do work, whereas a P that was found automatically may be too high.
    working: f64,
    /// The number of slots that admitted requests of all types use on average.
    used: f64,
    /// The longest mean slot time of a type with traffic, s. It is infinite while a slot time is
    /// not known.
    longest: f64,
    rho: f64,
    /// The sums over this worker's requests that are not in the record yet.
    fresh: Totals,
    /// The time of the last request that the cut admitted and that was refused or missed an
    /// objective by Alg. 1.
    missed_at: Instant,
    /// Whether Alg. 1 has recently refused so much that ceilings apply.
    is_short: bool,
    synced: Instant,
    /// The time of the record's step that was adopted last, s.
    stepped: f64,
    floors_fit: bool,
    /// The deliveries by type, as of the adopted step.
    deliveries: Vec<Delivery>,
    /// The requests on this worker, by type.
    presence: Vec<Presence>,
    /// The id of this worker in the record.
    worker: u64,
    /// A number that identifies the types and classes to which the record belongs.
    fingerprint: u64,
}

/// The requests of a type on one worker.
#[derive(Debug, Clone, Copy, Default)]
struct Presence {
    /// The outcomes that are not in the record yet.
    fresh: Sums,
    /// The number of requests that wait or run on this worker.
    here: u32,
    /// The number of requests that wait or run on other workers. They are counted only while the
    /// type is broken.
    elsewhere: u32,
    /// The time at which the last probe was admitted.
    entered: Instant,
}

/// The end of a request, from which the yield of its slot is measured.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// The time from the slot to the backend's answer, or `None` without an answer.
    pub answered: Option<Duration>,
    /// Whether the backend answered without an error, and in time for the last objective.
    pub delivered: bool,
    /// Whether the request took longer than the last objective.
    pub late: bool,
    /// Whether [`ValueCut::overdue`] was called for the request.
    pub was_overdue: bool,
    /// Whether the histogram of the request's type includes the request.
    pub measured: bool,
    /// The part of the request's slot time that the histogram doesn't include.
    pub beyond: Duration,
    /// The number of requests that this one represents.
    pub weight: u32,
}

/// The cut's decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// The request is refused.
    No,
    /// The request is admitted, as far as objectives allow.
    Yes,
    /// The request is admitted regardless of its objectives, to test whether its broken type has
    /// recovered.
    Probe,
    /// The request is refused, because its type is broken and has enough probes.
    Broken,
}

impl ValueCut {
    /// The time in which the cut follows arrivals. A retry within this time has no better chance.
    pub const HORIZON: Duration = Duration::from_secs(1);
    /// The time after which a broken type gets a further probe at the latest.
    pub const PAUSE: Duration = delivery::PAUSE;

    /// Returns a cut that refuses nothing before the first step. `values` has the values of the
    /// types, and `scales` the factors of the classes. Without `scales` there is one class with
    /// factor 1.
    pub fn new(values: &[f64], scales: &[f64]) -> Self {
        let scales = match scales.first() {
            Some(first) if scales.iter().any(|scale| scale != first) => scales,
            _ => &[1.0],
        };
        let cell = |value: f64| Cell {
            value,
            fresh: 0.0,
            rate: 0.0,
            admitted: 1.0,
            above: true,
            ceiling: f64::INFINITY,
            rival: None,
        };
        let cells: Vec<Cell> = values
            .iter()
            .flat_map(|value| scales.iter().map(move |scale| cell(value * scale)))
            .collect();
        let cold = Kind {
            unmeasured: true,
            cold: true,
            part: 1.0,
            ..Kind::default()
        };
        Self {
            kinds: vec![cold; values.len()],
            classes: scales.len(),
            order: (0..cells.len() as u32).collect(),
            cells,
            most: RHO.1,
            rho: RHO.1,
            floors_fit: true,
            deliveries: vec![Delivery::default(); values.len()],
            presence: vec![Presence::default(); values.len()],
            ..Self::default()
        }
    }

    /// Creates the cut of a checked configuration.
    pub fn from_config(config: &StageConfig) -> Self {
        let values: Vec<f64> = config.types.iter().map(|kind| kind.value).collect();
        let scales: Vec<f64> = config.classes.iter().map(|class| class.value).collect();
        let this = Self::new(&values, &scales);
        Self {
            fingerprint: fingerprint(config, true, this.classes > 1),
            ..this
        }
    }

    /// Sets the id of this worker, which no other worker of the process has.
    pub fn identify(&mut self, worker: u64) {
        self.worker = worker;
    }

    fn cell(&self, kind: TypeId, class: ClassId) -> usize {
        let class = usize::from(class.0).min(self.classes - 1);
        self.index(kind) * self.classes + class
    }

    fn index(&self, kind: TypeId) -> usize {
        usize::from(kind.0).min(self.kinds.len() - 1)
    }

    /// Counts the work of a request that arrives. Returns whether the cut admits it.
    pub fn admits(&mut self, request: &Attributes, now: Instant, rng: &mut Rng) -> Admitted {
        let at = self.cell(request.kind, request.class);
        let kind = &self.kinds[at / self.classes];
        let cell = &mut self.cells[at];
        // At least a little work is added, so that a type without a known cost is known to have
        // traffic.
        cell.fresh += kind.work().max(UNKNOWN);
        self.fresh.arrivals += 1.0;
        if kind.is_broken {
            let presence = &mut self.presence[at / self.classes];
            let pause = now.since(presence.entered).as_secs_f64();
            let count = f64::from(presence.here + presence.elsewhere);
            return if count < delivery::probes(self.slots, self.working, pause) {
                presence.entered = now;
                Admitted::Probe
            } else {
                Admitted::Broken
            };
        }
        if cell.admitted >= 1.0 || rng.chance(cell.admitted) {
            Admitted::Yes
        } else {
            Admitted::No
        }
    }

    fn presence(&mut self, kind: TypeId) -> &mut Presence {
        let at = self.index(kind);
        &mut self.presence[at]
    }

    /// Counts a request that waits now or was sent to the backend.
    pub fn entered(&mut self, kind: TypeId) {
        self.presence(kind).here += 1;
    }

    /// Counts the end of a request that [`Self::entered`] counted.
    pub fn left(&mut self, kind: TypeId) {
        let presence = self.presence(kind);
        presence.here = presence.here.saturating_sub(1);
    }

    /// Returns the time in the backend after which a request of `kind` counts as not delivered,
    /// regardless of its outcome. Returns `None` if there is no such time.
    pub fn late_after(&self, kind: TypeId) -> Option<Duration> {
        let at = self.index(kind);
        let (first, last) = self.kinds[at].objectives?;
        let delivery = &self.deliveries[at];
        let is_doubtful = self.kinds[at].unmeasured || delivery.recovers();
        let is_new = delivery.is_new() && is_doubtful;
        Some(Duration::from_secs_f64(if is_new { first } else { last }))
    }

    /// Adds an observation of a request of `kind` that counts as `weight` requests.
    fn observe(&mut self, kind: TypeId, weight: u32, of: impl FnOnce(&mut Sums)) {
        let mut sums = Sums::default();
        of(&mut sums);
        self.presence(kind).fresh.add(&sums, f64::from(weight));
    }

    /// Counts a request of `kind` that is in the backend for longer than [`Self::late_after`], as
    /// `weight` requests.
    pub fn overdue(&mut self, kind: TypeId, weight: u32) {
        self.observe(kind, weight, |sums| sums.outcome(false, true));
    }

    /// Returns the time in the backend after which a request of `kind` is silent. The time is
    /// longer than requests usually take. It is at most [`Self::late_after`], unless the type is
    /// usually late.
    pub fn silent_after(&self, kind: TypeId) -> Option<Duration> {
        let late = self.late_after(kind)?;
        let at = self.index(kind);
        let (first, _) = self.kinds[at].objectives?;
        let usual = (USUAL.0 * first).max(USUAL.1 * self.longest);
        let late = late.as_secs_f64().max(UNUSUAL * self.kinds[at].late);
        Some(Duration::from_secs_f64(usual.min(late)))
    }

    /// Counts a request of `kind` that is in the backend for longer than [`Self::silent_after`].
    #[inline]
    pub fn silent(&mut self, kind: TypeId) {
        self.presence(kind).fresh.silent();
    }

    /// Records the end of a request of `kind`.
    pub fn ended(&mut self, kind: TypeId, end: &End) {
        self.observe(kind, end.weight, |sums| {
            if let Some(answered) = end.answered {
                sums.answered(answered.as_secs_f64());
            }
            if !end.was_overdue || end.delivered {
                sums.outcome(end.delivered, end.late);
            }
            sums.beyond(end.beyond.as_secs_f64(), !end.measured);
        });
    }

    /// Records that a request of `kind` that counted as delivered was not delivered. Its response
    /// came too slowly after it was measured. It counts as `weight` requests.
    pub fn undelivered(&mut self, kind: TypeId, weight: u32) {
        self.observe(kind, weight, Sums::undelivered);
    }

    /// Whether a request with queue wait `wait`, whose [rival](Self::rival) waits `rival_wait`,
    /// leaves more valuable types enough of their slack.
    pub fn is_below_ceiling(
        &self,
        request: &Attributes,
        wait: Duration,
        rival_wait: Duration,
    ) -> bool {
        let ceiling = self.cells[self.cell(request.kind, request.class)].ceiling;
        wait.max(rival_wait).as_secs_f64() <= ceiling
    }

    /// Returns the type whose wait is checked in addition to the request's own, because it shows
    /// how much slack of more valuable types is used.
    pub fn rival(&self, request: &Attributes) -> Option<TypeId> {
        self.cells[self.cell(request.kind, request.class)].rival
    }

    /// Records the decision on a request that the cut admitted. `meets` is true if the request
    /// meets its objectives by Alg. 1, and `admitted` whether it was admitted.
    pub fn decided(&mut self, request: &Attributes, now: Instant, meets: bool, admitted: bool) {
        if !(meets && admitted) {
            self.missed_at = now;
        }
        let at = self.cell(request.kind, request.class);
        let cell = &self.cells[at];
        let kind = at / self.classes;
        // Requests of a type that hangs hold the slots, so more slots would not help.
        let counts = self.kinds[kind].competes() && !self.deliveries[kind].is_unanswered();
        if cell.above && counts {
            self.fresh.above += cell.value;
            self.fresh.count += 1.0;
            if !admitted {
                self.fresh.refused += cell.value;
            }
            if !meets {
                self.fresh.missed += cell.value;
            }
        }
    }

    /// Records that the limit on utilization refused a request that the cut admitted.
    pub fn overruled(&mut self, now: Instant) {
        self.missed_at = now;
    }

    /// Returns the part of a type's requests that the cut admits, ratio 0..=1. It is the average
    /// over the type's classes, weighted by work.
    pub fn admitted(&self, kind: TypeId) -> f64 {
        self.mean(kind, |cell| cell.admitted)
    }

    /// Returns the value that requests of this type deliver per second of slot time, which is the
    /// type's rank. It is the average over the type's classes, weighted by work. Returns 0 while
    /// the type's cost is not known.
    pub fn density(&self, kind: TypeId) -> f64 {
        let known = &self.kinds[self.index(kind)];
        if known.has_no_rank() {
            return 0.0;
        }
        self.mean(kind, |cell| known.density(cell))
    }

    /// Returns the number of slots that arrivals of this type demand, λm.
    pub fn asked(&self, kind: TypeId) -> f64 {
        self.classes_of(kind).iter().map(|cell| cell.rate).sum()
    }

    fn classes_of(&self, kind: TypeId) -> &[Cell] {
        let first = self.cell(kind, ClassId(0));
        &self.cells[first..first + self.classes]
    }

    /// Returns the average over a type's classes, weighted by work. Without any work, returns the
    /// maximum.
    fn mean(&self, kind: TypeId, of: impl Fn(&Cell) -> f64) -> f64 {
        let cells = self.classes_of(kind);
        let rate = self.asked(kind);
        if rate > 0.0 {
            cells.iter().map(|c| of(c) * c.rate).sum::<f64>() / rate
        } else {
            cells.iter().map(of).fold(0.0, f64::max)
        }
    }

    /// Returns the budget of the cut as a fraction of P. It is ρ times the part of P that may be
    /// used.
    pub fn budget(&self) -> f64 {
        let usable = match self.all > 0.0 {
            true => self.slots / self.all,
            false => 1.0,
        };
        self.rho * usable
    }

    /// Whether, for a second, each request that the cut admitted on this worker was admitted in the
    /// end and met its objectives by Alg. 1.
    pub fn is_calm(&self, now: Instant) -> bool {
        now.since(self.missed_at) >= CALM
    }

    /// Whether any type is cut.
    pub fn cuts(&self) -> bool {
        self.cells.iter().any(|cell| cell.admitted < 1.0)
    }

    /// Whether all floors of starvation avoidance together demand at most P slots.
    pub fn floors_fit(&self) -> bool {
        self.floors_fit
    }

    /// Adopts P, the bound on the slots in use, whether P is unlimited (`is_open`), and the
    /// measured times of all types. `tokens` returns the slot time that takes the same part of the
    /// slots as a type's tokens take of their budget, s. `floor` returns the probability with which
    /// starvation avoidance overrides a refusal of a type. The caller calls this function before
    /// each [`Controlled::sync`].
    pub fn learn(
        &mut self,
        (slots, bound): (f64, f64),
        is_open: bool,
        times: &ServiceTimes,
        tokens: impl Fn(TypeId) -> f64,
        floor: impl Fn(TypeId) -> f64,
    ) {
        (self.all, self.slots, self.is_open) = (slots, slots.min(bound), is_open);
        self.most = RHO.1.min(bound / self.slots);
        for (at, kind) in self.kinds.iter_mut().enumerate() {
            let id = TypeId(u16::try_from(at).unwrap_or(u16::MAX));
            let objectives = times.objectives(id);
            *kind = Kind::new(&times.estimate(id), objectives, floor(id), kind);
            kind.tokens = tokens(id);
        }
        self.judge();
    }

    /// Sets the part of its slot time for which a request of `kind` holds its slot on average,
    /// ratio 0..=1. It is below 1 if some requests don't reach the backend, and lowers the work of
    /// arrivals. The rank stays, because such a request delivers nothing either.
    pub fn set_usage(&mut self, kind: TypeId, usage: f64) {
        let at = self.index(kind);
        self.kinds[at].unused = 1.0 - usage;
    }

    /// Returns the mean time for which a request of `kind` in the backend holds a slot, s, or
    /// `None` while it is not known.
    #[inline]
    pub fn slot_time(&self, kind: TypeId) -> Option<f64> {
        let known = &self.kinds[self.index(kind)];
        (!known.cold).then_some(known.mean)
    }

    /// Returns the largest number of slots that requests of `kind` hold by chance. With a limit,
    /// returns the number of slots that no other type needs, if that is more. Returns infinity
    /// without traffic of other types.
    pub fn most_by_chance(&self, kind: TypeId) -> f64 {
        let own = used(self.classes_of(kind));
        let others = (self.used - own).max(0.0);
        if others <= 0.0 {
            return f64::INFINITY;
        }
        let spare = match self.is_open {
            true => 0.0,
            false => self.slots - others - NEEDED * others.sqrt(),
        };
        (own + BY_CHANCE * own.sqrt()).max(spare)
    }

    /// Whether `kind` is broken with silent requests since its last answer, or has few outcomes
    /// since it was broken.
    pub fn hangs(&self, kind: TypeId) -> bool {
        let at = self.index(kind);
        self.deliveries[at].is_unanswered() || self.deliveries[at].recovers()
    }

    /// Whether `kind` is broken and other types are protected from it. Most of its requests are
    /// then refused.
    #[inline]
    pub fn is_broken(&self, kind: TypeId) -> bool {
        self.kinds[self.index(kind)].is_broken
    }
}

impl Controlled for ValueCut {
    fn schema(&self) -> u32 {
        <Record as shared::Record>::SCHEMA
    }

    fn due(&self, now: Instant) -> bool {
        now < self.synced || now.since(self.synced) >= EXCHANGE
    }

    fn sync(&mut self, now: Instant, record: &mut Vec<u8>) -> bool {
        self.synced = now;
        let secs = now.as_secs_f64();
        let ours = |known: &Record| {
            known.fingerprint == self.fingerprint
                && known.rows.len() == self.cells.len()
                && known.deliveries.len() == self.kinds.len()
        };
        let read = shared::decode_finite(record).filter(ours);
        let mut changed = read.is_none() || self.fresh.above > 0.0;
        let (cells, kinds) = (self.cells.len(), self.kinds.len());
        let mut known = read.unwrap_or_else(|| Record::new(self.fingerprint, secs, cells, kinds));
        known.fresh.add(&self.fresh);
        for (cell, row) in self.cells.iter().zip(&mut known.rows) {
            row.fresh += cell.fresh;
            changed |= cell.fresh > 0.0;
        }
        for (presence, delivery) in self.presence.iter().zip(&mut known.deliveries) {
            delivery.add(&presence.fresh);
            changed |= !presence.fresh.is_empty();
        }
        let counts = self.presence.iter().zip(&self.kinds).enumerate();
        let counts = counts.filter(|(_, (_, kind))| kind.is_broken);
        // There are at most 1,024 types.
        let counts = counts.map(|(at, (presence, _))| (at as u16, presence.here));
        changed |= delivery::report(&mut known.held, self.worker, secs, counts);
        for (at, presence) in self.presence.iter_mut().enumerate() {
            presence.elsewhere = delivery::elsewhere(&known.held, self.worker, at);
        }
        let slots = if self.is_open {
            let asked: f64 = known.rows.iter().map(|row| row.rate).sum();
            asked.min(self.all)
        } else {
            self.all
        };
        changed |= known.step(secs, slots, self.most);
        if self.stepped.to_bits() != known.stepped.to_bits() {
            self.stepped = known.stepped;
            self.rho = known.rho.clamp(RHO.0, self.most);
            // While a type is broken, the lower bound applies, because requests that hang hold
            // slots for longer than a burst lasts.
            let lasts = self.is_short || known.deliveries.iter().any(Delivery::is_broken);
            let short = if lasts { SHORT.0 } else { SHORT.1 };
            self.is_short = known.recent.1 > short * known.recent.0;
            for (cell, row) in self.cells.iter_mut().zip(&known.rows) {
                cell.rate = row.rate.max(0.0);
            }
            self.deliveries.clone_from(&known.deliveries);
            self.judge();
            self.fill();
            self.used = used(&self.cells);
        }
        if changed {
            shared::encode(&known, record);
        }
        changed
    }

    fn stored(&mut self) {
        self.fresh = Totals::default();
        for cell in &mut self.cells {
            cell.fresh = 0.0;
        }
        for presence in &mut self.presence {
            presence.fresh = Sums::default();
        }
    }
}

/// Returns the number of slots that admitted requests of these cells use on average.
fn used(cells: &[Cell]) -> f64 {
    cells.iter().map(|cell| cell.rate * cell.admitted).sum()
}
