//! State that all libraries of this filter in one process share. It has numbers and blobs, like the
//! gauges and shared data of Wasm VMs.
//!
//! Replacing the module's file loads a second library, with statics of its own, while streams of
//! the first library continue. The engines of both are then workers of one process
//! ([`headgate_core::workers`]). They share the slots, and the second engine starts with the
//! estimates of the first. The first library owns the state and puts a [`Table`] of functions into
//! Envoy's registry of shared data. It is never unloaded (`build.rs`).
//!
//! The table is an interface between versions, so a field never changes its meaning. Another layout
//! needs another [`KEY`]. A library with that key starts without state. Times in the state are
//! those of the system's monotonic clock.
//!
//! The state is never freed, because another library may be using it. Each policy name costs some
//! kilobytes for the life of the process, and a policy that is created again starts with its old
//! estimates.
#![allow(unsafe_code)] // functions of another library

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use headgate_core::host::{MetricId, MetricKind, Metrics};
use headgate_core::stats;
use headgate_core::workers::WorkerId;
use headgate_strategies::host::{HostError, Number, Shared, Version};

use crate::abi::{self, Buffer};
use crate::metrics::Counts;
use crate::process;

/// The table's name in Envoy's registry.
const KEY: &str = "headgate.state/1";

/// The prefix of the names of policies' metrics and numbers.
const POLICY: &str = "headgate.policy.";
/// The name of the number of panics in all libraries since the start of the process.
pub(crate) const PANICS: &str = "headgate.panics";

/// The status of [`HostError::Call`] for an unknown name. It is proxy-wasm's `Status::NotFound`.
const NOT_FOUND: u32 = 1;

/// A function of a library that wakes this library's engine. Other libraries call the function.
type Wake = extern "C" fn();

/// The functions that one library offers the others. A version of 0 means that the blob is absent.
#[repr(C)]
struct Table {
    /// Returns the number of this name. The number lives as long as the process.
    number: unsafe extern "C" fn(name: Buffer) -> *const AtomicU64,
    /// Passes a blob to `take`, unless it is absent, and returns its version.
    load: unsafe extern "C" fn(key: Buffer, to: *mut c_void, take: Take) -> u32,
    /// Stores a blob if its version is `expected`. Returns whether the blob was stored.
    store: unsafe extern "C" fn(key: Buffer, value: Buffer, expected: u32) -> bool,
    /// Registers the function that wakes the worker.
    listen: extern "C" fn(worker: u32, wake: Wake),
    /// Wakes a worker. Returns false if the worker isn't registered.
    wake: extern "C" fn(worker: u32) -> bool,
}

/// The function to which [`Table::load`] passes `to` and a blob, once. The blob is valid during the
/// call.
type Take = unsafe extern "C" fn(to: *mut c_void, blob: Buffer);

/// The shared state, which the first library owns.
#[derive(Default)]
struct State {
    numbers: HashMap<String, &'static AtomicU64>,
    blobs: HashMap<String, (Vec<u8>, u32)>,
    versions: u32,
    listeners: HashMap<WorkerId, Wake>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn with_state<T>(f: impl FnOnce(&mut State) -> T) -> T {
    let mut state: MutexGuard<'_, _> = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    f(state.get_or_insert_default())
}

/// Removes the state, as in a new process.
#[cfg(test)]
pub(crate) fn reset() {
    with_state(|state| *state = State::default());
}

static TABLE: Table = Table {
    number: {
        unsafe extern "C" fn number(name: Buffer) -> *const AtomicU64 {
            // SAFETY: the caller's `name` is valid during the call.
            let name = String::from_utf8_lossy(unsafe { name.bytes() });
            with_state(|state| {
                if let Some(known) = state.numbers.get(&*name) {
                    return std::ptr::from_ref(*known);
                }
                // The name is never removed, so the number is not leaked twice.
                let new: &'static AtomicU64 = Box::leak(Box::default());
                state.numbers.insert(name.into_owned(), new);
                std::ptr::from_ref(new)
            })
        }
        number
    },
    load: {
        unsafe extern "C" fn load(key: Buffer, to: *mut c_void, take: Take) -> u32 {
            // SAFETY: the caller's `key` is valid during the call.
            let key = String::from_utf8_lossy(unsafe { key.bytes() });
            with_state(|state| match state.blobs.get(&*key) {
                Some((blob, version)) => {
                    // SAFETY: the blob does not change during the call, and `to` is what the caller
                    // passed for `take`.
                    unsafe { take(to, Buffer::of(blob)) };
                    *version
                }
                None => 0,
            })
        }
        load
    },
    store: {
        unsafe extern "C" fn store(key: Buffer, value: Buffer, expected: u32) -> bool {
            // SAFETY: the caller's `key` and `value` are valid during the call.
            let (key, value) = unsafe { (key.bytes(), value.bytes()) };
            let key = String::from_utf8_lossy(key);
            with_state(|state| {
                let found = state.blobs.get(&*key).map_or(0, |(_, version)| *version);
                if found != expected {
                    return false;
                }
                state.versions = state.versions.wrapping_add(1).max(1);
                let stored = (value.to_vec(), state.versions);
                state.blobs.insert(key.into_owned(), stored);
                true
            })
        }
        store
    },
    listen: {
        extern "C" fn listen(worker: u32, wake: Wake) {
            with_state(|state| state.listeners.insert(worker, wake));
        }
        listen
    },
    wake: {
        extern "C" fn wake(worker: u32) -> bool {
            // The function is called without the lock, because it belongs to another library.
            let listener = with_state(|state| state.listeners.get(&worker).copied());
            listener.map(|wake| wake()).is_some()
        }
        wake
    },
};

/// Returns the table of the process's first library, which may be this library. Callers must call
/// this function on the main thread only.
fn table() -> &'static Table {
    let registered = abi::shared_data(KEY).cast::<Table>();
    // SAFETY: every table under this key is a static of a library that is never unloaded.
    if let Some(table) = unsafe { registered.as_ref() } {
        return table;
    }
    abi::share_data(KEY, std::ptr::from_ref(&TABLE).cast());
    &TABLE
}

/// The engine's host, with the process's shared state and the metrics of this library.
pub(crate) struct Host {
    metrics: Counts,
    table: &'static Table,
    names: RefCell<HashMap<String, Number>>,
    numbers: RefCell<Vec<&'static AtomicU64>>,
    /// The numbers that are published, with their names and gauges.
    shown: RefCell<Vec<(String, Number, MetricId)>>,
    /// The name prefixes of the current policies.
    live: RefCell<HashSet<String>>,
}

/// Whether a number is published as a gauge. The panics, and the slots and tokens in use, are
/// published.
fn is_shown(name: &str) -> bool {
    let in_use = name.ends_with(".slots_in_use") || name.ends_with(".tokens_in_use");
    in_use && !name.contains(".worker.") || name == PANICS
}

impl Host {
    pub(crate) fn new() -> Self {
        Self {
            metrics: Counts::default(),
            table: table(),
            names: RefCell::default(),
            numbers: RefCell::default(),
            shown: RefCell::default(),
            live: RefCell::default(),
        }
    }

    pub(crate) fn metrics(&self) -> &Counts {
        &self.metrics
    }

    /// Forgets the published numbers and the metrics of all policies that are not in `live`.
    pub(crate) fn forget_others<'a>(&self, live: impl Iterator<Item = &'a str>) {
        let before = self.live.replace(live.map(stats::prefix).collect());
        let live = self.live.borrow();
        if before.is_subset(&live) {
            return;
        }
        let is_gone = |name: &str| {
            let of = name.strip_prefix(POLICY).and_then(|of| of.find('.'));
            of.is_some_and(|end| !live.contains(&name[..POLICY.len() + end]))
        };
        self.metrics.forget(is_gone);
        self.names.borrow_mut().retain(|name, _| !is_gone(name));
        self.shown
            .borrow_mut()
            .retain(|(name, _, _)| !is_gone(name));
    }

    /// Sets the gauges of the published numbers.
    ///
    /// # Errors
    /// The last [`HostError`].
    pub(crate) fn publish(&self) -> Result<(), HostError> {
        self.number(PANICS)?;
        let mut done = Ok(());
        for (_, number, gauge) in self.shown.borrow().iter() {
            let value = self.get(*number);
            let written = value.and_then(|value| self.metrics.record(*gauge, value));
            done = written.and(done);
        }
        done
    }

    /// Registers this library's wake function for `worker`.
    pub(crate) fn listen(&self, worker: WorkerId) {
        (self.table.listen)(worker, process::wake);
    }

    fn with<T>(
        &self,
        call: &'static str,
        number: Number,
        f: impl FnOnce(&AtomicU64) -> T,
    ) -> Result<T, HostError> {
        let status = NOT_FOUND;
        let numbers = self.numbers.borrow();
        let value = numbers.get(number.0 as usize);
        value
            .map(|value| f(value))
            .ok_or(HostError::Call { call, status })
    }
}

impl Metrics for Host {
    fn define(&self, kind: MetricKind, name: &str) -> Result<MetricId, HostError> {
        self.metrics.define(kind, name)
    }

    fn add(&self, metric: MetricId, delta: i64) -> Result<(), HostError> {
        self.metrics.add(metric, delta)
    }

    fn record(&self, metric: MetricId, value: u64) -> Result<(), HostError> {
        self.metrics.record(metric, value)
    }
}

impl Shared for Host {
    fn wall_clock_offset(&self) -> Duration {
        let since_1970 = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let since_boot = Duration::from_nanos(process::now().as_nanos());
        since_1970.saturating_sub(since_boot)
    }

    fn number(&self, name: &str) -> Result<Number, HostError> {
        if let Some(&known) = self.names.borrow().get(name) {
            return Ok(known);
        }
        // SAFETY: `name` is valid during the call.
        let number = unsafe { (self.table.number)(Buffer::of(name.as_bytes())) };
        // SAFETY: by the table's contract, a number lives as long as the process.
        let value: &'static AtomicU64 = unsafe { &*number };
        let mut numbers = self.numbers.borrow_mut();
        let number = Number(u32::try_from(numbers.len()).unwrap_or(u32::MAX));
        numbers.push(value);
        self.names.borrow_mut().insert(name.to_owned(), number);
        if is_shown(name) {
            let gauge = self.define(MetricKind::Gauge, name)?;
            let shown = (name.to_owned(), number, gauge);
            self.shown.borrow_mut().push(shown);
        }
        Ok(number)
    }

    fn add_to(&self, number: Number, delta: i64) -> Result<(), HostError> {
        self.with("add to a number", number, |value| {
            value.fetch_add(delta.cast_unsigned(), Ordering::SeqCst);
        })
    }

    fn set(&self, number: Number, value: u64) -> Result<(), HostError> {
        self.with("set a number", number, |number| {
            number.store(value, Ordering::SeqCst);
        })
    }

    fn get(&self, number: Number) -> Result<u64, HostError> {
        self.with("read a number", number, |value| {
            value.load(Ordering::SeqCst)
        })
    }

    fn load(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>, HostError> {
        unsafe extern "C" fn take(to: *mut c_void, blob: Buffer) {
            // SAFETY: `to` is the vector below, and the bytes are valid during the call.
            unsafe { (*to.cast::<Vec<u8>>()).extend_from_slice(blob.bytes()) };
        }
        let mut bytes: Vec<u8> = Vec::new();
        let to = (&raw mut bytes).cast();
        // SAFETY: `key` and `bytes` are live, and `to` has the type that `take` expects.
        let version = unsafe { (self.table.load)(Buffer::of(key.as_bytes()), to, take) };
        Ok((version != 0).then_some((bytes, Version(version))))
    }

    fn store(&self, key: &str, value: &[u8], expected: Option<Version>) -> Result<(), HostError> {
        let expected = expected.map_or(0, |Version(version)| version);
        let (key, value) = (Buffer::of(key.as_bytes()), Buffer::of(value));
        // SAFETY: `key` and `value` are valid during the call.
        let stored = unsafe { (self.table.store)(key, value, expected) };
        stored.then_some(()).ok_or(HostError::Conflict)
    }

    fn wake(&self, worker: WorkerId) -> Result<(), HostError> {
        let (call, status) = ("wake a worker", NOT_FOUND);
        (self.table.wake)(worker)
            .then_some(())
            .ok_or(HostError::Call { call, status })
    }
}
