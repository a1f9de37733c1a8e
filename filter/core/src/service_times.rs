//! Processing times by query type: what is measured, shared between workers and read by decisions.
//!
//! Bouncer (§3) keeps a histogram of processing times per type and updates it "using a dual-buffer
//! technique": one histogram is read while a second is populated, and at the end of an interval they are
//! swapped. Appendix A adds a general histogram over all types, which stands in for a type that has too
//! few samples, judged by the objectives of `default`; and it retains a histogram through a lull.
//!
//! The difficulty is that each worker of the proxy sees only its part of the completions, and that VMs
//! come and go with every policy edit and upgrade. So both buffers of a type live in data that the
//! workers share (`shared::Record`), under the type's *name*: what was learned survives edits that
//! reorder, add or remove types, and upgrades of the code. As whole histograms are shared, an edit may
//! ask for other percentiles and gets them from what is already known.
//!
//! - A worker appends its samples to a log of fixed size: [`ServiceTimes::record`] neither allocates nor
//!   calls the host, and costs the same for 1 type or 1,024.
//! - About ten times an interval (sooner while a type is cold) [`ServiceTimes::sync`] merges the log into
//!   the shared buffers. The first visit after an interval's end swaps them, in the same compare-and-swap:
//!   no leader, nobody to wait for, no swap twice.
//! - Decisions read the worker's own table of mean and quantiles. A swap changes one shared number; a
//!   worker that sees it changed reads the records again. An idle sync is one read of a few bytes.
//! - One sync visits at most 64 records, the next goes on: a thousand types don't stall a worker.
//!
//! **Where this adds to Appendix A.** A retained histogram has a trap: if it misses an objective by
//! itself, even without any queue wait, then every request of its type is refused, nothing is measured,
//! and the type stays shut out for good, however idle the backend. A slow phase is enough, or an unlucky
//! sample of a type that is close to its objective. Such an estimate is marked
//! [`Estimate::condemned`]: Bouncer then lets in requests that find no queue, for which §2 has a reason,
//! too ("Bouncer should not prevent the system from processing queries at its full capacity"), and
//! `min_samples` of them become readable at once. In simulation at 1.2× load this raises
//! utilization from 87% to 100% (and brings rejections to within two points of Table 3's).
//!
//! Memory per worker: 64 KB for the log, about 150 bytes a type and 40 an objective; 1,000 types with
//! two objectives 0.3 MB in total. Shared: two sparse histograms a type, typically 1 to 2 KB, at most
//! 30 KB (every bucket occupied); 1,000 types 2 MB, at most 30 MB. While a sync runs, two decoded
//! histograms, at most 34 KB.
//!
//! Left out on purpose: a VM that dies takes along what is in its log (about a tenth of an interval's
//! samples), and a retained histogram doesn't decay (App. A sets no age either).

mod shared;
mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::histogram::Histogram;
use crate::host::{Host, HostError};
use crate::strategy::TypeId;
use crate::time::{Instant, nanos};

pub use table::{Estimate, Objective, Settings, Source, TypeSettings};

use table::Row;

/// Samples that a worker keeps between two exchanges. More are left out; at an exchange every 10 ms that
/// is beyond 800,000 requests/s of one worker.
const LOG: usize = 8_192;
/// Records that one sync visits at most, apart from a worker's first.
const VISITS: usize = 64;
/// A sample in the log: the type above, nanoseconds below.
const NANOS_BITS: u32 = 48;
const NANOS: u64 = (1 << NANOS_BITS) - 1;

/// Processing times of one stage, as one worker measures and knows them.
#[derive(Debug)]
pub struct ServiceTimes {
    interval: Duration,
    min_samples: u32,
    /// By type, then the general row.
    rows: Vec<Row>,
    log: Vec<u64>,
    /// The first so many entries of the log are in the general histogram already.
    log_in_general: usize,
    /// The log holds a sample that a cold or condemned row waits for.
    log_urgent: bool,
    /// Type at which the next exchange continues.
    cursor: u64,
    left_out: u64,
    exchanged: Instant,
    epoch: u64,
    /// Rows whose records are to be looked at.
    visits: Vec<u16>,
    /// The shared number of changes, as last seen; `None` before the first sync.
    seen: Option<u64>,
    /// A swap that could not be announced yet.
    announce: bool,
}

impl ServiceTimes {
    /// Knows nothing before the first [`ServiceTimes::sync`].
    #[must_use]
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
        let rows = types.chain([("general".to_owned(), default)]);
        Self {
            interval: settings.interval,
            min_samples: settings.min_samples,
            rows: rows
                .map(|(name, objectives)| Row::new(name, objectives))
                .collect(),
            log: Vec::with_capacity(LOG),
            log_in_general: 0,
            log_urgent: false,
            cursor: 0,
            left_out: 0,
            exchanged: Instant::default(),
            epoch: 0,
            visits: Vec::new(),
            seen: None,
            announce: false,
        }
    }

    /// Records one processing time. Neither allocates nor calls the host.
    pub fn record(&mut self, kind: TypeId, processing: Duration) {
        if self.log.len() >= LOG {
            self.left_out += 1;
            return;
        }
        let kind = self.index(kind);
        let waiting = |row: &Row| !row.is_ready() || row.condemned;
        self.log_urgent |= waiting(&self.rows[kind]) || waiting(self.general());
        self.log
            .push((kind as u64) << NANOS_BITS | nanos(processing).min(NANOS));
    }

    /// Samples that were left out because no sync came before the log was full.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// What decisions about a request of `kind` are to use. Unknown types count as `default`.
    #[must_use]
    pub fn estimate(&self, kind: TypeId) -> Estimate<'_> {
        let own = &self.rows[self.index(kind)];
        let general = self.general();
        let (source, row) = match (own.is_ready(), general.is_ready()) {
            (true, _) => (Source::Own, own),
            (false, true) => (Source::General, general),
            (false, false) => (Source::None, general),
        };
        Estimate {
            source,
            mean: row.mean,
            quantiles: &row.quantiles,
            objectives: &row.objectives,
            condemned: row.condemned,
        }
    }

    /// The objectives of `kind` itself, ascending by percentile.
    #[must_use]
    pub fn objectives(&self, kind: TypeId) -> &[Objective] {
        &self.rows[self.index(kind)].objectives
    }

    /// Mean processing time of `kind`, by its own histogram or the general one; `pt_mean` of Eq. 2.
    /// `None` when neither has enough samples yet.
    #[must_use]
    pub fn mean(&self, kind: TypeId) -> Option<Duration> {
        let estimate = self.estimate(kind);
        (estimate.source != Source::None).then_some(estimate.mean)
    }

    /// Mean processing time over all types; `None` when too little was measured yet.
    #[must_use]
    pub fn mean_of_all(&self) -> Option<Duration> {
        let general = self.general();
        general.is_ready().then_some(general.mean)
    }

    /// Mean time that a busy slot still needs for its request, over all types: E\[pt²\] / (2 E\[pt\]).
    /// Zero when too little was measured yet.
    #[must_use]
    pub fn mean_residual(&self) -> Duration {
        self.general().mean_residual
    }

    /// Shares what this worker recorded, if that is due, and picks up what changed. Called from the
    /// worker's tick; `key_prefix` names the stage among the process's shared data and must be the same
    /// in all workers. Returns whether an estimate changed.
    ///
    /// # Errors
    /// [`HostError::Call`] when the host refuses; nothing is lost, the next call continues.
    pub fn sync(
        &mut self,
        now: Instant,
        host: &impl Host,
        key_prefix: &str,
    ) -> Result<bool, HostError> {
        let first = self.seen.is_none();
        let urgent = self.log_urgent || self.log.len() >= LOG / 2;
        let period = self.interval / 10;
        // A clock that stepped back makes it due, too.
        let elapsed = now < self.exchanged || now.since(self.exchanged) >= period;
        let due = urgent || elapsed;
        self.run(
            now,
            host,
            key_prefix,
            due,
            if first { usize::MAX } else { VISITS },
        )
    }

    /// Shares everything that this worker recorded, now: before its policy or its VM is replaced.
    ///
    /// # Errors
    /// As [`ServiceTimes::sync`].
    pub fn flush(
        &mut self,
        now: Instant,
        host: &impl Host,
        key_prefix: &str,
    ) -> Result<bool, HostError> {
        self.run(now, host, key_prefix, true, usize::MAX)
    }

    fn run(
        &mut self,
        now: Instant,
        host: &impl Host,
        prefix: &str,
        exchange: bool,
        budget: usize,
    ) -> Result<bool, HostError> {
        let mut changed = false;
        if exchange {
            changed |= self.exchange(now, host, prefix, budget)?;
        }
        let epoch = shared::epoch(now, self.interval);
        if epoch != self.epoch {
            self.epoch = epoch;
            self.visit_rows(|row| row.populating);
        }
        let change = shared::load_change(host, &format!("{prefix}/change"))?;
        if self.seen != Some(change) {
            self.seen = Some(change);
            self.visit_rows(|_| true);
        }
        for _ in 0..budget.min(self.visits.len()) {
            let Some(row) = self.visits.pop() else { break };
            match self.visit(now, host, prefix, row as usize, None) {
                Err(HostError::Conflict) => {}
                other => changed |= other?,
            }
        }
        if self.announce {
            match shared::announce_change(host, &format!("{prefix}/change")) {
                Ok(number) => {
                    self.announce = false;
                    // Only our own swaps in between: nothing to pick up.
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

    /// Plans a look at the records of the rows that `wanted` says; the general one comes first.
    fn visit_rows(&mut self, wanted: impl Fn(&Row) -> bool) {
        let mut planned = vec![false; self.rows.len()];
        self.visits
            .drain(..)
            .for_each(|row| planned[row as usize] = true);
        for (at, row) in self.rows.iter().enumerate() {
            if planned[at] || wanted(row) {
                self.visits.push(at as u16);
            }
        }
    }

    /// Merges the log into the shared records: the general one, then that of each type in the log.
    fn exchange(
        &mut self,
        now: Instant,
        host: &impl Host,
        prefix: &str,
        budget: usize,
    ) -> Result<bool, HostError> {
        if self.log.is_empty() {
            self.exchanged = now;
            return Ok(false);
        }
        let mut delta = Histogram::default();
        let fresh = &mut self.log[self.log_in_general..];
        fresh.sort_unstable_by_key(|sample| sample & NANOS);
        fresh
            .iter()
            .for_each(|sample| delta.record(Duration::from_nanos(sample & NANOS)));
        let mut changed = false;
        if !delta.is_empty() {
            match self.visit(now, host, prefix, self.rows.len() - 1, Some(&delta)) {
                Err(HostError::Conflict) => return Ok(false),
                other => changed |= other?,
            }
        }
        // Sorted by type, and within a type by time; the turn goes round so that every type has one.
        let mut log = std::mem::take(&mut self.log);
        log.sort_unstable();
        let turn = log.partition_point(|sample| sample >> NANOS_BITS < self.cursor);
        log.rotate_left(turn);
        let mut done = 0;
        let mut failure = None;
        for group in log
            .chunk_by(|a, b| a >> NANOS_BITS == b >> NANOS_BITS)
            .take(budget)
        {
            let row = group[0] >> NANOS_BITS;
            delta.clear();
            group
                .iter()
                .for_each(|sample| delta.record(Duration::from_nanos(sample & NANOS)));
            match self.visit(now, host, prefix, row as usize, Some(&delta)) {
                Ok(news) => changed |= news,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
            done += group.len();
            self.cursor = row + 1;
        }
        log.drain(..done);
        self.log_in_general = log.len();
        self.log = log;
        if self.log.is_empty() {
            self.log_urgent = false;
            self.exchanged = now;
        }
        match failure {
            None | Some(HostError::Conflict) => Ok(changed),
            Some(error) => Err(error),
        }
    }

    fn visit(
        &mut self,
        now: Instant,
        host: &impl Host,
        prefix: &str,
        row: usize,
        delta: Option<&Histogram>,
    ) -> Result<bool, HostError> {
        let interval = self.interval;
        let row = &mut self.rows[row];
        let visit = shared::Visit {
            now,
            interval,
            min_samples: self.min_samples,
            condemned: row.generation.filter(|_| row.condemned),
            delta,
        };
        let (record, rotated) = shared::update(host, &format!("{prefix}/{}", row.name), &visit)?;
        self.announce |= rotated;
        Ok(row.adopt(&record))
    }

    fn index(&self, kind: TypeId) -> usize {
        // The last row is the general one, the one before it `default`'s.
        (kind.0 as usize).min(self.rows.len().saturating_sub(2))
    }

    fn general(&self) -> &Row {
        &self.rows[self.rows.len() - 1]
    }
}
