//! What the engine needs from its process, for one worker on one thread: plain cells, no locks.
//!
//! The engine asks its host several times a request, so this decides how fast a simulation runs.
//! `headgate_core::host::memory` is the host that misbehaves as Envoy may; this one only counts.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use headgate_core::host::{Expected, Host, HostError, MetricId, MetricKind, Version};

/// proxy-wasm `Status::NotFound`.
const NOT_FOUND: u32 = 1;

#[derive(Debug, Default)]
pub(crate) struct LocalHost {
    ids: RefCell<HashMap<String, MetricId>>,
    /// By metric; of a histogram, the value recorded last.
    values: RefCell<Vec<Cell<u64>>>,
    blobs: RefCell<HashMap<String, (Vec<u8>, Version)>>,
    versions: Cell<u32>,
}

impl LocalHost {
    fn with_value<T>(
        &self,
        call: &'static str,
        metric: MetricId,
        f: impl FnOnce(&Cell<u64>) -> T,
    ) -> Result<T, HostError> {
        match self.values.borrow().get(metric.0 as usize) {
            Some(value) => Ok(f(value)),
            None => Err(HostError::Call {
                call,
                status: NOT_FOUND,
            }),
        }
    }
}

impl Host for LocalHost {
    fn define(&self, _kind: MetricKind, name: &str) -> Result<MetricId, HostError> {
        if let Some(&id) = self.ids.borrow().get(name) {
            return Ok(id);
        }
        let mut values = self.values.borrow_mut();
        let id = MetricId(u32::try_from(values.len()).unwrap_or(u32::MAX));
        values.push(Cell::new(0));
        self.ids.borrow_mut().insert(name.to_owned(), id);
        Ok(id)
    }

    fn add(&self, metric: MetricId, delta: i64) -> Result<(), HostError> {
        self.with_value("add", metric, |value| {
            value.set(value.get().wrapping_add_signed(delta));
        })
    }

    fn record(&self, metric: MetricId, value: u64) -> Result<(), HostError> {
        self.with_value("record", metric, |cell| cell.set(value))
    }

    fn read(&self, metric: MetricId) -> Result<u64, HostError> {
        self.with_value("read", metric, Cell::get)
    }

    fn load(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>, HostError> {
        Ok(self.blobs.borrow().get(key).cloned())
    }

    fn store(&self, key: &str, value: &[u8], expected: Expected) -> Result<(), HostError> {
        let mut blobs = self.blobs.borrow_mut();
        let found = Expected::from(blobs.get(key).map(|(_, version)| *version));
        if found != expected {
            return Err(HostError::Conflict);
        }
        let version = self.versions.get().wrapping_add(1);
        self.versions.set(version);
        blobs.insert(key.to_owned(), (value.to_vec(), Version(version)));
        Ok(())
    }

    fn wake(&self, _worker: u32) -> Result<(), HostError> {
        // There is no other worker.
        Ok(())
    }
}
