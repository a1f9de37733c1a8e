//! The sender's side of centralized class admission ([`protocol`]): its reports, and the server's
//! decisions.
//!
//! Reports and decisions are in numbers that all workers share. A call reads the decision and adds
//! to the report, and never waits for the server. One worker at a time exchanges reports and
//! decisions for all workers:
//!
//! ```text
//! a worker's tick finds a report due   it takes and sends the sums; next report an interval later
//! the answer comes                     its decisions hold for 3 intervals: one loss has no effect
//! no decision holds                    the fallback decides: the sender's own law, or no admission
//! ```
//!
//! A lost report is not repeated. A service that was not called for [`KEEP`] is left out of
//! reports. The fallback decides on the first call to the service after that.

use std::borrow::Cow;
use std::time::Duration;

use headgate_admission::Completion;
use headgate_admission::protocol::{
    self, ClassReport, Decision, Decisions, MAX_BYTES, MAX_SERVICES, Method, Report, Rules,
    ServiceReport,
};
use headgate_core::config::{Fallback, ServiceAdmissionConfig};
use headgate_core::engine::SLOW_TICK;
use headgate_core::host::{Host, MetricId, MetricKind};
use headgate_core::stats;
use headgate_strategies::host::{HostError, Number, Shared};
use headgate_strategies::request::ClassId;
use headgate_strategies::rng::Rng;
use headgate_strategies::time::{Instant, micros};

use super::Mesh;
use super::admission::permille;
use crate::channels::{probability, steps};
use crate::shared;
use crate::workflows::wire;

/// The time after a service's last call during which reports include the service.
const KEEP: Duration = Duration::from_secs(10);

/// A request that the host must send with `POST`. Pass its answer to [`Mesh::reported`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callout {
    /// Envoy's name of the cluster.
    pub cluster: &'static str,
    /// The path of the resource.
    pub path: &'static str,
    /// The body, JSON.
    pub body: Vec<u8>,
    /// The time after which an answer is of no use.
    pub timeout: Duration,
}

/// The exchange with the server for one service.
#[derive(Debug)]
pub(crate) struct Central {
    service: String,
    rules: Rules,
    /// Whether latencies are divided by cost.
    per_cost: bool,
    fallback: Fallback,
    /// The time of the last call, µs, or 0 if there was none.
    called: Number,
    /// The time until which the server's decisions hold, µs, or 0 if there were none.
    heard: Number,
    /// The state of each class except the lowest.
    classes: Vec<Class>,
}

#[derive(Debug)]
struct Class {
    /// 1 − p in [`steps`], where p is the probability that the server decided.
    missing: Number,
    /// The time from which p = 1, µs.
    until: Number,
    /// The gauge with p · 1000.
    shown: MetricId,
    /// The sums of the next report, in the order of [`SUMS`].
    sums: [Number; SUMS.len()],
}

/// A field of a [`ClassReport`].
type Field = fn(&mut ClassReport) -> &mut u64;

/// The names and the fields of the sums of a [`ClassReport`].
const SUMS: [(&str, Field); 6] = [
    ("misses", |report| &mut report.misses),
    ("calls", |report| &mut report.calls),
    ("delay", |report| &mut report.delay_us),
    ("round_trip", |report| &mut report.round_trip_us),
    ("missed", |report| &mut report.missed),
    ("failed", |report| &mut report.failed),
];

/// Returns `now` in the unit of the shared numbers, µs.
fn clock(now: Instant) -> u64 {
    now.as_nanos() / 1_000
}

/// Returns the sum of the additions to `number` since the last call of this function, and subtracts
/// the sum from `number`.
fn take(host: &impl Shared, number: Number) -> Result<u64, HostError> {
    // The number is negative while a starting worker tests whether the host keeps the number (the
    // Wasm host's `Unfiltered`).
    let amount = host.get(number)?.cast_signed().max(0);
    if amount > 0 {
        // Other workers may have added in the meantime, so only `amount` is subtracted.
        host.add_to(number, -amount)?;
    }
    Ok(amount.unsigned_abs())
}

impl Class {
    fn new(host: &impl Shared, name: &str, shown: MetricId) -> Result<Self, HostError> {
        let number = |what: &str| host.number(&format!("{name}.{what}"));
        let missing = number("decided.missing")?;
        let mut sums = [missing; SUMS.len()];
        for (sum, (what, _)) in sums.iter_mut().zip(SUMS) {
            *sum = number(what)?;
        }
        Ok(Self {
            missing,
            until: number("decided.until")?,
            shown,
            sums,
        })
    }

    fn add(&self, host: &impl Shared, mut report: ClassReport) -> Result<(), HostError> {
        for (sum, (_, of)) in self.sums.into_iter().zip(SUMS) {
            let amount = *of(&mut report);
            if amount > 0 {
                host.add_to(sum, i64::try_from(amount).unwrap_or(i64::MAX))?;
            }
        }
        Ok(())
    }

    fn take(&self, host: &impl Shared) -> Result<ClassReport, HostError> {
        let mut report = ClassReport::default();
        for (sum, (_, of)) in self.sums.into_iter().zip(SUMS) {
            *of(&mut report) = take(host, sum)?;
        }
        Ok(report)
    }

    fn decided(
        &self,
        host: &impl Host,
        now: Instant,
        decision: &Decision,
    ) -> Result<(), HostError> {
        let until = decision
            .for_us
            .map_or(u64::MAX >> 1, |us| clock(now).saturating_add(us));
        host.set(self.until, until)?;
        host.set(self.missing, steps(1.0 - decision.admit).unsigned_abs())?;
        host.record(self.shown, permille(decision.admit))
    }
}

impl Central {
    /// Returns the exchange for a service, or `None` if no server decides on its calls. `prefix` is
    /// the prefix of the names of the service's numbers. `shown` are the gauges of its classes'
    /// probabilities.
    pub(crate) fn new(
        host: &impl Host,
        config: &ServiceAdmissionConfig,
        prefix: &str,
        shown: impl Iterator<Item = MetricId>,
    ) -> Result<Option<Self>, HostError> {
        let (Some(central), Some(rules)) = (&config.central, Rules::of(config)) else {
            return Ok(None);
        };
        let class = |(config, shown): (&headgate_core::config::ClassConfig, MetricId)| {
            Class::new(host, &format!("{prefix}.central.{}", config.name), shown)
        };
        let classes = config.classes.iter().zip(shown).map(class);
        Ok(Some(Self {
            service: central.service.clone(),
            rules,
            per_cost: config.per_cost,
            fallback: central.fallback,
            called: host.number(&format!("{prefix}.central.called"))?,
            heard: host.number(&format!("{prefix}.central.heard"))?,
            classes: classes.collect::<Result<_, _>>()?,
        }))
    }

    /// Whether the server's decisions still hold.
    pub(crate) fn is_heard(&self, host: &impl Shared, now: Instant) -> Result<bool, HostError> {
        Ok(host.get(self.heard)? > clock(now))
    }

    /// Whether all calls run in their class while no decision holds.
    pub(crate) fn falls_back_to_all(&self) -> bool {
        matches!(self.fallback, Fallback::Admit)
    }

    /// Returns the class in which a call that requests `wanted` must run, or `None` if the sender's
    /// own law decides.
    pub(crate) fn class_for(
        &self,
        host: &impl Shared,
        now: Instant,
        wanted: ClassId,
        rng: &mut Rng,
    ) -> Result<Option<ClassId>, HostError> {
        host.set(self.called, clock(now))?;
        if !self.is_heard(host, now)? {
            return Ok(match self.fallback {
                Fallback::Distributed => None,
                Fallback::Admit => Some(wanted),
            });
        }
        let Some(class) = self.classes.get(usize::from(wanted.0)) else {
            return Ok(Some(wanted));
        };
        let missing = host.get(class.missing)?;
        if missing == 0 || host.get(class.until)? <= clock(now) {
            return Ok(Some(wanted));
        }
        let lowest = u8::try_from(self.classes.len()).unwrap_or(u8::MAX);
        let admitted = rng.chance(probability(missing.cast_signed()));
        Ok(Some(if admitted { wanted } else { ClassId(lowest) }))
    }

    /// Records the end of a call, and whether the call `missed` its target. `waited` is the call's
    /// queue wait at the service. It is `None` if the call was refused there or not answered in
    /// time.
    pub(crate) fn completed(
        &self,
        host: &impl Shared,
        call: &Completion,
        missed: bool,
        waited: Option<Duration>,
    ) -> Result<(), HostError> {
        let Some(class) = self.classes.get(usize::from(call.class.0)) else {
            return Ok(());
        };
        let mut report = ClassReport {
            misses: missed.into(),
            ..ClassReport::default()
        };
        if let Method::Incast { .. } = self.rules.method {
            let cost = call.size.max(1);
            if let Some(waited) = waited {
                let units = if self.per_cost { cost } else { 1 };
                let delay = waited.min(call.latency);
                report.calls = 1;
                report.delay_us = micros(delay / units);
                report.round_trip_us = micros((call.latency - delay) / units);
                report.missed = if missed { cost.into() } else { 0 };
            } else {
                report.failed = cost.into();
            }
        }
        class.add(host, report)
    }

    /// Returns the service's report, or `None` if the service wasn't called within [`KEEP`]. Takes
    /// the sums even then, because a later report must not include calls of this period.
    fn report(
        &self,
        host: &impl Shared,
        now: Instant,
    ) -> Result<Option<ServiceReport<'_>>, HostError> {
        let called = host.get(self.called)?;
        if called == 0 {
            return Ok(None);
        }
        let classes = self.classes.iter().map(|class| class.take(host));
        let report = ServiceReport {
            service: Cow::Borrowed(&self.service),
            rules: Cow::Borrowed(&self.rules),
            classes: classes.collect::<Result<_, _>>()?,
        };
        let recent = clock(now).saturating_sub(called) <= micros(KEEP);
        Ok(recent.then_some(report))
    }

    fn decided(
        &self,
        host: &impl Host,
        now: Instant,
        (decisions, holds): (&[Decision], Duration),
    ) -> Result<(), HostError> {
        for (class, decision) in self.classes.iter().zip(decisions) {
            class.decided(host, now, decision)?;
        }
        host.set(self.heard, clock(now + holds))
    }
}

/// The schedule of reports, and their counters.
#[derive(Debug)]
pub(crate) struct Reports {
    /// The key of a record with the time of the next report, µs.
    key: String,
    interval: Duration,
    sent: MetricId,
    lost: MetricId,
}

impl Reports {
    pub(crate) fn new(host: &impl Host, policy: &str, interval_us: u64) -> Result<Self, HostError> {
        let prefix = stats::prefix(policy);
        let counter = |what| host.define(MetricKind::Counter, &format!("{prefix}.{what}"));
        Ok(Self {
            key: format!("headgate/admission/{policy}"),
            interval: Duration::from_micros(interval_us),
            sent: counter("admission_reports")?,
            lost: counter("admission_reports_lost")?,
        })
    }

    /// Returns the longest time between two reports. It is an interval plus the time to the next
    /// tick.
    fn pace(&self) -> Duration {
        self.interval + SLOW_TICK
    }

    /// Whether this worker must send a report. If a report is due, this worker claims it.
    fn claim(&self, host: &impl Shared, now: Instant) -> Result<bool, HostError> {
        let now = clock(now);
        let claimed = shared::change(host, &self.key, |due: &mut u64| {
            let is_due = now >= *due;
            if is_due {
                *due = now.saturating_add(micros(self.interval));
            }
            (is_due, is_due)
        });
        match claimed {
            Ok((_, claimed)) => Ok(claimed),
            // Another worker claimed the report.
            Err(HostError::Conflict) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Mesh {
    /// Returns the report to the admission server, or `None` if no report is due. Call this
    /// function at each tick.
    ///
    /// # Errors
    /// [`HostError`]. The report may then be lost.
    pub fn report(&mut self, host: &impl Host, now: Instant) -> Result<Option<Callout>, HostError> {
        let seed = self.seed;
        let Some(outbound) = &mut self.outbound else {
            return Ok(None);
        };
        let reports = outbound.admission.as_ref().and_then(|a| a.reports.as_ref());
        let Some(reports) = reports else {
            return Ok(None);
        };
        if !reports.claim(host, now)? {
            return Ok(None);
        }
        let process = outbound.process(host, seed)?;
        let Some(admission) = &outbound.admission else {
            return Ok(None);
        };
        admission.show_fallbacks(host, now)?;
        let mut services = Vec::new();
        for central in admission.centrals() {
            if services.len() < MAX_SERVICES {
                services.extend(central.report(host, now)?);
            }
        }
        let Some(reports) = admission.reports.as_ref().filter(|_| !services.is_empty()) else {
            return Ok(None);
        };
        let mut name = String::new();
        wire::put_process(&mut name, process);
        let report = Report {
            process: name.into(),
            services,
        };
        host.add(reports.sent, 1)?;
        Ok(Some(Callout {
            cluster: protocol::CLUSTER,
            path: protocol::PATH,
            // Serialization can't fail, because the report has no maps, and only numbers that JSON
            // can express.
            body: serde_json::to_vec(&report).unwrap_or_default(),
            timeout: 2 * reports.pace(),
        }))
    }

    /// Records the server's answer to a report. The answer is `None` if none came in time, or if
    /// its status was not 200. Returns whether the answer is valid and its decisions are now in
    /// force. Returns `None` if admission by a server was removed in the meantime.
    ///
    /// # Errors
    /// [`HostError`]. Only some of the decisions may then be in force.
    pub fn reported(
        &mut self,
        host: &impl Host,
        now: Instant,
        answer: Option<&[u8]>,
    ) -> Result<Option<bool>, HostError> {
        let admission = self.outbound.as_ref().and_then(|o| o.admission.as_ref());
        let Some((admission, reports)) = admission.and_then(|a| Some((a, a.reports.as_ref()?)))
        else {
            return Ok(None);
        };
        let answer = answer.filter(|json| json.len() <= MAX_BYTES);
        let answer = answer.and_then(|json| serde_json::from_slice::<Decisions<'_>>(json).ok());
        let valid = |answer: &Decisions<'_>| {
            let mut decisions = answer.services.iter().flat_map(|s| &s.classes);
            decisions.all(|decision| (0.0..=1.0).contains(&decision.admit))
        };
        let Some(answer) = answer.filter(valid) else {
            host.add(reports.lost, 1)?;
            return Ok(Some(false));
        };
        let holds = 3 * reports.pace();
        for central in admission.centrals() {
            let mut services = answer.services.iter();
            // The classes differ if the configuration is newer than the report.
            let own = services
                .find(|s| s.service == central.service && s.classes.len() == central.classes.len());
            if let Some(own) = own {
                central.decided(host, now, (&own.classes, holds))?;
            }
        }
        Ok(Some(true))
    }
}
