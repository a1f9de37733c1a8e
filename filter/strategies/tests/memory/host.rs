//! A host in memory. Several workers, which may be threads, share it through an `Arc`.
//!
//! It behaves like Envoy, even in details: gauges wrap below zero, counters refuse negative deltas,
//! histograms can't be read, and every store gives a blob a new version. For tests of faults it
//! misbehaves on demand ([`Fault`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use headgate_strategies::host::{HostError, Number, Shared, Version};

use super::{MetricId, MetricKind};

/// proxy-wasm `Status::BadArgument`.
const BAD_ARGUMENT: u32 = 2;
/// proxy-wasm `Status::NotFound`.
const NOT_FOUND: u32 = 1;
/// proxy-wasm `Status::InternalFailure`, reported by injected faults.
const INTERNAL_FAILURE: u32 = 10;

/// A fault for [`MemoryHost::inject`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A store fails with a conflict, whatever the expected version.
    StoreConflicts,
    /// A store fails.
    StoreFails,
    /// A load fails.
    LoadFails,
    /// Defining, adding to, recording into or reading a metric fails.
    MetricFails,
    /// A wake-up is accepted and lost.
    WakeIsLost,
}

const FAULTS: usize = 5;

#[derive(Debug)]
struct Metric {
    kind: MetricKind,
    name: String,
    /// Whether writes are dropped and reads return 0; see [`MemoryHost::reject`].
    rejected: bool,
    /// The value of a counter or gauge; for a histogram, the sum of its values.
    value: AtomicU64,
    /// The value that [`MemoryHost::import`] adds to it.
    imported: AtomicU64,
    /// The number of values of a histogram.
    recorded: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    ids: HashMap<String, usize>,
    all: Vec<Metric>,
}

#[derive(Debug, Default)]
struct Mailbox {
    gone: AtomicBool,
    wakes: AtomicU32,
}

/// A host in memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryHost {
    metrics: RwLock<Table>,
    blobs: Mutex<HashMap<String, (Vec<u8>, Version)>>,
    /// The version of the next store, in one sequence over all keys, as in Envoy.
    versions: AtomicU32,
    mailboxes: RwLock<Vec<Mailbox>>,
    rejected: Mutex<Vec<String>>,
    faults: [AtomicU32; FAULTS],
    calls: AtomicU64,
    /// ns.
    wall_clock_offset: AtomicU64,
}

impl MemoryHost {
    /// Creates a host without metrics and blobs.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Makes the next `n` calls to which `fault` applies misbehave.
    pub(crate) fn inject(&self, fault: Fault, n: u32) {
        self.faults[fault as usize].store(n, Ordering::SeqCst);
    }

    /// Makes all metrics with `part` in their name that are defined later drop writes and read 0,
    /// as if Envoy's stats matcher rejected them.
    pub(crate) fn reject(&self, part: &str) {
        self.rejected().push(part.to_owned());
    }

    /// Adds `value` to all reads of `name`, as if Envoy imported it from its parent process.
    pub(crate) fn import(&self, name: &str, value: u64) {
        let metrics = self.metrics();
        if let Some(&at) = metrics.ids.get(name) {
            metrics.all[at].imported.store(value, Ordering::SeqCst);
        }
    }

    /// Sets the result of [`Shared::wall_clock_offset`].
    pub(crate) fn set_wall_clock_offset(&self, offset: Duration) {
        let nanos = headgate_strategies::time::nanos(offset);
        self.wall_clock_offset.store(nanos, Ordering::SeqCst);
    }

    fn rejected(&self) -> MutexGuard<'_, Vec<String>> {
        self.rejected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the wake-ups of `worker` since the last call.
    pub(crate) fn take_wakes(&self, worker: u32) -> u32 {
        self.with_mailbox(worker, |mailbox| mailbox.wakes.swap(0, Ordering::SeqCst))
    }

    /// Makes waking `worker` fail, as if its VM had ended; with `false`, undoes that.
    pub(crate) fn set_gone(&self, worker: u32, gone: bool) {
        self.with_mailbox(worker, |mailbox| mailbox.gone.store(gone, Ordering::SeqCst));
    }

    /// Returns the value of the counter or gauge `name`; `None` if it is undefined or a histogram.
    pub(crate) fn value(&self, name: &str) -> Option<u64> {
        let metrics = self.metrics();
        let metric = &metrics.all[*metrics.ids.get(name)?];
        (metric.kind != MetricKind::Histogram).then(|| metric.value.load(Ordering::SeqCst))
    }

    /// Returns the number and the sum of the values in the histogram `name`; `None` if it doesn't
    /// exist.
    pub(crate) fn recorded(&self, name: &str) -> Option<(u64, u64)> {
        let metrics = self.metrics();
        let metric = &metrics.all[*metrics.ids.get(name)?];
        (metric.kind == MetricKind::Histogram).then(|| {
            (
                metric.recorded.load(Ordering::SeqCst),
                metric.value.load(Ordering::SeqCst),
            )
        })
    }

    /// Returns kinds, names and values of all metrics, in the order of their definition.
    pub(crate) fn all_metrics(&self) -> Vec<(MetricKind, String, u64)> {
        let metrics = self.metrics();
        let row = |m: &Metric| (m.kind, m.name.clone(), m.value.load(Ordering::SeqCst));
        metrics.all.iter().map(row).collect()
    }

    /// Returns the names of all blobs, sorted.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.blobs().keys().cloned().collect();
        keys.sort_unstable();
        keys
    }

    /// Returns the number of host calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    fn called(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether this call must misbehave.
    fn hit(&self, fault: Fault) -> bool {
        let left = &self.faults[fault as usize];
        left.load(Ordering::Relaxed) > 0
            && left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok()
    }

    // A thread that panicked while it held a lock has already failed its test.
    fn metrics(&self) -> RwLockReadGuard<'_, Table> {
        self.metrics.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn blobs(&self) -> MutexGuard<'_, HashMap<String, (Vec<u8>, Version)>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_mailbox<T>(&self, worker: u32, f: impl FnOnce(&Mailbox) -> T) -> T {
        let at = worker as usize;
        {
            let mailboxes = self
                .mailboxes
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            if let Some(mailbox) = mailboxes.get(at) {
                return f(mailbox);
            }
        }
        let mut mailboxes = self
            .mailboxes
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        while mailboxes.len() <= at {
            mailboxes.push(Mailbox::default());
        }
        f(&mailboxes[at])
    }

    fn with_metric<T>(
        &self,
        call: &'static str,
        id: MetricId,
        f: impl FnOnce(&Metric) -> Result<T, u32>,
    ) -> Result<T, HostError> {
        self.called();
        if self.hit(Fault::MetricFails) {
            return Err(HostError::Call {
                call,
                status: INTERNAL_FAILURE,
            });
        }
        let metrics = self.metrics();
        let metric = metrics.all.get(id.0 as usize);
        metric
            .ok_or(NOT_FOUND)
            .and_then(f)
            .map_err(|status| HostError::Call { call, status })
    }
}

impl MemoryHost {
    /// Defines a metric.
    pub(crate) fn define(&self, kind: MetricKind, name: &str) -> Result<MetricId, HostError> {
        let call = "proxy_define_metric";
        self.called();
        if self.hit(Fault::MetricFails) {
            return Err(HostError::Call {
                call,
                status: INTERNAL_FAILURE,
            });
        }
        let mut metrics = self.metrics.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(&at) = metrics.ids.get(name) {
            if metrics.all[at].kind != kind {
                return Err(HostError::Call {
                    call,
                    status: BAD_ARGUMENT,
                });
            }
            return Ok(MetricId(at as u32));
        }
        let at = metrics.all.len();
        metrics.ids.insert(name.to_owned(), at);
        metrics.all.push(Metric {
            kind,
            name: name.to_owned(),
            rejected: self.rejected().iter().any(|part| name.contains(part)),
            value: AtomicU64::new(0),
            imported: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
        });
        Ok(MetricId(at as u32))
    }

    /// Adds to a counter or a gauge.
    pub(crate) fn add(&self, metric: MetricId, delta: i64) -> Result<(), HostError> {
        self.with_metric("proxy_increment_metric", metric, |m| match m.kind {
            // Envoy refuses zero, too.
            MetricKind::Counter if delta <= 0 => Err(BAD_ARGUMENT),
            MetricKind::Histogram => Err(BAD_ARGUMENT),
            _ if m.rejected => Ok(()),
            MetricKind::Counter | MetricKind::Gauge => {
                m.value.fetch_add(delta.cast_unsigned(), Ordering::SeqCst);
                Ok(())
            }
        })
    }

    /// Sets a gauge, or records a value into a histogram.
    pub(crate) fn record(&self, metric: MetricId, value: u64) -> Result<(), HostError> {
        self.with_metric("proxy_record_metric", metric, |m| {
            match m.kind {
                _ if m.rejected => {}
                MetricKind::Counter => {
                    m.value.fetch_add(value, Ordering::SeqCst);
                }
                MetricKind::Gauge => {
                    m.value.store(value, Ordering::SeqCst);
                }
                MetricKind::Histogram => {
                    m.value.fetch_add(value, Ordering::SeqCst);
                    m.recorded.fetch_add(1, Ordering::SeqCst);
                }
            }
            Ok(())
        })
    }
}

/// A number is a gauge, as in Envoy.
impl Shared for MemoryHost {
    fn wall_clock_offset(&self) -> Duration {
        Duration::from_nanos(self.wall_clock_offset.load(Ordering::SeqCst))
    }

    fn number(&self, name: &str) -> Result<Number, HostError> {
        self.define(MetricKind::Gauge, name).map(|id| Number(id.0))
    }

    fn add_to(&self, number: Number, delta: i64) -> Result<(), HostError> {
        self.add(MetricId(number.0), delta)
    }

    fn set(&self, number: Number, value: u64) -> Result<(), HostError> {
        self.record(MetricId(number.0), value)
    }

    fn get(&self, number: Number) -> Result<u64, HostError> {
        self.with_metric("proxy_get_metric", MetricId(number.0), |m| match m.kind {
            MetricKind::Histogram => Err(BAD_ARGUMENT),
            MetricKind::Counter | MetricKind::Gauge => {
                let imported = m.imported.load(Ordering::SeqCst);
                Ok(m.value.load(Ordering::SeqCst).wrapping_add(imported))
            }
        })
    }

    fn load(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>, HostError> {
        self.called();
        if self.hit(Fault::LoadFails) {
            let call = "proxy_get_shared_data";
            return Err(HostError::Call {
                call,
                status: INTERNAL_FAILURE,
            });
        }
        Ok(self.blobs().get(key).cloned())
    }

    fn store(&self, key: &str, value: &[u8], expected: Option<Version>) -> Result<(), HostError> {
        self.called();
        if self.hit(Fault::StoreFails) {
            let call = "proxy_set_shared_data";
            return Err(HostError::Call {
                call,
                status: INTERNAL_FAILURE,
            });
        }
        if self.hit(Fault::StoreConflicts) {
            return Err(HostError::Conflict);
        }
        let mut blobs = self.blobs();
        let found = blobs.get(key).map(|(_, version)| *version);
        if found != expected {
            return Err(HostError::Conflict);
        }
        let version = Version(self.versions.fetch_add(1, Ordering::SeqCst).wrapping_add(1));
        blobs.insert(key.to_owned(), (value.to_vec(), version));
        Ok(())
    }

    fn wake(&self, worker: u32) -> Result<(), HostError> {
        self.called();
        if self.hit(Fault::WakeIsLost) {
            return Ok(());
        }
        self.with_mailbox(worker, |mailbox| {
            if mailbox.gone.load(Ordering::SeqCst) {
                return Err(HostError::Call {
                    call: "proxy_enqueue_shared_queue",
                    status: NOT_FOUND,
                });
            }
            mailbox.wakes.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    }
}

/// The VMs of one `vm_id` in the process. They share numbers with all VMs, but have their own
/// blobs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group<'a> {
    pub(super) memory: &'a MemoryHost,
    id: &'a str,
}

impl<'a> Group<'a> {
    /// Creates the VMs of `id`.
    pub(crate) fn new(memory: &'a MemoryHost, id: &'a str) -> Self {
        Self { memory, id }
    }
}

impl Shared for Group<'_> {
    fn wall_clock_offset(&self) -> Duration {
        self.memory.wall_clock_offset()
    }

    fn number(&self, name: &str) -> Result<Number, HostError> {
        self.memory.number(name)
    }

    fn add_to(&self, number: Number, delta: i64) -> Result<(), HostError> {
        self.memory.add_to(number, delta)
    }

    fn set(&self, number: Number, value: u64) -> Result<(), HostError> {
        self.memory.set(number, value)
    }

    fn get(&self, number: Number) -> Result<u64, HostError> {
        self.memory.get(number)
    }

    fn load(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>, HostError> {
        self.memory.load(&format!("{}/{key}", self.id))
    }

    fn store(&self, key: &str, value: &[u8], expected: Option<Version>) -> Result<(), HostError> {
        self.memory
            .store(&format!("{}/{key}", self.id), value, expected)
    }

    fn wake(&self, worker: u32) -> Result<(), HostError> {
        self.memory.wake(worker)
    }
}

impl Shared for &MemoryHost {
    fn wall_clock_offset(&self) -> Duration {
        (**self).wall_clock_offset()
    }

    fn number(&self, name: &str) -> Result<Number, HostError> {
        (**self).number(name)
    }

    fn add_to(&self, number: Number, delta: i64) -> Result<(), HostError> {
        (**self).add_to(number, delta)
    }

    fn set(&self, number: Number, value: u64) -> Result<(), HostError> {
        (**self).set(number, value)
    }

    fn get(&self, number: Number) -> Result<u64, HostError> {
        (**self).get(number)
    }

    fn load(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>, HostError> {
        (**self).load(key)
    }

    fn store(&self, key: &str, value: &[u8], expected: Option<Version>) -> Result<(), HostError> {
        (**self).store(key, value, expected)
    }

    fn wake(&self, worker: u32) -> Result<(), HostError> {
        (**self).wake(worker)
    }
}
