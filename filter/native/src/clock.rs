//! The timer of ticks. It is a thread that schedules ticks on the main thread, because Envoy has no
//! timer for filters.
//!
//! Envoy holds a configuration while it schedules a tick for it. If Envoy drops the configuration
//! meanwhile, the configuration's last hook runs on this thread, before the call returns. So the
//! thread schedules ticks without any lock, and no other thread schedules ticks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use headgate_core::engine::{FAST_TICK, SLOW_TICK};

use crate::abi::Ticker;
use crate::process::Configuration;

/// The tickers of all configurations, and the thread that schedules ticks through the newest one.
pub(crate) struct Clock {
    tickers: Vec<(Arc<Configuration>, Arc<Ticker>)>,
    thread: Option<Running>,
}

/// A thread that schedules ticks until `stop` is true.
struct Running {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
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
        let ticker = (Arc::clone(configuration), Arc::new(ticker));
        clock.tickers.push(ticker);
        UNDER_WAY.store(false, Ordering::SeqCst);
        if clock.thread.is_none() {
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = Arc::clone(&stop);
            let named = thread::Builder::new().name("headgate".to_owned());
            // If the thread can't start, only ticks are missing. Held requests are still resumed at
            // the end of other requests.
            let thread = named.spawn(move || Self::run(&stopped)).ok();
            clock.thread = thread.map(|thread| Running { thread, stop });
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
        if let Some(Running { thread, stop }) = ended {
            // A configuration that is added meanwhile starts a thread of its own.
            stop.store(true, Ordering::SeqCst);
            thread.thread().unpark();
            if thread.thread().id() != thread::current().id() {
                // The thread can't panic, so `join` can't fail.
                thread.join().unwrap_or(());
            }
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

    fn run(stop: &AtomicBool) {
        loop {
            thread::park_timeout(Self::period());
            if stop.load(Ordering::SeqCst) {
                return;
            }
            let newest = Self::lock().to_commit();
            if let Some(newest) = newest {
                newest.commit();
            }
        }
    }

    /// Returns the ticker through which to schedule a tick, unless a tick is under way.
    fn to_commit(&self) -> Option<Arc<Ticker>> {
        let (_, newest) = self.tickers.last()?;
        (!UNDER_WAY.swap(true, Ordering::SeqCst)).then(|| Arc::clone(newest))
    }

    /// Makes the thread schedule a tick at once. The caller may hold locks.
    pub(crate) fn tick_now() {
        if let Some(running) = &Self::lock().thread {
            running.thread.thread().unpark();
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
            Self::tick_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};

    use super::*;
    use crate::abi::fake::{self, Listener};

    const NO_STAGES: &str = r#"{"stages":[]}"#;

    /// Waits for a step that must come, in a test that would otherwise hang.
    fn wait_for(step: &Receiver<()>, what: &str) {
        let came = step.recv_timeout(Duration::from_secs(20));
        assert!(came.is_ok(), "{what}");
    }

    /// Runs `f` while Envoy schedules the next tick, on the clock's thread.
    fn at_next_tick(f: impl FnOnce() + Send + 'static) {
        fake::seen().on_commit = Some(Box::new(f));
        Clock::ticked();
        Clock::tick_now();
    }

    /// Envoy drops its last reference to the configuration while it schedules a tick.
    #[test]
    fn a_configuration_may_end_while_its_tick_is_scheduled() {
        let _turn = fake::start();
        let (done, ended) = mpsc::channel();
        let listener = Listener::new(NO_STAGES).unwrap();
        at_next_tick(move || {
            drop(listener);
            done.send(()).unwrap();
        });
        wait_for(&ended, "the configuration's end");
        drop(Listener::new(NO_STAGES).unwrap());
    }

    #[test]
    fn a_configuration_that_is_added_while_the_thread_ends_has_another_thread() {
        let _turn = fake::start();
        let (go_on, waits) = mpsc::channel();
        let (done, ended) = mpsc::channel();
        let (begin, begun) = mpsc::channel();
        let last = Listener::new(NO_STAGES).unwrap();
        at_next_tick(move || {
            begin.send(()).unwrap();
            wait_for(&waits, "the next configuration");
        });
        wait_for(&begun, "a tick");
        let worker = thread::spawn(move || {
            drop(last);
            done.send(()).unwrap();
        });
        while Clock::lock().thread.is_some() {
            thread::yield_now();
        }
        let next = Listener::new(NO_STAGES).unwrap();
        go_on.send(()).unwrap();
        wait_for(&ended, "the end of the first thread");
        worker.join().unwrap();
        let (done, ticked) = mpsc::channel();
        at_next_tick(move || done.send(()).unwrap());
        wait_for(&ticked, "a tick of the other thread");
        drop(next);
    }
}
