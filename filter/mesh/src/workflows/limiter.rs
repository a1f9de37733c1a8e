//! The shaping rate limiter (Wisp §4.1, §4.3). Over all workers of a process, the requests of each
//! workflow pass at the workflow's rate σ, in order of arrival.
//!
//! Requests draw *tickets*, which are consecutive numbers from a gauge that the process has for
//! each workflow. The rate advances a level, and a request may go when the level has reached its
//! number:
//!
//! ```text
//! level(t) = tickets(t0) + σ · (t − t0)          request n may go when n ≤ level(t)
//! wait(n)  = (n − level(t)) / σ
//! ```
//!
//! Each run of Algorithm 1 publishes (t0, tickets(t0), σ), so a new rate also applies to waiting
//! requests. Since numbers are drawn process-wide, no more than σ·t requests pass in the long run,
//! and no worker reserves a share that other workers could use. If a worker dies, only the numbers
//! of its waiters are lost.
//!
//! **Burst.** A workflow that sent less than its rate has at most `max(1, σ · `[`BURST`]`)` unused
//! numbers. So in any time t, at most `σ·t + max(1, σ·BURST)` requests pass, plus waiters that are
//! released late. Ticks ([`FAST_TICK`]) release waiters up to a tick late, and several at once. If
//! two workers see an idle workflow at the same instant, both may reset its number. One more
//! request then passes for each worker.
//!
//! **Numbers aren't lost.** When a request leaves the queue, its number passes to the request
//! behind it on its worker. The last number is kept for the next request until the burst no longer
//! covers the number.

use std::collections::VecDeque;
use std::time::Duration;

use headgate_core::decision::Ticket;
use headgate_core::engine::FAST_TICK;
use headgate_strategies::host::{HostError, Number, Shared};
use headgate_strategies::time::Instant;
use serde::{Deserialize, Serialize};

use super::WorkflowId;

/// The time in which the rate admits as many requests as an idle workflow may send in a burst.
pub(crate) const BURST: Duration = Duration::from_millis(20);
/// The longest time after which a refused client should retry, for any rate.
const LONGEST: Duration = Duration::from_secs(60);

/// The rate of a workflow, and the level at its start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Level {
    /// t0, the start of the rate.
    pub(crate) at: Instant,
    /// The level at `at`.
    pub(crate) tickets: f64,
    /// σ, the rate, requests/s. It is finite, and 0 or more.
    pub(crate) rate: f64,
}

impl Level {
    /// Returns the level at `now`.
    pub(crate) fn reached(&self, now: Instant) -> f64 {
        self.tickets + self.rate * now.since(self.at).as_secs_f64()
    }

    /// Returns the number of unused tickets that an idle workflow keeps.
    pub(crate) fn burst(&self) -> f64 {
        (self.rate * BURST.as_secs_f64()).max(1.0)
    }

    /// Returns the time from `now` until the level reaches `ticket`, at most [`LONGEST`].
    fn wait(&self, now: Instant, ticket: f64) -> Duration {
        let ahead = ticket - self.reached(now);
        if ahead <= 0.0 {
            return Duration::ZERO;
        }
        // At a rate of 0, the quotient is infinite and no valid duration.
        Duration::try_from_secs_f64(ahead / self.rate).map_or(LONGEST, |wait| wait.min(LONGEST))
    }
}

/// The limiter's decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The request may pass.
    Pass,
    /// The request would wait this long. The caller must call [`Limiter::hold`] or
    /// [`Limiter::use_up`].
    Wait(Duration),
    /// Too many requests wait. The request would wait this long.
    Full(Duration),
    /// The request would wait this long, which is longer than its tolerance.
    Late(Duration),
}

/// The outcome of a held request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The request passes, after this wait.
    Pass(Duration),
    /// The request is refused, because the rate fell. It would wait this much longer, beyond its
    /// tolerance.
    Late(Duration),
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    request: Ticket,
    arrived: Instant,
    /// The time until which the request may wait.
    until: Instant,
}

#[derive(Debug, Default)]
struct Line {
    gauge: Option<Number>,
    waiters: VecDeque<Waiter>,
    /// The numbers of the waiters, ascending, followed by the unused numbers of requests that left.
    tickets: VecDeque<u64>,
}

impl Line {
    /// Returns the first unused number above `oldest`. Drops the unused numbers up to `oldest`.
    fn spare(&mut self, oldest: f64) -> Option<u64> {
        let at = self.waiters.len();
        while let Some(&ticket) = self.tickets.get(at) {
            if ticket as f64 > oldest {
                return Some(ticket);
            }
            self.tickets.remove(at);
        }
        None
    }
}

/// The limiter, on one worker.
#[derive(Debug)]
pub(crate) struct Limiter {
    prefix: String,
    /// The lines by workflow.
    lines: Vec<Line>,
}

impl Limiter {
    /// Creates a limiter. Names of gauges start with `prefix`.
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            lines: Vec::new(),
        }
    }

    /// Returns the number of held requests.
    pub(crate) fn held(&self) -> usize {
        self.lines.iter().map(|line| line.waiters.len()).sum()
    }

    fn line(&mut self, workflow: WorkflowId) -> &mut Line {
        let at = usize::from(workflow.0);
        if at >= self.lines.len() {
            self.lines.resize_with(at + 1, Line::default);
        }
        &mut self.lines[at]
    }

    /// Returns the last number that was drawn.
    ///
    /// # Errors
    /// [`HostError`].
    pub(crate) fn drawn(
        &mut self,
        host: &impl Shared,
        workflow: WorkflowId,
    ) -> Result<f64, HostError> {
        let gauge = self.gauge(host, workflow)?;
        host.get(gauge).map(|n| n.cast_signed() as f64)
    }

    fn gauge(&mut self, host: &impl Shared, workflow: WorkflowId) -> Result<Number, HostError> {
        if let Some(gauge) = self.line(workflow).gauge {
            return Ok(gauge);
        }
        // The gauge is named by id, because names of workflows are unbounded, but ids are bounded.
        let name = format!("{}.limiter.{}.tickets", self.prefix, workflow.0);
        let gauge = host.number(&name)?;
        self.line(workflow).gauge = Some(gauge);
        Ok(gauge)
    }

    /// Decides on an arriving request of a workflow with this level. At most `longest` requests may
    /// wait, and the arriving request may wait for at most `tolerance`.
    ///
    /// # Errors
    /// [`HostError`]. The caller then lets the request pass.
    pub(crate) fn arrive(
        &mut self,
        host: &impl Shared,
        now: Instant,
        (workflow, level): (WorkflowId, &Level),
        longest: u32,
        tolerance: Duration,
    ) -> Result<Verdict, HostError> {
        let reached = level.reached(now);
        let oldest = reached - level.burst();
        let spare = self.line(workflow).spare(oldest);
        let ticket = match spare {
            Some(ticket) => ticket as f64,
            None => self.draw(host, workflow, oldest)?,
        };
        let wait = level.wait(now, ticket);
        let line = self.line(workflow);
        // A new request queues behind waiters, even if their numbers have been reached.
        if line.waiters.is_empty() && ticket <= reached {
            if spare.is_some() {
                line.tickets.pop_front();
            }
            return Ok(Verdict::Pass);
        }
        let verdict =
            if ticket - reached > f64::from(longest) || line.waiters.len() >= longest as usize {
                Verdict::Full(wait)
            } else if wait > tolerance {
                Verdict::Late(wait)
            } else {
                if spare.is_none() {
                    let least = line.tickets.back().copied().unwrap_or(0);
                    line.tickets.push_back(least.max(ticket as u64));
                }
                return Ok(Verdict::Wait(wait));
            };
        if spare.is_none() {
            let gauge = self.gauge(host, workflow)?;
            host.add_to(gauge, -1)?;
        }
        Ok(verdict)
    }

    /// Draws a new number. The number is above `oldest`.
    fn draw(
        &mut self,
        host: &impl Shared,
        workflow: WorkflowId,
        oldest: f64,
    ) -> Result<f64, HostError> {
        let gauge = self.gauge(host, workflow)?;
        host.add_to(gauge, 1)?;
        let drawn = host.get(gauge)?.cast_signed() as f64;
        if drawn > oldest {
            return Ok(drawn);
        }
        let least = oldest.floor() + 1.0;
        host.set(gauge, least.max(0.0) as u64)?;
        Ok(least)
    }

    /// Holds the request for which [`Limiter::arrive`] just returned [`Verdict::Wait`].
    pub(crate) fn hold(
        &mut self,
        workflow: WorkflowId,
        request: Ticket,
        now: Instant,
        tolerance: Duration,
    ) {
        self.line(workflow).waiters.push_back(Waiter {
            request,
            arrived: now,
            until: now + tolerance,
        });
    }

    /// Uses up the number that [`Limiter::arrive`] gave to a request that is not held. The request
    /// continues at once and counts against the rate, so later requests wait longer.
    pub(crate) fn use_up(&mut self, workflow: WorkflowId) {
        let line = self.line(workflow);
        let at = line.waiters.len();
        line.tickets.remove(at);
    }

    /// Removes a held request that leaves. Returns false if the request isn't held.
    pub(crate) fn remove(&mut self, workflow: WorkflowId, request: Ticket) -> bool {
        let Some(line) = self.lines.get_mut(usize::from(workflow.0)) else {
            return false;
        };
        let Some(at) = line.waiters.iter().position(|w| w.request == request) else {
            return false;
        };
        line.waiters.remove(at);
        true
    }

    /// Releases the held requests whose numbers are reached, and refuses the held requests that
    /// would wait beyond their tolerance. `level` returns the level of a workflow, or `None` for no
    /// limit.
    pub(crate) fn release(
        &mut self,
        now: Instant,
        level: impl Fn(WorkflowId) -> Option<Level>,
        mut out: impl FnMut(Ticket, Fate),
    ) {
        let lines = (0..).map(WorkflowId).zip(&mut self.lines);
        for (workflow, line) in lines.filter(|(_, line)| !line.waiters.is_empty()) {
            let level = level(workflow);
            let Line {
                waiters, tickets, ..
            } = line;
            while let Some(first) = waiters.front() {
                let due = match (&level, tickets.front()) {
                    (Some(level), Some(&ticket)) => ticket as f64 <= level.reached(now),
                    _ => true,
                };
                if !due {
                    break;
                }
                out(first.request, Fate::Pass(now.since(first.arrived)));
                waiters.pop_front();
                tickets.pop_front();
            }
            if let Some(level) = level {
                let mut at = 0;
                // The numbers of refused requests stay, so the requests behind them move forward.
                waiters.retain(|waiter| {
                    let ticket = tickets.get(at).map_or(0.0, |&ticket| ticket as f64);
                    let wait = level.wait(now, ticket);
                    // A request stays if it would exceed its tolerance by no more than a tick.
                    let kept = now + wait <= waiter.until + FAST_TICK;
                    if kept {
                        at += 1;
                    } else {
                        out(waiter.request, Fate::Late(wait));
                    }
                    kept
                });
            }
        }
    }

    /// Releases all held requests.
    pub(crate) fn clear(&mut self, now: Instant, out: impl FnMut(Ticket, Fate)) {
        for line in &mut self.lines {
            // Unused numbers are meaningless under the next rate.
            line.tickets.truncate(line.waiters.len());
        }
        self.release(now, |_| None, out);
    }
}

#[cfg(test)]
mod tests;
