//! Stats of workflows, and of calls to other services.
//!
//! ```text
//! headgate.policy.<namespace>/<name>.workflows                           gauge      known workflows
//! headgate.policy.<namespace>/<name>.workflows_folded                counter    requests of names beyond the cap, or longer than 128 bytes
//! headgate.policy.<namespace>/<name>.service.<service>.index         gauge      the service's number in `bottleneck`
//! headgate.policy.<namespace>/<name>.rates_expired                       counter    rates that expired without a newer announcement
//! headgate.policy.<namespace>/<name>.rates_refused                       counter    announcements that are untrusted or unreadable
//! headgate.policy.<namespace>/<name>.workflow.<workflow>.<counter>   see [`Count`]
//! headgate.policy.<namespace>/<name>.workflow.<workflow>.limited     gauge      1 where a rate is in force, else 0
//! headgate.policy.<namespace>/<name>.workflow.<workflow>.rate_mhz        gauge      σ: the rate in force, requests in 1000 s
//! headgate.policy.<namespace>/<name>.workflow.<workflow>.local_rate_mhz  gauge      line 1 of Algorithm 1: the rate of this process alone, requests in 1000 s
//! headgate.policy.<namespace>/<name>.workflow.<workflow>.demand_mhz      gauge      λ: the arrival rate, requests in 1000 s
//! headgate.policy.<namespace>/<name>.workflow.<workflow>.queue_length     gauge      waiting in the limiter
//! headgate.policy.<namespace>/<name>.workflow.<workflow>.completion_us    gauge      mean time from the limiter to the end of an answered request
//! headgate.policy.<namespace>/<name>.workflow.<workflow>.bottleneck       gauge      0 here, else 1 + the id of the downstream service
//! headgate.policy.<namespace>/<name>.workflow.<workflow>.limiter_wait_us  histogram  wait in the limiter, of requests that waited
//! ```
//!
//! If the policy has `classAdmission` or smoothing, calls to other services have
//!
//! ```text
//! headgate.policy.<namespace>/<name>.service.<service>.calls_delayed        counter    calls delayed by smoothing
//! headgate.policy.<namespace>/<name>.service.<service>.calls_delay_us       counter    sum of these delays, in µs
//! headgate.policy.<namespace>/<name>.service.<service>.rejection_permille   gauge      rejection rate that the service announced last
//! headgate.policy.<namespace>/<name>.service.<service>.calls.class.<class>  counter    calls that requested the class
//! headgate.policy.<namespace>/<name>.service.<service>.calls_downgraded.class.<class>   counter    of these, run in the lowest class
//! headgate.policy.<namespace>/<name>.service.<service>.admit_permille.class.<class>     gauge      probability of staying in the class
//! headgate.policy.<namespace>/<name>.admission_reports         counter    reports sent to the admission server
//! headgate.policy.<namespace>/<name>.admission_reports_lost    counter    of these, without an answer
//! ```
//!
//! The policy also has gauges that only engines read. `{names,services,rates}_changes` show workers
//! the changes of other workers. For `limiter.<id>.tickets`, see [`super::limiter`].
//!
//! A defined metric stays for the life of the process. An id that is reused for a second name is
//! counted as `_other`, unless the policy has settings for the name. So names of clients never have
//! more stats than there are ids.

use std::time::Duration;

use headgate_core::host::{MetricId, MetricKind, Metrics};
use headgate_core::stats::Counters;
use headgate_strategies::host::HostError;
use headgate_strategies::rng;
use headgate_strategies::time::micros;

use super::adaptation::{Bottleneck, Snapshot};
use super::names::Directory;
use super::{OTHER, OTHER_NAME, WorkflowId};

/// The length of the longest name in a stat, bytes. Longer names are cut.
const MAX_NAME: usize = 63;

/// Counters of a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    /// Requests that arrived.
    Offered,
    /// Requests that the limiter admitted.
    Admitted,
    /// Requests rejected by the limiter, enforced or not, because too many wait.
    RateLimited,
    /// Requests rejected by the limiter, enforced or not, because their deadline would pass.
    Deadline,
    /// Requests rejected by the limiter and refused (not in `DryRun`).
    RejectedEnforced,
    /// Requests that the backend answered.
    Completed,
    /// Calls that the process made.
    Calls,
}

const COUNTERS: [&str; 7] = [
    "rq_offered",
    "rq_admitted",
    "rq_rate_limited",
    "rq_deadline",
    "rq_rejected_enforced",
    "rq_completed",
    "calls",
];

const GAUGES: [&str; 7] = [
    "limited",
    "rate_mhz",
    "local_rate_mhz",
    "demand_mhz",
    "queue_length",
    "completion_us",
    "bottleneck",
];

#[derive(Debug, Clone, Copy)]
struct Defined {
    counters: [MetricId; COUNTERS.len()],
    gauges: [MetricId; GAUGES.len()],
    wait: MetricId,
}

#[derive(Debug, Default, Clone, Copy)]
struct WorkflowCounters {
    /// The metrics of the id, or `None` until the id's name is known.
    metrics: Option<Defined>,
    /// The hash of the name that the metrics show, or `None` for metrics of [`OTHER`].
    shows: Option<u64>,
    /// The counts that are not yet in the host's counters.
    pending: [u32; COUNTERS.len()],
}

/// The stats of a policy's workflows.
#[derive(Debug)]
pub(super) struct WorkflowStats {
    prefix: String,
    /// The counters by workflow.
    rows: Vec<WorkflowCounters>,
    known: MetricId,
    counters: Counters,
    /// The gauges by id of a downstream service.
    services: Vec<Option<MetricId>>,
}

/// Counters of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessCount {
    Folded,
    Expired,
    Refused,
}

/// Returns `name` as a part of a stat's name, whose parts are separated by dots.
pub(crate) fn stat_name(name: &[u8]) -> String {
    let part = name.iter().take(MAX_NAME);
    part.map(|&byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte),
        _ => '_',
    })
    .collect()
}

impl WorkflowStats {
    pub(super) fn new(host: &impl Metrics, prefix: &str) -> Result<Self, HostError> {
        let counters = ["workflows_folded", "rates_expired", "rates_refused"];
        let mut this = Self {
            prefix: prefix.to_owned(),
            rows: Vec::new(),
            known: host.define(MetricKind::Gauge, &format!("{prefix}.workflows"))?,
            counters: Counters::new(host, prefix, counters)?,
            services: Vec::new(),
        };
        this.row(OTHER).metrics = Some(this.define(host, OTHER_NAME)?);
        Ok(this)
    }

    fn define(&self, host: &impl Metrics, name: &str) -> Result<Defined, HostError> {
        let metric = |kind, what: &str| {
            let name = format!("{}.workflow.{name}.{what}", self.prefix);
            host.define(kind, &name)
        };
        let mut metrics = Defined {
            counters: [MetricId(0); COUNTERS.len()],
            gauges: [MetricId(0); GAUGES.len()],
            wait: metric(MetricKind::Histogram, "limiter_wait_us")?,
        };
        for (id, name) in metrics.counters.iter_mut().zip(COUNTERS) {
            *id = metric(MetricKind::Counter, name)?;
        }
        for (id, name) in metrics.gauges.iter_mut().zip(GAUGES) {
            *id = metric(MetricKind::Gauge, name)?;
        }
        Ok(metrics)
    }

    fn row(&mut self, workflow: WorkflowId) -> &mut WorkflowCounters {
        let at = usize::from(workflow.0);
        if at >= self.rows.len() {
            self.rows.resize(at + 1, WorkflowCounters::default());
        }
        &mut self.rows[at]
    }

    /// Defines the stats of new names. Reused ids count for [`OTHER`], unless their name is
    /// `configured`. An id that lost its name shows nothing, because the name may have another id
    /// by now. Its last requests still count for the name.
    pub(super) fn rename(
        &mut self,
        host: &impl Metrics,
        names: &Directory,
        configured: impl Fn(&[u8]) -> bool,
    ) -> Result<(), HostError> {
        host.record(self.known, names.len() as u64)?;
        let last = names.iter().last().map_or(0, |(id, _)| usize::from(id));
        for at in 1..self.rows.len().max(last + 1) {
            let workflow = WorkflowId(u16::try_from(at).unwrap_or(u16::MAX));
            let name = names.name(workflow.0);
            let own = name.filter(|name| !names.is_reused(workflow.0) || configured(name));
            let shows = own.map(|name| rng::hash(name.iter().copied()));
            let row = *self.row(workflow);
            if shows.is_some() && row.shows == shows {
                continue;
            }
            if let Some(before) = row.metrics.filter(|_| row.shows.is_some()) {
                for gauge in before.gauges {
                    host.record(gauge, 0)?;
                }
            }
            let metrics = match (own, name) {
                (Some(name), _) => Some(self.define(host, &stat_name(name))?),
                (None, Some(_)) => self.row(OTHER).metrics,
                (None, None) => row.metrics,
            };
            let row = self.row(workflow);
            (row.metrics, row.shows) = (metrics, shows);
        }
        Ok(())
    }

    /// Publishes the value of `bottleneck` for each downstream service. The gauge of a service
    /// whose id was reused is reset to 0.
    pub(super) fn name_services(
        &mut self,
        host: &impl Metrics,
        services: &Directory,
    ) -> Result<(), HostError> {
        for (id, name) in services.iter() {
            let at = usize::from(id);
            if at >= self.services.len() {
                self.services.resize(at + 1, None);
            }
            match (self.services[at], services.is_reused(id)) {
                (None, false) => {
                    let name = format!("{}.service.{}.index", self.prefix, stat_name(name));
                    let gauge = host.define(MetricKind::Gauge, &name)?;
                    host.record(gauge, 1 + u64::from(id))?;
                    self.services[at] = Some(gauge);
                }
                (Some(gauge), true) => host.record(gauge, 0)?,
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn count(&mut self, workflow: WorkflowId, count: Count) {
        let pending = &mut self.row(workflow).pending[count as usize];
        *pending = pending.saturating_add(1);
    }

    pub(super) fn count_process(&mut self, count: ProcessCount, n: u64) {
        self.counters.add(count as usize, n);
    }

    /// Records a request's wait in the limiter.
    pub(super) fn waited(
        &mut self,
        host: &impl Metrics,
        workflow: WorkflowId,
        wait: Duration,
    ) -> Result<(), HostError> {
        match self.row(workflow).metrics {
            Some(metrics) => host.record(metrics.wait, micros(wait)),
            None => Ok(()),
        }
    }

    /// Publishes the results of a run for a workflow, unless its id shares the stats of [`OTHER`].
    pub(super) fn found(
        &mut self,
        host: &impl Metrics,
        found: &Snapshot,
        waiting: u64,
    ) -> Result<(), HostError> {
        let row = *self.row(found.workflow);
        let own = row.shows.is_some() || found.workflow == OTHER;
        let Some(metrics) = row.metrics.filter(|_| own) else {
            return Ok(());
        };
        // The gauge shows 0 without a limit. `limited` distinguishes the lack of a limit from a
        // rate of 0.
        let mhz = |rate: f64| {
            if rate.is_finite() {
                (rate * 1e3).round() as u64
            } else {
                0
            }
        };
        let values = [
            u64::from(found.rate.is_finite()),
            mhz(found.rate),
            mhz(found.local_rate),
            mhz(found.demand),
            waiting,
            micros(found.completion.unwrap_or_default()),
            match found.bottleneck {
                Some(Bottleneck::Service(service)) => 1 + u64::from(service.0),
                Some(Bottleneck::Local) | None => 0,
            },
        ];
        for (gauge, value) in metrics.gauges.into_iter().zip(values) {
            host.record(gauge, value)?;
        }
        Ok(())
    }

    /// Resets the gauges of all workflows, since no workflow is limited any more.
    pub(super) fn withdraw(&mut self, host: &impl Metrics) -> Result<(), HostError> {
        for metrics in self.rows.iter().filter_map(|row| row.metrics) {
            for gauge in metrics.gauges {
                host.record(gauge, 0)?;
            }
        }
        Ok(())
    }

    /// Adds the counts since the last call of this function to the host's counters.
    pub(super) fn flush(&mut self, host: &impl Metrics) -> Result<(), HostError> {
        self.counters.flush(host)?;
        for row in &mut self.rows {
            // The counts stay in `pending` until the directory has the name.
            let Some(metrics) = row.metrics else {
                continue;
            };
            for (counter, pending) in metrics.counters.into_iter().zip(&mut row.pending) {
                if *pending > 0 {
                    host.add(counter, (*pending).into())?;
                    *pending = 0;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_dots() {
        assert_eq!(stat_name(b"check.out/v1 \xc3\xa4"), "check_out_v1___");
        assert_eq!(stat_name(&[b'a'; 200]).len(), MAX_NAME);
    }
}
