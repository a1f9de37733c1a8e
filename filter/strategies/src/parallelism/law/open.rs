//! The open law, which sets no limit until objectives are about to be missed.
//!
//! A proxy that has just started knows neither P nor a service time. If it started with a few slots
//! and added more, requests would wait in front of a backend that has room for all. So the law sets
//! no limit while the backend keeps the objectives without one. Let x be 1 for a response time
//! beyond the last objective of its type (percentile p), else 0:
//!
//! ```text
//! late = mean of x / (1 − p + 0.15)               exponential, over 32 answers of all types
//! late > 1                                        the law closes, with P slots
//! late < 0.4 and less than 0.85 P demanded       the law opens again
//! ```
//!
//! In a sudden overload, requests are late only after the objective has passed. By then the backend
//! would have a queue that takes as long again to drain. So an open law has a ceiling of somewhat
//! more slots than the recently finished work needed. Beyond the ceiling requests wait in the
//! filter, no longer than their last objective. Let N requests be in the backend for a time T at
//! the ceiling, and let W = Σ reference of the requests that ended in T. By Little's law, N T / W
//! is the factor S by which service times are stretched. Service times themselves show S only after
//! the queue has passed. While the backend works on all N requests, the ceiling rises with each
//! answer. The law closes at once if three conditions hold. S > 2 by more than 1.3 standard errors.
//! The requests that ended took more than 1.5 times their references. A request that arrives now
//! would miss the shortest last objective.
//!
//! ```text
//! ceiling = 16 + 2w + 4√w     w as below
//! T ≥ 2 mean pt               for each answer 1 more with S < 2, 0.05 with S > 2
//! (N + waiting) · T / answers > objective, S > 2: the law closes
//! ```
//!
//! No ceiling applies to the first 500 answers, because their references are not reliable, nor
//! until N has been below the ceiling. No ceiling applies while a type is broken either, because
//! its requests hold slots without work.
//!
//! A stream whose tokens come too slowly counts as a second answer, with x / (1 − p + 0.15) + 1 for
//! its objective. The 1 is added because the stream has already counted as one answer in time, at
//! its first byte.
//!
//! An overdue request counts as late before it ends. Broken types don't count. A type without
//! objectives is late at four references. So is a type that nearly misses its last objective with
//! few requests in flight (the reference), because missing the objective says nothing about slots.
//! For streams that are measured at the first byte, this reference is that of the time to the first
//! byte, not of slot times. The number of demanded slots is the mean number of slots in use, plus
//! the slot time per second of requests that were refused because slots were scarce. Both are
//! averaged over 50 answers, but over at least 1 s and at most 5 s.
//!
//! If the law was open for less than 5 s, the backend is overloaded without a limit. Then the law
//! opens again only while less than 10% of the demanded slot time is refused. If the law was open
//! for longer, conditions have changed (such as the start or end of a fault), so this bound doesn't
//! apply.
//!
//! By Little's law, the references of requests that end within a second add up to the number of
//! working slots:
//!
//! ```text
//! w = Σ reference / elapsed     over about 0.3 s; the maximum of the last 10 s
//! P = w + √w                    at least 3, at most N/2 with N requests in flight, or w
//! ```
//!
//! Time in which nothing is in the backend doesn't count. Otherwise w would be close to 0 in the
//! first burst after an idle time, in which the law may close. For the same reason, of more than a
//! second without an answer only the end counts: the service time of the requests that are answered
//! next, or about 0.1 s if that is longer. A stream or a request that hangs may be in the backend
//! all night, and all answers may be errors for minutes. T leaves out the same time.
//!
//! With fewer than 2 w requests in flight, concurrency is not the cause of late answers. The cause
//! may be an endpoint that hangs.
//!
//! If a P at rest was found before the law opened, the law closes with that P. If the backend has
//! grown since, w may be higher, and the law closes with w. P is at most N. If fewer than 100
//! answers were measured, references are not reliable, and a [`start`](super::start) with few slots
//! follows. In all cases the search for the knee continues from there.
//!
//! Histograms omit the service time of a request if more than 2 w slots were in use. Later
//! decisions are made with a limit, so such a service time is not representative.
//!
//! A dry run holds no requests, so its law only closes and opens.

use super::start::FIRST;
use super::{AtCeiling, CONFIDENCE, Law, Limit, STRETCHED, View, add, reach_at_first};
use crate::time::{Instant, nanos};

/// The weight of the latest answer.
const GAIN: f64 = 1.0 / 32.0;
/// The values of `late` above which the law closes, and below which it may open.
const LATE: (f64, f64) = (1.0, 0.4);
/// The law opens only if less than this part of P is demanded.
const ROOM: f64 = 0.85;
/// The part of the demanded slot time that may be refused. This bound doesn't apply if the law was
/// open for at least [`LONG`].
const SHED: f64 = 0.1;
/// The time from which an open law counts as open for long, s.
const LONG: f64 = 5.0;
/// The shortest and the longest time over which the demanded slots are averaged, s. Within these
/// bounds, the time covers [`CALM_ANSWERS`] answers.
const CALM: (f64, f64) = (1.0, 5.0);
const CALM_ANSWERS: f64 = 50.0;
/// The number of answers below which references are not reliable.
const FEW_ANSWERS: f64 = 100.0;
/// The time over which ended work is averaged, s.
const WATCHED: f64 = 0.3;
/// The time constant with which maxima decay, s.
const FORGET: f64 = 10.0;
/// The highest P when the law closes, as a part of the requests in flight, unless the working slots
/// are more.
const MOST: f64 = 0.5;
/// The part of the ceiling from which the ceiling counts as reached.
const FULL: f64 = 0.8;
/// The least time at the ceiling before the law judges whether requests wait in the backend, as a
/// multiple of the mean service time.
const TURNS: f64 = 2.0;
/// The number of slots that may be in use in addition to those that follow from the work.
const CEILING: f64 = 16.0;
/// The number of answers from which references are reliable enough for a ceiling.
const WARM: f64 = 500.0;
/// The value of S from which requests are assumed to wait in the backend.
const STRETCH: f64 = 2.0;
/// The least number of samples with which S may close the law.
const ENOUGH: f64 = 16.0;
/// The number of slots by which the ceiling rises for each answer with S > 2.
const SLOWLY: f64 = 0.05;
/// The least time over which ended work is measured, s.
const LEAST_WATCHED: f64 = 0.1;
/// The time without an answer beyond which only its end counts, s.
const PAUSE: f64 = 1.0;
/// The least number of slots that count as working.
const LEAST: f64 = 3.0;

impl Law {
    /// Whether the number of slots is unlimited.
    pub fn is_open(&self) -> bool {
        self.limit == Limit::Open
    }

    /// Returns the number of working slots. It is P, or without a limit the recent maximum of ended
    /// work.
    pub fn working(&self) -> f64 {
        if self.is_open() {
            self.peak.max(LEAST)
        } else {
            self.base
        }
    }

    /// Returns P as far as it is known. Without a limit, returns the P that was found before, or
    /// the recent maximum of slots in use if that is higher. If no P was found, returns twice that
    /// maximum, so that an autoscaler that uses the part of slots in use finds room.
    pub fn known(&self) -> u32 {
        if !self.is_open() {
            return self.slots();
        }
        let known = self.found.map(|found| found.max(self.base));
        known.unwrap_or(2.0 * self.base) as u32
    }

    /// Adds answers, given as the number of samples, the number of answers, and Σ x. The averages
    /// cover a number of samples, because a single sample may count for many answers.
    pub(super) fn answered(&mut self, [samples, answers, late]: [f64; 3]) {
        self.answers += samples;
        if answers > 0.0 {
            let weight = 1.0 - (1.0 - GAIN).powf(samples);
            self.late += weight * (late / answers - self.late);
        }
    }

    /// Closes an open law when objectives are about to be missed.
    pub(super) fn watch(&mut self, now: Instant, view: &View) {
        let is_full = self
            .ceiling
            .is_some_and(|ceiling| view.in_flight + 1.0 >= ceiling);
        let secs = elapsed(now, self.watched_since);
        let none_ended = self.times[0] <= 0.0;
        let is_empty = none_ended && view.in_flight <= 0.0 && secs > LEAST_WATCHED;
        let is_idle = none_ended && view.in_flight <= self.base && !is_empty;
        let unread = elapsed(now, self.looked);
        if is_idle && !is_full && !view.broken {
            if secs > PAUSE && unread > LEAST_WATCHED {
                self.looked = now;
            }
            return;
        }
        self.watched_since = self.watched_since.max(now);
        self.looked = self.looked.max(now);
        let fade = (-secs / WATCHED).exp();
        let times = std::mem::take(&mut self.times);
        let [_, pt, reference, _, squares] = times;
        // The mean is weighted by the times, so that one long request counts among many.
        let lasted = if pt > 0.0 { squares / pt } else { 0.0 };
        let lasted = lasted.max(view.mean);
        let counted = if is_empty {
            0.0
        } else if secs > PAUSE {
            secs.min(unread.max(lasted))
        } else {
            secs
        };
        self.work = fade * self.work + reference;
        self.watched = fade * self.watched + counted;
        self.peak *= (-secs / FORGET).exp();
        if self.watched > LEAST_WATCHED {
            self.peak = self.peak.max(self.work / self.watched);
        }
        let most = view.in_flight.max(self.base * (-secs / FORGET).exp());
        self.base = most.clamp(f64::from(view.bounds.0.max(1)), f64::from(view.bounds.1));
        let overflows = self.overflows((secs, counted), times, view);
        if is_empty || !overflows && self.late <= LATE.0 {
            return;
        }
        let (limit, target) = if let Some(found) = self.found {
            (Limit::Closed, found.max(self.peak).min(view.in_flight))
        } else if self.answers < FEW_ANSWERS && view.enforced {
            (Limit::Starting, FIRST)
        } else {
            let most = (MOST * view.in_flight).max(self.peak);
            let working = self.peak + self.peak.sqrt();
            (Limit::Closed, working.min(most).max(LEAST))
        };
        (self.limit, self.late, self.looked) = (limit, 0.0, now);
        self.lasted = elapsed(now, self.opened);
        (self.work, self.watched, self.shed) = (0.0, 0.0, 0.0);
        (self.reach, self.resting, self.run) = (reach_at_first(target), false, 0);
        // The schedule is for the service times of requests within the limit (Little's law).
        let mean = view.mean * (target / view.in_flight).min(1.0);
        self.go(target.ceil(), now, &View { mean, ..*view });
    }

    /// Returns the number of slots that may be in use while the law is open.
    pub(super) fn ceiling(&self, (least, most): (u32, u32)) -> u32 {
        let ceiling = self.ceiling.map(|ceiling| ceiling as u32);
        ceiling.map_or(most, |ceiling| ceiling.clamp(least.max(1).min(most), most))
    }

    /// Moves the ceiling, `secs` after the last move, of which `counted` are no pause, with the
    /// `times` of requests that ended since then. Returns whether an arrival would miss its
    /// objective because requests wait in the backend.
    fn overflows(&mut self, (secs, counted): (f64, f64), times: [f64; 5], view: &View) -> bool {
        if self.answers < WARM || view.broken || !view.enforced {
            self.ceiling = None;
            return false;
        }
        let usual = CEILING + 2.0 * self.peak + 4.0 * self.peak.sqrt();
        if self.ceiling.is_none() && view.in_flight >= FULL * usual {
            return false;
        }
        let faded = self.ceiling.unwrap_or(0.0) * (-secs / FORGET).exp();
        let ceiling = self.ceiling.insert(usual.max(faded));
        if view.in_flight < FULL * *ceiling {
            self.at_ceiling = None;
            if view.mean > 0.0 {
                self.turn = view.mean;
            }
            return false;
        }
        let Some(AtCeiling { secs: full, ended }) = &mut self.at_ceiling else {
            // The time until the ceiling was reached doesn't count, and neither does the work that
            // ended in that time.
            self.at_ceiling = Some(AtCeiling::default());
            return false;
        };
        *full += counted;
        add(ended, times);
        let (full, [answers, pt, work, doubt, squares]) = (*full, *ended);
        if full < TURNS * self.turn {
            return false;
        }
        let expected = view.in_flight * full / STRETCH;
        if work > expected {
            *ceiling += answers;
            self.at_ceiling = Some(AtCeiling::default());
            return false;
        }
        let error = doubt + CONFIDENCE * squares.sqrt() * work / pt.max(work);
        // Requests that hang or take long hold slots, but they don't slow down the requests that
        // end.
        let surely = work + error < expected && pt > STRETCHED * work;
        let response = (view.in_flight + view.queued) * full / answers.max(1.0);
        if answers >= ENOUGH && surely && response > view.shortest {
            return true;
        }
        // A backend that has become slower as a whole still needs more slots, so the ceiling rises
        // slowly.
        *ceiling += SLOWLY * times[0];
        false
    }

    /// Opens the law if its limit is no longer needed. Returns whether it opened.
    pub(super) fn reopen(&mut self, now: Instant, view: &View) -> bool {
        let secs = elapsed(now, self.looked);
        self.looked = now;
        self.watched += secs;
        self.work += secs * view.in_flight;
        let filled = CALM_ANSWERS / (1e9 * self.rate).max(1.0);
        if self.watched < filled.clamp(CALM.0, CALM.1) {
            return false;
        }
        let asked = (self.work + self.shed) / self.watched;
        let sheds = self.shed > SHED * (self.work + self.shed);
        (self.work, self.watched, self.shed) = (0.0, 0.0, 0.0);
        if sheds && self.lasted < LONG || asked >= ROOM * self.base || self.late >= LATE.1 {
            return false;
        }
        if self.resting {
            self.found = Some(self.base);
        }
        self.lift(now, view);
        true
    }

    /// Opens the law.
    pub(super) fn lift(&mut self, now: Instant, view: &View) {
        (self.limit, self.late, self.opened) = (Limit::Open, 0.0, now);
        (self.work, self.watched) = (0.0, 0.0);
        // The backend has served this many requests at once.
        self.peak = self.base;
        (self.ceiling, self.at_ceiling) = (None, None);
        (self.resting, self.run, self.jump) = (false, 0, None);
        self.go(self.base, now, view);
    }
}

/// Returns the time from `then` to `now`, s.
fn elapsed(now: Instant, then: Instant) -> f64 {
    nanos(now.since(then)) as f64 / 1e9
}
