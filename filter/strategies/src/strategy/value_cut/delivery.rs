//! Delivery: the yield of a type's slots, by which broken types are found.
//!
//! **The problem.** A route that hangs is the most common overload. If 2% of the requests are never
//! answered, they hold every slot until the route's timeout. They yield no service times, so by its
//! mean service time such a type looks as cheap as before.
//!
//! **Outcomes.** Every end of a request shows whether its slot delivered. It delivered if the
//! answer isn't an error and came within the type's last objective. Only the time in the backend
//! counts, not the wait for a slot, which the stage itself controls. A request that is still in the
//! backend after the last objective has failed to deliver, and counts at once. Its timeout may be
//! far away, or it may have none. Until the first outcome of a type without a known slot time, the
//! first objective counts, because a cold type that hangs gives no other sign. The same holds for
//! the first outcome after a type was broken. Two ratios are averaged over the latest outcomes of
//! the type on all workers. The average is plain for the first outcomes, then exponential:
//!
//! ```text
//! delivered_k   of all outcomes, those that delivered
//! stuck_k       of all outcomes, those that held a slot beyond the last objective
//! ```
//!
//! A stream delivers at its first byte. If its tokens then come too slowly, the delivery is taken
//! back.
//!
//! Errors that come at once deliver nothing, but hold no slot. So they lower `delivered`, but don't
//! raise `stuck`.
//!
//! **Broken.** A type is broken with stuck > ½. For a healthy type, that takes about twenty
//! requests, which may be more than the slots. So it is also broken when *silent* requests hold ⅛
//! of the slots, but at least two, and no request of the type was answered since. A request is
//! silent after half of the type's first objective, or after eight times the longest mean slot time
//! of any type (for which it may have to wait), whichever is longer. But it is silent at the latest
//! after its last objective, or if its type is usually late, after twice the type's usual time.
//!
//! A broken type is restricted while requests arrive of a type that delivers more value per slot
//! time. Its requests are then *probes*. They get one slot, or ⅛ of the slots that unrestricted
//! types demand. If probes take long, one more enters every two seconds, up to ¼ of the slots and
//! half of those that unrestricted types demand. An outcome of a type that is broken, or whose
//! requests mostly fail, has five times the usual weight, so that four good answers in a row end
//! that state. Alg. 1 doesn't judge probes, because the type can't recover without them.
//!
//! *Victims.* A queue inside the backend delays the answers of all types alike, and those with the
//! tightest objectives are late first. Such a type is not the cause. So it keeps its rank and is
//! not broken, although all of its answers are late. A type with answers is a victim if its last
//! objective is at most twice the backend's delay. That delay is the least slot time of recent
//! answers over all types, which the answers of a backend without a queue keep low.
//!
//! A type that hangs soon makes other types late, so that they break, too. Of several broken types,
//! only those that broke earlier are restricted in favour of the others. The type that broke last
//! is not the cause, so no broken type needs protection from it, and its answers show when the
//! backend has recovered.
//!
//! **Slot time.** A type's histogram omits errors that come at once, and records a lower bound as
//! no longer than the last objective. Let `unmeasured` be the part of the outcomes that it omits,
//! and `beyond` the mean slot time that it omits. Then a request of the type holds its slot for
//!
//! ```text
//! (1 − unmeasured) · mean + beyond
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The weight of the newest outcome of a healthy type, and of a type that is broken or fails.
const GAIN: (f64, f64) = (1.0 / 30.0, 1.0 / 6.0);
/// The ratio of stuck outcomes above which a type is broken.
const BROKEN: f64 = 0.5;
/// The ratio of delivered outcomes below which a type fails.
const FAILS: f64 = 0.5;
/// The least number of silent requests from which a healthy type counts as broken.
const SILENT: f64 = 2.0;
/// The least number of outcomes with which slot times are known.
const FEWEST: f64 = 20.0;
/// The time without an outcome or a silent request after which a type's record is reset, s.
const FORGET: f64 = 60.0;
/// The least part of the outcomes that must deliver for a type to keep its full value, ratio. Fewer
/// failures are attributed to chance.
const USUAL: f64 = 0.8;
/// The least part of its value that a type keeps, ratio. With it, a type that delivers nothing
/// still has a rank.
const LEAST: f64 = 1e-3;
/// The parts of the slots for probes of a broken type, at once and after [`PAUSE`].
const PROBES: (f64, f64) = (1.0 / 8.0, 1.0 / 4.0);
/// The time constant of the least slot time of answers, s.
const RECENT: f64 = 1.0;
/// The multiple of the backend's delay up to which a type's last objective makes the type a victim.
const DELAYED: f64 = 2.0;
/// The time after which a further probe enters while earlier ones are unanswered.
pub(super) const PAUSE: Duration = Duration::from_secs(2);

/// The outcomes of a type.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Sums {
    count: f64,
    delivered: f64,
    stuck: f64,
    /// The number of requests that were in the backend for longer than usual.
    silent: f64,
    /// The number of answers, including late ones and answers to silent requests.
    answers: f64,
    /// The least slot time of an answer, s.
    fastest: Option<f64>,
    /// The number of outcomes that the histogram omits.
    unmeasured: f64,
    /// The slot time that the histogram omits, s.
    beyond: f64,
}

impl Sums {
    /// Adds the outcome of a request that ended.
    pub(super) fn outcome(&mut self, delivered: bool, stuck: bool) {
        self.count += 1.0;
        self.delivered += f64::from(u8::from(delivered));
        self.stuck += f64::from(u8::from(stuck));
    }

    /// Takes back a delivery that was counted too early.
    pub(super) fn undelivered(&mut self) {
        self.delivered -= 1.0;
    }

    /// Adds a request that has been in the backend for longer than its type usually takes.
    pub(super) fn silent(&mut self) {
        self.silent += 1.0;
    }

    /// Adds an answer of the backend, with its slot time, s.
    pub(super) fn answered(&mut self, secs: f64) {
        self.answers += 1.0;
        self.fastest = least(self.fastest, Some(secs));
    }

    /// Adds slot time, s, that the histogram omits. `whole` is true if it omits the request
    /// entirely.
    pub(super) fn beyond(&mut self, secs: f64, whole: bool) {
        self.beyond += secs;
        self.unmeasured += f64::from(u8::from(whole));
    }

    pub(super) fn is_empty(&self) -> bool {
        let sums = [self.count, self.silent, self.answers, self.beyond];
        sums.into_iter().all(|sum| sum <= 0.0) && self.delivered >= 0.0
    }

    /// Adds the requests of `other`, of which each counts as `weight` requests.
    pub(super) fn add(&mut self, other: &Self, weight: f64) {
        self.count += weight * other.count;
        self.delivered += weight * other.delivered;
        self.stuck += weight * other.stuck;
        self.silent += weight * other.silent;
        self.answers += weight * other.answers;
        self.fastest = least(self.fastest, other.fastest);
        self.unmeasured += weight * other.unmeasured;
        self.beyond += weight * other.beyond;
    }
}

fn least(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.into_iter().chain(b).reduce(f64::min)
}

/// The state of a type in the record that all workers share.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Delivery {
    /// The number of outcomes, at most the 30 that the averages cover.
    seen: f64,
    delivered: f64,
    stuck: f64,
    /// The number of silent requests since the last answer.
    silent: f64,
    /// The least slot time of recent answers, s.
    fastest: Option<f64>,
    /// The time of the last answer, s.
    answered: f64,
    /// The part of the outcomes that the histogram omits, ratio.
    unmeasured: f64,
    /// The mean slot time that the histogram omits, s.
    beyond: f64,
    /// The time of the last outcome, s.
    last: f64,
    /// The time at which the type broke, s, or `None` while the type is not broken.
    broken: Option<f64>,
    /// Whether the type was broken and has few outcomes since.
    recovers: bool,
    fresh: Sums,
}

impl Delivery {
    /// Adds the outcomes that a worker saw.
    pub(super) fn add(&mut self, sums: &Sums) {
        self.fresh.add(sums, 1.0);
    }

    /// Advances the averages to the time `secs`. `slots` is the number of all slots.
    pub(super) fn step(&mut self, secs: f64, slots: f64) {
        let fresh = std::mem::take(&mut self.fresh);
        self.silent = if fresh.answers > 0.0 {
            0.0
        } else {
            self.silent + fresh.silent
        };
        if let Some(new) = fresh.fastest {
            let weight = 1.0 - (-(secs - self.answered).clamp(0.0, RECENT) / RECENT).exp();
            let old = self.fastest.unwrap_or(new);
            self.fastest = Some(new.min(old + weight * (new - old)));
            self.answered = secs;
        }
        if fresh.count > 0.0 || fresh.silent > 0.0 {
            self.last = secs;
        }
        if fresh.count > 0.0 {
            self.follow(&fresh);
        } else {
            // Until the next outcome, the slot time of requests whose outcomes were already counted
            // and deliveries that are taken back must be kept.
            (self.fresh.beyond, self.fresh.delivered) = (fresh.beyond, fresh.delivered);
            if (secs - self.last).abs() > FORGET {
                *self = Self::default();
            }
        }
        let is_silent = self.silent >= (PROBES.0 * slots).max(SILENT);
        if is_silent || self.seen > 0.0 && self.stuck > BROKEN {
            self.broken = least(self.broken, Some(secs));
        } else if self.is_broken() {
            // The type has recovered, so its costs and deliveries from the time when it was broken
            // no longer count.
            *self = Self {
                last: secs,
                recovers: true,
                fastest: self.fastest,
                answered: self.answered,
                ..Self::default()
            };
        }
    }

    fn follow(&mut self, fresh: &Sums) {
        let gain = if self.fails() || self.is_broken() {
            GAIN.1
        } else {
            GAIN.0
        };
        let seen = self.seen + fresh.count;
        let weight = (1.0 - (1.0 - gain).powf(fresh.count)).max(fresh.count / seen);
        let follow =
            |average: &mut f64, sum: f64| *average += weight * (sum / fresh.count - *average);
        follow(&mut self.delivered, fresh.delivered);
        self.delivered = self.delivered.clamp(0.0, 1.0);
        follow(&mut self.stuck, fresh.stuck);
        follow(&mut self.unmeasured, fresh.unmeasured.min(fresh.count));
        // Timeouts of requests that hung before the type recovered don't count any more.
        let beyond = if self.recovers { 0.0 } else { fresh.beyond };
        follow(&mut self.beyond, beyond);
        self.seen = seen.min(1.0 / GAIN.0);
        self.recovers &= seen < 1.0 / GAIN.0;
    }

    /// Whether no outcome is known.
    pub(super) fn is_new(&self) -> bool {
        self.seen <= 0.0
    }

    /// Whether the type was broken and has few outcomes since.
    pub(super) fn recovers(&self) -> bool {
        self.recovers
    }

    /// Whether most requests deliver nothing.
    pub(super) fn fails(&self) -> bool {
        self.seen > 0.0 && self.delivered < FAILS
    }

    /// Whether the type is broken.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Whether the type is broken, with silent requests since its last answer.
    pub(super) fn is_unanswered(&self) -> bool {
        self.silent > 0.0 && self.is_broken()
    }

    /// Returns the least slot time of recent answers at `secs`, s, or `None` without recent
    /// answers.
    pub(super) fn fastest(&self, secs: f64) -> Option<f64> {
        (self.fastest).filter(|_| (0.0..2.0 * RECENT).contains(&(secs - self.answered)))
    }

    /// Whether the type's answers are late because the backend delays all answers by `delay`, s.
    /// `last` is the type's last objective, s.
    pub(super) fn is_victim(&self, delay: f64, last: f64) -> bool {
        self.silent <= 0.0 && last <= DELAYED * delay
    }

    /// Whether the type broke before `other` did, or is broken while `other` is not.
    pub(super) fn broke_before(&self, other: &Self) -> bool {
        let is_before = |own: f64| other.broken.is_none_or(|other| own < other);
        self.broken.is_some_and(is_before)
    }

    /// Returns the part of the type's value that an admitted request delivers, ratio.
    pub(super) fn part(&self) -> f64 {
        if self.is_new() {
            1.0
        } else if self.is_unanswered() {
            LEAST * LEAST
        } else {
            (self.delivered / USUAL).clamp(LEAST, 1.0)
        }
    }

    /// Returns the mean slot time of a request, s. `mean` is the mean of the type's histogram, s.
    pub(super) fn slot_time(&self, mean: f64) -> f64 {
        (1.0 - self.unmeasured).max(0.0) * mean + self.beyond.max(0.0)
    }

    /// Whether the outcomes suffice to know the slot time of a type without a histogram.
    pub(super) fn tells_slot_time(&self) -> bool {
        self.seen >= FEWEST && self.unmeasured > BROKEN
    }
}

/// Returns the number of slots for probes of a broken type whose last probe entered `pause` s ago.
/// `working` is the number of `slots` that unrestricted types demand. At least `working` slots are
/// effective, whereas a P that was found automatically may be too high.
pub(super) fn probes(slots: f64, working: f64, pause: f64) -> f64 {
    let part = if pause < PAUSE.as_secs_f64() {
        (PROBES.0 * working).floor()
    } else {
        (PROBES.1 * slots).min((working / 2.0).ceil()).floor()
    };
    part.max(1.0)
}

/// The number of requests of a broken type on one worker. It is in the shared record, because a
/// bound of one slot applies to all workers together.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Held {
    worker: u64,
    kind: u16,
    count: u32,
    /// The time of the report, s.
    at: f64,
}

/// The time after which the last report of a worker is dropped, s.
const LEASE: f64 = 3.0;

/// Replaces the report of `worker` with `counts`, the numbers of its requests by type. Returns
/// whether the record must be stored.
pub(super) fn report(
    held: &mut Vec<Held>,
    worker: u64,
    secs: f64,
    counts: impl Iterator<Item = (u16, u32)>,
) -> bool {
    let before = held.len();
    let old: u32 = (held.iter().filter(|of| of.worker == worker))
        .map(|of| of.count)
        .sum();
    held.retain(|of| of.worker != worker && (0.0..LEASE).contains(&(secs - of.at)));
    let mut new = 0;
    for (kind, count) in counts.filter(|(_, count)| *count > 0) {
        new += count;
        held.push(Held {
            worker,
            kind,
            count,
            at: secs,
        });
    }
    held.len() != before || new != old || new > 0
}

/// Returns the number of requests of `kind` that workers other than `worker` reported.
pub(super) fn elsewhere(held: &[Held], worker: u64, kind: usize) -> u32 {
    let others = |of: &&Held| of.worker != worker && usize::from(of.kind) == kind;
    held.iter().filter(others).map(|of| of.count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_that_are_taken_back_count_as_if_they_had_not_been() {
        // One of each four streams turns out to be slow, some time after its first byte.
        let mut delivery = Delivery::default();
        for n in 0..400 {
            let mut sums = Sums::default();
            sums.outcome(true, false);
            delivery.add(&sums);
            delivery.step(f64::from(n), 16.0);
            if n % 4 == 3 {
                let mut sums = Sums::default();
                sums.undelivered();
                assert!(!sums.is_empty());
                delivery.add(&sums);
                // This step has no new outcome.
                delivery.step(f64::from(n) + 0.5, 16.0);
            }
        }
        assert!(
            (delivery.delivered - 0.75).abs() < 0.05,
            "{}",
            delivery.delivered
        );
        // All streams turn out to be slow.
        for n in 400..600 {
            let mut sums = Sums::default();
            sums.outcome(true, false);
            sums.undelivered();
            delivery.add(&sums);
            delivery.step(f64::from(n), 16.0);
        }
        assert!(delivery.delivered < 0.01, "{}", delivery.delivered);
        assert!(!delivery.is_broken(), "no slot is stuck");
    }

    fn after(outcomes: &[(bool, bool)]) -> Delivery {
        let mut delivery = Delivery::default();
        for (at, &(delivered, stuck)) in outcomes.iter().enumerate() {
            let mut sums = Sums::default();
            sums.outcome(delivered, stuck);
            delivery.add(&sums);
            delivery.step(at as f64, 16.0);
        }
        delivery
    }

    #[test]
    fn one_stuck_request_of_a_new_type_is_enough_and_one_answer_ends_it() {
        assert!(!after(&[]).is_broken());
        assert!(after(&[(false, true)]).is_broken());
        assert!(!after(&[(false, true), (true, false)]).is_broken());
    }

    #[test]
    fn a_type_is_broken_after_twenty_stuck_requests_and_well_after_four_answers() {
        let mut outcomes = vec![(true, false); 100];
        outcomes.extend([(false, true); 20]);
        assert!(!after(&outcomes).is_broken());
        outcomes.extend([(false, true); 2]);
        assert!(after(&outcomes).is_broken());
        outcomes.extend([(false, true); 100]);
        assert!(after(&outcomes).part() < 0.05);
        outcomes.extend([(true, false); 3]);
        assert!(after(&outcomes).is_broken());
        outcomes.push((true, false));
        assert!(!after(&outcomes).is_broken());
    }

    #[test]
    fn requests_that_hold_an_eighth_of_the_slots_unanswered_break_a_type_until_the_next_answer() {
        let mut delivery = after(&[(true, false); 100]);
        let silent = |delivery: &mut Delivery, count| {
            let mut sums = Sums::default();
            (0..count).for_each(|_| sums.silent());
            delivery.add(&sums);
            delivery.step(101.0, 40.0);
        };
        silent(&mut delivery, 4);
        assert!(!delivery.is_broken());
        silent(&mut delivery, 1);
        assert!(delivery.is_broken());
        let mut late = Sums::default();
        late.answered(1.0);
        delivery.add(&late);
        delivery.step(102.0, 40.0);
        assert!(!delivery.is_broken());
    }

    #[test]
    fn errors_that_come_at_once_deliver_nothing_and_hold_no_slot() {
        let failing = after(&[(false, false); 50]);
        assert!(!failing.is_broken());
        assert_eq!(failing.part(), LEAST);
    }

    #[test]
    fn slot_time_is_that_of_answers_and_of_errors() {
        let mut delivery = Delivery::default();
        for error in [true, false, false, false].repeat(20) {
            let mut sums = Sums::default();
            sums.outcome(!error, false);
            if error {
                sums.beyond(0.03, true);
            }
            delivery.add(&sums);
            delivery.step(0.0, 16.0);
        }
        assert!(
            (delivery.slot_time(0.02) - 0.0225).abs() < 1e-3,
            "{delivery:?}"
        );
        assert!((delivery.slot_time(0.0) - 0.0075).abs() < 1e-3);
    }

    #[test]
    fn timeouts_of_what_hung_before_a_type_was_well_again_cost_nothing() {
        let mut delivery = after(&[(false, true), (true, false)]);
        assert!(delivery.recovers());
        for _ in 0..8 {
            let mut sums = Sums::default();
            sums.outcome(true, false);
            sums.beyond(3.0, false);
            delivery.add(&sums);
            delivery.step(2.0, 16.0);
        }
        assert_eq!(delivery.slot_time(0.02), 0.02);
    }

    #[test]
    fn late_answers_now_and_then_change_nothing() {
        let outcomes: Vec<_> = (0..1_000).map(|n| (n % 8 != 0, n % 8 == 0)).collect();
        let delivery = after(&outcomes);
        assert_eq!(delivery.part(), 1.0);
        assert!(!delivery.is_broken());
    }

    #[test]
    fn the_first_requests_after_a_long_time_are_not_forgotten_while_they_are_silent() {
        let mut delivery = Delivery::default();
        for secs in [1_000.0, 1_000.1] {
            let mut sums = Sums::default();
            sums.silent();
            delivery.add(&sums);
            delivery.step(secs, 16.0);
        }
        assert!(delivery.is_broken());
    }

    #[test]
    fn a_type_without_traffic_is_forgotten() {
        let mut delivery = after(&[(false, true); 10]);
        delivery.step(30.0, 16.0);
        assert!(delivery.is_broken());
        delivery.step(80.0, 16.0);
        assert!(delivery.is_new());
    }

    #[test]
    fn probes_are_one_at_least_and_more_while_they_do_not_come_back() {
        assert_eq!(probes(2.0, 1.5, 10.0), 1.0);
        assert_eq!(probes(8.0, 4.4, 0.0), 1.0);
        assert_eq!(probes(8.0, 4.4, 2.0), 2.0);
        assert_eq!(probes(100.0, 4.4, 2.0), 3.0);
        assert_eq!(probes(100.0, 90.0, 0.0), 11.0);
    }

    #[test]
    fn a_worker_that_reports_no_more_counts_no_more() {
        let mut held = Vec::new();
        assert!(report(&mut held, 1, 0.0, [(0, 2), (1, 0)].into_iter()));
        assert!(report(&mut held, 2, 1.0, [(0, 3)].into_iter()));
        assert_eq!(elsewhere(&held, 2, 0), 2);
        assert_eq!(elsewhere(&held, 3, 0), 5);
        assert_eq!(elsewhere(&held, 3, 1), 0);
        report(&mut held, 2, 4.0, [(0, 1)].into_iter());
        assert_eq!(elsewhere(&held, 3, 0), 1);
        assert!(report(&mut held, 2, 4.5, std::iter::empty()));
        assert!(!report(&mut held, 2, 5.0, std::iter::empty()));
    }
}
