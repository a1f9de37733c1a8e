//! An open-loop load generator. It sends requests at the times of a Poisson process, whether or not
//! earlier requests have been answered. Latency counts from the time at which a request was *due*.
//!
//! A closed-loop client (N connections, each of which waits for its answer) slows down with the
//! service that it measures. So it hides exactly the overload that is the purpose of admission
//! control ("coordinated omission"). In an open loop, a slow service only makes more requests
//! outstanding, up to `max_outstanding`. A request beyond this number is counted, not delayed.
//! Tests of closed loops use [`LoadSpec::clients`].
//!
//! The generator has two threads. One keeps time and hands over requests as they fall due, and the
//! other one does all input and output. The report includes the delay of the requests
//! ([`LoadReport::lateness_ms`]). So a result can be distinguished from an artefact, and a run that
//! the machine disturbed can be repeated ([`undisturbed()`]).

mod closed;
mod pool;
mod record;
mod report;
mod schedule;
mod sender;
mod spec;
mod sse;
mod undisturbed;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};

pub use record::{Ended, Sample, Stream};
pub use report::{Bin, LoadReport, TypeReport};
pub use schedule::{Due, schedule};
pub use spec::{Clients, LoadSpec, Phase, Protocol, RequestType, ServiceTime};
pub use undisturbed::{
    Discarded, Lateness, Pauses, Processors, TooBusy, lateness, tolerable, undisturbed,
};

use record::Recorder;

/// Sends the whole load and waits for its end.
///
/// # Errors
/// If the specification is invalid or the target can't be reached.
pub fn run(spec: LoadSpec) -> Result<LoadReport> {
    start(spec)?.wait()
}

/// Starts the load and returns at once.
///
/// # Errors
/// If the specification is invalid or the threads can't be started.
pub fn start(spec: LoadSpec) -> Result<Running> {
    let plan = sender::Plan::new(&spec)?;
    let recorder = Arc::new(Mutex::new(Recorder::new(&spec)));
    let stop = Arc::new(AtomicBool::new(false));
    let (shared, stopper) = (Arc::clone(&recorder), Arc::clone(&stop));
    let thread = std::thread::Builder::new()
        .name("load-net".into())
        .spawn(move || sender::send_all(&spec, plan, &shared, &stopper))?;
    Ok(Running {
        recorder,
        stop,
        thread: Some(thread),
    })
}

/// A running load. Dropping it stops the load.
#[derive(Debug)]
pub struct Running {
    recorder: Arc<Mutex<Recorder>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Running {
    /// Returns the current report, for progress displays.
    pub fn snapshot(&self) -> LoadReport {
        lock(&self.recorder).report()
    }

    /// Whether all requests have been sent, and answered or given up.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops sending requests. Outstanding requests may still be answered.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for the end of the load.
    ///
    /// # Errors
    /// If the target can't be reached at the start.
    pub fn wait(self) -> Result<LoadReport> {
        self.wait_with_samples().map(|(report, _)| report)
    }

    /// Waits as [`wait`](Self::wait) does. Also returns every single request, in the order in which
    /// they fell due.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    pub fn wait_with_samples(mut self) -> Result<(LoadReport, Vec<Sample>)> {
        if let Some(thread) = self.thread.take() {
            thread
                .join()
                .map_err(|_| anyhow!("the load generator's thread died"))??;
        }
        let mut recorder = lock(&self.recorder);
        let samples = std::mem::take(&mut recorder.samples);
        Ok((recorder.report(), samples))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(recorder: &Mutex<Recorder>) -> MutexGuard<'_, Recorder> {
    recorder.lock().unwrap_or_else(PoisonError::into_inner)
}
