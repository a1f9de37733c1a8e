//! The timer of ticks. It is a thread that schedules ticks on the main thread, because Envoy has no
//! timer for filters.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use headgate_core::engine::{FAST_TICK, SLOW_TICK};

use crate::abi::Ticker;
use crate::process::Configuration;

/// The tickers of all configurations, and the thread that schedules ticks through the newest one.
pub(crate) struct Clock {
    tickers: Vec<(Arc<Configuration>, Ticker)>,
    thread: Option<JoinHandle<()>>,
}

static CLOCK: Mutex<Clock> = Mutex::new(Clock {
    tickers: Vec::new(),
    thread: None,
});
/// Whether ticks are frequent, because requests wait.
static BUSY: AtomicBool = AtomicBool::new(false);
/// Whether a tick is scheduled and has not run yet.
static UNDER_WAY: AtomicBool = AtomicBool::new(false);

impl Clock {
    fn lock() -> MutexGuard<'static, Self> {
        CLOCK.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(configuration: &Arc<Configuration>, ticker: Ticker) {
        let mut clock = Self::lock();
        clock.tickers.push((Arc::clone(configuration), ticker));
        UNDER_WAY.store(false, Ordering::SeqCst);
        if clock.thread.is_none() {
            let name = "headgate".to_owned();
            // If the thread can't start, only ticks are missing. Held requests are still resumed at
            // the end of other requests.
            clock.thread = thread::Builder::new().name(name).spawn(Self::run).ok();
        }
    }

    /// Removes a configuration. If it was the last one, the thread ends, because the thread must
    /// not call Envoy after Envoy has ended.
    pub(crate) fn remove(configuration: &Arc<Configuration>) {
        let mut clock = Self::lock();
        clock
            .tickers
            .retain(|(other, _)| !Arc::ptr_eq(other, configuration));
        UNDER_WAY.store(false, Ordering::SeqCst);
        let ended = if clock.tickers.is_empty() {
            clock.thread.take()
        } else {
            None
        };
        drop(clock);
        if let Some(thread) = ended {
            thread.thread().unpark();
            // The thread can't panic, so `join` can't fail.
            thread.join().unwrap_or(());
        }
    }

    /// Returns the time between two ticks.
    pub(crate) fn period() -> Duration {
        if BUSY.load(Ordering::Relaxed) {
            FAST_TICK
        } else {
            SLOW_TICK
        }
    }

    fn run() {
        loop {
            thread::park_timeout(Self::period());
            let clock = Self::lock();
            let Some((_, newest)) = clock.tickers.last() else {
                return;
            };
            if !UNDER_WAY.swap(true, Ordering::SeqCst) {
                newest.commit();
            }
        }
    }

    /// Schedules a tick at once.
    pub(crate) fn tick_now() {
        let clock = Self::lock();
        if let Some((_, newest)) = clock.tickers.last()
            && !UNDER_WAY.swap(true, Ordering::SeqCst)
        {
            newest.commit();
        }
    }

    pub(crate) fn ticked() {
        UNDER_WAY.store(false, Ordering::SeqCst);
    }

    pub(crate) fn calm() {
        BUSY.store(false, Ordering::Relaxed);
    }

    /// Makes ticks frequent from now on.
    pub(crate) fn hurry() {
        if !BUSY.load(Ordering::Relaxed) && !BUSY.swap(true, Ordering::Relaxed) {
            let clock = Self::lock();
            if let Some(thread) = &clock.thread {
                thread.thread().unpark();
            }
        }
    }
}
