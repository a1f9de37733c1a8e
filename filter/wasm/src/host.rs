//! Envoy as the engine's host, through the metrics, shared data and shared queues of proxy-wasm.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use headgate_core::host::{MetricId, MetricKind, Metrics};
use headgate_core::workers::WorkerId;
use headgate_strategies::host::{HostError, Number, Shared, Version};

use crate::ffi;

/// A compare-and-swap value that no blob ever has. The host skips the comparison if the blob is
/// absent, so a store with this value succeeds only then.
const ABSENT: u32 = u32::MAX;

/// The VM's access to its process.
#[derive(Debug, Default)]
pub(crate) struct EnvoyHost {
    /// The metrics by name. Each definition creates a new id in the host, even for the same name,
    /// so a metric is defined only once. proxy-wasm can't remove metrics, so the metrics of deleted
    /// policies stay until the VM ends. Each takes about 100 bytes here, plus Envoy's own memory.
    metrics: RefCell<HashMap<String, MetricId>>,
    /// The queues of the other workers.
    queues: RefCell<HashMap<WorkerId, u32>>,
    vm_id: RefCell<Option<Vec<u8>>>,
}

fn queue_name(worker: WorkerId) -> String {
    format!("headgate/worker/{worker}")
}

impl EnvoyHost {
    /// Registers the queue through which other workers wake this worker. Returns the queue's id.
    pub(crate) fn listen(&self, worker: WorkerId) -> Result<u32, HostError> {
        ffi::register_queue(&queue_name(worker))
    }

    /// Removes all messages from a queue. Messages are empty.
    pub(crate) fn drain(&self, queue: u32) -> Result<(), HostError> {
        while ffi::dequeue(queue)? {}
        Ok(())
    }

    fn queue_of(&self, worker: WorkerId) -> Result<u32, HostError> {
        if let Some(&queue) = self.queues.borrow().get(&worker) {
            return Ok(queue);
        }
        let mut vm_id = self.vm_id.borrow_mut();
        let read = || {
            ffi::property(b"plugin_vm_id")
                .ok()
                .flatten()
                .unwrap_or_default()
        };
        let queue = ffi::resolve_queue(vm_id.get_or_insert_with(read), &queue_name(worker))?;
        self.queues.borrow_mut().insert(worker, queue);
        Ok(queue)
    }
}

impl Metrics for EnvoyHost {
    fn define(&self, kind: MetricKind, name: &str) -> Result<MetricId, HostError> {
        if let Some(&known) = self.metrics.borrow().get(name) {
            return Ok(known);
        }
        let kind = match kind {
            MetricKind::Counter => 0,
            MetricKind::Gauge => 1,
            MetricKind::Histogram => 2,
        };
        let id = MetricId(ffi::define_metric(kind, name)?);
        self.metrics.borrow_mut().insert(name.to_owned(), id);
        Ok(id)
    }

    fn add(&self, metric: MetricId, delta: i64) -> Result<(), HostError> {
        ffi::increment_metric(metric.0, delta)
    }

    fn record(&self, metric: MetricId, value: u64) -> Result<(), HostError> {
        ffi::record_metric(metric.0, value)
    }
}

/// The state that all workers share. Numbers are gauges, because Envoy's gauges are process-wide
/// atomics.
impl Shared for EnvoyHost {
    fn wall_clock_offset(&self) -> Duration {
        let offset =
            ffi::wall_time().and_then(|wall| Ok(wall.saturating_sub(ffi::monotonic_time()?)));
        offset.unwrap_or_default()
    }

    fn number(&self, name: &str) -> Result<Number, HostError> {
        self.define(MetricKind::Gauge, name).map(|id| Number(id.0))
    }

    fn add_to(&self, number: Number, delta: i64) -> Result<(), HostError> {
        ffi::increment_metric(number.0, delta)
    }

    fn set(&self, number: Number, value: u64) -> Result<(), HostError> {
        ffi::record_metric(number.0, value)
    }

    fn get(&self, number: Number) -> Result<u64, HostError> {
        ffi::get_metric(number.0)
    }

    fn load(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>, HostError> {
        Ok(ffi::get_shared_data(key)?.map(|(bytes, cas)| (bytes, Version(cas))))
    }

    fn store(&self, key: &str, value: &[u8], expected: Option<Version>) -> Result<(), HostError> {
        ffi::set_shared_data(key, value, expected.map_or(ABSENT, |Version(cas)| cas))
    }

    fn wake(&self, worker: WorkerId) -> Result<(), HostError> {
        let queue = self.queue_of(worker)?;
        ffi::enqueue(queue).inspect_err(|_| {
            // The worker's VM has ended. The next worker with this number has another queue.
            self.queues.borrow_mut().remove(&worker);
        })
    }
}
