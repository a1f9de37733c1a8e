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

use super::adaptation::{Adaptation, Interval, Snapshot, State};
use super::limiter::{Level, Limiter};
use super::measurements::Measurements;
use super::names::Directory;
use super::published::{Published, WorkflowResults};
use super::{ServiceId, WorkflowId};

/// The time without a request, or without a call of a service, after which an id is idle. An idle
/// id may be assigned to another name that waits for an id.
pub(super) const IDLE: Duration = Duration::from_secs(600);
/// The number of tickets that workers may have drawn and are about to give back, in addition to the
/// tickets of waiting requests.
const ON_THE_WAY: f64 = 256.0;

/// The record that the workers share.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The measurements since the last run.
    pub(super) measured: Measurements,
    state: State,
    /// The results of the last run.
    pub(super) published: Published,
}

impl crate::shared::Record for Record {
    const SCHEMA: u32 = 24;
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
    /// The idle ids of services, if new services may be waiting for an id.
    pub(super) idle_services: Vec<u16>,
}

impl Record {
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
        for (id, name) in run.names.iter() {
            self.state
                .assign(WorkflowId(id), &String::from_utf8_lossy(name));
        }
        for (id, name) in run.services.iter() {
            let name = String::from_utf8_lossy(name);
            self.state.assign_service(ServiceId(id), &name);
        }
        let first = self.published.at == Instant::default();
        let elapsed = if first {
            Duration::from_micros(run.config.interval_us)
        } else {
            run.now.since(self.published.at)
        };
        let interval = Interval {
            now: run.now,
            elapsed,
            slots: run.slots,
            measured: &self.measured,
        };
        let expired = adaptation.run(run.config, &mut self.state, &interval);
        self.measured.clear();
        Found {
            workflows: self.publish(host, limiter, run),
            expired,
            idle: self.idle(run),
            idle_services: match run.services.is_full() {
                true => {
                    let services = run.services.iter().map(|(id, _)| id);
                    self.state.forget_idle_services(services, run.now, IDLE)
                }
                false => Vec::new(),
            },
        }
    }

    fn publish(
        &mut self,
        host: &impl Host,
        limiter: &mut Limiter,
        run: &Run<'_>,
    ) -> Vec<(Snapshot, u64)> {
        let mut rows = Vec::new();
        let mut all = Vec::new();
        let longest = f64::from(run.config.max_queue_length);
        for found in self.state.workflows() {
            let workflow = found.workflow;
            let mut waiting = 0;
            let level = found.rate.is_finite().then(|| {
                // On a host error, the number of drawn tickets is unknown. The level then follows
                // from the previous rate alone, and no request counts as waiting.
                let drawn = limiter.drawn(host, workflow).ok();
                let before = self.published.level(workflow);
                let rate = found.rate.max(0.0);
                let tickets = tickets(before, run.now, drawn, rate, longest);
                waiting = drawn.map_or(0, |drawn| (drawn - tickets).max(0.0).round() as u64);
                Level {
                    at: run.now,
                    tickets,
                    rate,
                }
            });
            rows.push(WorkflowResults {
                workflow,
                level,
                completion: found.completion,
                totals: found.totals,
                calls: found.calls,
                newcomers: self.state.announced_to_newcomers(workflow),
            });
            all.push((found, waiting));
        }
        self.published = Published {
            at: run.now,
            rows,
            announced: self.state.announcements().collect(),
        };
        all
    }

    /// Returns the idle ids and resets their state, if the directory is full and new names may be
    /// waiting for an id.
    fn idle(&mut self, run: &Run<'_>) -> Vec<u16> {
        let mut idle = Vec::new();
        if !run.names.is_full() {
            return idle;
        }
        for (id, name) in run.names.iter() {
            let used = self.state.used(WorkflowId(id), run.now);
            let configured =
                std::str::from_utf8(name).is_ok_and(|name| run.config.workflows.contains_key(name));
            if !configured && run.now.since(used) >= IDLE {
                self.state.forget(WorkflowId(id));
                idle.push(id);
            }
        }
        idle
    }
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
    use crate::workflows::measurements::{MAX_PAIRS, Measured};

    #[test]
    fn ticket_numbers_continue_at_the_previous_rate_and_never_lag_far_behind() {
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

    fn measurements(offered: u64) -> Measurements {
        let mut measured = Measurements {
            busy: Duration::from_millis(offered),
            ..Measurements::default()
        };
        *measured.workflow(W) = Measured {
            offered,
            reported: 1,
            resource: 0.5,
            entered: 1,
            elapsed: Duration::from_millis(offered),
            work: Duration::from_millis(offered),
            ..Measured::default()
        };
        let callee = (W, ServiceId(2), ProcessId(9));
        measured.called(callee, 3);
        measured.arrived((W, ProcessId(4)), offered);
        measured.heard(callee, offered as f64, Instant::from_nanos(offered));
        measured
    }

    #[test]
    fn measurements_of_workers_add_up_until_a_run_takes_them() {
        let host = MemoryHost::new();
        let mut record = Record::default();
        record.measured.add(&measurements(10));
        record.measured.add(&measurements(5));
        let mut bytes = Vec::new();
        shared::encode(&record, &mut bytes);
        assert_eq!(shared::decode::<Record>(&bytes).as_ref(), Some(&record));
        assert_eq!(record.measured.busy, Duration::from_millis(15));
        assert_eq!(record.measured.workflow(W).offered, 15);
        assert_eq!(record.measured.calls.values().sum::<u64>(), 6);
        let heard: Vec<_> = record.measured.heard.values().collect();
        assert_eq!(heard, [&(10.0, Instant::from_nanos(10))]);
        assert_eq!(record.measured.arrivals.values().sum::<u64>(), 15);
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
        let mut adaptation = Adaptation::new(&config, true);
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
        assert_eq!(record.measured, Measurements::default());
        assert!(record.state.is_valid() && record.state != State::default());
    }

    #[test]
    fn a_flood_of_processes_is_bounded() {
        let mut record = Record::default();
        for worker in 0..8 {
            let mut measured = Measurements::default();
            for n in 0..MAX_PAIRS as u64 {
                let process = ProcessId(1 + worker * MAX_PAIRS as u64 + n);
                measured.arrived((W, process), 1);
                measured.called((W, ServiceId(1), process), 1);
            }
            record.measured.add(&measured);
        }
        // The last pair is that of all unknown processes.
        let Measurements {
            calls, arrivals, ..
        } = record.measured;
        assert_eq!(
            (calls.len(), arrivals.len()),
            (MAX_PAIRS + 1, MAX_PAIRS + 1)
        );
        assert_eq!(calls.values().sum::<u64>(), 8 * MAX_PAIRS as u64);
    }

    proptest! {
        #[test]
        fn published_rates_are_found(
            limits in prop::collection::vec(
                (
                    prop::option::of((0.0..1e9_f64, 0.0..1e15_f64)),
                    prop::option::of(0.0..1e9_f64),
                ),
                0..20,
            ),
            processes in prop::collection::vec((any::<u64>(), 0.0..1e9_f64), 0..20),
        ) {
            let at = Instant::from_nanos(7);
            let row = |(id, (limit, newcomers)): (_, (Option<_>, _))| WorkflowResults {
                workflow: WorkflowId(id),
                level: limit.map(|(rate, tickets)| Level { at, tickets, rate }),
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
                at,
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
                prop_assert_eq!(read.published.level(row.workflow), row.level);
            }
            for cut in 0..bytes.len() {
                prop_assert_eq!(shared::decode::<Record>(&bytes[..cut]), None);
            }
        }

        #[test]
        fn any_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let header = shared::header(<Record as shared::Record>::SCHEMA);
            let _ = shared::decode::<Record>(&[&header[..], &bytes].concat());
        }
    }
}
