//! One token bucket for all workers, without a host call at a decision (SEDA §3.2: "the rate at
//! which new tokens are generated in a token bucket").
//!
//! The bucket's level is in the shared record. At its tick, every worker subtracts the tokens that
//! it spent since its last tick. Between ticks it decides by the level that it read at its last
//! tick. Let `s` be the worker's share of the controller's recent arrivals, `L` the level that it
//! read, `D` the depth, `r` the rate and `t` the time since the tick. Then the worker may spend
//!
//! ```text
//! s·r·t + L·(s + (1 − s)·L/D)      0 ≤ L ≤ D
//! s·r·t + s·L                      L < 0
//! ```
//!
//! but never more than `D`. While the bucket is full, any worker may spend all of it. The emptier
//! the bucket is, the more strictly it is divided by shares, which sum up to 1. If several workers
//! spend more tokens at once, these are subtracted nevertheless: the level falls below zero, and
//! the workers wait. So the rate is kept on average for any distribution of arrivals. A single
//! worker (`s = 1`) has exactly the paper's bucket.
//!
//! `s` is a ratio of sums of arrivals. The weight of an arrival falls by a factor of e in
//! [`FORGET`]. So a worker that suddenly gets all requests has two thirds of the rate one slow tick
//! later. Without arrivals, the shares stay.
//!
//! **The depth** is 1 + r·[`SLACK`]. The paper gives no depth. A token can't be spent in parts, and
//! tokens that accrue between the ticks of two workers need room. Without that room, the rate would
//! not be reached. A larger depth would only admit bursts that the rate should prevent.

use std::time::Duration;

use super::record::Controller;
use crate::time::Instant;

/// The time in which an arrival's weight falls by a factor of e, s. It is the length of a slow
/// tick.
const FORGET: f64 = 0.05;
/// The time whose tokens the bucket holds in addition to one token, s. It is the length of two slow
/// ticks.
const SLACK: f64 = 0.1;

/// Returns D, the number of tokens that the bucket holds at `rate`.
pub(super) fn depth(rate: f64) -> f64 {
    1.0 + rate * SLACK
}

/// A worker's part of the bucket.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// r, the rate at which tokens accrue, requests/s.
    rate: f64,
    /// s, this worker's share of the bucket, ratio.
    share: f64,
    /// The tokens that this worker may spend, as of `at`.
    level: f64,
    at: Option<Instant>,
    /// The time at which this worker last read the record while it had no unbooked counts, s.
    seen: f64,
    /// The spent tokens that are not in the record yet. The number is negative if more tokens were
    /// given back.
    spent: f64,
    /// The arrivals that are not in the record yet.
    arrived: u32,
    /// The refusals that are not in the record yet.
    refused: u32,
    /// The answers that are not in the record yet.
    answered: f64,
    /// The number of late ones of these answers less the number of the others.
    late: f64,
    /// This worker's part of [`Controller::arrivals`], as of `booked`.
    own: f64,
    /// The time of the last booking, s.
    booked: f64,
    /// The values of `own` and `booked` after the record is stored.
    next: (f64, f64),
}

impl Bucket {
    /// Creates a full bucket that belongs to this worker alone.
    pub(super) fn new(rate: f64) -> Self {
        Self {
            rate,
            share: 1.0,
            level: depth(rate),
            ..Self::default()
        }
    }

    /// Counts `answers` answers. `late` is true if all of them are late, and false if none is.
    pub(super) fn answered(&mut self, answers: u32, late: bool) {
        let answers = f64::from(answers);
        self.answered += answers;
        self.late += if late { answers } else { -answers };
    }

    /// Counts an arrival and takes a token for it. Returns whether there was a token.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        self.arrived = self.arrived.saturating_add(1);
        self.accrue(now);
        let taken = self.level >= 1.0;
        if taken {
            self.level -= 1.0;
            self.spent += 1.0;
        } else {
            self.refused = self.refused.saturating_add(1);
        }
        taken
    }

    /// Gives back a token that is not needed.
    pub(super) fn give_back(&mut self) {
        self.level += 1.0;
        self.spent -= 1.0;
    }

    /// Returns the time until the process has a token again, for the request that was just refused.
    pub(super) fn next_token(&self) -> Duration {
        Duration::try_from_secs_f64((1.0 - self.level) / self.rate).unwrap_or_default()
    }

    /// Whether this worker has tokens, arrivals, refusals or answers that are not in the record
    /// yet.
    pub(super) fn has_news(&self) -> bool {
        self.arrived > 0 || self.refused > 0 || self.answered > 0.0 || self.spent != 0.0
    }

    /// Advances the shared accounts to `now` and adds this worker's counts. The counts stay on this
    /// worker until [`Bucket::stored`].
    pub(super) fn book(&mut self, now: Instant, shared: &mut Controller) {
        let now = now.as_secs_f64();
        let elapsed = (now - shared.accounted).max(0.0);
        let full = depth(shared.rate);
        // When this worker last read the record, the level was capped before the tokens were
        // subtracted that this worker has spent since.
        let before = (self.seen - shared.accounted).clamp(0.0, elapsed);
        let level = (shared.level + shared.rate * before).min(full) - self.spent;
        shared.level = (level + shared.rate * (elapsed - before)).min(full);
        shared.arrivals = faded(shared.arrivals, elapsed) + f64::from(self.arrived);
        shared.refused += f64::from(self.refused);
        shared.answers += self.answered;
        shared.late += self.late;
        shared.accounted = shared.accounted.max(now);
        let own = faded(self.own, now - self.booked) + f64::from(self.arrived);
        self.next = (own, now);
    }

    /// Adopts the shared accounts after [`Bucket::book`].
    pub(super) fn adopt(&mut self, now: Instant, shared: &Controller) {
        // Below this value, both numbers are rounding errors.
        if shared.arrivals > 1e-9 {
            self.share = (self.next.0 / shared.arrivals).clamp(0.0, 1.0);
        }
        let full = depth(shared.rate);
        let drawn = if shared.level < 0.0 {
            self.share
        } else {
            self.share + (1.0 - self.share) * (shared.level / full).min(1.0)
        };
        self.rate = shared.rate;
        self.level = (shared.level * drawn).min(full);
        self.at = Some(now);
        if !self.has_news() {
            self.seen = now.as_secs_f64();
        }
    }

    /// Resets the counts that are in the record now.
    pub(super) fn stored(&mut self) {
        (self.own, self.booked) = self.next;
        self.seen = self.booked;
        self.spent = 0.0;
        self.arrived = 0;
        self.refused = 0;
        self.answered = 0.0;
        self.late = 0.0;
    }

    fn accrue(&mut self, now: Instant) {
        let elapsed = self.at.map_or(Duration::ZERO, |at| now.since(at));
        let more = self.share * self.rate * elapsed.as_secs_f64();
        self.level = (self.level + more).min(depth(self.rate));
        self.at = Some(self.at.map_or(now, |at| at.max(now)));
    }
}

/// Converts a debt of tokens when the rate is lowered. A debt is time that must pass, so its number
/// of tokens falls with the rate.
pub(super) fn carry_debt(shared: &mut Controller, old_rate: f64) {
    if shared.level < 0.0 && shared.rate < old_rate {
        shared.level *= shared.rate / old_rate;
    }
}

fn faded(count: f64, elapsed: f64) -> f64 {
    count * (-elapsed.max(0.0) / FORGET).exp()
}
