//! The shaping rate limiter (Wisp §4.1, §4.3): requests of each workflow pass at its rate σ, in
//! order of arrival, over all workers of a process.
//!
//! Requests draw *tickets*: consecutive numbers from one gauge of the process per workflow. The
//! rate issues numbers, too, and a request may go when the rate has reached its number:
//!
//! ```text
//! level(t) = tickets(t0) + σ · (t − t0)          request n may go when n ≤ level(t)
//! wait(n)  = (n − level(t)) / σ
//! ```
//!
//! Each run of Algorithm 1 publishes (t0, tickets(t0), σ), so a new rate also holds for waiting
//! requests. Since numbers are drawn process-wide, no more than σ·t requests go in the long run,
//! and no worker has a share of its own that others could use better. A worker that dies only loses
//! its waiters' numbers.
//!
//! **Burst.** A workflow that sent less than its rate finds at most `max(1, σ · `[`BURST`]`)`
//! numbers left over. So in any time t at most `σ·t + max(1, σ·BURST)` requests go, plus waiters of
//! other ticks: ticks release them ([`FAST_TICK`]), up to a tick late and several at
//! once. Two workers that find the workflow idle at the same instant may both fill it up again: one
//! request more for each worker.
//!
//! **Numbers aren't lost.** A request that leaves the queue leaves its number to those behind it on
//! its worker, and the last number is kept for the next request, until it would exceed the burst.

use std::collections::VecDeque;
use std::time::Duration;

use headgate_core::decision::Ticket;
use headgate_core::engine::FAST_TICK;
use headgate_core::host::{HostError, Number, Shared};
use headgate_core::time::Instant;

use super::WorkflowId;

/// The time whose requests an idle workflow may send at once.
pub const BURST: Duration = Duration::from_millis(20);
/// The longest time after which a refused client should retry, however low the rate.
const LONGEST: Duration = Duration::from_secs(60);

/// The rate of a workflow and its start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// t0.
    pub at: Instant,
    /// Numbers issued until then.
    pub tickets: f64,
    /// σ, requests/s: finite, 0 or more.
    pub rate: f64,
}

impl Level {
    /// Numbers issued until `now`.
    #[must_use]
    pub fn reached(&self, now: Instant) -> f64 {
        self.tickets + self.rate * now.since(self.at).as_secs_f64()
    }

    /// Numbers that an idle workflow finds left over.
    #[must_use]
    pub fn burst(&self) -> f64 {
        (self.rate * BURST.as_secs_f64()).max(1.0)
    }

    /// Time from `now` until `ticket` is reached.
    fn wait(&self, now: Instant, ticket: f64) -> Duration {
        let ahead = ticket - self.reached(now);
        if ahead <= 0.0 {
            return Duration::ZERO;
        }
        // A rate of nothing never gets there.
        Duration::try_from_secs_f64(ahead / self.rate).map_or(LONGEST, |wait| wait.min(LONGEST))
    }
}

/// The limiter's decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may pass.
    Pass,
    /// It would wait this long: [`Limiter::hold`] it.
    Wait(Duration),
    /// So many wait already that it would wait this long.
    Full(Duration),
    /// It would wait this long, longer than it tolerates.
    Late(Duration),
}

/// The outcome of a request that was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It passes, after this wait.
    Pass(Duration),
    /// The rate fell: it would have to wait this much longer, which is too long.
    Late(Duration),
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    request: Ticket,
    arrived: Instant,
    /// The time at which waiting becomes pointless.
    until: Instant,
}

#[derive(Debug, Default)]
struct Line {
    level: Option<Level>,
    gauge: Option<Number>,
    waiters: VecDeque<Waiter>,
    /// Numbers of the waiters, ascending, and behind them those that leavers left.
    tickets: VecDeque<u64>,
}

impl Line {
    /// Returns the first number that belongs to no waiter and is above `oldest`.
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
pub struct Limiter {
    prefix: String,
    /// By workflow.
    lines: Vec<Line>,
    held: usize,
}

impl Limiter {
    /// Creates a limiter without limits. Names of gauges start with `prefix`.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            lines: Vec::new(),
            held: 0,
        }
    }

    /// Requests that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    fn line(&mut self, workflow: WorkflowId) -> &mut Line {
        let at = usize::from(workflow.0);
        if at >= self.lines.len() {
            self.lines.resize_with(at + 1, Line::default);
        }
        &mut self.lines[at]
    }

    /// Sets the rate of a workflow from now on; `None` for no limit.
    pub fn set(&mut self, workflow: WorkflowId, level: Option<Level>) {
        if level.is_some() || usize::from(workflow.0) < self.lines.len() {
            self.line(workflow).level = level;
        }
    }

    /// Returns the rate of a workflow; `None` for no limit.
    #[must_use]
    pub fn level(&self, workflow: WorkflowId) -> Option<Level> {
        self.lines.get(usize::from(workflow.0))?.level
    }

    /// The last number that was drawn.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn drawn(&mut self, host: &impl Shared, workflow: WorkflowId) -> Result<f64, HostError> {
        let gauge = self.gauge(host, workflow)?;
        host.get(gauge).map(|n| n.cast_signed() as f64)
    }

    fn gauge(&mut self, host: &impl Shared, workflow: WorkflowId) -> Result<Number, HostError> {
        if let Some(gauge) = self.line(workflow).gauge {
            return Ok(gauge);
        }
        // By number: names come and go, and numbers are bounded.
        let name = format!("{}.limiter.{}.tickets", self.prefix, workflow.0);
        let gauge = host.number(&name)?;
        self.line(workflow).gauge = Some(gauge);
        Ok(gauge)
    }

    /// Decides about a request that arrives. At most `longest` may wait, and this one for at most
    /// `tolerance`. Without a limit for its workflow no host call is made.
    ///
    /// # Errors
    /// [`HostError`]; let it pass.
    pub fn arrive(
        &mut self,
        host: &impl Shared,
        now: Instant,
        workflow: WorkflowId,
        longest: u32,
        tolerance: Duration,
    ) -> Result<Verdict, HostError> {
        let Some(level) = self.level(workflow) else {
            return Ok(Verdict::Pass);
        };
        let reached = level.reached(now);
        let oldest = reached - level.burst();
        let spare = self.line(workflow).spare(oldest);
        let ticket = match spare {
            Some(ticket) => ticket as f64,
            None => self.draw(host, workflow, oldest)?,
        };
        let wait = level.wait(now, ticket);
        let line = self.line(workflow);
        // Behind the waiters, also when their turn has come.
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

    /// Draws a new number, above `oldest`.
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

    /// Holds the request to which [`Limiter::arrive`] just said [`Verdict::Wait`].
    pub fn hold(
        &mut self,
        workflow: WorkflowId,
        request: Ticket,
        now: Instant,
        tolerance: Duration,
    ) {
        self.held += 1;
        self.line(workflow).waiters.push_back(Waiter {
            request,
            arrived: now,
            until: now + tolerance,
        });
    }

    /// Uses up the number that [`Limiter::arrive`] gave to a request that is not held: it goes on
    /// at once, and others wait for the rate that it uses.
    pub fn use_up(&mut self, workflow: WorkflowId) {
        let line = self.line(workflow);
        let at = line.waiters.len();
        line.tickets.remove(at);
    }

    /// Removes a held request that leaves; false if it isn't held.
    pub fn remove(&mut self, workflow: WorkflowId, request: Ticket) -> bool {
        let Some(line) = self.lines.get_mut(usize::from(workflow.0)) else {
            return false;
        };
        let Some(at) = line.waiters.iter().position(|w| w.request == request) else {
            return false;
        };
        line.waiters.remove(at);
        self.held -= 1;
        true
    }

    /// Releases the requests whose turn it is, and those that would come too late.
    pub fn release(&mut self, now: Instant, mut out: impl FnMut(Ticket, Fate)) {
        if self.held == 0 {
            return;
        }
        for line in self.lines.iter_mut().filter(|l| !l.waiters.is_empty()) {
            let before = line.waiters.len();
            let Line {
                level,
                waiters,
                tickets,
                ..
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
                // Numbers stay: requests behind go earlier by it.
                waiters.retain(|waiter| {
                    let ticket = tickets.get(at).map_or(0.0, |&ticket| ticket as f64);
                    let wait = level.wait(now, ticket);
                    // Requests that would make it but for a tick are kept.
                    let kept = now + wait <= waiter.until + FAST_TICK;
                    if kept {
                        at += 1;
                    } else {
                        out(waiter.request, Fate::Late(wait));
                    }
                    kept
                });
            }
            self.held -= before - line.waiters.len();
        }
    }

    /// Ends all limits and releases all held requests.
    pub fn clear(&mut self, now: Instant, out: impl FnMut(Ticket, Fate)) {
        for line in &mut self.lines {
            line.level = None;
            // Left-over numbers are worth nothing under the next rate.
            line.tickets.truncate(line.waiters.len());
        }
        self.release(now, out);
    }
}

#[cfg(test)]
mod tests;
