//! Value cut: under overload, refuse the requests that are worth least per unit of slot time.
//!
//! **The problem.** Bouncer (Alg. 1) refuses the request that would miss its own objective. Where all types
//! share one objective, as in the paper, that is the expensive type, and the result is close to optimal.
//! With objectives that suit each type (expensive types have loose ones) it is the cheap type: a request of
//! 60 ms with 140 ms to spare never misses, takes the slots, and the requests of 2.5 ms with 47 ms to spare
//! find them taken. Slots are then full of what yields least.
//!
//! **The optimum.** With P slots, arrival rates λ, mean processing times m and values v by type, the value
//! answered per second is maximal where slot time is filled in order of v/m (the fractional knapsack): all
//! types above some v/m, a fraction of one, none below. Two rules come close to that with finite queues:
//!
//! *The cut.* Every 100 ms, with w_k = λ_k m_k the slots that type k asks for, in order of v/m:
//!
//! ```text
//! b_1 = ρP − Σ_k a_k w_k      f_k = min(1, b_k / ((1 − a_k) w_k))      b_k+1 = b_k − f_k (1 − a_k) w_k
//! ```
//!
//! Type k is admitted with probability f_k. a_k is its floor, the probability with which starvation
//! avoidance overrides a refusal: in all a_k + (1 − a_k) f_k of type k enter, and floors are paid first. They
//! fit while Σ a_k w_k ≤ P. Types whose v/m differ by at most 10% share one f, so that equals are treated
//! alike. λ is an exponential average over 1 s, over all workers.
//!
//! *The ceiling.* A request may wait as long as its own objectives allow (Alg. 1), but no longer than types
//! of higher v/m can. With slack_j = min over percentiles p of (objective_p − pt_p), and wait_j the wait
//! that a request of type j would meet now:
//!
//! ```text
//! max(wait_k, wait_r) ≤ 0.9 · min { slack_j : v_j/m_j > v_k/m_k }      r = the j with the largest slack
//! ```
//!
//! That is Alg. 1 on behalf of the types that are worth more. It acts within one arrival, where the cut
//! needs a second, and it keeps expensive requests from filling the slots that cheaper ones are about to
//! need. wait_r matters where a discipline lets the more valuable type wait longer than type k.
//!
//! The ceiling is in force while it is needed: where the budget holds all types, and Alg. 1 refuses less than
//! 0.2% of their value (over 3 s), nobody has to be protected. A shared processor far below full load would
//! else refuse what only has to wait for a moment.
//!
//! *Feedback.* The cut's budget follows what Alg. 1 and the ceiling refuse of types with f = 1. Every 50 such
//! requests, but no sooner than a step and no later than a second: with `lost` the part of their value that
//! was refused, and t the time since,
//!
//! ```text
//! lost ≤ 0.02      ρ ← ρ + 0.04 t                    within 0.3..=1.3
//! lost > 0.02      ρ ← ρ (1 − min(0.2 t, lost))
//! ```
//!
//! So ρ absorbs what the means don't say: few slots and heavy tails need spare slots, many slots need none.
//!
//! **What was measured** (model of the engine; fraction answered within objectives ÷ optimum at 1.2, 1.5 and
//! 2 times the full load; 60% × 2.5 ms and 30% × 4 ms with p50/p90 objectives 50/150 ms, 10% × 60 ms with
//! 200/500 ms):
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
//! Spare slots (trunk reservation) lose 5 to 15 points on mixes with heavy tails; bounds on slots idle
//! when the valuable types are few; the forecast needs a count of running requests by type. The ceiling
//! needs nothing that is not known already. The cut is needed beside it, because the ceiling of all types
//! below the most valuable one is the same: it doesn't rank them. The engine in simulated time does as the
//! last row of the model; the paper's mix keeps what Alg. 1 alone makes of it within 0.01 with P = 100 and
//! 0.02 with P = 20. Tolerating 1% in place of 2%, or a ceiling of 0.8, costs the mixes with few slots up to
//! 0.02; 1.0 would leave a FIFO nothing to spare.
//!
//! *Room.* The averages follow a load that has ended by a second, and ρ by several. So a request below the cut is admitted
//! where slots are free (a quarter, and three at least, is kept for others) and nothing above the cut was refused for a second. The
//! second condition is for a P that is higher than what the backend can work on: there, slots are always free.
//!
//! **Exceptions.** A type with fewer than 20 samples has no known cost: it is admitted, and its work is set
//! aside. With 20 samples it has a rank. Before it has a histogram of its own, Alg. 1 judges it by other types'
//! times, so its refusals are no loss yet. A histogram needs fifty samples by default, for which an expensive
//! type waits 10 to 20 s in an overload. SQLite on one core, reports of 75 ms, 1.5 times the capacity from the
//! first request on, 5 to 11 s after that: 34 to 54 answers/s in time if it has no rank meanwhile, 85 to 90 with
//! a rank from the tenth sample on. Ten samples are too few for a core with two slots or six: with six it
//! answers 13% less than with two.
//!
//! A type that misses an objective even without queue wait (`condemned`) is cut as any other, and Bouncer admits
//! the rest of it where nobody waits. What is refused for that is no loss, and nobody waits less for its sake.
//! The type keeps its rank, because others may have made it slow: on a shared core, reports condemn each other,
//! and in front of a queue inside the backend they condemn the short requests behind them.
//!
//! A type that is cut entirely still gets its part of 0.5% of the slots, because only answers show that its cost
//! has fallen; of 2% if many of its answers fail. Types that together bring less than 1% of the value put no ceiling on the others.
//!
//! **Left out.** The part of a type's answers that miss their objective in any case (a heavy tail) should
//! lower its v. What a request says of its own cost is not used.
//!
//! Workers share one record (`controlled`): every 50 ms each adds the work that arrived; whoever comes first
//! after 100 ms advances the averages and ρ; each then fills the budget by itself. O(n log n) in types ×
//! classes every 100 ms, O(1) a decision; no decision allocates or calls the host.

mod delivery;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Controlled;
use crate::request::{Attributes, ClassId, TypeId};
use crate::rng::Rng;
use crate::service_times::{Estimate, Objective, ServiceTimes};
use crate::shared;
use crate::time::Instant;
use delivery::{Delivery, Held, Sums};

/// Time between two steps of the law, s; a little less, as clocks in floats have it.
const STEP: f64 = 0.1 - 1e-6;
/// Time between two exchanges with the other workers.
const EXCHANGE: Duration = Duration::from_millis(50);
/// Time constant of arrival rates, s.
const RATE_TIME: f64 = 1.0;
/// Part of the value above the cut that may be refused before ρ falls.
const TOLERATED: f64 = 0.02;
/// Most that ρ falls by in a second, relative.
const DECREASE: f64 = 0.2;
/// Increase of ρ in a second.
const INCREASE: f64 = 0.04;
/// Requests above the cut, or time, s, after which ρ moves.
const ENOUGH: f64 = 50.0;
/// See `ENOUGH`.
const LONGEST: f64 = 1.0;
/// ρ stays within.
const RHO: (f64, f64) = (0.3, 1.3);
/// Part of the value above the cut that Alg. 1 may refuse before types of less value have a ceiling.
const SHORT: f64 = 0.002;
/// Time constant of that, s.
const PROTECTION: f64 = 3.0;
/// Part of the slack of more valuable types that the others may use.
const CEILING: f64 = 0.9;
/// Values per slot time of which the smaller is at least this part of the larger are equal.
const EQUAL: f64 = 0.9;
/// Slot time of a request of which nothing is known, s.
const UNKNOWN: f64 = 1e-6;
/// Slots for types that are cut entirely, ratio.
const PROBES: f64 = 0.005;
/// The same for those of whose answers many fail, which may be well again.
const PROBES_OF_FAILING: f64 = 0.02;
/// Time without a refusal above the cut after which free slots are for all.
const CALM: Duration = Duration::from_millis(1_000);
/// Part of the value whose slack is not protected.
const NEGLIGIBLE: f64 = 0.01;

/// First of a record, so that another strategy's is not taken for one.
const SIGNATURE: f64 = 2_012_002.0;

/// The record of [`Controlled`].
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Says whose record it is.
    signature: f64,
    /// Time of the last step, s.
    stepped: f64,
    /// Time of the first step, s.
    first: f64,
    rho: f64,
    /// Value above the cut in this step.
    above: f64,
    /// Of that, refused.
    refused: f64,
    /// Of that, by Alg. 1.
    missed: f64,
    /// Averages of `above` and `missed`.
    recent: (f64, f64),
    /// Sums of `above` and `refused` since ρ moved, the requests that they are of, and the time then, s.
    judged: (f64, f64),
    count: f64,
    since: f64,
    /// By cell.
    rows: Vec<Row>,
    /// By type.
    deliveries: Vec<Delivery>,
    /// Requests of broken types.
    held: Vec<Held>,
}

crate::shared::record!(Record, 5);

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Row {
    /// Slots asked for: λm.
    rate: f64,
    /// Work that arrived in this step, s of slot time.
    fresh: f64,
}

impl Record {
    fn new(secs: f64, cells: usize, kinds: usize) -> Self {
        Self {
            signature: SIGNATURE,
            stepped: secs,
            first: secs,
            rho: 1.0,
            above: 0.0,
            refused: 0.0,
            missed: 0.0,
            recent: (0.0, 0.0),
            judged: (0.0, 0.0),
            count: 0.0,
            since: secs,
            rows: vec![Row::default(); cells],
            deliveries: vec![Delivery::default(); kinds],
            held: Vec::new(),
        }
    }

    /// Whether all its numbers are finite: one that is not would stay in all that follow.
    fn is_finite(&self) -> bool {
        let head = [
            self.stepped,
            self.first,
            self.rho,
            self.above,
            self.refused,
            self.missed,
            self.recent.0,
            self.recent.1,
            self.judged.0,
            self.judged.1,
            self.count,
            self.since,
        ];
        let rows = self.rows.iter().flat_map(|row| [row.rate, row.fresh]);
        head.into_iter().chain(rows).all(f64::is_finite)
            && self.deliveries.iter().all(Delivery::is_finite)
    }

    /// Advances the averages and ρ if that is due.
    fn step(&mut self, secs: f64, slots: f64) -> bool {
        let elapsed = secs - self.stepped;
        // A clock that stepped back starts a new step.
        if (0.0..STEP).contains(&elapsed) {
            return false;
        }
        let weight = if elapsed > 0.0 {
            let age = (secs - self.first).max(elapsed);
            (1.0 - (-elapsed / RATE_TIME).exp()).max((elapsed / age).min(1.0))
        } else {
            self.first = secs;
            0.0
        };
        for row in &mut self.rows {
            row.rate += weight * (row.fresh / elapsed.max(STEP) - row.rate);
            row.fresh = 0.0;
        }
        for delivery in &mut self.deliveries {
            delivery.step(secs, slots);
        }
        let fade = (-elapsed.max(0.0) / PROTECTION).exp();
        self.recent.0 = fade * self.recent.0 + self.above;
        self.recent.1 = fade * self.recent.1 + self.missed;
        self.judged.0 += self.above;
        self.judged.1 += self.refused;
        (self.above, self.refused, self.missed) = (0.0, 0.0, 0.0);
        self.stepped = secs;
        self.follow(secs);
        true
    }

    /// Moves ρ when enough was decided.
    fn follow(&mut self, secs: f64) {
        let elapsed = secs - self.since;
        if self.count < ENOUGH && (0.0..LONGEST).contains(&elapsed) {
            return;
        }
        let elapsed = elapsed.clamp(0.0, LONGEST);
        let (above, refused) = self.judged;
        let lost = if above > 0.0 { refused / above } else { 0.0 };
        let next = if lost <= TOLERATED {
            self.rho + INCREASE * elapsed
        } else {
            self.rho * (1.0 - lost.min(DECREASE * elapsed))
        };
        self.rho = next.clamp(RHO.0, RHO.1);
        (self.judged, self.count, self.since) = ((0.0, 0.0), 0.0, secs);
    }
}

/// What is known of a type.
#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    /// Mean processing time, s; 0 while nothing was measured.
    measured: f64,
    /// It has no samples, or too few.
    unmeasured: bool,
    /// Mean time for which a request holds its slot, s.
    mean: f64,
    /// The wait that the objectives leave to a request, s. `None` without objectives, and without a histogram of
    /// the type's own.
    slack: Option<f64>,
    /// Admitted whatever it is worth, and its work set aside: its own cost is not known.
    cold: bool,
    /// Alg. 1 judges it by its own histogram.
    own: bool,
    /// It misses an objective by itself.
    condemned: bool,
    /// Probability that a refusal is overridden.
    floor: f64,
    /// Mean processing time by which it is ranked, s: while a type is broken, others may have become slow for its sake, and
    /// for a while after that, means are of that time.
    own_time: f64,
    /// First and last objective, s; `None` without any.
    objectives: Option<(f64, f64)>,
    /// The part of its value that an admitted request delivers, ratio.
    part: f64,
    /// It is broken, and others are to be protected from it.
    is_broken: bool,
}

impl Kind {
    /// Its refusals count as lost value, and its slack bounds the wait of less valuable types.
    fn competes(&self) -> bool {
        self.own && !self.condemned && !self.is_broken
    }
}

/// Requests of one type and class.
#[derive(Debug, Clone, Copy)]
struct Cell {
    /// Worth of one answer, relative.
    value: f64,
    /// Work that arrived and is not in the record yet, s of slot time.
    fresh: f64,
    /// Slots asked for: λm.
    rate: f64,
    /// f, ratio.
    admitted: f64,
    /// f is 1 by the budget.
    above: bool,
    /// Longest wait for the sake of others, s.
    ceiling: f64,
    /// The type whose wait counts beside the own one.
    rival: Option<TypeId>,
}

/// See the module.
#[derive(Debug)]
pub struct ValueCut {
    kinds: Vec<Kind>,
    /// Cells of a type: 1, or as many as there are classes where these differ in value.
    classes: usize,
    /// By type, then class.
    cells: Vec<Cell>,
    /// Cells by value per slot time, descending.
    order: Vec<u32>,
    slots: f64,
    /// Nothing is limited: how many slots there are is not known.
    is_open: bool,
    /// Slots that types which are not broken ask for, `slots` at most: so many are known to work.
    working: f64,
    rho: f64,
    /// Value of requests above the cut that were decided here and are not in the record yet.
    decided: f64,
    /// Of that, refused.
    refused: f64,
    /// Of that, by Alg. 1.
    missed: f64,
    /// Requests that `decided` is of.
    count: f64,
    /// When a request that the cut let in was refused last.
    missed_at: Instant,
    /// Alg. 1 has refused more than is tolerated of late.
    is_short: bool,
    synced: Instant,
    /// Time of the step that is adopted, s.
    stepped: f64,
    floors_fit: bool,
    /// By type: as of the step that is adopted.
    deliveries: Vec<Delivery>,
    /// By type.
    presence: Vec<Presence>,
    /// What this worker is called in the record.
    worker: u64,
}

/// Requests of a type, seen from one worker.
#[derive(Debug, Clone, Copy, Default)]
struct Presence {
    /// Outcomes that are not in the record yet.
    fresh: Sums,
    /// Requests that wait or run here, and on other workers while the type is broken.
    here: u32,
    elsewhere: u32,
    /// When one entered last.
    entered: Instant,
}

/// How a request ended, for what its slot delivered.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// The backend answered, after so much time in its slot.
    pub answered: Option<Duration>,
    /// It was no error, and in time for the last objective.
    pub delivered: bool,
    /// It held its slot for longer than the last objective.
    pub late: bool,
    /// [`ValueCut::overdue`] was called for it.
    pub was_overdue: bool,
    /// The histogram of its type has it.
    pub measured: bool,
    /// Its slot time beyond what the histogram has.
    pub beyond: Duration,
}

/// Whether the cut lets a request in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// It does not.
    No,
    /// It does, as far as objectives allow.
    Yes,
    /// To see whether its type, which is broken, is well again: objectives have no say.
    Probe,
    /// It does not, as its type is broken and probes are under way.
    Broken,
}

impl ValueCut {
    /// The cut follows arrivals in about this time: the same request has no better chance earlier.
    pub const HORIZON: Duration = Duration::from_secs(1);

    /// Nothing is refused before the first step. `values` are those of the types, `scales` what a class
    /// makes of them; no classes are one class of scale 1.
    #[must_use]
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
            slots: 0.0,
            is_open: false,
            working: 0.0,
            rho: 1.0,
            decided: 0.0,
            refused: 0.0,
            missed: 0.0,
            count: 0.0,
            missed_at: Instant::default(),
            is_short: false,
            synced: Instant::default(),
            stepped: 0.0,
            floors_fit: true,
            deliveries: vec![Delivery::default(); values.len()],
            presence: vec![Presence::default(); values.len()],
            worker: 0,
        }
    }

    /// Gives this worker a name, which no other worker of the process has.
    pub fn identify(&mut self, worker: u64) {
        self.worker = worker;
    }

    fn cell(&self, kind: TypeId, class: ClassId) -> usize {
        let class = usize::from(class.0).min(self.classes - 1);
        usize::from(kind.0).min(self.kinds.len() - 1) * self.classes + class
    }

    /// A request arrives: counts its work. Whether the cut lets it in.
    pub fn admits(&mut self, request: &Attributes, now: Instant, rng: &mut Rng) -> Admitted {
        let at = self.cell(request.kind, request.class);
        let kind = &self.kinds[at / self.classes];
        let cell = &mut self.cells[at];
        // Requests of a type of which nothing is known show at least that there are some.
        cell.fresh += kind.mean.max(UNKNOWN);
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
        let at = usize::from(kind.0).min(self.presence.len() - 1);
        &mut self.presence[at]
    }

    /// A request waits now, or was sent to the backend.
    pub fn entered(&mut self, kind: TypeId) {
        self.presence(kind).here += 1;
    }

    /// A request that entered is gone.
    pub fn left(&mut self, kind: TypeId) {
        let presence = self.presence(kind);
        presence.here = presence.here.saturating_sub(1);
    }

    /// The time in the backend after which a request of `kind` has failed to deliver, wherever it is; `None` for never.
    #[must_use]
    pub fn late_after(&self, kind: TypeId) -> Option<Duration> {
        let at = usize::from(kind.0).min(self.kinds.len() - 1);
        let (first, last) = self.kinds[at].objectives?;
        let is_new = self.deliveries[at].is_new();
        Some(Duration::from_secs_f64(if is_new { first } else { last }))
    }

    /// A request of `kind` is in the backend for longer than that.
    pub fn overdue(&mut self, kind: TypeId) {
        self.presence(kind).fresh.silent();
    }

    /// A request of `kind` ended.
    pub fn ended(&mut self, kind: TypeId, end: &End) {
        let fresh = &mut self.presence(kind).fresh;
        if let Some(answered) = end.answered {
            fresh.answered(answered.as_secs_f64());
        }
        if !end.was_overdue || end.delivered {
            fresh.outcome(end.delivered, end.late);
        }
        fresh.beyond(end.beyond.as_secs_f64(), !end.measured);
    }

    /// Whether a request that would wait `wait`, and its [rival](Self::rival) `rival_wait`, leaves more
    /// valuable types enough of their slack.
    #[must_use]
    pub fn is_below_ceiling(
        &self,
        request: &Attributes,
        wait: Duration,
        rival_wait: Duration,
    ) -> bool {
        let ceiling = self.cells[self.cell(request.kind, request.class)].ceiling;
        wait.max(rival_wait).as_secs_f64() <= ceiling
    }

    /// The type whose wait says, beside the request's own, how much slack of more valuable types is used.
    #[must_use]
    pub fn rival(&self, request: &Attributes) -> Option<TypeId> {
        self.cells[self.cell(request.kind, request.class)].rival
    }

    /// Alg. 1 (`meets`) and the ceiling have decided about a request that the cut let in.
    pub fn decided(&mut self, request: &Attributes, now: Instant, meets: bool, admitted: bool) {
        if !(meets && admitted) {
            self.missed_at = now;
        }
        let at = self.cell(request.kind, request.class);
        let cell = &self.cells[at];
        if cell.above && self.kinds[at / self.classes].competes() {
            self.decided += cell.value;
            self.count += 1.0;
            if !admitted {
                self.refused += cell.value;
            }
            if !meets {
                self.missed += cell.value;
            }
        }
    }

    /// The part of a type's requests that the cut lets in, ratio 0..=1: of its classes, the average by work.
    #[must_use]
    pub fn admitted(&self, kind: TypeId) -> f64 {
        let first = self.cell(kind, ClassId(0));
        let cells = &self.cells[first..first + self.classes];
        let rate: f64 = cells.iter().map(|cell| cell.rate).sum();
        if rate > 0.0 {
            cells.iter().map(|c| c.admitted * c.rate).sum::<f64>() / rate
        } else {
            cells.iter().map(|c| c.admitted).fold(0.0, f64::max)
        }
    }

    /// ρ: the budget of the cut, in parts of P.
    #[must_use]
    pub fn budget(&self) -> f64 {
        self.rho
    }

    /// Whether no request above the cut was refused on this worker for a while.
    #[must_use]
    pub fn is_calm(&self, now: Instant) -> bool {
        now.since(self.missed_at) >= CALM
    }

    /// Whether any type is cut.
    #[must_use]
    pub fn cuts(&self) -> bool {
        self.cells.iter().any(|cell| cell.admitted < 1.0)
    }

    /// Whether all floors of starvation avoidance together ask for no more than there is.
    #[must_use]
    pub fn floors_fit(&self) -> bool {
        self.floors_fit
    }

    /// Takes over P, whether it is out of reach (`is_open`), what was measured of all types, and `floor`, the probability
    /// with which starvation avoidance overrides a refusal of a type. Before every [`Controlled::sync`].
    pub fn learn(
        &mut self,
        slots: u32,
        is_open: bool,
        times: &ServiceTimes,
        floor: impl Fn(TypeId) -> f64,
    ) {
        (self.slots, self.is_open) = (f64::from(slots), is_open);
        for (at, kind) in self.kinds.iter_mut().enumerate() {
            let id = TypeId(u16::try_from(at).unwrap_or(u16::MAX));
            let objectives = times.objectives(id);
            *kind = Kind::new(&times.estimate(id), objectives, floor(id), kind);
        }
        self.judge();
    }

    /// Takes over what the types deliver: which are broken, and what they cost.
    fn judge(&mut self) {
        let Self {
            kinds,
            deliveries,
            cells,
            classes,
            ..
        } = self;
        let any_broken = deliveries.iter().any(Delivery::is_broken);
        let fastest = deliveries.iter().filter_map(|d| d.fastest(self.stepped));
        let delay = fastest.reduce(f64::min).unwrap_or(0.0);
        let is_victim = |kind: &Kind, delivery: &Delivery| {
            kind.objectives
                .is_some_and(|(_, last)| delivery.is_victim(delay, last))
        };
        for (kind, delivery) in kinds.iter_mut().zip(deliveries.iter()) {
            kind.part = if is_victim(kind, delivery) {
                1.0
            } else {
                delivery.part()
            };
            kind.mean = delivery.slot_time(kind.measured);
            kind.cold = kind.unmeasured && !delivery.tells_slot_time();
            let may_be_victim = any_broken || delivery.recovers();
            kind.own_time = if may_be_victim && !kind.cold && kind.own_time > 0.0 {
                kind.own_time.min(kind.mean)
            } else {
                kind.mean
            };
            kind.is_broken = false;
        }
        if !any_broken {
            return;
        }
        let best = |kind: usize| {
            let of = &cells[kind * *classes..(kind + 1) * *classes];
            let active = of.iter().filter(|cell| cell.rate > 0.0);
            active
                .map(|cell| kinds[kind].density(cell))
                .reduce(f64::max)
        };
        let densities: Vec<Option<f64>> = (0..kinds.len()).map(best).collect();
        for at in 0..kinds.len() {
            let (this, own) = (&deliveries[at], densities[at].unwrap_or(0.0));
            let is_before = |(other, density): (&Delivery, &Option<f64>)| {
                density.is_some_and(|density| {
                    if other.is_broken() {
                        this.broke_before(other)
                    } else {
                        density > own
                    }
                })
            };
            kinds[at].is_broken = this.is_broken()
                && !is_victim(&kinds[at], this)
                && deliveries.iter().zip(&densities).any(is_before);
        }
        let works =
            |(at, cell): (usize, &Cell)| (!kinds[at / *classes].is_broken).then_some(cell.rate);
        let rates = cells.iter().enumerate().filter_map(works);
        self.working = rates.sum::<f64>().min(self.slots);
    }

    /// Whether most requests of `kind` are kept away because those that are let in hang.
    #[must_use]
    pub fn is_broken(&self, kind: TypeId) -> bool {
        let at = usize::from(kind.0).min(self.kinds.len() - 1);
        self.kinds[at].is_broken
    }

    /// Fills the budget: every cell's f, ceiling and rival.
    fn fill(&mut self) {
        let Self {
            kinds,
            cells,
            order,
            classes,
            ..
        } = self;
        let kind_of = |cell: u32| &kinds[cell as usize / *classes];
        let density = |cells: &[Cell], cell: u32| kind_of(cell).density(&cells[cell as usize]);
        // Value that is asked for in a second.
        let asked = |cells: &[Cell], cell: u32| {
            let (kind, cell) = (kind_of(cell), &cells[cell as usize]);
            cell.rate * cell.value / kind.mean.max(1e-9)
        };
        order.sort_unstable_by(|&a, &b| {
            let by_density = density(cells, b).total_cmp(&density(cells, a));
            by_density.then(a.cmp(&b))
        });
        let (mut set_aside, mut floors, mut value, mut active) = (0.0, 0.0, 0.0, 0.0);
        for &at in order.iter() {
            let (kind, cell) = (kind_of(at), &cells[at as usize]);
            if kind.is_broken {
                set_aside += cell
                    .rate
                    .min(delivery::probes(self.slots, self.working, 0.0));
            } else if kind.cold {
                set_aside += cell.rate;
            } else {
                floors += kind.floor * cell.rate;
            }
            if kind.competes() && cell.rate > 0.0 {
                value += asked(cells, at);
                active += 1.0;
            }
        }
        self.floors_fit = floors <= self.slots;
        let negligible = NEGLIGIBLE * value / f64::max(active, 1.0);
        let mut budget = (self.rho * self.slots - set_aside - floors).max(0.0);
        let (mut tightest, mut loosest): (f64, Option<(f64, TypeId)>) = (f64::INFINITY, None);
        let (mut cut, mut is_short) = (0.0, self.is_short);
        let mut rest: &[u32] = order;
        while let Some(&first) = rest.first() {
            let limit = EQUAL * density(cells, first);
            let equals = rest
                .partition_point(|&at| density(cells, at) >= limit)
                .max(1);
            let (group, lower) = rest.split_at(equals);
            rest = lower;
            let wanted: f64 = group
                .iter()
                .filter(|&&at| !kind_of(at).is_apart())
                .map(|&at| cells[at as usize].rate * (1.0 - kind_of(at).floor))
                .sum();
            let fraction = if budget <= 0.0 {
                0.0
            } else if wanted <= budget {
                1.0
            } else {
                budget / wanted
            };
            is_short |= fraction < 1.0 && wanted > 0.0;
            // What is left of a part would be rounding.
            budget = if fraction < 1.0 { 0.0 } else { budget - wanted };
            for &at in group {
                let (kind, cell) = (kind_of(at), &mut cells[at as usize]);
                let admitted = if kind.is_apart() { 1.0 } else { fraction };
                cell.admitted = admitted;
                cell.above = admitted >= 1.0;
                cell.ceiling = CEILING * tightest;
                cell.rival = loosest
                    .filter(|(slack, _)| kind.slack.is_none_or(|own| own < *slack))
                    .map(|(_, rival)| rival);
                cut += f64::from(u8::from(admitted <= 0.0));
            }
            for &at in group {
                let kind = kind_of(at);
                let worth = asked(cells, at);
                let Some(slack) = kind.slack.filter(|_| kind.competes()) else {
                    continue;
                };
                if worth > negligible {
                    tightest = tightest.min(slack);
                    if loosest.is_none_or(|(most, _)| slack > most) {
                        let id = at as usize / *classes;
                        loosest = Some((slack, TypeId(u16::try_from(id).unwrap_or(u16::MAX))));
                    }
                }
            }
        }
        if !is_short {
            for cell in cells.iter_mut() {
                (cell.ceiling, cell.rival) = (f64::INFINITY, None);
            }
        }
        if cut > 0.0 {
            for (at, cell) in cells.iter_mut().enumerate() {
                let part = if self.deliveries[at / *classes].fails() {
                    PROBES_OF_FAILING
                } else {
                    PROBES
                };
                let share = part * self.slots / cut;
                if cell.admitted <= 0.0 {
                    cell.admitted = (share / cell.rate.max(share)).min(1.0);
                }
            }
        }
    }
}

impl Kind {
    /// What is known of a type with these `objectives`; `before` is what was known.
    fn new(estimate: &Estimate<'_>, objectives: &[Objective], floor: f64, before: &Self) -> Self {
        let own = estimate.is_own();
        let slack = |(quantile, objective): (&Duration, &Objective)| {
            objective.response_time.as_secs_f64() - quantile.as_secs_f64()
        };
        let pairs = estimate.quantiles.iter().zip(estimate.objectives);
        let measured = (estimate.preliminary.unwrap_or(estimate.mean)).as_secs_f64();
        let secs = |objective: &Objective| objective.response_time.as_secs_f64();
        Self {
            measured,
            slack: pairs
                .map(slack)
                .reduce(f64::min)
                .filter(|_| own && !estimate.condemned),
            unmeasured: !own && estimate.preliminary.is_none(),
            own,
            condemned: own && estimate.condemned,
            floor: floor.clamp(0.0, 1.0),
            objectives: objectives
                .first()
                .map(secs)
                .zip(objectives.last().map(secs)),
            ..*before
        }
    }

    /// Admitted without regard to the budget, of which its work is set aside.
    fn is_apart(&self) -> bool {
        self.cold || self.is_broken
    }

    /// Value that a request of this type delivers per slot time, 1/s.
    fn density(&self, cell: &Cell) -> f64 {
        self.part * cell.value / self.own_time.max(1e-9)
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
        let secs = seconds(now);
        let ours = |known: &Record| {
            known.signature == SIGNATURE
                && known.rows.len() == self.cells.len()
                && known.deliveries.len() == self.kinds.len()
                && known.is_finite()
        };
        let read = shared::decode(record).filter(ours);
        let mut changed = read.is_none() || self.decided > 0.0;
        let mut known =
            read.unwrap_or_else(|| Record::new(secs, self.cells.len(), self.kinds.len()));
        known.above += self.decided;
        known.refused += self.refused;
        known.missed += self.missed;
        known.count += self.count;
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
        // At most 1,024 types.
        let counts = counts.map(|(at, (presence, _))| (at as u16, presence.here));
        changed |= delivery::report(&mut known.held, self.worker, secs, counts);
        for (at, presence) in self.presence.iter_mut().enumerate() {
            presence.elsewhere = delivery::elsewhere(&known.held, self.worker, at);
        }
        let slots = if self.is_open {
            let asked: f64 = known.rows.iter().map(|row| row.rate).sum();
            asked.min(self.slots)
        } else {
            self.slots
        };
        changed |= known.step(secs, slots);
        if self.stepped.to_bits() != known.stepped.to_bits() {
            self.stepped = known.stepped;
            self.rho = known.rho.clamp(RHO.0, RHO.1);
            self.is_short = known.recent.1 > SHORT * known.recent.0;
            for (cell, row) in self.cells.iter_mut().zip(&known.rows) {
                cell.rate = row.rate.max(0.0);
            }
            self.deliveries.clone_from(&known.deliveries);
            self.judge();
            self.fill();
        }
        if changed {
            shared::encode(&known, record);
        }
        changed
    }

    fn stored(&mut self) {
        (self.decided, self.refused, self.missed, self.count) = (0.0, 0.0, 0.0, 0.0);
        for cell in &mut self.cells {
            cell.fresh = 0.0;
        }
        for presence in &mut self.presence {
            presence.fresh = Sums::default();
        }
    }
}

fn seconds(at: Instant) -> f64 {
    at.as_nanos() as f64 / 1e9
}
