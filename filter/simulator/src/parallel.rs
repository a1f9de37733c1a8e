//! Independent jobs on several threads.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::simulation::SimulationError;

/// Runs `jobs` jobs, numbered from 0, and returns their results in this order, independent of
/// threads and timing.
///
/// # Errors
/// The error of the first failed job, in this order. After an error, jobs that have not begun may
/// be skipped.
pub(crate) fn in_parallel<T: Send>(
    threads: Option<NonZeroUsize>,
    jobs: usize,
    job: impl Fn(usize) -> Result<T, SimulationError> + Sync,
) -> Result<Vec<T>, SimulationError> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<T, SimulationError>>>> =
        Mutex::new((0..jobs).map(|_| None).collect());
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= jobs {
                return;
            }
            let result = job(at);
            if result.is_err() {
                next.store(jobs, Ordering::Relaxed);
            }
            if let Ok(mut results) = results.lock() {
                results[at] = Some(result);
            }
        }
    };
    let threads = threads
        .or_else(|| thread::available_parallelism().ok())
        .map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        for _ in 0..threads.min(jobs) {
            scope.spawn(work);
        }
    });
    let results = results.into_inner().map_err(|_| SimulationError::Lost)?;
    // An error explains missing results.
    let mut all = Vec::with_capacity(jobs);
    let mut missing = false;
    for result in results {
        match result {
            Some(result) => all.push(result?),
            None => missing = true,
        }
    }
    match missing {
        true => Err(SimulationError::Lost),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_the_error_that_explains_comes_first() {
        let squares =
            |threads| in_parallel(NonZeroUsize::new(threads), 50, |at| Ok(at * at)).unwrap();
        assert_eq!(squares(1), squares(7));
        let failing = in_parallel(NonZeroUsize::new(3), 50, |at| match at {
            20 => Err(SimulationError::Results("20".into())),
            at => Ok(at),
        });
        assert_eq!(
            failing.unwrap_err().to_string(),
            "results can't be kept: 20"
        );
        assert!(in_parallel(None, 0, Ok).unwrap().is_empty());
    }
}
