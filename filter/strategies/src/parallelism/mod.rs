//! `parallelism: auto`: finds P, the number of requests that should be in the backend at once,
//! under live traffic.
//!
//! All decisions of a stage depend on P, and the right value is not known. Half of the right P
//! costs a fifth of the goodput. Four times the right P breaks objectives. A service on one core
//! answers four times as many requests within their objectives with three slots as with one. Limits
//! that are found from latencies alone (Envoy's `adaptive_concurrency`, Netflix's Gradient2, TCP
//! Vegas) compare current latencies with the lowest that they have recorded. A cache that warms up,
//! a neighbour on the same machine, or a changing mix of types makes that comparison wrong, and
//! Envoy's filter throttles traffic every minute to repeat it.
//!
//! Headgate owns the queue in front of the backend. So it knows when all slots are taken, it
//! decides how many requests are in flight, and it knows the type of each request. It varies the
//! number of slots around P ([`dither`]), measures the effect on service times by type
//! ([`elasticity`]), and moves P to the point beyond which more slots only add waiting ([`law`]).
//! Traffic is never paused. The only cost is that of the few slots by which the schedule goes below
//! the estimate, at most 3% of the throughput while P is constant or above 12. Nothing is learned
//! while slots are free.
//!
//! This file contains the part that runs on each worker. A worker normalises service times by type,
//! and adds its sums to the law's state. All workers share that state ([`Controlled`]). The state
//! outlives edits and VMs. Reference service times are not shared: a new worker starts with the
//! times that it measures.

pub mod dither;
pub mod elasticity;
pub mod law;

use std::time::Duration;

use crate::config::AutoParallelism;
use crate::request::TypeId;
use crate::rng;
use crate::service_times::{Objective, ServiceTimes, Source};
use crate::shared;
use crate::strategy::Controlled;
use crate::time::Instant;

use dither::Dither;
use elasticity::add;
use law::{Fresh, Law, View};

/// The number of latest requests that a type's own mean covers.
const MEMORY: f64 = 300.0;
/// The largest number of requests that a type's reference covers while it is learned.
const FIRST: f64 = 100.0;
/// The number of slots in use up to which a service time counts in full for the reference, if there
/// is a limit. Without a limit, a time counts in full only if no other slot is in use, because two
/// requests may already queue in the backend.
const COMPARABLE: f64 = 4.0;
/// A type nearly misses its last objective without any queue wait if its reference is longer than
/// this part of the objective.
const BY_ITSELF: f64 = 0.7;
/// The part of the requests that may miss the last objective, in addition to the part that its
/// percentile allows.
const BEYOND: f64 = 0.15;
/// The assumed p90 objective of a type that has no objectives, or that nearly misses them without
/// any queue wait. It is a multiple of the type's reference.
const WITHOUT: f64 = 4.0;
/// The number of slots in use up to which a service time is representative, as a multiple of the
/// working slots.
const REPRESENTATIVE: f64 = 2.0;
/// The least number of requests in a reference.
const FEWEST: f64 = 3.0;
/// The number of requests that a type's current mean covers: 2 / 0.01 − 1, with its gain of 0.01.
const LATEST: f64 = 199.0;
/// The least relative variance of service times. It is needed because few samples underestimate the
/// variance.
const LEAST_VARIANCE: f64 = 0.3;
/// The part of the difference by which references approach current times, per block at the knee.
const FOLLOW: f64 = 0.05;
/// The part of the difference by which references approach shorter current times, per block.
const FALL: f64 = 0.1;
/// The time constant of the moving sum of a type's requests, s.
const RECENT: f64 = 5.0;
/// A type has room if each quantile of its service times is at most this part of its objective.
const ROOM: f64 = 0.6;
/// The part of the requests whose types must have room, for [`View::room`].
const ROOMY: f64 = 0.7;
/// A type with at most this part of the requests is ignored.
const RARE: f64 = 0.03;
/// The moving sum of its requests up to which a worker is quiet. A single request counts for 34 s,
/// because streams may end as rarely.
const QUIET: f64 = 1e-3;
/// The time without a look after which a worker counts as suspended. Ticks are far more frequent.
const SUSPENDED: Duration = Duration::from_secs(2);

/// The mean of a type's times with few slots in use.
#[derive(Debug, Clone, Copy, Default)]
struct Reference {
    /// The mean time, s.
    time: f64,
    /// The number of requests that the mean covers.
    requests: f64,
}

impl Reference {
    /// Adds a time to a moving mean, s. `beside` is the number of slots in use at the request's
    /// start or its end, whichever is larger. The more slots were in use, the less the time counts.
    /// With a limit, a type without a reference has to use times that were measured with the usual
    /// number of slots in use. Once the mean covers [`FIRST`] requests, only times without other
    /// requests count in full, so an overload hardly changes the mean.
    fn learn(&mut self, secs: f64, beside: u32, law: &Law) {
        let few = if law.is_open() || self.requests >= FIRST {
            1.0
        } else if self.requests < FEWEST {
            law.working().max(COMPARABLE)
        } else {
            COMPARABLE
        };
        let alike = (few / f64::from(beside.max(1))).min(1.0).powi(2);
        self.requests = (self.requests + alike).min(FIRST);
        self.time += alike / self.requests * (secs - self.time);
    }

    fn known(&self) -> Option<f64> {
        (self.requests >= FEWEST).then_some(self.time)
    }
}

/// A type's service times on one worker, s.
#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    ln_mean: f64,
    mean: f64,
    /// The mean of the squares of the times, s².
    square: f64,
    reference: Reference,
    /// The reference of times to the first byte, if slots are held beyond the first byte.
    first: Reference,
    /// The reference of times per output token.
    token: Reference,
    /// The percentile of the last objective, as a ratio, and its time, s. It is `None` without
    /// objectives.
    objective: Option<(f64, f64)>,
    /// Whether the type is broken, and other types are protected from it.
    is_broken: bool,
    seen: f64,
    recent: f64,
}

impl Kind {
    /// Returns the standard error of the reference, s.
    fn doubt(&self) -> f64 {
        self.reference.time * (self.variance() / self.reference.requests.max(1.0)).sqrt()
    }

    /// Returns the reference of the times that are measured, s. They end at the first byte or at
    /// the end of the response. Returns `None` while the reference is not known.
    fn known(&self) -> Option<f64> {
        self.first.known().or(self.reference.known())
    }

    /// Returns the last objective: its percentile as a ratio, and its time, s. Returns `None` for a
    /// type without objectives. Also returns `None` for a type that nearly misses its last
    /// objective without any queue wait, because its late answers say nothing about the number of
    /// slots.
    fn kept(&self) -> Option<(f64, f64)> {
        let (_, last) = self.objective?;
        let is_kept = self.known().is_none_or(|known| known <= BY_ITSELF * last);
        self.objective.filter(|_| is_kept)
    }

    /// Returns the objective by which answers count as late for the search for P: its percentile as
    /// a ratio, and its time, s. Returns `None` for a type with neither an objective that it can
    /// meet nor a reference.
    fn late_after(&self) -> Option<(f64, f64)> {
        let without = || Some((0.9, WITHOUT * self.known()?));
        self.kept().or_else(without)
    }

    /// Returns the lateness ([`law::open`]) of an answer with this response time, s.
    fn lateness(&self, secs: f64) -> Option<f64> {
        let (part, last) = self.late_after()?;
        Some(f64::from(u8::from(secs > last)) * late(part))
    }

    /// Whether current times are shorter than the reference by more than chance.
    fn is_faster(&self) -> bool {
        let error = (self.variance() / self.seen.clamp(1.0, LATEST)).sqrt();
        self.mean * (1.0 + error) < self.reference.time
    }

    /// Returns the relative variance of service times.
    fn variance(&self) -> f64 {
        (self.square / (self.mean * self.mean) - 1.0).max(LEAST_VARIANCE)
    }
}

/// The controller on one worker.
#[derive(Debug)]
pub struct Auto {
    bounds: (u32, u32),
    seed: u64,
    first: u32,
    /// The wall-clock offset at the last look.
    wall_clock_offset: Duration,
    kinds: Vec<Kind>,
    /// The mean service time over all requests, s.
    mean: f64,
    /// The mean over all requests of their types' mean service times, s.
    mean_of_means: f64,
    law: Law,
    candidate: Law,
    schedule: Dither,
    /// The time at which this worker adopted the schedule.
    since: Instant,
    fresh: Fresh,
    view: View,
    looked: Instant,
    /// The end of the last suspension that a look has found ([`Auto::resumed`]).
    resumed: Instant,
    block: u64,
}

impl Auto {
    /// Returns a controller that starts with `first` slots, unless there is a record.
    pub fn new(policy: &str, bounds: &AutoParallelism, first: u32, types: usize) -> Self {
        let now = Instant::default();
        let bounds = (bounds.min, bounds.max);
        // All proxies of a policy have the same schedule. Policies have different schedules.
        let seed = rng::hash(policy.bytes());
        let law = Law::new(now, first, Duration::ZERO);
        Self {
            bounds,
            seed,
            first,
            wall_clock_offset: Duration::ZERO,
            kinds: vec![Kind::default(); types],
            mean: 0.0,
            mean_of_means: 0.0,
            schedule: law.dither(bounds, seed),
            candidate: law,
            law,
            since: now,
            fresh: Fresh::default(),
            view: View {
                shortest: f64::INFINITY,
                bounds,
                ..View::default()
            },
            looked: now,
            resumed: now,
            block: 0,
        }
    }

    /// Returns P, as far as it is known ([`Law::known`]).
    pub fn slots(&self) -> u32 {
        self.law.known().clamp(1, self.bounds.1.max(1))
    }

    /// Returns the mean reference of all types, weighted by the number of requests in each
    /// reference. Returns `None` without references, and while P is unlimited.
    pub fn reference(&self) -> Option<Duration> {
        let sum = |of: fn(&Kind) -> f64| self.kinds.iter().map(of).sum::<f64>();
        let requests = sum(|kind| kind.reference.requests);
        (requests > 0.0 && !self.is_open()).then(|| {
            Duration::from_secs_f64(
                sum(|kind| kind.reference.requests * kind.reference.time) / requests,
            )
        })
    }

    /// Whether the number of slots is unlimited.
    pub fn is_open(&self) -> bool {
        self.law.is_open()
    }

    /// Whether the service time of a request is representative for a limited number of slots.
    /// `beside` is as in [`Auto::completed`].
    pub fn is_representative(&self, beside: u32) -> bool {
        f64::from(beside) <= REPRESENTATIVE * self.law.working()
    }

    /// Returns the number of slots on which decisions are based.
    #[inline]
    pub fn limit(&self) -> u32 {
        if self.is_open() {
            self.bounds.1.max(1)
        } else {
            self.slots()
        }
    }

    /// Returns the number of slots that may be in use at `now`.
    pub fn level(&self, now: Instant) -> u32 {
        self.schedule.level(now)
    }

    /// Returns the time at which this worker resumed after its last suspension, as known at `now`.
    ///
    /// The process may have been stopped, or its virtual machine suspended. The times of requests
    /// that were in the backend then say nothing about the number of slots.
    pub fn resumed(&self, now: Instant) -> Instant {
        match now.since(self.looked) > SUSPENDED {
            true => now,
            false => self.resumed,
        }
    }

    /// Records the first byte of a stream, after this processing time. `beside` is as in
    /// [`Auto::completed`].
    pub fn began(&mut self, kind: TypeId, processing: Duration, beside: u32) {
        let kind = self.kinds.get_mut(usize::from(kind.0));
        if let Some(kind) = kind.filter(|_| !processing.is_zero()) {
            let secs = processing.as_secs_f64();
            kind.first.learn(secs, beside, &self.law);
        }
    }

    /// Returns the response time beyond which a request of `kind` is late, or `None` if it is never
    /// late.
    pub fn late_after(&self, kind: TypeId) -> Option<Duration> {
        let (_, last) = self.kinds.get(usize::from(kind.0))?.late_after()?;
        Duration::try_from_secs_f64(last).ok()
    }

    /// Records that a request of `kind` was answered after this response time, or is still
    /// unanswered after this time. The request counts as `weight` requests.
    pub fn answered(&mut self, kind: TypeId, response: Duration, weight: u32) {
        let kind = self.kinds.get(usize::from(kind.0));
        let lateness = |kind: &Kind| kind.lateness(response.as_secs_f64());
        if let Some(late) = kind.filter(|kind| !kind.is_broken).and_then(lateness) {
            let weight = f64::from(weight);
            add(&mut self.fresh.late, [1.0, weight, weight * late]);
        }
    }

    /// Records the time per output token of a response. The last argument is the type's last
    /// objective for this time: the percentile, as a ratio, and the time. `beside` is as in
    /// [`Auto::completed`].
    ///
    /// A response beyond the objective is late, but it has already counted as an answer in time. So
    /// it counts as a second answer, and the lateness of this answer makes up for the first one.
    /// Then the law closes at the same part of late responses as with other objectives. An
    /// objective that responses nearly miss with few slots in use is ignored, because it says
    /// nothing about slots. The response counts as `weight` responses.
    pub fn streamed(
        &mut self,
        kind: TypeId,
        token_time: Duration,
        beside: u32,
        (part, objective): (f64, Duration),
        weight: u32,
    ) {
        let Some(kind) = self.kinds.get_mut(usize::from(kind.0)) else {
            return;
        };
        let (secs, objective) = (token_time.as_secs_f64(), objective.as_secs_f64());
        kind.token.learn(secs, beside, &self.law);
        let known = kind.token.known();
        let is_kept = known.is_none_or(|known| known <= BY_ITSELF * objective);
        if secs > objective && is_kept && !kind.is_broken {
            let weight = f64::from(weight);
            let late = weight * (1.0 + late(part));
            add(&mut self.fresh.late, [1.0, weight, late]);
        }
    }

    /// Records a request that the backend answered. `waited` is true if the request had to wait
    /// for a slot. `beside` is the number of slots in use when the request got its slot or now,
    /// whichever is larger. The request counts as `weight` requests.
    pub fn completed(
        &mut self,
        kind: TypeId,
        started: Instant,
        ended: Instant,
        (waited, beside): (bool, u32),
        weight: u32,
    ) {
        let pt = ended.since(started).as_secs_f64();
        let weight = f64::from(weight);
        self.fresh.requests += weight;
        if started < self.resumed(ended) {
            return;
        }
        let Some(kind) = self.kinds.get_mut(kind.0 as usize).filter(|_| pt > 0.0) else {
            return;
        };
        kind.seen += 1.0;
        kind.recent += weight;
        if kind.seen < 2.0 {
            (kind.ln_mean, kind.mean, kind.square) = (pt.ln(), pt, pt * pt);
        }
        let gain = (1.0 / kind.seen).max(1.0 / MEMORY);
        let y = pt.ln() - kind.ln_mean;
        kind.ln_mean += gain * y;
        kind.mean += gain.max(0.01) * (pt - kind.mean);
        kind.square += gain.max(0.01) * (pt * pt - kind.square);
        if kind.reference.requests < FIRST || self.law.is_open() {
            kind.reference.learn(pt, beside, &self.law);
        }
        let doubt = kind.doubt();
        let Kind {
            mean,
            reference,
            seen,
            ..
        } = *kind;
        let (gain, mean_gain) = if self.mean > 0.0 {
            (0.01, 0.005)
        } else {
            (1.0, 1.0)
        };
        self.mean += gain * (pt - self.mean);
        self.mean_of_means += mean_gain * (mean - self.mean_of_means);
        // A request that started under another schedule says nothing about the current one.
        if started < self.since {
            return;
        }
        let referred = reference.requests;
        if referred >= FEWEST || !self.law.is_starting() && referred > 0.0 {
            add(
                &mut self.fresh.times,
                [
                    weight,
                    weight * pt,
                    weight * reference.time,
                    weight * doubt,
                    weight * pt * pt,
                ],
            );
        }
        if seen < 2.0 || !waited {
            return;
        }
        let Some(seen) = self.schedule.exposure(started, ended) else {
            return;
        };
        self.fresh.sums.add(seen.above, seen.below, y);
        let x = seen.above * self.schedule.ln_up() - seen.below * self.schedule.ln_down();
        let long = usize::from(mean > self.mean_of_means);
        if let Some(sums) = self.fresh.by_length.get_mut(long) {
            sums.add(x, 0.0, y);
        }
    }

    /// Records `weight` requests that ended without an answer from the backend.
    pub fn failed(&mut self, weight: u32) {
        self.fresh.requests += f64::from(weight);
    }

    /// Records a request of `kind` that was refused because slots were scarce.
    #[inline]
    pub fn refused(&mut self, kind: TypeId) {
        self.fresh.refused += 1.0;
        let kind = self.kinds.get(usize::from(kind.0));
        self.fresh.shed += kind.map_or(0.0, |kind| kind.mean);
    }

    /// Updates the law's view of the stage. `enforced` is true if the limit is enforced.
    /// `in_flight` is the number of slots in use. Broken types are left out. The caller calls this
    /// function before [`Controlled::sync`].
    pub fn look(
        &mut self,
        now: Instant,
        enforced: bool,
        wall_clock_offset: Duration,
        (in_flight, queued): (u32, u32),
        times: &ServiceTimes,
        is_broken: impl Fn(TypeId) -> bool,
    ) {
        // A pause between the readings of the two clocks makes a single offset too small.
        let offset = wall_clock_offset.max(self.wall_clock_offset);
        self.wall_clock_offset = wall_clock_offset;
        let elapsed = now.since(self.looked).as_secs_f64();
        (self.resumed, self.looked) = (self.resumed(now), now);
        let fade = (-elapsed / RECENT).exp();
        let mut total = 0.0;
        for (id, kind) in (0..).map(TypeId).zip(&mut self.kinds) {
            kind.recent *= fade;
            total += kind.recent;
            let last = times.objectives(id).last();
            let of = |last: &Objective| (last.percentile / 100.0, last.response_time.as_secs_f64());
            kind.objective = last.map(of);
            kind.is_broken = is_broken(id);
        }
        let (mut roomy, mut condemned) = (0.0, false);
        let (mut shortest, mut longest, mut least) = (f64::INFINITY, 0.0_f64, f64::INFINITY);
        for (id, kind) in (0..).map(TypeId).zip(&self.kinds) {
            if kind.recent <= RARE * total || kind.is_broken {
                continue;
            }
            shortest = shortest.min(kind.mean);
            if let Some((_, last)) = kind.kept() {
                // The law compares this time with slot times.
                let held = kind
                    .known()
                    .map_or(0.0, |known| kind.reference.time - known);
                least = least.min(last + held.max(0.0));
            }
            longest = longest.max(kind.mean);
            let estimate = times.estimate(id);
            if estimate.source == Source::None {
                continue;
            }
            condemned |= estimate.condemned;
            let fits = |(quantile, objective): (&Duration, &Objective)| {
                quantile.as_secs_f64() <= ROOM * objective.response_time.as_secs_f64()
            };
            if estimate.quantiles.iter().zip(estimate.objectives).all(fits) {
                roomy += kind.recent;
            }
        }
        self.view = View {
            mean: self.mean,
            room: total > 0.0 && roomy >= ROOMY * total,
            mixed: longest > 2.0 * shortest,
            condemned,
            broken: self.kinds.iter().any(|kind| kind.is_broken),
            is_quiet: total <= QUIET,
            enforced,
            in_flight: f64::from(in_flight),
            queued: f64::from(queued),
            shortest: least,
            bounds: self.bounds,
            wall_clock_offset: offset,
        };
    }

    /// Adopts the candidate law, with its schedule and references.
    fn adopt(&mut self, now: Instant) {
        let old = std::mem::replace(&mut self.law, self.candidate);
        let ((rebased, ln_scale), (was_rebased, was_ln_scale)) =
            (self.law.references(), old.references());
        let schedule = self.law.dither(self.bounds, self.seed);
        let block = schedule.block(now);
        let next = block != self.block;
        let follows = self.law.is_settled() && next;
        self.block = block;
        for kind in &mut self.kinds {
            if rebased != was_rebased {
                kind.reference = Reference {
                    time: kind.mean,
                    requests: kind.seen.min(LATEST),
                };
                (kind.first, kind.token) = (Reference::default(), Reference::default());
            } else if ln_scale != was_ln_scale {
                kind.reference.time *= (ln_scale - was_ln_scale).exp();
            } else if next && kind.is_faster() {
                kind.reference.time += FALL * (kind.mean - kind.reference.time);
            } else if follows {
                let Reference { time, requests } = &mut kind.reference;
                *time += FOLLOW * (kind.mean - *time);
                *requests += FOLLOW * (kind.seen.min(LATEST) - *requests);
            }
        }
        if schedule != self.schedule {
            self.schedule = schedule;
            // While the law is open, only the ceiling moves. That doesn't start a new schedule.
            if !self.law.is_open() {
                self.since = now;
            }
        }
        if self.fresh.epoch != self.law.epoch() {
            self.since = now;
            self.fresh = Fresh {
                epoch: self.law.epoch(),
                requests: self.fresh.requests,
                refused: self.fresh.refused,
                late: self.fresh.late,
                shed: self.fresh.shed,
                ..Fresh::default()
            };
        }
    }
}

impl Controlled for Auto {
    fn schema(&self) -> u32 {
        <Law as shared::Record>::SCHEMA
    }

    fn sync(&mut self, now: Instant, record: &mut Vec<u8>) -> bool {
        let known = shared::decode(record).filter(Law::is_sound);
        let new = || Law::new(now, self.first, self.view.wall_clock_offset);
        let mut law = known.unwrap_or_else(new);
        law.leave_out(self.resumed);
        law.add(&self.fresh);
        law.step(now, &self.view, self.seed);
        self.candidate = law;
        if known == Some(law) {
            self.adopt(now);
            return false;
        }
        shared::encode(&law, record);
        true
    }

    fn stored(&mut self) {
        self.adopt(self.looked);
        self.fresh = Fresh {
            epoch: self.law.epoch(),
            ..Fresh::default()
        };
    }
}

/// Returns the lateness of a late answer. `part` is the percentile of its type's objective, as a
/// ratio.
fn late(part: f64) -> f64 {
    1.0 / (1.0 - part + BEYOND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryHost;
    use crate::service_times::{Settings, TypeSettings};

    const BOUNDS: AutoParallelism = AutoParallelism { min: 2, max: 64 };

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Returns the service times of one type with objectives of 50 and 150 ms.
    fn times() -> ServiceTimes {
        let objective = |(percentile, ms)| Objective {
            percentile,
            response_time: Duration::from_millis(ms),
        };
        ServiceTimes::new(Settings {
            types: vec![TypeSettings {
                name: "search".to_owned(),
                objectives: [(50.0, 50), (90.0, 150)].map(objective).to_vec(),
            }],
            interval: Duration::from_secs(1),
            steps: 1,
            min_samples: 20,
        })
    }

    /// Exchanges measurements with the record, with `in_flight` requests in flight.
    fn look(auto: &mut Auto, record: &mut Vec<u8>, now: Instant, in_flight: u32) {
        auto.look(now, true, Duration::ZERO, (in_flight, 0), &times(), |_| {
            false
        });
        if auto.sync(now, record) {
            auto.stored();
        }
    }

    /// Serves 100 requests in this second, one every ms. Each takes `ms`, with `beside` slots in
    /// use.
    fn serve(auto: &mut Auto, second: u64, ms: u64, beside: u32) {
        for n in 0..100 {
            let (started, ended) = (at(1_000 * second + n), at(1_000 * second + n + ms));
            auto.answered(TypeId(0), ended.since(started), 1);
            auto.completed(TypeId(0), started, ended, (false, beside), 1);
        }
    }

    fn new() -> (Auto, Vec<u8>) {
        let (mut auto, mut record) = (Auto::new("default/a", &BOUNDS, 4, 1), Vec::new());
        look(&mut auto, &mut record, at(0), 0);
        (auto, record)
    }

    #[test]
    fn nothing_is_limited_while_objectives_are_kept() {
        let (mut auto, mut record) = new();
        for second in 1..20 {
            serve(&mut auto, second, 140, 30);
            look(&mut auto, &mut record, at(1_000 * second + 300), 50);
            assert!(auto.is_open());
            assert_eq!(auto.limit(), 64);
            assert!(auto.level(at(1_000 * second)) > 50, "more than are in use");
        }
        assert_eq!(auto.slots(), 64, "twice the most in use, within bounds");
    }

    /// Keeps as many requests in flight as the ceiling permits, each for `took` ms, for 10 steps of
    /// 10 ms.
    fn serve_at_the_ceiling(auto: &mut Auto, record: &mut Vec<u8>, ms: u64, took: u64) {
        for step in 0..10 {
            let now = at(ms + 10 * step);
            let in_flight = auto.level(now);
            let ended = u64::from(in_flight) * 10 / took;
            for _ in 0..ended {
                let started = Instant::from_nanos(now.as_nanos() - took * 1_000_000);
                auto.completed(TypeId(0), started, now, (true, in_flight), 1);
            }
            look(auto, record, now, in_flight);
        }
    }

    #[test]
    fn an_open_law_has_a_ceiling_that_rises_while_service_times_stay() {
        let bounds = AutoParallelism { min: 2, max: 1_000 };
        for (took, is_open) in [(10, true), (200, false)] {
            let (mut auto, mut record) = (Auto::new("default/a", &bounds, 4, 1), Vec::new());
            look(&mut auto, &mut record, at(0), 0);
            for ms in 1..1_100 {
                auto.answered(TypeId(0), Duration::from_millis(10), 1);
                auto.completed(TypeId(0), at(1_000 + ms), at(1_010 + ms), (false, 1), 1);
                look(&mut auto, &mut record, at(1_010 + ms), 10);
            }
            let now = at(2_120);
            let ceiling = auto.level(now);
            assert!((40..60).contains(&ceiling), "16 + 2·10 + 4·√10: {ceiling}");
            serve_at_the_ceiling(&mut auto, &mut record, 2_120, took);
            assert_eq!(auto.is_open(), is_open, "{took} ms");
            let risen = auto.level(at(2_230)) > 2 * ceiling;
            assert_eq!(risen, is_open, "{took} ms: {}", auto.level(at(2_230)));
        }
    }

    #[test]
    fn a_burst_after_an_idle_time_closes_nothing() {
        let bounds = AutoParallelism { min: 2, max: 1_000 };
        let (mut auto, mut record) = (Auto::new("default/a", &bounds, 4, 1), Vec::new());
        look(&mut auto, &mut record, at(0), 0);
        for ms in 1..1_100 {
            auto.answered(TypeId(0), Duration::from_millis(10), 1);
            auto.completed(TypeId(0), at(1_000 + ms), at(1_010 + ms), (false, 1), 1);
            look(&mut auto, &mut record, at(1_010 + ms), 1);
        }
        (3..13).for_each(|second| look(&mut auto, &mut record, at(1_000 * second), 0));
        serve_at_the_ceiling(&mut auto, &mut record, 22_000, 10);
        assert!(auto.is_open());
    }

    /// Requests that hold slots for long say nothing about the requests that end.
    #[test]
    fn long_requests_at_the_ceiling_close_nothing() {
        let bounds = AutoParallelism { min: 2, max: 1_000 };
        let (mut auto, mut record) = (Auto::new("default/a", &bounds, 4, 2), Vec::new());
        look(&mut auto, &mut record, at(0), 0);
        for step in 1..1_000 {
            let now = at(10 * step);
            auto.answered(TypeId(0), Duration::from_millis(10), 1);
            auto.completed(TypeId(0), at(10 * step - 10), now, (false, 1), 1);
            let in_flight = if step < 800 { 1 } else { auto.level(now) };
            look(&mut auto, &mut record, now, in_flight);
        }
        assert!(auto.is_open());
    }

    /// Returns a law that closed after 1.3 s, and its record.
    fn closed() -> (Auto, Vec<u8>) {
        let (mut auto, mut record) = new();
        serve(&mut auto, 1, 10, 4);
        look(&mut auto, &mut record, at(1_100), 40);
        (0..3).for_each(|_| serve(&mut auto, 2, 160, 40));
        look(&mut auto, &mut record, at(1_300), 40);
        assert!(!auto.is_open());
        (auto, record)
    }

    #[test]
    fn late_answers_close_it_at_the_slots_that_work() {
        let (auto, _) = closed();
        // The requests bring 1 s of work, and later 3 s. Half of the former has decayed, so w is
        // 3.5 s in 0.76 s. P is w plus its root.
        assert!((7..=8).contains(&auto.slots()), "{}", auto.slots());
    }

    #[test]
    fn after_few_answers_slots_double_while_service_times_stay() {
        let (mut auto, mut record) = new();
        for n in 0..80 {
            let took = if n < 4 { 10 } else { 160 };
            auto.answered(TypeId(0), Duration::from_millis(took), 1);
            auto.completed(TypeId(0), at(0), at(took), (false, n + 1), 1);
        }
        look(&mut auto, &mut record, at(200), 76);
        let mut seen = vec![auto.slots()];
        for round in 2..30 {
            let slots = u64::from(auto.slots());
            // The backend works on 12 requests at once. Further requests wait in the backend.
            let took = 10 * slots.div_ceil(12);
            for _ in 0..slots * 10 / took.div_ceil(10) {
                let (started, ended) = (at(100 * round + 50), at(100 * round + 50 + took));
                auto.completed(TypeId(0), started, ended, (true, auto.slots()), 1);
            }
            let in_flight = auto.slots();
            look(&mut auto, &mut record, at(100 * round + 150), in_flight);
            seen.push(auto.slots());
        }
        seen.dedup();
        assert!(seen.starts_with(&[4, 8, 16]), "{seen:?}");
        assert!((8..=16).contains(&auto.slots()), "{seen:?}");
    }

    /// Returns the number of slots at which the law closes in a burst of twice the capacity of 50
    /// workers. The burst comes this time after 2 s of little load. `held` more requests are in the
    /// backend all the time.
    fn slots_after_idle(secs: u64, held: u32) -> u32 {
        let bounds = AutoParallelism { min: 2, max: 1_000 };
        let (mut auto, mut record) = (Auto::new("default/a", &bounds, 4, 1), Vec::new());
        let (mut requests, mut ended): (Vec<(u64, u64)>, usize) = (Vec::new(), 0);
        let mut serve = |ms: u64, arrivals: usize| {
            for _ in 0..arrivals {
                let before = requests.len().checked_sub(50);
                let free = before.map_or(0, |before| requests[before].1);
                requests.push((ms, ms.max(free) + 50));
            }
            let in_flight = |ended: usize| held + u32::try_from(requests.len() - ended).unwrap();
            while requests.get(ended).is_some_and(|(_, at)| *at <= ms) {
                let (started, now) = (at(requests[ended].0), at(requests[ended].1));
                auto.answered(TypeId(0), now.since(started), 1);
                auto.completed(TypeId(0), started, now, (false, in_flight(ended)), 1);
                ended += 1;
            }
            look(&mut auto, &mut record, at(ms), in_flight(ended));
            (!auto.is_open()).then(|| auto.slots())
        };
        let burst = 2_000 + 1_000 * secs;
        (0..2_000)
            .step_by(10)
            .for_each(|ms| assert_eq!(serve(ms, 1), None));
        (2_000..burst)
            .step_by(50)
            .for_each(|ms| assert_eq!(serve(ms, 0), None));
        let mut closed = (burst..burst + 3_000).step_by(10);
        closed.find_map(|ms| serve(ms, 20)).unwrap_or_default()
    }

    #[test]
    fn an_idle_time_leaves_the_slots_that_work() {
        for (secs, held) in [
            (0, 0),
            (1, 0),
            (5, 0),
            (3_600, 0),
            (0, 1),
            (5, 1),
            (3_600, 1),
        ] {
            let slots = slots_after_idle(secs, held);
            assert!((35..=60).contains(&slots), "{secs} s, {held} held: {slots}");
        }
    }

    #[test]
    fn an_idle_time_ends_a_start() {
        let (mut auto, mut record) = new();
        for n in 0..80 {
            let took = if n < 4 { 10 } else { 160 };
            auto.answered(TypeId(0), Duration::from_millis(took), 1);
            auto.completed(TypeId(0), at(0), at(took), (false, n + 1), 1);
        }
        look(&mut auto, &mut record, at(200), 76);
        assert!(!auto.is_open());
        for n in 0..5 {
            auto.completed(TypeId(0), at(250), at(260 + n), (true, 4), 1);
        }
        look(&mut auto, &mut record, at(300), 1);
        for ms in (350..10_000).step_by(50) {
            look(&mut auto, &mut record, at(ms), 0);
        }
        assert!(auto.is_open());
        // The next load is unlimited.
        look(&mut auto, &mut record, at(10_000), 20);
        assert!(auto.level(at(10_000)) > 20);
    }

    #[test]
    fn the_limit_opens_while_fewer_slots_are_demanded() {
        for (in_flight, refused, opens) in [(2, 0, true), (40, 0, false), (2, 2_000, false)] {
            let (mut auto, mut record) = closed();
            for ms in (1_310..2_400).step_by(10) {
                (0..refused / 100).for_each(|_| auto.refused(TypeId(0)));
                serve(&mut auto, 2, 10, 4);
                look(&mut auto, &mut record, at(ms), in_flight);
            }
            assert_eq!(
                auto.is_open(),
                opens,
                "{in_flight} in flight, {refused} refused"
            );
        }
    }

    /// Returns P after a second and a half in which service times alone miss an objective and slots
    /// are unused. Every 10 ms, 10 requests are answered, one is refused, and `failed` fail.
    fn slots_beside_failures(failed: u32) -> u32 {
        let (host, mut times) = (MemoryHost::new(), times());
        for sync in 1..=30 {
            times.record(TypeId(0), Duration::from_millis(200), 1);
            times.sync(at(1_000 * sync), &host, "times").unwrap();
        }
        assert!(times.estimate(TypeId(0)).condemned);
        let (mut auto, mut record) = closed();
        for ms in (1_310..2_800).step_by(10) {
            for _ in 0..10 {
                auto.answered(TypeId(0), Duration::from_millis(200), 1);
                auto.completed(TypeId(0), at(ms - 2), at(ms), (false, 2), 1);
            }
            auto.failed(failed);
            auto.refused(TypeId(0));
            let now = at(ms);
            auto.look(now, true, Duration::ZERO, (2, 0), &times, |_| false);
            if auto.sync(now, &mut record) {
                auto.stored();
            }
        }
        auto.slots()
    }

    #[test]
    fn the_refused_part_is_of_answers_and_failures() {
        let before = closed().0.slots();
        assert!(slots_beside_failures(0) < before, "9% are refused");
        assert_eq!(slots_beside_failures(10), before, "4.8% are refused");
    }

    #[test]
    fn a_type_that_misses_its_objectives_by_itself_closes_nothing() {
        let (mut auto, mut record) = new();
        for second in 1..10 {
            serve(&mut auto, second, 200, 1);
            look(&mut auto, &mut record, at(1_000 * second + 400), 4);
            assert!(auto.is_open());
        }
    }

    #[test]
    fn a_type_that_misses_its_objectives_by_itself_closes_it_when_it_takes_many_times_as_long() {
        let (mut auto, mut record) = new();
        serve(&mut auto, 1, 200, 1);
        look(&mut auto, &mut record, at(1_400), 4);
        assert!(auto.is_open());
        serve(&mut auto, 2, 900, 40);
        look(&mut auto, &mut record, at(3_000), 40);
        assert!(!auto.is_open());
    }

    /// Returns whether the law closes if `slow` of 100 streams have slow tokens, although all
    /// streams begin in time. A slow token takes 50 ms in place of 20, with an objective of 30 ms
    /// at p90. Before that, with few requests in flight, tokens take `alone` ms.
    fn closes(slow: u64, alone: u64) -> bool {
        let (mut auto, mut record) = new();
        let objective = (0.9, Duration::from_millis(30));
        for (second, beside) in [(1, 1), (2, 40)] {
            for n in 0..100 {
                let (started, ended) = (at(1_000 * second + n), at(1_000 * second + n + 100));
                // The slow streams are spread evenly.
                let is_slow = second == 2 && (n + 1) * slow / 100 > n * slow / 100;
                let token = match (second, is_slow) {
                    (1, _) => alone,
                    (_, true) => 50,
                    (_, false) => 20,
                };
                auto.answered(TypeId(0), Duration::from_millis(10), 1);
                auto.completed(TypeId(0), started, ended, (false, beside), 1);
                auto.streamed(
                    TypeId(0),
                    Duration::from_millis(token),
                    beside,
                    objective,
                    1,
                );
            }
            look(&mut auto, &mut record, at(1_000 * second + 900), beside);
        }
        !auto.is_open()
    }

    #[test]
    fn slow_tokens_close_the_law_as_late_answers_do() {
        // The law closes when more than 1 − 0.9 + 0.15 of the streams are slow.
        assert!(!closes(22, 10));
        assert!(closes(28, 10));
        assert!(closes(100, 10));
        // The tokens are as slow with one stream at a time.
        assert!(!closes(100, 25));
    }

    /// The stream's slot time is longer than the objective for its first byte, even with few
    /// requests in flight.
    #[test]
    fn a_stream_is_late_by_its_first_byte() {
        let (mut auto, mut record) = new();
        for (second, first, beside, is_open) in [(1, 10, 1, true), (2, 300, 40, false)] {
            for n in 0..100 {
                let started = at(1_000 * second + n);
                let first = Duration::from_millis(first);
                auto.began(TypeId(0), first, beside);
                auto.answered(TypeId(0), first, 1);
                let ended = at(1_000 * second + n + 800);
                auto.completed(TypeId(0), started, ended, (false, beside), 1);
            }
            look(&mut auto, &mut record, at(1_000 * second + 900), beside);
            assert_eq!(auto.is_open(), is_open, "{first:?}");
        }
    }

    /// The first answers come from a cold server.
    #[test]
    fn references_of_first_bytes_and_tokens_follow_times_alone() {
        let (mut auto, _) = new();
        let (cold, warm) = (Duration::from_secs(1), Duration::from_millis(20));
        let objective = (0.9, Duration::from_millis(100));
        for (time, requests) in [(cold, 100), (warm, 1_000)] {
            for _ in 0..requests {
                auto.began(TypeId(0), time, 1);
                auto.streamed(TypeId(0), time, 1, objective, 1);
            }
        }
        let follows = |reference: Reference| (0.02..0.03).contains(&reference.time);
        assert!(follows(auto.kinds[0].first), "{:?}", auto.kinds[0].first);
        assert!(follows(auto.kinds[0].token), "{:?}", auto.kinds[0].token);
        // An overload hardly changes them.
        for _ in 0..500 {
            auto.began(TypeId(0), cold, 40);
            auto.streamed(TypeId(0), cold, 40, objective, 1);
        }
        assert!(follows(auto.kinds[0].first), "{:?}", auto.kinds[0].first);
        assert!(follows(auto.kinds[0].token), "{:?}", auto.kinds[0].token);
    }

    #[test]
    fn the_schedule_follows_a_step_of_the_wall_clock() {
        let (mut auto, mut record) = closed();
        let mut offset_after = |ms: u64, offset: u64| {
            let offset = Duration::from_millis(offset);
            auto.look(at(ms), true, offset, (40, 0), &times(), |_| false);
            if auto.sync(at(ms), &mut record) {
                auto.stored();
            }
            (auto.schedule.offset.as_millis(), auto.law.epoch())
        };
        let (_, epoch) = offset_after(1_310, 0);
        assert_eq!(offset_after(1_320, 5), (0, epoch), "less than half a slot");
        assert_eq!(offset_after(1_330, 9_000), (9_000, epoch + 1));
        assert_eq!(offset_after(1_340, 8_000), (9_000, epoch + 1), "a pause");
        assert_eq!(offset_after(1_350, 9_000), (9_000, epoch + 1));
        offset_after(1_360, 4_000);
        assert_eq!(
            offset_after(1_370, 4_000),
            (4_000, epoch + 2),
            "a step back"
        );
    }

    #[test]
    fn in_an_open_law_references_follow_slower_times_alone() {
        let (mut auto, mut record) = new();
        for second in 1..10 {
            serve(&mut auto, second, if second < 3 { 5 } else { 10 }, 1);
            look(&mut auto, &mut record, at(1_000 * second + 300), 1);
        }
        let time = auto.kinds[0].reference.time;
        assert!((0.009..0.0101).contains(&time), "{time}");
        serve(&mut auto, 10, 100, 40);
        let time = auto.kinds[0].reference.time;
        assert!((0.009..0.0101).contains(&time), "{time} after an overload");
    }

    #[test]
    fn the_limit_opens_after_fifty_answers_or_five_seconds() {
        for (period, secs) in [(10, 1.0), (50, 2.5), (500, 5.0)] {
            let (mut auto, mut record) = closed();
            let calm = 10_000;
            let mut opened = (1_310..30_000).step_by(10).filter(|ms| {
                if (ms - 1_310) % period == 0 {
                    serve_one(&mut auto, *ms);
                }
                let in_flight = if *ms < calm { 40 } else { 2 };
                look(&mut auto, &mut record, at(*ms), in_flight);
                auto.is_open()
            });
            let opened = opened.next().map(|ms| (ms - calm) as f64 / 1e3);
            // The averaging time in which slots become free may have begun up to its length before.
            let is_due = |took: f64| secs < 1.1 * took && took < 2.2 * secs;
            assert!(opened.is_some_and(is_due), "{period} ms: {opened:?} s");
        }
    }

    fn serve_one(auto: &mut Auto, ms: u64) {
        auto.answered(TypeId(0), Duration::from_millis(10), 1);
        auto.completed(TypeId(0), at(ms - 10), at(ms), (false, 2), 1);
    }

    #[test]
    fn a_worker_that_is_new_goes_on_where_the_others_are() {
        let (mut old, mut record) = new();
        serve(&mut old, 1, 160, 40);
        look(&mut old, &mut record, at(1_260), 40);
        let found = old.slots();
        assert!(!old.is_open());
        let mut new = Auto::new("default/a", &BOUNDS, 4, 1);
        look(&mut new, &mut record, at(1_270), 40);
        look(&mut old, &mut record, at(1_270), 40);
        assert_eq!(new.slots(), found);
        for ms in 1_400..2_400 {
            assert_eq!(new.level(at(ms)), old.level(at(ms)));
        }
    }

    #[test]
    fn a_worker_is_quiet_without_recent_answers() {
        let (mut auto, mut record) = new();
        assert!(auto.view.is_quiet);
        serve_one(&mut auto, 100);
        for (secs, is_quiet) in [(1, false), (34, false), (36, true)] {
            look(&mut auto, &mut record, at(1_000 * secs), 1);
            assert_eq!(auto.view.is_quiet, is_quiet, "{secs} s");
        }
    }

    #[test]
    fn bounds_that_are_edited_hold_at_the_next_look() {
        let (_, mut record) = new();
        let tight = AutoParallelism { min: 7, max: 7 };
        let mut edited = Auto::new("default/a", &tight, 7, 1);
        look(&mut edited, &mut record, at(1_000), 0);
        assert_eq!(edited.slots(), 7);
        assert!((1_000..2_000).all(|ms| edited.level(at(ms)) == 7));
    }
}
