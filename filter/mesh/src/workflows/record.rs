//! The record of a process's workflows that all workers share ([`crate::shared`]).
//!
//! Each worker adds its measurements once an interval. The first worker that adds measurements
//! after the end of the interval runs Algorithm 1 on the sums. This worker stores the rates for the
//! others, and the state for the next run. There is no leader whose death would have to be
//! detected.

use std::time::Duration;

use headgate_core::config::WorkflowsConfig;
use headgate_core::host::Host;
use headgate_strategies::time::Instant;
use serde::{Deserialize, Serialize};

use super::adaptation::{
    Adaptation, Calls, Heard, Interval, Measured, Snapshot, State, UpstreamDemand,
};
use super::limiter::{Level, Limiter};
use super::names::Directory;
use super::published::{Published, WorkflowResults};
use super::tally::{Entered, MAX_PAIRS, Tally};
use super::{ServiceId, WorkflowId};

/// The weight of a new interval's mean in an average over intervals.
const SMOOTHING: f64 = 0.3;
/// The time without a request after which an id is idle. An idle id may be assigned to another name
/// that waits for an id.
pub(super) const IDLE: Duration = Duration::from_secs(600);
/// The number of tickets that workers may have drawn and are about to give back, in addition to the
/// tickets of waiting requests.
const ON_THE_WAY: f64 = 256.0;

/// Averages of a workflow that Algorithm 1 doesn't need.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
struct Averages {
    /// The mean elapsed time and work of a request that enters the mesh here, including all calls
    /// below the request, s.
    totals: Option<(f64, f64)>,
    calls: bool,
    /// The time of the last request, or of the first check if there was none.
    used: Option<Instant>,
}

/// The record that the workers share.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The slot time in use since the last run. The next five fields also cover the time since the
    /// last run.
    busy: Duration,
    measured: Vec<Measured>,
    entered: Vec<(WorkflowId, Entered)>,
    calls: Vec<Calls>,
    heard: Vec<Heard>,
    upstream: Vec<UpstreamDemand>,
    state: State,
    /// The averages by workflow.
    averages: Vec<Averages>,
    /// The results of the last run.
    pub(super) published: Published,
}

impl crate::shared::Record for Record {
    const SCHEMA: u32 = 19;
}

/// The parameters of a run.
pub(super) struct Run<'a> {
    pub(super) now: Instant,
    pub(super) config: &'a WorkflowsConfig,
    /// P, the number of slots.
    pub(super) slots: f64,
    pub(super) names: &'a Directory,
    pub(super) services: &'a Directory,
}

/// The results of a run, for stats and names.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The workflows, and the number of waiting requests of each.
    pub(super) workflows: Vec<(Snapshot, u64)>,
    /// The number of rates of downstream processes that expired.
    pub(super) expired: u64,
    /// The idle ids, if new names may be waiting for an id.
    pub(super) idle: Vec<u16>,
}

impl Record {
    /// Adds a worker's measurements.
    pub(super) fn add(&mut self, tally: &Tally) {
        self.busy = self.busy.saturating_add(tally.busy);
        self.measured.extend(tally.rows().map(|row| row.measured));
        let entered = tally.rows().map(|row| (row.measured.workflow, row.entered));
        self.entered
            .extend(entered.filter(|(_, entered)| entered.requests > 0));
        append(&mut self.calls, tally.calls());
        append(&mut self.heard, tally.rates());
        append(&mut self.upstream, tally.upstream());
    }

    /// Ends the interval at `run.now`. Runs Algorithm 1 and publishes its results.
    pub(super) fn run(
        &mut self,
        host: &impl Host,
        adaptation: &mut Adaptation,
        limiter: &mut Limiter,
        run: &Run<'_>,
    ) -> Found {
        if !self.state.is_valid() {
            self.state = State::default();
        }
        adaptation.exchange(std::mem::take(&mut self.state));
        for (id, name) in run.names.iter() {
            if adaptation.assign(WorkflowId(id), &String::from_utf8_lossy(name)) {
                *self.averages(WorkflowId(id)) = Averages::default();
            }
        }
        for (id, name) in run.services.iter() {
            adaptation.assign_service(ServiceId(id), &String::from_utf8_lossy(name));
        }
        let first = self.published.at == Instant::default();
        let elapsed = if first {
            Duration::from_micros(run.config.interval_us)
        } else {
            run.now.since(self.published.at)
        };
        let most = run.slots * elapsed.as_secs_f64();
        adaptation.run(&Interval {
            now: run.now,
            elapsed,
            slots: run.slots,
            busy: self.busy.as_secs_f64().min(most),
            resource_used: self.measured.iter().map(|m| m.resource).sum(),
            workflows: &self.measured,
            calls: &self.calls,
            heard: &self.heard,
            upstream: &self.upstream,
        });
        self.average(run.now);
        let workflows = self.publish(host, adaptation, limiter, run);
        let idle = self.idle(adaptation, run);
        let found = Found {
            workflows,
            expired: adaptation.take_expired(),
            idle,
        };
        self.state = adaptation.exchange(State::default());
        found
    }

    fn averages(&mut self, workflow: WorkflowId) -> &mut Averages {
        let at = usize::from(workflow.0);
        if at >= self.averages.len() {
            self.averages.resize(at + 1, Averages::default());
        }
        &mut self.averages[at]
    }

    /// Updates the averages from the sums, and resets the sums.
    fn average(&mut self, now: Instant) {
        self.busy = Duration::ZERO;
        self.heard.clear();
        self.upstream.clear();
        for measured in std::mem::take(&mut self.measured) {
            self.averages(measured.workflow).used = Some(now);
        }
        let mut entered = std::mem::take(&mut self.entered);
        entered.sort_unstable_by_key(|(workflow, _)| *workflow);
        for of_one in entered.chunk_by(|(a, _), (b, _)| a == b) {
            let sum = |of: fn(&Entered) -> f64| of_one.iter().map(|(_, e)| of(e)).sum::<f64>();
            let requests = sum(|e| e.requests as f64);
            let service = sum(|e| e.service.as_secs_f64()) / requests;
            let work = sum(|e| e.work.as_secs_f64()) / requests;
            let averages = self.averages(of_one[0].0);
            averages.totals = Some(match averages.totals {
                Some((s, w)) => (s + SMOOTHING * (service - s), w + SMOOTHING * (work - w)),
                None => (service, work),
            });
        }
        for calls in std::mem::take(&mut self.calls) {
            self.averages(calls.workflow).calls = true;
        }
    }

    fn publish(
        &mut self,
        host: &impl Host,
        adaptation: &Adaptation,
        limiter: &mut Limiter,
        run: &Run<'_>,
    ) -> Vec<(Snapshot, u64)> {
        let mut rows = Vec::new();
        let mut all = Vec::new();
        let longest = f64::from(run.config.max_queue_length);
        for found in adaptation.workflows() {
            let workflow = found.workflow;
            let averages = *self.averages(workflow);
            let mut waiting = 0;
            let limit = found.rate.is_finite().then(|| {
                // On a host error, the number of drawn tickets is unknown. The level then follows
                // from the previous rate alone, and no request counts as waiting.
                let drawn = limiter.drawn(host, workflow).ok();
                let before = self.published.level(workflow);
                let rate = found.rate.max(0.0);
                let tickets = tickets(before, run.now, drawn, rate, longest);
                waiting = drawn.map_or(0, |drawn| (drawn - tickets).max(0.0).round() as u64);
                (rate, tickets)
            });
            let span = |s: f64| Duration::try_from_secs_f64(s).unwrap_or_default();
            rows.push(WorkflowResults {
                workflow,
                limit,
                completion: found.completion,
                totals: averages.totals.map(|(s, w)| (span(s), span(w))),
                calls: averages.calls,
                newcomers: adaptation.announced_to_newcomers(workflow),
            });
            all.push((found, waiting));
        }
        self.published = Published {
            at: run.now,
            rows,
            announced: adaptation.announcements().collect(),
        };
        all
    }

    /// Returns the idle ids and resets their state, if the directory is full and new names may be
    /// waiting for an id.
    fn idle(&mut self, adaptation: &mut Adaptation, run: &Run<'_>) -> Vec<u16> {
        let mut idle = Vec::new();
        if !run.names.is_full() {
            return idle;
        }
        for (id, name) in run.names.iter() {
            let used = *self.averages(WorkflowId(id)).used.get_or_insert(run.now);
            let configured =
                std::str::from_utf8(name).is_ok_and(|name| run.config.workflows.contains_key(name));
            if !configured && run.now.since(used) >= IDLE {
                adaptation.forget(WorkflowId(id));
                *self.averages(WorkflowId(id)) = Averages::default();
                idle.push(id);
            }
        }
        idle
    }
}

/// Appends `more` to the measurements of other workers, up to the bound of one worker. If there are
/// more pairs than the bound, a part of the pairs is representative.
fn append<T>(sum: &mut Vec<T>, more: impl Iterator<Item = T>) {
    let room = MAX_PAIRS.saturating_sub(sum.len());
    sum.extend(more.take(room));
}

/// Returns the limiter's level at `now`, which the previous rate has reached. Without a previous
/// rate, the level is the last drawn ticket plus the burst of an idle workflow. The level is so
/// high that no more requests wait than the queue allows, even if the gauge has outlived its
/// record.
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
    use proptest::prelude::*;

    use super::*;
    use crate::memory::MemoryHost;
    use crate::shared;
    use crate::workflows::ProcessId;

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
        // Several workers that return numbers at the same time must not make the level negative.
        assert_eq!(tickets(None, at(3), Some(-2.0), 1.0, 50.0), 0.0);
        let far = tickets(Some(before), at(3), Some(1e6), 1.0, 50.0);
        assert!(1e6 - far <= 50.0 + ON_THE_WAY);
    }

    const W: WorkflowId = WorkflowId(1);

    fn tally(offered: u64) -> Tally {
        let mut tally = Tally::default();
        let row = tally.row(W);
        row.measured.offered = offered;
        (row.measured.reported, row.measured.resource) = (1, 0.5);
        row.entered = Entered {
            requests: 1,
            service: Duration::from_millis(offered),
            work: Duration::from_millis(offered),
        };
        tally.called(W, ServiceId(2), ProcessId(9), 3);
        tally.arrived(W, ProcessId(4), offered);
        tally.heard(&Heard {
            workflow: W,
            service: ServiceId(2),
            process: ProcessId(9),
            rate: offered as f64,
            at: Instant::from_nanos(offered),
        });
        tally.busy = Duration::from_millis(offered);
        tally
    }

    #[test]
    fn what_workers_measured_adds_up_until_a_run_takes_it() {
        let host = MemoryHost::new();
        let mut record = Record::default();
        record.add(&tally(10));
        record.add(&tally(5));
        let mut bytes = Vec::new();
        shared::encode(&record, &mut bytes);
        assert_eq!(shared::decode::<Record>(&bytes).as_ref(), Some(&record));
        assert_eq!(record.busy, Duration::from_millis(15));
        let offered: u64 = record.measured.iter().map(|m| m.offered).sum();
        assert_eq!(offered, 15);
        assert_eq!(record.calls.iter().map(|c| c.count).sum::<u64>(), 6);
        assert_eq!(record.upstream.iter().map(|d| d.offered).sum::<u64>(), 15);
        let config = headgate_core::config::WorkflowsConfig {
            identify: Vec::new(),
            quantile: 0.5,
            service_quantiles: Default::default(),
            interval_us: 100_000,
            rate_ttl_us: 1_000_000,
            sharing: headgate_core::config::SharingConfig::StaticGuarantees,
            max_workflows: 10,
            max_queue_length: 10,
            workflows: Default::default(),
            edge: false,
            peers: Vec::new(),
        };
        let names = Directory::new(&host, "names".into(), "names", 10).unwrap();
        let services = Directory::new(&host, "services".into(), "services", 10).unwrap();
        let run = Run {
            now: Instant::default() + Duration::from_secs(7),
            config: &config,
            slots: 4.0,
            names: &names,
            services: &services,
        };
        let mut adaptation = Adaptation::new(&config);
        let mut limiter = Limiter::new("p");
        let found = record.run(&host, &mut adaptation, &mut limiter, &run);
        // The demand is 15 requests in an interval of 100 ms.
        let [(seen, _)] = &found.workflows[..] else {
            panic!("{found:?}")
        };
        assert!((seen.demand - 150.0).abs() < 1e-6, "{seen:?}");
        let row = record.published.row(W).unwrap();
        assert_eq!(record.published.at, run.now);
        let mean = Duration::from_micros(7_500);
        assert_eq!((row.calls, row.totals), (true, Some((mean, mean))));
        // The record is now empty except for the state that the next run needs.
        assert_eq!(record.busy, Duration::ZERO);
        assert!(record.measured.is_empty() && record.entered.is_empty());
        assert!(record.calls.is_empty() && record.heard.is_empty() && record.upstream.is_empty());
        assert!(record.state.is_valid() && record.state != State::default());
    }

    #[test]
    fn a_flood_of_processes_is_bounded() {
        let mut record = Record::default();
        for worker in 0..8 {
            let mut tally = Tally::default();
            for n in 0..MAX_PAIRS as u64 {
                let process = ProcessId(1 + worker * MAX_PAIRS as u64 + n);
                tally.arrived(W, process, 1);
                tally.called(W, ServiceId(1), process, 1);
            }
            record.add(&tally);
        }
        assert_eq!(
            (record.calls.len(), record.upstream.len()),
            (MAX_PAIRS, MAX_PAIRS)
        );
    }

    proptest! {
        #[test]
        fn what_is_published_is_found(
            limits in prop::collection::vec(
                (
                    prop::option::of((0.0..1e9_f64, 0.0..1e15_f64)),
                    prop::option::of(0.0..1e9_f64),
                ),
                0..20,
            ),
            processes in prop::collection::vec((any::<u64>(), 0.0..1e9_f64), 0..20),
        ) {
            let row = |(id, (limit, newcomers))| WorkflowResults {
                workflow: WorkflowId(id),
                limit,
                newcomers,
                ..WorkflowResults::default()
            };
            let mut announced: Vec<_> = processes
                .iter()
                .map(|&(p, rate)| (W, ProcessId(p), rate))
                .collect();
            announced.sort_unstable_by_key(|&(w, p, _)| (w, p));
            announced.dedup_by_key(|&mut (w, p, _)| (w, p));
            let published = Published {
                at: Instant::from_nanos(7),
                rows: (0_u16..).zip(limits).map(row).collect(),
                announced,
            };
            let record = Record { published: published.clone(), ..Record::default() };
            let mut bytes = Vec::new();
            shared::encode(&record, &mut bytes);
            let read: Record = shared::decode(&bytes).unwrap();
            for &(workflow, process, rate) in &published.announced {
                prop_assert_eq!(read.published.announced(workflow, process), Some(rate));
            }
            for row in &published.rows {
                prop_assert_eq!(read.published.row(row.workflow), Some(row));
                prop_assert_eq!(
                    read.published
                        .level(row.workflow)
                        .map(|l| (l.rate, l.tickets)),
                    row.limit
                );
            }
            for cut in 0..bytes.len() {
                prop_assert_eq!(shared::decode::<Record>(&bytes[..cut]), None);
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = shared::decode::<Record>(&[&shared::header(19)[..], &bytes].concat());
        }
    }
}
