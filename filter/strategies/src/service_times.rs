//! Processing times by query type. They are measured per worker, shared between workers, and read
//! by decisions.
//!
//! Bouncer (§3) keeps a histogram of processing times per type and updates it "using a dual-buffer
//! technique": one histogram is read while a second is populated, and at the end of an interval
//! they are swapped. §7 suggests a sliding window instead. Both are one algorithm here, described
//! in `record`: dual buffers are a window that slides by its whole length. Appendix A adds a
//! general histogram over all types. It replaces the histogram of a type with too few samples, and
//! the type is then judged by the objectives of `default`. Appendix A also retains a histogram
//! through a lull.
//!
//! Each worker of the proxy sees only its part of the completions, and every policy edit and
//! upgrade replaces VMs. So all histograms of a type are in data that the workers share
//! (`record::Record`), under the type's *name*. They survive upgrades of the code, and edits that
//! reorder, add or remove types or change the window. Because whole histograms are shared, an edit
//! may ask for other percentiles and gets them from the existing data.
//!
//! - A worker appends its samples to a log of fixed size. [`ServiceTimes::record`] neither
//!   allocates nor calls the host, and costs the same for 1 type or 1,024.
//! - About ten times a step (sooner while a type is cold) [`ServiceTimes::sync`] merges the log
//!   into the shared records. The first visit after a step's end advances the window, in the same
//!   compare-and-swap. So there is no leader, no waiting, and no step that ends twice.
//! - Decisions read the worker's own table of mean and quantiles. A step changes one shared number.
//!   A worker that sees this number changed reads the records again. An idle sync is one read of a
//!   few bytes.
//! - One sync visits at most 64 records for its own samples and 64 for changes, and the next
//!   continues where it ended. So a thousand types don't stall a worker, and each gets its turn.
//!
//! **An addition to Appendix A.** A retained histogram can shut a type out. If it misses an
//! objective even without any queue wait, every request of its type is refused and nothing is
//! measured. The type is then refused permanently, however idle the backend is. A slow phase is
//! enough, or an unlucky sample of a type that is close to its objective. Such an estimate is
//! marked [`Estimate::condemned`]. Bouncer then admits requests that find no queue, and
//! `min_samples` of them become readable at once. §2 also argues for that ("Bouncer should not
//! prevent the system from processing queries at its full capacity"). In simulation at 1.2× load
//! this raises utilization from 87% to 100%, and brings rejections to within two points of Table
//! 3's.
//!
//! **Streams.** With `measure: FirstByte`, processing time ends with the first byte of a response,
//! but the slot is held to the last byte. Objectives then apply to a shorter time than slots are
//! held. So a second set of the same histograms measures slot times. The means of slot times
//! determine the drain rate of the queue (Eq. 2) and the cost of a request. Quantiles are of
//! processing times, because they are compared with objectives. A slot time is measured when the
//! slot is given back. Until the first streams end, slot times are assumed to end at the first
//! byte.
//!
//! A worker needs 64 KB of memory for the log, about 150 bytes for each type and 40 bytes for each
//! objective. That is 0.3 MB in total for 1,000 types with two objectives. The shared data of a
//! type are a sparse histogram for each step and one more. A histogram has 3 bytes for each
//! different value (to 1.6%), typically 0.2 to 1 KB, and at most 15 KB. With dual buffers, 1,000
//! types take 2 MB, and at most 30 MB. While a sync runs, it needs two decoded histograms, at most
//! 34 KB.
//!
//! Two things are left out on purpose. The log of a VM that dies is lost (about a tenth of a step's
//! samples). A retained histogram doesn't decay (App. A sets no age either).

mod cost;
mod log;
mod record;
#[cfg(test)]
mod sliding_tests;
mod table;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::StageConfig;
use crate::histogram::Histogram;
use crate::host::{HostError, Shared};
use crate::request::{Attributes, TypeId};
use crate::shared;
use crate::time::Instant;

pub use table::{Estimate, Objective, Settings, Source, TypeSettings};

use cost::Costs;
use log::Log;
use record::{Record, Window};
use table::Row;

/// The largest number of records that one sync visits, except for a worker's first sync.
const VISITS: usize = 64;

/// The processing times of one stage on one worker: the worker's own samples, and the estimates
/// from the shared records.
#[derive(Debug, Default)]
pub struct ServiceTimes {
    window: Window,
    /// A row for each type, then the general row.
    rows: Vec<Row>,
    log: Log,
    /// Whether the log holds a sample for a cold or condemned row.
    log_urgent: bool,
    exchanged: Instant,
    epoch: u64,
    /// The rows whose records must be visited, in this order.
    visits: VecDeque<u16>,
    /// The shared number of changes when it was last read. It is `None` before the first sync.
    seen: Option<u64>,
    /// Whether a change of the records has not been announced yet.
    announce: bool,
    /// The slot times, or `None` if slots are released when processing times end.
    slots: Option<Box<ServiceTimes>>,
    /// The costs of requests by their size, or `None` if no type has `cost`.
    costs: Option<Costs>,
}

impl ServiceTimes {
    /// Creates the processing times of a stage.
    pub fn from_config(config: &StageConfig) -> Self {
        let settings = Settings::from_config(config);
        let mut slots = settings.clone();
        for kind in &mut slots.types {
            kind.objectives.clear();
        }
        let slots = || {
            let costs = Costs::from_config(config, slots.clone(), true);
            Box::new(Self {
                costs,
                ..Self::new(slots)
            })
        };
        Self {
            costs: Costs::from_config(config, settings.clone(), false),
            slots: config.holds_streams().then(slots),
            ..Self::new(settings)
        }
    }

    /// Creates processing times without estimates until the first [`ServiceTimes::sync`].
    pub fn new(settings: Settings) -> Self {
        let default = settings
            .types
            .last()
            .map(|d| d.objectives.clone())
            .unwrap_or_default();
        let types = settings
            .types
            .into_iter()
            .map(|kind| (format!("type/{}", kind.name), kind.objectives));
        let rows: Vec<Row> = types
            .chain([("general".to_owned(), default)])
            .map(|(name, objectives)| Row::new(name, objectives))
            .collect();
        let steps = settings.steps.max(1);
        Self {
            window: Window {
                step: settings.interval / steps,
                steps,
                min_samples: settings.min_samples,
            },
            log: Log::new(rows.len()),
            rows,
            ..Self::default()
        }
    }

    /// Records one processing time. The sample counts as `weight` requests, because not every
    /// answer is measured ([`Served::weight`](crate::request::Served)). A type's own statistics
    /// don't depend on the weight. Statistics over all types weight each type by its traffic. The
    /// call neither allocates nor calls the host.
    pub fn record(&mut self, kind: TypeId, processing: Duration, weight: u32) {
        let kind = self.index(kind);
        if self.log.push(kind, processing, weight) {
            let waiting = |row: &Row| !row.is_ready() || row.condemned;
            self.log_urgent |= waiting(&self.rows[kind]) || waiting(self.general());
        }
    }

    /// Records the processing time of `request` together with its size and the `output` that it
    /// had, if its type has `cost`.
    pub fn record_cost(
        &mut self,
        request: &Attributes,
        output: u32,
        processing: Duration,
        weight: u32,
    ) {
        if let Some(costs) = &mut self.costs {
            costs.record(request, output, processing, weight);
        }
    }

    /// Records the time for which `request` held its slot, if the stage measures slot times apart
    /// from processing times. `output` is as in [`ServiceTimes::record_cost`], and `weight` as in
    /// [`ServiceTimes::record`].
    pub fn record_slot(&mut self, request: &Attributes, output: u32, held: Duration, weight: u32) {
        if let Some(slots) = &mut self.slots {
            slots.record(request.kind, held, weight);
            slots.record_cost(request, output, held, weight);
        }
    }

    /// Returns the estimate for decisions on a request of `kind`. Unknown types count as `default`.
    pub fn estimate(&self, kind: TypeId) -> Estimate<'_> {
        let (source, row) = self.row(kind);
        let request = Attributes::of(kind);
        let held = |time| self.at_least_held(&request, time);
        let own = &self.rows[self.index(kind)];
        Estimate {
            source,
            mean: held(row.mean),
            quantiles: &row.quantiles,
            objectives: &row.objectives,
            condemned: row.condemned,
            preliminary: own.preliminary.map(held),
            unit: None,
        }
    }

    /// Returns the estimate for decisions on `request`. It depends on the request's size if the
    /// type's cost depends on the size and enough requests of such sizes were measured. Otherwise
    /// it is the type's estimate.
    pub fn estimate_of(&self, request: &Attributes) -> Estimate<'_> {
        let Some((unit, ratios)) = self.by_size(request) else {
            return self.estimate(request.kind);
        };
        let mean = ratios.mean.mul_f64(unit);
        let mut estimate = Estimate {
            source: Source::Own,
            mean: self.at_least_held(request, mean),
            quantiles: &ratios.quantiles,
            objectives: self.objectives(request.kind),
            condemned: false,
            preliminary: None,
            unit: Some(unit),
        };
        estimate.condemned = (estimate.times().zip(estimate.objectives))
            .any(|(time, objective)| time > objective.response_time);
        estimate
    }

    /// Returns the estimate of requests of the size of `request`, as [`Costs::of`] does.
    fn by_size(&self, request: &Attributes) -> Option<(f64, &Row)> {
        self.costs.as_ref()?.of(request)
    }

    /// Whether the cost of `kind` depends on the size of its requests.
    pub fn has_cost(&self, kind: TypeId) -> bool {
        self.costs.as_ref().is_some_and(|costs| costs.has(kind))
    }

    /// Returns the slot time of a request that is processed for `time`. It is at least `time`.
    fn at_least_held(&self, request: &Attributes, time: Duration) -> Duration {
        match &self.slots {
            Some(slots) => {
                let slots = slots.estimate_of(request);
                time.max(slots.preliminary.unwrap_or(slots.mean))
            }
            None => time,
        }
    }

    /// Returns the statistics used for `kind`, and their source.
    fn row(&self, kind: TypeId) -> (Source, &Row) {
        let (own, general) = (&self.rows[self.index(kind)], self.general());
        match (own.is_ready(), general.is_ready()) {
            (true, _) => (Source::Own, own),
            (false, true) => (Source::General, general),
            (false, false) => (Source::None, general),
        }
    }

    /// Returns the objectives of `kind`, ascending by percentile.
    #[inline]
    pub fn objectives(&self, kind: TypeId) -> &[Objective] {
        &self.rows[self.index(kind)].objectives
    }

    /// Returns the mean time for which a request of `kind` holds a slot (`pt_mean` of Eq. 2). It
    /// comes from the type's own histogram or the general one. Returns `None` when neither has
    /// enough samples yet.
    #[inline]
    pub fn mean(&self, kind: TypeId) -> Option<Duration> {
        let estimate = self.estimate(kind);
        (estimate.source != Source::None).then_some(estimate.mean)
    }

    /// Returns the mean time for which `request` holds a slot, estimated from its size if the
    /// estimate is known. Otherwise returns [`ServiceTimes::mean`] of its type.
    pub fn mean_of(&self, request: &Attributes) -> Option<Duration> {
        let estimate = self.estimate_of(request);
        (estimate.source != Source::None).then_some(estimate.mean)
    }

    /// Returns the mean processing time of requests like `request`, from samples of their own type
    /// only and without regard to slot times. Returns `None` when there are too few samples.
    pub fn own_mean(&self, request: &Attributes) -> Option<Duration> {
        let own = &self.rows[self.index(request.kind)];
        let of_type = || own.is_ready().then_some(own.mean).or(own.preliminary);
        self.mean_by_size(request).or_else(of_type)
    }

    /// Returns the mean processing time of requests of the size of `request`, or `None` if it is
    /// not known.
    pub fn mean_by_size(&self, request: &Attributes) -> Option<Duration> {
        let (unit, ratios) = self.by_size(request)?;
        Some(ratios.mean.mul_f64(unit))
    }

    /// Returns the mean time for which a slot is held, over all types. Returns `None` when there
    /// are too few samples.
    pub fn mean_of_all(&self) -> Option<Duration> {
        let general = self.held();
        general.is_ready().then_some(general.mean)
    }

    /// Returns the processing time that nine in ten requests like `request` exceed. Returns zero
    /// while their type has no histogram.
    pub fn at_least(&self, request: &Attributes) -> Duration {
        match self.by_size(request) {
            Some((unit, ratios)) => ratios.at_least.mul_f64(unit),
            None => self.rows[self.index(request.kind)].at_least,
        }
    }

    /// Returns the mean residual time of a busy slot, over all types: E\[pt²\] / (2 E\[pt\]).
    /// Returns zero when there are too few samples.
    pub fn mean_residual(&self) -> Duration {
        self.held().mean_residual
    }

    /// Shares this worker's samples, if that is due, and reads changes. Returns whether an estimate
    /// changed. The worker's tick calls this function. `key_prefix` is the stage's prefix in the
    /// process's shared data and must be the same in all workers.
    ///
    /// # Errors
    /// [`HostError::Call`] when the host refuses a call. Nothing is lost, and the next call
    /// continues.
    pub fn sync(
        &mut self,
        now: Instant,
        host: &impl Shared,
        key_prefix: &str,
    ) -> Result<bool, HostError> {
        self.share(now, host, key_prefix, false)
    }

    /// Shares all samples of this worker now, before its policy or its VM is replaced.
    ///
    /// # Errors
    /// As [`ServiceTimes::sync`].
    pub fn flush(
        &mut self,
        now: Instant,
        host: &impl Shared,
        key_prefix: &str,
    ) -> Result<bool, HostError> {
        self.share(now, host, key_prefix, true)
    }

    /// Shares samples and reads changes, for [`ServiceTimes::sync`] or, with `all`, for
    /// [`ServiceTimes::flush`].
    fn share(
        &mut self,
        now: Instant,
        host: &impl Shared,
        prefix: &str,
        all: bool,
    ) -> Result<bool, HostError> {
        let first = self.seen.is_none();
        let urgent = self.log_urgent || self.log.is_half_full();
        // Sharing is also due if the clock stepped back.
        let elapsed = now < self.exchanged || now.since(self.exchanged) >= self.window.step / 10;
        let due = all || urgent || elapsed;
        let budget = match all || first {
            true => usize::MAX,
            false => VISITS,
        };
        let mut changed = self.run(now, host, prefix, due, budget)?;
        if let Some(costs) = &mut self.costs {
            costs.exchange(host, prefix, due, budget)?;
            costs
                .ratios
                .share(now, host, &format!("{prefix}/ratios"), all || first)?;
        }
        if let Some(slots) = &mut self.slots {
            changed |= slots.share(now, host, &format!("{prefix}/slots"), all)?;
        }
        Ok(changed)
    }

    fn run(
        &mut self,
        now: Instant,
        host: &impl Shared,
        prefix: &str,
        exchange: bool,
        budget: usize,
    ) -> Result<bool, HostError> {
        let mut changed = false;
        if exchange {
            changed |= self.exchange(now, host, prefix, budget)?;
        }
        let epoch = self.window.number(now);
        if epoch != self.epoch {
            self.epoch = epoch;
            self.plan_visits(|row| row.moving);
        }
        let change_key = format!("{prefix}/change");
        let change: u64 = shared::load(host, &change_key)?;
        if self.seen != Some(change) {
            self.seen = Some(change);
            self.plan_visits(|_| true);
        }
        for _ in 0..budget.min(self.visits.len()) {
            let Some(row) = self.visits.pop_front() else {
                break;
            };
            let row = usize::from(row);
            self.rows[row].planned = false;
            match self.visit(now, host, prefix, row, None) {
                Err(HostError::Conflict) => {}
                other => changed |= other?,
            }
        }
        if self.announce {
            let announced = shared::change(host, &change_key, |number: &mut u64| {
                *number = number.wrapping_add(1);
                (true, ())
            });
            match announced {
                Ok((number, ())) => {
                    self.announce = false;
                    // All changes in between are this worker's own, so no record needs to be read
                    // again.
                    if self.seen.is_some_and(|seen| seen.wrapping_add(1) == number) {
                        self.seen = Some(number);
                    }
                }
                Err(HostError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(changed)
    }

    /// Plans visits to the records of the rows for which `wanted` is true, after the visits that
    /// are already planned. Only the general record comes first, because all types may need it.
    fn plan_visits(&mut self, wanted: impl Fn(&Row) -> bool) {
        let general = self.rows.len() - 1;
        for (at, row) in self.rows.iter_mut().enumerate() {
            if row.planned || !wanted(row) {
                continue;
            }
            row.planned = true;
            if at == general {
                self.visits.push_front(at as u16);
            } else {
                self.visits.push_back(at as u16);
            }
        }
    }

    /// Merges the log into the shared records: first the general record, then the record of each
    /// type in the log.
    fn exchange(
        &mut self,
        now: Instant,
        host: &impl Shared,
        prefix: &str,
        budget: usize,
    ) -> Result<bool, HostError> {
        let mut log = std::mem::take(&mut self.log);
        let mut changed = false;
        let result = self.merge(&mut log, now, host, prefix, budget, &mut changed);
        self.log = log;
        if self.log.is_empty() {
            self.log_urgent = false;
            self.exchanged = now;
        }
        match result {
            // Samples that could not be merged now stay in the log.
            Ok(()) | Err(HostError::Conflict) => Ok(changed),
            Err(error) => Err(error),
        }
    }

    fn merge(
        &mut self,
        log: &mut Log,
        now: Instant,
        host: &impl Shared,
        prefix: &str,
        budget: usize,
        changed: &mut bool,
    ) -> Result<(), HostError> {
        let delta = log.for_general();
        if !delta.is_empty() {
            *changed |= self.visit(now, host, prefix, self.rows.len() - 1, Some(&delta))?;
            log.general_has_all();
        }
        log.drain_types(budget, |row, delta| {
            *changed |= self.visit(now, host, prefix, row, Some(delta))?;
            Ok(())
        })
    }

    fn visit(
        &mut self,
        now: Instant,
        host: &impl Shared,
        prefix: &str,
        row: usize,
        delta: Option<&Histogram>,
    ) -> Result<bool, HostError> {
        let row = &mut self.rows[row];
        let key = format!("{prefix}/{}", row.name);
        let condemned = row.generation.filter(|_| row.condemned);
        let (record, moved) = Record::visit(host, &key, now, &self.window, condemned, delta)?;
        self.announce |= moved;
        Ok(row.adopt(&record, &self.window))
    }

    fn index(&self, kind: TypeId) -> usize {
        // The last row is the general one, and the row before the last is that of `default`.
        (kind.0 as usize).min(self.rows.len().saturating_sub(2))
    }

    fn general(&self) -> &Row {
        &self.rows[self.rows.len() - 1]
    }

    /// Returns the statistics of slot times over all types.
    fn held(&self) -> &Row {
        let slots = self.slots.as_deref().map(Self::general);
        slots.filter(|row| row.is_ready()).unwrap_or(self.general())
    }
}
