//! The state of a process with a single engine, in plain cells.
//!
//! Without other workers, nothing is atomic and no wake-up is sent. The engine calls its host
//! several times per request, so the cost of these calls determines the speed of a simulation.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use headgate_core::host::{MetricId, MetricKind, Metrics};
use headgate_strategies::host::{HostError, Number, Shared, Version};

/// The status in [`HostError::Call`] for an undefined number: proxy-wasm's `Status::NotFound`.
const NOT_FOUND: u32 = 1;

/// State in plain cells, for a single engine. Discards metrics.
#[derive(Debug, Default)]
pub struct Local {
    numbers: RefCell<HashMap<String, Number>>,
    values: RefCell<Vec<Cell<u64>>>,
    blobs: RefCell<HashMap<String, (Vec<u8>, Version)>>,
    versions: Cell<u32>,
}

impl Local {
    fn with<T>(
        &self,
        call: &'static str,
        number: Number,
        f: impl FnOnce(&Cell<u64>) -> T,
    ) -> Result<T, HostError> {
        let status = NOT_FOUND;
        let values = self.values.borrow();
        let value = values.get(number.0 as usize);
        value.map(f).ok_or(HostError::Call { call, status })
    }
}

impl Metrics for Local {
    fn define(&self, _kind: MetricKind, _name: &str) -> Result<MetricId, HostError> {
        Ok(MetricId(0))
    }

    fn add(&self, _metric: MetricId, _delta: i64) -> Result<(), HostError> {
        Ok(())
    }

    fn record(&self, _metric: MetricId, _value: u64) -> Result<(), HostError> {
        Ok(())
    }
}

impl Shared for Local {
    fn wall_clock_offset(&self) -> Duration {
        Duration::ZERO
    }

    fn number(&self, name: &str) -> Result<Number, HostError> {
        if let Some(&known) = self.numbers.borrow().get(name) {
            return Ok(known);
        }
        let mut values = self.values.borrow_mut();
        let number = Number(u32::try_from(values.len()).unwrap_or(u32::MAX));
        values.push(Cell::new(0));
        self.numbers.borrow_mut().insert(name.to_owned(), number);
        Ok(number)
    }

    fn add_to(&self, number: Number, delta: i64) -> Result<(), HostError> {
        self.with("add to a number", number, |value| {
            value.set(value.get().wrapping_add_signed(delta));
        })
    }

    fn set(&self, number: Number, value: u64) -> Result<(), HostError> {
        self.with("set a number", number, |cell| cell.set(value))
    }

    fn get(&self, number: Number) -> Result<u64, HostError> {
        self.with("read a number", number, Cell::get)
    }

    fn load(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>, HostError> {
        Ok(self.blobs.borrow().get(key).cloned())
    }

    fn store(&self, key: &str, value: &[u8], expected: Option<Version>) -> Result<(), HostError> {
        let mut blobs = self.blobs.borrow_mut();
        let found = blobs.get(key).map(|(_, version)| *version);
        if found != expected {
            return Err(HostError::Conflict);
        }
        let version = self.versions.get().wrapping_add(1);
        self.versions.set(version);
        blobs.insert(key.to_owned(), (value.to_vec(), Version(version)));
        Ok(())
    }

    fn wake(&self, _worker: u32) -> Result<(), HostError> {
        // No other worker exists.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_blobs_are_those_of_their_name() {
        let host = Local::default();
        let (a, b) = (host.number("a").unwrap(), host.number("b").unwrap());
        host.set(a, 3).unwrap();
        host.add_to(host.number("a").unwrap(), -4).unwrap();
        assert_eq!(host.get(a), Ok(u64::MAX), "as a gauge of Envoy");
        assert_eq!(host.get(b), Ok(0));
        assert!(host.get(Number(2)).is_err());

        host.store("k", b"1", None).unwrap();
        let (bytes, version) = host.load("k").unwrap().unwrap();
        assert_eq!(bytes, b"1");
        let late = host.store("k", b"2", None);
        assert_eq!(late, Err(HostError::Conflict));
        host.store("k", b"2", Some(version)).unwrap();
        let stale = host.store("k", b"3", Some(version));
        assert_eq!(stale, Err(HostError::Conflict));
        assert_eq!(host.load("k").unwrap().unwrap().0, b"2");
    }
}
