//! Shared state that doesn't depend on the proxy's stats matcher.
//!
//! `stats_config.stats_matcher` in Envoy's bootstrap can reject any stat by its name. Envoy Gateway
//! writes such a matcher whenever `EnvoyProxy.spec.telemetry.metrics.matches` is set. A rejected
//! gauge accepts every write and always reads 0. The slots in use would stay 0, and the limit would
//! silently have no effect.
//!
//! So [`Unfiltered`] tests the gauge of each number when the number is defined. If the gauge
//! doesn't keep a value, the number is in shared data instead, and compare-and-swap makes additions
//! as exact as those of a gauge. Refusing the configuration instead would be worse, because Envoy
//! reports a refusal without its reason. If the module is fetched remotely, Envoy then answers
//! every request with 500 or lets it pass unmanaged, depending on the filter's failure policy.
//!
//! The cost applies only with such a matcher. Each call takes about 1 µs (a call for a gauge 0.06
//! µs), because shared data is read into memory that the guest allocates.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use headgate_core::host::{Host, MetricId, MetricKind, Metrics};
use headgate_strategies::host::{HostError, Number, Shared, Version};
use headgate_strategies::shared::change_bytes;

/// The bit that marks ids of numbers in shared data. Envoy's ids count up from 0 and have the kind
/// in the 2 low bits.
const STORED: u32 = 1 << 31;
/// The number of different amounts that test a gauge.
const PROBES: i64 = 4;
/// The number of compare-and-swap attempts for one change. Each failure means that another worker's
/// change succeeded.
const ATTEMPTS: u32 = 1_000;

/// A [`Host`] whose numbers keep their values even if the process rejects their stats.
#[derive(Debug)]
pub(crate) struct Unfiltered<H> {
    host: H,
    known: RefCell<HashMap<String, Number>>,
    /// The keys of the numbers in shared data, by id without [`STORED`].
    keys: RefCell<Vec<String>>,
    /// The first rejected name, until [`Self::take_rejected`] takes it.
    rejected: RefCell<Option<String>>,
}

impl<H: Host> Unfiltered<H> {
    /// Creates the state that wraps `host`.
    pub(crate) fn new(host: H) -> Self {
        Self {
            host,
            known: RefCell::default(),
            keys: RefCell::default(),
            rejected: RefCell::default(),
        }
    }

    /// Returns the underlying host.
    pub(crate) fn host(&self) -> &H {
        &self.host
    }

    /// Returns the name of the first rejected gauge. Returns it only once.
    pub(crate) fn take_rejected(&self) -> Option<String> {
        self.rejected.borrow_mut().take()
    }

    /// Whether a gauge keeps the values that are written.
    ///
    /// Other workers may use the gauge meanwhile, so the test only adds and subtracts again. A
    /// rejected gauge always reads 0. Any other gauge could read 0 after one addition, if it was
    /// negative or another worker subtracted at that moment. It can't read 0 after several
    /// different additions.
    fn holds(&self, gauge: Number) -> Result<bool, HostError> {
        for amount in 1..=PROBES {
            if self.host.get(gauge)? != 0 {
                return Ok(true);
            }
            self.host.add_to(gauge, amount)?;
            let found = self.host.get(gauge);
            self.host.add_to(gauge, -amount)?;
            if found? != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Runs `f` with the key of a number in shared data. Returns `None` for other numbers.
    fn stored<T>(
        &self,
        number: Number,
        f: impl FnOnce(&str) -> Result<T, HostError>,
    ) -> Option<Result<T, HostError>> {
        if number.0 & STORED == 0 {
            return None;
        }
        let keys = self.keys.borrow();
        let key = keys.get((number.0 & !STORED) as usize)?;
        Some(f(key))
    }

    fn change(&self, key: &str, change: impl Fn(u64) -> u64) -> Result<(), HostError> {
        change_bytes(&self.host, key, ATTEMPTS, |bytes| {
            *bytes = change(value_of(bytes)).to_le_bytes().to_vec();
            (true, ())
        })
    }
}

/// Returns the number that a blob stores, or 0 for a blob of another size.
fn value_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

impl<H: Host> Metrics for Unfiltered<H> {
    fn define(&self, kind: MetricKind, name: &str) -> Result<MetricId, HostError> {
        self.host.define(kind, name)
    }

    fn add(&self, metric: MetricId, delta: i64) -> Result<(), HostError> {
        self.host.add(metric, delta)
    }

    fn record(&self, metric: MetricId, value: u64) -> Result<(), HostError> {
        self.host.record(metric, value)
    }
}

impl<H: Host> Shared for Unfiltered<H> {
    fn wall_clock_offset(&self) -> Duration {
        self.host.wall_clock_offset()
    }

    fn number(&self, name: &str) -> Result<Number, HostError> {
        if let Some(&known) = self.known.borrow().get(name) {
            return Ok(known);
        }
        let gauge = self.host.number(name)?;
        let id = if self.holds(gauge)? {
            gauge
        } else {
            self.rejected
                .borrow_mut()
                .get_or_insert_with(|| name.to_owned());
            let mut keys = self.keys.borrow_mut();
            keys.push(format!("headgate/state/{name}"));
            Number(STORED | (keys.len() - 1) as u32)
        };
        self.known.borrow_mut().insert(name.to_owned(), id);
        Ok(id)
    }

    fn add_to(&self, number: Number, delta: i64) -> Result<(), HostError> {
        self.stored(number, |key| {
            self.change(key, |value| value.wrapping_add_signed(delta))
        })
        .unwrap_or_else(|| self.host.add_to(number, delta))
    }

    fn set(&self, number: Number, value: u64) -> Result<(), HostError> {
        self.stored(number, |key| self.change(key, |_| value))
            .unwrap_or_else(|| self.host.set(number, value))
    }

    fn get(&self, number: Number) -> Result<u64, HostError> {
        let load = |key: &str| {
            let loaded = self.host.load(key)?;
            Ok(loaded.map_or(0, |(bytes, _)| value_of(&bytes)))
        };
        self.stored(number, load)
            .unwrap_or_else(|| self.host.get(number))
    }

    fn load(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>, HostError> {
        self.host.load(key)
    }

    fn store(&self, key: &str, value: &[u8], expected: Option<Version>) -> Result<(), HostError> {
        self.host.store(key, value, expected)
    }

    fn wake(&self, worker: u32) -> Result<(), HostError> {
        self.host.wake(worker)
    }
}

#[cfg(test)]
mod tests;
