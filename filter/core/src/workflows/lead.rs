//! The worker that leads, the one with the lowest number among those alive: once an interval it adds up what all
//! workers measured, runs Algorithm 1, and publishes the rates for all of them.
//!
//! Whoever leads next goes on where this one stopped: the state of the adaptation is published beside the
//! rates, and what is measured while nobody leads waits in the mailboxes. Two that lead at the same time, for the
//! moment that it takes the second to notice, each count what they collected; the second finds that the interval
//! was closed just now, and waits for the next.

use std::time::Duration;

use super::adaptation::{Adaptation, Calls, Heard, Interval, Measured, UpstreamDemand};
use super::limiter::{Level, Limiter};
use super::names::Directory;
use super::published::{Published, Row};
use super::stats::{ProcessCount, WorkflowStats};
use super::tally::Tally;
use super::{OTHER, OTHER_NAME, ServiceId, WorkflowId};
use crate::config::WorkflowsConfig;
use crate::host::{Host, HostError};
use crate::time::Instant;
use crate::workers::WorkerId;

/// Part of the mean of a new interval in an average over intervals.
const SMOOTHING: f64 = 0.3;
/// An id that no request had for this long is given to another name, if one is waiting for it.
pub(super) const IDLE: Duration = Duration::from_secs(600);
/// Numbers that may be drawn beyond the queue by workers that are about to give them back.
const ON_THE_WAY: f64 = 256.0;

/// Averages of a workflow that Algorithm 1 doesn't need.
#[derive(Debug, Clone, Copy, Default)]
struct Averages {
    /// Service time and work of a request that enters the mesh here, with all calls below, s.
    totals: Option<(f64, f64)>,
    calls: bool,
    /// Its last request; `None` before this worker led.
    used: Option<Instant>,
}

/// What the leader works with.
pub(super) struct Tools<'a> {
    pub(super) config: &'a WorkflowsConfig,
    /// P.
    pub(super) slots: f64,
    pub(super) names: &'a mut Directory,
    pub(super) services: &'a Directory,
    pub(super) limiter: &'a mut Limiter,
    pub(super) stats: &'a mut WorkflowStats,
    pub(super) published: &'a Published,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Lead {
    adaptation: Adaptation,
    /// Revisions of the directories whose names the adaptation has.
    named: Option<(u64, u64)>,
    averages: Vec<Averages>,
    sum: Tally,
    measured: Vec<Measured>,
    calls: Vec<Calls>,
    heard: Vec<Heard>,
    upstream: Vec<UpstreamDemand>,
    /// One more than the highest number of a worker that was seen.
    workers: WorkerId,
}

impl Lead {
    /// Goes on from `state`, if there is one, and what was `published` last.
    pub(super) fn new(
        config: &WorkflowsConfig,
        state: Option<&[u8]>,
        published: &Published,
    ) -> Self {
        let adaptation = state.and_then(|bytes| Adaptation::from_bytes(config, bytes).ok());
        let mut this = Self {
            adaptation: adaptation.unwrap_or_else(|| Adaptation::new(config)),
            named: None,
            averages: Vec::new(),
            sum: Tally::default(),
            measured: Vec::new(),
            calls: Vec::new(),
            heard: Vec::new(),
            upstream: Vec::new(),
            workers: 0,
        };
        for row in &published.rows {
            let averages = this.averages(row.workflow);
            averages.calls = row.calls;
            averages.totals = row
                .totals
                .map(|(service, work)| (service.as_secs_f64(), work.as_secs_f64()));
        }
        this
    }

    pub(super) fn reconfigure(&mut self, config: &WorkflowsConfig) {
        self.adaptation.reconfigure(config);
        self.named = None;
    }

    /// The state for whoever leads next.
    pub(super) fn state(&self, out: &mut Vec<u8>) {
        self.adaptation.to_bytes(out);
    }

    fn averages(&mut self, workflow: WorkflowId) -> &mut Averages {
        let at = usize::from(workflow.0);
        if at >= self.averages.len() {
            self.averages.resize(at + 1, Averages::default());
        }
        &mut self.averages[at]
    }

    /// Empties the mailboxes of all workers; `key` names that of a worker.
    ///
    /// # Errors
    /// [`HostError`]; what was not collected stays where it is.
    pub(super) fn collect(
        &mut self,
        host: &impl Host,
        own: WorkerId,
        others: &[WorkerId],
        key: impl Fn(WorkerId) -> String,
    ) -> Result<(), HostError> {
        let highest = others.iter().copied().max().unwrap_or(0).max(own);
        // Those who left may have left something.
        self.workers = self.workers.max(highest + 1);
        let mut done = Ok(());
        for worker in 0..self.workers {
            done = done.and(self.sum.collect(host, &key(worker)));
        }
        done
    }

    /// Closes the interval that ends now: what all workers are to know.
    ///
    /// # Errors
    /// [`HostError`]: some stat or gauge could not be written. The rates are right nevertheless.
    pub(super) fn run(
        &mut self,
        host: &impl Host,
        now: Instant,
        tools: &mut Tools<'_>,
    ) -> (Published, Result<(), HostError>) {
        self.assign(tools);
        let first = tools.published.at == Instant::default();
        let elapsed = if first {
            Duration::from_micros(tools.config.interval_us)
        } else {
            now.since(tools.published.at)
        };
        self.add_up(now);
        let most = tools.slots * elapsed.as_secs_f64();
        let interval = Interval {
            now,
            elapsed,
            slots: tools.slots,
            busy: self.sum.busy.as_secs_f64().min(most),
            resource_used: self.measured.iter().map(|m| m.resource).sum(),
            workflows: &self.measured,
            calls: &self.calls,
            heard: &self.heard,
            upstream: &self.upstream,
        };
        self.adaptation.run(&interval);
        self.sum.clear();
        let expired = self.adaptation.take_expired();
        tools.stats.count_process(ProcessCount::Expired, expired);
        let (published, shown) = self.publish(host, now, tools);
        let freed = self.free_idle(host, now, tools);
        (published, shown.and(freed))
    }

    /// Tells the adaptation which workflows and services ids stand for.
    fn assign(&mut self, tools: &Tools<'_>) {
        let revisions = (tools.names.revision(), tools.services.revision());
        if self.named == Some(revisions) {
            return;
        }
        self.named = Some(revisions);
        self.adaptation.assign(OTHER, OTHER_NAME);
        for (id, name) in tools.names.iter() {
            let name = String::from_utf8_lossy(name);
            self.adaptation.assign(WorkflowId(id), &name);
        }
        for (id, name) in tools.services.iter() {
            let name = String::from_utf8_lossy(name);
            self.adaptation.assign_service(ServiceId(id), &name);
        }
    }

    fn add_up(&mut self, now: Instant) {
        self.measured.clear();
        self.calls.clear();
        self.heard.clear();
        self.upstream.clear();
        self.calls.extend(self.sum.calls());
        self.heard.extend(self.sum.rates());
        self.upstream.extend(self.sum.upstream());
        self.measured
            .extend(self.sum.rows().map(|row| row.measured));
        let entered: Vec<_> = (self.sum.rows())
            .map(|row| (row.measured.workflow, row.entered))
            .collect();
        for (workflow, entered) in entered {
            let averages = self.averages(workflow);
            averages.used = Some(now);
            if entered.requests == 0 {
                continue;
            }
            let mean = |sum: Duration| sum.as_secs_f64() / entered.requests as f64;
            let (service, work) = (mean(entered.service), mean(entered.work));
            averages.totals = Some(match averages.totals {
                Some((s, w)) => (s + SMOOTHING * (service - s), w + SMOOTHING * (work - w)),
                None => (service, work),
            });
        }
        for at in 0..self.calls.len() {
            self.averages(self.calls[at].workflow).calls = true;
        }
    }

    fn publish(
        &mut self,
        host: &impl Host,
        now: Instant,
        tools: &mut Tools<'_>,
    ) -> (Published, Result<(), HostError>) {
        let mut done = Ok(());
        let mut rows = Vec::new();
        let longest = f64::from(tools.config.max_queue_length);
        for found in self.adaptation.workflows() {
            let workflow = found.workflow;
            let averages = self.averages.get(usize::from(workflow.0));
            let averages = averages.copied().unwrap_or_default();
            let mut waiting = 0;
            let limit = found.rate.is_finite().then(|| {
                let drawn = tools.limiter.drawn(host, workflow);
                let before = tools.limiter.level(workflow);
                let rate = found.rate.max(0.0);
                let last = drawn.as_ref().ok().copied();
                let tickets = tickets(before, now, last, rate, longest);
                if let Ok(drawn) = &drawn {
                    waiting = (drawn - tickets).max(0.0).round() as u64;
                }
                done = std::mem::replace(&mut done, Ok(())).and(drawn.map(drop));
                (rate, tickets)
            });
            let span = |s: f64| Duration::try_from_secs_f64(s).unwrap_or_default();
            rows.push(Row {
                workflow,
                limit,
                completion: found.completion,
                totals: averages.totals.map(|(s, w)| (span(s), span(w))),
                calls: averages.calls,
                newcomers: self.adaptation.announced_to_newcomers(workflow),
            });
            let shown = tools.stats.found(host, tools.names, &found, waiting);
            done = std::mem::replace(&mut done, Ok(())).and(shown);
        }
        let published = Published {
            at: now,
            rows,
            announced: self.adaptation.announcements().collect(),
        };
        (published, done)
    }

    /// Gives ids that nobody uses to names that wait for one.
    fn free_idle(
        &mut self,
        host: &impl Host,
        now: Instant,
        tools: &mut Tools<'_>,
    ) -> Result<(), HostError> {
        if !tools.names.is_full() {
            return Ok(());
        }
        let mut idle = Vec::new();
        for (id, name) in tools.names.iter() {
            let used = *self.averages(WorkflowId(id)).used.get_or_insert(now);
            let configured = std::str::from_utf8(name)
                .is_ok_and(|name| tools.config.workflows.contains_key(name));
            if !configured && now.since(used) >= IDLE {
                idle.push(id);
            }
        }
        if idle.is_empty() {
            return Ok(());
        }
        tools.names.free(host, &idle)?;
        for id in idle {
            self.adaptation.forget(WorkflowId(id));
            *self.averages(WorkflowId(id)) = Averages::default();
        }
        Ok(())
    }
}

/// Numbers that count as issued at `now`: what the rate so far issued. Where there was none, what was drawn and
/// what an idle workflow finds left over; and never so few that more numbers were drawn than can wait, as when a
/// gauge outlived what knew of it.
fn tickets(
    before: Option<Level>,
    now: Instant,
    drawn: Option<f64>,
    rate: f64,
    longest: f64,
) -> f64 {
    let begins = Level {
        at: now,
        tickets: drawn.unwrap_or(0.0),
        rate,
    };
    let issued = before.map_or(begins.tickets + begins.burst(), |level| level.reached(now));
    let least = drawn.map_or(0.0, |drawn| drawn - longest - ON_THE_WAY);
    issued.max(least).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_from_the_rate_before_and_never_run_far_behind() {
        let at = |s| Instant::default() + Duration::from_secs(s);
        let before = Level {
            at: at(1),
            tickets: 100.0,
            rate: 10.0,
        };
        assert_eq!(tickets(Some(before), at(3), Some(125.0), 1.0, 50.0), 120.0);
        assert_eq!(tickets(None, at(3), Some(125.0), 100.0, 50.0), 127.0);
        assert_eq!(tickets(None, at(3), None, 1.0, 50.0), 1.0);
        // Workers that give numbers back at the same time must not make it negative.
        assert_eq!(tickets(None, at(3), Some(-2.0), 1.0, 50.0), 0.0);
        let far = tickets(Some(before), at(3), Some(1e6), 1.0, 50.0);
        assert!(1e6 - far <= 50.0 + ON_THE_WAY);
    }
}
